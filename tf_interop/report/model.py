"""Traces the networks of a model for a report.

For stages nothing runs. For a graph that was tuned on a CPU the model runs once, on zeros, as in
`tune`, because its plan is of the graph that Grappler hands over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.core.framework import graph_pb2

from tf_interop.errors import PlanError
from tf_interop.graph.independence import Independence
from tf_interop.graph.landmarks import find_structure
from tf_interop.model.graphs import convolutions_of, planned_graph, trace
from tf_interop.model.keras_functions import keras_of
from tf_interop.planning.lookup import OTHER_MODEL_REMEDY, made_for
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.profile.tables import describe_convolution
from tf_interop.report.network import Network, NetworkNode, describe_filter, named_as_in
from tf_interop.tuning.tune import graph_to_tune


def networks_of_model(
    model: Any,
    plan: Plan,
    *,
    image_size: tuple[int, int] | None = None,
    compute_capability: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Network | None, ...]:
    """Finds the network of each graph of a plan.

    Returns:
        None for a graph that the model does not have.

    Raises:
        ValueError: the model is of the wrong kind, or an input's shape is unknown.
        GraphError: TensorFlow refuses the graph.
        PlanError: the model has none of the graphs.
    """
    any_mode = ("inference", "training") if keras_of(model) is not None else ("inference",)

    def network_of(graph: GraphPlan) -> Network | None:
        for mode in [graph.mode] if graph.mode else any_mode:
            batch_size = graph.batch_size or 1
            say(f"Tracing batch {batch_size}, {mode}")
            traced = trace(
                model,
                batch_size=batch_size,
                training=mode == "training",
                image_size=image_size,
                jit_compile=graph.jit_compile,
            )
            if graph.measured is None:
                graph_def = planned_graph(traced, compute_capability)
            else:
                graph_def = graph_to_tune(traced)
            network = _network_of_convolutions(graph_def)
            if network.structure.fingerprint == graph.fingerprint:
                return named_as_in(graph, network)
        return None

    networks = tuple(map(network_of, plan.graphs))
    if plan.graphs and not any(networks):
        raise PlanError(
            f"The plan{made_for(plan)} is not for this model. {OTHER_MODEL_REMEDY} If the model "
            "was planned for another device, name that device with --for."
        )
    return networks


def _network_of_convolutions(graph_def: graph_pb2.GraphDef) -> Network:
    view, convolutions, refusals = convolutions_of(graph_def)
    predecessors = Independence(view, convolutions).direct_predecessors(range(len(convolutions)))
    nodes = tuple(
        NetworkNode(
            node.name,
            its,
            describe_filter(node.configuration),
            describe_convolution(node.configuration),
        )
        for node, its in zip(convolutions, predecessors, strict=True)
    )
    return Network(nodes, refusals, find_structure(view, convolutions))
