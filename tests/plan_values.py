"""A plan with stages, the entry of a tuned graph, and made-up landmarks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tf_interop.planning.sm_model import SmUse
from tf_interop.planning.types import (
    OURS,
    STOCK,
    ComparedStep,
    GraphPlan,
    GraphPrediction,
    LaneAlone,
    MeasuredStep,
    Plan,
    PlannedStage,
    RejectedStage,
    StageChoice,
    StagePrediction,
    UnstagedConvolution,
    ValueSource,
)
from tf_interop.stage import Lane, Stage, Step
from tf_interop.structure import Landmark


def landmarks_of(*names: str) -> tuple[Landmark, ...]:
    """Landmarks with these names, of which no two are alike."""
    return tuple(Landmark(name, f"Conv2D {name}", f"origin of {name}") for name in names)


def make_lanes(*lanes: str, algorithm: str | None = None) -> Stage[str]:
    """Makes a stage of lanes such as `a:FFT b` or `a:FFT>b`, which runs a with FFT, then b.

    A lane that begins with `+` is merged. Steps that name no algorithm have `algorithm`.
    """
    return Stage(
        tuple(
            Lane(
                tuple(
                    Step(name, its or algorithm)
                    for name, _, its in (
                        step.partition(":") for step in re.split("[ >]", lane.removeprefix("+"))
                    )
                ),
                merged=lane.startswith("+"),
            )
            for lane in lanes
        )
    )


def measured_step(
    ratio: float, error: float = 0.02, *, others: Sequence[ComparedStep] = (), **fields: Any
) -> MeasuredStep:
    """Measured steps: 20 ms in stock TensorFlow, and ours, which is `ratio` times as fast."""
    ours = ComparedStep(OURS, 20 / ratio, ratio, error)
    compared = (ComparedStep(STOCK, 20.0, 1.0, 0.0), ours, *others)
    return MeasuredStep(compared, **{"way": "on one core", "cores": 2, **fields})


STAGE = Stage(
    (
        Lane((Step("left/Conv2D", "eng4_k24=15"),), priority=-1),
        Lane((Step("a"), Step("b", "WINOGRAD"))),
    )
)
PLAN = Plan(
    graphs=(
        GraphPlan(
            fingerprint="8c5ad1e0a2f14b07",
            landmarks=landmarks_of("left/Conv2D", "a", "b", "c"),
            stages=(
                PlannedStage(
                    STAGE,
                    why="always: depth 2",
                    prediction=StagePrediction(
                        latency_us=21.5,
                        spread_us=0.5,
                        sequential_us=30.0,
                        source=ValueSource.MODELLED,
                        workspace_bytes=4096,
                        peak_bytes=8192,
                    ),
                    alone=(
                        LaneAlone(
                            alone_us=18.0,
                            workspace_bytes=4096,
                            fastest_algorithm="eng4_k24=15",
                            fastest_us=18.0,
                            sm_use=SmUse(0.92, 0.39, 0.25, 0.1, alu_utilization=0.7),
                        ),
                        LaneAlone(12.0, 0, "FFT", 11.0),
                    ),
                    alternatives=(
                        StageChoice(
                            STAGE.with_algorithms(("eng4_k24=15", "FFT", "FFT")),
                            StagePrediction(25.0, 0.5, 30.0, ValueSource.MEASURED, 0, 4096),
                            why_not="not faster",
                        ),
                    ),
                ),
            ),
            batch_size=8,
            prediction=GraphPrediction(
                latency_us=51.5,
                sequential_us=61.0,
                peak_bytes=8192,
                sequential_peak_bytes=6144,
                memory_budget_bytes=10000,
                search="exact",
            ),
            unstaged=(UnstagedConvolution("c", "eng1", 30.0, before_stage=1),),
            rejected=(RejectedStage(("a", "c"), "measured 3.0 µs slower", 2, -3.0),),
            mode="training",
        ),
        GraphPlan(
            fingerprint="0000000000000001",
            landmarks=landmarks_of("d"),
        ),
    ),
    made_with={"tensorflow": "2.21.0", "cudnn": "9.3.0"},
)
TUNED = GraphPlan(
    fingerprint="0000000000000002",
    landmarks=landmarks_of("e"),
    batch_size=2,
    mode="inference",
    measured=measured_step(0.8, other_load=0.1),
    as_stock=True,
)
