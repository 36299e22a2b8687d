"""Plan files: what is written is read back; what is not legal is refused with its place."""

from __future__ import annotations

import json
import os
import pathlib
import stat
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_values import PLAN

from tf_interop.errors import PlanError
from tf_interop.plan.file import load_plan, plan_schema, save_plan
from tf_interop.plan.problem_file import problem_schema
from tf_interop.plan.types import (
    GraphPlan,
    LaneOptions,
    PinnedConvolution,
    Plan,
    PlannedStage,
)

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(name="path")
def fixture_path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "plan.json"


def _raw() -> dict[str, Any]:
    """PLAN as JSON values, written out, so that a change of the format does not go unseen."""
    return {
        "graphs": [
            {
                "fingerprint": "8c5ad1e0a2f14b07",
                "convolution_count": 4,
                "stages": [
                    {
                        "lanes": [
                            [{"node": "left/Conv2D", "algorithm": "eng4_k24=15"}],
                            [
                                {"node": "a", "algorithm": None},
                                {"node": "b", "algorithm": "WINOGRAD"},
                            ],
                        ],
                        "why": "always: depth 2",
                        "lane_options": [
                            {"priority": -1, "sm_count": 64, "merged": False},
                            {"priority": 0, "sm_count": 0, "merged": False},
                        ],
                        "prediction": {
                            "latency_us": 21.5,
                            "spread_us": 0.5,
                            "sequential_us": 30.0,
                            "source": "modelled",
                            "workspace_bytes": 4096,
                            "peak_bytes": 8192,
                        },
                        "explanation": {
                            "lanes": [
                                {
                                    "alone_us": 18.0,
                                    "workspace_bytes": 4096,
                                    "fastest_algorithm": "eng4_k24=15",
                                    "fastest_us": 18.0,
                                    "sm_use": {
                                        "registers": 0.92,
                                        "shared_memory": 0.39,
                                        "threads": 0.25,
                                        "blocks": 0.1,
                                        "alu_utilization": 0.7,
                                        "dram_utilization": None,
                                        "memory_stall": None,
                                    },
                                },
                                {
                                    "alone_us": 12.0,
                                    "workspace_bytes": 0,
                                    "fastest_algorithm": "FFT",
                                    "fastest_us": 11.0,
                                    "sm_use": None,
                                },
                            ],
                            "alternatives": [
                                {
                                    "algorithms": ["eng4_k24=15", "FFT", "FFT"],
                                    "latency_us": 25.0,
                                    "source": "measured",
                                    "workspace_bytes": 0,
                                    "why_not": "not faster",
                                    "lanes": [0, 1, 1],
                                }
                            ],
                        },
                        "schedules": [],
                    }
                ],
                "batch_size": 8,
                "prediction": {
                    "latency_us": 51.5,
                    "sequential_us": 61.0,
                    "peak_bytes": 8192,
                    "sequential_peak_bytes": 6144,
                    "memory_budget_bytes": 10000,
                    "search": "exact",
                    "unmeasured_count": 1,
                },
                "alone": [
                    {
                        "node": "c",
                        "algorithm": "eng1",
                        "latency_us": 30.0,
                        "peak_bytes": 6144,
                        "before_stage": 1,
                    }
                ],
                "missed": [{"nodes": ["a", "c"], "why_not": "measured 3.0 us slower", "count": 2}],
                "why_no_stage": "",
                "step": "training",
            },
            {
                "fingerprint": "0000000000000001",
                "convolution_count": 1,
                "stages": [],
                "batch_size": None,
                "prediction": None,
                "alone": [],
                "missed": [],
                "why_no_stage": "the one measured set does not beat",
                "step": None,
            },
        ],
        "format": "tf_interop.plan",
        "version": 1,
        "made_with": {"cudnn": "9.3.0", "tensorflow": "2.21.0"},
    }


def _load_error(path: pathlib.Path) -> str:
    with pytest.raises(PlanError) as raised:
        load_plan(path)
    message = str(raised.value)
    assert str(path) in message
    assert message.endswith(("Correct the file, or plan the graph anew.", "Check the path."))
    return message


def test_writes_the_documented_format(path: pathlib.Path) -> None:
    save_plan(PLAN, path)
    assert json.loads(path.read_text()) == _raw()


def test_reads_the_documented_format(path: pathlib.Path) -> None:
    path.write_text(json.dumps(_raw()))
    assert load_plan(path) == PLAN


def test_reads_fields_that_may_be_left_out(path: pathlib.Path) -> None:
    raw = _raw()
    del raw["made_with"], raw["graphs"][0]["stages"][0]["why"]
    del raw["graphs"][0]["stages"][0]["lanes"][1][0]["algorithm"]
    raw["graphs"][0]["stages"][0]["lane_options"] = [{}, {"sm_count": 8}]
    path.write_text(json.dumps(raw))
    plan = load_plan(path)
    assert plan.made_with == {}
    assert plan.graphs[0].stages[0].why == ""
    assert plan.graphs[0].stages[0].convolutions[1] == PinnedConvolution("a", None)
    assert plan.graphs[0].stages[0].lane_options == (LaneOptions(), LaneOptions(0, 8))


def test_reads_files_from_before_lanes_had_options(path: pathlib.Path) -> None:
    raw = _raw()
    del raw["graphs"][0]["stages"][0]["lane_options"]
    path.write_text(json.dumps(raw))
    assert load_plan(path).graphs[0].stages[0].lane_options == ()


def test_reads_files_from_before_plans_named_their_step(path: pathlib.Path) -> None:
    raw = _raw()
    for graph in raw["graphs"]:
        del graph["step"]
    path.write_text(json.dumps(raw))
    assert [graph.step for graph in load_plan(path).graphs] == [None, None]


def test_reads_files_from_before_plans_predicted_and_explained(path: pathlib.Path) -> None:
    raw = _raw()
    for graph in raw["graphs"]:
        del graph["batch_size"], graph["prediction"], graph["alone"]
    del _stage(raw)["prediction"], _stage(raw)["explanation"]
    path.write_text(json.dumps(raw))
    [graph, _] = load_plan(path).graphs
    assert (graph.batch_size, graph.prediction) == (None, None)
    assert (graph.stages[0].prediction, graph.stages[0].explanation) == (None, None)


def test_one_graph_may_be_planned_for_several_batch_sizes(path: pathlib.Path) -> None:
    raw = _raw()
    raw["graphs"][1].update(fingerprint="8c5ad1e0a2f14b07", batch_size=9)
    path.write_text(json.dumps(raw))
    assert [graph.batch_size for graph in load_plan(path).graphs] == [8, 9]


def test_equal_plans_give_equal_bytes(tmp_path: pathlib.Path) -> None:
    backwards = Plan(graphs=PLAN.graphs, made_with=dict(reversed(PLAN.made_with.items())))
    assert list(backwards.made_with) != list(PLAN.made_with)
    save_plan(PLAN, tmp_path / "one.json")
    save_plan(backwards, tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_is_readable_by_people_and_by_others(path: pathlib.Path) -> None:
    umask = os.umask(0o022)
    try:
        save_plan(PLAN, path)
    finally:
        os.umask(umask)
    assert '\n      "fingerprint": "8c5ad1e0a2f14b07",\n' in path.read_text()
    assert path.read_text().endswith("}\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


NODE_NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
ALGORITHMS = st.sampled_from([None, "eng0", "eng1_k2=3", "FFT", "ALGO_3", "IM2COL_GEMM"])

LANE_OPTIONS = st.builds(LaneOptions, st.integers(1 - 2**31, 2**31 - 1), st.integers(0, 2**31 - 1))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    graphs = []
    for fingerprint in draw(st.lists(NODE_NAMES, unique=True, max_size=3)):
        names = draw(st.lists(NODE_NAMES, unique=True, max_size=9))
        count = len(names) + draw(st.integers(0, 3))
        stages = []
        while names:
            lanes = []
            for size in draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)):
                lane, names = names[:size], names[size:]
                if lane:
                    lanes.append(tuple(PinnedConvolution(n, draw(ALGORITHMS)) for n in lane))
            options = tuple(draw(LANE_OPTIONS) for _ in lanes) if draw(st.booleans()) else ()
            stages.append(PlannedStage(tuple(lanes), draw(st.text(max_size=5)), options))
        graphs.append(GraphPlan(fingerprint, count, tuple(stages)))
    return Plan(tuple(graphs), made_with=draw(st.dictionaries(NODE_NAMES, NODE_NAMES, max_size=2)))


@given(plan=plans())
def test_reads_back_every_plan(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    save_plan(plan, path)
    assert load_plan(path) == plan


def test_replaces_a_file_and_leaves_nothing_else(path: pathlib.Path) -> None:
    path.write_text("old")
    save_plan(PLAN, path)
    assert load_plan(path) == PLAN
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_keeps_the_old_file_when_writing_fails(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path.write_text("old")
    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(PlanError, match=r"write plan '.*plan\.json', got: No space left"):
        save_plan(PLAN, path)
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_content_is_on_disk_before_it_takes_the_name(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_at_fsync = []
    fsync = os.fsync

    def look_and_fsync(descriptor: int) -> None:
        seen_at_fsync.append((path.exists(), os.fstat(descriptor).st_size))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", look_and_fsync)
    save_plan(PLAN, path)
    assert seen_at_fsync == [(False, path.stat().st_size)]


def test_writes_through_a_link(tmp_path: pathlib.Path, path: pathlib.Path) -> None:
    (tmp_path / "link.json").symlink_to(path)
    save_plan(PLAN, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert load_plan(path) == PLAN


def test_refuses_to_write_into_a_missing_folder(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PlanError, match=r"No such file or directory.*folder that exists"):
        save_plan(PLAN, tmp_path / "missing" / "plan.json")


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan((), version=2), r"Expected version 1, got 2 at `\$\.version`"),
        (Plan((), format="other"), "Expected format 'tf_interop.plan', got 'other'"),
        (Plan((GraphPlan("f", 1, (PlannedStage(()),)),)), "length >= 1 at"),
        (
            Plan((GraphPlan("f", 1, (PlannedStage(((PinnedConvolution("a", "X"),),)),)),)),
            "algorithm that a runner knows",
        ),
    ],
)
def test_refuses_to_write_what_it_would_not_read(
    path: pathlib.Path, plan: Plan, reason: str
) -> None:
    with pytest.raises(PlanError, match=reason):
        save_plan(plan, path)
    assert not path.exists()


def test_refuses_missing_file(path: pathlib.Path) -> None:
    assert "Expected a plan file at" in (message := _load_error(path))
    assert "No such file or directory" in message


def test_refuses_folder(tmp_path: pathlib.Path) -> None:
    assert "Is a directory" in _load_error(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[1,]", b"\xff\xfe", b"{} {}", b'{"graphs": NaN}'])
def test_refuses_what_is_not_json(path: pathlib.Path, content: bytes) -> None:
    path.write_bytes(content)
    assert f"Expected JSON in plan '{path}', got {len(content)} bytes" in _load_error(path)


@given(share=st.floats(0, 1, exclude_max=True))
def test_refuses_every_half_written_file(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    content = json.dumps(_raw()).encode()
    path.write_bytes(content[: int(share * len(content))])
    assert "was only half written" in _load_error(path)


def _stage(raw: dict[str, Any]) -> dict[str, Any]:
    stage: dict[str, Any] = raw["graphs"][0]["stages"][0]
    return stage


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        pytest.param(
            lambda raw: raw.update(format="tf_interop.profile"),
            "Expected format 'tf_interop.plan', got 'tf_interop.profile' at `$.format`",
            id="other_format",
        ),
        pytest.param(
            lambda raw: raw.pop("format"),
            "Expected format 'tf_interop.plan', got None at `$.format`",
            id="no_format",
        ),
        pytest.param(
            lambda raw: raw.update(version=2, graphs="of version 2"),
            "Expected version 1, got 2 at `$.version` (made by a newer release; update this one)",
            id="newer_version",
        ),
        pytest.param(
            lambda raw: raw.update(version=0),
            "Expected version 1, got 0 at `$.version` (made by an older release; this one does not "
            "read it), in",
            id="older_version",
        ),
        pytest.param(
            lambda raw: raw.update(version=True),
            "Expected version 1, got True at `$.version`, in",
            id="version_is_no_number",
        ),
        pytest.param(
            lambda raw: raw.pop("version"),
            "Expected version 1, got None at `$.version`, in",
            id="no_version",
        ),
        pytest.param(
            lambda raw: raw["graphs"][1].update(convolution_count="1"),
            "Expected `int`, got `str` at `$.graphs[1].convolution_count`",
            id="wrong_type",
        ),
        pytest.param(
            lambda raw: raw["graphs"][1].update(convolution_count=-1),
            "Expected `int` >= 0 at `$.graphs[1].convolution_count`",
            id="negative_count",
        ),
        pytest.param(
            lambda raw: raw["graphs"][0].pop("fingerprint"),
            "Object missing required field `fingerprint` at `$.graphs[0]`",
            id="missing_field",
        ),
        pytest.param(
            lambda raw: raw.update(made_wiht={}),
            "Expected only the fields `graphs`, `format`, `version`, `made_with`, "
            "got `made_wiht` at `$`",
            id="unknown_field",
        ),
        pytest.param(
            lambda raw: _stage(raw)["lanes"][1][1].update(algoritm="FFT"),
            "Expected only the fields `node`, `algorithm`, got `algoritm` at "
            "`$.graphs[0].stages[0].lanes[1][1]`",
            id="unknown_field_deep_inside",
        ),
        pytest.param(
            lambda raw: _stage(raw)["lanes"][1][1].update(algorithm="PRECOMP_GEMM"),
            "got 'PRECOMP_GEMM' at `$.graphs[0].stages[0].lanes[1][1].algorithm`",
            id="unknown_algorithm",
        ),
        pytest.param(
            lambda raw: _stage(raw)["lanes"][1][1].update(node="left/Conv2D"),
            "Expected each node once, got 'left/Conv2D' of "
            "`$.graphs[0].stages[0].lanes[0][0]` again at "
            "`$.graphs[0].stages[0].lanes[1][1].node`",
            id="node_twice_in_a_stage",
        ),
        pytest.param(
            lambda raw: raw["graphs"][0]["stages"].append({"lanes": [[{"node": "a"}]]}),
            "Expected each node once, got 'a' of `$.graphs[0].stages[0].lanes[1][0]` again at "
            "`$.graphs[0].stages[1].lanes[0][0].node`",
            id="node_in_two_stages",
        ),
        pytest.param(
            lambda raw: raw["graphs"][1].update(fingerprint="8c5ad1e0a2f14b07", batch_size=8),
            "Expected each graph once, got fingerprint '8c5ad1e0a2f14b07' with batch size 8 of "
            "`$.graphs[0]` again at `$.graphs[1].fingerprint`",
            id="graph_twice",
        ),
        pytest.param(
            lambda raw: raw["graphs"][0]["alone"][0].update(node="a"),
            "Expected each node once, got 'a' of `$.graphs[0].stages[0].lanes[1][0]` again at "
            "`$.graphs[0].alone[0].node`",
            id="node_in_a_stage_and_alone",
        ),
        pytest.param(
            lambda raw: raw["graphs"][0]["alone"][0].update(before_stage=2),
            "Expected at most 1, the number of stages, got 2 at "
            "`$.graphs[0].alone[0].before_stage`",
            id="before_a_stage_that_is_not_there",
        ),
        pytest.param(
            lambda raw: raw["graphs"][0].update(batch_size=0),
            "Expected `int` >= 1 at `$.graphs[0].batch_size`",
            id="batch_size_0",
        ),
        pytest.param(
            lambda raw: raw["graphs"][0]["prediction"].update(memory_budget_bytes=8191),
            "Expected no more than the budget of 8191 bytes, got 8192 at "
            "`$.graphs[0].stages[0].prediction.peak_bytes`",
            id="more_memory_than_the_budget",
        ),
        pytest.param(
            lambda raw: _stage(raw)["explanation"]["lanes"].pop(),
            "Expected an entry for each of 2 lanes, got 1 at "
            "`$.graphs[0].stages[0].explanation.lanes`",
            id="explanation_of_some_lanes",
        ),
        pytest.param(
            lambda raw: _stage(raw)["explanation"]["alternatives"][0]["algorithms"].pop(),
            "Expected an algorithm for each of 3 convolutions, got 2 at "
            "`$.graphs[0].stages[0].explanation.alternatives[0].algorithms`",
            id="alternative_for_some_convolutions",
        ),
        pytest.param(
            lambda raw: _stage(raw)["explanation"]["alternatives"][0]["lanes"].pop(),
            "Expected a lane for none or all of 3 convolutions, got 2 at "
            "`$.graphs[0].stages[0].explanation.alternatives[0].lanes`",
            id="alternative_with_lanes_of_some_convolutions",
        ),
        pytest.param(
            lambda raw: _stage(raw)["lane_options"][0].update(merged=True),
            "Expected two or more convolutions in a merged lane, got 1 at "
            "`$.graphs[0].stages[0].lanes[0]`",
            id="merged_lane_of_one_convolution",
        ),
        pytest.param(
            lambda raw: _stage(raw)["lane_options"][1].update(merged=True),
            "Expected one algorithm in a merged lane, that of the wider convolution, got [None, "
            "'WINOGRAD'] at `$.graphs[0].stages[0].lanes[1]`",
            id="merged_lane_with_two_algorithms",
        ),
        pytest.param(
            lambda raw: raw["graphs"][0]["missed"][0]["nodes"].pop(),
            "Expected `array` of length >= 2 at `$.graphs[0].missed[0].nodes`",
            id="missed_stage_of_one_convolution",
        ),
        pytest.param(
            lambda raw: raw["graphs"][0].update(step="evaluation"),
            "Invalid enum value 'evaluation' at `$.graphs[0].step`",
            id="step_of_no_kind",
        ),
        pytest.param(
            lambda raw: _stage(raw)["prediction"].update(source="guessed"),
            "Invalid enum value 'guessed' at `$.graphs[0].stages[0].prediction.source`",
            id="figure_of_no_source",
        ),
        pytest.param(
            lambda raw: _stage(raw).update(lanes=[]),
            "Expected `array` of length >= 1 at `$.graphs[0].stages[0].lanes`",
            id="stage_without_lane",
        ),
        pytest.param(
            lambda raw: _stage(raw)["lanes"].append([]),
            "Expected `array` of length >= 1 at `$.graphs[0].stages[0].lanes[2]`",
            id="lane_without_convolution",
        ),
        pytest.param(
            lambda raw: _stage(raw)["lane_options"].pop(),
            "Expected options for none or all of 2 lanes, got 1 at "
            "`$.graphs[0].stages[0].lane_options`",
            id="options_of_some_lanes",
        ),
        pytest.param(
            lambda raw: _stage(raw)["lane_options"][1].update(sm_count=-1),
            "Expected `int` >= 0 at `$.graphs[0].stages[0].lane_options[1].sm_count`",
            id="negative_sm_count",
        ),
        pytest.param(
            lambda raw: raw["graphs"][0].update(convolution_count=2),
            "Expected at most 2 nodes in the stages, as many as the graph has convolutions, got 3 "
            "at `$.graphs[0].stages`",
            id="more_nodes_than_convolutions",
        ),
    ],
)
def test_refuses_with_place_and_reason(path: pathlib.Path, edit: Edit, reason: str) -> None:
    raw = _raw()
    edit(raw)
    path.write_text(json.dumps(raw))
    assert reason in _load_error(path)


def test_same_node_in_two_graphs_is_legal(path: pathlib.Path) -> None:
    raw = _raw()
    raw["graphs"][1]["stages"] = [{"lanes": [[{"node": "a"}]]}]
    path.write_text(json.dumps(raw))
    assert load_plan(path).graphs[1].stages[0].convolutions == (PinnedConvolution("a"),)


def test_refuses_a_list(path: pathlib.Path) -> None:
    path.write_text("[]")
    assert "Expected `object`, got `list` at `$`" in _load_error(path)


def test_schema_names_every_field_and_no_other() -> None:
    schema = plan_schema()
    definitions = schema["$defs"]
    assert set(definitions["Plan"]["properties"]) == set(_raw())
    assert definitions.pop("FigureSource")["enum"] == ["measured", "modelled"]
    assert all(each["additionalProperties"] is False for each in definitions.values())
    assert definitions["Plan"]["required"] == ["format", "graphs", "version"]
    assert definitions["Plan"]["properties"]["version"] == {"const": 1}
    assert definitions["Plan"]["properties"]["format"] == {"const": "tf_interop.plan"}
    assert definitions["PlannedStage"]["properties"]["lanes"]["minItems"] == 1
    assert definitions["PlannedStage"]["properties"]["lanes"]["items"]["minItems"] == 1
    assert set(definitions["LaneOptions"]["properties"]) == {"priority", "sm_count", "merged"}
    assert definitions["LaneOptions"]["properties"]["sm_count"]["minimum"] == 0
    json.dumps(schema)


def test_published_schemas_are_those_of_this_release() -> None:
    folder = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schemas"
    for name, schema in (("plan", plan_schema()), ("planning_problem", problem_schema())):
        published = (folder / f"{name}.schema.json").read_text()
        assert published == json.dumps(schema, indent=2) + "\n", "scripts/write_schemas.py"
