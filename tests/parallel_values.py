"""Values of parallel plans."""

from __future__ import annotations

from plan_values import landmarks_of

from tf_interop.parallel.costs.devices import uniform_device_graph
from tf_interop.parallel.types import (
    Degrees,
    DividedLayer,
    DivisionPrediction,
    GraphDivision,
    LayerExplanation,
    LayerTimes,
    ParallelPlan,
    SentBytes,
    StrategyStep,
)
from tf_interop.planning.types import ValueSource


def _layer(name: str, degrees: Degrees, compute_us: float) -> LayerExplanation:
    times = LayerTimes("plan", degrees, compute_us, 0.0, 0.0, 0.0)
    whole = LayerTimes("whole", Degrees(), 100.0, 0.0, 0.0, 0.0)
    return LayerExplanation(name, times, (whole,), "less than whole")


PARALLEL_PLAN = ParallelPlan(
    devices=("/device:CPU:0", "/device:CPU:1"),
    graphs=(
        GraphDivision(
            fingerprint="0123456789abcdef",
            landmarks=landmarks_of("conv1/Conv2D", "dense/MatMul"),
            layers=(
                DividedLayer("0", "conv1/Conv2D", Degrees(sample=2), (0, 1)),
                DividedLayer("1", "dense/MatMul", Degrees(filter=2), (1, 0)),
            ),
            batch_size=8,
            mode="training",
            prediction=DivisionPrediction(
                step_us=120.5,
                whole_us=200.0,
                source=ValueSource.MODELLED,
                sent=(SentBytes(0, 1, 4096), SentBytes(1, 0, 512)),
                memory_bytes=(10_000, 8_000),
                strategies=(
                    StrategyStep("whole", 200.0),
                    StrategyStep("data", 150.0),
                    StrategyStep("model", 180.5),
                ),
                layers=(
                    _layer("conv1/Conv2D", Degrees(sample=2), 60.5),
                    _layer("pool <1>", Degrees(), 0.0),
                    _layer("dense/MatMul", Degrees(filter=2), 60.0),
                ),
                search="exact",
            ),
        ),
        GraphDivision(
            "fedcba9876543210", landmarks_of("conv1/Conv2D"), (), why_whole="no layer gets faster"
        ),
    ),
    made_with={"tensorflow": "2.21.0", "model": "LeNet5"},
)
"""Has some of everything."""

DEVICE_GRAPH = uniform_device_graph(
    PARALLEL_PLAN.devices,
    multiply_adds_per_s=2e10,
    memory_bytes_per_s=1e10,
    bytes_per_s=5e9,
    latency_s=1e-5,
)
