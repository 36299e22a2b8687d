"""Reading TensorFlow's switches."""

from __future__ import annotations

import pytest

from tf_interop import tensorflow_internals


@pytest.mark.parametrize(
    ("value", "is_on"), [("1", True), ("true", True), ("True", True), ("0", False), ("", False)]
)
def test_the_variable_for_cudnn_counts_as_determinism(
    monkeypatch: pytest.MonkeyPatch, value: str, is_on: bool
) -> None:
    monkeypatch.setenv("TF_CUDNN_DETERMINISTIC", value)
    assert tensorflow_internals.is_op_determinism_on() is is_on
