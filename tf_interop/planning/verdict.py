"""What a plan gains, in a sentence: the same wherever it is told."""

from __future__ import annotations

from tf_interop.planning.types import GraphPlan

_MOST_OTHER_LOAD = 0.1


def is_gain(graph: GraphPlan) -> bool:
    """Whether whole steps were measured to be faster than stock by more than the error."""
    measured = graph.measured
    return measured is not None and measured.ratio - measured.error > 1


def verdict(graph: GraphPlan) -> str:
    """What an entry of a plan gains."""
    measured, prediction = graph.measured, graph.prediction
    if measured is None:
        no_step = "No whole step was measured: tf-interop benchmark compares with stock and XLA."
        if graph.units:
            return f"{len(graph.units)} {graph.unit_kind} units. {no_step}"
        if not graph.stages:
            why = graph.why_no_stage or "no stage is faster than its convolutions in sequence"
            return f"The graph stays as it is: {why}. {no_step}"
        staged = sum(len(stage.nodes) for stage in graph.stages)
        stages = f"{len(graph.stages)} stages of {staged} of {graph.convolution_count} convolutions"
        if prediction is None:
            return f"{stages}. {no_step}"
        expected_us, error_us = prediction.latency_us, graph.spread_us
        saved_us = prediction.sequential_us - expected_us
        if saved_us > error_us:
            gain = (
                f"{prediction.sequential_us / expected_us:.2f} times as fast expected, of "
                f"convolutions alone ({_ms(expected_us)} ± {_ms(error_us)}, one after another "
                f"{_ms(prediction.sequential_us)})"
            )
        else:
            gain = (
                f"No significant gain expected: {_ms(saved_us)} ± {_ms(error_us)} of "
                f"{_ms(prediction.sequential_us)} of convolutions"
            )
        return f"{gain}, by {stages}. {no_step}"
    if not graph.changes_graph:
        return (
            f"No significant gain over stock TensorFlow ({measured.stock_ms:.1f} ms a step): the "
            "graph is left as it is."
        )
    how = f"by {len(graph.narrow_units)} units on one core each"
    if graph.split_units:
        how = f"by splitting the batch over them for {measured.unit_op_count} operations"
    how = f"measured on {measured.cores} cores, {how}."
    if is_gain(graph):
        return (
            f"{measured.ratio:.2f} times as fast as stock TensorFlow ({measured.step_ms:.1f} ms a "
            f"step, stock {measured.stock_ms:.1f} ms), {how}"
        )
    # The error of the ratio is that of stock's step, in steps of the plan.
    saved_ms, error_ms = (each * measured.step_ms for each in (measured.ratio - 1, measured.error))
    return (
        f"No significant gain over stock TensorFlow: {saved_ms:.1f} ± {error_ms:.1f} ms of "
        f"{measured.stock_ms:.1f} ms a step, {how}"
    )


def _ms(time_us: float) -> str:
    return f"{time_us / 1e3:.2f} ms"


def doubt(graph: GraphPlan) -> str:
    """Why not to trust what was measured; empty for no reason."""
    measured = graph.measured
    if measured is None or measured.other_load < _MOST_OTHER_LOAD:
        return ""
    return (
        f"Other programs took {measured.other_load:.0%} of the cores meanwhile: tune afresh when "
        "the machine has nothing else to do."
    )
