"""Other runtimes compute what TensorFlow does. Those that are not installed are skipped."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

from tf_interop import tensorflow_internals
from tf_interop.benchmark.numbers import check_outputs, flat_outputs, noise, outputs_of_stock
from tf_interop.benchmark.other_runtimes import make_step, missing_packages
from tf_interop.benchmark.result import Variant
from tf_interop.model.keras_functions import trace_keras

OTHERS = [each for each in Variant if each.is_other_runtime]


@pytest.mark.parametrize("variant", OTHERS)
def test_keeps_the_order_of_inputs_and_outputs(variant: Variant) -> None:
    if missing := missing_packages(variant):
        pytest.skip(f"needs {', '.join(missing)}")
    # In neither order the names are sorted.
    inputs = [tf.keras.Input((6, 6, 3), name=name) for name in ("z", "a")]
    left = tf.keras.layers.Conv2D(4, 3, padding="same", activation="relu")(inputs[0])
    right = tf.keras.layers.BatchNormalization()(inputs[1])
    outputs = [tf.keras.layers.Concatenate()([left, right]), right, left]
    model = tf.keras.Model(inputs, outputs)
    traced = trace_keras(model, 2, None, training=False)
    stock = outputs_of_stock(traced.function, traced.inputs)
    assert [each.shape[-1] for each in stock] == [7, 3, 4]
    frozen = tensorflow_internals.without_variables(traced.function)
    step = make_step(variant, frozen, flat_outputs(noise(traced.inputs, seed=0)))
    for _ in range(2):
        check_outputs(step(), stock)


def test_openvino_computes_in_the_dtype_of_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    openvino = pytest.importorskip("openvino")
    hints = []

    def compile_model(self: object, model: object, device: str, options: dict[str, str]) -> None:
        hints.append(options["INFERENCE_PRECISION_HINT"])
        raise InterruptedError

    monkeypatch.setattr(openvino.Core, "compile_model", compile_model)
    for dtype in (tf.float32, tf.bfloat16):
        function = tf.function(
            lambda x, dtype=dtype: tf.cast(tf.nn.relu(tf.cast(x, dtype)), tf.float32)
        )
        concrete = function.get_concrete_function(tf.TensorSpec([3]))
        with pytest.raises(InterruptedError):
            make_step(Variant.OPENVINO, concrete, [np.ones(3, np.float32)])
    assert hints == ["f32", "bf16"]


def test_says_which_packages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    missing = {each: missing_packages(each) for each in Variant if missing_packages(each)}
    assert missing == {
        Variant.ONNXRUNTIME: ("onnxruntime", "tf2onnx"),
        Variant.OPENVINO: ("openvino",),
    }
