"""Policies: what is grouped, what is kept apart, and stages out of a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_graphs import CONFIGURATION, INCEPTION, make_graph, make_lanes
from profile_values import CPU, GPU, make_algorithm, make_profile

from tf_interop.convolution import ConvolutionConfiguration, RefusalReason
from tf_interop.graph.independence import Independence
from tf_interop.graph.merge_keys import find_merge_keys
from tf_interop.planning.check import check_stages
from tf_interop.planning.from_profile import group_always, group_profiled, leave_out_unmeasured
from tf_interop.planning.types import BatchSchedule, PlannedStage
from tf_interop.profile.entries import Entry, StageMeasurement
from tf_interop.profile.types import ProfiledDevice
from tf_interop.stage import Stage

SMALL = CONFIGURATION
LARGE = dataclasses.replace(CONFIGURATION, filter_shape=(5, 5, 16, 32))


def _group_always(nodes: dict[str, str], **keywords: dict[str, str]) -> list[list[str]]:
    view, convolutions = make_graph(nodes, **keywords)  # type: ignore[arg-type]
    stages = group_always(convolutions, Independence(view, convolutions))
    check_stages(stages, view, convolutions)
    return [list(stage.nodes) for stage in stages]


def test_groups_the_levels_of_a_module() -> None:
    assert _group_always(INCEPTION) == [
        ["1x1", "3x3_reduce", "5x5_reduce", "pool_proj"],
        ["3x3", "5x5"],
    ]


@pytest.mark.parametrize(
    ("nodes", "keywords", "expected"),
    [
        ({"a": "Placeholder"}, {}, []),
        ({"a": "Conv2D", "b": "Conv2D a", "c": "Conv2D b"}, {}, [["a"], ["b"], ["c"]]),
        (
            INCEPTION,
            {"devices": {"1x1": "/gpu:1", "5x5_reduce": "/gpu:1"}},
            [["1x1", "5x5_reduce"], ["3x3_reduce", "pool_proj"], ["3x3", "5x5"]],
        ),
        (
            INCEPTION,
            {"regions": {"3x3": "branch"}},
            [["1x1", "3x3_reduce", "5x5_reduce", "pool_proj"], ["3x3"], ["5x5"]],
        ),
        ({"a": "Conv2D", "b": "Conv2D", "c": "Conv2D ^a"}, {}, [["a", "b"], ["c"]]),
    ],
    ids=["nothing", "chain", "devices", "regions", "control_dependency"],
)
def test_keeps_apart(
    nodes: dict[str, str], keywords: dict[str, dict[str, str]], expected: list[list[str]]
) -> None:
    assert _group_always(nodes, **keywords) == expected


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, str]]:
    nodes: dict[str, str] = {}
    for node in range(draw(st.integers(1, 14))):
        sources = draw(st.sets(st.sampled_from(sorted(nodes)), max_size=2)) if nodes else set()
        op = draw(st.sampled_from(["Conv2D", "Conv2D", "Relu"]))
        nodes[f"n{node}"] = " ".join([op, *sorted(sources)])
    return nodes, {name: draw(st.sampled_from(["/gpu:0", "/gpu:1"])) for name in nodes}


@settings(deadline=None)
@given(graph=graphs(), data=st.data())
def test_any_stages_of_any_graph_are_legal(
    graph: tuple[dict[str, str], dict[str, str]], data: st.DataObject
) -> None:
    nodes, devices = graph
    view, convolutions = make_graph(nodes, devices=devices)
    stages = group_always(convolutions, Independence(view, convolutions))
    names = [name for stage in stages for name in stage.nodes]
    assert sorted(names) == sorted(node.name for node in convolutions)
    check_stages(stages, view, convolutions)
    if stages:
        some = data.draw(st.lists(st.sampled_from(stages), unique_by=id))
        check_stages(some, view, convolutions)


def _measured(
    *lanes: str,
    latency_us: float = 20.0,
    spread_us: float = 1.5,
    tf32: bool = True,
    of: Mapping[str, ConvolutionConfiguration] | None = None,
) -> StageMeasurement:
    """A stage that takes 30 us in sequence.

    Args:
        lanes: as of `make_lanes`, of keys of `of`.
        latency_us: of the stage.
        spread_us: of the difference.
        tf32: whether TF32 was allowed.
        of: configurations; without them `small` and `large` ones.
    """
    stage = make_lanes(*lanes).map((of or {"small": SMALL, "large": LARGE}).__getitem__)
    return StageMeasurement(stage, tf32, latency_us, 32.0, 30.0, spread_us, 8192, "by hand")


def _group_profiled(
    *entries: Entry,
    nodes: dict[str, str] = INCEPTION,
    configurations: dict[str, ConvolutionConfiguration] | None = None,
    device: ProfiledDevice = GPU,
    **switches: bool,
) -> list[Stage[str]]:
    view, convolutions = make_graph(nodes, configurations=configurations or {"5x5": LARGE})
    stages = group_profiled(
        convolutions,
        Independence(view, convolutions),
        make_profile(*entries, device=device),
        merge_keys=find_merge_keys(view, convolutions),
        **switches,
    )
    check_stages(stages, view, convolutions)
    return [stage.stage for stage in stages]


def test_groups_what_wins_as_it_was_measured() -> None:
    view, convolutions = make_graph(INCEPTION, configurations={"5x5": LARGE})
    profile = make_profile(_measured("large:FFT_TILING", "small:IMPLICIT_PRECOMP_GEMM"))
    assert group_profiled(convolutions, Independence(view, convolutions), profile) == (
        PlannedStage(
            make_lanes("5x5:FFT_TILING", "3x3:IMPLICIT_PRECOMP_GEMM"),
            "profiled: 20.0 us against 30.0 us in sequence",
        ),
    )


@pytest.mark.parametrize(
    ("measured", "lanes"),
    [
        # Equal configurations with different algorithms, and several of one lane in order.
        (
            ("small:GEMM", "small", "small:FFT", "small:GEMM"),
            ("1x1:GEMM", "3x3_reduce", "5x5_reduce:FFT", "pool_proj:GEMM"),
        ),
        (
            ("small:GEMM small", "small:FFT small:DIRECT"),
            ("1x1:GEMM 3x3_reduce", "5x5_reduce:FFT pool_proj:DIRECT"),
        ),
    ],
)
def test_groups_as_it_was_measured(measured: tuple[str, ...], lanes: tuple[str, ...]) -> None:
    assert _group_profiled(_measured(*measured)) == [make_lanes(*lanes)]


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param((), id="not_measured"),
        pytest.param((_measured("small", "small"),), id="a_part_measured"),
        pytest.param((_measured("large", "small", latency_us=45.0),), id="slower"),
        pytest.param((_measured("large", "small", latency_us=30.0),), id="as_fast"),
        pytest.param((_measured("large", "small", latency_us=29.0),), id="within_the_spread"),
    ],
)
def test_keeps(entries: tuple[Entry, ...]) -> None:
    assert _group_profiled(*entries) == []


@pytest.mark.parametrize("allow_tf32", [False, True])
def test_groups_only_what_was_measured_with_the_switch_for_tf32_as_it_is(allow_tf32: bool) -> None:
    measured = {
        True: _measured("large:GEMM", "small", tf32=True, latency_us=10.0),
        False: _measured("large:FFT", "small", tf32=False),
    }
    [stage] = _group_profiled(*measured.values(), allow_tf32=allow_tf32)
    assert stage.steps[0].algorithm == ("GEMM" if allow_tf32 else "FFT")
    other = measured[not allow_tf32]
    assert _group_profiled(other, allow_tf32=allow_tf32) == []
    # A CPU has no TF32, and other types do not round to it.
    assert _group_profiled(other, device=CPU, allow_tf32=allow_tf32)
    half = {
        "5x5": dataclasses.replace(LARGE, dtype="float16"),
        "3x3": dataclasses.replace(SMALL, dtype="float16"),
    }
    measurement = _measured(*half, of=half, tf32=not allow_tf32)
    assert _group_profiled(measurement, configurations=half, allow_tf32=allow_tf32)


def test_groups_only_what_gives_the_same_bits_where_determinism_is_on() -> None:
    entries = (
        *(
            _measured(f"large:{algorithm}", "small:GEMM", latency_us=latency)
            for algorithm, latency in (("FFT", 10.0), ("WINOGRAD", 15.0), ("DIRECT", 20.0))
        ),
        make_algorithm(SMALL, "GEMM"),
        make_algorithm(LARGE, "FFT", deterministic=False),
        make_algorithm(LARGE, "DIRECT"),
    )
    [stage] = _group_profiled(*entries, deterministic=False)
    assert stage.steps[0].algorithm == "FFT"
    # Nothing says of WINOGRAD, which was not measured alone, that it gives the same bits.
    [stage] = _group_profiled(*entries, deterministic=True)
    assert stage.steps[0].algorithm == "DIRECT"


# Two convolutions on one image, and one on another.
PAIRS = {
    "image": "Placeholder",
    "other": "Placeholder",
    "a": "Conv2D image",
    "b": "Conv2D other",
    "c": "Conv2D image",
}
MERGED = _measured("+small:GEMM small:GEMM")
MERGED_AND_ANOTHER = _measured("+small:GEMM small:GEMM", "small:FFT")


def test_merges_a_part_of_a_level_that_reads_one_image() -> None:
    assert _group_profiled(MERGED, nodes=PAIRS) == [make_lanes("+a:GEMM c:GEMM")]


@pytest.mark.parametrize(
    ("latency_us", "lanes"), [(21.0, ["+a:GEMM c:GEMM"]), (20.0, ["a:FFT", "b:FFT", "c:FFT"])]
)
def test_makes_of_a_level_and_its_merged_part_what_saves_more(
    latency_us: float, lanes: list[str]
) -> None:
    whole = _measured(*["small:FFT"] * 3, latency_us=latency_us)
    assert _group_profiled(MERGED, whole, nodes=PAIRS) == [make_lanes(*lanes)]


@pytest.mark.parametrize(("count", "measurement"), [(2, MERGED), (3, MERGED_AND_ANOTHER)])
def test_keeps_what_was_measured_merged_and_reads_different_images(
    count: int, measurement: StageMeasurement
) -> None:
    nodes = {"x": "Placeholder", "y": "Placeholder", "z": "Placeholder"}
    nodes |= {f"of_{image}": f"Conv2D {image}" for image in "xyz"[:count]}
    assert _group_profiled(measurement, nodes=nodes) == []
    # On lanes of their own they run as that was measured, though merged would be faster.
    side_by_side = _measured(*["small:FFT"] * count, latency_us=25.0)
    [stage] = _group_profiled(measurement, side_by_side, nodes=nodes)
    assert len(stage.lanes) == count


def _with_batch(configuration: ConvolutionConfiguration, size: int | None) -> Any:
    assert configuration.image_shape is not None
    assert configuration.output_shape is not None
    return dataclasses.replace(
        configuration,
        image_shape=(size, *configuration.image_shape[1:]),
        output_shape=(size, *configuration.output_shape[1:]),
    )


def _measured_at(size: int, latency_us: float, *lanes: str) -> StageMeasurement:
    of = {"large": _with_batch(LARGE, size), "small": _with_batch(SMALL, size)}
    return _measured(*lanes, latency_us=latency_us, of=of)


UNKNOWN_BATCH = {"3x3": _with_batch(SMALL, None), "5x5": _with_batch(LARGE, None)}


def test_groups_for_the_batch_sizes_measured_where_it_is_not_known() -> None:
    view, convolutions = make_graph(INCEPTION, configurations=UNKNOWN_BATCH)
    profile = make_profile(
        _measured_at(8, 25.0, "large:GEMM", "small:FFT"),
        _measured_at(1, 10.0, "large:DIRECT", "small:DIRECT"),
        _measured_at(32, 40.0, "large:FFT", "small:FFT"),
    )
    [stage] = group_profiled(convolutions, Independence(view, convolutions), profile)
    assert stage.stage == make_lanes("5x5:DIRECT", "3x3:DIRECT")
    assert stage.schedules == (
        BatchSchedule(1, stage.stage),
        BatchSchedule(8, make_lanes("5x5:GEMM", "3x3:FFT")),
        # Where it was measured and does not win it runs in sequence.
        BatchSchedule(32, make_lanes("3x3 5x5")),
    )
    assert stage.why == "profiled: wins with batch 1, 8 of 1, 8, 32 measured"


@pytest.mark.parametrize(
    ("device_type", "measured", "kept"),
    [
        ("GPU", "", "float"),
        ("GPU", "double", "float double"),
        ("GPU", "deep", "float deep"),
        ("GPU", "leaky", "float leaky"),
        ("CPU", "", "float double deep leaky"),
    ],
)
def test_leaves_out_what_a_gpu_may_be_unable_to_run_and_was_not_measured(
    device_type: str, measured: str, kept: str
) -> None:
    configurations = {
        "float": CONFIGURATION,
        "double": dataclasses.replace(CONFIGURATION, dtype="float64"),
        "deep": dataclasses.replace(CONFIGURATION, strides=(1, 1, 1), dilations=(1, 1, 1)),
        "leaky": dataclasses.replace(
            CONFIGURATION, op="_FusedConv2D", fused_ops=("BiasAdd", "LeakyRelu")
        ),
    }
    _, convolutions = make_graph(
        dict.fromkeys(configurations, "Conv2D"), configurations=configurations
    )
    profile = make_profile(*(make_algorithm(configurations[name]) for name in measured.split()))
    found, refusals = leave_out_unmeasured(convolutions, profile, device_type)
    assert [node.name for node in found] == kept.split()
    assert {each.node for each in refusals} == configurations.keys() - kept.split()
    assert all(each.reason is RefusalReason.NOT_MEASURED for each in refusals)
