"""Steps that this library computes in another way have the results of TensorFlow's kernels."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from profiled_events import profile, ways_of_steps
from stage_program import operation
from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import test_util
from unit_program import Run, assert_same_bits, in_graph, self_timed, stock
from unnoticed import in_threads

pytestmark = [
    pytest.mark.usefixtures("plugin_off"),
    pytest.mark.skipif(not test_util.IsMklEnabled(), reason="oneDNN is off"),
]

DIRECT, WINOGRAD = "TfInterop>DirectConvolution", "TfInterop>WinogradConvolution"
POINTWISE, DEPTHWISE = "TfInterop>PointwiseProduct", "TfInterop>DepthwiseFilterGradient"
NORMALIZATION, SLICE = "TfInterop>TrainingNormalization", "TfInterop>SliceGradient"
OF_NORMALIZATION = f"{NORMALIZATION}Gradient"

SAME: dict[str, Any] = {"strides": [1] * 4, "padding": "SAME"}
VALID = SAME | {"padding": "VALID"}
EXPLICIT = SAME | {"padding": "EXPLICIT", "explicit_paddings": [0, 0, 1, 2, 0, 1, 0, 0]}
STRIDED = SAME | {"strides": [1, 2, 2, 1]}
DILATED = SAME | {"dilations": [1, 2, 3, 1]}
LEAKY = SAME | {"leakyrelu_alpha": 0.3}


class Case(NamedTuple):
    """An op, what makes its inputs from a seed, its attributes and its number of results."""

    op: str
    values: Callable[[int], list[Any]]
    attributes: dict[str, Any]
    results: int = 1


def pixels(seed: int, *shape: int, at: float = 0, scale: float = 1) -> tf.Tensor:
    """Random values, others for each seed."""
    return at + scale * tf.random.stateless_normal(shape, (seed, sum(shape)))


def convolution(
    image: list[int],
    filter_: list[int],
    attributes: dict[str, Any],
    *fused_ops: str,
    op: str = "Conv2D",
) -> Case:
    """A convolution, with fused operations after a bias if there are any."""
    shapes = [image, filter_]
    if fused_ops:
        channels = filter_[3] * (filter_[2] if "Depthwise" in op else 1)
        shapes += [[channels], *([[*image[:3], channels]] if "Add" in fused_ops else [])]
        attributes = attributes | {"fused_ops": fused_ops, "num_args": len(shapes) - 2}
        if op == "Conv2D":
            attributes |= {"TArgs": [tf.float32] * (len(shapes) - 2)}
        op = f"_Fused{op}"

    def values(seed: int) -> list[Any]:
        # Small weights: sums of many products are as large as the bias.
        return [pixels(seed, *each, scale=0.1 if each is filter_ else 1) for each in shapes]

    return Case(op, values, attributes)


def gradient(op: str, image: list[int], filter_: list[int], attributes: dict[str, Any]) -> Case:
    forward = getattr(tf.raw_ops, op.partition("Backprop")[0])

    def values(seed: int) -> list[Any]:
        traced = tf.function(lambda x, y: forward(input=x, filter=y, **attributes))
        given = tf.TensorSpec(image), tf.TensorSpec(filter_)
        of_result = pixels(seed, *traced.get_concrete_function(*given).output_shapes)
        if op.endswith("Filter"):
            return [pixels(seed, *image), tf.constant(filter_), of_result]
        return [tf.constant(image), pixels(seed, *filter_), of_result]

    return Case(op, values, attributes)


def of_input(*given: Any) -> Case:
    return gradient("Conv2DBackpropInput", *given)


def of_filter(*given: Any) -> Case:
    return gradient("Conv2DBackpropFilter", *given)


def of_depthwise(
    image: list[int], height: int, width: int | None = None, multiplier: int = 1, **attributes: Any
) -> Case:
    """The gradient of a depthwise filter."""
    filter_ = [height, width or height, image[3], multiplier]
    return gradient("DepthwiseConv2dNativeBackpropFilter", image, filter_, SAME | attributes)


def normalization(*image: int, factor: float = 1.0, **attributes: Any) -> Case:
    channels = image[3]
    moving = channels if factor != 1 or not attributes.get("is_training", True) else 0
    attributes = {"epsilon": 1e-3, "exponential_avg_factor": factor} | attributes

    def values(seed: int) -> list[Any]:
        vectors = [pixels(seed, each, at=3) for each in (channels, channels, moving, moving)]
        return [pixels(seed, *image, at=2), *vectors]

    return Case("FusedBatchNormV3", values, attributes, 3)


def gradient_of_normalization(*image: int) -> Case:
    def values(seed: int) -> list[Any]:
        variance = tf.abs(pixels(seed, image[3], at=2)) + 0.1
        vectors = [pixels(seed, image[3]), pixels(seed, image[3]), variance, tf.zeros([0])]
        return [pixels(seed, *image), pixels(seed, *image), *vectors]

    return Case("FusedBatchNormGradV3", values, {"epsilon": 1e-3}, 3)


def of_slice(
    whole: list[int], begin: list[int], part: list[int], stride: int = 1, **masks: int
) -> Case:
    end = [one + size for one, size in zip(begin, part, strict=False)]
    places = [whole, begin, end, [stride] * len(begin)]
    return Case(
        "StridedSliceGrad", lambda seed: [*map(tf.constant, places), pixels(seed, *part)], masks
    )


def step_of(case: Case, name: str = "step") -> node_def_pb2.NodeDef:
    operands = [f"inputs:{place}" for place in range(len(case.values(0)))]
    step = operation(name, case.op, operands, **case.attributes)
    if case.op == "StridedSliceGrad":
        step.attr["Index"].type = tf.int32.as_datatype_enum
    elif case.op.startswith("FusedBatchNorm"):
        step.attr["U"].type = tf.float32.as_datatype_enum
    return step


def results_of(case: Case) -> list[str]:
    return [f"steps:0:{port}" for port in range(case.results)]


def run_of(unit: Any, case: Case, name: str = "step", **attributes: Any) -> Run:
    return in_graph(unit, [step_of(case, name)], results_of(case), **attributes)


def tried(unit: Any, case: Case, **attributes: Any) -> Run:
    """A new unit that times itself."""
    return run_of(unit, case, **self_timed() | {"split_inputs": []} | attributes)


def own(case: Case) -> Run:
    return stock([step_of(case)], results_of(case))


def kept_or_not(unit: Any, case: Case, **attributes: Any) -> Iterator[Run]:
    """The unit with a kept filter, and without one."""
    return (run_of(unit, case, kept_inputs=kept, **attributes) for kept in ([1], []))


def ways(folder: pathlib.Path, call: Callable[[], object]) -> set[str]:
    """How a step ran in a call."""
    return ways_of_steps(profile(folder, call))["step"]


def assert_near(found: list[tf.Tensor], expected: list[tf.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max(initial=0) <= 1e-5 * np.abs(other).max(initial=0)


SMALL, SMALL_FILTER, SMALL_DEPTHWISE = [3, 9, 8, 4], [3, 3, 4, 6], [3, 3, 4, 2]
SUM = convolution(SMALL, SMALL_FILTER, SAME, "BiasAdd", "Add")
DIRECT_CASES = [
    *(convolution(SMALL, SMALL_FILTER, each) for each in (SAME, EXPLICIT, DILATED)),
    *(
        convolution(SMALL, SMALL_DEPTHWISE, each, op="DepthwiseConv2dNative")
        for each in (SAME, EXPLICIT, DILATED, STRIDED)
    ),
    convolution(SMALL, SMALL_FILTER, SAME | {"strides": [1, 2, 3, 1]}),
    convolution(SMALL, [3, 3, 2, 6], SAME),  # two groups
    convolution(
        [2, 4, 9, 8], SMALL_FILTER, VALID | {"strides": [1, 1, 2, 1], "data_format": "NCHW"}
    ),
    *(
        convolution(SMALL, SMALL_FILTER, LEAKY, "BiasAdd", *ops)
        for ops in ([], *([each] for each in ("Relu", "Relu6", "Elu", "LeakyRelu")))
    ),
    *(
        convolution(SMALL, SMALL_FILTER, SAME, "BiasAdd", each)
        for each in ("_MklSwish", "_FusedHardSwish")
    ),
    SUM,
    convolution(SMALL, SMALL_FILTER, SAME, "BiasAdd", "Add", "Relu"),
    *(
        convolution(SMALL, SMALL_DEPTHWISE, SAME, "BiasAdd", *ops, op="DepthwiseConv2dNative")
        for ops in ([], ["Relu6"])
    ),
]


@pytest.mark.parametrize("cores", [0, 1, 2])
def test_a_direct_convolution_gives_the_bits_of_the_kernel(
    unit: Any, cores: int, tmp_path: pathlib.Path
) -> None:
    cases = {f"case_{place}": case for place, case in enumerate(DIRECT_CASES)}

    def run() -> None:
        for name, case in cases.items():
            direct, kernel = kept_or_not(unit, case, name=name, cores=cores)
            image, filter_, *others = case.values(0)
            # On a CPU without AVX-512 the last bits of one image may differ.
            for given in (image, image - 1, image[:2], image):
                rest = [each[: len(given)] if len(each.shape) == 4 else each for each in others]
                inputs = [given, filter_, *rest]
                assert_same_bits(direct(*inputs), kernel(*inputs))

    ran = ways_of_steps(profile(tmp_path, run))
    assert all(DIRECT in ran[name] for name in cases)


@pytest.mark.parametrize(("place", "shape"), [(2, [5]), (0, [2, 9, 8, 5])], ids=["bias", "depth"])
def test_a_direct_convolution_has_the_errors_of_the_kernel(
    unit: Any, place: int, shape: list[int]
) -> None:
    case = convolution(SMALL, SMALL_FILTER, SAME, "BiasAdd")
    inputs, messages = case.values(0), []
    inputs[place] = tf.zeros(shape)
    for run in kept_or_not(unit, case):
        with pytest.raises(tf.errors.OpError) as error:
            run(*inputs)
        messages.append(re.sub(r"__inference\w+", "", error.value.message))
    assert messages[0] == messages[1]


def test_a_direct_convolution_leaves_an_empty_batch_to_the_kernel(unit: Any) -> None:
    case = convolution([0, 9, 8, 4], SMALL_FILTER, SAME)
    [[found], [expected]] = (run(*case.values(0)) for run in kept_or_not(unit, case))
    assert found.shape == expected.shape


def test_a_direct_convolution_follows_a_filter_that_changes(unit: Any) -> None:
    case = convolution(SMALL, SMALL_FILTER, SAME)
    direct, kernel = (run_of(unit, case, cores=1, kept_inputs=kept) for kept in ([1], []))
    for seed in (1, 2, 2, 3):
        assert_same_bits(direct(*case.values(seed)), kernel(*case.values(seed)))


def test_a_direct_convolution_leaves_a_summand_that_others_read(unit: Any) -> None:
    twice = operation("twice", "AddV2", ["inputs:3", "inputs:3"])
    last = operation("last", "Sub", ["steps:1:0", "inputs:3"])
    steps, results = [twice, step_of(SUM), last], ["steps:1:0", "steps:2:0"]
    direct, kernel = (in_graph(unit, steps, results, kept_inputs=kept) for kept in ([1], []))
    assert_same_bits(direct(*SUM.values(0)), kernel(*SUM.values(0)))


IMAGE, FILTER = [2, 27, 30, 32], [3, 3, 32, 40]
KEPT_WINOGRAD: dict[str, Case] = {
    "same": convolution(IMAGE, FILTER, SAME, "BiasAdd"),
    "valid": convolution(IMAGE, FILTER, VALID, "BiasAdd"),
    "explicit": convolution(IMAGE, FILTER, EXPLICIT, "BiasAdd"),
    "five": convolution([1, 27, 30, 64], [5, 5, 64, 96], SAME, "BiasAdd"),
    "five_valid": convolution([1, 27, 30, 64], [5, 5, 64, 96], VALID, "BiasAdd", "Relu"),
    "relu": convolution(IMAGE, FILTER, SAME, "BiasAdd", "Relu"),
    "relu6": convolution(IMAGE, FILTER, SAME, "BiasAdd", "Relu6"),
    "leaky": convolution(IMAGE, FILTER, LEAKY, "BiasAdd", "LeakyRelu"),
    "add_relu": convolution(IMAGE, FILTER, SAME, "BiasAdd", "Add", "Relu"),
    # One product for all cores, of few tiles; several of each core, the last of which is smaller.
    "few_tiles": convolution([1, 13, 14, 128], [3, 3, 128, 128], SAME, "BiasAdd"),
    "many_tiles": convolution([13, 30, 30, 32], FILTER, SAME, "BiasAdd"),
}
NEVER_WINOGRAD: dict[str, Case] = {
    "strided": convolution(IMAGE, FILTER, STRIDED, "BiasAdd"),
    "dilated": convolution(IMAGE, FILTER, DILATED, "BiasAdd"),
    "even": convolution(IMAGE, [4, 4, 32, 40], SAME, "BiasAdd"),
    "row": convolution(IMAGE, [1, 3, 32, 40], SAME, "BiasAdd"),
    "elu": convolution(IMAGE, FILTER, SAME, "BiasAdd", "Elu"),
    "depth": convolution([2, 27, 30, 28], [3, 3, 28, 40], SAME, "BiasAdd"),
    "channels": convolution(IMAGE, [3, 3, 32, 36], SAME, "BiasAdd"),
    "groups": convolution(IMAGE, [3, 3, 16, 40], SAME, "BiasAdd"),
    "small": convolution([1, 8, 8, 32], FILTER, SAME, "BiasAdd"),
}


@pytest.mark.parametrize("name", KEPT_WINOGRAD)
def test_winograds_way_for_a_kept_filter(unit: Any, name: str, tmp_path: pathlib.Path) -> None:
    case = KEPT_WINOGRAD[name]
    kernel = run_of(unit, case, kept_inputs=[1])
    inputs = case.values(0)
    expected = kernel(*inputs)
    # The trial may find it slower, on some CPUs always.
    for attempt in range(5):
        run = tried(unit, case, kept_inputs=[1])
        for _ in range(12):  # in all ways of the unit
            assert_near(run(*inputs), expected)
        if WINOGRAD in ways(tmp_path / str(attempt), lambda run=run: run(*inputs)):
            break
    else:
        pytest.skip("Winograd's way was never faster here")
    other_image = [inputs[0] * 2 - 1, *inputs[1:]]
    for given in (other_image, case.values(1)):
        assert_near(run(*given), kernel(*given))


@pytest.mark.parametrize("name", NEVER_WINOGRAD)
def test_winograds_way_leaves_other_kept_filters(
    unit: Any, name: str, tmp_path: pathlib.Path
) -> None:
    case = NEVER_WINOGRAD[name]
    run, kernel = tried(unit, case, kept_inputs=[1]), own(case)
    inputs = case.values(0)
    for _ in range(3):
        assert_near(run(*inputs), kernel(*inputs))
    assert ways(tmp_path, lambda: run(*inputs)) == {DIRECT}


LAYER, POINT = [2, 14, 13, 44], [1, 1, 44, 70]
FIVE, OF_FIVE = [1, 27, 30, 96], [5, 5, 96, 64]
TAKEN: dict[str, tuple[str, Case]] = {
    "pointwise": (POINTWISE, convolution(LAYER, POINT, SAME)),
    "pointwise_input_gradient": (POINTWISE, of_input(LAYER, POINT, SAME)),
    "pointwise_filter_gradient": (POINTWISE, of_filter(LAYER, POINT, SAME)),
    "winograd": (WINOGRAD, KEPT_WINOGRAD["same"]),
    "winograd_five_valid": (WINOGRAD, KEPT_WINOGRAD["five_valid"]),
    "winograd_input_gradient": (WINOGRAD, of_input(IMAGE, FILTER, SAME)),
    "winograd_input_gradient_valid": (WINOGRAD, of_input(IMAGE, FILTER, VALID)),
    "winograd_input_gradient_five": (WINOGRAD, of_input(FIVE, OF_FIVE, SAME)),
    "winograd_input_gradient_few_tiles": (
        WINOGRAD,
        of_input([1, 24, 26, 64], [3, 3, 64, 64], SAME),
    ),
    "winograd_filter_gradient": (WINOGRAD, of_filter(IMAGE, FILTER, SAME)),
    "winograd_filter_gradient_valid": (WINOGRAD, of_filter(IMAGE, FILTER, VALID)),
    "winograd_filter_gradient_five": (WINOGRAD, of_filter(FIVE, OF_FIVE, SAME)),
    # Several products, the last of which has fewer tiles.
    "winograd_filter_gradient_many_tiles": (WINOGRAD, of_filter([13, 26, 27, 32], FILTER, SAME)),
    "depthwise_three": (DEPTHWISE, of_depthwise(LAYER, 3)),
    "depthwise_five": (DEPTHWISE, of_depthwise([9, 14, 13, 32], 5)),
    "depthwise_seven": (DEPTHWISE, of_depthwise([2, 8, 5, 17], 7)),
    "depthwise_not_square": (DEPTHWISE, of_depthwise(LAYER, 4, 5)),
    "depthwise_valid": (DEPTHWISE, of_depthwise(LAYER, 5, padding="VALID")),
    "depthwise_strided": (DEPTHWISE, of_depthwise(LAYER, 5, strides=[1, 2, 2, 1])),
    "depthwise_narrow": (DEPTHWISE, of_depthwise([2, 3, 2, 20], 7)),
    "normalization": (NORMALIZATION, normalization(*LAYER)),
    "normalization_of_many": (NORMALIZATION, normalization(4, 56, 56, 70)),
    "normalization_of_deep": (NORMALIZATION, normalization(2, 3, 3, 1100)),
    "normalization_of_two_pixels": (NORMALIZATION, normalization(1, 2, 1, 37)),
    "normalization_moving": (NORMALIZATION, normalization(*LAYER, factor=0.3)),
    "normalization_gradient": (OF_NORMALIZATION, gradient_of_normalization(*LAYER)),
    "normalization_gradient_of_many": (OF_NORMALIZATION, gradient_of_normalization(4, 56, 56, 70)),
    "normalization_gradient_of_odd": (OF_NORMALIZATION, gradient_of_normalization(1, 3, 3, 37)),
    "slice": (SLICE, of_slice([2, 9, 8, 5], [0, 1, 2, 0], [2, 8, 6, 5])),
    "slice_of_channels": (SLICE, of_slice([2, 9, 8, 5], [1, 0, 2, 1], [1, 9, 4, 3])),
    "slice_from_the_end": (SLICE, of_slice([9, 8], [-4, 0], [3, 8], end_mask=2)),
    "slice_masked": (SLICE, of_slice([3, 9, 8], [1, 5, 5], [2, 4, 8], begin_mask=4)),
    "slice_of_few_axes": (SLICE, of_slice([4, 9, 8], [1], [2, 9, 8])),
    "slice_of_all": (SLICE, of_slice([4, 9, 8, 2], [0] * 4, [4, 9, 8, 2])),
}
LEFT: dict[str, Case] = {
    "pointwise_strided": convolution(LAYER, POINT, STRIDED),
    "pointwise_groups": convolution(LAYER, [1, 1, 22, 70], SAME),
    "pointwise_padded": convolution(LAYER, POINT, EXPLICIT),
    "depthwise_multiplied": of_depthwise(LAYER, 3, multiplier=2),
    "depthwise_dilated": of_depthwise(LAYER, 3, dilations=[1, 2, 2, 1]),
    "depthwise_few_channels": of_depthwise([2, 9, 9, 12], 3),
    "depthwise_wide": of_depthwise(LAYER, 9),
    "normalization_of_one_pixel": normalization(1, 1, 1, 20),
    "normalization_inference": normalization(*LAYER, is_training=False),
    "slice_strided": of_slice([9, 8], [0, 0], [5, 4], stride=2, end_mask=3),
    "slice_that_drops_an_axis": Case(
        "StridedSliceGrad",
        lambda seed: [*map(tf.constant, ([9, 8], [3, 0], [4, 8], [1, 1])), pixels(seed, 8)],
        {"shrink_axis_mask": 1},
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_tried_step_gives_the_results_of_the_kernel(
    unit: Any, name: str, tmp_path: pathlib.Path
) -> None:
    way, case = TAKEN[name]
    run, kernel = tried(unit, case), own(case)

    def call_often() -> None:
        for seed in range(40):  # by the kernel and by the other way, in all ways of the unit
            inputs = case.values(seed)
            assert_near(run(*inputs), kernel(*inputs))

    assert way in ways(tmp_path, call_often)


def zeroed(inputs: list[Any], *, but: int) -> list[Any]:
    return [each if place == but else tf.zeros_like(each) for place, each in enumerate(inputs)]


def test_results_of_zero_do_not_show_that_a_way_is_right(unit: Any, tmp_path: pathlib.Path) -> None:
    case = KEPT_WINOGRAD["same"]
    run, inputs = tried(unit, case, kept_inputs=[1]), case.values(0)
    for _ in range(3):
        run(*zeroed(inputs, but=1))
    assert ways(tmp_path / "kept", lambda: run(*inputs)) == {DIRECT}

    way, case = TAKEN["pointwise_filter_gradient"]
    run, inputs = tried(unit, case), case.values(0)
    for _ in range(3):
        assert_near(run(*zeroed(inputs, but=1)), own(case)(*zeroed(inputs, but=1)))
    assert way in ways(tmp_path / "tried", lambda: [run(*inputs) for _ in range(40)])


@pytest.mark.parametrize("name", LEFT)
def test_leaves_others_to_the_kernel(unit: Any, name: str, tmp_path: pathlib.Path) -> None:
    case = LEFT[name]
    run, kernel = tried(unit, case), own(case)

    def call_often() -> None:
        for seed in range(10):
            inputs = case.values(seed)
            assert_near(run(*inputs), kernel(*inputs))

    ran = ways(tmp_path, call_often)
    assert not any(each.startswith("TfInterop>") for each in ran), ran


@pytest.mark.parametrize(("kept_inputs", "way"), [([1], DIRECT), ([], "_MklNativeFusedConv2D")])
def test_nothing_is_tried_in_a_unit_that_does_not_time_itself(
    unit: Any, kept_inputs: list[int], way: str, tmp_path: pathlib.Path
) -> None:
    """Otherwise the bits of a result would depend on times."""
    case = KEPT_WINOGRAD["same"]
    run = run_of(unit, case, cores=2, kept_inputs=kept_inputs)
    inputs = case.values(0)
    assert ways(tmp_path, lambda: [run(*inputs) for _ in range(10)]) == {way}


@pytest.mark.parametrize(
    ("name", "place", "kept_inputs"),
    [
        ("winograd", 0, [1]),
        ("winograd", 1, []),
        ("normalization", 0, []),
    ],
)
def test_leaves_values_that_are_not_finite_to_the_kernel(
    unit: Any, name: str, place: int, kept_inputs: list[int]
) -> None:
    """Other ways would spread one, such as Winograd's over its tile."""
    _, case = TAKEN[name]
    run, kernel = tried(unit, case, kept_inputs=kept_inputs), own(case)
    inputs = case.values(0)
    odd = inputs[place].numpy()
    odd[0, 0, 0, 0] = np.inf
    inputs[place] = tf.constant(odd)
    for _ in range(8):
        for one, other in zip(run(*inputs), kernel(*inputs), strict=True):
            finite = np.isfinite(other)
            assert np.array_equal(np.where(finite, 0, one), np.where(finite, 0, other), True)
            assert_near([np.where(finite, one, 0)], [np.where(finite, other, 0)])


@pytest.mark.parametrize(
    ("name", "place", "sizes"),
    [
        ("winograd_input_gradient", 0, [2, 28, 30, 32]),
        ("winograd_filter_gradient", 1, [3, 3, 32, 48]),
    ],
)
def test_follows_sizes_that_change(unit: Any, name: str, place: int, sizes: list[int]) -> None:
    _, case = TAKEN[name]
    run, kernel = tried(unit, case), own(case)
    inputs = case.values(0)
    for _ in range(10):
        assert_near(run(*inputs), kernel(*inputs))
    inputs[place] = tf.constant(sizes)
    errors = []
    for each in (run, kernel):
        with pytest.raises(tf.errors.OpError) as error:
            each(*inputs)
        errors.append(type(error.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize(
    ("attributes", "is_timed"),
    [({"kept_inputs": [1]}, False), ({"kept_inputs": [1]}, True), ({}, True)],
    ids=["direct", "winograd", "tried"],
)
def test_calls_at_the_same_time_have_their_own_results(
    unit: Any, attributes: dict[str, Any], is_timed: bool
) -> None:
    case = KEPT_WINOGRAD["relu"]
    kernel = own(case)
    run = (tried if is_timed else run_of)(unit, case, **attributes)
    image, *others = case.values(0)
    images = [image + number for number in range(4)]
    expected = [kernel(each, *others) for each in images]

    def call(number: int) -> None:
        for _ in range(20):
            assert_near(run(images[number], *others), expected[number])

    in_threads(call, range(4))
