"""The status of the process's plugin, for people and programs."""

from __future__ import annotations

import collections
import dataclasses
import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tf_interop import tensorflow_internals
from tf_interop.errors import TfInteropError
from tf_interop.graph.xla import XlaFunction, find_xla_functions, xla_auto_clustering
from tf_interop.parallel.divide import ParallelReport
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.runtime.fold_pass import FoldReport
from tf_interop.runtime.kernel_library import Counters, SelfTiming, XlaCalls
from tf_interop.runtime.plugin import PassFailure, get_plugin
from tf_interop.runtime.settings import PassReport
from tf_interop.terminal import count_of


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of the plugin.

    Attributes:
        is_on: whether functions that are optimized now go through the pass.
        why_off: the reason if `is_on` is false or nothing can be made, else empty.
        policy: `profiled` or `always`; empty if the library did not load.
        device_types: those that the plugin is registered for.
        refused_device_types: the others, with the reason.
        graphs: the report of each graph, latest first.
        current_graphs: those of `graphs` that were optimized under the current settings. The
            others are optimized again at their functions' next call.
        divided_graphs: how the layers of graphs were divided over devices, latest first.
        folded_graphs: what was folded and kept in graphs, latest first.
        failures: graphs that stayed unchanged because the pass failed, with the cause.
        counters: counts of stage runs and fallbacks so far.
        self_timings: what graphs that time themselves found out, for each size of their input.
        stage_timings: what stages that time themselves found out, for each size of their inputs.
        xla_functions: functions with convolutions that XLA compiles, as the program made them. They
            have no units; the reports of those with stages are among `graphs`.
        xla_calls: calls of kernels in such functions: depthwise convolutions on a CPU, and stages.
        xla_auto_clustering: the switch that turned XLA on for all graphs, or empty.
        has_onednn: whether TensorFlow computes with oneDNN on CPUs.
    """

    is_on: bool
    why_off: str
    policy: str = ""
    device_types: tuple[str, ...] = ()
    refused_device_types: dict[str, str] = dataclasses.field(default_factory=dict)
    graphs: tuple[PassReport, ...] = ()
    current_graphs: tuple[PassReport, ...] = ()
    divided_graphs: tuple[ParallelReport, ...] = ()
    folded_graphs: tuple[FoldReport, ...] = ()
    failures: tuple[PassFailure, ...] = ()
    counters: Counters = Counters()  # noqa: RUF009 (frozen)
    self_timings: tuple[SelfTiming, ...] = ()
    stage_timings: tuple[SelfTiming, ...] = ()
    xla_functions: tuple[XlaFunction, ...] = ()
    xla_calls: XlaCalls = XlaCalls()  # noqa: RUF009 (frozen)
    xla_auto_clustering: str = ""
    has_onednn: bool = True

    @property
    def op_count(self) -> int:
        """The number of stages and units in all graphs."""
        return sum(len(report.op_names) for report in self.graphs)

    @property
    def plan(self) -> Plan:
        """The graphs with stages or units, as a plan for `enable(plan=…)`."""
        plans: dict[str, GraphPlan] = {}
        for report in reversed(self.graphs):
            if report.op_names:
                plans.setdefault(report.plan.fingerprint, report.plan)
        return Plan(
            tuple(plans.values()),
            made_with={"tensorflow": tensorflow_internals.tensorflow_version()},
        )

    def __str__(self) -> str:
        """A summary with a table of the graphs."""
        console = Console(file=io.StringIO(), width=110, highlight=False)

        def say(line: str) -> None:
            console.print(f"  {line}", markup=False, soft_wrap=True)

        policy = f", policy {self.policy}" if self.policy else ""
        console.print(f"tf_interop is {'on' if self.is_on else 'off'}{policy}", markup=False)
        if self.why_off:
            say(self.why_off)
        for device_type, reason in self.refused_device_types.items():
            say(f"not on {device_type}: {reason}")
        if self.current_graphs:
            console.print(_graph_table(self.current_graphs))
        for timing in self.self_timings:
            say(f"{_functions_of(timing, self.graphs)}: {timing}")
        current = {id(graph) for graph in self.current_graphs}
        if earlier := [graph for graph in self.graphs if id(graph) not in current]:
            say("under earlier settings, no longer in effect:")
            console.print(_graph_table(earlier))
        for divided in self.divided_graphs:
            say(str(divided))
        for folded in self.folded_graphs:
            say(str(folded))
        if self.counters.kept_computations:
            say(
                f"kept now: {self.counters.kept_bytes / 2**20:.1f} MiB, computed "
                f"{count_of(self.counters.kept_computations, 'time')}"
            )
        for why in dict.fromkeys(report.why_no_plan for report in self.current_graphs):
            if why:
                say(f"the plan has nothing for a graph: {why}")
        for failure in self.failures:
            say(f"{count_of(failure.count, 'graph')} left unchanged: {failure.cause}")
        for function in self.xla_functions:
            convolutions = count_of(function.convolution_count, "convolution")
            say(f"compiled by XLA (jit_compile=True): {function.name}, {convolutions}")
        if any(self.xla_calls):
            say(str(self.xla_calls))
        if self.xla_auto_clustering:
            how = self.xla_auto_clustering
            say(f"XLA is on for all graphs ({how}): it fuses nothing into stages")
        if not self.has_onednn and any(each.device_type == "CPU" for each in self.graphs):
            say(
                "TensorFlow computes without oneDNN on this CPU. tf_interop may gain more with it: "
                f"try {tensorflow_internals.ONEDNN_VARIABLE}=1, set before Python starts"
            )
        if self.counters.stages_run or any(report.plan.stages for report in self.graphs):
            say(f"stages run: {self.counters.stages_run}")
        if self.stage_timings:
            say(_ways_of(self.stage_timings))
        if self.counters.filters_transformed:
            say(f"filters transformed once: {self.counters.filters_transformed}")
        if self.counters.stages_replayed:
            captured = self.counters.stages_captured
            say(f"stages replayed: {self.counters.stages_replayed}, of {captured} CUDA graphs")
        # The device only matters if there are several.
        devices = self.counters.devices
        if len(devices) < 2:
            devices = {"": self.counters}
        for device, counters in devices.items():
            if device:
                say(f"{device}, stages run: {counters.stages_run}")
            prefix = f"{device}: " if device else ""
            for reason, count in counters.fallbacks.items():
                say(f"{prefix}fallback, {count_of(count, 'time')}: {reason}")
        return str(console.file.getvalue())  # type: ignore[attr-defined]


def status() -> Status:
    """Returns the status of the process's plugin. Never raises."""
    try:
        plugin = get_plugin()
    except (TfInteropError, ImportError) as error:
        return Status(is_on=False, why_off=str(error))
    is_on = tensorflow_internals.plugin_optimizers_option() is not False
    why_off = ""
    if not is_on:
        why_off = "the option use_plugin_optimizers of tf.config.optimizer is False"
    elif not plugin.device_types:
        is_on, why_off = False, "the plugin could not be registered"
    elif not plugin.settings.can_change_graphs:
        why_off = (
            "no plan is in effect, so graphs stay unchanged: pass plan= to tf_interop.enable(), "
            "or policy='always'. A callback of tf_interop.keras is in effect only during its call"
        )
    return Status(
        is_on=is_on,
        why_off=why_off,
        policy=plugin.settings.policy.value,
        device_types=plugin.device_types,
        refused_device_types=dict(plugin.refused_device_types),
        graphs=plugin.reports,
        current_graphs=plugin.current_reports,
        divided_graphs=plugin.parallel_reports,
        folded_graphs=plugin.fold_reports,
        failures=plugin.failures,
        counters=plugin.library.read_counters(),
        self_timings=tuple(plugin.library.read_self_timings()),
        stage_timings=tuple(plugin.library.read_stage_timings()),
        xla_functions=find_xla_functions(),
        xla_calls=plugin.library.read_xla_calls(),
        xla_auto_clustering=xla_auto_clustering(),
        has_onednn=tensorflow_internals.is_onednn_on(),
    )


def _ways_of(timings: Sequence[SelfTiming]) -> str:
    """How many stages run in which way."""
    ways = collections.Counter("still trying" if each.is_trying else each.way for each in timings)
    shares = ", ".join(f"{count} {way}" for way, count in ways.most_common())
    return f"stages that time themselves, for each size of their inputs: {shares}"


def _functions_of(timing: SelfTiming, graphs: Sequence[PassReport]) -> str:
    """The functions whose units share a timing."""
    names = dict.fromkeys(each.function for each in graphs if each.timed_graph == timing.name)
    return ", ".join(name for name in names if name) or "a graph"


def _graph_table(graphs: Sequence[PassReport]) -> Table:
    table = Table()
    is_tuned = any(report.plan.measured for report in graphs)
    columns = ["function", "device", "nodes", "convolutions", "made", "of operations"]
    for column in (*columns, *["tuned: times as fast"] * is_tuned, "pass", "unchanged"):
        is_text = column in ("function", "device", "unchanged")
        table.add_column(column, justify="left" if is_text else "right")
    for report in graphs:
        refused = collections.Counter(refusal.reason.value for refusal in report.refusals)
        reasons = [f"{count} {reason}" for reason, count in refused.items()]
        table.add_row(
            report.function,
            f"{report.device_type}, XLA" if report.is_compiled else report.device_type,
            str(report.node_count),
            str(report.convolution_count),
            _made(report),
            str(report.operation_count),
            *[_tuned(report.plan)] * is_tuned,
            f"{report.milliseconds:.0f} ms",
            ", ".join(reasons) or report.why_unchanged,
        )
    return table


def _made(report: PassReport) -> str:
    """Such as `5 units`, or `2 stages, up to 4 lanes`; empty if nothing was made."""
    if not report.op_names:
        return ""
    stages = [each.stage for each in report.plan.stages]
    if not stages:
        return count_of(len(report.op_names), "unit")
    widest = max(len(stage.lanes) for stage in stages)
    return f"{count_of(len(stages), 'stage')}, up to {count_of(widest, 'lane')}"


def _tuned(plan: GraphPlan) -> str:
    """What a plan has measured for a graph."""
    if plan.measured is None:
        return ""
    ours = plan.measured.ours
    size = "" if plan.batch_size is None else f" at batch {plan.batch_size}"
    return f"{ours.ratio:.2f} ± {ours.error or 0:.2f}{size}"
