"""The rules for files of parallel plans.

`formats_test.py` has the tests for all kinds of files.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re

import pytest
from parallel_values import PARALLEL_PLAN
from plan_values import landmarks_of

from tf_interop.errors import PlanError
from tf_interop.parallel.types import (
    Degrees,
    DividedLayer,
    GraphDivision,
    ParallelPlan,
    save_parallel_plan,
)


def with_layer(degrees: Degrees, devices: tuple[int, ...], *others: DividedLayer) -> ParallelPlan:
    layers = (DividedLayer("0", "conv", degrees, devices), *others)
    return ParallelPlan(
        ("/device:CPU:0", "/device:CPU:1"), (GraphDivision("f", landmarks_of("conv"), layers),)
    )


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (
            ParallelPlan(("/device:CPU:0",) * 2, ()),
            "Expected each device once, got ['/device:CPU:0', '/device:CPU:0'] at `$.devices`",
        ),
        (
            dataclasses.replace(PARALLEL_PLAN, graphs=PARALLEL_PLAN.graphs[:1] * 2),
            "Expected each graph once for a batch size, got fingerprint '0123456789abcdef' again "
            "at `$.graphs[1].fingerprint`",
        ),
        (
            with_layer(Degrees(sample=2, filter=4), (0,)),
            "Expected 8 different devices for sample 2, filter 4, got [0] at "
            "`$.graphs[0].layers[0].devices`",
        ),
        (
            with_layer(Degrees(sample=2), (1, 1)),
            "Expected 2 different devices for sample 2, got [1, 1] at",
        ),
        (
            with_layer(Degrees(filter=2), (1, 2)),
            "Expected devices below 2, got [1, 2] at `$.graphs[0].layers[0].devices`",
        ),
        (
            with_layer(Degrees(), (0,), DividedLayer("0", "conv", Degrees(), (1,))),
            "Expected each layer once, got ['0', '0'] at `$.graphs[0].layers`",
        ),
    ],
)
def test_refuses_an_illegal_plan(plan: ParallelPlan, expected: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(PlanError, match=re.escape(expected)):
        save_parallel_plan(plan, tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())
