"""Folds a graph, and replaces its convolutions by ConvStage nodes or its units by Unit nodes.

    before                              after

    x ── Conv2D a ── …                  x ─┬─ ConvStage stage_0 ─┬─ stage_0    ── …
    x ── Conv2D b ── …                  x ─┘  (lanes a, b)       └─ stage_0:1  ── …

    x ── Conv2D a ── Relu b ── …        x ─┬─ Unit b (steps a, b) ── …
    x ── Conv2D c ── Relu d ── …           └─ Unit d (steps c, d) ── …

GPUs get stages, and CPUs units, which find out by themselves how they run fastest. Under the policy
`always` each unit runs on one core.

This module only calls the parts of the pass in order: check the graph, find, look up the plan,
fold, plan, check the planned stages, rewrite, check the graph. Plans of stages are for folded
graphs; what a plan knows of units is for the graph before folding.

Preconditions, each checked where it is needed:
  1. the graph is well-formed and acyclic;
  2. the steps of a stage or unit are on one device, in one control-flow region, and depend on each
     other only along a lane;
  3. all stages or units together leave the graph acyclic;
  4. the graph has no stage or unit of this device type yet.

The pass keeps names that must be preserved, fetch names, control dependencies, devices and the
function library. A second run changes nothing. The same graph gives the same bytes.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import ConvolutionNode, Refusal
from tf_interop.errors import LibraryError, PlanError
from tf_interop.graph.check import check_rewrite
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.epilogues import (
    Epilogue,
    find_epilogues,
    fuse_epilogues,
    separate_epilogues,
    without_unread_convolutions,
)
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.independence import Independence
from tf_interop.graph.join import join_kept
from tf_interop.graph.landmarks import find_structure
from tf_interop.graph.ops import CONVOLUTION_KINDS
from tf_interop.graph.program import CONV_STAGE_OP, UNIT_OP
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.rewrite import rewrite_stages, rewrite_units
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.units import ANCHOR_OPS, Unit, find_units, is_small_unit
from tf_interop.graph.view import GraphView, device_type_of, is_local
from tf_interop.graph.whole_unit import find_whole_unit
from tf_interop.measure.device import has_bfloat16
from tf_interop.parallel.divide import was_divided
from tf_interop.planning.always import group_always, leave_out_unmeasured
from tf_interop.planning.check import check_stages
from tf_interop.planning.lookup import (
    STAGES_NEED_GPUS,
    measured_entry,
    mode_of,
    stages_from_plan,
)
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.runtime.fold_pass import FoldReport, arrange_filters, run_fold_pass, view_of
from tf_interop.runtime.settings import GraphItem, PassReport, Policy, Settings
from tf_interop.structure import Structure

_Rewrite = Callable[[], graph_pb2.GraphDef]


class ChangedGraph(NamedTuple):
    """The result of the pass for one graph.

    Attributes:
        graph_def: the new graph; None if nothing changed.
        report: None if it has no convolution for the device type, or has stages or units already.
        fold_report: None if there was nothing to fold.
    """

    graph_def: graph_pb2.GraphDef | None = None
    report: PassReport | None = None
    fold_report: FoldReport | None = None


def change_graph(
    graph_def: graph_pb2.GraphDef,
    item: GraphItem,
    settings: Settings,
    part: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> ChangedGraph:
    """Runs the pass on a graph of Grappler's, which is not changed.

    Each of its parts runs in a context of `part`, which may catch the part's errors: the pass then
    continues without it.

    Raises:
        GraphError: the graph is not well-formed.
        LibraryError: the GPU is not an NVIDIA GPU.
        PlanError: the plan is for another graph or not legal for this one.
        TimeLimitError: it took longer than the `time_limit` around it.
    """
    start = time.perf_counter()
    makes_units = settings.makes_units(item.device_type)
    makes_ops = settings.can_make_stages or (settings.times_itself and makes_units)
    found: _Found | None = None
    report: PassReport | None = None
    fold_report: FoldReport | None = None
    folded: graph_pb2.GraphDef | None = None
    changed: graph_pb2.GraphDef | None = None
    if makes_ops and makes_units:
        with part():
            found = _find(graph_def, item, settings)
    if found is not None and found.report.plan.as_stock:
        why = "tuned: stock TensorFlow is fastest"
        left = dataclasses.replace(found.report, why_unchanged=why)
        return ChangedGraph(report=_timed(left, start))
    if settings.can_fold(item.device_type):
        with part():
            # Nothing is tried under op determinism.
            has_onednn = tensorflow_internals.is_onednn_on() or (
                makes_units
                and settings.times_itself
                and not tensorflow_internals.is_op_determinism_on()
            )
            folded, fold_report = run_fold_pass(
                graph_def, item, settings.kept_mb, has_onednn=has_onednn
            )
    if makes_ops:
        with part():
            if not makes_units:
                found = _find(folded or graph_def, item, settings)
            if found is not None:
                changed, report = _make_ops(found, folded or graph_def, item, settings)
    changed = changed or folded
    if folded is not None and item.device_type == "CPU":
        # Without this a folded graph may not be run by several threads at once.
        folded, changed = changed, None
        with part():
            arranged = arrange_filters(folded, item) or folded
            changed = join_kept(arranged, item.nodes_to_preserve) or arranged
        if changed is None:  # nothing of what the reports say was done
            return ChangedGraph()
    return ChangedGraph(changed, report and _timed(report, start), fold_report)


@dataclasses.dataclass(frozen=True)
class CompiledBody:
    """The body of a function that XLA compiles.

    Attributes:
        original: without convolutions that nothing reads.
        epilogues: those of `original`.
        fused: with these in their convolutions; plans are for this graph.
    """

    original: GraphView
    epilogues: tuple[Epilogue, ...]
    fused: graph_pb2.GraphDef


def read_compiled_body(graph_def: graph_pb2.GraphDef, item: GraphItem) -> CompiledBody:
    """Prepares a body for the pass.

    Raises:
        GraphError: the graph is not well-formed.
    """
    view = without_unread_convolutions(view_of(graph_def, item))
    epilogues = find_epilogues(view, GraphProperties(view, item.infer_output_shapes))
    return CompiledBody(view, epilogues, fuse_epilogues(view, epilogues))


def change_compiled(body: CompiledBody, item: GraphItem, settings: Settings) -> ChangedGraph:
    """Makes the stages of a function that XLA compiles; raises as `change_graph` does."""
    start = time.perf_counter()
    found = _find(body.fused, item, settings)
    if found is None:
        return ChangedGraph()
    changed, report = _make_ops(found, body.fused, item, settings)
    if changed is not None:
        changed = separate_epilogues(changed, body.original, body.epilogues)
        GraphView(changed)  # raises if an input is missing
    report = dataclasses.replace(report, plan=dataclasses.replace(report.plan, jit_compile=True))
    return ChangedGraph(changed, _timed(report, start))


def _timed(report: PassReport, start: float) -> PassReport:
    return dataclasses.replace(report, milliseconds=(time.perf_counter() - start) * 1e3)


@dataclasses.dataclass(frozen=True)
class _Found:
    """What the pass found in a graph.

    Attributes:
        convolutions: those on the item's devices.
        report: for units with what the plan has measured for the graph.
    """

    view: GraphView
    convolutions: tuple[ConvolutionNode, ...]
    structure: Structure
    report: PassReport


def _find(graph_def: graph_pb2.GraphDef, item: GraphItem, settings: Settings) -> _Found | None:
    """Finds the convolutions of a graph; None if there are none, or it has been changed before."""
    # Grappler hands every graph over a second time, so this comes before any indexing.
    if any(_is_made(node, item) for node in graph_def.node):
        return None
    if item.device_type == "GPU" and tensorflow_internals.has_pluggable_gpu():
        raise LibraryError(
            "The GPU is a pluggable device, not an NVIDIA GPU, so cuDNN does not run on it."
        )
    view = view_of(graph_def, item)
    # The batch size decides which entry of a plan applies to the graph.
    needs_batch_size = settings.plan is not None and any(
        graph.batch_size is not None for graph in settings.plan.graphs
    )
    found, refused = find_convolutions(
        view, GraphProperties(view, item.infer_output_shapes if needs_batch_size else None)
    )
    convolutions = tuple(node for node in found if _is_on(node.device, item))
    refusals = tuple(
        refusal
        for refusal in refused
        if _is_on(view.nodes[view.index_of[refusal.node]].device, item)
    )
    if not convolutions and not refusals:
        return None
    structure = find_structure(view, convolutions)
    check_time_limit()
    report = PassReport(
        device_type=item.device_type,
        node_count=len(view),
        convolution_count=len(convolutions),
        refusals=refusals,
        plan=GraphPlan(structure.fingerprint, structure.landmarks),
    )
    if settings.plan is not None and settings.makes_units(item.device_type):
        report = _with_measured(report, settings.plan, convolutions, structure)
    return _Found(view, convolutions, structure, report)


def _with_measured(
    report: PassReport, plan: Plan, convolutions: Sequence[ConvolutionNode], structure: Structure
) -> PassReport:
    """A report with what a plan has measured for the graph, or why it has nothing."""
    if plan.graphs and all(each.stages for each in plan.graphs):
        return dataclasses.replace(report, why_no_plan=STAGES_NEED_GPUS)
    try:
        entry = measured_entry(plan, convolutions, structure)
    except PlanError as error:
        return dataclasses.replace(report, why_no_plan=str(error))
    return dataclasses.replace(report, plan=entry, is_in_plan=True)


def _is_made(node: node_def_pb2.NodeDef, item: GraphItem) -> bool:
    return node.op in (CONV_STAGE_OP, UNIT_OP) and _is_on(node.device, item)


def _is_on(device: str, item: GraphItem) -> bool:
    # A node without a device yet belongs to the first device type that sees it.
    return device_type_of(device) in ("", item.device_type) and is_local(device)


def _make_ops(
    found: _Found, graph_def: graph_pb2.GraphDef, item: GraphItem, settings: Settings
) -> tuple[graph_pb2.GraphDef | None, PassReport]:
    """Makes the stages or units of a graph, which is the one where they were found, or folded."""
    view = found.view if graph_def is found.view.graph_def else view_of(graph_def, item)
    plan = _plan_units if settings.makes_units(item.device_type) else _plan_stages
    rewrite, report = plan(found, view, item, settings)
    rewritten = None
    check_time_limit()
    if rewrite is not None:
        rewritten = rewrite()
        check_time_limit()
        check_rewrite(view, view_of(rewritten, item))
        check_time_limit()
        made = [node for node in rewritten.node if _is_made(node, item)]
        report = dataclasses.replace(
            report,
            op_names=tuple(node.name for node in made),
            operation_count=sum(len(node.attr["steps"].list.s) for node in made),
        )
    return rewritten, dataclasses.replace(report, node_count=len(view))


def _plan_stages(
    found: _Found, view: GraphView, item: GraphItem, settings: Settings
) -> tuple[_Rewrite | None, PassReport]:
    """Plans the stages of a graph.

    Returns:
        How the graph gets them, or None if it has none; and the report.
    """
    convolutions = candidates = found.convolutions
    refusals: tuple[Refusal, ...] = found.report.refusals
    stages_all = item.is_compiled and settings.stages_all_compiled(item.device_type)
    if settings.policy is Policy.ALWAYS or stages_all:
        candidates, unmeasured = leave_out_unmeasured(
            convolutions, item.device_type, has_bfloat16=has_bfloat16()
        )
        refusals += unmeasured
    if settings.plan is not None and convolutions:
        alone = candidates if stages_all else ()
        try:
            stages = stages_from_plan(settings.plan, convolutions, found.structure, alone)
        except PlanError as error:
            raise PlanError(_why_not_in_plan(error, found, item, settings)) from error
    elif settings.policy is Policy.ALWAYS or stages_all:
        stages = group_always(candidates, Independence(view, candidates))
    else:
        stages = ()
    report = dataclasses.replace(
        found.report,
        convolution_count=len(candidates),
        refusals=refusals,
        plan=dataclasses.replace(found.report.plan, stages=stages),
        # Without an entry there would be an error.
        is_in_plan=settings.plan is not None and bool(candidates),
    )
    if not stages:
        missing = "no convolution can be in a stage"
        why = "the plan leaves this graph unchanged" if candidates else missing
        return None, dataclasses.replace(report, why_unchanged=why)
    check_time_limit()
    check_stages(stages, view, convolutions)
    ways = [each.ways for each in stages]
    are_timed = settings.stages_time_themselves(item.device_type)
    return lambda: rewrite_stages(view, ways, are_timed=are_timed), report


def _why_not_in_plan(error: PlanError, found: _Found, item: GraphItem, settings: Settings) -> str:
    if item.is_compiled:
        return (
            f"{error} This function is compiled by XLA, so its graph is another: nothing is "
            "folded in it, and functions that it calls are graphs of their own. Profile and "
            "plan it with jit_compile=True (on the command line: --jit-compile)."
        )
    if was_divided(found.view.graph_def):
        return (
            "The plan does not fit this graph, whose layers the parallel plan divides. Use "
            "one of the two plans, or the parallel plan with policy 'always'."
        )
    if not settings.kept_mb:
        return (
            f"{error} Stages are planned for graphs with folded parameters, and folding "
            "is off. Turn it on: call enable() without kept=False and kept_mb=0."
        )
    return str(error)


def _plan_units(
    found: _Found, view: GraphView, item: GraphItem, settings: Settings
) -> tuple[_Rewrite | None, PassReport]:
    """Plans the units of a graph: each on one core, or such that they time themselves.

    Returns:
        As `_plan_stages` does.
    """
    properties = GraphProperties(view, item.infer_output_shapes)
    units, refused = find_units(view, properties)
    report = dataclasses.replace(
        found.report, refusals=tuple(each for each in refused if each.op in CONVOLUTION_KINDS)
    )
    timed_graph = ""
    if settings.policy is not Policy.ALWAYS:
        if not settings.times_itself:
            return None, dataclasses.replace(report, why_unchanged="self-timing is off")
        if mode_of(found.convolutions) == "inference":
            units = _as_one(view, properties, units)
        units = _of_one_region(view, properties, units)
        # Functions with the same units share their times, such as one that is traced again. A trace
        # for one image, whose batch cannot be divided, has others.
        steps = [([view.names[step] for step in unit.steps], bool(unit.split)) for unit in units]
        identity = repr((found.structure.fingerprint, steps))
        timed_graph = hashlib.sha256(identity.encode()).hexdigest()[:16]
    if not units:
        why = "no operation of the graph can be in a unit, or all are small"
        return None, dataclasses.replace(report, why_unchanged=why)
    shapes = properties.output_shape
    return (
        lambda: rewrite_units(view, units, output_shapes=shapes, timed_graph=timed_graph),
        dataclasses.replace(report, timed_graph=timed_graph),
    )


def _as_one(
    view: GraphView, properties: GraphProperties, units: tuple[Unit, ...]
) -> tuple[Unit, ...]:
    """One unit in place of all, if it has all their convolutions and products."""
    whole = find_whole_unit(view, properties)
    anchors = {step for unit in units for step in unit.steps if view.ops[step] in ANCHOR_OPS}
    return (whole,) if whole is not None and anchors <= set(whole.steps) else units


def _of_one_region(
    view: GraphView, properties: GraphProperties, units: Sequence[Unit]
) -> tuple[Unit, ...]:
    """The large units in the control-flow region of most.

    A step is one run of all of them. Small ones stay ops, because one that runs first would hide
    the sizes of the step's input.
    """
    control_flow = ControlFlow(view)
    large = [unit for unit in units if not is_small_unit(view, properties, unit)]
    regions = collections.Counter(control_flow.region(unit.head) for unit in large)
    most = {region for region, _ in regions.most_common(1)}
    return tuple(unit for unit in large if control_flow.region(unit.head) in most)
