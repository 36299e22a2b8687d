"""The collected configurations are those that the pass looks up in a profile."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
from typing import Any

import pytest
import tensorflow as tf
from branched_models import build_module
from plan_values import landmarks_of
from planning_graphs import make_graph

import tf_interop
from tf_interop.convolution import ConvolutionConfiguration, ConvolutionKind
from tf_interop.errors import PlanError
from tf_interop.graph.independence import Independence, level_groups
from tf_interop.model.collect import (
    CollectOptions,
    StageSource,
    collect_configurations,
    pairs_with_most_to_gain,
)
from tf_interop.model.graphs import convolutions_of, handed_graph_of, trace, with_inferred_shapes
from tf_interop.model.load import ModelArgumentError
from tf_interop.planning.types import GraphPlan, Plan, PlannedStage
from tf_interop.profile.worklist import ConfigurationList
from tf_interop.stage import Lane, Stage, Step


@pytest.fixture(autouse=True)
def fixture_working_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _save_graph(path: str, *dtypes: tf.DType) -> None:
    """Saves a graph with a convolution of each dtype, and an unknown batch size."""
    graph = tf.Graph()
    with graph.as_default():
        for dtype in dtypes:
            image = tf.compat.v1.placeholder(dtype, (None, 16, 16, 3))
            tf.nn.conv2d(image, tf.ones((3, 3, 3, 4), dtype), 1, "SAME")
        tf.compat.v1.placeholder(tf.float32)
    pathlib.Path(path).write_bytes(graph.as_graph_def().SerializeToString())


def _collect(model: str = "branched_models:build_module", **options: Any) -> ConfigurationList:
    return collect_configurations([model], CollectOptions(**options)).configurations


def _configurations(listed: ConfigurationList) -> list[ConvolutionConfiguration]:
    return [each.configuration for each in listed.convolutions]


def _stages(listed: ConfigurationList) -> list[Stage[int]]:
    return [each.stage for each in listed.stages]


def _side_by_side(*places: int) -> Stage[int]:
    return Stage.side_by_side(map(Step, places))


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_collects_the_convolutions_that_grappler_hands_over(training: bool) -> None:
    handed_graph = handed_graph_of(trace(build_module(), batch_size=3, training=training))
    assert handed_graph is not None
    view, nodes, _ = convolutions_of(with_inferred_shapes(handed_graph))
    handed = collections.Counter(node.configuration for node in nodes)
    groups = {
        frozenset(collections.Counter(node.configuration for node in group).items())
        for _, group in level_groups(nodes, Independence(view, nodes))
        if len(group) > 1
    }

    listed = _collect(
        batch_sizes=(3,),
        inference=not training,
        training=training,
        stage_sources=[StageSource.LEVELS],
    )
    assert {each.configuration: each.count for each in listed.convolutions} == handed
    stages = [
        collections.Counter(each.stage.map(_configurations(listed).__getitem__).operations)
        for each in listed.stages
    ]
    assert {frozenset(stage.items()) for stage in stages} == groups
    assert groups


def test_collects_for_a_gpu_that_is_not_here() -> None:
    listed = _collect(compute_capability="9.0", training=True, inference=False)
    assert {each.layout for each in _configurations(listed)} == {"NCHW"}
    half = _collect(compute_capability="9.0", dtype="mixed_float16")
    assert {(e.layout, e.dtype) for e in _configurations(half)} == {("NHWC", "float16")}
    assert tf.keras.mixed_precision.global_policy().name == "float32"


def test_collects_folded_convolutions_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_INTEROP_HOST_STAGES", "0")
    model = "branched_models:build_normalized"
    listed = _collect(model, compute_capability="9.0")
    assert {each.fused_ops for each in _configurations(listed)} == {("BiasAdd", "Relu"), ()}
    # A convolution without a known image would be left out.
    assert sum(each.count for each in listed.convolutions) == 4
    on_cpu = _configurations(_collect(model))
    assert {each.fused_ops for each in on_cpu} == {(), ("BiasAdd",)}


def test_lists_levels_and_the_pairs_with_most_to_gain() -> None:
    assert _stages(_collect(stage_sources=[StageSource.LEVELS])) == [_side_by_side(1, 2, 3)]
    listed = _collect(stage_sources=[StageSource.PAIRS], max_pairs=2)
    # 1x1, 3x3 and 5x5 are at places 1 to 3; a pair saves at most its smaller convolution.
    assert _stages(listed) == [_side_by_side(2, 3), _side_by_side(1, 2)]


def test_a_level_of_two_and_the_same_pair_are_one_stage() -> None:
    [stage] = _collect("branched_models:build_branches").stages
    origin = "branched_models:build_branches, batch 1, inference"
    assert stage.origins == (f"{origin}, level", f"{origin}, pair")
    assert stage.images == (0, 0)


def test_says_which_convolutions_of_a_stage_read_one_image() -> None:
    image = tf.keras.Input((8, 8, 3))
    first, second = (tf.keras.layers.Conv2D(4, 1)(image) for _ in range(2))
    outputs = [tf.keras.layers.Conv2D(4, 3)(each) for each in (first, second, second)]
    tf.keras.Model(image, outputs).save("images.keras")
    levels = {"stage_sources": [StageSource.LEVELS]}
    first_level, second_level = sorted(
        _collect("images.keras", **levels).stages, key=lambda each: len(each.images)
    )
    assert first_level.images == (0, 0)
    assert len(second_level.images) == 3
    assert len(set(second_level.images)) == 2

    training = _collect("images.keras", **levels, training=True, inference=False)
    kinds = {
        training.convolutions[place].configuration.kind
        for stage in training.stages
        for place, image in zip(stage.stage.operations, stage.images, strict=True)
        if stage.images.count(image) > 1
    }
    assert ConvolutionKind.BACKWARD_FILTER in kinds
    assert ConvolutionKind.BACKWARD_INPUT not in kinds


def test_lists_what_could_be_merged() -> None:
    x, y = (tf.keras.Input((8, 8, 3), name=name) for name in "xy")
    # With names, as Keras numbers unnamed layers over all models, and Grappler sorts nodes by name.
    branches = [
        tf.keras.layers.Conv2D(channels, size, padding="same", name=name)(image)
        for name, image, channels, size in (
            ("a", x, 4, 1), ("b", x, 8, 2), ("c", x, 6, 1), ("d", y, 10, 1), ("e", y, 12, 1)
        )
    ]  # fmt: skip
    tf.keras.Model([x, y], branches).save("merge.keras")
    listed = _collect("merge.keras", stage_sources=[StageSource.MERGES])
    of_x, of_y = (Lane(tuple(map(Step, sizes)), merged=True) for sizes in ((4, 6), (10, 12)))
    assert [
        stage.map(lambda place: _configurations(listed)[place].filter_shape[-1])  # type: ignore[index]
        for stage in _stages(listed)
    ] == [Stage((of_x,)), Stage((of_y,)), Stage((of_x, Lane((Step(8),)), of_y))]
    assert listed.stages[0].origins == ("merge.keras, batch 1, inference, merge",)


@pytest.mark.parametrize("elsewhere", [{}, {"device": "/device:GPU:1"}, {"region": "a branch"}])
def test_pairs_are_on_one_device_and_in_one_region(elsewhere: dict[str, Any]) -> None:
    view, (a, b) = make_graph({"x": "Relu", "a": "Conv2D x", "b": "Conv2D x"})
    nodes = (a, dataclasses.replace(b, **elsewhere))
    pairs = pairs_with_most_to_gain(nodes, Independence(view, nodes), 9)
    assert len(pairs) == (not elsewhere)


@pytest.mark.usefixtures("plugin_as_after_import")
def test_lists_the_stages_of_a_plan_with_its_algorithms() -> None:
    tf_interop.enable(policy="always")
    try:
        model = build_module()
        tf.function(model)(tf.ones((1, 16, 16, 3)))
        plan = tf_interop.status().plan
    finally:
        tf_interop.disable()
    [graph] = plan.graphs
    level = next(each.stage for each in graph.stages if len(each.stage.lanes) == 3)
    first, second, third = level.operations
    stage = Stage(
        (
            Lane((Step(third, "IM2COL_GEMM"), Step(first)), priority=1),
            Lane((Step(second, "DIRECT"),), priority=-1),
        )
    )
    pinned = Plan((dataclasses.replace(graph, stages=(PlannedStage(stage),)),))
    listed = _collect(stage_sources=(), plan=pinned)
    [found] = _stages(listed)
    sizes = found.map(lambda place: _configurations(listed)[place].filter_shape[0])  # type: ignore[index]
    assert sizes.operations == (5, 1, 3)
    assert found.map(lambda _: "") == stage.map(lambda _: "")  # all but the convolutions

    unknown = PlannedStage(Stage.in_sequence([Step("x")]))
    other = Plan((GraphPlan("0", landmarks_of("x"), (unknown,)),))
    with pytest.raises(PlanError):
        _collect(plan=other)


def test_collects_from_saved_models_and_graphs_at_open_batch_sizes() -> None:
    build_module().export("exported", verbose=False)
    listed = _collect("exported", batch_sizes=(2, 5))
    assert {each.image_shape[0] for each in _configurations(listed)} == {2, 5}  # type: ignore[index]
    assert len(listed.convolutions) == 10
    _save_graph("graph.pb", tf.float32, tf.int32)
    collected = collect_configurations(["graph.pb"], CollectOptions(batch_sizes=(7,)))
    [configuration] = _configurations(collected.configurations)
    assert configuration.output_shape == (7, 16, 16, 4)
    assert collected.notes == ("graph.pb, batch 7, inference: 1 left out for their dtype",)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("no.keras", {"dtype": "mixed_float16"}, "mixed_float16 .*'no.keras'"),
        ("no.pb", {"training": True}, "--training .*'no.pb'"),
        ("no.keras", {}, "no convolution to measure"),
    ],
)
def test_refuses(model: str, options: dict[str, Any], message: str) -> None:
    image = tf.keras.Input((4,))
    tf.keras.Model(image, tf.keras.layers.Dense(2)(image)).save("no.keras")
    _save_graph("no.pb")
    with pytest.raises(ValueError, match=message) as refusal:
        _collect(model, **options)
    assert isinstance(refusal.value, ModelArgumentError) or not options
