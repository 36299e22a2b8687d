"""How reports call a figure, so that none is taken for more than it is."""

from __future__ import annotations

from tf_interop.know.plans.plan import GraphPlan, Plan
from tf_interop.know.plans.planning_problem import FigureSource

SIMULATED = "simulated"
"""The key of `Plan.made_with` that says how figures were made where nothing was measured."""


def is_simulated(plan: Plan) -> bool:
    """Whether what the plan calls measured was not."""
    return SIMULATED in plan.made_with


def figure_label(source: FigureSource, *, simulated: bool) -> str:
    """`measured`, `modelled` or, for what would be measured in a plan that is simulated, that."""
    if source is FigureSource.MEASURED and simulated:
        return SIMULATED
    return source.value


def total_label(graph: GraphPlan, *, simulated: bool) -> str:
    """What the predicted total of a graph is: the sum of figures of one kind or of both."""
    labels = {figure_label(FigureSource.MEASURED, simulated=simulated)} if graph.alone else set()
    labels |= {
        figure_label(stage.prediction.source, simulated=simulated)
        for stage in graph.stages
        if stage.prediction is not None
    }
    return " and ".join(sorted(labels)) or figure_label(FigureSource.MEASURED, simulated=simulated)
