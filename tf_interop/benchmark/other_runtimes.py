"""Runs a frozen function with TensorFlow Lite, ONNX Runtime or OpenVINO, on the CPU.

Each runtime computes in float32, OpenVINO also in bfloat16 if the function does, and has as many
threads as the process has cores. A *step* takes no argument, runs on the inputs that it was made
with, and returns the outputs in the order of the function's. Converting happens when the step is
made.
"""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import os
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tf_interop.benchmark.numbers import Outputs
from tf_interop.benchmark.result import Variant

Step = Callable[[], Outputs]
_Arrays = Sequence[np.ndarray[Any, Any]]

_PACKAGES = {
    Variant.ONNXRUNTIME: ("onnxruntime", "tf2onnx"),
    Variant.OPENVINO: ("openvino",),
}


def missing_packages(variant: Variant) -> tuple[str, ...]:
    """The packages that a variant needs and that are not installed."""
    packages = _PACKAGES.get(variant, ())
    return tuple(each for each in packages if importlib.util.find_spec(each) is None)


def versions(variant: Variant) -> dict[str, str]:
    """The versions of the packages that a variant needs."""
    return {each: importlib.metadata.version(each) for each in _PACKAGES.get(variant, ())}


def make_step(variant: Variant, frozen: Any, inputs: _Arrays) -> Step:
    """Converts a function for another runtime.

    Args:
        variant: one of another runtime.
        frozen: a concrete function without variables, every dimension of its inputs known.
        inputs: in the order of `frozen.inputs`.
    """
    makers = {
        Variant.TFLITE: _tflite_step,
        Variant.ONNXRUNTIME: _onnxruntime_step,
        Variant.OPENVINO: _openvino_step,
    }
    return makers[variant](frozen, inputs, len(os.sched_getaffinity(0)))


def _tflite_step(frozen: Any, inputs: _Arrays, cores: int) -> Step:
    import tensorflow as tf

    converted = tf.lite.TFLiteConverter.from_concrete_functions([frozen]).convert()
    # Uses XNNPACK by default.
    interpreter = tf.lite.Interpreter(model_content=converted, num_threads=cores)
    interpreter.allocate_tensors()
    places = {each["name"]: each["index"] for each in interpreter.get_input_details()}
    feeds = [
        (places[tensor.op.name], value) for tensor, value in zip(frozen.inputs, inputs, strict=True)
    ]
    places = {each["name"]: each["index"] for each in interpreter.get_output_details()}
    fetches = [places[tensor.op.name] for tensor in frozen.outputs]

    def step() -> Outputs:
        for index, value in feeds:
            interpreter.set_tensor(index, value)
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in fetches]

    return step


def _onnxruntime_step(frozen: Any, inputs: _Arrays, cores: int) -> Step:
    import onnxruntime
    import tf2onnx

    # tf2onnx 1.17 would copy the graph with all weights before each of its many optimizers.
    os.environ["TF2ONNX_CATCH_ERRORS"] = "FALSE"
    names = [tensor.name for tensor in frozen.inputs]
    fetches = [tensor.name for tensor in frozen.outputs]
    converted, _ = tf2onnx.convert.from_graph_def(
        frozen.graph.as_graph_def(), input_names=names, output_names=fetches
    )
    serialized = converted.SerializeToString()
    del converted
    gc.collect()  # what the conversion left must not count as memory of the steps
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    session = onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
    feeds = dict(zip(names, inputs, strict=True))

    def step() -> Outputs:
        return list(session.run(fetches, feeds))

    return step


def _openvino_step(frozen: Any, inputs: _Arrays, cores: int) -> Step:
    import openvino
    import tensorflow as tf

    core = openvino.Core()
    with tempfile.TemporaryDirectory(prefix="tf_interop_openvino_") as folder:
        path = pathlib.Path(folder, "frozen.pb")
        path.write_bytes(frozen.graph.as_graph_def().SerializeToString())
        model = core.read_model(path)
    is_narrow = any(
        tensor.dtype == tf.bfloat16
        for operation in frozen.graph.get_operations()
        for tensor in operation.outputs
    )
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": cores,
        # By default it computes in bfloat16 on processors that have it.
        "INFERENCE_PRECISION_HINT": "bf16" if is_narrow else "f32",
    }
    compiled = core.compile_model(model, "CPU", options)
    feeds = {tensor.name: value for tensor, value in zip(frozen.inputs, inputs, strict=True)}
    fetches = [compiled.output(tensor.name) for tensor in frozen.outputs]

    def step() -> Outputs:
        outputs = compiled(feeds)
        return [outputs[each] for each in fetches]

    return step
