"""The errors of tf_interop. A wrong argument raises ValueError."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

INSTALL_TENSORFLOW = "pip install 'tensorflow==2.21.*' (with a GPU: 'tensorflow[and-cuda]==2.21.*')"
"""The fix for a missing TensorFlow."""


class TfInteropError(Exception):
    """Base of every error of this package."""


class GraphError(TfInteropError):
    """A malformed GraphDef (a missing input, a duplicate name, a cycle) or a faulty rewrite."""


class PlanError(TfInteropError):
    """A plan that cannot be read, is not legal, or belongs to another graph."""


class ProfileError(TfInteropError):
    """A profile that cannot be read, or was measured on another device or software version."""


class TimeLimitError(TfInteropError):
    """The graph pass exceeded its time limit."""


class LibraryError(TfInteropError):
    """The compiled library is missing, does not load, or was built for another TensorFlow."""


class BenchmarkError(TfInteropError):
    """Benchmark results that cannot be read, or were measured elsewhere or in another way."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A question, after a space, if some of `names` are close to `name`; else empty."""
    by_lower_case = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=3)
    if not close:
        return ""
    return f" Did you mean {' or '.join(repr(by_lower_case[each]) for each in close)}?"
