"""Divisions that follow one rule for all layers, to compare a plan with."""

from __future__ import annotations

from tf_interop.parallel.degrees import Axis, Degrees
from tf_interop.parallel.layers.find import Layer, LayerGraph
from tf_interop.parallel.lookup import is_product

WHOLE = "whole"
DATA = "data"
MODEL = "model"
ONE_WEIRD_TRICK = "one weird trick"


def baselines(graph: LayerGraph, device_count: int) -> dict[str, tuple[Degrees, ...]]:
    """The degrees of each layer of a graph under each strategy, by its name.

    whole: everything on one device.
    data: each device has a share of the batch.
    model: each device has a share of the output channels.
    one weird trick: matrix products as in model, all else as in data (Krizhevsky, "One weird trick
    for parallelizing convolutional neural networks", 2014).

    A layer with less of that than devices is divided as far as it goes.
    """
    layers = graph.layers
    data = tuple(_divided(layer, Axis.SAMPLE, device_count) for layer in layers)
    model = tuple(_divided(layer, Axis.FILTER, device_count) for layer in layers)
    return {
        WHOLE: (Degrees(),) * len(layers),
        DATA: data,
        MODEL: model,
        ONE_WEIRD_TRICK: tuple(
            its_model if is_product(graph, layer) else its_data
            for layer, its_data, its_model in zip(layers, data, model, strict=True)
        ),
    }


def _divided(layer: Layer, axis: Axis, device_count: int) -> Degrees:
    """A layer in as many parts of an axis as there are devices, or the most that divide these."""
    extent = layer.extents[axis]
    counts = (each for each in range(1, device_count + 1) if device_count % each == 0)
    return Degrees(**{axis.value: max(each for each in counts if each <= extent)})
