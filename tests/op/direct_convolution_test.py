"""Convolutions that call oneDNN themselves give the bits of TensorFlow's kernels."""

from __future__ import annotations

import concurrent.futures
import pathlib
import re
from typing import Any

import pytest
import tensorflow as tf
from profiled_events import profile, ways_of_steps
from stage_program import operation
from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import test_util
from unit_program import Run, assert_same_bits, in_graph

pytestmark = [
    pytest.mark.usefixtures("plugin_off"),
    pytest.mark.skipif(not test_util.IsMklEnabled(), reason="oneDNN is off"),
]

IMAGE, FILTER, DEPTHWISE = [2, 9, 8, 4], [3, 3, 4, 6], [3, 3, 4, 2]
SAME = {"strides": [1] * 4, "padding": "SAME"}
STRIDED = {"strides": [1, 2, 3, 1], "padding": "SAME"}
EXPLICIT = {
    "strides": [1] * 4,
    "padding": "EXPLICIT",
    "explicit_paddings": [0, 0, 1, 2, 0, 1, 0, 0],
}
CHANNELS_FIRST = {"strides": [1, 1, 2, 1], "padding": "VALID", "data_format": "NCHW"}
DILATED = {"strides": [1] * 4, "padding": "VALID", "dilations": [1, 2, 3, 1]}

# Op, shapes of the inputs, fused operations, attributes.
Case = tuple[str, list[list[int]], list[str], dict[str, Any]]
CASES: list[Case] = [
    *(
        (op, [IMAGE, shape], [], each)
        for op, shape in (("Conv2D", FILTER), ("DepthwiseConv2dNative", DEPTHWISE))
        for each in (SAME, EXPLICIT, DILATED, {**STRIDED, "strides": [1, 2, 2, 1]})
    ),
    ("Conv2D", [IMAGE, FILTER], [], STRIDED),
    ("Conv2D", [IMAGE, [3, 3, 2, 6]], [], SAME),  # two groups
    ("Conv2D", [[2, 4, 9, 8], FILTER], [], CHANNELS_FIRST),
    *(
        ("_FusedConv2D", [IMAGE, FILTER, [6]], ["BiasAdd", *ops], SAME | attributes)
        for ops, attributes in (
            ([], {}),
            (["Relu"], {}),
            (["Relu6"], {}),
            (["Elu"], {}),
            (["LeakyRelu"], {"leakyrelu_alpha": 0.3}),
            (["_MklSwish"], {}),
            (["_FusedHardSwish"], {}),
        )
    ),
    *(
        ("_FusedConv2D", [IMAGE, FILTER, [6], [2, 9, 8, 6]], ["BiasAdd", "Add", *ops], SAME)
        for ops in ([], ["Relu"])
    ),
    *(
        ("_FusedDepthwiseConv2dNative", [IMAGE, DEPTHWISE, [8]], ["BiasAdd", *ops], SAME)
        for ops in ([], ["Relu6"])
    ),
]


def step_of(name: str, case: Case) -> node_def_pb2.NodeDef:
    op, shapes, fused_ops, attributes = case
    count = len(shapes) - 2
    if fused_ops:
        attributes = attributes | {"fused_ops": fused_ops, "num_args": count}
    if op == "_FusedConv2D":
        attributes = attributes | {"TArgs": [tf.float32] * count}
    operands = [f"inputs:{place}" for place in range(len(shapes))]
    return operation(name, op, operands, **attributes)


def both(unit: Any, case: Case, cores: int, name: str = "step") -> tuple[Run, Run]:
    """The step with its own call of oneDNN, and with TensorFlow's kernel."""
    step = step_of(name, case)
    direct, kernel = (
        in_graph(unit, [step], ["steps:0:0"], cores=cores, kept_inputs=kept) for kept in ([1], [])
    )
    return direct, kernel


def inputs_of(case: Case, seed: int = 0) -> list[tf.Tensor]:
    return [
        tf.random.stateless_normal(shape, (seed, place)) * 3 for place, shape in enumerate(case[1])
    ]


@pytest.mark.parametrize("cores", [0, 1, 2])
def test_gives_the_bits_of_the_kernel(unit: Any, cores: int, tmp_path: pathlib.Path) -> None:
    names = [f"case_{place}" for place in range(len(CASES))]

    def run() -> None:
        for name, case in zip(names, CASES, strict=True):
            direct, kernel = both(unit, case, cores, name)
            inputs = inputs_of(case)
            for image in (inputs[0], inputs[0] - 1, inputs[0][:1], inputs[0]):
                others = [
                    each[: len(image)] if len(each.shape) == 4 else each for each in inputs[2:]
                ]
                given = [image, inputs[1], *others]
                assert_same_bits(direct(*given), kernel(*given))

    ways = ways_of_steps(profile(tmp_path, run))
    assert all("TfInterop>DirectConvolution" in ways[name] for name in names)


@pytest.mark.parametrize(
    "shapes", [[IMAGE, FILTER, [5]], [[2, 9, 8, 5], FILTER, [6]]], ids=["bias", "depth"]
)
def test_has_the_errors_of_the_kernel(unit: Any, shapes: list[list[int]]) -> None:
    messages = []
    for run in both(unit, ("_FusedConv2D", shapes, ["BiasAdd"], SAME), cores=1):
        with pytest.raises(tf.errors.OpError) as error:
            run(*inputs_of(("", shapes, [], {})))
        messages.append(re.sub(r"__inference\w+", "", error.value.message))
    assert messages[0] == messages[1]


def test_leaves_an_empty_batch_to_the_kernel(unit: Any) -> None:
    case = ("Conv2D", [[0, 9, 8, 4], FILTER], [], SAME)
    [[found], [expected]] = (run(*inputs_of(case)) for run in both(unit, case, cores=1))
    assert found.shape == expected.shape


def test_follows_a_filter_that_changes(unit: Any) -> None:
    case = ("Conv2D", [IMAGE, FILTER], [], SAME)
    direct, kernel = both(unit, case, cores=1)
    for seed in (1, 2, 2, 3):
        inputs = inputs_of(case, seed)
        assert_same_bits(direct(*inputs), kernel(*inputs))


def test_leaves_a_summand_that_others_read(unit: Any) -> None:
    shapes = [IMAGE, FILTER, [6], [2, 9, 8, 6]]
    step = step_of("step", ("_FusedConv2D", shapes, ["BiasAdd", "Add"], SAME))
    twice = operation("twice", "AddV2", ["inputs:3", "inputs:3"])
    last = operation("last", "Sub", ["steps:1:0", "inputs:3"])
    direct, kernel = (
        in_graph(unit, [twice, step, last], ["steps:1:0", "steps:2:0"], cores=1, kept_inputs=kept)
        for kept in ([1], [])
    )
    inputs = [tf.random.stateless_normal(shape, (0, place)) for place, shape in enumerate(shapes)]
    assert_same_bits(direct(*inputs), kernel(*inputs))


def test_calls_at_the_same_time_have_their_own_results(unit: Any) -> None:
    case = ("_FusedConv2D", [[2, 64, 64, 4], FILTER, [6]], ["BiasAdd", "Relu"], SAME)
    direct, kernel = both(unit, case, cores=1)
    image, *others = inputs_of(case)
    images = [image + number for number in range(4)]
    expected = [kernel(each, *others) for each in images]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            for found, right in zip(
                threads.map(lambda each: direct(each, *others), images), expected, strict=True
            ):
                assert_same_bits(found, right)
