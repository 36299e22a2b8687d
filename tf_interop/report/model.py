"""The networks of a model, traced for a report; nothing of the model is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_interop.convolution import ConvolutionNode, batch_size_of
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.fingerprint import fingerprint_convolutions
from tf_interop.graph.independence import Independence
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.model.graphs import device_graph_of
from tf_interop.model.keras_functions import keras_of
from tf_interop.planning.problem import Candidate
from tf_interop.planning.types import Plan
from tf_interop.profile.types import Profile
from tf_interop.report.network import Network, NetworkNode


def networks_of_model(
    model: Any,
    plan: Plan,
    *,
    image_size: tuple[int, int] | None = None,
    compute_capability: str | None = None,
    profile: Profile | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Network, ...]:
    """The networks that a plan of a model may be for.

    Args:
        model: what `tf_interop.plan` takes.
        plan: whose batch sizes and modes are traced; both modes where an entry does not say which.
        image_size: height and width, for inputs of rank 4 that leave them open.
        compute_capability: of the GPU that the plan is for; None for a CPU.
        profile: what the algorithms take.
        say: told what is being done, in a few words.

    Raises:
        ValueError: the model is of a wrong kind, or a shape is unknown that has to be known.
        GraphError: TensorFlow refuses the graph.
    """

    def candidates_for(node: ConvolutionNode) -> tuple[Candidate, ...]:
        measured = () if profile is None else profile.find_algorithms(node.configuration)
        return tuple(
            Candidate(each.algorithm, each.latency_us, each.workspace_bytes, each.spread_us)
            for each in measured
        )

    any_mode = ("inference", "training") if keras_of(model) is not None else ("inference",)
    networks = []
    for batch_size, mode in dict.fromkeys(
        (graph.batch_size or 1, mode)
        for graph in plan.graphs
        for mode in ((graph.mode,) if graph.mode else any_mode)
    ):
        say(f"Tracing batch {batch_size}, {mode}")
        _, graph_def = device_graph_of(
            model,
            batch_size=batch_size,
            training=mode == "training",
            image_size=image_size,
            compute_capability=compute_capability,
        )
        view = GraphView(graph_def)
        convolutions, refusals = find_convolutions(view, GraphProperties(view))
        independence = Independence(view, convolutions)
        predecessors = independence.direct_predecessors(range(len(convolutions)))
        networks.append(
            Network(
                tuple(
                    NetworkNode(node.name, its, node.configuration, candidates_for(node))
                    for node, its in zip(convolutions, predecessors, strict=True)
                ),
                tuple(refusals),
                fingerprint_convolutions(convolutions),
                batch_size_of([node.configuration for node in convolutions]),
            )
        )
    return tuple(networks)
