"""Strategies with one rule for all layers, and why each layer of a plan is divided as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tf_interop.parallel.costs.step import DivisionCosts
from tf_interop.parallel.layers.find import Layer, LayerGraph
from tf_interop.parallel.layers.heads import PRODUCT_OPS
from tf_interop.parallel.types import PLAN, Axis, Degrees, LayerExplanation, LayerTimes

WHOLE = "whole"
DATA = "data"
MODEL = "model"
ONE_WEIRD_TRICK = "one weird trick"

_COMPARED = (WHOLE, DATA, MODEL)
_LEAST_US = 0.05


def baselines(graph: LayerGraph, device_count: int) -> dict[str, tuple[Degrees, ...]]:
    """The degrees of each layer under each strategy.

    whole: everything is on one device.
    data: each device has a share of the batch.
    model: each device has a share of the output channels.
    one weird trick: matrix products as in model, all other layers as in data (Krizhevsky, "One
    weird trick for parallelizing convolutional neural networks", 2014).

    A layer with fewer values than devices is divided as far as possible.
    """
    layers = graph.layers
    data = tuple(_divided(layer, Axis.SAMPLE, device_count) for layer in layers)
    model = tuple(_divided(layer, Axis.FILTER, device_count) for layer in layers)
    return {
        WHOLE: (Degrees(),) * len(layers),
        DATA: data,
        MODEL: model,
        ONE_WEIRD_TRICK: tuple(
            its_model if layer.op in PRODUCT_OPS else its_data
            for layer, its_data, its_model in zip(layers, data, model, strict=True)
        ),
    }


def _divided(layer: Layer, axis: Axis, device_count: int) -> Degrees:
    """Divides an axis into the most parts that divide the number of devices."""
    most = min(device_count, layer.extents[axis])
    return Degrees(**{axis.value: max(n for n in range(1, most + 1) if device_count % n == 0)})


def explain_layers(
    costs: DivisionCosts,
    names: Sequence[str],
    choice: Sequence[int],
    strategies: Mapping[str, Sequence[Degrees]],
) -> tuple[LayerExplanation, ...]:
    """Explains the configuration of every layer, which `choice` has by its index.

    `strategies` has the degrees of each layer under each strategy.
    """
    edges_of: list[list[tuple[int, int]]] = [[] for _ in names]
    for edge in costs.edges:
        for layer in edge:
            edges_of[layer].append(edge)

    def times(strategy: str, layer: int, configuration: int) -> LayerTimes:
        its, chosen = costs.layers[layer], [*choice]
        chosen[layer] = configuration
        between = sum(float(costs.edges[a, b][chosen[a], chosen[b]]) for a, b in edges_of[layer])
        return LayerTimes(
            strategy,
            its.configurations[configuration],
            compute_us=float((its.compute_s + its.copying_s)[:, configuration].sum()) * 1e6,
            inner_us=float(its.inner_s[configuration]) * 1e6,
            parameters_us=float(its.parameters_s[:, configuration].sum()) * 1e6,
            neighbours_us=between * 1e6,
        )

    step_s = costs.seconds(choice)
    explanations = []
    for layer, name in enumerate(names):
        chosen = times(PLAN, layer, choice[layer])
        others: list[LayerTimes] = []
        saved_us: list[float] = []
        for each in _COMPARED:
            configuration = costs.layers[layer].place_of(strategies[each][layer])
            others.append(times(each, layer, configuration))
            with_other = [*choice[:layer], configuration, *choice[layer + 1 :]]
            saved_us.append((costs.seconds(with_other) - step_s) * 1e6)
        why = _why(chosen, others, saved_us)
        explanations.append(LayerExplanation(name, chosen, tuple(others), why))
    return tuple(explanations)


def _why(chosen: LayerTimes, others: Sequence[LayerTimes], saved_by_other_us: list[float]) -> str:
    """How much longer the step is with the best other strategy, and where most of it comes from.

    `saved_by_other_us` is how much longer it is with each.
    """
    different = [
        (its_saved_us, place)
        for place, its_saved_us in enumerate(saved_by_other_us)
        if others[place].degrees != chosen.degrees
    ]
    if not different:
        return "it cannot be divided"
    saved_us, place = min(different)
    best = others[place]
    if saved_us < -_LEAST_US:
        less = f"{best.strategy} takes {-saved_us / 1e3:.3g} ms less"
        return f"{less}, but does not fit in memory, or the search did not find it"
    if saved_us < _LEAST_US:
        return f"no slower than {best.strategy}"
    gains = {part: best.by_name[part] - value for part, value in chosen.by_name.items()}
    most = max(gains, key=lambda part: gains[part])
    return f"{saved_us / 1e3:.3g} ms less than {best.strategy}, most of it {most}"
