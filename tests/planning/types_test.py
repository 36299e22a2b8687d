"""Plan files: what is written is read back; what is not legal is refused with its place.

What holds for every kind of file is in `formats_test.py`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from plan_values import PLAN

from tf_interop.errors import PlanError
from tf_interop.planning.types import GraphPlan, Plan, PlannedStage, load_plan, save_plan
from tf_interop.stage import Stage, Step

Edit = Callable[[dict[str, Any]], object]
STEP = {"operation": "a", "algorithm": None}
LANE = {"steps": [STEP], "priority": 0, "sm_count": 0, "merged": False}


@pytest.fixture(name="raw")
def fixture_raw(path: pathlib.Path) -> dict[str, Any]:
    """PLAN as it is written."""
    save_plan(PLAN, path)
    raw: dict[str, Any] = json.loads(path.read_text())
    return raw


def _stage(raw: dict[str, Any]) -> dict[str, Any]:
    stage: dict[str, Any] = raw["graphs"][0]["stages"][0]
    return stage


def _lane(raw: dict[str, Any], number: int) -> dict[str, Any]:
    lane: dict[str, Any] = _stage(raw)["stage"]["lanes"][number]
    return lane


def test_writes_a_stage_as_documented(raw: dict[str, Any]) -> None:
    step = {"operation": "left/Conv2D", "algorithm": "eng4_k24=15"}
    assert _stage(raw)["stage"] == {
        "lanes": [
            {"steps": [step], "priority": -1, "sm_count": 64, "merged": False},
            {**LANE, "steps": [STEP, {"operation": "b", "algorithm": "WINOGRAD"}]},
        ]
    }


def test_reads_fields_that_may_be_left_out(path: pathlib.Path) -> None:
    graph = {
        "fingerprint": "f",
        "convolution_count": 1,
        "stages": [{"stage": {"lanes": [{"steps": [{"operation": "a"}]}]}}],
    }
    path.write_text(json.dumps({"graphs": [graph], "format": "tf_interop.plan", "version": 1}))
    stage = PlannedStage(Stage.in_sequence([Step("a")]))
    assert load_plan(path) == Plan((GraphPlan("f", 1, (stage,)),))


def test_one_graph_may_be_planned_for_several_batch_sizes(
    path: pathlib.Path, raw: dict[str, Any]
) -> None:
    raw["graphs"][1].update(fingerprint=raw["graphs"][0]["fingerprint"], batch_size=9)
    path.write_text(json.dumps(raw))
    assert [graph.batch_size for graph in load_plan(path).graphs] == [8, 9]


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda raw: raw["graphs"][1].update(convolution_count=-1), "graphs[1].convolution_count"),
        (lambda raw: raw["graphs"][0].update(mode="evaluation"), "graphs[0].mode"),
        (lambda raw: raw["graphs"][0].update(convolution_count=2), "at `$.graphs[0]`"),
        (
            lambda raw: raw["graphs"][1].update(fingerprint="8c5ad1e0a2f14b07", batch_size=8),
            "graphs[1].fingerprint",
        ),
        (lambda raw: _lane(raw, 1)["steps"][1].update(operation="a"), "graphs[0].stages[0]"),
        (
            lambda raw: raw["graphs"][0]["stages"].append({"stage": {"lanes": [LANE]}}),
            "`$.graphs[0]`",
        ),
        (lambda raw: _stage(raw)["stage"].update(lanes=[]), "stages[0].stage.lanes"),
        (lambda raw: _lane(raw, 1).update(steps=[]), "stages[0].stage.lanes[1].steps"),
        (lambda raw: _lane(raw, 1).update(sm_count=-1), "lanes[1].sm_count"),
        (lambda raw: _lane(raw, 0).update(merged=True), "lane 0"),
        (lambda raw: _lane(raw, 1).update(merged=True), "lane 1"),
        (lambda raw: _stage(raw)["explanation"]["lanes"].pop(), "explanation.lanes"),
        (
            lambda raw: _stage(raw).update(
                schedules=[{"batch_size": 2, "stage": {"lanes": [LANE]}}]
            ),
            "schedules[0].stage",
        ),
        (
            lambda raw: _stage(raw).update(
                schedules=[{"batch_size": size, "stage": _stage(raw)["stage"]} for size in (4, 2)]
            ),
            "schedules",
        ),
        (lambda raw: raw["graphs"][0]["unstaged"][0].update(node="a"), "`$.graphs[0]`"),
        (lambda raw: raw["graphs"][1].update(unit_cores=[2]), "`$.graphs[1].unit_cores`"),
        (lambda raw: raw["graphs"][1].update(unit_cores=[0]), "graphs[1].unit_cores[0]"),
    ],
)
def test_refuses_with_its_place(
    path: pathlib.Path, raw: dict[str, Any], edit: Edit, place: str
) -> None:
    edit(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(PlanError) as raised:
        load_plan(path)
    assert place in str(raised.value)
    assert str(path) in str(raised.value)


def test_same_node_in_two_graphs_is_legal(path: pathlib.Path, raw: dict[str, Any]) -> None:
    raw["graphs"][1]["stages"] = [{"stage": {"lanes": [LANE]}}]
    path.write_text(json.dumps(raw))
    assert load_plan(path).graphs[1].stages[0].nodes == ("a",)
