"""Why each layer of a plan is divided as it is, by what else it would cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tf_interop.parallel.baselines import DATA, MODEL, WHOLE
from tf_interop.parallel.costs.tables import DivisionCosts
from tf_interop.parallel.degrees import Degrees

_COMPARED = (WHOLE, DATA, MODEL)
_LEAST_US = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class LayerTimes:
    """What a layer takes when it is divided in one way and all others as in the plan.

    Attributes:
        degrees: how it is divided.
        compute_us: of its busiest device.
        inner_us: sending within the layer.
        parameters_us: sending parameters and their gradients.
        neighbours_us: sending what it has from and gives to other layers.
    """

    degrees: Degrees
    compute_us: float
    inner_us: float
    parameters_us: float
    neighbours_us: float

    @property
    def total_us(self) -> float:
        """All of it."""
        return self.compute_us + self.inner_us + self.parameters_us + self.neighbours_us

    @property
    def by_name(self) -> dict[str, float]:
        """What it consists of, for reading."""
        return {
            "computing": self.compute_us,
            "sums and halos": self.inner_us,
            "parameters": self.parameters_us,
            "neighbours": self.neighbours_us,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class LayerExplanation:
    """Why a layer is divided as it is.

    Attributes:
        name: of the layer.
        chosen: what it takes as in the plan.
        others: what it would take if it alone were divided otherwise, by strategy.
        why: the reason, for reading.
    """

    name: str
    chosen: LayerTimes
    others: Mapping[str, LayerTimes]
    why: str


def explain_layers(
    costs: DivisionCosts,
    names: Sequence[str],
    choice: Sequence[int],
    strategies: Mapping[str, Sequence[Degrees]],
) -> tuple[LayerExplanation, ...]:
    """Explains every layer.

    Args:
        costs: of all configurations.
        names: of the layers.
        choice: the configuration of each.
        strategies: the degrees of each layer under each strategy.
    """
    neighbours: list[list[int]] = [[] for _ in names]
    for first, second in costs.edges:
        neighbours[first].append(second)
        neighbours[second].append(first)

    def times(layer: int, configuration: int) -> LayerTimes:
        its = costs.layers[layer]
        between = 0.0
        for other in neighbours[layer]:
            pair = (layer, other) if layer < other else (other, layer)
            at = (configuration, choice[other])
            between += float(costs.edges[pair][at if layer < other else at[::-1]])
        return LayerTimes(
            its.configurations[configuration],
            compute_us=float(its.compute_s[configuration]) * 1e6,
            inner_us=float(its.inner_s[configuration]) * 1e6,
            parameters_us=float(its.parameters_s[configuration]) * 1e6,
            neighbours_us=between * 1e6,
        )

    explanations = []
    for layer, name in enumerate(names):
        chosen = times(layer, choice[layer])
        others = {
            strategy: times(layer, costs.layers[layer].place_of(strategies[strategy][layer]))
            for strategy in _COMPARED
        }
        explanations.append(LayerExplanation(name, chosen, others, _why(chosen, others)))
    return tuple(explanations)


def _why(chosen: LayerTimes, others: Mapping[str, LayerTimes]) -> str:
    """What it takes less than the best strategy, and where most of that comes from."""
    different = {name: each for name, each in others.items() if each.degrees != chosen.degrees}
    if not different:
        return "it cannot be divided"
    name, best = min(different.items(), key=lambda item: item[1].total_us)
    saved_us = best.total_us - chosen.total_us
    if saved_us < -_LEAST_US:
        return f"{name} takes {-saved_us / 1e3:.3g} ms less, but does not fit into the memory"
    if saved_us < _LEAST_US:
        return f"no slower than {name}"
    gains = {part: best.by_name[part] - value for part, value in chosen.by_name.items()}
    most = max(gains, key=lambda part: gains[part])
    return f"{saved_us / 1e3:.3g} ms less than {name}, most of it {most}"
