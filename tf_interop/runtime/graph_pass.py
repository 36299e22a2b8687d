"""Replaces independent convolutions of a graph by `ConvStage` nodes; on a CPU makes units narrow.

    before                        after

    x ── Conv2D a ── …            x ─┬─ ConvStage stage_0 ─┬─ stage_0    ── …
    x ── Conv2D b ── …               └  (lanes a, b)       └─ stage_0:1  ── …

The pass has six parts: check graph, find, plan, check plan, rewrite, check graph. This module only
calls them in order. The pass for CPUs is in `unit_pass`.

Preconditions, each checked where it is needed:
  1. the graph is well-formed and acyclic;
  2. the steps of a stage are on one device, in one control-flow region, and depend on each other
     only along a lane;
  3. all stages together leave the graph acyclic;
  4. no stage or unit of this device type is in the graph yet.

The pass keeps names that have to be preserved, fetch names, control dependencies, devices and the
function library. A second run changes nothing. The same graph gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection

from tensorflow.core.framework import graph_pb2

from tf_interop.convolution import ConvolutionNode, fingerprint_convolutions
from tf_interop.graph.check import check_rewrite
from tf_interop.graph.collection_pause import collection_pause
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.independence import Independence
from tf_interop.graph.program import CONV_STAGE_OP
from tf_interop.graph.properties import GraphProperties, ShapeInference
from tf_interop.graph.rewrite import rewrite_stages
from tf_interop.graph.time_limit import check_time_limit, time_limit
from tf_interop.graph.unit_node import UNIT_OP
from tf_interop.graph.view import GraphView, device_type_of, is_local
from tf_interop.measure.device import has_bfloat16
from tf_interop.planning.always import group_always, leave_out_unmeasured
from tf_interop.planning.check import check_stages
from tf_interop.planning.lookup import stages_from_plan
from tf_interop.planning.types import GraphPlan, PlannedStage
from tf_interop.runtime.pass_report import PassReport
from tf_interop.runtime.settings import Policy, Settings
from tf_interop.runtime.unit_pass import make_units


def run_conv_stage_pass(
    graph_def: graph_pb2.GraphDef,
    settings: Settings,
    device_type: str,
    nodes_to_preserve: Collection[str] = (),
    infer_output_shapes: ShapeInference | None = None,
    fetches: Collection[str] = (),
) -> tuple[graph_pb2.GraphDef | None, PassReport | None]:
    """Runs the pass on one graph.

    Args:
        graph_def: the graph; it is not changed.
        settings: what to make stages from.
        device_type: `CPU` or `GPU`; convolutions on other devices stay as they are.
        nodes_to_preserve: names that have to stay.
        infer_output_shapes: shape inference, called only if the settings need shapes that the
            attributes lack.
        fetches: what the graph is run for, names of nodes or tensors; none where that is not known.

    Returns:
        The new graph, or None if nothing changed; and what was done, or None if the graph holds no
        convolution for the device type, or stages or units that were made before.

    Raises:
        GraphError: the graph is not well-formed.
        PlanError: the plan is for another graph or not legal for this one.
        TimeLimitError: it took longer than the settings allow.
    """
    start = time.perf_counter()
    if _was_rewritten(graph_def, device_type):
        return None, None
    with collection_pause, time_limit(settings.pass_time_limit_s):
        view = GraphView(graph_def)
        found, refused = find_convolutions(
            view,
            GraphProperties(view, infer_output_shapes if _has_batch_sizes(settings) else None),
            nodes_to_preserve=nodes_to_preserve,
            fetches=fetches,
        )
        convolutions = tuple(node for node in found if _is_on(node.device, device_type))
        refusals = tuple(
            refusal
            for refusal in refused
            if _is_on(view.nodes[view.index_of[refusal.node]].device, device_type)
        )
        if not convolutions and not refusals:
            return None, None

        check_time_limit()
        if settings.makes_units(device_type):
            properties = GraphProperties(view, infer_output_shapes)
            rewritten, report = make_units(
                view, properties, settings, convolutions, nodes_to_preserve, fetches
            )
        else:
            taken = convolutions
            if settings.policy is Policy.ALWAYS:
                taken, unmeasured = leave_out_unmeasured(
                    convolutions, device_type, has_bfloat16=has_bfloat16()
                )
                refusals += unmeasured
            stages = _plan_stages(settings, view, taken)
            rewritten = None
            if stages:
                check_time_limit()
                check_stages(stages, view, convolutions)
                rewritten = rewrite_stages(view, [each.ways for each in stages], nodes_to_preserve)
                check_time_limit()
                check_rewrite(view, GraphView(rewritten), nodes_to_preserve, fetches=fetches)
            report = PassReport(
                device_type=device_type,
                node_count=len(view),
                convolution_count=len(taken),
                refusals=refusals,
                # Of all of them: with this plan in place of the policy, none is left out.
                plan=GraphPlan(fingerprint_convolutions(convolutions), len(convolutions), stages),
                why_unchanged="" if stages else _why_no_stages(settings, taken),
            )
        check_time_limit()
    milliseconds = (time.perf_counter() - start) * 1e3
    return rewritten, dataclasses.replace(report, milliseconds=milliseconds)


def _was_rewritten(graph_def: graph_pb2.GraphDef, device_type: str) -> bool:
    # Before anything is indexed: Grappler hands every graph over a second time.
    return any(
        node.op in (CONV_STAGE_OP, UNIT_OP) and _is_on(node.device, device_type)
        for node in graph_def.node
    )


def _has_batch_sizes(settings: Settings) -> bool:
    """Whether the plan was made for batch sizes: which entry to take depends on the graph's."""
    return settings.plan is not None and any(
        graph.batch_size is not None for graph in settings.plan.graphs
    )


def _is_on(device: str, device_type: str) -> bool:
    # A node that is not placed yet belongs to whoever sees it first.
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


def _why_no_stages(settings: Settings, convolutions: tuple[ConvolutionNode, ...]) -> str:
    if not convolutions:
        return "no convolution can be in a stage"
    return NOTHING_TO_PLAN_FROM if settings.plan is None else "the plan leaves this graph unchanged"


NOTHING_TO_PLAN_FROM = (
    "policy 'profiled' needs a plan; pass plan= to tf_interop.enable(), or policy='always'"
)
