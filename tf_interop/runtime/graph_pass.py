"""Replaces independent convolutions of a graph by ConvStage nodes, or its units by Unit nodes.

    before                              after

    x ── Conv2D a ── …                  x ─┬─ ConvStage stage_0 ─┬─ stage_0    ── …
    x ── Conv2D b ── …                  x ─┘  (lanes a, b)       └─ stage_0:1  ── …

    x ── Conv2D a ── Relu b ── …        x ─┬─ Unit b (steps a, b) ── …
    x ── Conv2D c ── Relu d ── …           └─ Unit d (steps c, d) ── …

GPUs get stages, and CPUs units. TensorFlow's executor runs independent ops together, so independent
narrow units run side by side, each on its own core, or on the few that a plan gives it. A split
unit runs all of its steps once for each part of the batch.

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
from collections.abc import Collection, Sequence

from tensorflow.core.framework import graph_pb2

from tf_interop.convolution import (
    ConvolutionNode,
    Refusal,
    batch_size_of,
)
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
from tf_interop.graph.rewrite import ON_ONE_CORE, Cores, rewrite_stages, rewrite_units
from tf_interop.graph.split_units import find_split_units, find_whole_unit
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.units import ANCHOR_OPS, Unit, find_units, is_small_unit, unit_name
from tf_interop.graph.view import GraphView, device_type_of, is_local
from tf_interop.measure.device import has_bfloat16
from tf_interop.planning.always import group_always, leave_out_unmeasured
from tf_interop.planning.check import check_stages
from tf_interop.planning.lookup import (
    STAGES_NEED_GPUS,
    check_batch_size,
    entries_to_run,
    is_unfolded,
    mode_of,
    stages_from_plan,
)
from tf_interop.planning.types import GraphPlan, PlannedStage
from tf_interop.runtime.kernel_library import HandedGraph
from tf_interop.runtime.settings import PassReport, Policy, Settings
from tf_interop.structure import Structure


def run_conv_stage_pass(
    graph_def: graph_pb2.GraphDef,
    settings: Settings,
    device_type: str,
    nodes_to_preserve: Collection[str] = (),
    infer_output_shapes: ShapeInference | None = None,
    fetches: Collection[str] = (),
    *,
    folded: graph_pb2.GraphDef | None = None,
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
    view = GraphView(graph_def)
    convolutions, refusals = _convolutions_on(
        device_type, view, settings, nodes_to_preserve, infer_output_shapes, fetches
    )
    if not convolutions and not refusals:
        return None, None

    structure = find_structure(view, convolutions)
    check_time_limit()
    if settings.makes_units(device_type):
        units_view = view if folded is None else GraphView(folded)
        properties = GraphProperties(units_view, infer_output_shapes)
        rewritten, report = _make_units(
            units_view, properties, settings, convolutions, structure, nodes_to_preserve, fetches
        )
    else:
        candidates = convolutions
        if settings.policy is Policy.ALWAYS:
            candidates, unmeasured = leave_out_unmeasured(
                convolutions, device_type, has_bfloat16=has_bfloat16()
            )
            refusals += unmeasured
        stages = _plan_stages(settings, view, candidates, structure)
        rewritten = None
        if stages:
            check_time_limit()
            check_stages(stages, view, convolutions)
            rewritten = rewrite_stages(
                view,
                [each.ways for each in stages],
                nodes_to_preserve,
                are_timed=settings.stages_time_themselves(device_type),
            )
            check_time_limit()
            check_rewrite(view, GraphView(rewritten), nodes_to_preserve, fetches=fetches)
        report = PassReport(
            device_type=device_type,
            node_count=len(view),
            convolution_count=len(candidates),
            refusals=refusals,
            plan=GraphPlan(structure.fingerprint, structure.landmarks, stages),
            why_unchanged=""
            if stages
            else _why_unchanged(candidates, "no convolution can be in a stage"),
        )
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
    view = GraphView(without_unread_convolutions(graph_def, handed.nodes_to_preserve))
    properties = GraphProperties(view, handed.infer_output_shapes)
    epilogues = find_epilogues(view, properties, handed.nodes_to_preserve)
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
    )
    if changed is not None:
        changed = separate_epilogues(changed, body.original, body.epilogues)
        GraphView(changed)  # raises if an input is missing
    if report is not None:
        plan = dataclasses.replace(report.plan, jit_compile=True)
        report = dataclasses.replace(report, plan=plan)
    return changed, report


def plan_leaves_unfolded(
    graph_def: graph_pb2.GraphDef, settings: Settings, handed: HandedGraph
) -> bool:
    """Whether the plan says that stock TensorFlow is faster than the graph folded.

    `graph_def` is the handed graph, perhaps divided.

    Raises:
        GraphError: the graph is not well-formed.
    """
    plan = settings.plan
    if plan is None or not any(graph.unfolded for graph in plan.graphs):
        return False
    view = GraphView(graph_def)
    convolutions, _ = _convolutions_on(
        handed.device_type,
        view,
        settings,
        handed.nodes_to_preserve,
        handed.infer_output_shapes,
        handed.fetches,
    )
    return is_unfolded(plan, convolutions, find_structure(view, convolutions))


def _convolutions_on(
    device_type: str,
    view: GraphView,
    settings: Settings,
    nodes_to_preserve: Collection[str],
    infer_output_shapes: ShapeInference | None,
    fetches: Collection[str],
) -> tuple[tuple[ConvolutionNode, ...], tuple[Refusal, ...]]:
    """The convolutions on devices of a type, and those that are left alone there."""
    # The batch size decides which entry of a plan applies to the graph.
    needs_batch_size = settings.plan is not None and any(
        graph.batch_size is not None for graph in settings.plan.graphs
    )
    found, refused = find_convolutions(
        view,
        GraphProperties(view, infer_output_shapes if needs_batch_size else None),
        nodes_to_preserve=nodes_to_preserve,
        fetches=fetches,
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
    view: GraphView,
    convolutions: tuple[ConvolutionNode, ...],
    structure: Structure,
) -> tuple[PlannedStage, ...]:
    if not convolutions:
        return ()
    if settings.policy is Policy.ALWAYS:
        return group_always(convolutions, Independence(view, convolutions))
    if settings.plan is None:
        return ()
    return stages_from_plan(settings.plan, convolutions, structure)


def _why_unchanged(found: Collection[object], what_is_missing: str) -> str:
    return "the plan leaves this graph unchanged" if found else what_is_missing


def _make_units(
    view: GraphView,
    properties: GraphProperties,
    settings: Settings,
    convolutions: Sequence[ConvolutionNode],
    structure: Structure,
    nodes_to_preserve: Collection[str],
    fetches: Collection[str],
) -> tuple[graph_pb2.GraphDef | None, PassReport]:
    """Finds the units of a graph, and makes them narrow or splits them as the settings require.

    `convolutions` and `structure` are those before folding.

    Returns:
        The new graph, or None if it has no narrow or split units; and the report.
    """
    units, refused = find_units(
        view, properties, nodes_to_preserve=nodes_to_preserve, fetches=fetches
    )
    report = PassReport(
        device_type="CPU",
        node_count=len(view),
        convolution_count=len(convolutions),
        refusals=tuple(each for each in refused if each.op in CONVOLUTION_KINDS),
        plan=GraphPlan(structure.fingerprint, structure.landmarks),
        unit_count=len(units),
    )
    plan = settings.plan
    modes = {each.mode for each in plan.graphs} if plan is not None else set()
    mode = mode_of(convolutions)
    is_other_mode = modes == {"training"} and mode == "inference"
    entries = () if plan is None or is_other_mode else entries_to_run(plan, convolutions, structure)
    if settings.times_itself and units and not entries:
        if mode == "inference":
            units = _as_one(view, properties, units, nodes_to_preserve, fetches)
            report = dataclasses.replace(report, unit_count=len(units))
        return _time_units(view, properties, units, report, nodes_to_preserve, fetches)
    if is_other_mode:
        # This is no mistake (it happens in validation under `fit`), so there is no warning.
        why = "the plan is for training only; tune with training=False for this graph"
        return None, dataclasses.replace(report, why_unchanged=why)
    batch_size = batch_size_of(node.configuration for node in convolutions)
    if entries and batch_size is not None:
        check_batch_size(entries, batch_size)
    are_split = _are_split(entries)
    if are_split:
        units = find_split_units(
            view, properties, nodes_to_preserve=nodes_to_preserve, fetches=fetches
        )
        report = dataclasses.replace(report, unit_count=len(units))
    cores: Cores = ON_ONE_CORE
    if settings.policy is not Policy.ALWAYS:
        cores = _cores_of_plan(entries, are_split, batch_size)
    if not (units and cores):
        why = _why_unchanged(units, "no operation of the graph can be in a unit")
        if any(each.stages for each in entries):
            why = STAGES_NEED_GPUS
        return None, dataclasses.replace(report, why_unchanged=why)

    check_time_limit()
    rewritten = rewrite_units(
        view,
        units,
        nodes_to_preserve,
        cores=[cores] * len(units),
        output_shapes=properties.output_shape,
    )
    check_time_limit()
    check_rewrite(view, GraphView(rewritten), nodes_to_preserve, fetches=fetches)
    made = dataclasses.replace(
        report.plan,
        unit_count=len(units),
        unit_cores=max(cores.values()),
        are_split=are_split,
        # A number that was measured for another graph, such as one with another loss, is not its.
        measured=next((each.measured for each in entries if each.unit_count == len(units)), None)
        if len(entries) == 1
        else None,
    )
    return rewritten, dataclasses.replace(_with_units(report, view, units), plan=made)


def _as_one(
    view: GraphView,
    properties: GraphProperties,
    units: tuple[Unit, ...],
    nodes_to_preserve: Collection[str],
    fetches: Collection[str],
) -> tuple[Unit, ...]:
    """One unit in place of all, if it has all their convolutions and products."""
    whole = find_whole_unit(view, properties, nodes_to_preserve=nodes_to_preserve, fetches=fetches)
    anchors = {step for unit in units for step in unit.steps if view.ops[step] in ANCHOR_OPS}
    return (whole,) if whole is not None and anchors <= set(whole.steps) else units


def _time_units(
    view: GraphView,
    properties: GraphProperties,
    units: Sequence[Unit],
    report: PassReport,
    nodes_to_preserve: Collection[str],
    fetches: Collection[str],
) -> tuple[graph_pb2.GraphDef | None, PassReport]:
    """Makes units that find out by themselves on how many cores they run fastest.

    A step is one run of all of them, so all are in one region: that of most. Others stay ops.
    Small ones too: one that runs first would hide the sizes of the step's input.
    """
    control_flow = ControlFlow(view, nodes_to_preserve, fetches)
    large = [unit for unit in units if not is_small_unit(view, properties, unit)]
    if not large:
        return None, dataclasses.replace(report, why_unchanged="all operations are small")
    regions = collections.Counter(control_flow.region(unit.head) for unit in large)
    (region, _), *_ = regions.most_common(1)
    timed = [unit for unit in large if control_flow.region(unit.head) == region]
    # Functions with the same units share their times, such as one that is traced again.
    steps = [[view.names[step] for step in unit.steps] for unit in timed]
    name = hashlib.sha256(repr((report.plan.fingerprint, steps)).encode()).hexdigest()[:16]
    rewritten = rewrite_units(
        view, timed, nodes_to_preserve, output_shapes=properties.output_shape, timed_graph=name
    )
    check_time_limit()
    check_rewrite(view, GraphView(rewritten), nodes_to_preserve, fetches=fetches)
    return rewritten, dataclasses.replace(_with_units(report, view, timed), timed_graph=name)


def _with_units(report: PassReport, view: GraphView, units: Sequence[Unit]) -> PassReport:
    return dataclasses.replace(
        report,
        unit_names=tuple(unit_name(view, unit) for unit in units),
        unit_op_count=sum(len(unit.steps) for unit in units),
    )


def _are_split(entries: Collection[GraphPlan]) -> bool:
    """Whether the entry with the greatest gain splits units.

    A graph of unknown batch size may have entries of both kinds. It cannot have units of both
    kinds, because they overlap.
    """
    changing = [each for each in entries if each.unit_count]
    return bool(changing) and (
        max(changing, key=lambda each: each.measured.ratio if each.measured else 0.0).are_split
    )


def _cores_of_plan(
    entries: Collection[GraphPlan], are_split: bool, batch_size: int | None
) -> Cores:
    """The cores of each unit of a graph; empty if a plan makes no unit of this kind.

    If the graph's batch size is unknown and every entry has one, the units are narrow or split at
    the batch sizes whose entries make them so. Other sizes do not use the nearest entry: a gain at
    one size may be a loss at another.

    Args:
        entries: the plan's entries for the graph.
        are_split: whether its units are split.
        batch_size: the graph's; None if unknown.
    """
    is_always = batch_size is not None or any(entry.batch_size is None for entry in entries)
    return {
        None if is_always else entry.batch_size: entry.unit_cores
        for entry in entries
        if entry.unit_count and entry.are_split == are_split
    }
