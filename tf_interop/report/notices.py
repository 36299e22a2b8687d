"""What a reader of a report has to know before its figures, and beside them."""

from __future__ import annotations

import dataclasses

from tf_interop.plan.types import GraphPlan, Plan
from tf_interop.profile.types import Profile
from tf_interop.report.network import Network
from tf_interop.report.node_names import has_scopes_of_functions
from tf_interop.report.profile import ProfileFit, foreign_device
from tf_interop.report.words import (
    HOST,
    SIMULATED,
    count_of,
    is_of_host,
    is_simulated,
    measured_count,
)
from tf_interop.runtime.run_record import RunRecord

_MEASURE = "Measure what was planned, and plan it anew:"


@dataclasses.dataclass(frozen=True, slots=True)
class Notice:
    """What stands above figures.

    Attributes:
        head: in a few words.
        text: the rest.
        command: what to do about it; empty for nothing.
    """

    head: str
    text: str
    command: str = ""


def page_notices(plan: Plan, profile: Profile | None, run: RunRecord | None) -> list[Notice]:
    """What holds for all of a page: figures that nothing measured, a device one might not expect.

    Args:
        plan: the plan.
        profile: shown beside it.
        run: likewise.
    """
    notices = []
    if is_simulated(plan):
        notices.append(
            Notice("Simulated.", f"Nothing here was measured: {plan.made_with[SIMULATED]}")
        )
    if is_of_host(plan) or (profile is not None and profile.device.backend == HOST):
        notices.append(
            Notice(
                "A CPU, not a GPU.",
                "Times are those of tf_interop's own algorithms for CPUs, the host backend. "
                "TensorFlow itself computes convolutions on a CPU with oneDNN, which is not what "
                "these times are of. They say nothing of any GPU.",
            )
        )
    elif run is not None and run.graphs and all(each.device_type == "CPU" for each in run.graphs):
        notices.append(
            Notice(
                "The run was on a CPU, not on a GPU.",
                "Its stages ran with tf_interop's own algorithms for CPUs, and not with oneDNN. It "
                "says nothing of any GPU.",
            )
        )
    foreign = "" if profile is None else foreign_device(plan, profile)
    if foreign:
        notices.append(Notice("Two devices.", foreign))
    return notices


def graph_notices(
    graph: GraphPlan, network: Network | None, fit: ProfileFit | None, *, simulated: bool
) -> list[Notice]:
    """What stands above the figures of one entry of a plan.

    Args:
        graph: the entry.
        network: what its convolutions compute.
        fit: what a profile that is shown has of it; None where none is shown.
        simulated: whether what is called measured was not.
    """
    notices = [*_times_notices(graph, simulated=simulated)]
    if fit is not None and not fit.is_whole:
        notices.append(Notice("Another profile?", fit.text))
    if graph.batch_size is None and network is not None and network.batch_size is not None:
        notices.append(
            Notice(
                "Any batch size.",
                "This entry is for every batch size. Shapes on this page are those of batch size "
                f"{network.batch_size}.",
            )
        )
    return notices


def graph_notes(graph: GraphPlan, network: Network | None, fit: ProfileFit | None) -> list[str]:
    """What stands below everything else of an entry of a plan; the arguments are as above."""
    notes = []
    if graph.prediction is not None:
        notes.append(f"Search: {graph.prediction.search}.")
    if fit is not None and fit.is_whole:
        notes.append(fit.text)
    if network is None:
        notes.append(
            "A plan does not hold what depends on what: the network is drawn in the order of the "
            "plan. --model or --problem adds it, and what each convolution computes."
        )
    pinned = [each for stage in graph.stages for each in stage.convolutions]
    if any(each.algorithm is None for each in pinned):
        notes.append(
            "The runner's choice: the plan pins no algorithm there, and the plugin takes the one "
            "that cuDNN's heuristics (on a CPU the host backend) put first."
        )
    names = [each.node for each in pinned] + [each.node for each in graph.alone]
    if has_scopes_of_functions(names):
        notes.append(
            "Names are those of the graph's nodes. TensorFlow puts StatefulPartitionedCall/ or "
            "PartitionedCall/ before the layers of a function that it inlined."
        )
    return notes


def _times_notices(graph: GraphPlan, *, simulated: bool) -> list[Notice]:
    total, known = graph.convolution_count, measured_count(graph)
    measured = SIMULATED if simulated else "measured"
    if graph.prediction is None:
        text = "No planner made these stages: no times, memory or reasons are known."
        if any(stage.why.startswith("always") for stage in graph.stages):
            text += (
                " The policy “always” made them: what is equally deep in the graph (depth 1 "
                "depends on no other convolution) and can run together does, faster or not."
            )
        return [Notice("No times are known.", text)]
    if not known:
        text = f"No algorithm of its {count_of(total, 'convolution')} is {measured}. {_MEASURE}"
        return [Notice(f"Nothing {measured}.", text, _profile_command(graph))]
    notices = []
    if known < total:
        rest = total - known
        are, they = ("was", "It is") if rest == 1 else ("were", "They are")
        text = (
            f"{rest} of {count_of(total, 'convolution')} {are} not {measured}. {they} in no stage "
            f"and in none of these figures. {_MEASURE}"
        )
        notices.append(Notice("Incomplete.", text, _profile_command(graph)))
    if not graph.stages:
        notices.append(_why_no_stage(graph))
    return notices


def _profile_command(graph: GraphPlan) -> str:
    batch = "" if graph.batch_size is None else f" --batch {graph.batch_size}"
    training = " --training" if graph.step == "training" else ""
    return f"tf-interop profile MODEL{batch}{training} -o profile.json"


def _why_no_stage(graph: GraphPlan) -> Notice:
    # Plans of earlier versions do not say it.
    reason = graph.why_no_stage or "none is faster by more than the figures may be off"
    text = f"{reason[:1].upper()}{reason[1:]}."
    if graph.missed:
        missed = graph.missed[0]
        text += f" The most promising, {' and '.join(missed.nodes)}: {missed.why_not}."
    return Notice("No stage.", text)
