"""Measuring through the core's C interface on the host backend, without TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
from typing import Any

import pytest
from command_line import ROOT
from convolution_values import TINY

from tf_interop.convolution import FUSED_OPS, ConvolutionConfiguration, ConvolutionKind
from tf_interop.errors import LibraryError
from tf_interop.measure import core
from tf_interop.measure.core import (
    AlgorithmScope,
    Backend,
    CoreLibrary,
    MeasureOptions,
    convolution_fields,
    load_core_library,
)
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmKey,
    AlgorithmMeasurement,
    FailureKind,
    KernelMeasurement,
    StageFailure,
    StageMeasurement,
)
from tf_interop.stage import Lane, Stage, Step

FEW_RUNS = MeasureOptions(warmup_ms=0, repetitions=3)

FORWARD = dataclasses.replace(
    TINY,
    image_shape=(2, 9, 7, 4),
    filter_shape=(3, 3, 4, 6),
    output_shape=(2, 5, 4, 6),
    strides=(2, 2),
)


def changed(**changes: Any) -> ConvolutionConfiguration:
    return dataclasses.replace(FORWARD, **changes)


HALF = changed(dtype="float16")
NCHW = changed(layout="NCHW", image_shape=(2, 4, 9, 7), output_shape=(2, 6, 5, 4))
VALID = changed(padding="VALID", output_shape=(2, 4, 3, 6))
FUSED = changed(op="_FusedConv2D", fused_ops=("BiasAdd", "Relu6"))
BACKWARD_FILTER = changed(op="Conv2DBackpropFilter", kind=ConvolutionKind.BACKWARD_FILTER)
VOLUME = changed(
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
CONFIGURATIONS = (
    FORWARD, NCHW, VALID, FUSED, BACKWARD_FILTER, VOLUME, CHANNELS_FIRST_VOLUME,
    changed(dtype="float64"),
    changed(padding="EXPLICIT", explicit_paddings=(2, 0, 3, 1), output_shape=(2, 5, 5, 6)),
    changed(strides=(1, 1), dilations=(2, 1), output_shape=(2, 9, 7, 6)),
    changed(filter_shape=(3, 3, 2, 6), group_count=2),
    changed(op="DepthwiseConv2dNative", depthwise=True, filter_shape=(3, 3, 4, 2),
            output_shape=(2, 5, 4, 8), group_count=4),
    changed(op="_FusedConv2D", fused_ops=("BiasAdd", "LeakyRelu"), leaky_relu_alpha=0.3),
    changed(op="Conv2DBackpropInput", kind=ConvolutionKind.BACKWARD_INPUT),
    dataclasses.replace(VOLUME, op="Conv3DBackpropFilterV2", dtype="float64",
                        kind=ConvolutionKind.BACKWARD_FILTER),
)  # fmt: skip


@pytest.fixture(name="host")
def fixture_host() -> Backend:
    return load_core_library().open_backend("host")


def _measure(
    host: Backend,
    configuration: ConvolutionConfiguration,
    algorithm: str = "",
    options: MeasureOptions = FEW_RUNS,
) -> AlgorithmMeasurement:
    result = host.measure_algorithm(configuration, algorithm, options)
    assert isinstance(result, AlgorithmMeasurement), result
    return result


def _measure_stage(
    host: Backend, *lanes: Lane[ConvolutionConfiguration], **sequence: Any
) -> StageMeasurement:
    result = host.measure_stage(Stage(lanes), FEW_RUNS, **sequence)
    assert isinstance(result, StageMeasurement), result
    return result


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_measures(host: Backend, configuration: ConvolutionConfiguration) -> None:
    result = _measure(host, configuration, "DIRECT")
    assert result.configuration is configuration
    assert result.algorithm == "DIRECT"
    assert result.latency_us > 0
    assert result.spread_us >= 0
    assert result.relative_error < 1e-5
    assert result.deterministic
    assert not result.tf32
    assert result.kernels == ()


def test_resolves_a_name_without_running_it(host: Backend) -> None:
    for asked, runs in (("", "BUFFERED"), ("DIRECT", "DIRECT")):
        key = AlgorithmKey(FORWARD, runs, False)
        assert host.resolve_algorithm(FORWARD, asked, FEW_RUNS) == key
        assert _measure(host, FORWARD, asked).algorithm == runs
    refused = host.resolve_algorithm(FORWARD, "eng1", FEW_RUNS)
    assert refused == host.measure_algorithm(FORWARD, "eng1", FEW_RUNS)


def test_a_refused_algorithm_is_a_failure(host: Backend) -> None:
    options = dataclasses.replace(FEW_RUNS, allow_tf32=False, workspace_limit_bytes=64)
    result = host.measure_algorithm(HALF, "BUFFERED", options)
    assert isinstance(result, AlgorithmFailure)
    assert result.kind is FailureKind.UNSUPPORTED
    assert (result.configuration, result.algorithm, result.tf32) == (HALF, "BUFFERED", False)
    assert result.source.startswith("tf_interop core, backend host: ")
    assert "repetitions=3" in result.source and "warm_caches=False" in result.source


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"output_shape": (2, 5, 5, 6)}, "width"),
        ({"image_shape": (0, 9, 7, 4), "output_shape": (0, 5, 4, 6)}, "image_shape"),
        (
            {
                "image_shape": (2**30, 2**30, 2**2, 1),
                "filter_shape": (1, 1, 1, 1),
                "output_shape": (2**30, 2**30, 2**2, 1),
                "strides": (1, 1),
            },
            "image",
        ),
        ({"image_shape": (None, 9, 7, 4)}, "image_shape"),
        ({"dtype": "complex64"}, "complex64"),
        ({"layout": "NCHW_VECT_C"}, "NCHW_VECT_C"),
        ({"padding": "REFLECT"}, "REFLECT"),
        ({"fused_ops": ("Relu",)}, "fused_ops"),
        ({"filter_shape": (3, 3, 3, 6)}, "filter"),
        ({"filter_shape": (3, 3, 4, 5)}, "filter"),
        ({"image_shape": (2**64 + 2, 9, 7, 4)}, "integers"),
        ({"strides": (2**64 + 2, 2)}, "integers"),
    ],
)
def test_refuses_an_illegal_convolution(
    host: Backend, change: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        host.measure_algorithm(changed(**change), "", FEW_RUNS)


DIRECT = Step(FORWARD, "DIRECT")


def test_measures_a_stage_and_its_sequence(host: Backend) -> None:
    narrow = changed(filter_shape=(3, 3, 4, 2), output_shape=(2, 5, 4, 2))
    lanes = (
        Lane((DIRECT, Step(narrow, "DIRECT")), merged=True),
        Lane((Step(HALF, "DIRECT"), Step(FUSED)), priority=-1),
    )
    sequence = ["DIRECT", "BUFFERED", None, "DIRECT"]
    result = _measure_stage(host, *lanes, sequential_algorithms=sequence)
    assert min(result.latency_us, result.same_sequential_us, result.sequential_us) > 0
    assert result.spread_us >= 0
    # The result names the algorithms that the backend chose.
    ran = ("DIRECT", "DIRECT", "DIRECT", "BUFFERED")
    assert result.stage == Stage(lanes).with_algorithms(ran)
    assert result.sequential_algorithms == ("DIRECT", "BUFFERED", "BUFFERED", "DIRECT")
    assert result.tf32
    # The joined filters and outputs take workspace.
    assert result.workspace_bytes > _measure(host, FUSED).workspace_bytes


@pytest.mark.parametrize(
    ("lanes", "reason"),
    [
        ((Lane((DIRECT,)), Lane(())), r"lanes\[1\]"),
        ((Lane((Step(changed(strides=(2**64, 2))),)),), "integers"),
    ],
)
def test_refuses_an_illegal_stage(
    host: Backend, lanes: tuple[Lane[ConvolutionConfiguration], ...], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        host.measure_stage(Stage(lanes), FEW_RUNS)


class _StubFunctions:
    """Stands in for the loaded library on a machine with a GPU."""

    def __init__(self, ffi: Any) -> None:
        self._ffi = ffi
        self.code = 0
        self.relative_error = 0.001
        self.kernels: list[tuple[bytes, float]] = []
        self.trace_error = b""

    def _fail(self, *arguments: Any) -> int:
        if self.code:
            _give(self._ffi, arguments[-1], b"made by the test")
        return self.code

    def TfiListAlgorithms(self, *arguments: Any) -> int:  # noqa: N802
        self.scope, self.allow_tf32 = arguments[2:4]
        return self._fail(*arguments)

    def TfiMeasureConvolution(self, *arguments: Any) -> int:  # noqa: N802
        _, convolution, _, options, measured, ran, kernel, trace_error, _ = arguments
        self.dtype = convolution.dtype
        self.allow_tf32, self.trace_kernels = options.allow_tf32, options.trace_kernels
        measured.time.median_us = 5.0
        measured.relative_error = self.relative_error
        measured.reduces_precision = 1
        _give(self._ffi, ran, b"eng1")
        for name, elapsed_us in self.kernels:
            fields = ((1, 2, 3), (32, 1, 1), 168, 49152, elapsed_us)
            kernel(self._ffi.new("char[]", name), self._ffi.new("TfiKernel *", fields))
        if self.trace_error:
            _give(self._ffi, trace_error, self.trace_error)
        return self._fail(*arguments)

    def TfiMeasureStage(self, *arguments: Any) -> int:  # noqa: N802
        _, lanes, count, _, measured, ran, ran_in_sequence, _ = arguments
        names = [name for name, _ in self._ffi.typeof("TfiLaneOptions").fields]
        self.lane_options = [
            {name: getattr(lane.options, name) for name in names} for lane in lanes[0:count]
        ]
        steps = [step for lane in lanes[0:count] for step in lane.steps[0 : lane.step_count]]
        self.images = [step.image for step in steps]
        measured.concurrent = (10, 1)
        measured.same_sequential = (20, 2)
        measured.sequential = (30, 4)
        for _ in steps:
            _give(self._ffi, ran, b"eng1")
            _give(self._ffi, ran_in_sequence, b"eng2")
        return self._fail(*arguments)


def _give(ffi: Any, sink: Any, text: bytes) -> None:
    sink(ffi.new("char[]", text), len(text))


@pytest.fixture(name="stub")
def fixture_stub() -> _StubFunctions:
    return _StubFunctions(load_core_library().ffi)


@pytest.fixture(name="gpu")
def fixture_gpu(stub: _StubFunctions) -> Backend:
    ffi = load_core_library().ffi
    return Backend(CoreLibrary(ffi, stub), "cudnn", ffi.NULL)


def test_kernels_have_shares_of_the_time_or_the_source_says_why_there_are_none(
    gpu: Backend, stub: _StubFunctions
) -> None:
    stub.kernels = [(b"transform", 1.0), (b"gemm", 3.0)]
    result = _measure(gpu, FORWARD)
    assert result.kernels == (
        KernelMeasurement("transform", (1, 2, 3), (32, 1, 1), 168, 49152, 0.25),
        KernelMeasurement("gemm", (1, 2, 3), (32, 1, 1), 168, 49152, 0.75),
    )
    assert result.tf32
    assert "not traced" not in result.source
    assert (stub.dtype, stub.allow_tf32, stub.trace_kernels) == (0, 1, 1)

    stub.kernels, stub.trace_error = [], b"another tool holds CUPTI"
    options = dataclasses.replace(FEW_RUNS, allow_tf32=False, trace_kernels=False)
    result = _measure(gpu, changed(dtype="bfloat16"), options=options)
    assert result.kernels == ()
    assert "another tool holds CUPTI" in result.source
    assert (stub.dtype, stub.allow_tf32, stub.trace_kernels) == (2, 0, 0)


def test_sets_every_field_of_the_header() -> None:
    ffi = load_core_library().ffi
    fields = convolution_fields(FORWARD)
    assert {name for name, _ in ffi.typeof("TfiSizes").fields} == set(fields["sizes"])
    assert {name for name, _ in ffi.typeof("TfiConvolution").fields} == set(fields)
    options = {field.name for field in dataclasses.fields(MeasureOptions)}
    assert {name for name, _ in ffi.typeof("TfiMeasureOptions").fields} == options
    # TensorFlow puts the odd row of padding after the image.
    sizes = convolution_fields(changed(image_shape=(2, 10, 7, 4)))["sizes"]
    assert (sizes["pad_top"], sizes["pad_bottom"]) == (0, 1)


def test_numbers_activations_as_the_core_does() -> None:
    header = (ROOT / "cc_kernels/core/convolution.h").read_text()
    [names] = re.findall(r"kActivationNames\[\] = {([^}]*)}", header)
    fused = [("BiasAdd", name) for name in re.findall(r'"(\w+)"', names)]
    assert (("BiasAdd",), *fused[1:]) == FUSED_OPS
    fields = map(convolution_fields, (changed(fused_ops=each) for each in FUSED_OPS))
    assert [each["activation"] for each in fields] == [*range(len(fused))]


def test_a_wrong_result_is_a_failure_but_rounding_is_not(
    gpu: Backend, stub: _StubFunctions
) -> None:
    stub.relative_error = 0.09
    assert _measure(gpu, FORWARD).relative_error == 0.09
    for relative_error in (math.inf, 1.25):
        stub.relative_error = relative_error
        result = gpu.measure_algorithm(FORWARD, "eng1", FEW_RUNS)
        assert isinstance(result, AlgorithmFailure)
        assert (result.kind, result.algorithm) == (FailureKind.WRONG_RESULT, "eng1")


@pytest.mark.parametrize(
    ("code", "kind"),
    [(2, FailureKind.UNSUPPORTED), (3, FailureKind.OUT_OF_MEMORY), (5, FailureKind.FAILED)],
)
def test_status_codes_become_kinds_of_failure(
    gpu: Backend, stub: _StubFunctions, code: int, kind: FailureKind
) -> None:
    stub.code = code
    algorithm = gpu.measure_algorithm(FORWARD, "eng7", FEW_RUNS)
    assert isinstance(algorithm, AlgorithmFailure)
    assert (algorithm.kind, algorithm.algorithm) == (kind, "eng7")
    asked = Stage.side_by_side((DIRECT,))
    stage = gpu.measure_stage(asked, FEW_RUNS)
    assert isinstance(stage, StageFailure)
    assert (stage.stage, stage.kind, stage.reason) == (asked, kind, "made by the test")
    with pytest.raises(ValueError, match="made by the test"):
        gpu.list_algorithms(FORWARD, AlgorithmScope.KNOBS, allow_tf32=False)
    assert (stub.scope, stub.allow_tf32) == (2, False)


def test_a_stage_is_measured_with_the_options_of_its_lanes(
    gpu: Backend, stub: _StubFunctions
) -> None:
    lanes = (Lane((DIRECT,), priority=-1), Lane((DIRECT, DIRECT), merged=True))
    result = _measure_stage(gpu, *lanes, images=(1, 0, 0))
    assert stub.images == [1, 0, 0]
    assert "images=(1, 0, 0)" in result.source
    assert stub.lane_options == [lane.options for lane in lanes]
    assert [lane.options for lane in result.stage.lanes] == stub.lane_options
    assert (result.latency_us, result.same_sequential_us, result.sequential_us) == (10, 20, 30)
    assert result.spread_us == 1 + 4
    assert result.sequential_algorithms == ("eng2",) * 3


def test_knows_the_version_of_cudnn() -> None:
    version = core.load_core_library().cudnn_version()
    assert version == "" or re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_opens_known_backends_once(host: Backend) -> None:
    assert host.library.open_backend("host") == host
    with pytest.raises(LibraryError, match="tpu"):
        host.library.open_backend("tpu")


@pytest.fixture(name="fresh_cache")
def fixture_fresh_cache() -> None:
    core.load_core_library.cache_clear()


HEADER = core.find_library_file(core.CORE_LIBRARY_NAME).with_suffix(".h")


@pytest.mark.usefixtures("fresh_cache")
@pytest.mark.parametrize(
    ("library", "header"),
    [
        (None, None),
        ("no library", HEADER.read_text()),
        # The installed library with a missing or wrong header.
        ("", None), ("", "no mark"), ("", "// ---- Python reads from here\nint f(;"),
        ("", HEADER.read_text().replace("TFI_CORE_VERSION 3", "TFI_CORE_VERSION 1000")),
    ],
)  # fmt: skip
def test_says_what_is_wrong_with_the_library(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    library: str | None,
    header: str | None,
) -> None:
    path = tmp_path / "another.so"
    if library == "":
        path.symlink_to(HEADER.with_suffix(".so"))
    elif library is not None:
        path.write_text(library)
    if header is not None:
        path.with_suffix(".h").write_text(header)
    monkeypatch.setenv("TF_INTEROP_CORE_LIBRARY", str(path))
    with pytest.raises(LibraryError, match=r"another\.(so|h)"):
        core.load_core_library()
