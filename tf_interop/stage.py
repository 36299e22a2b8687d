"""A stage: lanes that run together, each with steps that run one after another.

        stage
       ┌──┴──┐              fork
     lane   lane
     step   step            each lane on its own stream group
     step     │
       └──┬──┘              join

All parts of the package use this one type. Only a step's operation differs: a node's name in a
plan, a configuration in a profile, a number in the planner's search and in the op's program.
`Stage.map` converts between them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from typing import Annotated, Any, Generic, TypeVar

import msgspec

T = TypeVar("T", bound=Hashable)
U = TypeVar("U", bound=Hashable)

LARGEST_INT = 2**31 - 1
"""The largest integer that CUDA and the op's program accept."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """One operation of a lane.

    Attributes:
        operation: what it computes.
        algorithm: the pinned algorithm; in a merged lane, the wider convolution's. None leaves the
            choice to the runner, as for steps that are not convolutions.
    """

    operation: T
    algorithm: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Lane(Generic[T]):
    """The steps of one stream group, and its options.

    Attributes:
        steps: in running order. One may read the result of an earlier one.
        priority: of the lane's stream, as in CUDA: lower goes first; 0 is the default.
        merged: whether the lane's convolutions, which read the same image and differ only in
            filters and output channels, run as one wider convolution. If they turn out not to fit
            together, they run one after another.
    """

    steps: Annotated[tuple[Step[T], ...], msgspec.Meta(min_length=1)]
    priority: Annotated[int, msgspec.Meta(ge=-LARGEST_INT, le=LARGEST_INT)] = 0
    merged: bool = False

    @property
    def operations(self) -> tuple[T, ...]:
        """The operation of each step."""
        return tuple(step.operation for step in self.steps)

    @property
    def options(self) -> dict[str, Any]:
        """The options by name; files, the op's program and the core use the same names."""
        return {name: getattr(self, name) for name in _LANE_OPTIONS}

    def describe_options(self) -> str:
        """Describes its requests to the device; empty if it has none."""
        return f"priority {self.priority}" if self.priority else ""


_LANE_OPTIONS = tuple(each.name for each in dataclasses.fields(Lane) if each.name != "steps")


@dataclasses.dataclass(frozen=True, slots=True)
class Stage(Generic[T]):
    """Lanes that run together, in launch order; a single lane runs in sequence."""

    lanes: Annotated[tuple[Lane[T], ...], msgspec.Meta(min_length=1)]

    @classmethod
    def side_by_side(cls, steps: Iterable[Step[T]]) -> Stage[T]:
        """Puts each step on its own lane."""
        return cls(tuple(Lane((step,)) for step in steps))

    @classmethod
    def in_sequence(cls, steps: Iterable[Step[T]]) -> Stage[T]:
        """Puts all steps on one lane."""
        return cls((Lane(tuple(steps)),))

    @property
    def steps(self) -> tuple[Step[T], ...]:
        """All steps, lane after lane; every list about the steps of a stage has this order."""
        return tuple(step for lane in self.lanes for step in lane.steps)

    @property
    def operations(self) -> tuple[T, ...]:
        """The operation of each of `steps`."""
        return tuple(step.operation for step in self.steps)

    @property
    def lane_of_step(self) -> tuple[int, ...]:
        """The number of the lane of each of `steps`."""
        return tuple(place for place, lane in enumerate(self.lanes) for _ in lane.steps)

    @property
    def is_merged(self) -> bool:
        """Whether a lane is merged."""
        return any(lane.merged for lane in self.lanes)

    def map(self, operation: Callable[[T], U]) -> Stage[U]:
        """The same stage with other operations; calls `operation` once for each step, in order."""
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
        """Checks the rules that do not depend on the operations.

        Raises:
            ValueError: there is no lane, a lane has no step, an option is out of range, or a merged
                lane has one step or several algorithms. Names the lane.
        """
        msgspec.convert(msgspec.to_builtins(self.map(lambda _: 0)), Stage[int])
        for place, lane in enumerate(self.lanes):
            if lane.merged and (
                len(lane.steps) < 2 or len({step.algorithm for step in lane.steps}) > 1
            ):
                raise ValueError(
                    "Expected a merged lane to have at least two steps and one algorithm, got "
                    f"{[step.algorithm for step in lane.steps]} at lane {place}"
                )


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule(Generic[T]):
    """How a stage runs at one batch size, or at every one if `batch_size` is None."""

    batch_size: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_INT)] | None
    stage: Stage[T]
