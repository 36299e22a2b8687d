"""The process's plugin: registered once, and controlled by replaceable settings.

TensorFlow may hold locks when it calls `_run`. So `_run` works only on protobufs, runs no
TensorFlow op, and takes only the short lock of its records, never while it calls TensorFlow. It
runs on its own thread, so that signal handlers, which Python runs on the main thread, do not raise
in it.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from absl import logging
from tensorflow.core.framework import graph_pb2

from tf_interop import tensorflow_internals
from tf_interop.errors import LibraryError, TfInteropError
from tf_interop.graph.time_limit import collection_pause, time_limit
from tf_interop.graph.view import is_placed
from tf_interop.measure.device import ask_for_all_hardware_queues, has_nvidia_gpu
from tf_interop.parallel.divide import Divider, ParallelReport
from tf_interop.runtime.fold_pass import FoldReport
from tf_interop.runtime.graph_pass import (
    ChangedGraph,
    change_compiled,
    change_graph,
    read_compiled_body,
)
from tf_interop.runtime.kernel_library import HandedGraph, KernelLibrary, load_kernel_library
from tf_interop.runtime.settings import PassReport, Settings

# A process may trace functions forever.
_MOST_REPORTS = 200

K = TypeVar("K")
V = TypeVar("V")

GraphObserver = Callable[[graph_pb2.GraphDef, str], None]
"""Called with every graph that has a convolution, and the device type."""


@dataclasses.dataclass(frozen=True)
class PassFailure:
    """Graphs that stayed unchanged because the pass failed with one cause, and their number."""

    cause: str
    count: int


class Plugin:
    """The process's plugin. `get_plugin` returns the only one."""

    def __init__(self, library: KernelLibrary) -> None:
        self.library = library
        self.device_types: tuple[str, ...] = ()
        self.refused_device_types: dict[str, str] = {}
        # Both are replaced, never changed, and read without a lock.
        self._settings = Settings()
        self._observers: tuple[GraphObserver, ...] = ()
        self.make_locks()
        # The latest ones come last; guarded by _lock.
        self._reports: dict[tuple[str, str, str, bool], tuple[PassReport, Settings]] = {}
        self._parallel_reports: dict[str, ParallelReport] = {}
        self._fold_reports: dict[tuple[str, int], FoldReport] = {}
        self._failures: dict[str, int] = {}
        self._register()
        if self.device_types:
            tensorflow_internals.call_before_graph_plugins(self._warn_of_plugin)
        # No thread may call into the interpreter while it shuts down.
        atexit.register(library.set_pass, None)

    def make_locks(self) -> None:
        """Makes the locks, which nobody holds then."""
        self._change_lock = threading.Lock()  # held while one of them and the pass are set
        self._lock = threading.Lock()

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return self._settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        limit_mb = settings.workspace_limit_mb
        with self._change_lock:
            self._settings = settings
            self.library.set_workspace_limit(None if limit_mb is None else limit_mb << 20)
            self._update_pass()

    def set_option(self, option: bool | None) -> None:
        """Sets TensorFlow's option that lets it call plugins; None: as if it was never set.

        XLA follows it: in functions that it compiles for a CPU from now on, depthwise convolutions
        are calls of TensorFlow's own kernels, or no longer are. TensorFlow compiles a function
        anew for each value of the option, but not one that other functions call.
        """
        tensorflow_internals.set_plugin_optimizers_option(option)
        self.library.set_xla_calls(bool(option))

    @property
    def reports(self) -> tuple[PassReport, ...]:
        """The report of each graph, latest first."""
        return tuple(report for report, _ in self._latest(self._reports))

    @property
    def current_reports(self) -> tuple[PassReport, ...]:
        """The reports that were made under the current settings."""
        settings = self._settings
        return tuple(report for report, its in self._latest(self._reports) if its == settings)

    @property
    def parallel_reports(self) -> tuple[ParallelReport, ...]:
        """How the layers of graphs were divided, latest first."""
        return self._latest(self._parallel_reports)

    @property
    def fold_reports(self) -> tuple[FoldReport, ...]:
        """What was folded and kept in each graph, latest first."""
        return self._latest(self._fold_reports)

    @property
    def failures(self) -> tuple[PassFailure, ...]:
        """Why graphs stayed unchanged; only the latest causes if there are many."""
        with self._lock:
            return tuple(PassFailure(cause, count) for cause, count in self._failures.items())

    def _latest(self, records: dict[Any, V]) -> tuple[V, ...]:
        with self._lock:
            return tuple(reversed(records.values()))

    def check_registered(self) -> None:
        """Raises LibraryError if the plugin has no device type."""
        if not self.device_types:
            raise LibraryError(" ".join(self.refused_device_types.values()))

    def forget_reports(self) -> None:
        """Forgets reports and failures."""
        with self._lock:
            self._reports.clear()
            self._parallel_reports.clear()
            self._fold_reports.clear()
            self._failures.clear()

    @contextlib.contextmanager
    def observe(self, observer: GraphObserver) -> Iterator[None]:
        """Shows `observer` every graph that is handed over inside the `with` block."""
        with self._change_lock:
            self._observers += (observer,)
            self._update_pass()
        try:
            yield
        finally:
            with self._change_lock:
                self._observers = tuple(each for each in self._observers if each is not observer)
                self._update_pass()

    def _register(self) -> None:
        for device_type in ("CPU", "GPU"):
            if device_type == "GPU" and not self.library.build_info.cudnn_backend:
                self.refused_device_types["GPU"] = "the library was built without the cudnn backend"
                continue
            if device_type == "GPU" and not has_nvidia_gpu():
                # In TensorFlow, other makers' GPUs, which come with plugins, are also called GPU.
                self.refused_device_types["GPU"] = "there is no NVIDIA GPU with a driver"
                continue
            try:
                self.library.register_plugin(device_type)
                self.device_types += (device_type,)
            except LibraryError as error:
                self.refused_device_types[device_type] = str(error)

    def _warn_of_plugin(self, path: str) -> None:
        logging.warning(
            "%s is a graph plugin, and so is tf_interop (for %s). TensorFlow allows one for each "
            "device type and aborts at the second: load the other plugin before tf_interop.",
            path,
            " and ".join(self.device_types),
        )

    def _update_pass(self) -> None:
        # The caller holds the lock; otherwise two threads could set a pass for old settings.
        is_needed = self._settings.can_change_graphs or self._observers
        self.library.set_pass(
            self._run if is_needed else None,
            self._settings.pass_time_limit_s,
            takes_products=self._settings.divider is not None or bool(self._observers),
        )

    def _run(self, handed: HandedGraph) -> bool:
        """Called by TensorFlow; returns whether it handed a new graph back. Never raises."""
        settings, item = self._settings, handed.item
        observers = self._observers
        # Functions that XLA compiles get no units, which would compute what XLA fuses.
        if item.is_compiled and settings.makes_units(item.device_type):
            return False
        with self._leaving_the_graph():
            graph_def = graph_pb2.GraphDef.FromString(handed.serialized)
            if item.is_compiled:
                body = read_compiled_body(graph_def, item)
                graph_def = body.fused
            for observer in observers:
                observer(graph_def, item.device_type)
            # Graphs of tf.data and Sessions keep the option as it was when they were made.
            if not settings.can_change_graphs or tensorflow_internals.are_plugins_turned_off():
                return False
            if item.is_compiled and not settings.stages_all_compiled(item.device_type):
                return False
            # A graph that is not placed will not run here: it is written down, as by
            # `convert_variables_to_constants_v2`, and who reads it may not have our ops.
            if not item.is_compiled and not is_placed(graph_def):
                return False
            with time_limit(settings.pass_time_limit_s), collection_pause():
                divided = None
                if item.is_compiled:
                    made = change_compiled(body, item, settings)
                else:
                    if settings.divider is not None:
                        with self._leaving_the_graph():
                            divided = self._divide(graph_def, handed, settings.divider)
                    graph_def = divided or graph_def
                    made = change_graph(graph_def, item, settings, self._leaving_the_graph)
            self._record(made, handed, settings)
            changed = made.graph_def or divided
            if changed is not None:
                handed.set_result(changed.SerializeToString(deterministic=True))
                for observer in observers:
                    observer(changed, item.device_type)
                return True
        return False

    @contextlib.contextmanager
    def _leaving_the_graph(self) -> Iterator[None]:
        """Records a failure in the block, and continues after it."""
        try:
            yield
        except BaseException as error:
            # The user's program continues with the old graph, even after a MemoryError or a
            # SystemExit, which TensorFlow could not handle.
            self._record_failure(error)

    def _divide(
        self, graph_def: graph_pb2.GraphDef, handed: HandedGraph, divider: Divider
    ) -> graph_pb2.GraphDef | None:
        """The graph with its layers divided; None if none is."""
        item = handed.item
        divided, report = divider.divide(
            graph_def, item.nodes_to_preserve, item.infer_output_shapes, handed.name
        )
        if report is not None:
            with self._lock:
                _put_last(self._parallel_reports, report.fingerprint, report)
        return divided

    def _record(self, made: ChangedGraph, handed: HandedGraph, settings: Settings) -> None:
        function = tensorflow_internals.python_name(handed.name)
        with self._lock:
            if made.fold_report is not None:
                folded = dataclasses.replace(made.fold_report, function=function)
                _put_last(self._fold_reports, (folded.name, folded.node_count), folded)
            if made.report is not None:
                report = dataclasses.replace(made.report, function=function)
                key = (function, report.device_type, report.plan.fingerprint, report.is_compiled)
                _put_last(self._reports, key, (report, settings))

    def _record_failure(self, error: BaseException) -> None:
        cause = str(error)
        if not isinstance(error, TfInteropError):
            cause = f"{type(error).__name__}: {cause}"
        with self._lock:
            count = self._failures.get(cause, 0) + 1
            _put_last(self._failures, cause, count)
        if count == 1:
            logging.warning(
                "tf_interop left a graph unchanged: %s", cause, exc_info=logging.vlog_is_on(1)
            )


def _put_last(reports: dict[K, V], key: K, report: V) -> None:
    """Appends a report or failure, and drops the oldest beyond the limit."""
    reports.pop(key, None)
    reports[key] = report
    if len(reports) > _MOST_REPORTS:
        del reports[next(iter(reports))]


_plugin: Plugin | None = None
_plugin_lock = threading.Lock()


def _make_locks() -> None:
    global _plugin_lock
    _plugin_lock = threading.Lock()
    if _plugin is not None:
        _plugin.make_locks()


# A forked child lacks the thread that may have held a lock.
os.register_at_fork(after_in_child=_make_locks)


def get_plugin() -> Plugin:
    """The plugin; the first call loads the library and registers it.

    Raises:
        LibraryError: the library is missing or does not fit this TensorFlow.
    """
    global _plugin
    with _plugin_lock:
        if _plugin is None:
            if too_late := ask_for_all_hardware_queues():
                logging.warning("%s", too_late)
            _plugin = Plugin(load_kernel_library())
        return _plugin
