"""What a reader of a report has to know before its values, and beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tf_interop.convolution import batch_size_of
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.profile.types import Profile
from tf_interop.report.network import Network, planned_nodes
from tf_interop.report.words import (
    HOST,
    SIMULATED,
    count_of,
    has_scopes_of_functions,
    is_of_host,
    is_simulated,
    measured_count,
)
from tf_interop.runtime.run_record import RunRecord

_MEASURE = "Measure what was planned, and plan it anew:"


class Notice(NamedTuple):
    """What stands above values: in a few words, the rest, and what to do about it."""

    head: str
    text: str
    command: str = ""


class ProfileFit(NamedTuple):
    """What a profile has of an entry of a plan: a sentence, and whether that is enough for it."""

    text: str
    is_whole: bool


def page_notices(plan: Plan, profile: Profile | None, run: RunRecord | None) -> Iterator[Notice]:
    """What holds for all of a page: values that nothing measured, a device one might not expect.

    Args:
        plan: the plan.
        profile: shown beside it.
        run: likewise.
    """
    if is_simulated(plan):
        yield Notice("Simulated.", f"Nothing here was measured: {plan.made_with[SIMULATED]}")
    if is_of_host(plan) or (profile is not None and profile.device.backend == HOST):
        yield Notice(
            "A CPU, not a GPU.",
            "Times are those of tf_interop's own algorithms for CPUs, the host backend. TensorFlow "
            "itself computes convolutions on a CPU with oneDNN, which is not what these times are "
            "of. They say nothing of any GPU.",
        )
    elif run is not None and run.graphs and all(each.device_type == "CPU" for each in run.graphs):
        yield Notice(
            "The run was on a CPU, not on a GPU.",
            "Its stages ran with tf_interop's own algorithms for CPUs, and not with oneDNN. It "
            "says nothing of any GPU.",
        )
    foreign = "" if profile is None else foreign_device(plan, profile)
    if foreign:
        yield Notice("Two devices.", foreign)


def graph_notices(
    graph: GraphPlan, network: Network | None, fit: ProfileFit | None, measured: str
) -> Iterator[Notice]:
    """What stands above the values of one entry of a plan.

    Args:
        graph: the entry.
        network: what its convolutions compute.
        fit: what a profile that is shown has of it; None where none is shown.
        measured: what measured values are called.
    """
    if graph.prediction is None:
        text = "No planner made these stages: no times, memory or reasons are known."
        if any(stage.why.startswith("always") for stage in graph.stages):
            text += (
                " The policy “always” made them: what is equally deep in the graph (depth 1 "
                "depends on no other convolution) and can run together does, faster or not."
            )
        yield Notice("No times are known.", text)
    else:
        yield from _what_is_unmeasured(graph, measured)
        if measured_count(graph) and not graph.stages:
            reason = graph.why_no_stage or "none is faster by more than the values may be off"
            text = f"{reason[:1].upper()}{reason[1:]}."
            if graph.rejected:
                first = graph.rejected[0]
                text += f" The most promising, {' and '.join(first.nodes)}: {first.why_not}."
            yield Notice("No stage.", text)
    if fit is not None and not fit.is_whole:
        yield Notice("Another profile?", fit.text)
    if graph.batch_size is None and network is not None and network.batch_size is not None:
        yield Notice(
            "Any batch size.",
            "This entry is for every batch size. Shapes on this page are those of batch size "
            f"{network.batch_size}.",
        )


def _what_is_unmeasured(graph: GraphPlan, measured: str) -> Iterator[Notice]:
    total, rest = graph.convolution_count, graph.convolution_count - measured_count(graph)
    batch = "" if graph.batch_size is None else f" --batch {graph.batch_size}"
    training = " --training" if graph.mode == "training" else ""
    command = f"tf-interop profile MODEL{batch}{training} -o profile.json"
    if not measured_count(graph):
        text = f"No algorithm of its {count_of(total, 'convolution')} is {measured}. {_MEASURE}"
        yield Notice(f"Nothing {measured}.", text, command)
    elif rest > 0:
        are, they = ("was", "It is") if rest == 1 else ("were", "They are")
        text = (
            f"{rest} of {count_of(total, 'convolution')} {are} not {measured}. {they} in no stage "
            f"and in none of these values. {_MEASURE}"
        )
        yield Notice("Incomplete.", text, command)


def graph_notes(graph: GraphPlan, network: Network | None, fit: ProfileFit | None) -> Iterator[str]:
    """What stands below everything else of an entry of a plan; the arguments are as above."""
    if graph.prediction is not None:
        yield f"Search: {graph.prediction.search}."
    if fit is not None and fit.is_whole:
        yield fit.text
    if network is None:
        yield (
            "A plan does not hold what depends on what: the network is drawn in the order of the "
            "plan. --model or --problem adds it, and what each convolution computes."
        )
    if any(step.algorithm is None for planned in graph.stages for step in planned.stage.steps):
        yield (
            "The runner's choice: the plan pins no algorithm there, and the plugin takes the one "
            "that cuDNN's heuristics (on a CPU the host backend) put first."
        )
    if has_scopes_of_functions(planned_nodes(graph)):
        yield (
            "Names are those of the graph's nodes. TensorFlow puts StatefulPartitionedCall/ or "
            "PartitionedCall/ before the layers of a function that it inlined."
        )


def profile_fit(graph: GraphPlan, network: Network | None, profile: Profile) -> ProfileFit:
    """How many convolutions of a graph a profile has.

    Args:
        graph: an entry of a plan.
        network: what its convolutions compute; without it only batch sizes can be compared.
        profile: the profile.
    """
    planned = measured_count(graph)
    of_all = f"of {count_of(graph.convolution_count, 'convolution')}"
    configurations = [] if network is None else [node.configuration for node in network.nodes]
    if configurations and None not in configurations:
        has = sum(
            each is not None and bool(profile.find_algorithms(each)) for each in configurations
        )
        return ProfileFit(f"The profile has {has} {of_all} of this graph.", has >= planned)
    found = {batch_size_of([each.configuration]) for each in profile.algorithms}
    sizes = sorted(size for size in found if size is not None)
    if graph.batch_size is not None and graph.batch_size not in sizes:
        of_sizes = f"it is of batch size {', '.join(map(str, sizes))}" if sizes else "it is empty"
        text = f"The profile has 0 {of_all} of this graph: {of_sizes}, the plan of "
        return ProfileFit(f"{text}{graph.batch_size}.", is_whole=not planned)
    text = f"How many {of_all} the profile has is not known without --model."
    return ProfileFit(text, is_whole=True)


def foreign_device(plan: Plan, profile: Profile) -> str:
    """What to say where plan and profile are of two devices; else empty."""
    planned = plan.made_with.get("device", profile.device.name)
    if planned == profile.device.name:
        return ""
    return f"The plan was made by a profile of {planned}, and this one is of {profile.device.name}."
