"""Shows parallel plans as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from tf_interop.parallel.types import GraphDivision, LayerExplanation, ParallelPlan
from tf_interop.planning.show import name_graph
from tf_interop.terminal import new_table, print_on


def show_parallel_plan(plan: ParallelPlan, console: Console) -> None:
    """Prints each graph: its steps, its layers, and what is sent."""
    for graph in plan.graphs:
        print_on(console, f"{name_graph(graph)}, on {len(plan.devices)} devices")
        show_steps(graph, console)
        show_layers(() if graph.prediction is None else graph.prediction.layers, console)
        print_on(console, summary(graph))


def show_steps(graph: GraphDivision, console: Console) -> None:
    """Prints the predicted steps of the plan and of other strategies."""
    prediction = graph.prediction
    if prediction is None:
        return
    table = new_table("A step, as predicted", "", "ms", "times one device")
    for name, step_us in prediction.steps_us.items():
        ratio = prediction.whole_us / step_us if step_us else 1.0
        table.add_row(name, f"{step_us / 1e3:.3f}", f"{ratio:.2f}")
    print_on(console, table)
    searched = f" The search was {prediction.search}." if prediction.search else ""
    print_on(console, f"Times are {prediction.source.value}.{searched}")


def show_layers(layers: Sequence[LayerExplanation], console: Console) -> None:
    """Prints the times of layers, and the reasons for their divisions."""
    if not layers:
        return
    title = "Layers: ms in the plan, and if that layer alone were divided otherwise"
    others = (each.strategy for each in layers[0].others)
    table = new_table(title, "layer", "plan", *others)
    table.add_column("divided by", overflow="fold")
    table.add_column("why", overflow="fold", ratio=1)
    for layer in layers:
        times = (layer.chosen, *layer.others)
        ms = (f"{each.total_us / 1e3:.3f}" for each in times)
        table.add_row(layer.name, *ms, str(layer.chosen.degrees), layer.why)
    print_on(console, table)


def summary(graph: GraphDivision) -> str:
    """How much is divided and sent, or why nothing is."""
    prediction = graph.prediction
    said = f"{len(graph.layers)} layers are divided"
    if prediction is not None and prediction.layers:
        said = f"{len(graph.layers)} of {len(prediction.layers)} layers are divided"
    if graph.why_whole:
        return f"{said}: {graph.why_whole}"
    if prediction is None:
        return said
    sent = sum(each.sent_bytes for each in prediction.sent)
    memory = ", ".join(f"{each / 1e6:.3g}" for each in prediction.memory_bytes)
    return f"{said}; {sent / 1e6:.3g} MB are sent in a step; the devices need {memory} MB"
