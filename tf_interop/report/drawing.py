"""Where the boxes and lines of a report's drawings are: the network, and what runs when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tf_interop.planning.order import in_order, stage_of
from tf_interop.planning.types import GraphPlan
from tf_interop.report.layout import Place, lay_out, lay_out_in_order
from tf_interop.report.network import Network, describe_filter
from tf_interop.report.timeline import Timeline
from tf_interop.report.words import unit_of

NODE_WIDTH = 46
NODE_HEIGHT = 22
_COLUMN_PITCH = 66
_ROW_PITCH = 38
_MARGIN = 14
_STAGE_PADDING = 5
# How far a line between two convolutions of one column goes out to the right.
_BULGE = 20

# Of a timeline: so wide that a span of this share of it can be pressed with a finger.
_NARROWEST_SPAN = 12
_LEAST_WIDTH = 640
_MOST_WIDTH = 6000
_TICKS = 8


class DrawnNode(NamedTuple):
    """A convolution: its upper left corner in pixels, its stage, what stands in it, its name."""

    x: float
    y: float
    stage: int | None
    label: str
    name: str


class Frame(NamedTuple):
    """What stands around the convolutions of a stage, in pixels."""

    stage: int
    x: float
    y: float
    width: float
    height: float


class NetworkDrawing(NamedTuple):
    """The network.

    Attributes:
        width: in pixels.
        height: likewise.
        nodes: the convolutions.
        frames: around those of each stage.
        edges: the `d` of an SVG path for each dependency.
    """

    width: float
    height: float
    nodes: tuple[DrawnNode, ...]
    frames: tuple[Frame, ...]
    edges: tuple[str, ...]


class Scale(NamedTuple):
    """What timelines below each other have in common.

    Attributes:
        width: in pixels, for everything to be wide enough.
        longest_us: of their totals.
        percent_of_us: how much of the width a microsecond takes.
        ticks: positions in percent, with the times that they stand for.
        unit: of these times.
    """

    width: int
    longest_us: float
    percent_of_us: float
    ticks: tuple[tuple[float, str], ...]
    unit: str


def draw_network(graph: GraphPlan, network: Network | None) -> NetworkDrawing:
    """Draws the convolutions of a graph, those of a stage below each other.

    Args:
        graph: whose stages they are.
        network: what depends on what; without it all of the plan stands in its order.
    """
    stage_of_node = {name: at for at, stage in enumerate(graph.stages) for name in stage.nodes}
    labels = {
        name: f"lane {number}"
        for planned in graph.stages
        for number, lane in enumerate(planned.stage.lanes)
        for name in lane.operations
    }
    if network is None:
        columns = [stage_of(planned).operations for _, planned in in_order(graph)]
        names = [name for column in columns for name in column]
        layout = lay_out_in_order(list(map(len, columns)))
    else:
        names = [node.name for node in network.nodes]
        layout = lay_out(
            [node.predecessors for node in network.nodes], list(map(stage_of_node.get, names))
        )
        labels |= {
            node.name: label
            for node in network.nodes
            if (label := describe_filter(node.configuration))
        }
    nodes = tuple(
        DrawnNode(*_corner(place), stage_of_node.get(name), labels.get(name, "·"), name)
        for name, place in zip(names, layout.places, strict=True)
    )
    return NetworkDrawing(
        width=2 * _MARGIN + (layout.columns - 1) * _COLUMN_PITCH + NODE_WIDTH,
        height=2 * _MARGIN + (layout.rows - 1) * _ROW_PITCH + NODE_HEIGHT,
        nodes=nodes,
        frames=tuple(
            _frame(stage, [node for node in nodes if node.stage == stage])
            for stage in sorted({node.stage for node in nodes if node.stage is not None})
        ),
        edges=tuple(map(_path, layout.edges)),
    )


def scale_of(timelines: Sequence[Timeline]) -> Scale:
    """The scale of the longest of some timelines."""
    durations = sorted(span.duration_us for each in timelines for span in each.spans)
    longest_us = max((each.total_us for each in timelines), default=0.0) or 1.0
    # Most spans, and not the shortest: one that takes nothing would make the rest endless.
    usual_us = durations[len(durations) // 4] if durations else longest_us
    wanted = math.ceil(_NARROWEST_SPAN * longest_us / max(usual_us, longest_us / _MOST_WIDTH))
    unit, unit_us = unit_of(longest_us)
    percent_of_us = 100 / (longest_us * 1.01)
    return Scale(
        width=min(max(wanted, _LEAST_WIDTH), _MOST_WIDTH),
        longest_us=longest_us,
        percent_of_us=percent_of_us,
        ticks=tuple(
            (tick * unit_us * percent_of_us, f"{tick:g}") for tick in _ticks(longest_us / unit_us)
        ),
        unit=unit,
    )


def _corner(place: Place) -> tuple[float, float]:
    column, row = place
    return _MARGIN + column * _COLUMN_PITCH, _MARGIN + row * _ROW_PITCH


def _frame(stage: int, nodes: Sequence[DrawnNode]) -> Frame:
    left, top = min(node.x for node in nodes), min(node.y for node in nodes)
    right, bottom = max(node.x for node in nodes), max(node.y for node in nodes)
    return Frame(
        stage,
        left - _STAGE_PADDING,
        top - _STAGE_PADDING,
        right + NODE_WIDTH - left + 2 * _STAGE_PADDING,
        bottom + NODE_HEIGHT - top + 2 * _STAGE_PADDING,
    )


def _path(places: tuple[Place, ...]) -> str:
    """A line from the right of the first place to the left of the last, level at every place.

    Within a column it goes from the right of the first place to the right of the last.
    """
    (x, y), *rest = [
        (corner_x, corner_y + NODE_HEIGHT / 2) for corner_x, corner_y in map(_corner, places)
    ]
    x += NODE_WIDTH
    words = [f"M{x:g} {y:g}"]
    if places[0][0] == places[-1][0]:
        end_y = rest[-1][1]
        return f"M{x:g} {y:g}C{x + _BULGE:g} {y:g} {x + _BULGE:g} {end_y:g} {x:g} {end_y:g}"
    for index, (next_x, next_y) in enumerate(rest):
        middle = (x + next_x) / 2
        words.append(f"C{middle:g} {y:g} {middle:g} {next_y:g} {next_x:g} {next_y:g}")
        x, y = next_x, next_y
        if index < len(rest) - 1:
            x += NODE_WIDTH
            words.append(f"H{x:g}")
    return "".join(words)


def _ticks(longest: float) -> list[float]:
    """Round numbers from 0 on."""
    rough = longest / _TICKS
    power = 10 ** math.floor(math.log10(rough))
    tick = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [number * tick for number in range(int(longest / tick) + 1)]
