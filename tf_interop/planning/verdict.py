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
        no_step = "No whole step was measured: tf-interop benchmark compares with stock TensorFlow."
        if not graph.stages:
            why = graph.why_no_stage or "no stage is faster than its convolutions in sequence"
            return f"The graph stays as it is: {why}. {no_step}"
        staged = sum(len(stage.nodes) for stage in graph.stages)
        stages = f"{len(graph.stages)} stages of {staged} of {graph.convolution_count} convolutions"
        if prediction is None:
            return f"{stages}. {no_step}"
        return (
            f"{stages}. All are expected to take {prediction.latency_us / 1e3:.2f} ms, one after "
            f"another {prediction.sequential_us / 1e3:.2f} ms. {no_step}"
        )
    if not graph.changes_graph:
        return (
            f"No significant gain over stock TensorFlow ({measured.stock_ms:.1f} ms a step): the "
            "graph is left as it is."
        )
    gain = "No significant gain over stock TensorFlow"
    if is_gain(graph):
        gain = f"{measured.ratio:.2f} times as fast as stock TensorFlow"
    how = f"by {len(graph.narrow_units)} units on one core each"
    if graph.split_units:
        how = f"by splitting the batch over them for {measured.unit_op_count} operations"
    return (
        f"{gain} ({measured.step_ms:.1f} ms a step, stock {measured.stock_ms:.1f} ms), measured on "
        f"{measured.cores} cores, {how}."
    )


def doubt(graph: GraphPlan) -> str:
    """Why not to trust what was measured; empty for no reason."""
    measured = graph.measured
    if measured is None or measured.other_load < _MOST_OTHER_LOAD:
        return ""
    return (
        f"Other programs took {measured.other_load:.0%} of the cores meanwhile: tune afresh when "
        "the machine has nothing else to do."
    )
