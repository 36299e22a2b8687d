"""Why plans are as they are, and how the model does, for people to read."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from tf_interop.planning.cost.calibration import ModelComparison, calibrate_model
from tf_interop.planning.explain import SHARED_RESOURCES, sum_of_uses
from tf_interop.planning.overview import describe_graph
from tf_interop.planning.problem import PlanningProblem
from tf_interop.planning.types import (
    LaneExplanation,
    Plan,
    PlannedStage,
    RejectedStage,
    StageExplanation,
    StagePrediction,
)
from tf_interop.profile.tables import describe_convolution
from tf_interop.stage import Lane, Stage, Step
from tf_interop.tables import new_table, percent, print_on

_SM_COLUMNS = {
    "registers": "registers",
    "shared_memory": "shared",
    "threads": "threads",
    "alu_utilization": "ALU",
    "dram_utilization": "DRAM",
    "memory_stall": "stalls",
}
_ANY = "any"


def explain_stages(plan: Plan, console: Console) -> None:
    """Prints, stage by stage, what it was chosen by.

    Args:
        plan: any plan; of stages that no planner made there is little to say.
        console: where to print.
    """
    is_sm_known = False
    for graph in plan.graphs:
        print_on(console, describe_graph(graph))
        for number, planned in enumerate(graph.stages):
            print_on(console, f"\nStage {number}: {_describe_values(planned)}")
            print_on(console, _describe_runs(planned))
            if planned.explanation is not None and planned.prediction is not None:
                print_on(console, _lane_table(planned.explanation.lanes))
                for line in _reasons(planned.stage, planned.explanation, planned.prediction):
                    print_on(console, f"  {line}")
                is_sm_known |= any(lane.sm_use for lane in planned.explanation.lanes)
        if graph.rejected:
            print_on(console, _describe_rejected(graph.rejected))
        print_on(console, "")
    if is_sm_known:
        print_on(
            console,
            "Shares of one SM are those of the kernel that takes most of an algorithm's time, "
            "alone: registers,\nshared memory and threads follow from its measured launch, the "
            "others were measured. Where lanes ask\nfor more than 100 % together they take turns. "
            "Stalls: those that wait for memory, of all.",
        )


def show_comparison(
    problem: PlanningProblem, compared: Sequence[ModelComparison], console: Console
) -> None:
    """Prints the model beside every measured stage that it can say something of.

    Args:
        problem: whose stages they are.
        compared: what `compare_model` gave.
        console: where to print.
    """
    table = new_table("Stages: measured, and modelled from their kernels alone")
    table.add_column("convolutions, algorithms", overflow="fold")
    for heading in ("measured us", "modelled us", "error"):
        table.add_column(heading, justify="right")
    table.leading = 1
    errors = []
    for each in compared:
        error = each.modelled_us / each.measured.latency_us - 1
        errors.append(error)
        table.add_row(
            "\n".join(
                f"{_describe_costs(problem, step.operation)}, {step.algorithm}"
                for step in each.measured.stage.steps
            ),
            f"{each.measured.latency_us:.1f}",
            f"{each.modelled_us:.1f}",
            f"{100 * error:+.0f} %",
        )
    print_on(console, table)
    sizes = sorted(map(abs, errors))
    print_on(
        console,
        f"\n{len(compared)} of {len(problem.stages)} measured stages could be modelled. Error: "
        f"median {100 * statistics.median(errors):+.0f} %, of its size median "
        f"{percent(statistics.median(sizes))}, largest {percent(sizes[-1])}.",
    )
    calibration = calibrate_model(problem)
    if calibration.stages:
        print_on(
            console,
            f"Plans by this profile multiply what is modelled by {calibration.factor:.2f}, and "
            f"trust the result to {percent(calibration.spread)}.",
        )
    else:
        print_on(console, "Too few to correct the model by: plans take it as it is.")


def describe_lanes(stage: Stage[str]) -> list[str]:
    """What each lane runs and asks for, in words."""
    lines = []
    for number, lane in enumerate(stage.lanes):
        options = describe_options(lane)
        runs = " → ".join(map(_describe_step, lane.steps))
        if lane.merged:
            names = " and ".join(lane.operations)
            algorithm = lane.steps[0].algorithm or _ANY
            runs = f"{names}, merged into one wider convolution, with {algorithm}"
        lines.append(f"lane {number}: {runs}{options and f', {options}'}")
    return lines


def describe_options(lane: Lane[str]) -> str:
    """What a lane asks of the device, in words; empty for nothing."""
    words = []
    if lane.priority:
        words.append(f"priority {lane.priority}")
    if lane.sm_count:
        words.append(f"{lane.sm_count} SMs of its own")
    return ", ".join(words)


def describe_algorithms(lane: Lane[str]) -> str:
    """The algorithms of a lane, such as `GEMM → FFT` and `2 merged with GEMM`."""
    if lane.merged:
        return f"{len(lane.steps)} merged with {lane.steps[0].algorithm or _ANY}"
    return " → ".join(step.algorithm or _ANY for step in lane.steps)


def _describe_values(planned: PlannedStage) -> str:
    prediction = planned.prediction
    if prediction is None or len(planned.nodes) == 1:
        # By itself a convolution is no faster than in no stage: it is there for its algorithm.
        return planned.why or "no reason given"
    saved = 1 - prediction.latency_us / prediction.sequential_us
    return (
        f"{prediction.latency_us:.1f} us {prediction.source.value}, may be off by "
        f"{prediction.spread_us:.1f}, against {prediction.sequential_us:.1f} us one after another, "
        f"measured: {percent(saved)} less"
    )


def _describe_runs(planned: PlannedStage) -> str:
    """The lanes of a stage, those of each batch size where they are not the same for all."""
    if not planned.schedules:
        return "\n".join(f"  {line}" for line in describe_lanes(planned.stage))
    lines = []
    for schedule in planned.schedules:
        lines.append(f"  batch size {schedule.batch_size}:")
        lines += [f"    {line}" for line in describe_lanes(schedule.stage)]
    return "\n".join([*lines, "  any other batch size: in sequence"])


def _describe_step(step: Step[str]) -> str:
    return f"{step.operation} with {step.algorithm or _ANY}"


def _lane_table(explained: Sequence[LaneExplanation]) -> Table:
    table = new_table("")
    table.title = None
    table.add_column("    lane")
    uses = [lane.sm_use for lane in explained]
    columns = _SM_COLUMNS if any(uses) else {}
    for heading in ("alone us", "workspace", *columns.values()):
        table.add_column(heading, justify="right")
    for number, lane in enumerate(explained):
        table.add_row(
            f"    {number}",
            f"{lane.alone_us:.1f}",
            decimal(lane.workspace_bytes),
            *(percent(getattr(lane.sm_use, field, None)) for field in columns),
        )
    if columns and len(explained) > 1:
        sums = sum_of_uses(uses)
        table.add_row("    together", "", "", *(percent(sums.get(field)) for field in columns))
    return table


def _reasons(
    stage: Stage[str], explanation: StageExplanation, prediction: StagePrediction
) -> Iterator[str]:
    for number, (lane, explained) in enumerate(zip(stage.lanes, explanation.lanes, strict=True)):
        if lane.merged:
            yield (
                f"Lane {number}: its {len(lane.steps)} convolutions read one image; one after "
                f"another they take {explained.alone_us:.1f} us"
            )
        elif explained.fastest_us < explained.alone_us:
            fastest = (
                f"alone {explained.fastest_algorithm or _ANY}"
                if len(lane.steps) == 1
                else "each with what is fastest alone it"
            )
            yield f"Lane {number}: {fastest} is faster, {explained.fastest_us:.1f} us"
    yield from _complement(explanation.lanes)
    yield (
        f"Memory: {decimal(prediction.workspace_bytes)} of workspace; "
        f"{decimal(prediction.peak_bytes)} with outputs and what is alive across the stage"
    )
    for alternative in explanation.alternatives:
        algorithms = ", ".join(map(describe_algorithms, alternative.stage.lanes))
        yield (
            f"Not {algorithms} ({alternative.latency_us:.1f} us {alternative.source.value}, "
            f"{decimal(alternative.workspace_bytes)} of workspace): {alternative.why_not}"
        )


def _complement(lanes: Sequence[LaneExplanation]) -> Iterator[str]:
    """What each lane takes most of, and when it leaves the arithmetic units to others."""
    most = []
    for lane in lanes:
        shares = {field: getattr(lane.sm_use, field, None) or 0.0 for field in SHARED_RESOURCES}
        most.append(max(shares.items(), key=lambda each: each[1]))
    if len(lanes) < 2 or not all(lane.sm_use for lane in lanes):
        return
    if len({field for field, _ in most}) == 1:
        yield f"All lanes take more of the {SHARED_RESOURCES[most[0][0]]} than of anything else"
    else:
        words = [
            f"lane {number} most of the {SHARED_RESOURCES[field]} ({percent(share)})"
            for number, (field, share) in enumerate(most)
        ]
        yield f"Different resources: {', '.join(words)}"
    for number, lane in enumerate(lanes):
        if lane.sm_use is not None and lane.sm_use.memory_stall:
            yield (
                f"Lane {number} waits for memory in {percent(lane.sm_use.memory_stall)} of its "
                "stalls; meanwhile the ALUs are free for the others"
            )


def _describe_rejected(rejected: Sequence[RejectedStage]) -> str:
    lines = ["\nNot together, the most promising first:"]
    for each in rejected:
        names = " and ".join(each.nodes)
        alike = f" ({each.count - 1} more of the same costs)" if each.count > 1 else ""
        lines.append(f"  {names}{alike}: {each.why_not}")
    return "\n".join(lines)


def _describe_costs(problem: PlanningProblem, name: str) -> str:
    configuration = problem.costs_by_name[name].configuration
    return name if configuration is None else describe_convolution(configuration)
