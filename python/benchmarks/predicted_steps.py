"""Compares the whole steps that tuning predicts with those that it measures."""

from __future__ import annotations

from typing import Any

from python.benchmarks.result_file import Case
from tf_interop import tune
from tf_interop.model.load import load_model

_MODELS = {
    **{name: name for name in ("NASNetMobile", "InceptionV3", "MobileNetV2", "EfficientNetB0")},
    **{name: name for name in ("DenseNet121", "ResNet50", "Xception", "NASNetLarge")},
    "GoogLeNet": "python.models.googlenet:googlenet",
    "SqueezeNet": "python.models.squeezenet:squeezenet",
    "RandWire": "python.models.randwire:randwire",
}
_STEPS = {
    "inference, batch 1": (1, False),
    "inference, batch 8": (8, False),
    "training, batch 4": (4, True),
}


def measure(name: str) -> dict[str, Any]:
    """The measured and predicted step of the fastest variant, and the worst prediction."""
    network, step = name.split(", ", 1)
    batch_size, is_training = _STEPS[step]
    (graph,) = tune(
        load_model(_MODELS[network]),
        batch_sizes=[batch_size],
        training=is_training,
        budget="15s",
        compare_xla=False,
        use_cache=False,
        enable=False,
    ).graphs
    measured = graph.plan.measured
    assert measured is not None
    fastest = min(measured.compared, key=lambda each: each.step_ms)
    off = {
        each.name: 100 * (each.predicted_ms / each.step_ms - 1)
        for each in measured.compared
        if each.predicted_ms is not None
    }
    return {
        "fastest": fastest.name,
        "measured_ms": fastest.step_ms,
        "predicted_ms": fastest.predicted_ms,
        "off_percent": off.get(fastest.name),
        "furthest_percent": max(off.values(), key=abs, default=None),
        "other_load_percent": 100 * measured.other_load,
    }


CASE = Case(
    title="Predicted steps",
    says="Tuning simulates TensorFlow's executor to choose what it measures. The table compares "
    'the simulated and the measured step of the fastest variant. "Furthest" is the worst '
    "prediction of a proposal in the last comparison. The simulation is fitted to stock and to "
    'all units narrow, so these two have no prediction. "Other load" is the share of the cores '
    "that other programs took.",
    networks=[f"{network}, {step}" for step in _STEPS for network in _MODELS],
    measure=measure,
)
