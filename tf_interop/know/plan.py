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


# What the op's attributes and CUDA hold.
_LARGEST_INT = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class LaneOptions:
    """What a lane asks of the device beyond a stream.

    The device gives what it can: it rounds SM counts up, and where it cannot give what the lanes of
    a stage ask for, they run without (`tf_interop.status().counters.refused_lane_options`).

    Attributes:
        priority: of the lane's stream, as CUDA counts: lower goes first, 0 is the usual one.
        sm_count: streaming multiprocessors that no other lane uses; 0 for a share of those that
            the other lanes leave.
    """

    priority: Annotated[int, msgspec.Meta(ge=-_LARGEST_INT, le=_LARGEST_INT)] = 0
    sm_count: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_INT)] = 0


# The length bounds hold for what a file says; they are part of the schema.
Lane = Annotated[tuple[PinnedConvolution, ...], msgspec.Meta(min_length=1)]


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedStage:
    """Convolutions that run at the same time.

    Attributes:
        lanes: what each stream group runs, in order.
        why: the reason for the stage in a few words, such as the policy that made it.
        lane_options: what each lane asks of the device; empty where none asks for anything.
    """

    lanes: Annotated[tuple[Lane, ...], msgspec.Meta(min_length=1)]
    why: str = ""
    lane_options: tuple[LaneOptions, ...] = ()

    @property
    def convolutions(self) -> tuple[PinnedConvolution, ...]:
        """All convolutions of the stage, lane after lane."""
        return tuple(pinned for lane in self.lanes for pinned in lane)

    def check_lane_options(self) -> None:
        """Checks that there are options for every lane, or for none.

        Raises:
            ValueError: there are not, or a stage asks for less than no SMs.
        """
        if self.lane_options and len(self.lane_options) != len(self.lanes):
            raise ValueError(
                f"Expected options for none or all of {len(self.lanes)} lanes, got "
                f"{len(self.lane_options)}"
            )
        for options in self.lane_options:
            if not 0 <= options.sm_count <= _LARGEST_INT:
                raise ValueError(f"Expected an SM count of at least 0, got {options.sm_count}")
            if abs(options.priority) > _LARGEST_INT:
                raise ValueError(f"Expected a priority near 0, got {options.priority}")


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
