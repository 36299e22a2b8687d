"""The plan's stages for a graph: the entry, the graph's own names, and refusals."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import pytest
from plan_values import measured_step
from planning_graphs import CONFIGURATION, INCEPTION, make_graph, make_lanes, make_stage

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.errors import PlanError
from tf_interop.graph.landmarks import find_structure
from tf_interop.planning.lookup import (
    measured_entry,
    stages_for_batch_sizes,
    stages_from_plan,
)
from tf_interop.planning.types import (
    GraphPlan,
    GraphPrediction,
    Plan,
    PlannedStage,
    StagePrediction,
    UnstagedConvolution,
    ValueSource,
)
from tf_interop.stage import Lane, Schedule, Stage, Step

CHAIN = {"a": "Conv2D", "b": "Conv2D a"}
LONGER = CHAIN | {"c": "Conv2D b", "d": "Conv2D c"}
ABC = dict.fromkeys("abc", "Conv2D")
STRIDED = dataclasses.replace(CONFIGURATION, strides=(2, 2))


def plan_for(
    nodes: dict[str, str],
    *stages: PlannedStage,
    configurations: Mapping[str, ConvolutionConfiguration] = {},
) -> GraphPlan:
    structure = find_structure(*make_graph(nodes, configurations=configurations))
    return GraphPlan(structure.fingerprint, structure.landmarks, stages)


def stages_for(
    nodes: dict[str, str],
    *entries: GraphPlan,
    configurations: Mapping[str, ConvolutionConfiguration] = {},
) -> tuple[PlannedStage, ...]:
    """The stages that a plan of these entries has for a graph."""
    view, convolutions = make_graph(nodes, configurations=configurations)
    plan = Plan(entries, made_with={"model": "Net"})
    return stages_from_plan(plan, convolutions, find_structure(view, convolutions))


def of_batch(nodes: dict[str, str], size: int | None) -> dict[str, ConvolutionConfiguration]:
    shapes = {"image_shape": (size, 28, 28, 16), "output_shape": (size, 28, 28, 32)}
    return dict.fromkeys(nodes, dataclasses.replace(CONFIGURATION, **shapes))


@pytest.mark.parametrize(
    ("batch_size", "planned", "taken"),
    [
        pytest.param(8, (1, 8, 32), 8, id="equal"),
        pytest.param(8, (1, None, 8), 8, id="equal_before_any"),
        pytest.param(9, (8, None, 32), None, id="any_before_the_nearest"),
        pytest.param(6, (1, 4, 32), 4, id="nearest_by_ratio"),
        pytest.param(20, (8, 32), 32, id="nearest_by_ratio_not_by_difference"),
        pytest.param(4, (2, 8), 8, id="larger_of_two_equally_near"),
        pytest.param(None, (1, None, 8), None, id="any_for_unknown"),
    ],
)
def test_takes_the_entry_of_the_batch_size(
    batch_size: int | None, planned: tuple[int | None, ...], taken: int | None
) -> None:
    prediction = StagePrediction(20.0, 1.0, 30.0, ValueSource.MEASURED, 0, 0)

    def stage(size: int | None) -> PlannedStage:
        return dataclasses.replace(make_stage("a"), why=f"for {size}", prediction=prediction)

    entries = (
        dataclasses.replace(plan_for(CHAIN, stage(size)), batch_size=size) for size in planned
    )
    [found] = stages_for(CHAIN, *entries, configurations=of_batch(CHAIN, batch_size))
    if taken in (None, batch_size):
        assert found == stage(taken)
    else:
        # The prediction is for another batch size.
        why = f"from the plan for batch size {taken}, the nearest to {batch_size}"
        assert found == dataclasses.replace(make_stage("a"), why=why)


def test_takes_a_plan_of_the_network_with_other_names() -> None:
    def stage(a: str, b: str) -> PlannedStage:
        made = make_stage(a, b)
        in_sequence = Stage.in_sequence(made.stage.steps)
        return dataclasses.replace(made, schedules=(Schedule(8, in_sequence),))

    # The order of the names is another, too.
    other = {"net_1/y": "Conv2D", "net_1/x": "Conv2D net_1/y"}
    assert stages_for(other, plan_for(CHAIN, stage(*CHAIN))) == (stage(*other),)


@pytest.mark.parametrize(("planned", "used"), [("a c", "x"), ("ab c", "xy"), ("ac b", "y")])
def test_half_of_the_stages_are_enough(
    planned: str, used: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The graph has no `c` and no `d`."""
    entry = plan_for(LONGER, *(make_stage(*names) for names in planned.split()))
    [stage] = stages_for({"x": "Conv2D", "y": "Conv2D x"}, entry)
    assert stage.stage == make_lanes(*used)
    assert stage.why == "2 of the plan's 4 convolutions are here"
    [warned] = caplog.messages
    assert "this graph lacks 'c'" in warned and "Of its stages, 1 of 2 are used." in warned


FAR = plan_for({"p": "Conv2D"}, make_stage("p"), configurations={"p": STRIDED})
UNSTAGED = tuple(UnstagedConvolution(name, None, 1.0, 0) for name in ("1x1", "3x3"))


@pytest.mark.parametrize(
    ("entries", "is_strided", "said"),
    [
        (
            (FAR, plan_for(LONGER, make_stage("c"))),
            False,
            "The plan for 'Net' is for another network: it has 4 convolutions, and this graph has "
            "2; this graph lacks 'c' (Conv2D 3x3x16x32 SAME float32 NHWC)",
        ),
        (
            (plan_for(LONGER, *map(make_stage, "acd")),),
            False,
            "this graph lacks 'c'",
        ),
        (
            (plan_for(CHAIN, make_stage("a")),),
            True,
            "'a' is Conv2D 3x3x16x32 strides 2x2 SAME float32 NHWC, but 'a' of the plan is Conv2D "
            "3x3x16x32 SAME",
        ),
        (
            (dataclasses.replace(plan_for(INCEPTION), unstaged=UNSTAGED),),
            False,
            "it has 6 convolutions",
        ),
        (
            (dataclasses.replace(plan_for(LONGER, make_stage("a")), mode="training"),),
            False,
            "is for training, but this graph is for inference. Tune or plan again with "
            "training=False (on the command line without --training)",
        ),
        ((), False, "contains no graph"),
    ],
    ids=[
        *("closest", "less_than_half", "other_configuration", "only_unstaged"),
        *("mode", "empty"),
    ],
)
def test_a_refusal_compares_with_the_closest_graph(
    entries: tuple[GraphPlan, ...], is_strided: bool, said: str
) -> None:
    configurations = {"a": STRIDED} if is_strided else {}
    with pytest.raises(PlanError, match=re.escape(said)):
        stages_for(CHAIN, *entries, configurations=configurations)


def entry(
    batch_size: int, *stages: PlannedStage, unstaged: dict[str, str] | None = None
) -> GraphPlan:
    """A plan for `ABC` that takes 900 µs instead of 1000."""
    return dataclasses.replace(
        plan_for(ABC, *stages),
        batch_size=batch_size,
        prediction=GraphPrediction(900.0, 1000.0, 0, 0, None, "exact"),
        unstaged=tuple(
            UnstagedConvolution(node, algorithm, 10.0, 0)
            for node, algorithm in (unstaged or {}).items()
        ),
    )


def test_a_stage_has_the_schedule_of_each_batch_size() -> None:
    small = make_lanes("a:FFT b:WINOGRAD")
    large = Stage((Lane((Step("b", "GEMM"),), priority=-1), Lane((Step("a", "FFT"),))))
    entries = [entry(32, PlannedStage(large)), entry(8, PlannedStage(small))]
    [stage] = stages_for_batch_sizes(entries)
    assert stage.stage == large
    assert stage.schedules == (Schedule(8, small), Schedule(32, large))
    assert stage.why == "from the plan for batch sizes 8, 32, grouped as for 32"


def test_a_stage_runs_in_sequence_where_the_plan_groups_otherwise() -> None:
    large = entry(32, make_stage("a:FFT", "b"))
    small = entry(8, make_stage("b:GEMM", "c"), unstaged={"a": "WINOGRAD"})
    # A later trace of the model has other names.
    trace = {f"PartitionedCall/{name}": "Conv2D" for name in ABC}
    [stage] = stages_for(trace, large, small, configurations=of_batch(trace, None))
    # At batch size 8, "a" was planned to run alone; for "b", GEMM was chosen to run beside "c".
    expected = make_lanes("PartitionedCall/a:WINOGRAD PartitionedCall/b")
    assert stage.schedules[0] == Schedule(8, expected)


@pytest.mark.parametrize(("size", "algorithm"), [(8, "WINOGRAD"), (16, None)])
def test_a_convolution_in_no_stage_has_its_own(size: int, algorithm: str | None) -> None:
    planned = entry(8, make_stage("b:GEMM"), unstaged={"a": "WINOGRAD", "c": "FFT"})
    view, convolutions = make_graph(ABC, configurations=of_batch(ABC, size))
    structure = find_structure(view, convolutions)
    of_plan, alone = stages_from_plan(Plan((planned,)), convolutions, structure, convolutions[:2])
    assert of_plan.stage == planned.stages[0].stage
    assert alone.stage == Stage.in_sequence([Step("a", algorithm)])


def test_takes_the_grouping_that_saves_most() -> None:
    small, large = entry(8, make_stage("a", "b")), entry(32, make_stage("b", "c"))
    faster = dataclasses.replace(small.prediction, latency_us=800.0)
    [stage] = stages_for_batch_sizes([dataclasses.replace(small, prediction=faster), large])
    assert stage.stage == make_lanes("a", "b")


@pytest.mark.parametrize(
    ("batch_size", "planned", "taken"),
    [
        pytest.param(8, {1: False, 8: True}, (8, True), id="equal"),
        pytest.param(8, {1: True, None: False}, (None, False), id="any"),
        pytest.param(4, {1: False, 8: False}, "is for batch size 1, 8, and this .* has 4", id="no"),
        pytest.param(None, {8: True}, (8, True), id="unknown_of_one"),
        pytest.param(None, {1: True, 8: True}, (None, True), id="unknown_of_several"),
        pytest.param(None, {1: True, 8: False}, (None, False), id="unknown_and_not_all_as_stock"),
    ],
)
def test_finds_what_was_measured(
    batch_size: int | None, planned: dict[int | None, bool], taken: tuple[int | None, bool] | str
) -> None:
    def find(nodes: dict[str, str]) -> GraphPlan:
        configurations = of_batch(nodes, batch_size)
        view, convolutions = make_graph(nodes, configurations=configurations)
        return measured_entry(Plan(entries), convolutions, find_structure(view, convolutions))

    entries = tuple(
        dataclasses.replace(
            plan_for(CHAIN), batch_size=size, as_stock=as_stock, measured=measured_step(1.0)
        )
        for size, as_stock in planned.items()
    )
    if isinstance(taken, str):
        with pytest.raises(PlanError, match=taken):
            find(CHAIN)
    else:
        found = find(CHAIN)
        assert (found.batch_size, found.as_stock) == taken
        # Times of one batch size say nothing about several.
        assert (found.measured is None) == (len(planned) > 1 and batch_size is None)
    with pytest.raises(PlanError, match="is for another network"):
        find(LONGER)
