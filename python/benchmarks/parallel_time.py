"""Times the search over all ways to divide the layers of training steps of Keras applications."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import tensorflow as tf

from python.benchmarks.case import Case
from python.benchmarks.parallel_papers import training_layers
from tf_interop.graph.time_limit import collection_pause
from tf_interop.parallel.costs.devices import uniform_device_graph
from tf_interop.parallel.costs.tables import find_costs
from tf_interop.parallel.search.minimize import minimize

BATCH_SIZE = 32


def measure(name: str) -> dict[str, Any]:
    """Finds the costs of all configurations and searches them; what that took of a core."""
    network, _, devices_in_words = name.partition(" on ")
    count = int(devices_in_words)
    model = getattr(tf.keras.applications, network)(weights=None, classifier_activation=None)
    layers = training_layers(model, BATCH_SIZE)
    devices = uniform_device_graph(
        [f"/device:GPU:{each}" for each in range(count)],
        multiply_adds_per_s=3e12,
        memory_bytes_per_s=5e11,
        bytes_per_s=1e10,
        latency_s=1e-5,
    )
    with collection_pause:  # as make_division does
        start = time.process_time()
        costs = find_costs(layers, devices, [0] * len(layers.view))
        costs_s = time.process_time() - start
        start = time.process_time()
        result = minimize(costs.problem())
        search_s = time.process_time() - start
    tables = {id(each): each.nbytes for each in costs.edges.values()}
    tracemalloc.start()
    minimize(costs.problem())
    _, peak_bytes = tracemalloc.get_traced_memory()
    return {
        "layers": len(layers.layers),
        "edges": len(costs.edges),
        "most_configurations": max(len(each.configurations) for each in costs.layers),
        "width": result.width,
        "costs_seconds": costs_s,
        "search_seconds": search_s,
        "costs_megabytes": sum(tables.values()) / 1e6,
        "search_megabytes": peak_bytes / 1e6,
        "search": str(result),
    }


CASE = Case(
    title="What dividing layers takes to plan",
    says="What it takes to find the costs of all divisions of all layers and to search for the "
    "least: CPU time, the memory of the costs of neighbours, and what the search takes on top. "
    "Training steps of 32 images; the number after a name is that of the devices. The width is "
    "the most neighbours that a layer has when the search eliminates it. The rates of the devices "
    "are made up, so what the plans would save says nothing and is left out.",
    networks=tuple(
        f"{network} on {count}"
        for network in ("InceptionV3", "ResNet50", "NASNetMobile")
        for count in (4, 16)
    ),
    measure=measure,
)
