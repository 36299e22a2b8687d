"""What tests of all folders share."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported
# Tests of stages need no GPU. Those of narrow units take it away.
os.environ.setdefault("TF_INTEROP_HOST_STAGES", "1")

# Tests use the programs under python/ and the helpers beside them, which are not installed.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))


@pytest.fixture
def plugin_as_after_import() -> Iterator[None]:
    """Leaves the plugin and TensorFlow's options as `import tf_interop` does."""
    import tensorflow as tf

    from tf_interop.runtime.plugin import get_plugin
    from tf_interop.runtime.settings import Settings

    get_plugin().forget_reports()
    yield
    get_plugin().settings = Settings()
    tf.config.optimizer.set_experimental_options(
        {"use_plugin_optimizers": True, "debug_stripper": False}
    )
    get_plugin().forget_reports()


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file to write."""
    return tmp_path / "file.json"


@pytest.fixture
def plugin_off() -> Iterator[None]:
    """TensorFlow's own graphs are the reference."""
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
    """Takes the GPU away that other tests run stages without."""
    monkeypatch.delenv("TF_INTEROP_HOST_STAGES", raising=False)


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
