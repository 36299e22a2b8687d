"""What TensorFlow's profiler records of a call."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2


class Event(NamedTuple):
    """`thread` is the id of a thread."""

    name: str
    thread: int
    details: dict[str, str]


def profile(folder: pathlib.Path, call: Callable[[], object]) -> list[Event]:
    """Calls `call`, and returns the profiler's events; it writes its files into `folder`."""
    with tf.profiler.experimental.Profile(str(folder)):
        call()
    [file] = folder.rglob("*.xplane.pb")
    return [
        Event(plane.event_metadata[event.metadata_id].name, line.id, _details(plane, event))
        for plane in xplane_pb2.XSpace.FromString(file.read_bytes()).planes
        for line in plane.lines
        for event in line.events
    ]


def ways_of_steps(events: list[Event]) -> dict[str, set[str]]:
    """The ops that ran, or what ran in their place, by the names of nodes."""
    ways: dict[str, set[str]] = {}
    for event in events:
        node, colon, way = event.name.partition(":")
        if colon:
            ways.setdefault(node, set()).add(way)
    return ways


def _details(plane: xplane_pb2.XPlane, event: xplane_pb2.XEvent) -> dict[str, str]:
    found = {}
    for stat in event.stats:
        value = getattr(stat, str(stat.WhichOneof("value")))
        if stat.WhichOneof("value") == "ref_value":
            value = plane.stat_metadata[value].name
        found[plane.stat_metadata[stat.metadata_id].name] = str(value)
    return found
