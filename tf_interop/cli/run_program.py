"""Runs a program as `python` would, with the plugin on."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import runpy
import sys
from collections.abc import Callable

import wrapt

from tf_interop.errors import TfInteropError
from tf_interop.plan.types import Plan
from tf_interop.profile.types import Profile


@dataclasses.dataclass(frozen=True)
class Program:
    """A program to run, and what for.

    Attributes:
        target: a script (a file, or a folder or archive with a `__main__.py`), or a module.
        is_module: whether `target` is a module, as after `python -m`.
        arguments: the program's own arguments.
    """

    target: str
    is_module: bool
    arguments: tuple[str, ...]

    def run(self) -> None:
        """Runs the program as `__main__`. What it raises comes out, SystemExit too."""
        sys.argv[:] = [self.target, *self.arguments]
        # Under -P and -I Python puts nothing in front of the path, and there is nothing to replace.
        if not getattr(sys.flags, "safe_path", sys.flags.isolated):
            sys.path[0] = self._search_folder()
        if self.is_module:
            runpy.run_module(self.target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(self.target, run_name="__main__")

    def _search_folder(self) -> str:
        if self.is_module:
            return os.getcwd()  # noqa: PTH109 (an entry of sys.path is a string)
        path = pathlib.Path(self.target)
        return str(path.resolve().parent) if path.is_file() else self.target


def enable_once_imported(
    policy: str,
    plan: Plan | None,
    profile: Profile | None,
    *,
    allow_foreign_profile: bool,
    workspace_limit_mb: int | None,
    on_error: Callable[[TfInteropError], None],
) -> None:
    """Turns the plugin on as soon as the program has imported TensorFlow.

    Not before: programs set environment variables for TensorFlow, such as CUDA_VISIBLE_DEVICES,
    ahead of the import.

    Args:
        policy: the policy of `tf_interop.enable`.
        plan: its plan.
        profile: its profile.
        allow_foreign_profile: whether the profile may be of another device.
        workspace_limit_mb: its limit for the workspaces of a stage.
        on_error: is told what `enable` raised. It is called inside the program's import.
    """

    def enable(_tensorflow: object) -> None:
        import tf_interop

        try:
            tf_interop.enable(
                policy,
                plan=plan,
                profile=profile,
                allow_foreign_profile=allow_foreign_profile,
                workspace_limit_mb=workspace_limit_mb,
            )
        except TfInteropError as error:
            on_error(error)

    wrapt.register_post_import_hook(enable, "tensorflow")
