"""A parallel plan: how the layers of one or more graphs are divided over several devices.

Its file is versioned JSON (`parallel_plan_schema`).
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import msgspec

from tf_interop.errors import PlanError
from tf_interop.parallel.degrees import Degrees
from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import Bytes, GraphMode, Microseconds, check_each_once
from tf_interop.versioned_file import VersionedFormat

DeviceNumber = Annotated[int, msgspec.Meta(ge=0)]
"""The place of a device in `ParallelPlan.devices`."""


@dataclasses.dataclass(frozen=True, slots=True)
class DividedLayer:
    """A layer that several devices share.

    Attributes:
        name: canonical name of the layer (see `canonical_names`).
        degrees: how it is divided.
        devices: of each part the device; no two are the same.
    """

    name: str
    degrees: Degrees
    devices: tuple[DeviceNumber, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SentBytes:
    """What one device sends to another in a step.

    Attributes:
        source: the device that sends.
        destination: the device that receives.
        sent_bytes: how much.
    """

    source: DeviceNumber
    destination: DeviceNumber
    sent_bytes: Bytes


@dataclasses.dataclass(frozen=True, slots=True)
class DivisionPrediction:
    """What the planner expects of a step of a divided graph.

    Attributes:
        step_us: what the step takes.
        whole_us: what it takes whole, on the device that the graph has.
        source: measured where all convolutions of all parts were measured alone; the times of
            everything else are modelled even then.
        sent: bytes between devices, for each pair that sends any.
        memory_bytes: of each device: parameters and activations, as far as layers hold them.
    """

    step_us: Microseconds
    whole_us: Microseconds
    source: ValueSource
    sent: tuple[SentBytes, ...] = ()
    memory_bytes: tuple[Bytes, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class GraphDivision:
    """The divided layers of one graph.

    Attributes:
        fingerprint: identifies the graph's layers (see `fingerprint_layers`).
        layers: those that are divided. All others run whole, where they are.
        batch_size: of the graph.
        mode: what the graph computes of its model; None where that is not known, as for a function.
        prediction: what the planner expects; None where no planner made the division.
        why_whole: why no layer is divided, for reading; empty where one is.
    """

    fingerprint: str
    layers: tuple[DividedLayer, ...]
    batch_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    mode: GraphMode | None = None
    prediction: DivisionPrediction | None = None
    why_whole: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ParallelPlan:
    """What a file of a parallel plan holds.

    Attributes:
        devices: names of the devices, as TensorFlow has them, such as `/device:GPU:1` or
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
    """Checks what the types allow and no plan may be."""
    if len(set(plan.devices)) < len(plan.devices):
        raise ValueError(f"Expected each device once, got {list(plan.devices)} at `$.devices`")
    check_each_once((graph.fingerprint, graph.batch_size) for graph in plan.graphs)
    for index, graph in enumerate(plan.graphs):
        place = f"$.graphs[{index}]"
        names = [layer.name for layer in graph.layers]
        if len(set(names)) < len(names):
            raise ValueError(f"Expected each layer once, got {names} at `{place}.layers`")
        for number, layer in enumerate(graph.layers):
            at = f"`{place}.layers[{number}].devices`"
            devices = list(layer.devices)
            if len(set(devices)) != layer.degrees.count or len(devices) != layer.degrees.count:
                raise ValueError(
                    f"Expected {layer.degrees.count} different devices for {layer.degrees}, got "
                    f"{devices} at {at}"
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
    remedy="Correct the file, or plan the graph anew with tf-interop parallelize.",
)
load_parallel_plan = PARALLEL_PLAN_FILE.load
save_parallel_plan = PARALLEL_PLAN_FILE.save
parallel_plan_schema = PARALLEL_PLAN_FILE.schema
