"""Stages on GPUs in functions that XLA compiles: the handler of their custom call, without a GPU.

A driver in C++ calls it as XLA does. The C++ tests build stand-ins for libcuda and libcudnn, which
compute on the host; TF_INTEROP_STAND_INS names their folder. A process of its own opens them,
because other tests must not find them. Values are small whole numbers, so sums are exact.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import pickle
import subprocess
import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from command_line import ROOT
from convolution_cases import digits
from graph_builder import set_attributes
from stage_program import Document, arguments, lane, operation, program, schedule
from tensorflow.core.framework import node_def_pb2
from unnoticed import assert_same, counted, in_threads, run_python

from tf_interop.runtime.kernel_library import load_kernel_library

v1 = tf.compat.v1

DRIVER = pathlib.Path(__file__).with_name("gpu_call_driver.cc")
INCLUDE = pathlib.Path(tf.sysconfig.get_include())
STAND_INS = pathlib.Path(os.environ.get("TF_INTEROP_STAND_INS", "")).resolve()
CUDA, CUDNN = (str(STAND_INS / f"libfake_{name}.so") for name in ("cuda", "cudnn"))
LIBRARIES = {"TF_INTEROP_LIBCUDA": CUDA, "TF_INTEROP_LIBCUDNN": CUDNN}
pytestmark = pytest.mark.skipif(
    "TF_INTEROP_STAND_INS" not in os.environ
    or not (DRIVER.exists() and (INCLUDE / "xla/ffi/ffi_structs.h").exists()),
    reason="needs the stand-ins of scripts/test.sh, gpu_call_driver.cc and TensorFlow 2.21",
)

PLAIN = {"strides": [1, 1, 1, 1], "padding": "SAME"}
FUSED = PLAIN | {"num_args": 1, "TArgs": [tf.float32], "fused_ops": ["BiasAdd", "Relu"]}
IMAGE, FILTER, GRADIENT = [2, 6, 5, 4], [3, 3, 4, 8], [2, 6, 5, 8]
SHAPES, SIZES = (IMAGE, FILTER, [1, 1, 8, 4], [4], GRADIENT), (IMAGE, FILTER)
RESULTS = (IMAGE, IMAGE, FILTER)
STAGE = program(
    [
        operation("forward", "Conv2D", ["inputs:0", "inputs:1"], **PLAIN),
        operation("fused", "_FusedConv2D", ["steps:0:0", "inputs:2", "inputs:3"], **FUSED),
        operation("image", "Conv2DBackpropInput", ["inputs:5", "inputs:1", "inputs:4"], **PLAIN),
        operation("filter", "Conv2DBackpropFilter", ["inputs:0", "inputs:6", "inputs:4"], **PLAIN),
    ],
    schedule(lane(0, 1), lane(2, 3)),
    outputs=[1, 2, 3],
)
OF_BATCH_3 = schedule(lane(0, 1), lane(2, 3), batch_size=3)
MERGED_SHAPES = (IMAGE, FILTER, FILTER)
MERGED = program(
    [operation(f"c{i}", "Conv2D", ["inputs:0", f"inputs:{i}"], **PLAIN) for i in (1, 2)],
    schedule(lane(0, 1, merged=True)),
    kept_inputs=[1, 2],
)
# What a stage is compiled with: the limit of one workspace, TF32, whether it must be deterministic,
# and the limit of all workspaces.
OPTIONS = [4 << 30, 1, 0, 4 << 30]
SCRATCH_BYTES = 8704  # a result that only the stage reads, and the workspaces of both lanes
LEAST_SCRATCH_BYTES = 3328  # with the least workspace, where lanes run one after another
NO_STOCK = "TensorFlow's own kernels cannot run in a function that XLA compiled"

# The driver's structs.
Array, Run = ctypes.c_int64 * 7, ctypes.c_int64 * 5


class Call:
    """An instance of the custom call of a stage's node, as `CallKernel` writes it."""

    def __init__(
        self, driver: ctypes.CDLL, document: Document, count: int, sizes: Any = (), **changes: Any
    ) -> None:
        names = [f"inputs:{i}" for i in range(count + len(sizes))]
        node = node_def_pb2.NodeDef(name="stage", op="TfInterop>ConvStage", input=names)
        of_op = arguments([], [], document, timed=False, kept_inputs=[])
        del of_op["inputs"], of_op["sizes"]
        of_op["Tin"] = [tf.float32.as_datatype_enum] * count
        of_op["Tout"] = [each.as_datatype_enum for each in of_op["Tout"]]
        set_attributes(node, **of_op)
        for i, each in enumerate(sizes, count):
            constant = tf.make_tensor_proto(np.array(each, np.int32))
            node.attr[f"_tf_interop_constant_{i}"].tensor.CopyFrom(constant)
        set_attributes(node, num_sizes=len(sizes), _tf_interop_in_xla=OPTIONS, **changes)
        self.driver, self.call, text = driver, ctypes.c_void_p(), node.SerializeToString().hex()
        self.message = driver.Instantiate(text.encode(), ctypes.byref(self.call)).decode()

    def __del__(self) -> None:
        self.driver.Delete(self.call)

    def __call__(
        self,
        inputs: list[np.ndarray],
        shapes: Any = RESULTS,
        limit: int = 1 << 30,
        captured: bool = False,
    ) -> types.SimpleNamespace:
        """Runs it with new memory for results; without an error the message is empty."""
        results, run = list(map(aligned, shapes)), Run(limit, captured)
        arguments: list[Any] = []
        for each in (inputs, results):
            made = [Array(one.ctypes.data, one.ndim, *one.shape) for one in each]
            arguments += [len(made), (Array * len(made))(*made)]
        message = self.driver.Execute(self.call, run, *arguments).decode()
        counts = dict(zip(("allocated", "freed", "is_early"), run[2:], strict=True))
        return types.SimpleNamespace(message=message, results=results, **counts)


def aligned(shape: Any) -> np.ndarray:
    """Memory aligned as XLA's, without numbers."""
    memory = np.full(4 * np.prod(shape) + 256, 0xFF, np.uint8)
    begin = -memory.ctypes.data % 256
    return memory[begin : len(memory) - 256 + begin].view(np.float32).reshape(shape)


def inputs_of(seed: int, shapes: Any = SHAPES) -> list[np.ndarray]:
    return [digits(shape, seed=seed) for shape in shapes]


def record(driver_path: str, outcomes_path: str) -> None:
    """Makes all calls, and writes their outcomes."""
    load_kernel_library().set_xla_calls(True)
    ones = tf.ones([2, 2, 2, 2])
    # The first compiled call registers the handlers.
    tf.function(tf.nn.depthwise_conv2d, jit_compile=True)(ones, ones, [1, 1, 1, 1], "SAME")
    driver = ctypes.CDLL(driver_path)
    driver.Instantiate.restype = driver.Execute.restype = ctypes.c_char_p
    stage = Call(driver, STAGE, 5, SIZES)
    with counted() as of_stage:
        in_turn = [stage(inputs_of(seed)) for seed in (0, 1)]
    together = in_threads(lambda seed: [stage(inputs_of(seed)) for _ in range(10)], (2, 3))

    merged = Call(driver, MERGED, 3, timed=True)
    inputs, merged_in_turn = inputs_of(4, MERGED_SHAPES), []
    with counted() as of_merged:
        for seed in (4, 5):
            for each in inputs:  # in the same memory
                each[...] = digits(each.shape, seed=seed)
            merged_in_turn.append(merged(inputs, [GRADIENT, GRADIENT]))

    with_scratch = Call(driver, STAGE, 5, SIZES, _tf_interop_has_scratch=True)
    shapes = (*RESULTS, [SCRATCH_BYTES // 4])
    uncaptured = [with_scratch(inputs_of(7), shapes) for _ in range(3)]
    with counted() as of_captured:
        captured = [with_scratch(inputs_of(7), shapes, captured=True)]
        captured += in_threads(
            lambda seed: with_scratch(inputs_of(seed), shapes, captured=True), (8, 9)
        )
    captured += [
        with_scratch(inputs_of(10), (*RESULTS, [count]), captured=True)
        for count in (1, LEAST_SCRATCH_BYTES // 4)
    ]
    load_kernel_library().set_workspace_limit(0)  # after the function was compiled
    captured += [with_scratch(inputs_of(10), shapes, captured=True)]
    load_kernel_library().set_workspace_limit(None)

    no_program = Call(driver, STAGE, 5, SIZES, schedules="{")
    no_sizes = Call(driver, STAGE, 5, SIZES, _tf_interop_constant_6="")
    unplanned = Call(driver, STAGE | {"schedules": [OF_BATCH_3]}, 5, SIZES)
    inputs = inputs_of(6)
    driver.SetFailure(1)
    failures = [[stage(inputs).message, "EXECUTION_FAILED", NO_STOCK]]
    driver.SetFailure(0)
    after = stage(inputs)
    failures += [
        [stage(inputs, limit=0).message, "OOM when allocating tensor with shape[2,6,5,8]"],
        [stage(inputs[:4]).message, "Expected 7 inputs."],
        [stage(inputs, [IMAGE, IMAGE, IMAGE]).message, "Expected a result of shape [2,6,5,4] from"],
        [unplanned(inputs).message, NO_STOCK, "batch size 2 is not in the plan (3)"],
        [no_program(inputs).message, "ConvStage schedules: expected a JSON document"],
        [no_sizes.message, "Expected a tensor for input 6."],
    ]
    outcomes = types.SimpleNamespace(
        in_turn=in_turn,
        together=together,
        of_stage=of_stage,
        merged_in_turn=merged_in_turn,
        of_merged=of_merged,
        failures=failures,
        after=after,
        uncaptured=uncaptured,
        captured=captured,
        of_captured=of_captured,
        program=lowered(STAGE, SHAPES, SIZES),
        long_ones=[one_convolution(1), one_convolution(2), one_convolution(2, "FFT")],
    )
    pathlib.Path(outcomes_path).write_bytes(pickle.dumps(outcomes))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("gpu_call")
    driver, file = folder / "libdriver.so", folder / "outcomes"
    flags = [
        *("-shared", "-fPIC", "-O1", "-DNDEBUG", "-mavx2", "-mfma", "-w", f"-I{ROOT}"),
        *(f"-I{INCLUDE}/third_party/gpus/{name}/include" for name in ("cuda", "cudnn")),
        *(f"-I{ROOT}/cc_kernels/missing_headers", *tf.sysconfig.get_compile_flags()),
        *(CUDA, CUDNN, f"-Wl,-rpath,{STAND_INS}"),
        *(*tf.sysconfig.get_link_flags(), "-l:libtensorflow_cc.so.2"),
    ]
    subprocess.run(["g++", DRIVER, "-o", driver, *flags], check=True)
    text = f"import gpu_call_test; gpu_call_test.record({str(driver)!r}, {str(file)!r})"
    run_python(text, folder=DRIVER.parent, **LIBRARIES)
    return pickle.loads(file.read_bytes())


def assert_ran(outcome: types.SimpleNamespace, expected: list[tf.Tensor]) -> None:
    assert outcome.message == ""
    assert_same(outcome.results, expected)
    assert outcome.is_early  # enqueued its work, and did not wait
    # A result that only the stage reads and joined filters are in XLA's temporary memory.
    assert outcome.freed == outcome.allocated > 0


def stage_results(seed: int) -> list[tf.Tensor]:
    image, filters, second, bias, gradient = inputs_of(seed)
    forward = tf.nn.conv2d(image, filters, 1, "SAME")
    return [
        tf.nn.relu(tf.nn.conv2d(forward, second, 1, "SAME") + bias),
        v1.nn.conv2d_backprop_input(IMAGE, filters, gradient, **PLAIN),
        v1.nn.conv2d_backprop_filter(image, FILTER, gradient, **PLAIN),
    ]


def test_a_stage_on_two_lanes_writes_into_xlas_memory_from_two_threads(outcomes: Any) -> None:
    in_turn, counts = outcomes.in_turn, outcomes.of_stage
    for seed, runs in enumerate([in_turn[:1], in_turn[1:], *outcomes.together]):
        expected = stage_results(seed)
        for outcome in runs:
            assert_ran(outcome, expected)
    assert (counts.stages_run, counts.fallbacks) == (2, {})


def test_neither_keeps_filters_nor_times_ways(outcomes: Any) -> None:
    """XLA may write to a filter's memory after the call. Reading the time would wait."""
    counts = outcomes.of_merged
    for seed, outcome in zip((4, 5), outcomes.merged_in_turn, strict=True):
        image, *filters = inputs_of(seed, MERGED_SHAPES)
        assert_ran(outcome, [tf.nn.conv2d(image, each, 1, "SAME") for each in filters])
    assert (counts.filters_transformed, counts.fallbacks) == (0, {})


def test_a_failure_is_an_error_that_names_its_cause(outcomes: Any) -> None:
    for message, *words in outcomes.failures:
        for word in ("error: INTERNAL: tf_interop: ", *words):
            assert word in message
    assert_ran(outcomes.after, stage_results(6))


def lowered(document: Document, shapes: Any, sizes: Any) -> str:
    """XLA's program of a stage for a GPU, which XLA could not compile without one."""
    path = load_kernel_library().build_info.path
    stage = tf.load_op_library(str(path)).tf_interop_conv_stage

    def call(*inputs: tf.Tensor) -> list[tf.Tensor]:
        return stage(**arguments(inputs, [*map(list, sizes)], document))

    function = tf.function(call, jit_compile=True, autograph=False)
    specs = [tf.TensorSpec(shape) for shape in shapes]
    program = function.experimental_get_compiler_ir(*specs)(stage="hlo", platform_name="GPU")
    return str(program)


def one_convolution(width: int, algorithm: str | None = None) -> str:
    """The program of one with `width` times 22.4 billion multiplications, on 132 SMs."""
    shapes = [132, 100, 100, 16], [10, width, 16, 106]
    document = program(
        [operation("long", "Conv2D", ["inputs:0", "inputs:1"], **PLAIN)],
        schedule(lane((0, algorithm))),
    )
    return lowered(document, shapes, [])


def test_a_long_convolution_without_an_algorithm_stays_xlas(outcomes: Any) -> None:
    is_call = ['custom_call_target="tf_interop_kernel"' in each for each in outcomes.long_ones]
    assert is_call == [True, False, True]


def test_xla_lowers_a_stage_for_a_gpu_to_one_call(outcomes: Any) -> None:
    [call] = [
        line
        for line in outcomes.program.splitlines()
        if 'custom_call_target="tf_interop_kernel"' in line
    ]
    for shape in RESULTS:
        assert f"f32[{','.join(map(str, shape))}]" in call.partition("custom-call(")[0]
    assert f"u8[{SCRATCH_BYTES}]" in call.partition("custom-call(")[0]
    assert "api_version=API_VERSION_TYPED_FFI" in call


def test_a_captured_call_allocates_nothing_and_its_graph_computes_again(outcomes: Any) -> None:
    """As XLA captures it, after calls that it did not capture, and beside one on another thread."""
    *captured, without_memory, short, after = outcomes.captured
    runs = (*outcomes.uncaptured, *captured, short, after)
    # One of the last has less memory than planned, and so a lesser stage.
    for seed, outcome in zip((7, 7, 7, 7, 8, 9, 10, 10), runs, strict=True):
        assert outcome.message == ""
        assert_same(outcome.results[:-1], stage_results(seed))
        assert outcome.allocated == 0
    assert "OOM when allocating" in without_memory.message
    assert outcomes.of_captured.fallbacks == {}
