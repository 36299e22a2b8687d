"""The ConvStage op against TensorFlow's own ops, on the CPU.

Tensors hold small whole numbers, whose products and sums are exact in float32 and float16, so the
comparison is to the bit wherever no exponential function is involved.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from tf_interop.know.kernel_library import load_kernel_library


@dataclasses.dataclass(frozen=True)
class Case:
    """A convolution: an op, its operands and its attributes."""

    op: str
    operands: tuple[Any, ...]
    attributes: dict[str, Any]

    def own(self) -> tf.Tensor:
        """What TensorFlow's own op gives."""
        names = {
            "Conv2D": ("input", "filter"),
            "DepthwiseConv2dNative": ("input", "filter"),
            "Conv2DBackpropInput": ("input_sizes", "filter", "out_backprop"),
            "DepthwiseConv2dNativeBackpropInput": ("input_sizes", "filter", "out_backprop"),
            "Conv2DBackpropFilter": ("input", "filter_sizes", "out_backprop"),
            "DepthwiseConv2dNativeBackpropFilter": ("input", "filter_sizes", "out_backprop"),
        }[self.op]
        operands = dict(zip(names, self.operands, strict=True))
        return getattr(tf.raw_ops, self.op)(**operands, **self.attributes)

    def step(self, inputs: list[Any], sizes: list[Any]) -> bytes:
        """The step of this case; its operands are appended to the lists."""
        node = node_def_pb2.NodeDef(name=f"case_{len(inputs)}", op=self.op)
        for operand in self.operands:
            is_size = isinstance(operand, list)
            chosen = sizes if is_size else inputs
            node.input.append(f"{'sizes' if is_size else 'inputs'}:{len(chosen)}")
            chosen.append(tf.constant(operand, tf.int32) if is_size else operand)
        node.attr["T"].type = self.dtype.as_datatype_enum
        for name, value in self.attributes.items():
            if isinstance(value, str):
                node.attr[name].s = value.encode()
            elif isinstance(value, float):
                node.attr[name].f = value
            elif value and isinstance(value[0], str):
                node.attr[name].list.s.extend(each.encode() for each in value)
            else:
                node.attr[name].list.i.extend(value)
        return node.SerializeToString()

    @property
    def dtype(self) -> tf.DType:
        return next(tf.as_dtype(each.dtype) for each in self.operands if hasattr(each, "dtype"))


@pytest.fixture(scope="module")
def conv_stage() -> Any:
    library = load_kernel_library()
    return tf.load_op_library(str(library.build_info.path)).tf_interop_conv_stage


def run_stage(
    conv_stage: Any, cases: list[Case], lanes: list[int] | None = None, algorithm: str = ""
) -> list[tf.Tensor]:
    """Runs cases as one stage, each on a lane of its own unless `lanes` says otherwise."""

    # In a graph: eager execution was seen to take a kernel that it had made for other steps.
    @tf.function
    def stage() -> list[tf.Tensor]:
        inputs: list[Any] = []
        sizes: list[Any] = []
        steps = [case.step(inputs, sizes) for case in cases]
        return conv_stage(
            inputs=inputs,
            sizes=sizes,
            Tout=[case.dtype for case in cases],
            steps=steps,
            step_lanes=lanes or list(range(len(cases))),
            algorithms=[algorithm] * len(cases),
        )

    return stage()


def digits(shape: list[int], dtype: tf.DType = tf.float32, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng((seed, *shape))
    return random.integers(-2, 3, shape).astype(dtype.as_numpy_dtype)


def spatial(layout: str, height: int, width: int) -> list[int]:
    return [1, height, width, 1] if layout == "NHWC" else [1, 1, height, width]


def output_size(
    image: int, filter_size: int, stride: int, dilation: int, padding: str, pads: tuple[int, int]
) -> int:
    if padding == "SAME":
        return -(-image // stride)
    before, after = pads if padding == "EXPLICIT" else (0, 0)
    return (image + before + after - (filter_size - 1) * dilation - 1) // stride + 1


def cases_of(
    layout: str, dtype: tf.DType, padding: str, stride: int, dilation: int, groups: int
) -> Iterator[Case]:
    """The six ops for one choice of parameters."""
    height, width, channels, filters = 9, 8, 4, 8
    pads = ((1, 2), (0, 3))
    out_height = output_size(height, 3, stride, dilation, padding, pads[0])
    out_width = output_size(width, 2, stride, dilation, padding, pads[1])

    def shape(h: int, w: int, c: int) -> list[int]:
        return [2, h, w, c] if layout == "NHWC" else [2, c, h, w]

    attributes: dict[str, Any] = {
        "strides": spatial(layout, stride, stride),
        "dilations": spatial(layout, dilation, dilation),
        "padding": padding,
        "data_format": layout,
    }
    if padding == "EXPLICIT":
        (top, bottom), (left, right) = pads
        flat = [0, 0, top, bottom, left, right, 0, 0]
        attributes["explicit_paddings"] = (
            flat if layout == "NHWC" else [0, 0, 0, 0, top, bottom, left, right]
        )
    image_shape = shape(height, width, channels)
    image = digits(image_shape, dtype)
    for depthwise in (False, True):
        if depthwise and groups > 1:
            continue
        filter_shape = [3, 2, channels, 2] if depthwise else [3, 2, channels // groups, filters]
        filter_ = digits(filter_shape, dtype, seed=1)
        gradient = digits(shape(out_height, out_width, filters), dtype, seed=2)
        forward, stem = (
            ("DepthwiseConv2dNative", "DepthwiseConv2dNative")
            if depthwise
            else ("Conv2D", "Conv2D")
        )
        yield Case(forward, (image, filter_), attributes)
        if depthwise and dilation > 1:
            continue  # TensorFlow's kernels ignore the dilations; the finder refuses such nodes
        yield Case(f"{stem}BackpropInput", (image_shape, filter_, gradient), attributes)
        yield Case(f"{stem}BackpropFilter", (image, filter_shape, gradient), attributes)


def matrix_of(layout: str, dtype: tf.DType, padding: str) -> list[Case]:
    """The ops over strides, dilations and groups."""
    return [
        case
        for stride, dilation, groups in itertools.product((1, 2), (1, 2), (1, 2))
        if not (stride > 1 and dilation > 1)  # TensorFlow refuses both at once in some ops
        for case in cases_of(layout, dtype, padding, stride, dilation, groups)
    ]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("padding", ["SAME", "VALID", "EXPLICIT"])
def test_gives_what_the_own_ops_give(
    conv_stage: Any, layout: str, dtype: tf.DType, padding: str
) -> None:
    cases = matrix_of(layout, dtype, padding)
    compared = 0
    for case, result in zip(cases, run_stage(conv_stage, cases), strict=True):
        try:
            own = case.own()
        except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError):
            continue  # TensorFlow has no kernel for it on this CPU: nothing to compare with
        np.testing.assert_array_equal(result, own, err_msg=f"{case.op} {case.attributes}")
        compared += 1
    assert compared >= len(cases) // 3


@pytest.mark.parametrize("algorithm", ["IM2COL_GEMM", "DIRECT"])
def test_every_pinned_host_algorithm_gives_the_same(conv_stage: Any, algorithm: str) -> None:
    cases = list(cases_of("NHWC", tf.float32, "SAME", 2, 1, 1))
    for case, result in zip(cases, run_stage(conv_stage, cases, algorithm=algorithm), strict=True):
        np.testing.assert_array_equal(result, case.own())


@pytest.mark.parametrize("activation", [None, "Relu", "Relu6", "LeakyRelu", "Elu"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16], ids=lambda dtype: dtype.name)
def test_fuses_bias_and_activation(
    conv_stage: Any, activation: str | None, dtype: tf.DType
) -> None:
    image = digits([2, 7, 7, 3], dtype)
    filter_ = digits([3, 3, 3, 5], dtype, seed=1)
    bias = digits([5], dtype, seed=2)
    fused_ops = ["BiasAdd"] + ([activation] if activation else [])
    case = Case(
        "_FusedConv2D",
        (image, filter_, bias),
        {
            "strides": [1, 1, 1, 1],
            "padding": "SAME",
            "fused_ops": fused_ops,
            "leakyrelu_alpha": 0.25,
        },
    )
    [result] = run_stage(conv_stage, [case])
    expected = tf.nn.bias_add(tf.nn.conv2d(image, filter_, 1, "SAME"), bias)
    if activation == "LeakyRelu":
        expected = tf.nn.leaky_relu(expected, 0.25)
    elif activation:
        expected = getattr(tf.nn, activation.lower())(expected)
    # Elu alone is not exact: one rounding of the exponential function on either side.
    tolerance = 0 if activation != "Elu" else 2 * np.finfo(dtype.as_numpy_dtype).eps
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def test_several_steps_of_a_lane_run_in_order(conv_stage: Any) -> None:
    cases = list(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1))
    for lanes in ([0] * 6, [0, 0, 1, 1, 2, 2]):
        for case, result in zip(cases, run_stage(conv_stage, cases, lanes), strict=True):
            np.testing.assert_array_equal(result, case.own())


def one_pixel_cases(batch: int) -> list[Case]:
    """The three kinds on images of one pixel, with a filter that is larger."""
    attributes = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    image, filter_ = digits([batch, 1, 1, 3]), digits([5, 5, 3, 4], seed=1)
    gradient = digits([batch, 1, 1, 4], seed=2)
    return [
        Case("Conv2D", (image, filter_), attributes),
        Case("Conv2DBackpropInput", ([batch, 1, 1, 3], filter_, gradient), attributes),
        Case("Conv2DBackpropFilter", (image, [5, 5, 3, 4], gradient), attributes),
    ]


def test_takes_one_pixel_images(conv_stage: Any) -> None:
    cases = one_pixel_cases(batch=2)
    for case, result in zip(cases, run_stage(conv_stage, cases), strict=True):
        np.testing.assert_array_equal(result, case.own())


def test_takes_empty_batches(conv_stage: Any) -> None:
    # Not compared: with oneDNN, TensorFlow's Conv2D gives a wrong shape here, and its
    # Conv2DBackpropInput an error.
    output, image_gradient, filter_gradient = run_stage(conv_stage, one_pixel_cases(batch=0))
    assert output.shape == [0, 1, 1, 4]
    assert image_gradient.shape == [0, 1, 1, 3]
    np.testing.assert_array_equal(filter_gradient, np.zeros([5, 5, 3, 4]))


def test_infers_shapes(conv_stage: Any) -> None:
    cases = list(cases_of("NCHW", tf.float32, "SAME", 2, 1, 1))
    inputs: list[Any] = []
    sizes: list[Any] = []
    with tf.Graph().as_default():
        steps = [case.step(inputs, sizes) for case in cases]
        batchless = tf.compat.v1.placeholder(tf.float32, [None, 4, 9, 8])
        inputs[0] = batchless
        outputs = conv_stage(
            inputs=inputs,
            sizes=sizes,
            Tout=[tf.float32] * len(cases),
            steps=steps,
            step_lanes=list(range(len(cases))),
            algorithms=[""] * len(cases),
        )
    assert outputs[0].shape.as_list() == [None, *cases[0].own().shape.as_list()[1:]]
    for output, case in list(zip(outputs, cases, strict=True))[1:]:
        assert output.shape.as_list() == case.own().shape.as_list()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithms": ["", ""]}, "one entry for each of 1 steps"),
        ({"step_lanes": [3]}, "lanes numbered 0, 1, 2"),
        ({"steps": [b"\xff"]}, "expected a serialized NodeDef as step 0"),
        ({"Tout": [tf.half]}, "expected Tout float, got half"),
        ({"lane_sm_counts": [8, 8]}, "one entry for each of 1 lanes, got 0 and 2"),
        ({"lane_priorities": [0, 0]}, "one entry for each of 1 lanes, got 2 and 0"),
        ({"lane_sm_counts": [-8]}, "SM count of at least 0, got -8 for lane 0"),
    ],
)
def test_refuses_malformed_attributes(
    conv_stage: Any, change: dict[str, Any], message: str
) -> None:
    case = Case(
        "Conv2D",
        (digits([1, 5, 5, 2]), digits([3, 3, 2, 2])),
        {"strides": [1, 1, 1, 1], "padding": "SAME"},
    )
    inputs: list[Any] = []
    arguments = {
        "steps": [case.step(inputs, [])],
        "Tout": [tf.float32],
        "step_lanes": [0],
        "algorithms": [""],
    } | change
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        tf.function(lambda: conv_stage(inputs=inputs, sizes=[], **arguments))()


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((digits([1, 5, 5, 3]), digits([3, 3, 2, 2])), "to be a multiple of the filter's"),
        ((digits([5, 5, 3]), digits([3, 3, 3, 2])), "rank 4"),
    ],
)
def test_refuses_shapes_that_do_not_fit(
    conv_stage: Any, operands: tuple[Any, ...], message: str
) -> None:
    case = Case("Conv2D", operands, {"strides": [1, 1, 1, 1], "padding": "SAME"})
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        run_stage(conv_stage, [case])


def test_an_unknown_pin_falls_back_and_is_counted(conv_stage: Any) -> None:
    case = next(iter(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1)))
    before = sum(load_kernel_library().read_counters().fallbacks.values())
    [result] = run_stage(conv_stage, [case], algorithm="eng3_k2=1")
    np.testing.assert_array_equal(result, case.own())
    counters = load_kernel_library().read_counters()
    assert sum(counters.fallbacks.values()) == before + 1
    assert any("eng3_k2=1" in reason for reason in counters.fallbacks)
