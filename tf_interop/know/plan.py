"""A plan: the stages of one or more graphs, with an algorithm pinned for every convolution."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import msgspec

PLAN_FORMAT = "tf_interop.plan"
PLAN_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class PinnedConvolution:
    """One convolution of a stage.

    Attributes:
        node: the name of the convolution node in the graph.
        algorithm: the algorithm pinned for it; None leaves the choice to the runner.
    """

    node: str
    algorithm: str | None = None


# The length bounds hold for what a file says; they are part of the schema.
Lane = Annotated[tuple[PinnedConvolution, ...], msgspec.Meta(min_length=1)]


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedStage:
    """Convolutions that run at the same time.

    Attributes:
        lanes: what each stream group runs, in order.
        why: the reason for the stage in a few words, such as the policy that made it.
    """

    lanes: Annotated[tuple[Lane, ...], msgspec.Meta(min_length=1)]
    why: str = ""

    @property
    def convolutions(self) -> tuple[PinnedConvolution, ...]:
        """All convolutions of the stage, lane after lane."""
        return tuple(pinned for lane in self.lanes for pinned in lane)


@dataclasses.dataclass(frozen=True, slots=True)
class GraphPlan:
    """The stages of one graph.

    Attributes:
        fingerprint: identifies the graph's convolutions (see `fingerprint_convolutions`).
        convolution_count: convolutions that the finder saw in the graph.
        stages: the stages; convolutions in none of them are left alone.
    """

    fingerprint: str
    convolution_count: Annotated[int, msgspec.Meta(ge=0)]
    stages: tuple[PlannedStage, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What a plan file holds.

    Attributes:
        graphs: one entry for each graph that the plan was made for.
        format: always `tf_interop.plan`.
        version: version of the format.
        made_with: versions of the software that made it, such as {"tensorflow": "2.21.0"}.
    """

    graphs: tuple[GraphPlan, ...]
    format: str = PLAN_FORMAT
    version: int = PLAN_VERSION
    made_with: dict[str, str] = dataclasses.field(default_factory=dict)
