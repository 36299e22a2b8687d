"""What a plan comes to, graph by graph, as plain values for `--json`."""

from __future__ import annotations

from typing import Any

from tf_interop.plan.overview import has_figures
from tf_interop.plan.types import GraphPlan


def summarize_graph(graph: GraphPlan) -> dict[str, Any]:
    """The figures of one entry of a plan; None where it predicts nothing of any convolution."""
    unmeasured = None if graph.prediction is None else graph.prediction.unmeasured_count
    prediction = graph.prediction if has_figures(graph) else None
    return {
        "fingerprint": graph.fingerprint,
        "batch_size": graph.batch_size,
        "convolutions": graph.convolution_count,
        "unmeasured": unmeasured,
        "stages": len(graph.stages),
        "latency_us": None if prediction is None else prediction.latency_us,
        "sequential_us": None if prediction is None else prediction.sequential_us,
        "peak_bytes": None if prediction is None else prediction.peak_bytes,
    }
