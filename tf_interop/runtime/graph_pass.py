"""Replaces independent convolutions of a graph by `ConvStage` nodes; on a CPU makes units narrow.

    before                        after

    x ── Conv2D a ── …            x ─┬─ ConvStage stage_0 ─┬─ stage_0    ── …
    x ── Conv2D b ── …               └  (lanes a, b)       └─ stage_0:1  ── …

The pass reads: check graph, find, plan, check plan, rewrite, check graph. Each part is a function
of its own elsewhere; this module only calls them in order. What it does on CPUs is in `unit_pass`.

Preconditions, each checked where it is needed:
  1. the graph is well-formed and acyclic;
  2. the steps of a stage are on one device, in one control-flow region, and depend on each other
     only along a lane;
  3. all stages together leave the graph acyclic;
  4. no stage or unit of this device type is in the graph yet.

Guaranteed: names that have to be preserved, fetch names, control dependencies, devices and the
function library are kept. A second run changes nothing. The same graph gives the same bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Collection, Iterator, Sequence

from tensorflow.core.framework import graph_pb2

from tf_interop.convolution import ConvolutionNode, Refusal
from tf_interop.errors import PlanError
from tf_interop.graph.check import check_rewrite
from tf_interop.graph.device_names import device_type_of, is_local
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.fingerprint import fingerprint_convolutions
from tf_interop.graph.independence import Independence
from tf_interop.graph.merge_keys import find_merge_keys
from tf_interop.graph.program import CONV_STAGE_OP, Schedule
from tf_interop.graph.properties import GraphProperties, ShapeInference
from tf_interop.graph.rewrite import rewrite_stages
from tf_interop.graph.time_limit import check_time_limit, time_limit
from tf_interop.graph.unit_node import UNIT_OP
from tf_interop.graph.view import GraphView
from tf_interop.planning.check import check_stages
from tf_interop.planning.from_profile import group_always, group_profiled, leave_out_unmeasured
from tf_interop.planning.lookup import stages_from_plan
from tf_interop.planning.types import GraphPlan, PlannedStage
from tf_interop.profile.types import Profile
from tf_interop.runtime.settings import Policy, Settings
from tf_interop.runtime.unit_pass import make_units


@dataclasses.dataclass(frozen=True)
class PassReport:
    """What the pass did to one graph.

    Attributes:
        device_type: whose convolutions were looked at, `CPU` or `GPU`.
        node_count: nodes of the graph.
        convolution_count: convolutions that could be part of a stage.
        refusals: convolution nodes that stay as they are, with the reason.
        plan: the graph's fingerprint, and the stages or the narrow units that were made.
        milliseconds: how long the pass took.
        why_unchanged: empty where stages or narrow units were made, else why not.
        unit_count: units of the graph, narrow or not; 0 where stages are made.
        unit_op_count: nodes that units took the place of.
    """

    device_type: str
    node_count: int
    convolution_count: int
    refusals: tuple[Refusal, ...]
    plan: GraphPlan
    milliseconds: float
    why_unchanged: str = ""
    unit_count: int = 0
    unit_op_count: int = 0


@dataclasses.dataclass(frozen=True)
class PassResult:
    """What came of a graph.

    Attributes:
        graph_def: the new graph, or None where nothing changed.
        report: what was done, or None where the graph holds no convolution for the device type, or
            stages or units that were made before.
    """

    graph_def: graph_pb2.GraphDef | None
    report: PassReport | None


def run_conv_stage_pass(
    graph_def: graph_pb2.GraphDef,
    settings: Settings,
    device_type: str,
    nodes_to_preserve: Collection[str] = (),
    infer_output_shapes: ShapeInference | None = None,
    fetches: Collection[str] = (),
    *,
    allow_tf32: bool = True,
    deterministic: bool = False,
) -> PassResult:
    """Runs the pass on one graph.

    Args:
        graph_def: the graph; it is not changed.
        settings: what to make stages from.
        device_type: `CPU` or `GPU`; convolutions on other devices stay as they are.
        nodes_to_preserve: names that have to stay.
        infer_output_shapes: shape inference, asked only where attributes say too little and the
            settings need shapes.
        fetches: what the graph is run for, names of nodes or tensors; none where that is not known.
        allow_tf32: TensorFlow's switch for TF32.
        deterministic: TensorFlow's switch for op determinism.

    Returns:
        The new graph and a report.

    Raises:
        GraphError: the graph is not well-formed.
        PlanError: the plan is for another graph or not legal for this one.
        TimeLimitError: it took longer than the settings allow.
    """
    start = time.perf_counter()
    if _was_rewritten(graph_def, device_type):
        return PassResult(None, None)
    with _without_garbage_collection(), time_limit(settings.pass_time_limit_s):
        view = GraphView(graph_def)
        profile = settings.profile_for(device_type)
        needs_shapes = profile is not None or _has_batch_sizes(settings)
        found, refused = find_convolutions(
            view,
            GraphProperties(view, infer_output_shapes if needs_shapes else None),
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
            return PassResult(None, None)

        check_time_limit()
        if settings.makes_units(device_type):
            properties = GraphProperties(view, infer_output_shapes)
            units = make_units(view, properties, settings, convolutions, nodes_to_preserve, fetches)
            rewritten = units.graph_def
            report = PassReport(
                device_type=device_type,
                node_count=len(view),
                convolution_count=len(convolutions),
                refusals=units.refusals,
                plan=GraphPlan(
                    fingerprint_convolutions(convolutions),
                    len(convolutions),
                    (),
                    narrow_units=() if units.are_split else units.names,
                    split_units=units.names if units.are_split else (),
                    measured=units.measured,
                ),
                milliseconds=0.0,
                why_unchanged=units.why_unchanged,
                unit_count=units.found_count,
                unit_op_count=units.op_count,
            )
        else:
            taken = convolutions
            if settings.policy is Policy.ALWAYS:
                taken, unmeasured = leave_out_unmeasured(convolutions, profile, device_type)
                refusals += unmeasured
            stages = _plan_stages(
                settings, profile, view, taken, allow_tf32=allow_tf32, deterministic=deterministic
            )
            rewritten = None
            if stages:
                check_time_limit()
                check_stages(stages, view, convolutions)
                rewritten = _make_stages(view, stages, nodes_to_preserve, fetches)
            report = PassReport(
                device_type=device_type,
                node_count=len(view),
                convolution_count=len(taken),
                refusals=refusals,
                # Of all of them: with this plan in place of the policy, none is left out.
                plan=GraphPlan(fingerprint_convolutions(convolutions), len(convolutions), stages),
                milliseconds=0.0,
                why_unchanged="" if stages else _why_no_stages(settings, device_type, taken),
            )
        check_time_limit()
    milliseconds = (time.perf_counter() - start) * 1e3
    return PassResult(rewritten, dataclasses.replace(report, milliseconds=milliseconds))


def _make_stages(
    view: GraphView,
    stages: Sequence[PlannedStage],
    nodes_to_preserve: Collection[str],
    fetches: Collection[str],
) -> graph_pb2.GraphDef:
    """The graph with these stages, checked."""
    rewritten = rewrite_stages(view, [_schedules(each) for each in stages], nodes_to_preserve)
    check_time_limit()
    check_rewrite(view, GraphView(rewritten), nodes_to_preserve, fetches=fetches)
    return rewritten


def _schedules(stage: PlannedStage) -> list[Schedule[str]]:
    """How the stage runs at each batch size that it has a schedule for, or at all of them."""
    if not stage.schedules:
        return [Schedule(None, stage.stage)]
    return [Schedule(each.batch_size, each.stage) for each in stage.schedules]


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    # The pass makes many objects and no cycles. The collections that this sets off walk all of
    # TensorFlow's objects and took a third of the time for a graph of 15,000 nodes.
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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
    profile: Profile | None,
    view: GraphView,
    convolutions: tuple[ConvolutionNode, ...],
    *,
    allow_tf32: bool,
    deterministic: bool,
) -> tuple[PlannedStage, ...]:
    if not convolutions:
        return ()
    if settings.policy is Policy.ALWAYS:
        return group_always(convolutions, Independence(view, convolutions))
    if settings.plan is not None:
        try:
            return stages_from_plan(settings.plan, convolutions)
        except PlanError:
            if profile is None:
                raise
    if profile is not None:
        return group_profiled(
            convolutions,
            Independence(view, convolutions),
            profile,
            merge_keys=find_merge_keys(view, convolutions),
            allow_tf32=allow_tf32,
            deterministic=deterministic,
        )
    return ()


def _why_no_stages(
    settings: Settings, device_type: str, convolutions: tuple[ConvolutionNode, ...]
) -> str:
    if not convolutions:
        return "every convolution was refused"
    if settings.plan is not None:
        return "the plan leaves this graph as it is"
    if settings.profile_for(device_type) is not None:
        return "the profile holds no stage of this graph that wins"
    if settings.profile is not None:
        backend = settings.profile.device.backend
        return f"the profile is of backend '{backend}', which does not run on a {device_type}"
    return NOTHING_TO_PLAN_FROM


NOTHING_TO_PLAN_FROM = (
    "policy 'profiled' makes a stage only where a plan or a profile says that it wins, and "
    "neither was given; pass plan= or profile= to tf_interop.enable(), or policy='always'"
)
