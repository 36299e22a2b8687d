"""The compiled library: finding it, checking that it fits, loading it, and its C interface.

The interface is stated in `cc_kernels/plugin/plugin.h`. This module is the only one that uses it.
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

LIBRARY_NAME = "libtf_interop.so"
# Not isolated, so that it is built for the TensorFlow that is there; the build's tools come first.
REBUILD_COMMAND = (
    "pip install scikit-build-core cmake ninja && "
    "pip install --no-build-isolation --no-deps --force-reinstall ."
)

_PASS_TYPE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_SINK_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)
_GRAPH, _TEXT = ctypes.c_void_p, ctypes.c_char_p

# By function the types of its arguments, then of its result.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "TfiRegisterPlugin": (_TEXT, _TEXT),
    "TfiSetPass": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double, None),
    "TfiGraphData": (_GRAPH, ctypes.c_void_p),
    "TfiGraphSize": (_GRAPH, ctypes.c_size_t),
    "TfiGraphDeviceType": (_GRAPH, _TEXT),
    "TfiGraphNodesToPreserve": (_GRAPH, _TEXT),
    "TfiGraphFetches": (_GRAPH, _TEXT),
    "TfiOutputProperties": (_GRAPH, _TEXT, _SINK_TYPE, ctypes.c_int),
    "TfiSetResult": (_GRAPH, _TEXT, ctypes.c_size_t, ctypes.c_int),
    "TfiSetWorkspaceLimit": (ctypes.c_int64, None),
    "TfiReadCounters": (_SINK_TYPE, None),
    "TfiRenameForOneDnn": (_TEXT, ctypes.c_size_t, ctypes.c_int, _SINK_TYPE, ctypes.c_int),
}


@dataclasses.dataclass(frozen=True)
class BuildInfo:
    """What the library was built for.

    Attributes:
        path: the library's file.
        tensorflow: version of the TensorFlow that it was built against.
        cudnn_backend: whether stages can run on a GPU.
    """

    path: pathlib.Path
    tensorflow: str
    cudnn_backend: bool


@dataclasses.dataclass(frozen=True)
class Counters:
    """What stages did in this process.

    Attributes:
        stages_run: how many times a stage was run.
        fallbacks: how often something other than the plan's choice ran, by reason. Of many reasons
            of one kind the first are told apart, the rest are `<kind>: other cases`.
        refused_lane_options: how often lanes ran without the stream priorities and SM counts of the
            plan, by reason.
        filters_transformed: how many filters that are held were transformed so that the launches
            that read them need not do it.
        stages_captured: how many CUDA graphs were made of stages.
        stages_replayed: how many runs of stages were launches of such a graph.
        devices: the same of each device, such as `GPU:0`; empty in these.
    """

    stages_run: int
    fallbacks: dict[str, int]
    refused_lane_options: dict[str, int] = dataclasses.field(default_factory=dict)
    filters_transformed: int = 0
    stages_captured: int = 0
    stages_replayed: int = 0
    devices: dict[str, Counters] = dataclasses.field(default_factory=dict)


class TimedSpan(NamedTuple):
    """What ran for some time in one call of an op.

    Attributes:
        row: `stage` for a whole stage, `lane` for what ran on one of its lanes, or `thread` for
            what a thread computed of a unit.
        number: of the lane or thread.
        op: the name of the op's node.
        call: the number of the op's call; the first is 0.
        name: of the stage; of the convolutions; of a unit's operations, spaces between them, or
            of its part of the batch.
        algorithm: of the convolutions; empty if there is none.
        begin_ns: by a steady clock.
        end_ns: likewise.
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
    """A graph as Grappler hands it over; valid during the call of the pass only."""

    def __init__(self, library: KernelLibrary, handle: int) -> None:
        self._library = library
        self._handle = handle

    @property
    def serialized(self) -> bytes:
        """The serialized GraphDef.

        Raises:
            TimeLimitError: TensorFlow has stopped waiting for the pass.
        """
        functions = self._library.functions
        data = functions.TfiGraphData(self._handle)
        if data is None:
            raise TimeLimitError(
                "The pass did not get Python's interpreter lock within 5 s, because another "
                "thread held it. Do not wait for TensorFlow while holding it: call "
                "asynchronous functions to their end before tf.random.set_seed."
            )
        return ctypes.string_at(data, functions.TfiGraphSize(self._handle))

    @property
    def device_type(self) -> str:
        """The device type that the plugin was called for, `CPU` or `GPU`."""
        return str(self._library.functions.TfiGraphDeviceType(self._handle).decode())

    @property
    def nodes_to_preserve(self) -> frozenset[str]:
        """Names that have to stay in the graph."""
        return _names(self._library.functions.TfiGraphNodesToPreserve(self._handle))

    @property
    def fetches(self) -> frozenset[str]:
        """Names of the nodes that the graph is run for."""
        return _names(self._library.functions.TfiGraphFetches(self._handle))

    def infer_output_shapes(self, node: str) -> list[Shape | None] | None:
        """Asks TensorFlow for the shapes of a node's outputs; None if it does not know the node.

        The first call infers the whole graph.
        """
        collected, sink = _collecting_sink()
        count = self._library.functions.TfiOutputProperties(self._handle, node.encode(), sink)
        if count < 0:
            return None
        return [tensorflow_internals.shape_of_tensor_properties(item) for item in collected]

    def set_result(self, serialized: bytes) -> None:
        """Hands over the new graph, a serialized GraphDef.

        Raises:
            TimeLimitError: TensorFlow has stopped waiting for the pass.
        """
        if not self._library.functions.TfiSetResult(self._handle, serialized, len(serialized)):
            raise TimeLimitError(
                "The pass took longer than TensorFlow waits for it. Give tf_interop.enable() a "
                "longer pass_time_limit_s."
            )


class KernelLibrary:
    """The loaded library. Use `load_kernel_library`, which loads it once."""

    def __init__(self, build_info: BuildInfo, functions: ctypes.CDLL) -> None:
        self.build_info = build_info
        self.functions = functions
        self._run: Callable[[HandedGraph], bool] | None = None
        # One for the whole process, never freed: another thread may be about to call it whenever
        # the pass changes.
        self._callback = _PASS_TYPE(self._call)
        for name, (*arguments, result) in _SIGNATURES.items():
            function = getattr(functions, name)
            function.argtypes, function.restype = arguments, result

    def register_plugin(self, device_type: str) -> None:
        """Registers the plugin for a device type; does nothing if it is registered already.

        Raises:
            LibraryError: another plugin has the device type.
        """
        error = self.functions.TfiRegisterPlugin(device_type.encode())
        if error is not None:
            raise LibraryError(error.decode())

    def set_pass(
        self, run: Callable[[HandedGraph], bool] | None, time_limit_s: float = 60.0
    ) -> None:
        """Sets what Grappler calls for every graph that may hold a convolution.

        Args:
            run: returns whether it has set a result. It must not raise. It is called on a thread
                of its own, so that signal handlers do not raise in it. None turns the plugin off.
            time_limit_s: how long it may take; soon after that TensorFlow goes on without it.
        """
        self._run = run
        self.functions.TfiSetPass(
            None if run is None else ctypes.cast(self._callback, ctypes.c_void_p),
            ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p),
            time_limit_s,
        )

    def _call(self, handle: int) -> int:
        run = self._run
        return 0 if run is None else int(run(HandedGraph(self, handle)))

    def set_workspace_limit(self, limit_bytes: int | None) -> None:
        """Limits what the workspaces of one stage take together, from now on; None for no limit."""
        self.functions.TfiSetWorkspaceLimit(-1 if limit_bytes is None else limit_bytes)

    def record_timeline(self, calls: int) -> None:
        """Records so many calls of each op, after its first, from now on."""
        self.functions.TfiRecordTimeline(ctypes.c_int(calls))

    def read_timeline(self) -> list[TimedSpan]:
        """What was recorded and is over."""
        collected, sink = _collecting_sink()
        self.functions.TfiReadTimeline(sink)
        rows = [each.decode().split("\n") for each in collected]
        return msgspec.convert(rows, list[TimedSpan], strict=False)

    def read_counters(self) -> Counters:
        """What stages did so far."""
        collected, sink = _collecting_sink()
        self.functions.TfiReadCounters(sink)
        found: dict[str, dict[str, collections.Counter[str]]] = {}
        for entry in collected:
            what, device, rest = entry.decode("utf-8", "replace").split(" ", 2)
            count, _, reason = rest.partition(" ")
            for each in ("", device):
                counts = found.setdefault(each, collections.defaultdict(collections.Counter))
                counts[what][reason] += int(count)
        total = found.pop("", collections.defaultdict(collections.Counter))
        return _counters(total, {device: _counters(its, {}) for device, its in found.items()})


def _counters(
    counts: dict[str, collections.Counter[str]], devices: dict[str, Counters]
) -> Counters:
    """Counters from the counts of each reason; what has no reasons has the empty one."""
    return Counters(
        counts["stages_run"][""],
        dict(counts["fallback"]),
        dict(counts["refused_lane_options"]),
        counts["filters_transformed"][""],
        counts["stages_captured"][""],
        counts["stages_replayed"][""],
        devices,
    )


def _collecting_sink() -> tuple[list[bytes], Any]:
    collected: list[bytes] = []
    sink = _SINK_TYPE(lambda data, size: collected.append(ctypes.string_at(data, size)))
    return collected, sink


def _names(text: bytes) -> frozenset[str]:
    return frozenset(text.decode().split("\n")[:-1])


def read_build_info(path: pathlib.Path) -> BuildInfo:
    """Reads what the library at `path` was built for, from the file beside it.

    Raises:
        LibraryError: the file is missing or damaged.
    """
    info_path = path.with_name("build_info.json")
    try:
        info = json.loads(info_path.read_text())
        return BuildInfo(path, str(info["tensorflow"]), bool(info["cudnn_backend"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LibraryError(
            f"Expected the build information of {path} in {info_path}, got {error!r}. "
            f"Build the library again: {REBUILD_COMMAND}"
        ) from error


def check_tensorflow_version(build_info: BuildInfo, found: str) -> None:
    """Checks that the library fits the TensorFlow of this process.

    TensorFlow's C++ interface changes between versions without notice, so only the very version
    that the library was compiled against will do.

    Raises:
        LibraryError: it was built for another version.
    """
    if build_info.tensorflow != found:
        raise LibraryError(
            f"{build_info.path} was built for TensorFlow {build_info.tensorflow}, but this is "
            f"TensorFlow {found}. Build it for this one, in tf_interop's source folder: "
            f"{REBUILD_COMMAND}"
        )


@functools.cache
def load_kernel_library() -> KernelLibrary:
    """Loads the library into this process, once.

    Raises:
        LibraryError: it is missing, was built for another TensorFlow, does not load, or this CPU
            lacks instructions that it was compiled for.
    """
    path = find_library_file(LIBRARY_NAME)
    if path is None or not path.is_file():
        raise LibraryError(
            f"The compiled library {path or LIBRARY_NAME} is missing. Build it, in tf_interop's "
            f"source folder: {REBUILD_COMMAND}"
        )
    build_info = read_build_info(path)
    check_tensorflow_version(build_info, tensorflow_internals.tensorflow_version())
    try:
        tensorflow_internals.load_op_library(str(path))
        functions = ctypes.CDLL(str(path))
    except Exception as error:
        raise LibraryError(
            f"{path} does not load: {error}. Build it again: {REBUILD_COMMAND}"
        ) from error
    if not functions.TfiCpuIsSupported():
        raise LibraryError(
            f"{path} was compiled for CPUs with AVX2 and FMA, which this CPU lacks. Build it "
            f"without: {REBUILD_COMMAND} --config-settings=cmake.define.TF_INTEROP_CPU_FLAGS="
        )
    return KernelLibrary(build_info, functions)
