"""Fixtures for the tests of all folders."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported
# TensorFlow leaves oneDNN off on CPUs without VNNI; tests run the same kernels on every CPU.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Lets tests of stages run without a GPU; `units_on_cpus` removes this for tests of units.
os.environ.setdefault("TF_INTEROP_HOST_STAGES", "1")

# Tests import programs under python/, which are not installed.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))


@pytest.fixture
def plugin_as_after_import(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restores the plugin and TensorFlow's options to their state after `import tf_interop`.

    Once it is on, the variables of every function are packed, even of those with few.
    """
    import tensorflow as tf

    from tf_interop.runtime import packed_calls
    from tf_interop.runtime.plugin import get_plugin
    from tf_interop.runtime.settings import Settings

    def set_options() -> None:
        tf.config.optimizer.set_experimental_options(
            {"use_plugin_optimizers": True, "debug_stripper": False}
        )
        get_plugin().forget_reports()

    monkeypatch.setattr(packed_calls, "FEWEST_VARIABLES", 1)
    set_options()
    yield
    packed_calls.turn_off()
    get_plugin().settings = Settings()
    get_plugin().library.set_xla_calls(False)
    set_options()


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file to write."""
    return tmp_path / "file.json"


@pytest.fixture
def plugin_off() -> Iterator[None]:
    """Turns the plugin off, so that graphs stay TensorFlow's own."""
    import tf_interop

    tf_interop.disable()
    yield
    tf_interop.enable()


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings that the package logs."""
    from absl import logging

    texts: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *args, **_: texts.append(text % args))
    return texts


@pytest.fixture
def units_on_cpus(plugin_as_after_import: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives CPUs units instead of stages, which they have in other tests."""
    monkeypatch.delenv("TF_INTEROP_HOST_STAGES", raising=False)


@pytest.fixture
def enabled(units_on_cpus: None) -> Iterator[None]:
    """Turns the plugin on."""
    import tf_interop

    tf_interop.enable()
    yield
    tf_interop.disable()


@pytest.fixture(scope="session")
def ops() -> Any:
    """The library's ops as functions."""
    import tensorflow as tf

    from tf_interop.runtime.kernel_library import load_kernel_library

    return tf.load_op_library(str(load_kernel_library().build_info.path))


@pytest.fixture(scope="session")
def conv_stage(ops: Any) -> Any:
    return ops.tf_interop_conv_stage


@pytest.fixture(scope="session")
def unit(ops: Any) -> Any:
    return ops.tf_interop_unit


@pytest.fixture
def without_optimization(plugin_off: None) -> Iterator[None]:
    """Runs graphs as they are written."""
    import tensorflow as tf

    options = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options(options | {"disable_meta_optimizer": False})
