"""Finds, checks and loads the compiled library, and calls its C interface.

`cc_kernels/plugin/plugin.h` declares the interface, and no other module uses it.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from tf_interop import tensorflow_internals
from tf_interop.convolution import Shape
from tf_interop.errors import LibraryError, TimeLimitError
from tf_interop.measure.core import find_library_file
from tf_interop.runtime.settings import GraphItem
from tf_interop.terminal import count_of

LIBRARY_NAME = "libtf_interop.so"
# Without isolation it is built for the installed TensorFlow, but needs the build tools installed.
REBUILD_COMMAND = (
    "pip install scikit-build-core cmake ninja && "
    "pip install --no-build-isolation --no-deps --force-reinstall ."
)

_GRAPH, _TEXT = ctypes.c_void_p, ctypes.c_char_p
_PASS_TYPE = ctypes.CFUNCTYPE(ctypes.c_int, _GRAPH, _TEXT, ctypes.c_int, _TEXT, _TEXT, _TEXT)
_SINK_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)

# Each function's argument types, then its result type.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "TfiRegisterPlugin": (_TEXT, _TEXT),
    "TfiSetPass": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double, ctypes.c_int, None),
    "TfiGraphData": (_GRAPH, _SINK_TYPE, ctypes.c_int),
    "TfiOutputProperties": (_GRAPH, _TEXT, _SINK_TYPE, ctypes.c_int),
    "TfiSetResult": (_GRAPH, _TEXT, ctypes.c_size_t, ctypes.c_int),
    "TfiSetWorkspaceLimit": (ctypes.c_int64, None),
    "TfiReadCounters": (_SINK_TYPE, None),
    "TfiRecordTimeline": (ctypes.c_int, None),
    "TfiReadTimeline": (_SINK_TYPE, None),
    "TfiReadSelfTimings": (_SINK_TYPE, None),
    "TfiReadStageTimings": (_SINK_TYPE, None),
    "TfiSetXlaCalls": (ctypes.c_int, None),
    "TfiReadXlaCalls": (_SINK_TYPE, None),
}


@dataclasses.dataclass(frozen=True)
class BuildInfo:
    """The library's file, the TensorFlow it is built for, and whether stages can run on a GPU."""

    path: pathlib.Path
    tensorflow: str
    cudnn_backend: bool


@dataclasses.dataclass(frozen=True)
class Counters:
    """Counters of stages and kept values in this process.

    Attributes:
        stages_run: runs of stages.
        fallbacks: how often the plan's choice did not run, by reason. If one kind has many reasons,
            the later ones count as `<kind>: other cases`.
        filters_transformed: held filters that were transformed once, ahead of the launches that
            read them.
        stages_captured: CUDA graphs made of stages.
        stages_replayed: runs of stages that launched such a graph.
        kept_computations: how often values that depend only on variables were computed.
        kept_bytes: the size of such values that are kept now.
        devices: the counters of each device, such as `GPU:0`; empty in each of those.
    """

    stages_run: int = 0
    fallbacks: dict[str, int] = dataclasses.field(default_factory=dict)
    filters_transformed: int = 0
    stages_captured: int = 0
    stages_replayed: int = 0
    kept_computations: int = 0
    kept_bytes: int = 0
    devices: dict[str, Counters] = dataclasses.field(default_factory=dict)


class XlaCalls(NamedTuple):
    """Calls of kernels in functions that XLA compiled in this process.

    Attributes:
        compiled: depthwise convolutions that were compiled for a CPU as calls of TensorFlow's own
            kernels.
        refused: those that were left to XLA, because TensorFlow's kernels do not take them.
        left: those that were left to XLA, because the plugin was off.
        run: calls that ran, also of stages; one that XLA captures counts when it is captured.
        stages: stages that were compiled as calls.
        translated_stages: stages that became XLA's own convolutions, because they are on a CPU, the
            plan has no stages for their batch size, a size is unknown, cuDNN has no algorithm, or
            a convolution without a planned algorithm is long.
    """

    compiled: int = 0
    refused: int = 0
    left: int = 0
    run: int = 0
    stages: int = 0
    translated_stages: int = 0

    def __str__(self) -> str:
        """The calls in a sentence."""
        parts = []
        if self.compiled or self.refused or not (self.stages or self.translated_stages):
            parts.append(
                f"depthwise convolutions that XLA compiled for a CPU: {self.compiled} run "
                "TensorFlow's own kernels"
            )
        if self.refused:
            parts.append(f"{self.refused} stay XLA's, which TensorFlow's kernels do not take")
        if self.stages or self.translated_stages:
            parts.append(f"{count_of(self.stages, 'stage')} in functions that XLA compiled")
        if self.translated_stages:
            parts.append(f"{self.translated_stages} that XLA runs without their plan")
        return f"{', '.join(parts)} ({count_of(self.run, 'run')})"


class TimedWay(NamedTuple):
    """The runs of a graph or stage in one way.

    Attributes:
        way: a graph on a CPU runs `as stock TensorFlow`, `on 2 cores`, `with the batch divided` or
            `in parts of 4 images`; a stage `as stock TensorFlow`, `as planned` or `in sequence`.
        median_ms: of the runs in the latest trial; 0 if they were not timed.
        runs: how many count; the first after a change do not.
        simulated_ms: of a run with branches side by side, simulated from the least time of each
            operation; 0 if the graph does not run so.
    """

    way: str
    median_ms: float
    runs: int
    simulated_ms: float = 0.0

    def __str__(self) -> str:
        """The times in a few words."""
        simulated = f" ({self.simulated_ms:.2f} ms simulated)" if self.simulated_ms else ""
        return f"{self.way} {self.median_ms:.2f} ms{simulated} in {count_of(self.runs, 'step')}"


class SelfTiming(NamedTuple):
    """What a graph on a CPU, or a stage on a GPU, found out about one size of its input.

    Attributes:
        name: `PassReport.timed_graph` of a graph, or the name of a stage's node.
        sizes: those of the first input, such as `8x224x224x3`.
        way: of the next run.
        is_trying: whether ways take turns now.
        share_lost: the share of the time that slower ways cost.
        tried: one for each way.
    """

    name: str
    sizes: str
    way: str
    is_trying: bool
    share_lost: float
    tried: tuple[TimedWay, ...]

    def __str__(self) -> str:
        """The result in a sentence."""
        state = "still trying" if self.is_trying else f"runs {self.way}"
        ways = ", ".join(str(each) for each in self.tried if each.median_ms)
        return (
            f"input {self.sizes}: {state} ({ways or 'nothing timed yet'}); trying took "
            f"{self.share_lost:.1%} of the time"
        )


def _read_timings(read: Callable[..., None]) -> list[SelfTiming]:
    timings = []
    for each in _collect(read)[1]:
        name, sizes, way, is_trying, share_lost, *rest = each.decode().split("\n")
        tried = tuple(
            TimedWay(way, float(us) / 1e3, int(runs), float(simulated_us) / 1e3)
            for way, us, runs, simulated_us in zip(*(rest[at::4] for at in range(4)), strict=True)
        )
        timings.append(SelfTiming(name, sizes, way, is_trying == "1", float(share_lost), tried))
    return timings


class TimedSpan(NamedTuple):
    """A span of time in one call of an op.

    Attributes:
        row: `stage` for a whole stage, `lane` for a launch on one of its lanes, or `thread` for a
            thread's part of a unit.
        number: of the lane or thread.
        op: the name of the op's node.
        call: the number of the op's call; the first is 0.
        name: of the stage or the convolutions; or a unit's operations, separated by spaces, or its
            part of the batch.
        algorithm: of the convolutions; how a unit runs, such as `on 2 cores`; or empty.
        begin_ns: by a steady clock, like `end_ns`.
    """

    row: str
    number: int
    op: str
    call: int
    name: str
    algorithm: str
    begin_ns: int
    end_ns: int


class HandedGraph:
    """A graph as TensorFlow hands it over; valid only during the call of the pass.

    Attributes:
        item: what a pass knows of it beside its nodes.
        name: the name of the function of TensorFlow that has it; in a Session, any text.
    """

    def __init__(
        self,
        functions: ctypes.CDLL,
        handle: int,
        device_type: bytes,
        is_compiled: int,
        function: bytes,
        *lists: bytes,
    ) -> None:
        self._functions = functions
        self._handle = handle
        self.name = function.decode(errors="replace")
        preserved, fetches = (frozenset(names.decode().split("\n")[:-1]) for names in lists)
        infer = self._infer_output_shapes
        self.item = GraphItem(device_type.decode(), preserved, fetches, infer, bool(is_compiled))

    @property
    def serialized(self) -> bytes:
        """The serialized GraphDef; raises TimeLimitError if TensorFlow no longer waits."""
        is_in_time, collected = _collect(self._functions.TfiGraphData, self._handle)
        if not is_in_time:
            raise TimeLimitError(
                "The pass did not get Python's interpreter lock within 5 s, because another "
                "thread held it. Do not wait for TensorFlow while holding it: let asynchronous "
                "functions finish before you call tf.random.set_seed."
            )
        return collected[0]

    def _infer_output_shapes(self, node: str) -> list[Shape | None] | None:
        """Infers the shapes of a node's outputs; None if TensorFlow does not know the node."""
        properties = self._functions.TfiOutputProperties
        count, collected = _collect(properties, self._handle, node.encode())
        if count < 0:
            return None
        return [tensorflow_internals.shape_of_tensor_properties(item) for item in collected]

    def set_result(self, serialized: bytes) -> None:
        """Hands the new graph over; raises TimeLimitError if TensorFlow no longer waits."""
        if not self._functions.TfiSetResult(self._handle, serialized, len(serialized)):
            raise TimeLimitError(
                "The pass took longer than TensorFlow waits for it. Pass a longer "
                "pass_time_limit_s to tf_interop.enable()."
            )


class KernelLibrary:
    """The loaded library. Use `load_kernel_library`, which loads it once."""

    def __init__(self, build_info: BuildInfo, functions: ctypes.CDLL) -> None:
        self.build_info = build_info
        self.functions = functions
        self._run: Callable[[HandedGraph], bool] | None = None
        # Never freed: another thread may be about to call it when the pass changes.
        self._callback = _PASS_TYPE(self._call)
        for name, (*arguments, result) in _SIGNATURES.items():
            function = getattr(functions, name)
            function.argtypes, function.restype = arguments, result

    def register_plugin(self, device_type: str) -> None:
        """Registers the plugin for a device type, unless it is registered already.

        Raises:
            LibraryError: another plugin has the device type.
        """
        error = self.functions.TfiRegisterPlugin(device_type.encode())
        if error is not None:
            raise LibraryError(error.decode())

    def set_pass(
        self,
        run: Callable[[HandedGraph], bool] | None,
        time_limit_s: float = 60.0,
        *,
        takes_products: bool = False,
    ) -> None:
        """Sets the function that TensorFlow calls for every graph that may have a convolution.

        Args:
            run: returns whether it has set a result. It must not raise. It runs on its own thread,
                so that signal handlers do not raise in it. None turns the plugin off.
            time_limit_s: how long it may take; soon after that TensorFlow continues without it.
            takes_products: whether it is also called for graphs with matrix products alone.
        """
        self._run = run
        self.functions.TfiSetPass(
            None if run is None else ctypes.cast(self._callback, ctypes.c_void_p),
            ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p),
            time_limit_s,
            int(takes_products),
        )

    def _call(self, *handed: Any) -> int:
        run = self._run
        return 0 if run is None else int(run(HandedGraph(self.functions, *handed)))

    def set_workspace_limit(self, limit_bytes: int | None) -> None:
        """Limits all workspaces of one stage together, from now on; None for no limit."""
        self.functions.TfiSetWorkspaceLimit(-1 if limit_bytes is None else limit_bytes)

    def set_xla_calls(self, is_on: bool) -> None:
        """Turns calls of TensorFlow's kernels on or off, for functions that XLA compiles."""
        self.functions.TfiSetXlaCalls(int(is_on))

    def read_xla_calls(self) -> XlaCalls:
        """The calls so far."""
        _, [numbers] = _collect(self.functions.TfiReadXlaCalls)
        return XlaCalls(*map(int, numbers.split()))

    def record_timeline(self, calls: int) -> None:
        """Records `calls` calls of each op from now on, after its first."""
        self.functions.TfiRecordTimeline(calls)

    def read_timeline(self) -> list[TimedSpan]:
        """The recorded spans that have ended."""
        _, collected = _collect(self.functions.TfiReadTimeline)
        rows = [each.decode().split("\n") for each in collected]
        return msgspec.convert(rows, list[TimedSpan], strict=False)

    def read_self_timings(self) -> list[SelfTiming]:
        """What graphs that time themselves found out."""
        return _read_timings(self.functions.TfiReadSelfTimings)

    def read_stage_timings(self) -> list[SelfTiming]:
        """What stages that time themselves found out."""
        return _read_timings(self.functions.TfiReadStageTimings)

    def read_counters(self) -> Counters:
        """The counters so far."""
        found: dict[str, dict[str, Any]] = {}
        for entry in _collect(self.functions.TfiReadCounters)[1]:
            what, device, count, reason = entry.decode("utf-8", "replace").split(" ", 3)
            for each in {"", device}:
                its = found.setdefault(each, {"fallbacks": collections.Counter()})
                if what == "fallback":
                    its["fallbacks"][reason] += int(count)
                else:
                    its[what] = its.get(what, 0) + int(count)
        devices = {device: Counters(**its) for device, its in found.items()}
        return dataclasses.replace(devices.pop("", Counters()), devices=devices)


def _collect(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[bytes]]:
    """Calls a function of the library with a sink as its last argument.

    Returns:
        What the function returned, and what it passed to the sink.
    """
    collected: list[bytes] = []
    sink = _SINK_TYPE(lambda data, size: collected.append(ctypes.string_at(data, size)))
    return function(*arguments, sink), collected


def read_build_info(path: pathlib.Path) -> BuildInfo:
    """Reads the build information next to the library at `path`.

    Raises:
        LibraryError: the file is missing or damaged, or the library is for another TensorFlow.
    """
    info_path = path.with_name("build_info.json")
    try:
        read = json.loads(info_path.read_text())
        info = BuildInfo(path, str(read["tensorflow"]), bool(read["cudnn_backend"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LibraryError(
            f"The build information of {path} cannot be read from {info_path}: {error!r}. "
            f"Rebuild the library: {REBUILD_COMMAND}"
        ) from error
    # TensorFlow's C++ interface changes between versions without notice.
    found = tensorflow_internals.tensorflow_version()
    if info.tensorflow != found:
        raise LibraryError(
            f"{path} was built for TensorFlow {info.tensorflow}, but this is TensorFlow {found}. "
            f"Build it for this one, in tf_interop's source folder: {REBUILD_COMMAND}"
        )
    return info


@functools.cache
def load_kernel_library() -> KernelLibrary:
    """Loads the library into this process, once.

    Raises:
        LibraryError: it is missing, was built for another TensorFlow, does not load, or this CPU
            lacks instructions that it was compiled for.
    """
    import tensorflow as tf

    path = find_library_file(LIBRARY_NAME)
    if path is None or not path.is_file():
        raise LibraryError(
            f"The compiled library {path or LIBRARY_NAME} is missing. Build it, in tf_interop's "
            f"source folder: {REBUILD_COMMAND}"
        )
    build_info = read_build_info(path)
    try:
        tf.load_library(str(path))
        functions = ctypes.CDLL(str(path))
    except Exception as error:
        raise LibraryError(
            f"{path} does not load: {error}. Build it again: {REBUILD_COMMAND}"
        ) from error
    if not functions.TfiCpuIsSupported():
        raise LibraryError(
            f"{path} was compiled for CPUs with AVX2 and FMA, which this CPU lacks. Build it "
            f"without them: {REBUILD_COMMAND} --config-settings=cmake.define.TF_INTEROP_CPU_FLAGS="
        )
    return KernelLibrary(build_info, functions)
