"""Makes units of a graph narrow or splits them, on CPUs: each becomes one op.

    before                              after

    x ── Conv2D a ── Relu b ── …        x ─┬─ Unit b (steps a, b) ── …
    x ── Conv2D c ── Relu d ── …           └─ Unit d (steps c, d) ── …

TensorFlow's executor runs ops that do not wait for each other at the same time, so narrow units
that are independent run side by side, each on a core of its own, or on a few where a plan says so.
A split unit runs all of its steps once for each part of the batch, each part on cores of its own.
All other nodes stay unchanged, on all cores.

The steps are those of the pass on GPUs: find, choose, rewrite, check. The settings decide which
units are narrow or split: with the policy `always` all are narrow; otherwise a plan names the
units for the graph and its batch size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from tensorflow.core.framework import graph_pb2

from tf_interop.convolution import (
    ConvolutionNode,
    batch_size_of,
    canonical_names,
    fingerprint_convolutions,
)
from tf_interop.errors import PlanError
from tf_interop.graph.check import check_rewrite
from tf_interop.graph.ops import CONVOLUTION_KINDS
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.rewrite_units import ON_ONE_CORE, Cores, rewrite_units
from tf_interop.graph.split_units import find_split_units
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.units import Unit, find_units, planned_name
from tf_interop.graph.view import GraphView
from tf_interop.planning.lookup import check_batch_size, entries_to_run, mode_of
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.runtime.pass_report import PassReport
from tf_interop.runtime.settings import Policy, Settings


def make_units(
    view: GraphView,
    properties: GraphProperties,
    settings: Settings,
    convolutions: Sequence[ConvolutionNode],
    nodes_to_preserve: Collection[str],
    fetches: Collection[str],
) -> tuple[graph_pb2.GraphDef | None, PassReport]:
    """Finds the units of a graph, and makes them narrow or splits them as the settings ask.

    Returns:
        The graph with narrow or split units, or None if there are none; and what was done.

    Raises:
        PlanError: the plan is for another graph, or for other units of this one.
        GraphError: the graph is not well-formed.
        TimeLimitError: it took longer than the settings allow.
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
    if plan is not None and _is_beside_training(plan, convolutions):
        # Validation under `fit`, say: no mistake, and nothing to warn of.
        why = "the plan is for training only; tune with training=False for this graph"
        return None, dataclasses.replace(report, why_unchanged=why)
    entries = () if plan is None else entries_to_run(plan, convolutions)
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
        return None, dataclasses.replace(report, why_unchanged=_why_none(settings, units))

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


def _are_split(entries: Collection[GraphPlan]) -> bool:
    """Whether the units of a graph are split: as the entry with the greatest gain has them.

    A graph whose batch size is not known may have entries of both kinds. The units of one kind hold
    parts of those of the other, so there cannot be both.
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

    Where the graph's batch size is not known, and all entries are for one, a unit is so at the
    batch sizes whose entries name it. What pays at one batch size may cost at another, so no
    nearest one is taken.

    Args:
        entries: of the plan, for the graph.
        are_split: whether it is split units that are asked for.
        batch_size: of the graph.
        names: canonical names of its units of that kind.

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
    # Some may differ: a loss, a metric or an optimizer goes with the model's own units.
    if len(found) < len(planned) / 2:
        kind = "split" if are_split else "narrow"
        raise PlanError(
            f"The plan's units do not fit this graph: of {len(planned)} {kind} units it has "
            f"{len(found)}; it lacks '{min(planned.keys() - found)}'. Tune this model again."
        )
    # In the order in which they were found, whatever the plan's is.
    return {name: planned[name] for name in names if name in planned}


def _is_beside_training(plan: Plan, convolutions: Sequence[ConvolutionNode]) -> bool:
    modes = {each.mode for each in plan.graphs}
    return modes == {"training"} and mode_of(convolutions) == "inference"


def _why_none(settings: Settings, units: Collection[Unit]) -> str:
    if not units:
        return "no operation of the graph can be in a unit"
    if settings.plan is not None:
        return "the plan leaves this graph unchanged"
    return "only a plan decides which units are narrow or split, and none was given"
