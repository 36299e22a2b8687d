"""Why plans are as they are, and how the model does, for people to read."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from tf_interop.plan.cost.calibration import ModelComparison, calibrate_model
from tf_interop.plan.explain import SHARED_RESOURCES, sum_of_uses
from tf_interop.plan.overview import describe_graph
from tf_interop.plan.problem import PlanningProblem
from tf_interop.plan.types import (
    Alternative,
    BatchSchedule,
    LaneExplanation,
    MissedStage,
    PinnedConvolution,
    Plan,
    PlannedStage,
    SmUse,
    is_merged,
)
from tf_interop.profile.tables import describe_convolution
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
        for number, stage in enumerate(graph.stages):
            print_on(console, f"\nStage {number}: {_describe_stage(stage)}")
            print_on(console, _describe_runs(stage))
            if stage.explanation is not None:
                print_on(console, _lane_table(stage.explanation.lanes))
            for line in _reasons(stage):
                print_on(console, f"  {line}")
            is_sm_known |= any(use is not None for use in _uses(stage))
        if graph.missed:
            print_on(console, _describe_missed(graph.missed))
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
        error = each.modelled_us / each.stage.latency_us - 1
        errors.append(error)
        lanes = zip(each.stage.costs, each.stage.algorithms, strict=True)
        table.add_row(
            "\n".join(
                f"{_describe_costs(problem, name)}, {algorithm}" for name, algorithm in lanes
            ),
            f"{each.stage.latency_us:.1f}",
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


def _describe_stage(stage: PlannedStage) -> str:
    prediction = stage.prediction
    if prediction is None or len(stage.convolutions) == 1:
        # By itself a convolution is no faster than in no stage: it is there for its algorithm.
        return stage.why or "no reason given"
    saved = 1 - prediction.latency_us / prediction.sequential_us
    return (
        f"{prediction.latency_us:.1f} us {prediction.source.value}, may be off by "
        f"{prediction.spread_us:.1f}, against {prediction.sequential_us:.1f} us one after another, "
        f"measured: {percent(saved)} less"
    )


def describe_lanes(run: PlannedStage | BatchSchedule) -> list[str]:
    """What each lane runs and asks for, in words."""
    return [
        f"lane {number}: {_describe_lane(run, number)}{_options(run, number)}"
        for number in range(len(run.lanes))
    ]


def _describe_runs(stage: PlannedStage) -> str:
    """The lanes of a stage, those of each batch size where they are not the same for all."""
    if not stage.schedules:
        return "\n".join(f"  {line}" for line in describe_lanes(stage))
    lines = []
    for schedule in stage.schedules:
        lines.append(f"  batch size {schedule.batch_size}:")
        lines += [f"    {line}" for line in describe_lanes(schedule)]
    return "\n".join([*lines, "  any other batch size: in sequence"])


def _describe_lane(run: PlannedStage | BatchSchedule, number: int) -> str:
    lane = run.lanes[number]
    if not is_merged(run, number):
        return ", then ".join(map(_describe_pinned, lane))
    names = " and ".join(pinned.node for pinned in lane)
    return f"{names}, merged into one wider convolution, with {lane[0].algorithm or _ANY}"


def _lane_table(explained: Sequence[LaneExplanation]) -> Table:
    table = new_table("")
    table.title = None
    table.add_column("    lane")
    uses = [lane.sm_use for lane in explained]
    has_sm_use = any(use is not None for use in uses)
    for heading in ("alone us", "workspace", *(_SM_COLUMNS.values() if has_sm_use else ())):
        table.add_column(heading, justify="right")
    for number, lane in enumerate(explained):
        table.add_row(
            f"    {number}",
            f"{lane.alone_us:.1f}",
            decimal(lane.workspace_bytes),
            *(_use_cells(lane.sm_use) if has_sm_use else ()),
        )
    if has_sm_use and len(explained) > 1:
        sums = sum_of_uses(uses)
        table.add_row("    together", "", "", *(percent(sums.get(field)) for field in _SM_COLUMNS))
    return table


def _use_cells(use: SmUse | None) -> list[str]:
    return [percent(getattr(use, field, None)) for field in _SM_COLUMNS]


def _uses(stage: PlannedStage) -> list[SmUse | None]:
    return [] if stage.explanation is None else [lane.sm_use for lane in stage.explanation.lanes]


def _describe_pinned(pinned: PinnedConvolution) -> str:
    return f"{pinned.node} with {pinned.algorithm or _ANY}"


def _options(run: PlannedStage | BatchSchedule, lane: int) -> str:
    if not run.lane_options:
        return ""
    options = run.lane_options[lane]
    words = []
    if options.priority:
        words.append(f"priority {options.priority}")
    if options.sm_count:
        words.append(f"{options.sm_count} SMs of its own")
    return "".join(f", {word}" for word in words)


def _reasons(stage: PlannedStage) -> list[str]:
    if stage.explanation is None or stage.prediction is None:
        return []
    lines = [
        f"Lane {number}: alone {lane.fastest_algorithm or _ANY} is faster, {lane.fastest_us:.1f} us"
        for number, (lane, pinned) in enumerate(
            zip(stage.explanation.lanes, stage.lanes, strict=True)
        )
        if lane.fastest_algorithm != pinned[0].algorithm and lane.fastest_us < lane.alone_us
    ]
    lines += [
        f"Lane {number}: its {len(stage.lanes[number])} convolutions read one image; one after "
        f"another they take {lane.alone_us:.1f} us"
        for number, lane in enumerate(stage.explanation.lanes)
        if is_merged(stage, number)
    ]
    lines += _complement(stage.explanation.lanes)
    lines.append(
        f"Memory: {decimal(stage.prediction.workspace_bytes)} of workspace; "
        f"{decimal(stage.prediction.peak_bytes)} with outputs and what is alive across the stage"
    )
    for alternative in stage.explanation.alternatives:
        lines.append(_describe_alternative(alternative))
    return lines


def _complement(lanes: Sequence[LaneExplanation]) -> list[str]:
    """What each lane takes most of, and when it leaves the arithmetic units to others."""
    most = []
    for lane in lanes:
        shares = {
            field: share
            for field in SHARED_RESOURCES
            if (share := getattr(lane.sm_use, field, None)) is not None
        }
        if not shares:
            return []
        most.append(max(shares.items(), key=lambda each: each[1]))
    lines = []
    if len(lanes) > 1 and len({field for field, _ in most}) == 1:
        lines = [f"All lanes take more of the {SHARED_RESOURCES[most[0][0]]} than of anything else"]
    elif len(lanes) > 1:
        words = [
            f"lane {number} most of the {SHARED_RESOURCES[field]} ({percent(share)})"
            for number, (field, share) in enumerate(most)
        ]
        lines = [f"Different resources: {', '.join(words)}"]
    for number, lane in enumerate(lanes if len(lanes) > 1 else ()):
        stall = None if lane.sm_use is None else lane.sm_use.memory_stall
        if stall:
            lines.append(
                f"Lane {number} waits for memory in {percent(stall)} of its stalls; meanwhile the "
                "ALUs are free for the others"
            )
    return lines


def _describe_alternative(alternative: Alternative) -> str:
    algorithms = ", ".join(
        names[0] or _ANY if len(names) == 1 else f"{len(names)} merged with {names[0] or _ANY}"
        for names in alternative.algorithms_of_lanes
    )
    return (
        f"Not {algorithms} ({alternative.latency_us:.1f} us {alternative.source.value}, "
        f"{decimal(alternative.workspace_bytes)} of workspace): {alternative.why_not}"
    )


def _describe_missed(missed: Sequence[MissedStage]) -> str:
    lines = ["\nNot together, the most promising first:"]
    for each in missed:
        names = " and ".join(each.nodes)
        alike = f" ({each.count - 1} more of the same costs)" if each.count > 1 else ""
        lines.append(f"  {names}{alike}: {each.why_not}")
    return "\n".join(lines)


def _describe_costs(problem: PlanningProblem, name: str) -> str:
    configuration = problem.costs_by_name[name].configuration
    return name if configuration is None else describe_convolution(configuration)
