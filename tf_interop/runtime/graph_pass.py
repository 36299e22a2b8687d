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
from collections.abc import Collection, Mapping, Sequence

from tensorflow.core.framework import graph_pb2

from tf_interop.convolution import (
    ConvolutionNode,
    Refusal,
    batch_size_of,
    canonical_names,
    fingerprint_convolutions,
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
from tf_interop.graph.ops import CONVOLUTION_KINDS
from tf_interop.graph.program import CONV_STAGE_OP, UNIT_OP
from tf_interop.graph.properties import GraphProperties, ShapeInference
from tf_interop.graph.rewrite import ON_ONE_CORE, Cores, rewrite_stages, rewrite_units
from tf_interop.graph.split_units import find_split_units, find_whole_unit
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.units import ANCHOR_OPS, Unit, find_units, is_small_unit, planned_name
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

    check_time_limit()
    if settings.makes_units(device_type):
        units_view = view if folded is None else GraphView(folded)
        properties = GraphProperties(units_view, infer_output_shapes)
        rewritten, report = _make_units(
            units_view, properties, settings, convolutions, nodes_to_preserve, fetches
        )
    else:
        candidates = convolutions
        if settings.policy is Policy.ALWAYS:
            candidates, unmeasured = leave_out_unmeasured(
                convolutions, device_type, has_bfloat16=has_bfloat16()
            )
            refusals += unmeasured
        stages = _plan_stages(settings, view, candidates)
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
            # Covers all convolutions: a plan, unlike the policy, leaves none out.
            plan=GraphPlan(fingerprint_convolutions(convolutions), len(convolutions), stages),
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
    convolutions, _ = _convolutions_on(
        handed.device_type,
        GraphView(graph_def),
        settings,
        handed.nodes_to_preserve,
        handed.infer_output_shapes,
        handed.fetches,
    )
    return is_unfolded(plan, convolutions)


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
) -> tuple[PlannedStage, ...]:
    if not convolutions:
        return ()
    if settings.policy is Policy.ALWAYS:
        return group_always(convolutions, Independence(view, convolutions))
    return () if settings.plan is None else stages_from_plan(settings.plan, convolutions)


def _why_unchanged(found: Collection[object], what_is_missing: str) -> str:
    return "the plan leaves this graph unchanged" if found else what_is_missing


def _make_units(
    view: GraphView,
    properties: GraphProperties,
    settings: Settings,
    convolutions: Sequence[ConvolutionNode],
    nodes_to_preserve: Collection[str],
    fetches: Collection[str],
) -> tuple[graph_pb2.GraphDef | None, PassReport]:
    """Finds the units of a graph, and makes them narrow or splits them as the settings require.

    `convolutions` are those before folding.

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
        plan=GraphPlan(fingerprint_convolutions(convolutions), len(convolutions), ()),
        unit_count=len(units),
    )
    plan = settings.plan
    modes = {each.mode for each in plan.graphs} if plan is not None else set()
    mode = mode_of(convolutions)
    is_other_mode = modes == {"training"} and mode == "inference"
    entries = () if plan is None or is_other_mode else entries_to_run(plan, convolutions)
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
    names = canonical_names(planned_name(view, unit) for unit in units)
    of_name = {names[planned_name(view, unit)]: unit for unit in units}
    if settings.policy is Policy.ALWAYS:
        chosen: Mapping[str, Cores] = dict.fromkeys(of_name, ON_ONE_CORE)
    else:
        chosen = _units_of_plan(entries, are_split, batch_size, of_name.keys())
    if not chosen:
        why = _why_unchanged(units, "no operation of the graph can be in a unit")
        if any(each.stages for each in entries):
            why = STAGES_NEED_GPUS
        return None, dataclasses.replace(report, why_unchanged=why)

    check_time_limit()
    taken = [of_name[name] for name in chosen]
    rewritten = rewrite_units(
        view,
        taken,
        nodes_to_preserve,
        cores=list(chosen.values()),
        output_shapes=properties.output_shape,
    )
    check_time_limit()
    check_rewrite(view, GraphView(rewritten), nodes_to_preserve, fetches=fetches)
    most_cores = tuple(max(each.values()) for each in chosen.values())
    made = dataclasses.replace(
        report.plan,
        narrow_units=() if are_split else tuple(chosen),
        split_units=tuple(chosen) if are_split else (),
        unit_cores=most_cores if max(most_cores) > 1 else (),
        measured=entries[0].measured if len(entries) == 1 else None,
    )
    unit_op_count = sum(len(unit.steps) for unit in taken)
    return rewritten, dataclasses.replace(report, plan=made, unit_op_count=unit_op_count)


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
    unit_op_count = sum(len(unit.steps) for unit in timed)
    return rewritten, dataclasses.replace(report, unit_op_count=unit_op_count, timed_graph=name)


def _are_split(entries: Collection[GraphPlan]) -> bool:
    """Whether the entry with the greatest gain splits units.

    A graph of unknown batch size may have entries of both kinds. It cannot have units of both
    kinds, because they overlap.
    """
    changing = [each for each in entries if each.units]
    return bool(changing) and bool(
        max(changing, key=lambda each: each.measured.ratio if each.measured else 0.0).split_units
    )


def _units_of_plan(
    entries: Collection[GraphPlan],
    are_split: bool,
    batch_size: int | None,
    names: Collection[str],
) -> dict[str, Cores]:
    """The units of a graph that a plan makes narrow or splits.

    If the graph's batch size is unknown and every entry has one, a unit is narrow or split at the
    batch sizes whose entries name it. Other sizes do not use the nearest entry: a gain at one size
    may be a loss at another.

    Args:
        entries: the plan's entries for the graph.
        are_split: whether to return split units; otherwise narrow ones.
        batch_size: the graph's; None if unknown.
        names: canonical names of the graph's units of that kind.

    Raises:
        PlanError: the entries name units that the graph does not have.
    """
    is_always = batch_size is not None or any(entry.batch_size is None for entry in entries)
    planned: dict[str, dict[int | None, int]] = {}
    for entry in entries:
        cores_of = dict.fromkeys(entry.split_units, 1) if are_split else entry.cores_of
        for name, cores in cores_of.items():
            planned.setdefault(name, {})[None if is_always else entry.batch_size] = cores
    found = planned.keys() & set(names)
    # Some may differ: a unit of the model may include parts of the loss, a metric or the optimizer.
    if len(found) < len(planned) / 2:
        kind = "split" if are_split else "narrow"
        raise PlanError(
            f"The plan does not fit this graph, which has only {len(found)} of the plan's "
            f"{len(planned)} {kind} units and lacks '{min(planned.keys() - found)}'. Tune this "
            "model again."
        )
    # In the graph's order, not the plan's.
    return {name: planned[name] for name in names if name in planned}
