"""Plan files, read and refused, and plans with one part removed.

The properties of every kind of file are in `formats_test.py`.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from edits import set_at
from plan_values import PLAN, STAGE, landmarks_of, make_lanes

from tf_interop.errors import PlanError
from tf_interop.planning.types import (
    OURS,
    STOCK,
    XLA,
    ComparedStep,
    GraphPlan,
    MeasuredStep,
    Plan,
    PlannedStage,
    load_plan,
    save_plan,
)
from tf_interop.planning.variants import without_concurrency, without_pinning
from tf_interop.stage import Schedule, Stage, Step

LANES = "graphs.0.stages.0.stage.lanes"
SCHEDULES = "graphs.0.stages.0.schedules"
STEP = {"operation": "a", "algorithm": None}
ALONE = {"alone_us": 1, "workspace_bytes": 0, "fastest_algorithm": None, "fastest_us": 1}
LANE = {"steps": [STEP], "priority": 0, "merged": False}


@pytest.fixture(name="raw")
def fixture_raw(path: pathlib.Path) -> dict[str, Any]:
    """The JSON of PLAN."""
    save_plan(PLAN, path)
    raw: dict[str, Any] = json.loads(path.read_text())
    return raw


def test_writes_a_stage_as_documented(raw: dict[str, Any]) -> None:
    step = {"operation": "left/Conv2D", "algorithm": "eng4_k24=15"}
    assert raw["graphs"][0]["stages"][0]["stage"] == {
        "lanes": [
            {"steps": [step], "priority": -1, "merged": False},
            {**LANE, "steps": [STEP, {"operation": "b", "algorithm": "WINOGRAD"}]},
        ]
    }


def test_reads_fields_that_may_be_left_out(path: pathlib.Path) -> None:
    graph = {
        "fingerprint": "f",
        "landmarks": [{"name": "a", "form": "Conv2D a", "origin": "origin of a"}],
        "stages": [{"stage": {"lanes": [{"steps": [{"operation": "a"}]}]}}],
    }
    path.write_text(json.dumps({"graphs": [graph], "format": "tf_interop.plan", "version": 1}))
    stage = PlannedStage(Stage.in_sequence([Step("a")]))
    assert load_plan(path) == Plan((GraphPlan("f", landmarks_of("a"), (stage,)),))


def test_graphs_may_share_a_fingerprint_and_nodes(path: pathlib.Path, raw: dict[str, Any]) -> None:
    raw["graphs"][1].update(
        fingerprint=raw["graphs"][0]["fingerprint"],
        landmarks=raw["graphs"][0]["landmarks"],
        batch_size=9,
        stages=[{"stage": {"lanes": [LANE]}}],
    )
    path.write_text(json.dumps(raw))
    assert [graph.batch_size for graph in load_plan(path).graphs] == [8, 9]


@pytest.mark.parametrize(
    ("place", "value", "at"),
    [
        ("graphs.0.mode", "evaluation", "graphs[0].mode"),
        ("graphs.0.landmarks.2.name", "other", "at `$.graphs[0]`"),
        (
            "graphs.1",
            {
                "fingerprint": "8c5ad1e0a2f14b07",
                "landmarks": [],
                "batch_size": 8,
            },
            "graphs[1].fingerprint",
        ),
        (f"{LANES}.1.steps.1.operation", "a", "graphs[0].stages[0]"),
        ("graphs.0.stages", [{"stage": {"lanes": [LANE]}}] * 2, "`$.graphs[0]`"),
        (f"{LANES}.0.merged", True, "lane 0"),
        ("graphs.0.stages.0.alone.1", None, "alone[1]"),
        ("graphs.0.stages.0.alone", [ALONE], "`.alone`"),
        (SCHEDULES, [{"batch_size": 2, "stage": {"lanes": [LANE]}}], "schedules[0].stage"),
        (
            SCHEDULES,
            [{"batch_size": size, "stage": msgspec.to_builtins(STAGE)} for size in (4, 2)],
            "schedules",
        ),
        ("graphs.0.unstaged.0.node", "a", "`$.graphs[0]`"),
        (
            "graphs.1.measured",
            {"compared": [], "way": "", "cores": 1},
            "`$.graphs[1].measured.compared`",
        ),
        ("graphs.1.fingerprint", "8c5ad1e0a2f14b07", "`$.graphs[1].landmarks`"),
        ("graphs.0.as_stock", True, "no stages with `as_stock`, got some at `$.graphs[0]`"),
    ],
)
def test_refuses_with_its_place(
    path: pathlib.Path, raw: dict[str, Any], place: str, value: object, at: str
) -> None:
    set_at(raw, place, value)
    path.write_text(json.dumps(raw))
    with pytest.raises(PlanError) as raised:
        load_plan(path)
    assert at in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("ratios", "fastest"),
    [
        ({OURS: 0.9}, STOCK),
        ({OURS: 1.2, XLA: 1.25}, OURS),
        ({OURS: 1.2, XLA: 1.27}, XLA),
        ({OURS: 0.9, XLA: 1.04}, STOCK),
    ],
)
def test_xla_is_fastest_only_if_it_is_clearly_faster(
    ratios: dict[str, float], fastest: str
) -> None:
    compared = [
        ComparedStep(name, 20 / ratio, ratio) for name, ratio in ({STOCK: 1.0} | ratios).items()
    ]
    measured = MeasuredStep(tuple(compared), way="on one core", cores=2)
    assert (measured.stock_ms, measured.ours.name, measured.fastest.name) == (20, OURS, fastest)


APART = make_lanes("a:eng0", "b:eng1 c:eng2")
SEQUENCE = make_lanes("a:eng0 b:eng1 c:eng2")
UNPINNED = make_lanes("a", "b c")


@pytest.mark.parametrize(
    ("change", "stage", "expected"),
    [
        (without_concurrency, PlannedStage(APART), [PlannedStage(SEQUENCE)]),
        (
            without_concurrency,
            PlannedStage(make_lanes("+a:eng0 b:eng0", "c:eng2")),
            [PlannedStage(make_lanes("+a:eng0 b:eng0")), PlannedStage(make_lanes("c:eng2"))],
        ),
        (
            without_concurrency,
            PlannedStage(APART, schedules=(Schedule(8, APART),)),
            [PlannedStage(SEQUENCE, schedules=(Schedule(8, SEQUENCE),))],
        ),
        (
            without_pinning,
            PlannedStage(APART, schedules=(Schedule(8, APART),)),
            [PlannedStage(UNPINNED, schedules=(Schedule(8, UNPINNED),))],
        ),
    ],
)
def test_takes_out_concurrency_or_pinning_and_predicts_nothing(
    change: Callable[[Plan], Plan], stage: PlannedStage, expected: list[PlannedStage]
) -> None:
    planned = PLAN.graphs[0]
    of_stage = dataclasses.replace(stage, prediction=planned.stages[0].prediction)
    [graph] = change(Plan((dataclasses.replace(planned, stages=(of_stage,)),))).graphs
    assert graph == dataclasses.replace(
        planned, stages=tuple(expected), prediction=None, unstaged=()
    )
