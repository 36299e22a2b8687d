"""Measuring through the core's C interface, on the host backend and without TensorFlow."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionKind
from tf_interop.errors import LibraryError
from tf_interop.measure.backend import (
    AlgorithmList,
    AlgorithmScope,
    DeviceDescription,
    MeasureOptions,
    ResolvedAlgorithm,
    StageStep,
)
from tf_interop.measure.core_arguments import to_convolution_struct
from tf_interop.measure.core_backend import MeasuringBackend
from tf_interop.measure.core_interface import KernelStruct
from tf_interop.measure.core_library import load_core_library
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    FailureKind,
    KernelMeasurement,
    MeasuredConvolution,
    StageFailure,
    StageMeasurement,
)
from tf_interop.profile.types import SmLimits

FEW_RUNS = MeasureOptions(warmup_runs=1, repetitions=3, cache_bytes=0)

FORWARD = ConvolutionConfiguration(
    op="Conv2D",
    kind=ConvolutionKind.FORWARD,
    depthwise=False,
    dtype="float32",
    layout="NHWC",
    image_shape=(2, 9, 7, 4),
    filter_shape=(3, 3, 4, 6),
    output_shape=(2, 5, 4, 6),
    strides=(2, 2),
    dilations=(1, 1),
    padding="SAME",
    group_count=1,
)
HALF = dataclasses.replace(FORWARD, dtype="float16")
NCHW = dataclasses.replace(
    FORWARD, layout="NCHW", image_shape=(2, 4, 9, 7), output_shape=(2, 6, 5, 4)
)
VALID = dataclasses.replace(FORWARD, padding="VALID", output_shape=(2, 4, 3, 6))
EXPLICIT = dataclasses.replace(
    FORWARD, padding="EXPLICIT", explicit_paddings=(2, 0, 3, 1), output_shape=(2, 5, 5, 6)
)
DILATED = dataclasses.replace(FORWARD, strides=(1, 1), dilations=(2, 1), output_shape=(2, 9, 7, 6))
GROUPED = dataclasses.replace(FORWARD, filter_shape=(3, 3, 2, 6), group_count=2)
DEPTHWISE = dataclasses.replace(
    FORWARD,
    op="DepthwiseConv2dNative",
    depthwise=True,
    filter_shape=(3, 3, 4, 2),
    output_shape=(2, 5, 4, 8),
    group_count=4,
)
FUSED = dataclasses.replace(FORWARD, op="_FusedConv2D", fused_ops=("BiasAdd", "Relu6"))
LEAKY = dataclasses.replace(FUSED, fused_ops=("BiasAdd", "LeakyRelu"), leaky_relu_alpha=0.3)
BACKWARD_INPUT = dataclasses.replace(
    FORWARD, op="Conv2DBackpropInput", kind=ConvolutionKind.BACKWARD_INPUT
)
BACKWARD_FILTER = dataclasses.replace(
    FORWARD, op="Conv2DBackpropFilter", kind=ConvolutionKind.BACKWARD_FILTER
)
VOLUME = dataclasses.replace(
    FORWARD,
    op="Conv3D",
    layout="NDHWC",
    image_shape=(2, 6, 9, 7, 4),
    filter_shape=(2, 3, 3, 4, 6),
    output_shape=(2, 2, 5, 7, 6),
    strides=(3, 2, 1),
    dilations=(1, 1, 1),
)
CHANNELS_FIRST_VOLUME = dataclasses.replace(
    VOLUME,
    layout="NCDHW",
    image_shape=(2, 4, 6, 9, 7),
    output_shape=(2, 6, 2, 4, 5),
    padding="VALID",
    dilations=(2, 1, 1),
)
VOLUME_GRADIENT = dataclasses.replace(
    VOLUME,
    op="Conv3DBackpropFilterV2",
    kind=ConvolutionKind.BACKWARD_FILTER,
    dtype="float64",
)

CPU_INFO = pathlib.Path("/proc/cpuinfo")

# 2 images of 9 x 7 x 4, 3 x 3 x 4 x 6 filters, 2 outputs of 5 x 4 x 6.
IMAGE_ELEMENTS, FILTER_ELEMENTS, OUTPUT_ELEMENTS = 504, 216, 240
MULTIPLY_ADDS = 2 * 5 * 4 * 6 * 3 * 3 * 4


@pytest.fixture(name="host")
def fixture_host() -> MeasuringBackend:
    return load_core_library().open_backend("host")


def _measure(
    host: MeasuringBackend,
    configuration: ConvolutionConfiguration,
    algorithm: str | None = None,
    options: MeasureOptions = FEW_RUNS,
) -> AlgorithmMeasurement:
    result = host.measure_algorithm(configuration, algorithm, options)
    assert isinstance(result, AlgorithmMeasurement), result
    return result


def _measure_stage(
    host: MeasuringBackend,
    *steps: StageStep,
    sequential_algorithms: Sequence[str | None] = (),
    priorities: Sequence[int] = (),
) -> StageMeasurement:
    result = host.measure_stage(
        steps, FEW_RUNS, sequential_algorithms=sequential_algorithms, priorities=priorities
    )
    assert isinstance(result, StageMeasurement), result
    return result


def test_describes_the_cpu(host: MeasuringBackend) -> None:
    described = host.describe()
    assert described.backend == "host"
    assert described.sm_count == len(os.sched_getaffinity(0))
    assert described.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    models = re.findall(r"^model name\s*: (.*)$", CPU_INFO.read_text(), re.MULTILINE)
    assert described.name == (models[0] if models else "CPU")
    assert described.sm_limits is None
    assert (described.compute_capability, described.cudnn, described.cuda) == ("", "", "")


@pytest.mark.parametrize("scope", AlgorithmScope)
def test_lists_the_algorithms_of_the_host(host: MeasuringBackend, scope: AlgorithmScope) -> None:
    listed = host.list_algorithms(FORWARD, scope, allow_tf32=False)
    assert listed == AlgorithmList(("IM2COL_GEMM", "EIGEN_SPATIAL", "DIRECT"), None)
    listed = host.list_algorithms(BACKWARD_FILTER, scope, allow_tf32=False)
    assert listed == AlgorithmList(("IM2COL_GEMM", "DIRECT"), None)


@pytest.mark.parametrize("algorithm", ["IM2COL_GEMM", "DIRECT"])
@pytest.mark.parametrize(
    "configuration",
    [
        pytest.param(FORWARD, id="forward"),
        pytest.param(NCHW, id="nchw"),
        pytest.param(VALID, id="valid"),
        pytest.param(EXPLICIT, id="explicit"),
        pytest.param(DILATED, id="dilated"),
        pytest.param(GROUPED, id="grouped"),
        pytest.param(DEPTHWISE, id="depthwise"),
        pytest.param(FUSED, id="fused"),
        pytest.param(LEAKY, id="leaky"),
        pytest.param(BACKWARD_INPUT, id="backward_input"),
        pytest.param(BACKWARD_FILTER, id="backward_filter"),
        pytest.param(dataclasses.replace(FORWARD, dtype="float64"), id="double"),
        pytest.param(VOLUME, id="volume"),
        pytest.param(CHANNELS_FIRST_VOLUME, id="channels_first_volume"),
        pytest.param(VOLUME_GRADIENT, id="volume_gradient"),
    ],
)
def test_measures(
    host: MeasuringBackend, configuration: ConvolutionConfiguration, algorithm: str
) -> None:
    result = _measure(host, configuration, algorithm)
    assert result.configuration is configuration
    assert result.algorithm == algorithm
    assert result.latency_us > 0
    assert result.spread_us >= 0
    assert result.relative_error is not None
    assert result.relative_error < 1e-5
    assert result.deterministic
    assert not result.tf32
    assert result.kernels == ()


def test_the_error_of_half_is_its_rounding(host: MeasuringBackend) -> None:
    result = _measure(host, HALF)
    assert result.relative_error is not None
    assert 1e-6 < result.relative_error < 1e-3


@pytest.mark.parametrize(
    ("configuration", "elements"),
    [
        (FORWARD, 0),
        (NCHW, IMAGE_ELEMENTS + OUTPUT_ELEMENTS),
        (HALF, IMAGE_ELEMENTS + FILTER_ELEMENTS + OUTPUT_ELEMENTS),
    ],
    ids=["forward", "nchw", "half"],
)
def test_gives_the_workspace(
    host: MeasuringBackend, configuration: ConvolutionConfiguration, elements: int
) -> None:
    assert _measure(host, configuration, "DIRECT").workspace_bytes == 4 * elements


def test_names_what_the_backend_chose(host: MeasuringBackend) -> None:
    assert _measure(host, FORWARD).algorithm == "IM2COL_GEMM"


def test_resolves_a_name_without_running_it(host: MeasuringBackend) -> None:
    for asked, runs in (("", "IM2COL_GEMM"), ("DIRECT", "DIRECT")):
        assert host.resolve_algorithm(FORWARD, asked, FEW_RUNS) == ResolvedAlgorithm(runs, False)
    asked = "eng1"
    assert host.resolve_algorithm(FORWARD, asked, FEW_RUNS) == host.measure_algorithm(
        FORWARD, asked, FEW_RUNS
    )
    with pytest.raises(ValueError, match="repetition"):
        host.resolve_algorithm(FORWARD, "DIRECT", MeasureOptions(repetitions=0))


def test_states_what_measured(host: MeasuringBackend) -> None:
    source = _measure(host, FORWARD).source
    assert source.startswith("tf_interop core, backend host: ")
    assert "repetitions=3" in source
    assert "cache_bytes=0" in source


def test_measures_no_error_over_the_limit(host: MeasuringBackend) -> None:
    at = dataclasses.replace(FEW_RUNS, reference_limit_multiply_adds=MULTIPLY_ADDS)
    over = dataclasses.replace(FEW_RUNS, reference_limit_multiply_adds=MULTIPLY_ADDS - 1)
    assert _measure(host, FORWARD, options=at).relative_error is not None
    assert _measure(host, FORWARD, options=over).relative_error is None


@pytest.mark.parametrize(
    ("configuration", "algorithm", "options", "reason"),
    [
        pytest.param(FORWARD, "FFT", FEW_RUNS, "got FFT", id="unknown_algorithm"),
        pytest.param(
            HALF,
            "DIRECT",
            dataclasses.replace(FEW_RUNS, workspace_limit_bytes=64),
            "the limit is 64",
            id="workspace",
        ),
    ],
)
def test_a_failure_has_its_reason(
    host: MeasuringBackend,
    configuration: ConvolutionConfiguration,
    algorithm: str,
    options: MeasureOptions,
    reason: str,
) -> None:
    options = dataclasses.replace(options, allow_tf32=False)
    result = host.measure_algorithm(configuration, algorithm, options)
    assert isinstance(result, AlgorithmFailure)
    assert reason in result.reason
    assert result.kind is FailureKind.UNSUPPORTED
    assert (result.configuration, result.algorithm) == (configuration, algorithm)
    assert not result.tf32
    assert "backend host" in result.source


@pytest.mark.parametrize(
    ("configuration", "options", "reason"),
    [
        pytest.param(
            FORWARD,
            dataclasses.replace(FEW_RUNS, repetitions=0),
            "1 to 1000000 repetitions, got 1 and 0",
            id="no_repetition",
        ),
        pytest.param(
            dataclasses.replace(FORWARD, output_shape=(2, 5, 5, 6)),
            FEW_RUNS,
            "Expected output width 4",
            id="wrong_output",
        ),
        pytest.param(
            dataclasses.replace(FORWARD, image_shape=(0, 9, 7, 4), output_shape=(0, 5, 4, 6)),
            FEW_RUNS,
            "something to compute",
            id="empty_batch",
        ),
        pytest.param(
            dataclasses.replace(
                FORWARD,
                image_shape=(2**30, 2**30, 2**2, 1),
                filter_shape=(1, 1, 1, 1),
                output_shape=(2**30, 2**30, 2**2, 1),
                strides=(1, 1),
            ),
            FEW_RUNS,
            "an image of at most",
            id="bytes_beyond_64_bits",
        ),
    ],
)
def test_refuses_what_makes_no_sense(
    host: MeasuringBackend,
    configuration: ConvolutionConfiguration,
    options: MeasureOptions,
    reason: str,
) -> None:
    with pytest.raises(ValueError, match=reason):
        host.measure_algorithm(configuration, None, options)


def test_lists_nothing_for_a_convolution_that_makes_no_sense(host: MeasuringBackend) -> None:
    with pytest.raises(ValueError, match="Expected output width 4"):
        host.list_algorithms(dataclasses.replace(FORWARD, output_shape=(2, 5, 5, 6)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image_shape": (None, 9, 7, 4)}, "image's shape known"),
        ({"filter_shape": None}, "filter's shape known"),
        ({"dtype": "complex64"}, "got complex64"),
        ({"strides": (1, 1, 1)}, r"Expected 2 strides in layout NHWC, got \(1, 1, 1\)"),
        ({"layout": "NDHWC"}, "image's shape known, of rank 5"),
        ({"layout": "NCHW_VECT_C"}, "got NCHW_VECT_C"),
        ({"padding": "REFLECT"}, "got 'REFLECT'"),
        ({"fused_ops": ("Relu",)}, "fused_ops"),
        ({"filter_shape": (3, 3, 3, 6)}, "Expected a filter for 4 image and 6 output channels"),
        ({"filter_shape": (3, 3, 4, 5)}, "Expected a filter for 4 image and 6 output channels"),
        ({"image_shape": (2**64 + 2, 9, 7, 4)}, f"batch .* got {2**64 + 2}"),
        ({"strides": (2**64 + 2, 2)}, f"stride_height .* got {2**64 + 2}"),
    ],
)
def test_refuses_what_the_core_has_no_word_for(
    host: MeasuringBackend, change: dict[str, object], reason: str
) -> None:
    configuration = dataclasses.replace(FORWARD, **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=reason):
        host.measure_algorithm(configuration, None, FEW_RUNS)
    with pytest.raises(ValueError, match=reason):
        host.list_algorithms(configuration)


def test_a_stage_has_its_figures(host: MeasuringBackend) -> None:
    result = _measure_stage(
        host,
        StageStep(HALF, 0, "DIRECT"),
        StageStep(NCHW, 1, "DIRECT"),
        StageStep(FUSED, 1),
        sequential_algorithms=["IM2COL_GEMM", None, "DIRECT"],
        priorities=[0, -1],
    )
    assert result.concurrent_us > 0
    assert result.same_sequential_us > 0
    assert result.sequential_us > 0
    assert result.spread_us >= 0
    assert result.convolutions == (
        MeasuredConvolution(HALF, "DIRECT"),
        MeasuredConvolution(NCHW, "DIRECT"),
        MeasuredConvolution(FUSED, "IM2COL_GEMM"),
    )
    assert result.sequential_algorithms == ("IM2COL_GEMM", "IM2COL_GEMM", "DIRECT")
    assert result.lanes == (0, 1, 1)
    assert result.sm_counts == ()
    assert result.priorities == (0, -1)
    assert result.tf32
    # The lanes' largest, added.
    of_lane_1 = max(
        _measure(host, NCHW, "DIRECT").workspace_bytes, _measure(host, FUSED).workspace_bytes
    )
    of_lane_0 = _measure(host, HALF, "DIRECT").workspace_bytes
    assert result.workspace_bytes == of_lane_0 + of_lane_1


def test_a_sequence_that_is_not_asked_for_is_the_stages_own(host: MeasuringBackend) -> None:
    result = _measure_stage(host, StageStep(FORWARD, 0, "DIRECT"), StageStep(NCHW, 1))
    assert result.sequential_algorithms == ("DIRECT", "IM2COL_GEMM")
    assert result.sequential_us == result.same_sequential_us


@pytest.mark.parametrize(
    ("algorithm", "sequential_algorithms", "step"),
    [("FFT", [], 1), ("DIRECT", ["DIRECT", "FFT"], 1), ("DIRECT", ["FFT", "DIRECT"], 0)],
)
def test_a_stage_without_what_it_pins_is_a_failure(
    host: MeasuringBackend, algorithm: str, sequential_algorithms: list[str], step: int
) -> None:
    steps = [StageStep(FORWARD, 0, "DIRECT"), StageStep(NCHW, 1, algorithm)]
    result = host.measure_stage(
        steps,
        FEW_RUNS,
        sequential_algorithms=sequential_algorithms,
        sm_counts=[0, 0],
        priorities=[0, -1],
    )
    assert isinstance(result, StageFailure)
    assert result.kind is FailureKind.UNSUPPORTED
    assert f"'step {step}' with algorithm FFT" in result.reason
    assert result.convolutions == (
        MeasuredConvolution(FORWARD, "DIRECT"),
        MeasuredConvolution(NCHW, algorithm),
    )
    assert (result.lanes, result.sm_counts, result.priorities) == ((0, 1), (0, 0), (0, -1))


def test_a_merged_lane_is_measured_beside_its_sequence(host: MeasuringBackend) -> None:
    narrow = dataclasses.replace(FORWARD, filter_shape=(3, 3, 4, 2), output_shape=(2, 5, 4, 2))
    steps = [StageStep(FORWARD, 0, "DIRECT"), StageStep(narrow, 0, "DIRECT"), StageStep(NCHW, 1)]
    result = host.measure_stage(steps, FEW_RUNS, merged=[True, False])
    assert isinstance(result, StageMeasurement), result
    assert result.merged == (True, False)
    assert result.convolutions[1] == MeasuredConvolution(narrow, "DIRECT")
    assert result.sequential_algorithms == ("DIRECT", "DIRECT", "IM2COL_GEMM")
    unmerged = host.measure_stage(steps, FEW_RUNS, merged=[False, False])
    assert isinstance(unmerged, StageMeasurement)
    assert unmerged.merged == ()
    # What is joined takes workspace: filters and outputs, each on 256 bytes.
    wide = dataclasses.replace(FORWARD, filter_shape=(3, 3, 4, 8), output_shape=(2, 5, 4, 8))
    joined = 1280 + 1280  # 3 x 3 x 4 x 8 and 2 x 5 x 4 x 8 floats
    of_lane_1 = _measure(host, NCHW).workspace_bytes
    of_wide = _measure(host, wide, "DIRECT").workspace_bytes
    assert result.workspace_bytes == joined + of_wide + of_lane_1


def test_a_stage_of_one_merged_lane_is_measured(host: MeasuringBackend) -> None:
    steps = [StageStep(FUSED, 0), StageStep(FUSED, 0)]
    result = host.measure_stage(steps, FEW_RUNS, merged=[True])
    assert isinstance(result, StageMeasurement), result
    assert result.merged == (True,)


def test_a_lane_that_cannot_be_merged_is_a_failure(host: MeasuringBackend) -> None:
    steps = [StageStep(FORWARD, 0), StageStep(VALID, 0)]
    result = host.measure_stage(steps, FEW_RUNS, merged=[True])
    assert isinstance(result, StageFailure)
    assert result.kind is FailureKind.UNSUPPORTED
    assert "differ in output channels only" in result.reason
    assert result.merged == (True,)


@pytest.mark.parametrize(
    ("lanes", "arguments", "reason"),
    [
        ([], {}, "a stage with a convolution"),
        ([0, 2], {}, "Expected lanes numbered"),
        ([0, 2**32], {}, f"Expected lanes numbered .* got {2**32}"),
        ([0, -(2**32)], {}, f"Expected lanes numbered .* got -{2**32}"),
        ([0, 2**64], {}, f"lane .* got {2**64}"),
        ([0, 1], {"priorities": [0, 2**32]}, f"priority .* got {2**32}"),
        ([0, 1], {"sm_counts": [2**32 + 4, 0]}, f"sm_count .* got {2**32 + 4}"),
        ([0, 1], {"sequential_algorithms": ["DIRECT"]}, "none or all of 2 steps, got 1"),
        ([0, 1], {"priorities": [0]}, "none or all of 2 lanes, got 1"),
        ([0, 1], {"sm_counts": [4, 4, 4]}, "none or all of 2 lanes, got 3"),
        ([0, 1], {"merged": [True]}, "none or all of 2 lanes, got 1"),
        ([0, 1], {"merged": [1, 2**32]}, f"merged .* got {2**32}"),
        (
            [0, 1],
            {"sm_counts": [4, 4], "priorities": [0]},
            "for as many lanes each, got 2, 1 and 0",
        ),
    ],
)
def test_refuses_a_stage_that_makes_no_sense(
    host: MeasuringBackend, lanes: list[int], arguments: dict[str, list[Any]], reason: str
) -> None:
    steps = [StageStep(FORWARD, lane) for lane in lanes]
    with pytest.raises(ValueError, match=reason):
        host.measure_stage(steps, FEW_RUNS, **arguments)


class _StubFunctions:
    """Stands in for the loaded library, with what a GPU might give."""

    def __init__(self) -> None:
        self.code = 0
        self.error = b"made by the test"
        self.relative_error = 0.001
        self.kernels: list[tuple[bytes, float]] = []
        self.trace_error = b""
        self.sm_counts: list[int] = []

    def TfiCoreDescribe(self, _device: Any, description: Any, *sinks: Any) -> int:  # noqa: N802
        if self.code:
            _give(sinks[4], self.error)
            return self.code
        fields = description._obj
        fields.memory_bytes, fields.sm_count = 80, 132
        fields.sm_registers, fields.sm_shared_memory_bytes = 65536, 233472
        fields.sm_threads, fields.sm_blocks = 2048, 32
        fields.sm_reserved_shared_memory_bytes = 1024
        for sink, text in zip(sinks, [b"Invented GPU", b"9.0", b"9.10.2", b"12.8"], strict=False):
            _give(sink, text)
        return 0

    def TfiCoreListAlgorithms(self, *arguments: Any) -> int:  # noqa: N802
        self.scope, self.allow_tf32 = arguments[2:4]
        _give(arguments[5], self.error)
        return self.code

    def TfiCoreMeasureConvolution(  # noqa: N802
        self,
        _device: Any,
        convolution: Any,
        _algorithm: bytes,
        options: Any,
        measurement: Any,
        ran: Any,
        kernel: Any,
        trace_error: Any,
        error: Any,
    ) -> int:
        if self.code:
            _give(error, self.error)
            return self.code
        self.dtype = convolution._obj.dtype
        self.allow_tf32 = options._obj.allow_tf32
        self.trace_kernels = options._obj.trace_kernels
        measured = measurement._obj
        measured.median_us = 5.0
        measured.relative_error = self.relative_error
        measured.reduces_precision = 1
        _give(ran, b"eng1")
        for name, elapsed_us in self.kernels:
            given = KernelStruct(name, (1, 2, 3), (32, 1, 1), 168, 49152, elapsed_us)
            kernel(ctypes.pointer(given))
        if self.trace_error:
            _give(trace_error, self.trace_error)
        return 0

    def TfiCoreMeasureStage(  # noqa: N802
        self,
        _device: Any,
        stage: Any,
        _options: Any,
        measurement: Any,
        sm_counts: Any,
        sm_count_count: Any,
        ran: Any,
        ran_in_sequence: Any,
        error: Any,
    ) -> int:
        if self.code:
            _give(error, self.error)
            return self.code
        given = stage._obj
        self.lanes = [
            (lane.priority, lane.sm_count, bool(lane.merged))
            for lane in given.lanes[: given.lane_count]
        ]
        measured = measurement._obj
        measured.concurrent_us, measured.concurrent_spread_us = 10, 1
        measured.same_sequential_us, measured.same_sequential_spread_us = 20, 2
        measured.sequential_us, measured.sequential_spread_us = 30, 4
        for place, count in enumerate(self.sm_counts):
            sm_counts[place] = count
        sm_count_count._obj.value = len(self.sm_counts)
        for _ in range(given.step_count):
            _give(ran, b"eng1")
            _give(ran_in_sequence, b"eng2")
        return 0


def _give(sink: Any, text: bytes) -> None:
    buffer = ctypes.create_string_buffer(text)
    sink(ctypes.addressof(buffer), len(text))


@pytest.fixture(name="stub")
def fixture_stub() -> _StubFunctions:
    return _StubFunctions()


@pytest.fixture(name="gpu")
def fixture_gpu(stub: _StubFunctions) -> MeasuringBackend:
    return MeasuringBackend(cast(ctypes.CDLL, stub), "cudnn", ctypes.c_void_p())


def test_describes_a_gpu(gpu: MeasuringBackend) -> None:
    assert gpu.describe() == DeviceDescription(
        backend="cudnn",
        name="Invented GPU",
        compute_capability="9.0",
        sm_count=132,
        memory_bytes=80,
        sm_limits=SmLimits(65536, 233472, 2048, 32, 1024),
        cudnn="9.10.2",
        cuda="12.8",
    )


def test_says_why_a_gpu_cannot_be_described(gpu: MeasuringBackend, stub: _StubFunctions) -> None:
    stub.code = 5
    with pytest.raises(LibraryError, match="backend 'cudnn': made by the test"):
        gpu.describe()


def test_no_algorithms_have_their_reason(gpu: MeasuringBackend, stub: _StubFunctions) -> None:
    stub.code = 2
    listed = gpu.list_algorithms(FORWARD, AlgorithmScope.KNOBS, allow_tf32=False)
    assert listed == AlgorithmList((), "made by the test")
    assert (stub.scope, stub.allow_tf32) == (2, False)


def test_kernels_have_their_share_of_the_time(gpu: MeasuringBackend, stub: _StubFunctions) -> None:
    stub.kernels = [(b"transform", 1.0), (b"gemm", 3.0)]
    result = _measure(gpu, FORWARD)
    assert result.kernels == (
        KernelMeasurement("transform", (1, 2, 3), (32, 1, 1), 168, 49152, 0.25),
        KernelMeasurement("gemm", (1, 2, 3), (32, 1, 1), 168, 49152, 0.75),
    )
    assert result.tf32
    assert "not traced" not in result.source
    assert (stub.allow_tf32, stub.trace_kernels) == (1, 1)


def test_the_source_says_why_kernels_are_missing(
    gpu: MeasuringBackend, stub: _StubFunctions
) -> None:
    stub.trace_error = b"another tool holds CUPTI"
    options = dataclasses.replace(FEW_RUNS, allow_tf32=False, trace_kernels=False)
    result = _measure(gpu, FORWARD, options=options)
    assert result.kernels == ()
    assert result.source.endswith(", kernels not traced: another tool holds CUPTI")
    assert (stub.allow_tf32, stub.trace_kernels) == (0, 0)


def test_a_volume_reaches_the_core_field_by_field() -> None:
    struct = to_convolution_struct(CHANNELS_FIRST_VOLUME)
    got = {name: getattr(struct, name) for name, _ in struct._fields_}
    assert got == {
        "kind": 0,
        "dtype": 0,
        "layout": 1,
        "activation": 0,
        "has_bias": 0,
        "leaky_relu_alpha": 0.0,
        "spatial_rank": 3,
        "image_depth": 6,
        "filter_depth": 2,
        "output_depth": 2,
        "stride_depth": 3,
        "dilation_depth": 2,
        "pad_front": 0,
        "pad_back": 0,
        "batch": 2,
        "image_height": 9,
        "image_width": 7,
        "image_channels": 4,
        "filter_height": 3,
        "filter_width": 3,
        "output_height": 4,
        "output_width": 5,
        "output_channels": 6,
        "stride_height": 2,
        "stride_width": 1,
        "dilation_height": 1,
        "dilation_width": 1,
        "pad_top": 0,
        "pad_bottom": 0,
        "pad_left": 0,
        "pad_right": 0,
        "group_count": 1,
    }
    struct = to_convolution_struct(VOLUME)
    assert (struct.pad_front, struct.pad_back) == (0, 0)
    wider = dataclasses.replace(VOLUME, strides=(1, 2, 1), output_shape=(2, 6, 5, 7, 6))
    struct = to_convolution_struct(wider)
    assert (struct.pad_front, struct.pad_back) == (0, 1)
    assert (struct.pad_top, struct.pad_bottom, struct.pad_left, struct.pad_right) == (1, 1, 1, 1)


def test_bfloat16_has_its_number(gpu: MeasuringBackend, stub: _StubFunctions) -> None:
    _measure(gpu, dataclasses.replace(FORWARD, dtype="bfloat16"))
    assert stub.dtype == 2


@pytest.mark.parametrize(
    ("relative_error", "reason"),
    [(math.inf, "not finite or were not written"), (1.25, "at most 0.1 .* got 1.25")],
)
def test_a_wrong_result_is_a_failure(
    gpu: MeasuringBackend, stub: _StubFunctions, relative_error: float, reason: str
) -> None:
    stub.relative_error = relative_error
    result = gpu.measure_algorithm(FORWARD, None, FEW_RUNS)
    assert isinstance(result, AlgorithmFailure)
    assert result.kind is FailureKind.WRONG_RESULT
    assert result.algorithm == "eng1"
    assert re.search(reason, result.reason)


def test_an_error_of_rounding_is_no_failure(gpu: MeasuringBackend, stub: _StubFunctions) -> None:
    stub.relative_error = 0.09
    assert _measure(gpu, FORWARD).relative_error == 0.09
    stub.relative_error = -1
    assert _measure(gpu, FORWARD).relative_error is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (2, FailureKind.UNSUPPORTED),
        (3, FailureKind.OUT_OF_MEMORY),
        (4, FailureKind.FAILED),
        (5, FailureKind.FAILED),
    ],
)
def test_codes_of_the_core_become_kinds_of_failure(
    gpu: MeasuringBackend, stub: _StubFunctions, code: int, kind: FailureKind
) -> None:
    stub.code = code
    algorithm = gpu.measure_algorithm(FORWARD, "eng7", FEW_RUNS)
    assert isinstance(algorithm, AlgorithmFailure)
    assert (algorithm.kind, algorithm.algorithm, algorithm.reason) == (
        kind,
        "eng7",
        "made by the test",
    )
    stage = gpu.measure_stage([StageStep(FORWARD, 0, "eng7")], FEW_RUNS)
    assert isinstance(stage, StageFailure)
    assert (stage.kind, stage.reason) == (kind, "made by the test")


def test_a_stage_says_what_the_device_gave(gpu: MeasuringBackend, stub: _StubFunctions) -> None:
    stub.sm_counts = [64, 68]
    steps = [StageStep(FORWARD, 0), StageStep(FORWARD, 1)]
    result = gpu.measure_stage(steps, FEW_RUNS, sm_counts=[60, 0])
    assert isinstance(result, StageMeasurement)
    assert stub.lanes == [(0, 60, False), (0, 0, False)]
    assert (result.sm_counts, result.priorities) == ((64, 68), ())
    assert (result.concurrent_us, result.same_sequential_us, result.sequential_us) == (10, 20, 30)
    assert result.spread_us == 1 + 4
    assert result.sequential_algorithms == ("eng2", "eng2")


_WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = sys.modules["google.protobuf"] = None  # importing either fails
sys.path.append("tests/know")
import measuring_backend_test as test
from tf_interop.measure import core_library
host = core_library.load_core_library().open_backend("host")
print(host.measure_algorithm(test.FORWARD, "DIRECT", test.FEW_RUNS).algorithm)
"""


def test_works_without_tensorflow() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TENSORFLOW],
        cwd=pathlib.Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "DIRECT"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["NDHWC", "NCDHW"])
def test_a_merged_lane_of_volumes_is_measured(
    host: MeasuringBackend, layout: str, dtype: str
) -> None:
    def of_channels(channels: int) -> ConvolutionConfiguration:
        image, output = (2, 5, 6, 7, 4), (2, 5, 6, 7, channels)
        if layout == "NCDHW":
            image, output = (2, 4, 5, 6, 7), (2, channels, 5, 6, 7)
        return dataclasses.replace(
            FORWARD,
            op="Conv3D",
            dtype=dtype,
            layout=layout,
            image_shape=image,
            filter_shape=(3, 3, 1, 4, channels),
            output_shape=output,
            strides=(1, 1, 1),
            dilations=(1, 1, 1),
        )

    steps = [StageStep(of_channels(count), 0, "IM2COL_GEMM") for count in (6, 1, 3)]
    result = host.measure_stage(steps, FEW_RUNS, merged=[True])
    assert isinstance(result, StageMeasurement), result
    assert result.merged == (True,)
