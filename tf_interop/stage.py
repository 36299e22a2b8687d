"""A stage: lanes that run at the same time, each with steps that run one after another.

        stage
       ┌──┴──┐              fork
     lane   lane
     step   step            each lane on a stream group of its own
     step     │
       └──┬──┘              join

This is the one value for it. What differs is what a step's operation is: the name of a node in a
plan, a configuration in a profile, the name of a cost in a planning problem, a number in the op's
program. `Stage.map` goes from one to another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from typing import Annotated, Any, Generic, TypeVar

import msgspec

T = TypeVar("T", bound=Hashable)
U = TypeVar("U", bound=Hashable)

LARGEST_INT = 2**31 - 1
"""What CUDA and the op's program hold."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """One operation of a lane.

    Attributes:
        operation: what is computed.
        algorithm: the algorithm pinned for it; None leaves the choice to the runner, and is what a
            step has that is no convolution. In a merged lane that of the wider convolution.
    """

    operation: T
    algorithm: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Lane(Generic[T]):
    """What one stream group runs, and what it asks of the device beyond a stream: its options.

    The device gives what it can: it rounds SM counts up, and where it cannot give what the lanes of
    a stage ask for, they run without (`tf_interop.status().counters.refused_lane_options`).

    Attributes:
        steps: in the order in which they run. One may read the result of an earlier one.
        priority: of the lane's stream, as CUDA counts: lower goes first, 0 is the usual one.
        sm_count: streaming multiprocessors that no other lane uses; 0 for a share of those that
            the other lanes leave.
        merged: whether the lane's convolutions, which read the same image and differ in their
            filters and output channels only, run as one wider convolution. Where they turn out not
            to fit together they run one after another.
    """

    steps: Annotated[tuple[Step[T], ...], msgspec.Meta(min_length=1)]
    priority: Annotated[int, msgspec.Meta(ge=-LARGEST_INT, le=LARGEST_INT)] = 0
    sm_count: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_INT)] = 0
    merged: bool = False

    @property
    def operations(self) -> tuple[T, ...]:
        """The operation of each step."""
        return tuple(step.operation for step in self.steps)

    @property
    def options(self) -> dict[str, Any]:
        """What it asks for, by name; files, the op's program and the core have the same names."""
        return {name: getattr(self, name) for name in _LANE_OPTIONS}


_LANE_OPTIONS = tuple(each.name for each in dataclasses.fields(Lane) if each.name != "steps")


@dataclasses.dataclass(frozen=True, slots=True)
class Stage(Generic[T]):
    """Lanes that run at the same time; a single one runs in sequence.

    Attributes:
        lanes: in the order in which they are launched.
    """

    lanes: Annotated[tuple[Lane[T], ...], msgspec.Meta(min_length=1)]

    @classmethod
    def side_by_side(cls, steps: Iterable[Step[T]]) -> Stage[T]:
        """Each step on a lane of its own."""
        return cls(tuple(Lane((step,)) for step in steps))

    @classmethod
    def in_sequence(cls, steps: Iterable[Step[T]]) -> Stage[T]:
        """All steps on one lane."""
        return cls((Lane(tuple(steps)),))

    @property
    def steps(self) -> tuple[Step[T], ...]:
        """All steps, lane after lane: the order of the steps of a stage, wherever one is needed."""
        return tuple(step for lane in self.lanes for step in lane.steps)

    @property
    def operations(self) -> tuple[T, ...]:
        """The operation of each of `steps`."""
        return tuple(step.operation for step in self.steps)

    @property
    def lane_of_step(self) -> tuple[int, ...]:
        """The place of the lane of each of `steps`."""
        return tuple(place for place, lane in enumerate(self.lanes) for _ in lane.steps)

    @property
    def is_merged(self) -> bool:
        """Whether a lane is merged."""
        return any(lane.merged for lane in self.lanes)

    def map(self, operation: Callable[[T], U]) -> Stage[U]:
        """The same stage of other operations.

        Args:
            operation: gives the new operation for an old one; it is called once for each step, in
                order.
        """
        return Stage(
            tuple(
                Lane(
                    tuple(Step(operation(step.operation), step.algorithm) for step in lane.steps),
                    **lane.options,
                )
                for lane in self.lanes
            )
        )

    def with_algorithms(self, algorithms: Iterable[str | None]) -> Stage[T]:
        """The same stage with these algorithms, one for each of `steps`."""
        left = iter(algorithms)
        lanes = tuple(
            dataclasses.replace(
                lane, steps=tuple(Step(step.operation, next(left)) for step in lane.steps)
            )
            for lane in self.lanes
        )
        return Stage(lanes)

    def validate(self) -> None:
        """Checks what holds for every stage, whatever its operations are.

        Raises:
            ValueError: there is no lane, a lane has no step, an option is out of range, or a merged
                lane has one step or several algorithms. Names the lane.
        """
        if not self.lanes:
            raise ValueError("Expected a stage with a lane or more, got none")
        for place, lane in enumerate(self.lanes):
            at = f" at lane {place}"
            if not lane.steps:
                raise ValueError(f"Expected a lane with a step or more, got none{at}")
            if abs(lane.priority) > LARGEST_INT:
                raise ValueError(f"Expected a priority near 0, got {lane.priority}{at}")
            if not 0 <= lane.sm_count <= LARGEST_INT:
                raise ValueError(
                    f"Expected an SM count from 0 to {LARGEST_INT}, got {lane.sm_count}{at}"
                )
            if lane.merged and (
                len(lane.steps) < 2 or len({step.algorithm for step in lane.steps}) > 1
            ):
                raise ValueError(
                    "Expected a merged lane with two steps or more and one algorithm for all, got "
                    f"{[step.algorithm for step in lane.steps]}{at}"
                )


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule(Generic[T]):
    """How a stage runs at one batch size.

    Attributes:
        batch_size: None if it holds for every one.
        stage: of all operations of the stage.
    """

    batch_size: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_INT)] | None
    stage: Stage[T]
