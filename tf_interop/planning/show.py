"""Prints plans: their gain, and the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from tf_interop.measure.other_load import MOST_OTHER_LOAD
from tf_interop.planning.explain import SHARED_RESOURCES, sum_of_uses
from tf_interop.planning.sm_model import SmUse
from tf_interop.planning.types import (
    XLA,
    GraphPlan,
    GraphPrediction,
    LaneAlone,
    MeasuredStep,
    Plan,
    PlannedStage,
    ValueSource,
)
from tf_interop.stage import Lane, Stage
from tf_interop.terminal import UNKNOWN, new_table, percent, print_on

_ANY = "any"


def show_plan(plan: Plan, console: Console) -> None:
    """Prints the planned graphs with their gains and gaps."""
    planned = [graph for graph in plan.graphs if graph.measured is None]
    if planned:
        print_on(console, _planned_table(planned))
        print_on(
            console,
            "\n"
            "One by one, every convolution runs alone with its fastest algorithm, as measured. "
            "'measured' is the measured share of the µs; the rest is modelled. Memory is the "
            "outputs of convolutions and workspaces.\n"
            "The µs are the GPU's for convolutions alone. A step also takes other operations and "
            "the host's time, which is most of it in small batches: compare whole steps with "
            "tf-interop benchmark.",
        )
    for graph in plan.graphs:
        for line in _remarks(graph):
            print_on(console, f"{name_graph(graph)}: {line}")


def explain_stages(plan: Plan, console: Console) -> None:
    """Prints what `show_plan` does, then explains each stage."""
    show_plan(plan, console)
    for graph in plan.graphs:
        print_on(console, f"\nGraph {graph.fingerprint}, {name_graph(graph)}")
        for line in _describe_search(graph):
            print_on(console, f"  {line}")
        for number, planned in enumerate(graph.stages):
            print_on(console, f"\nStage {number}: {_describe_values(planned)}")
            for line in (*_describe_runs(planned), *_reasons(planned)):
                print_on(console, f"  {line}")
        if graph.rejected:
            print_on(console, "\nNot together, most promising first:")
        for each in graph.rejected:
            alike = f" ({each.count - 1} more of the same costs)" if each.count > 1 else ""
            print_on(console, f"  {' and '.join(each.nodes)}{alike}: {each.why_not}")


class _Entry(Protocol):
    """The entry of a plan for one graph."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def mode(self) -> str | None: ...
    @property
    def batch_size(self) -> int | None: ...


def name_graph(graph: _Entry) -> str:
    """A graph's name within its plan, such as `inference, batch 8`."""
    batch = "" if graph.batch_size is None else f", batch {graph.batch_size}"
    return f"{graph.mode or graph.fingerprint}{batch}"


def summarize_graph(graph: GraphPlan) -> dict[str, Any]:
    """One entry of a plan in JSON; values that were not predicted or measured are None."""
    prediction, measured = predicted(graph), graph.measured
    return {
        "mode": graph.mode,
        "fingerprint": graph.fingerprint,
        "batch_size": graph.batch_size,
        "convolutions": graph.convolution_count,
        "unmeasured": None if graph.prediction is None else graph.unmeasured_count,
        "stages": len(graph.stages),
        **{
            field: getattr(prediction, field, None)
            for field in ("latency_us", "sequential_us", "peak_bytes")
        },
        "as_stock": graph.as_stock,
        "measured": measured,
    }


def predicted(graph: GraphPlan) -> GraphPrediction | None:
    """The prediction for a graph; None if none of its convolutions is in the profile."""
    return None if 0 < graph.convolution_count == graph.unmeasured_count else graph.prediction


def _planned_table(graphs: Sequence[GraphPlan]) -> Table:
    title = "Plan: µs and memory, in stages and one after another"
    numbers = ("batch", "conv.", "stages", "µs", "one by one", "ratio")
    table = new_table(title, "graph", *numbers)
    table.add_column("measured", justify="right", max_width=12)
    for heading in ("peak", "one by one"):
        table.add_column(heading, justify="right", no_wrap=True)
    for graph in graphs:
        table.add_row(
            graph.mode or graph.fingerprint,
            _ANY if graph.batch_size is None else str(graph.batch_size),
            str(graph.convolution_count),
            str(len(graph.stages)),
            *_prediction_cells(graph),
        )
    return table


def _describe_search(graph: GraphPlan) -> Iterator[str]:
    """Describes the search."""
    if graph.prediction is not None:
        budget = graph.prediction.memory_budget_bytes
        yield "no memory budget" if budget is None else f"memory budget {decimal(budget)}"
        yield f"search: {graph.prediction.search}"


def _prediction_cells(graph: GraphPlan) -> tuple[str, ...]:
    prediction = predicted(graph)
    if prediction is None:
        measured = UNKNOWN if graph.prediction is None else _incomplete(graph)
        return (UNKNOWN, UNKNOWN, UNKNOWN, measured, UNKNOWN, UNKNOWN)
    # A part of the graph has no ratio for the whole graph.
    ratio, measured = UNKNOWN, _incomplete(graph)
    if not graph.unmeasured_count:
        measured = percent(_measured_share(graph, prediction))
        if prediction.latency_us:
            ratio = f"{prediction.sequential_us / prediction.latency_us:.2f}"
    return (
        f"{prediction.latency_us:.1f}",
        f"{prediction.sequential_us:.1f}",
        ratio,
        measured,
        decimal(prediction.peak_bytes),
        decimal(prediction.sequential_peak_bytes),
    )


def _incomplete(graph: GraphPlan) -> str:
    measured = graph.convolution_count - graph.unmeasured_count
    return f"incomplete: {measured} of {graph.convolution_count} convolutions"


def _measured_share(graph: GraphPlan, prediction: GraphPrediction) -> float | None:
    """The measured share of the predicted time; unstaged convolutions are always measured."""
    if not prediction.latency_us:
        return None
    modelled_us = sum(
        stage.prediction.latency_us
        for stage in graph.stages
        if stage.prediction is not None and stage.prediction.source is ValueSource.MODELLED
    )
    return max(0.0, 1 - modelled_us / prediction.latency_us)


def _remarks(graph: GraphPlan) -> Iterator[str]:
    """The gain of tuning, the unmeasured convolutions, and why there is no stage."""
    if graph.unmeasured_count:
        yield (
            f"{_incomplete(graph)}. The others are in no stage, and no value includes them. To "
            "plan them, profile the model with this mode and this batch size."
        )
    if graph.measured is not None:
        yield verdict(graph)
    if not graph.stages and predicted(graph) is not None:
        yield f"no stage: {why_no_stage(graph)}"


def why_no_stage(graph: GraphPlan) -> str:
    """Why a graph has no stage."""
    if graph.prediction is None:
        return "no stage was planned"
    if not graph.rejected:
        return "no two of its measured convolutions are independent"
    best = graph.rejected[0]
    which = "the most promising" if best.may_win else "the nearest to winning"
    return f"{which}, {' and '.join(best.nodes)}: {best.why_not}"


def _describe_values(planned: PlannedStage) -> str:
    prediction = planned.prediction
    if prediction is None or len(planned.nodes) == 1:
        # A stage of one convolution saves no time. It only pins the algorithm.
        return planned.why or "no reason given"
    saved = 1 - prediction.latency_us / prediction.sequential_us
    return (
        f"{prediction.latency_us:.1f} ± {prediction.spread_us:.1f} µs {prediction.source.value}, "
        f"against {prediction.sequential_us:.1f} µs one after another, measured: "
        f"{percent(saved)} less"
    )


def _describe_runs(planned: PlannedStage) -> Iterator[str]:
    """Describes the lanes of a stage, for each batch size if they differ."""
    if not planned.schedules:
        yield from _describe_lanes(planned.stage, planned.alone)
        return
    for schedule in planned.schedules:
        yield f"batch size {schedule.batch_size}:"
        yield from (f"  {line}" for line in _describe_lanes(schedule.stage))
    yield "any other batch size: in sequence"


def _describe_lanes(stage: Stage[str], alone: Sequence[LaneAlone] = ()) -> Iterator[str]:
    for number, lane in enumerate(stage.lanes):
        yield f"lane {number}: {describe_lane(lane)}"
        if alone:
            yield f"  {_describe_alone(lane, alone[number])}"
    shares = _shares([each.sm_use for each in alone]) if len(alone) > 1 else ""
    if shares:
        yield f"together {shares}; above 100 % they take turns"


def describe_lane(lane: Lane[str]) -> str:
    """Describes the steps and the options of a lane, such as `a with GEMM → b with FFT`."""
    runs = " → ".join(f"{step.operation} with {step.algorithm or _ANY}" for step in lane.steps)
    if lane.merged:
        names = " and ".join(lane.operations)
        algorithm = lane.steps[0].algorithm or _ANY
        runs = f"{names}, merged into one wider convolution, with {algorithm}"
    return ", ".join(filter(None, (runs, lane.describe_options())))


def _describe_alone(lane: Lane[str], explained: LaneAlone) -> str:
    """Describes a lane's time alone, and its main kernel's share of an SM."""
    if lane.merged:
        return f"one after another they take {explained.alone_us:.1f} µs"
    parts = [f"alone {explained.alone_us:.1f} µs"]
    if explained.fastest_us < explained.alone_us:
        fastest = explained.fastest_algorithm or "the fastest of each"
        parts.append(f"{explained.fastest_us:.1f} µs with {fastest}")
    parts.append(f"{decimal(explained.workspace_bytes)} of workspace")
    return ", ".join([*parts, *filter(None, [_shares([explained.sm_use])])])


def _shares(uses: Sequence[SmUse | None]) -> str:
    return ", ".join(
        f"{percent(share)} of the {SHARED_RESOURCES[field]}"
        for field, share in sum_of_uses(uses).items()
    )


def describe_algorithms(lane: Lane[str]) -> str:
    """The algorithms of a lane, such as `GEMM → FFT` and `2 merged with GEMM`."""
    if lane.merged:
        return f"{len(lane.steps)} merged with {lane.steps[0].algorithm or _ANY}"
    return " → ".join(step.algorithm or _ANY for step in lane.steps)


def _reasons(planned: PlannedStage) -> Iterator[str]:
    prediction = planned.prediction
    if prediction is not None:
        yield (
            f"Memory: {decimal(prediction.workspace_bytes)} of workspace; "
            f"{decimal(prediction.peak_bytes)} with outputs and other live tensors"
        )
    for alternative in planned.alternatives:
        expected = alternative.prediction
        algorithms = ", ".join(map(describe_algorithms, alternative.stage.lanes))
        yield (
            f"Not {algorithms} ({expected.latency_us:.1f} µs {expected.source.value}, "
            f"{decimal(expected.workspace_bytes)} of workspace): {alternative.why_not}"
        )


def verdict(graph: GraphPlan) -> str:
    """States any `doubt`, the gain of a plan's entry, and that XLA gains more if it does."""
    measured = graph.measured
    advice = ""
    if measured is not None and measured.fastest.name == XLA:
        advice = say_xla_is_faster(measured.fastest.ratio)
    return " ".join(filter(None, (doubt(graph), _gain(graph), advice)))


def say_xla_is_faster(ratio: float) -> str:
    """Recommends XLA, which is `ratio` times as fast as stock TensorFlow."""
    return (
        f"XLA is {ratio:.2f} times as fast as stock TensorFlow: compile the model with "
        "jit_compile=True instead, and keep tf_interop.enable(), without the plan."
    )


def _gain(graph: GraphPlan) -> str:
    measured, prediction = graph.measured, graph.prediction
    if measured is None:
        no_step = "No whole step was measured: tf-interop benchmark compares it with stock and XLA."
        if not graph.stages:
            return f"The graph stays unchanged: {why_no_stage(graph)}. {no_step}"
        staged = sum(len(stage.nodes) for stage in graph.stages)
        stages = f"{len(graph.stages)} stages of {staged} of {graph.convolution_count} convolutions"
        if prediction is None:
            return f"{stages}. {no_step}"
        expected_us, error_us = prediction.latency_us, graph.spread_us
        saved_us = prediction.sequential_us - expected_us
        if saved_us > error_us:
            gain = (
                f"Expected: {prediction.sequential_us / expected_us:.2f} times as fast, for the "
                f"convolutions alone ({_ms(expected_us)} ± {_ms(error_us)}, one after another "
                f"{_ms(prediction.sequential_us)})"
            )
        else:
            gain = (
                f"No significant gain expected: {_ms(saved_us)} ± {_ms(error_us)} of "
                f"{_ms(prediction.sequential_us)} of convolutions"
            )
        return f"{gain}, by {stages}. {no_step}"
    return _measured_gain(graph, measured)


def _measured_gain(graph: GraphPlan, measured: MeasuredStep) -> str:
    """How much faster `tf_interop.enable()` is than stock TensorFlow, and how it runs the graph."""
    ours = measured.ours
    steps = f"{ours.step_ms:.2f} ms per step instead of {measured.stock_ms:.2f} ms"
    if ours.is_gain:
        how = f"It runs {measured.way}." if measured.way else ""
        return f"tf_interop.enable() is {ours.ratio:.2f} times as fast: {steps}. {how}".rstrip()
    if graph.as_stock:
        return f"Stock TensorFlow is faster, so the graph stays as it is: {steps}."
    return (
        f"tf_interop.enable() gains nothing significant: {steps}, {ours.ratio:.2f} times as fast."
    )


def _ms(time_us: float) -> str:
    return f"{time_us / 1e3:.2f} ms"


def doubt(graph: GraphPlan) -> str:
    """A reason not to trust the measurement; empty if there is none."""
    measured = graph.measured
    if measured is None:
        return ""
    if measured.way is None:
        return (
            "Not final, because the graph was still trying ways to run: tune again with a larger "
            "budget."
        )
    if measured.other_load < MOST_OTHER_LOAD:
        return ""
    return (
        f"Not reliable, because other programs took {percent(measured.other_load)} of the cores "
        "during the measurement: tune again when the machine is idle."
    )
