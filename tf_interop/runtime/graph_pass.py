"""Replaces independent convolutions of a graph by ConvStage nodes, or its units by Unit nodes.

    before                              after

    x ── Conv2D a ── …                  x ─┬─ ConvStage stage_0 ─┬─ stage_0    ── …
    x ── Conv2D b ── …                  x ─┘  (lanes a, b)       └─ stage_0:1  ── …

    x ── Conv2D a ── Relu b ── …        x ─┬─ Unit b (steps a, b) ── …
    x ── Conv2D c ── Relu d ── …           └─ Unit d (steps c, d) ── …

GPUs get stages, and CPUs units, which find out by themselves how they run fastest. Under the policy
`always` each unit runs on one core.

This module only calls the parts of the pass in order: check the graph, find, plan, check the
planned stages, rewrite, check the graph.

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
import dataclasses
import hashlib
import time
from collections.abc import Callable, Collection, Sequence

from tensorflow.core.framework import graph_pb2

from tf_interop.convolution import (
    ConvolutionNode,
    Refusal,
)
from tf_interop.errors import PlanError
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
from tf_interop.graph.landmarks import find_structure
from tf_interop.graph.ops import CONVOLUTION_KINDS
from tf_interop.graph.program import CONV_STAGE_OP, UNIT_OP
from tf_interop.graph.properties import GraphProperties, ShapeInference
from tf_interop.graph.rewrite import rewrite_stages, rewrite_units
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.units import ANCHOR_OPS, Unit, find_units, is_small_unit, unit_name
from tf_interop.graph.view import GraphView, device_type_of, is_local
from tf_interop.graph.whole_unit import find_whole_unit
from tf_interop.measure.device import has_bfloat16
from tf_interop.planning.always import group_always, leave_out_unmeasured
from tf_interop.planning.check import check_stages
from tf_interop.planning.lookup import (
    STAGES_NEED_GPUS,
    measured_entry,
    mode_of,
    stages_from_plan,
)
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.runtime.kernel_library import HandedGraph
from tf_interop.runtime.settings import PassReport, Policy, Settings
from tf_interop.structure import Structure

_Rewrite = Callable[[], graph_pb2.GraphDef]


def run_conv_stage_pass(
    graph_def: graph_pb2.GraphDef,
    settings: Settings,
    device_type: str,
    nodes_to_preserve: Collection[str] = (),
    infer_output_shapes: ShapeInference | None = None,
    fetches: Collection[str] = (),
    *,
    folded: graph_pb2.GraphDef | None = None,
    is_compiled: bool = False,
) -> tuple[graph_pb2.GraphDef | None, PassReport | None]:
    """Runs the pass on one graph.

    Args:
        graph_def: the graph, by whose convolutions a plan finds it; it is not changed.
        settings: what to make stages or units from; `can_make_stages` is true.
        device_type: `CPU` or `GPU`; convolutions on other devices stay as they are.
        nodes_to_preserve: names that must stay.
        infer_output_shapes: called only if the settings need shapes that the attributes lack.
        fetches: the nodes or tensors that the graph is run for; empty if unknown.
        folded: the graph after folding, from which units are made.
        is_compiled: whether XLA compiles the graph.

    Returns:
        The new graph, or None if nothing changed; and a report, or None if the graph has no
        convolution for the device type, or has stages or units already.

    Raises:
        GraphError: the graph is not well-formed.
        PlanError: the plan is for another graph or not legal for this one.
        TimeLimitError: it took longer than the `time_limit` around it.
    """
    start = time.perf_counter()
    # Grappler hands every graph over a second time, so this comes before any indexing.
    if any(
        node.op in (CONV_STAGE_OP, UNIT_OP) and _is_on(node.device, device_type)
        for node in graph_def.node
    ):
        return None, None
    view = GraphView(graph_def, nodes_to_preserve, fetches)
    convolutions, refusals = _convolutions_on(device_type, view, settings, infer_output_shapes)
    if not convolutions and not refusals:
        return None, None

    structure = find_structure(view, convolutions)
    check_time_limit()
    if settings.makes_units(device_type):
        view = view if folded is None else GraphView(folded, nodes_to_preserve, fetches)
        properties = GraphProperties(view, infer_output_shapes)
        rewrite, report = _plan_units(settings, view, properties, convolutions, structure)
    else:
        rewrite, report = _plan_stages(
            settings, device_type, view, convolutions, refusals, structure, is_compiled
        )
    rewritten = None
    if rewrite is not None:
        check_time_limit()
        rewritten = rewrite()
        check_time_limit()
        check_rewrite(view, GraphView(rewritten))
    check_time_limit()
    milliseconds = (time.perf_counter() - start) * 1e3
    return rewritten, dataclasses.replace(report, milliseconds=milliseconds)


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


def read_compiled_body(graph_def: graph_pb2.GraphDef, handed: HandedGraph) -> CompiledBody:
    """Prepares a handed body for the pass.

    Raises:
        GraphError: the graph is not well-formed.
    """
    whole = GraphView(graph_def, handed.nodes_to_preserve, handed.fetches)
    view = without_unread_convolutions(whole)
    epilogues = find_epilogues(view, GraphProperties(view, handed.infer_output_shapes))
    return CompiledBody(view, epilogues, fuse_epilogues(view, epilogues))


def run_compiled_pass(
    body: CompiledBody, settings: Settings, handed: HandedGraph
) -> tuple[graph_pb2.GraphDef | None, PassReport | None]:
    """Runs the pass on the body of a function that XLA compiles.

    Returns and raises as `run_conv_stage_pass` does.
    """
    changed, report = run_conv_stage_pass(
        body.fused,
        settings,
        handed.device_type,
        handed.nodes_to_preserve,
        handed.infer_output_shapes,
        handed.fetches,
        is_compiled=True,
    )
    if changed is not None:
        changed = separate_epilogues(changed, body.original, body.epilogues)
        GraphView(changed)  # raises if an input is missing
    if report is not None:
        plan = dataclasses.replace(report.plan, jit_compile=True)
        report = dataclasses.replace(report, plan=plan)
    return changed, report


def report_left_as_stock(
    graph_def: graph_pb2.GraphDef, settings: Settings, handed: HandedGraph
) -> PassReport | None:
    """A report if the plan says that stock TensorFlow is faster than the changed graph; else None.

    `graph_def` is the handed graph, perhaps divided.

    Raises:
        GraphError: the graph is not well-formed.
    """
    plan = settings.plan
    is_measured_here = handed.device_type == "CPU"
    if plan is None or not is_measured_here or not any(each.as_stock for each in plan.graphs):
        return None
    start = time.perf_counter()
    view = GraphView(graph_def, handed.nodes_to_preserve, handed.fetches)
    convolutions, refusals = _convolutions_on(
        handed.device_type, view, settings, handed.infer_output_shapes
    )
    try:
        entry = measured_entry(plan, convolutions, find_structure(view, convolutions))
    except PlanError:
        return None
    if not entry.as_stock:
        return None
    return PassReport(
        device_type=handed.device_type,
        node_count=len(view),
        convolution_count=len(convolutions),
        refusals=refusals,
        plan=entry,
        milliseconds=(time.perf_counter() - start) * 1e3,
        why_unchanged="tuned: stock TensorFlow is fastest",
        is_in_plan=True,
    )


def _convolutions_on(
    device_type: str,
    view: GraphView,
    settings: Settings,
    infer_output_shapes: ShapeInference | None,
) -> tuple[tuple[ConvolutionNode, ...], tuple[Refusal, ...]]:
    """The convolutions on devices of a type, and those that stay unchanged there."""
    # The batch size decides which entry of a plan applies to the graph.
    needs_batch_size = settings.plan is not None and any(
        graph.batch_size is not None for graph in settings.plan.graphs
    )
    found, refused = find_convolutions(
        view, GraphProperties(view, infer_output_shapes if needs_batch_size else None)
    )
    convolutions = tuple(node for node in found if _is_on(node.device, device_type))
    refusals = tuple(
        refusal
        for refusal in refused
        if _is_on(view.nodes[view.index_of[refusal.node]].device, device_type)
    )
    return convolutions, refusals


def _is_on(device: str, device_type: str) -> bool:
    # A node without a device yet belongs to the first device type that sees it.
    return device_type_of(device) in ("", device_type) and is_local(device)


def _plan_stages(
    settings: Settings,
    device_type: str,
    view: GraphView,
    convolutions: tuple[ConvolutionNode, ...],
    refusals: tuple[Refusal, ...],
    structure: Structure,
    is_compiled: bool,
) -> tuple[_Rewrite | None, PassReport]:
    """Plans the stages of a graph.

    Returns:
        How the graph gets them, or None if it has none; and the report.
    """
    candidates = convolutions
    stages_all = is_compiled and settings.stages_all_compiled(device_type)
    if settings.policy is Policy.ALWAYS or stages_all:
        candidates, unmeasured = leave_out_unmeasured(
            convolutions, device_type, has_bfloat16=has_bfloat16()
        )
        refusals += unmeasured
    if settings.plan is not None and convolutions:
        alone = candidates if stages_all else ()
        stages = stages_from_plan(settings.plan, convolutions, structure, alone)
    elif settings.policy is Policy.ALWAYS or stages_all:
        stages = group_always(candidates, Independence(view, candidates))
    else:
        stages = ()
    why_unchanged = ""
    if not stages:
        missing = "no convolution can be in a stage"
        why_unchanged = "the plan leaves this graph unchanged" if candidates else missing
    report = PassReport(
        device_type=device_type,
        node_count=len(view),
        convolution_count=len(candidates),
        refusals=refusals,
        plan=GraphPlan(structure.fingerprint, structure.landmarks, stages),
        # Without an entry there would be an error.
        is_in_plan=settings.plan is not None and bool(candidates),
        why_unchanged=why_unchanged,
    )
    if not stages:
        return None, report
    check_time_limit()
    check_stages(stages, view, convolutions)
    ways = [each.ways for each in stages]
    are_timed = settings.stages_time_themselves(device_type)
    return lambda: rewrite_stages(view, ways, are_timed=are_timed), report


def _plan_units(
    settings: Settings,
    view: GraphView,
    properties: GraphProperties,
    convolutions: Sequence[ConvolutionNode],
    structure: Structure,
) -> tuple[_Rewrite | None, PassReport]:
    """Plans the units of a graph: each on one core, or such that they time themselves.

    `convolutions` and `structure` are those before folding.

    Returns:
        As `_plan_stages` does.
    """
    units, refused = find_units(view, properties)
    report = PassReport(
        device_type="CPU",
        node_count=len(view),
        convolution_count=len(convolutions),
        refusals=tuple(each for each in refused if each.op in CONVOLUTION_KINDS),
        plan=GraphPlan(structure.fingerprint, structure.landmarks),
    )
    if settings.plan is not None:
        report = _with_plan(report, settings.plan, convolutions, structure)
    timed_graph = ""
    if settings.policy is not Policy.ALWAYS:
        if not settings.times_itself:
            return None, dataclasses.replace(report, why_unchanged="self-timing is off")
        if mode_of(convolutions) == "inference":
            units = _as_one(view, properties, units)
        units = _of_one_region(view, properties, units)
        # Functions with the same units share their times, such as one that is traced again. A trace
        # for one image, whose batch cannot be divided, has others.
        steps = [([view.names[step] for step in unit.steps], bool(unit.split)) for unit in units]
        timed_graph = hashlib.sha256(repr((structure.fingerprint, steps)).encode()).hexdigest()[:16]
    if not units:
        why = "no operation of the graph can be in a unit, or all are small"
        return None, dataclasses.replace(report, why_unchanged=why)
    report = dataclasses.replace(
        report,
        unit_names=tuple(unit_name(view, unit) for unit in units),
        unit_op_count=sum(len(unit.steps) for unit in units),
        timed_graph=timed_graph,
    )
    shapes = properties.output_shape
    return (
        lambda: rewrite_units(view, units, output_shapes=shapes, timed_graph=timed_graph),
        report,
    )


def _with_plan(
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
