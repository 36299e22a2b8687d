"""A parallel plan: how the layers of one or more graphs are divided over several devices.

Its file is versioned JSON (`parallel_plan_schema`).
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Iterator
from typing import Annotated

import msgspec

from tf_interop.errors import PlanError
from tf_interop.planning.types import Bytes, GraphMode, Microseconds, ValueSource, check_each_once
from tf_interop.structure import Landmark
from tf_interop.versioned_file import VersionedFormat

_Degree = Annotated[int, msgspec.Meta(ge=1)]
DeviceNumber = Annotated[int, msgspec.Meta(ge=0)]
"""An index into `ParallelPlan.devices`."""


class Axis(enum.Enum):
    """An axis of a layer's work.

    A convolution [N, H, W, C] * [R, S, C, K] -> [N, H', W', K] has all five; height and width are
    those of the output. A matrix product [N, C] x [C, K] has sample, channel and filter.
    """

    SAMPLE = "sample"
    HEIGHT = "height"
    WIDTH = "width"
    FILTER = "filter"
    CHANNEL = "channel"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Degrees:
    """The number of parts along each axis of a layer's work: a *configuration* in Jia et al.

    Parts are numbered with `sample` as the slowest axis and `channel` as the fastest. Part i runs
    on the layer's i-th device.

    Dividing `filter` is stationary y of Dryden et al. (devices gather the image), `channel` is
    stationary x (devices add partial outputs), and both together are stationary w.

    Attributes:
        sample: parts of the batch.
        height: parts of the height of the output.
        width: parts of the width of the output.
        filter: parts of the output channels.
        channel: parts of the input channels, whose partial results are added.
    """

    sample: _Degree = 1
    height: _Degree = 1
    width: _Degree = 1
    filter: _Degree = 1
    channel: _Degree = 1

    @property
    def count(self) -> int:
        """The number of parts."""
        return math.prod(self.by_axis.values())

    @property
    def by_axis(self) -> dict[Axis, int]:
        """The degrees by axis, slowest first."""
        return {axis: getattr(self, axis.value) for axis in Axis}

    @property
    def places(self) -> Iterator[dict[Axis, int]]:
        """The coordinates of each part, in order."""
        for place in itertools.product(*map(range, self.by_axis.values())):
            yield dict(zip(Axis, place, strict=True))

    @property
    def with_channels_together(self) -> Degrees:
        """The same degrees with the parts of `channel` moved to `filter`."""
        return dataclasses.replace(self, filter=self.filter * self.channel, channel=1)

    def __str__(self) -> str:
        """Such as `sample 2, filter 2`, or `whole`."""
        divided = [f"{axis.value} {count}" for axis, count in self.by_axis.items() if count > 1]
        return ", ".join(divided) or "whole"


@dataclasses.dataclass(frozen=True, slots=True)
class DividedLayer:
    """A layer that several devices share.

    Attributes:
        key: the layer in every graph of the network (see `keys_of_layers`).
        name: its name in the graph that the plan was made for; only for people.
        degrees: how it is divided.
        devices: the device of each part; no two are equal.
    """

    key: str
    name: str
    degrees: Degrees
    devices: tuple[DeviceNumber, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SentBytes:
    """The bytes that one device sends to another in a step."""

    source: DeviceNumber
    destination: DeviceNumber
    sent_bytes: Bytes


PLAN = "plan"


@dataclasses.dataclass(frozen=True, slots=True)
class StrategyStep:
    """The predicted time of a step in which all layers follow one strategy (see `baselines`)."""

    strategy: str
    step_us: Microseconds


@dataclasses.dataclass(frozen=True, slots=True)
class LayerTimes:
    """The times of a layer in one configuration, with all other layers as in the plan.

    Attributes:
        strategy: `plan`, or the strategy that gives it this configuration (see `baselines`).
        degrees: the configuration.
        compute_us: time of the busiest device, to compute and to copy parameters and their
            gradients.
        inner_us: messages within the layer, and to and from whole nodes between layers.
        parameters_us: messages with parameters and their gradients.
        neighbours_us: messages from and to other layers.
    """

    strategy: str
    degrees: Degrees
    compute_us: Microseconds
    inner_us: Microseconds
    parameters_us: Microseconds
    neighbours_us: Microseconds

    @property
    def total_us(self) -> float:
        """The sum of all times."""
        return sum(self.by_name.values())

    @property
    def by_name(self) -> dict[str, float]:
        """The times, by their names in explanations."""
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
        name: name of the layer.
        chosen: its times in the plan.
        others: its times if it alone followed another strategy.
        why: the reason, in words.
    """

    name: str
    chosen: LayerTimes
    others: tuple[LayerTimes, ...]
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class DivisionPrediction:
    """The planner's prediction for a step of a divided graph.

    Attributes:
        step_us: time of the step.
        whole_us: its time on one device.
        source: measured if the convolutions of all parts were measured alone. Even then all other
            times are modelled.
        sent: bytes between devices, for each pair that sends any.
        memory_bytes: parameters and activations of layers, by device.
        strategies: steps in which all layers follow one strategy.
        layers: the times of all layers, and why each is divided as it is.
        search: how far the search got, in words.
    """

    step_us: Microseconds
    whole_us: Microseconds
    source: ValueSource
    sent: tuple[SentBytes, ...] = ()
    memory_bytes: tuple[Bytes, ...] = ()
    strategies: tuple[StrategyStep, ...] = ()
    layers: tuple[LayerExplanation, ...] = ()
    search: str = ""

    @property
    def steps_us(self) -> dict[str, float]:
        """The time of a step with the plan and with each strategy, the fastest strategy first."""
        strategies = sorted(self.strategies, key=lambda each: each.step_us)
        return {PLAN: self.step_us} | {each.strategy: each.step_us for each in strategies}


@dataclasses.dataclass(frozen=True, slots=True)
class GraphDivision:
    """The divided layers of one graph.

    Attributes:
        fingerprint: of the graph's structure (see `structure_of_layers`).
        landmarks: the layers by which it is recognized, in their places.
        layers: the layers that are divided. All others run whole on their own devices.
        batch_size: the graph's batch size.
        mode: training or inference; None if unknown, as for a function.
        prediction: None if no planner made the division.
        why_whole: why no layer is divided, in words; empty if one is.
    """

    fingerprint: str
    landmarks: tuple[Landmark, ...]
    layers: tuple[DividedLayer, ...]
    batch_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    mode: GraphMode | None = None
    prediction: DivisionPrediction | None = None
    why_whole: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ParallelPlan:
    """The contents of a parallel plan's file.

    Attributes:
        devices: TensorFlow's names for the devices, such as `/device:GPU:1` or
            `/job:worker/task:1/device:CPU:0`.
        graphs: one entry for each graph that the plan was made for.
        format: always `tf_interop.parallel_plan`.
        version: version of the format.
        made_with: versions of the software that made it, such as {"tensorflow": "2.21.0"}.
    """

    devices: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    graphs: tuple[GraphDivision, ...]
    format: str = "tf_interop.parallel_plan"
    version: int = 1
    made_with: dict[str, str] = dataclasses.field(default_factory=dict)


def _check_parallel_plan(plan: ParallelPlan) -> None:
    """Checks the rules that the types cannot express."""
    if len(set(plan.devices)) < len(plan.devices):
        raise ValueError(f"Expected each device once, got {list(plan.devices)} at `$.devices`")
    check_each_once((graph.fingerprint, graph.batch_size) for graph in plan.graphs)
    for index, graph in enumerate(plan.graphs):
        place = f"$.graphs[{index}]"
        keys = [layer.key for layer in graph.layers]
        if len(set(keys)) < len(keys):
            raise ValueError(f"Expected each layer once, got {keys} at `{place}.layers`")
        for number, layer in enumerate(graph.layers):
            at = f"`{place}.layers[{number}].devices`"
            devices, count = list(layer.devices), layer.degrees.count
            if len(devices) != count or len(set(devices)) != count:
                raise ValueError(
                    f"Expected {count} different devices for {layer.degrees}, got {devices} at {at}"
                )
            if max(devices) >= len(plan.devices):
                raise ValueError(
                    f"Expected devices below {len(plan.devices)}, got {devices} at {at}"
                )


PARALLEL_PLAN_FILE = VersionedFormat(
    ParallelPlan,
    noun="parallel plan",
    check=_check_parallel_plan,
    error=PlanError,
    remedy="Correct the file, or plan the graph again with tf-interop parallelize.",
)
load_parallel_plan = PARALLEL_PLAN_FILE.load
save_parallel_plan = PARALLEL_PLAN_FILE.save
parallel_plan_schema = PARALLEL_PLAN_FILE.schema
