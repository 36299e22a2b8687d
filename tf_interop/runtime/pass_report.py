"""What the pass of stages or units did to a graph."""

from __future__ import annotations

import dataclasses

from tf_interop.convolution import Refusal
from tf_interop.planning.types import GraphPlan


@dataclasses.dataclass(frozen=True)
class PassReport:
    """What the pass did to one graph.

    Attributes:
        device_type: `CPU` or `GPU`; only convolutions on it were considered.
        node_count: nodes of the graph.
        convolution_count: convolutions that could be part of a stage.
        refusals: convolution nodes that stay as they are, with the reason.
        plan: the graph's fingerprint, and the stages or units that were made.
        milliseconds: how long the pass took.
        why_unchanged: empty if stages or units were made, else why not.
        unit_count: units of the graph, taken or not; 0 if stages are made.
        unit_op_count: nodes that units replaced.
    """

    device_type: str
    node_count: int
    convolution_count: int
    refusals: tuple[Refusal, ...]
    plan: GraphPlan
    milliseconds: float = 0.0
    why_unchanged: str = ""
    unit_count: int = 0
    unit_op_count: int = 0
