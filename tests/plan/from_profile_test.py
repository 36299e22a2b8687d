"""Policies: what is grouped, what is kept apart, and stages out of a plan."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_graphs import CONFIGURATION, INCEPTION, make_graph, names_of
from profile_values import CPU, make_algorithm, make_profile
from profile_values import make_stage as make_measurement

from tf_interop.convolution import ConvolutionConfiguration, merged_configuration
from tf_interop.graph.independence import Independence
from tf_interop.graph.merge_keys import find_merge_keys
from tf_interop.plan.check import check_stages
from tf_interop.plan.from_profile import group_always, group_profiled
from tf_interop.plan.types import (
    BatchSchedule,
    LaneOptions,
    PinnedConvolution,
    PlannedStage,
)
from tf_interop.profile.entries import StageMeasurement
from tf_interop.profile.types import Profile

SMALL = CONFIGURATION
LARGE = dataclasses.replace(CONFIGURATION, filter_shape=(5, 5, 16, 32))


def _group_always(nodes: dict[str, str], **keywords: dict[str, str]) -> list[list[str]]:
    view, convolutions = make_graph(nodes, **keywords)  # type: ignore[arg-type]
    stages = group_always(convolutions, Independence(view, convolutions))
    check_stages(stages, view, convolutions)
    return [names_of(stage) for stage in stages]


def test_groups_the_levels_of_a_module() -> None:
    assert _group_always(INCEPTION) == [
        ["1x1", "3x3_reduce", "5x5_reduce", "pool_proj"],
        ["3x3", "5x5"],
    ]


def test_gives_each_convolution_a_lane_and_pins_nothing() -> None:
    view, convolutions = make_graph(INCEPTION)
    stage = group_always(convolutions, Independence(view, convolutions))[1]
    assert stage == PlannedStage(
        ((PinnedConvolution("3x3"),), (PinnedConvolution("5x5"),)), "always: depth 2"
    )


def test_groups_nothing_without_convolutions() -> None:
    assert _group_always({"a": "Placeholder"}) == []


def test_keeps_a_chain_in_stages_of_one() -> None:
    assert _group_always({"a": "Conv2D", "b": "Conv2D a", "c": "Conv2D b"}) == [["a"], ["b"], ["c"]]


def test_keeps_devices_apart() -> None:
    devices = {"1x1": "/gpu:1", "5x5_reduce": "/gpu:1"}
    assert _group_always(INCEPTION, devices=devices) == [
        ["1x1", "5x5_reduce"],
        ["3x3_reduce", "pool_proj"],
        ["3x3", "5x5"],
    ]


def test_keeps_regions_apart() -> None:
    assert _group_always(INCEPTION, regions={"3x3": "branch"})[1:] == [["3x3"], ["5x5"]]


def test_keeps_equal_depths_behind_a_control_dependency_apart() -> None:
    nodes = {"a": "Conv2D", "b": "Conv2D", "c": "Conv2D ^a"}
    assert _group_always(nodes) == [["a", "b"], ["c"]]


def test_refuses_the_independence_of_other_convolutions() -> None:
    view, convolutions = make_graph(INCEPTION)
    with pytest.raises(ValueError, match="these 5 convolutions, got that of 6 others"):
        group_always(convolutions[1:], Independence(view, convolutions))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, str]]:
    nodes: dict[str, str] = {}
    for node in range(draw(st.integers(1, 14))):
        sources = draw(st.sets(st.sampled_from(sorted(nodes)), max_size=2)) if nodes else set()
        op = draw(st.sampled_from(["Conv2D", "Conv2D", "Relu"]))
        nodes[f"n{node}"] = " ".join([op, *sorted(sources)])
    return nodes, {name: draw(st.sampled_from(["/gpu:0", "/gpu:1"])) for name in nodes}


@given(graph=graphs(), data=st.data())
def test_any_stages_of_any_graph_are_legal(
    graph: tuple[dict[str, str], dict[str, str]], data: st.DataObject
) -> None:
    nodes, devices = graph
    view, convolutions = make_graph(nodes, devices=devices)
    stages = group_always(convolutions, Independence(view, convolutions))
    names = [name for stage in stages for name in names_of(stage)]
    assert sorted(names) == sorted(node.name for node in convolutions)
    check_stages(stages, view, convolutions)
    if stages:
        some = data.draw(st.lists(st.sampled_from(stages), unique_by=id))
        check_stages(some, view, convolutions)


def _group_profiled(
    profile: Profile,
    nodes: dict[str, str] = INCEPTION,
    configurations: dict[str, ConvolutionConfiguration] | None = None,
    *,
    allow_tf32: bool = True,
    deterministic: bool = False,
) -> tuple[PlannedStage, ...]:
    view, convolutions = make_graph(nodes, configurations=configurations or {"5x5": LARGE})
    stages = group_profiled(
        convolutions,
        Independence(view, convolutions),
        profile,
        merge_keys=find_merge_keys(view, convolutions),
        allow_tf32=allow_tf32,
        deterministic=deterministic,
    )
    check_stages(stages, view, convolutions)
    return stages


def test_groups_what_wins_with_the_algorithms_and_lanes_measured() -> None:
    measurement = make_measurement((LARGE, "FFT_TILING"), (SMALL, "IMPLICIT_PRECOMP_GEMM"))
    assert _group_profiled(make_profile(measurement)) == (
        PlannedStage(
            (
                (PinnedConvolution("5x5", "FFT_TILING"),),
                (PinnedConvolution("3x3", "IMPLICIT_PRECOMP_GEMM"),),
            ),
            "profiled: 20.0 us against 30.0 us in sequence",
        ),
    )


def test_groups_equal_configurations_with_different_algorithms() -> None:
    measurement = make_measurement((SMALL, "GEMM"), (SMALL, None), (SMALL, "FFT"), (SMALL, "GEMM"))
    (stage,) = _group_profiled(make_profile(measurement))
    assert stage.convolutions == (
        PinnedConvolution("1x1", "GEMM"),
        PinnedConvolution("3x3_reduce", None),
        PinnedConvolution("5x5_reduce", "FFT"),
        PinnedConvolution("pool_proj", "GEMM"),
    )


def test_groups_every_level_that_one_measurement_fits() -> None:
    nodes = {"a": "Conv2D", "b": "Conv2D", "c": "Conv2D a b", "d": "Conv2D a b"}
    stages = _group_profiled(make_profile(make_measurement((SMALL, None), (SMALL, "FFT"))), nodes)
    assert [names_of(stage) for stage in stages] == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize("concurrent_us", [29.0, 30.0, 45.0])
def test_keeps_what_does_not_win(concurrent_us: float) -> None:
    measurement = make_measurement(
        (LARGE, None), (SMALL, None), concurrent_us=concurrent_us, spread_us=1.0
    )
    assert _group_profiled(make_profile(measurement)) == ()


def test_groups_several_convolutions_of_one_lane_in_order() -> None:
    measurement = make_measurement(
        (SMALL, "GEMM"), (SMALL, "FFT"), (SMALL, None), (SMALL, "DIRECT"), lanes=(0, 1, 0, 1)
    )
    (stage,) = _group_profiled(make_profile(measurement))
    assert stage.lanes == (
        (PinnedConvolution("1x1", "GEMM"), PinnedConvolution("5x5_reduce", None)),
        (PinnedConvolution("3x3_reduce", "FFT"), PinnedConvolution("pool_proj", "DIRECT")),
    )


def test_groups_as_the_fastest_that_was_measured() -> None:
    slow = make_measurement((LARGE, "FFT"), (SMALL, "GEMM"), concurrent_us=25.0)
    fast = make_measurement((LARGE, "GEMM"), (SMALL, "FFT"), concurrent_us=15.0)
    (stage,) = _group_profiled(make_profile(slow, fast))
    assert stage.convolutions == (PinnedConvolution("5x5", "GEMM"), PinnedConvolution("3x3", "FFT"))


@pytest.mark.parametrize("allow_tf32", [False, True])
def test_groups_only_what_was_measured_with_the_switch_for_tf32_as_it_is(allow_tf32: bool) -> None:
    measured = {
        tf32: make_measurement((LARGE, algorithm), (SMALL, None), tf32=tf32, concurrent_us=latency)
        for tf32, algorithm, latency in ((True, "GEMM", 10.0), (False, "FFT", 20.0))
    }
    (stage,) = _group_profiled(make_profile(*measured.values()), allow_tf32=allow_tf32)
    assert stage.convolutions[0].algorithm == ("GEMM" if allow_tf32 else "FFT")
    other = make_profile(measured[not allow_tf32])
    assert _group_profiled(other, allow_tf32=allow_tf32) == ()
    # A CPU has no TF32, and other types do not round to it.
    assert _group_profiled(dataclasses.replace(other, device=CPU), allow_tf32=allow_tf32)
    half = {"5x5": dataclasses.replace(LARGE, dtype="float16")}
    half["3x3"] = dataclasses.replace(SMALL, dtype="float16")
    measurement = make_measurement(*((each, None) for each in half.values()), tf32=not allow_tf32)
    assert _group_profiled(make_profile(measurement), configurations=half, allow_tf32=allow_tf32)


def test_groups_only_what_gives_the_same_bits_where_determinism_is_on() -> None:
    stages = [
        make_measurement((LARGE, algorithm), (SMALL, "GEMM"), concurrent_us=latency)
        for algorithm, latency in (("FFT", 10.0), ("WINOGRAD", 15.0), ("DIRECT", 20.0))
    ]
    profile = make_profile(
        *stages,
        make_algorithm(SMALL, "GEMM"),
        make_algorithm(LARGE, "FFT", deterministic=False),
        make_algorithm(LARGE, "DIRECT"),
    )
    (stage,) = _group_profiled(profile, deterministic=False)
    assert stage.convolutions[0].algorithm == "FFT"
    # Nothing says of WINOGRAD, which was not measured alone, that it gives the same bits.
    (stage,) = _group_profiled(profile, deterministic=True)
    assert stage.convolutions[0].algorithm == "DIRECT"


@pytest.mark.parametrize("wider_is_deterministic", [None, False, True])
def test_a_merged_lane_gives_the_same_bits_where_its_wider_convolution_does(
    wider_is_deterministic: bool | None,
) -> None:
    # Its parts do with that algorithm, which says nothing of the wider one.
    wider = merged_configuration([SMALL, SMALL])
    profile = make_profile(
        make_measurement((SMALL, "FFT"), (SMALL, "FFT"), lanes=(0, 0), merged=(True,)),
        make_algorithm(SMALL, "FFT"),
        *(
            ()
            if wider_is_deterministic is None
            else (make_algorithm(wider, "FFT", deterministic=wider_is_deterministic),)
        ),
    )
    assert len(profile.deterministic_part.stages) == bool(wider_is_deterministic)


def test_groups_with_the_sms_that_were_asked_for_and_the_priorities() -> None:
    measurement = make_measurement(
        (LARGE, "GEMM"),
        (SMALL, None),
        sm_counts=(64, 68),
        asked_sm_counts=(60, 0),
        priorities=(-1, 0),
    )
    (stage,) = _group_profiled(make_profile(measurement))
    assert stage.lane_options == (LaneOptions(-1, 60), LaneOptions(0, 0))


@pytest.mark.parametrize(
    ("measured", "options"),
    [
        ({"sm_counts": (64, 68)}, (LaneOptions(0, 64), LaneOptions(0, 68))),
        ({"priorities": (0, -1)}, (LaneOptions(0), LaneOptions(-1))),
        ({}, ()),
    ],
)
def test_groups_with_options_for_every_lane_or_none(
    measured: dict[str, tuple[int, int]], options: tuple[LaneOptions, ...]
) -> None:
    # Three convolutions on two lanes.
    measurement = make_measurement(
        (SMALL, "GEMM"), (SMALL, "FFT"), (SMALL, None), lanes=(0, 1, 0), **measured
    )
    nodes = {"a": "Conv2D", "b": "Conv2D", "c": "Conv2D"}
    (stage,) = _group_profiled(make_profile(measurement), nodes)
    assert (len(stage.lanes), stage.lane_options) == (2, options)


# Two convolutions on one image, and one on another.
PAIRS = {
    "image": "Placeholder",
    "other": "Placeholder",
    "a": "Conv2D image",
    "b": "Conv2D other",
    "c": "Conv2D image",
}


def _measured_merged(count: int, alone: int = 0, **changes: object) -> StageMeasurement:
    """So many in a merged lane, and so many on lanes of their own behind it."""
    pairs = [(SMALL, "GEMM")] * count + [(SMALL, "FFT")] * alone
    lanes = (*[0] * count, *range(1, alone + 1))
    measurement = make_measurement(*pairs, lanes=lanes)
    merged = (True, *[False] * alone)
    return dataclasses.replace(measurement, merged=merged, **changes)


def test_merges_what_was_measured_merged() -> None:
    nodes = {"image": "Placeholder", "a": "Conv2D image", "b": "Conv2D image"}
    (stage,) = _group_profiled(make_profile(_measured_merged(2)), nodes)
    assert stage == PlannedStage(
        ((PinnedConvolution("a", "GEMM"), PinnedConvolution("b", "GEMM")),),
        "profiled, merged into a wider convolution: 20.0 us against 30.0 us in sequence",
        (LaneOptions(merged=True),),
    )


def test_merges_a_part_of_a_level_that_reads_one_image() -> None:
    (stage,) = _group_profiled(make_profile(_measured_merged(2)), PAIRS)
    assert [[pinned.node for pinned in lane] for lane in stage.lanes] == [["a", "c"]]


def test_merges_beside_the_rest_of_the_level() -> None:
    (stage,) = _group_profiled(
        make_profile(_measured_merged(2, alone=1, priorities=(-1, 0))), PAIRS
    )
    assert [[pinned.node for pinned in lane] for lane in stage.lanes] == [["a", "c"], ["b"]]
    assert stage.lane_options == (LaneOptions(-1, merged=True), LaneOptions(0))


def test_makes_of_a_level_and_its_merged_part_what_saves_more() -> None:
    part = _measured_merged(2)
    for concurrent_us, expected in ((21.0, [["a", "c"]]), (20.0, [["a"], ["b"], ["c"]])):
        whole = make_measurement(*[(SMALL, "FFT")] * 3, concurrent_us=concurrent_us)
        (stage,) = _group_profiled(make_profile(part, whole), PAIRS)
        assert [[pinned.node for pinned in lane] for lane in stage.lanes] == expected


@pytest.mark.parametrize("count", [2, 3])
def test_keeps_what_was_measured_merged_and_reads_different_images(count: int) -> None:
    nodes = {"x": "Placeholder", "y": "Placeholder", "z": "Placeholder"}
    nodes |= {f"of_{image}": f"Conv2D {image}" for image in "xyz"[:count]}
    profile = make_profile(_measured_merged(2, alone=count - 2))
    assert _group_profiled(profile, nodes) == ()


def test_groups_as_measured_on_lanes_of_their_own_what_cannot_be_merged() -> None:
    # Merged would be faster; of these two each reads an image of its own.
    nodes = {"x": "Relu", "y": "Relu", "a": "Conv2D x", "b": "Conv2D y"}
    side_by_side = make_measurement((SMALL, "FFT"), (SMALL, "FFT"), concurrent_us=25.0)
    (stage,) = _group_profiled(make_profile(_measured_merged(2), side_by_side), nodes)
    assert (len(stage.lanes), stage.lane_options) == (2, ())


def test_merges_nothing_without_merge_keys() -> None:
    view, convolutions = make_graph(PAIRS)
    profile = make_profile(_measured_merged(2), _measured_merged(2, alone=1))
    assert group_profiled(convolutions, Independence(view, convolutions), profile) == ()


def test_keeps_what_was_not_measured() -> None:
    assert _group_profiled(make_profile()) == ()


def test_keeps_a_group_of_which_a_part_was_measured() -> None:
    assert _group_profiled(make_profile(make_measurement((SMALL, None), (SMALL, None)))) == ()


def _with_batch(configuration: ConvolutionConfiguration, size: int | None) -> Any:
    assert configuration.image_shape is not None
    assert configuration.output_shape is not None
    return dataclasses.replace(
        configuration,
        image_shape=(size, *configuration.image_shape[1:]),
        output_shape=(size, *configuration.output_shape[1:]),
    )


def _measured_at(size: int, latency: float, *algorithms: str) -> StageMeasurement:
    pairs = zip((_with_batch(LARGE, size), _with_batch(SMALL, size)), algorithms, strict=True)
    return make_measurement(*pairs, concurrent_us=latency)


UNKNOWN_BATCH = {"3x3": _with_batch(SMALL, None), "5x5": _with_batch(LARGE, None)}


def test_groups_for_the_batch_sizes_measured_where_it_is_not_known() -> None:
    profile = make_profile(
        _measured_at(8, 25.0, "GEMM", "FFT"),
        _measured_at(1, 10.0, "DIRECT", "DIRECT"),
        _measured_at(32, 40.0, "FFT", "FFT"),
    )
    (stage,) = _group_profiled(profile, configurations=UNKNOWN_BATCH)
    best = ((PinnedConvolution("5x5", "DIRECT"),), (PinnedConvolution("3x3", "DIRECT"),))
    assert stage.lanes == best
    assert stage.schedules == (
        BatchSchedule(1, best),
        BatchSchedule(8, ((PinnedConvolution("5x5", "GEMM"),), (PinnedConvolution("3x3", "FFT"),))),
        # Where it was measured and does not win it runs in sequence.
        BatchSchedule(32, ((PinnedConvolution("3x3"), PinnedConvolution("5x5")),)),
    )
    assert stage.why == "profiled: wins with batch 1, 8 of 1, 8, 32 measured"


def test_keeps_a_group_of_unknown_batch_size_that_wins_with_none() -> None:
    profile = make_profile(_measured_at(8, 45.0, "GEMM", "FFT"))
    assert _group_profiled(profile, configurations=UNKNOWN_BATCH) == ()


def test_keeps_a_group_of_which_another_dimension_is_unknown() -> None:
    unknown = dataclasses.replace(UNKNOWN_BATCH["5x5"], image_shape=(None, None, 28, 16))
    profile = make_profile(_measured_at(8, 25.0, "GEMM", "FFT"))
    configurations = UNKNOWN_BATCH | {"5x5": unknown}
    assert _group_profiled(profile, configurations=configurations) == ()
