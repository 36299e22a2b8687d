"""Where the rectangles and lines of a report's drawings are: the network, and what runs when."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from tf_interop.plan.problem import FigureSource
from tf_interop.plan.types import GraphPlan
from tf_interop.report.graph_layout import Place, lay_out, lay_out_in_order
from tf_interop.report.network import Network, describe_filter
from tf_interop.report.node_names import short_names
from tf_interop.report.timeline import NumberedStage, Span, Timeline, steps_of
from tf_interop.report.words import figure_label, microseconds, unit_of

NODE_WIDTH = 46
NODE_HEIGHT = 22
_COLUMN_PITCH = 66
_ROW_PITCH = 38
_MARGIN = 14
_STAGE_PADDING = 5

# Of a timeline: so wide that a span of this share of it can be pressed with a finger.
_NARROWEST_SPAN = 12
_LEAST_WIDTH = 640
_MOST_WIDTH = 6000
_TICKS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class DrawnNode:
    """A convolution of the network.

    Attributes:
        x: left edge, in pixels.
        y: upper edge.
        stage: the number of its stage; None for none.
        label: what stands in it.
        title: what it says when pointed at.
    """

    x: float
    y: float
    stage: int | None
    label: str
    title: str


@dataclasses.dataclass(frozen=True, slots=True)
class DrawnStage:
    """What stands around the convolutions of a stage.

    Attributes:
        number: of the stage.
        x: left edge, in pixels.
        y: upper edge.
        width: in pixels.
        height: likewise.
    """

    number: int
    x: float
    y: float
    width: float
    height: float


@dataclasses.dataclass(frozen=True, slots=True)
class NetworkDrawing:
    """The network.

    Attributes:
        width: in pixels.
        height: likewise.
        nodes: the convolutions.
        stages: what stands around them.
        edges: the `d` of an SVG path for each dependency.
        is_order_only: whether lines say what comes after what, and not what depends on what.
    """

    width: float
    height: float
    nodes: tuple[DrawnNode, ...]
    stages: tuple[DrawnStage, ...]
    edges: tuple[str, ...]
    is_order_only: bool


@dataclasses.dataclass(frozen=True, slots=True)
class DrawnSpan:
    """A span of a timeline; positions are percentages of its width.

    Attributes:
        row: which row.
        start: where it begins.
        width: how wide it is.
        busy: how much of the width its convolutions take alone; None where that is not known.
        stage: the number of the stage; None for none.
        label: what stands in it where there is room, for the script of the page to see.
        title: what it says when pointed at.
    """

    row: int
    start: float
    width: float
    busy: float | None
    stage: int | None
    label: str
    title: str


@dataclasses.dataclass(frozen=True, slots=True)
class TimelineDrawing:
    """A timeline.

    Attributes:
        name: what it shows.
        rows: the names of its rows.
        spans: what runs.
        end: where it ends, as percentage of the width.
        end_text: when that is.
        labels: what that is the sum of.
    """

    name: str
    rows: tuple[str, ...]
    spans: tuple[DrawnSpan, ...]
    end: float
    end_text: str
    labels: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TimelineDrawings:
    """Timelines on one scale.

    Attributes:
        width: in pixels, for everything to be wide enough.
        timelines: the drawings.
        ticks: positions in percent, with the times that they stand for.
        unit: of these times.
    """

    width: int
    timelines: tuple[TimelineDrawing, ...]
    ticks: tuple[tuple[float, str], ...]
    unit: str


def draw_network(graph: GraphPlan, network: Network | None) -> NetworkDrawing:
    """Draws the convolutions of a graph, those of a stage below each other.

    Args:
        graph: whose stages they are.
        network: what depends on what; without it the steps of the plan stand in their order.
    """
    stage_of = {
        each.node: number
        for number, stage in enumerate(graph.stages)
        for each in stage.convolutions
    }
    if network is None:
        names, sizes = _in_order(graph)
        layout = lay_out_in_order(sizes)
        labels = {}
    else:
        names = [node.name for node in network.nodes]
        layout = lay_out(
            [node.predecessors for node in network.nodes], [stage_of.get(name) for name in names]
        )
        labels = {node.name: describe_filter(node.configuration) for node in network.nodes}
    lane_of = {
        each.node: f"lane {number}"
        for stage in graph.stages
        for number, lane in enumerate(stage.lanes)
        for each in lane
    }
    nodes = tuple(
        DrawnNode(
            *_corner(place),
            stage=stage_of.get(name),
            label=labels.get(name) or lane_of.get(name, "·"),
            title=_node_title(name, stage_of),
        )
        for name, place in zip(names, layout.places, strict=True)
    )
    return NetworkDrawing(
        width=2 * _MARGIN + (layout.columns - 1) * _COLUMN_PITCH + NODE_WIDTH,
        height=2 * _MARGIN + (layout.rows - 1) * _ROW_PITCH + NODE_HEIGHT,
        nodes=nodes,
        stages=_around_stages(nodes),
        edges=tuple(map(_path, layout.edges)),
        is_order_only=network is None,
    )


def draw_timelines(
    timelines: Mapping[str, tuple[Timeline, tuple[str, ...]]], *, simulated: bool
) -> TimelineDrawings:
    """Draws timelines below each other, on the scale of the longest.

    Args:
        timelines: by what each shows, with the labels of its total.
        simulated: whether what is called measured was not.
    """
    spans = [span for timeline, _ in timelines.values() for span in timeline.spans]
    longest_us = max((span.end_us for span in spans), default=0.0) or 1.0
    scale = 100 / (longest_us * 1.01)
    labels = short_names(dict.fromkeys(each.node for span in spans for each in span.convolutions))
    unit, unit_us = unit_of(longest_us)
    return TimelineDrawings(
        width=_readable_width(spans, longest_us),
        timelines=tuple(
            TimelineDrawing(
                name=name,
                rows=timeline.rows,
                spans=tuple(_draw_span(span, scale, labels, simulated) for span in timeline.spans),
                end=timeline.total_us * scale,
                end_text=microseconds(timeline.total_us, longest_us),
                labels=labels_of_total,
            )
            for name, (timeline, labels_of_total) in timelines.items()
        ),
        ticks=tuple((tick * scale, f"{tick / unit_us:g}") for tick in _ticks(longest_us, unit_us)),
        unit=unit,
    )


def _readable_width(spans: Sequence[Span], longest_us: float) -> int:
    durations = sorted(span.duration_us for span in spans)
    # Most spans, and not the shortest: one that takes nothing would make the rest endless.
    usual_us = durations[len(durations) // 4] if durations else longest_us
    wanted = math.ceil(_NARROWEST_SPAN * longest_us / max(usual_us, longest_us / _MOST_WIDTH))
    return min(max(wanted, _LEAST_WIDTH), _MOST_WIDTH)


def _in_order(graph: GraphPlan) -> tuple[list[str], list[int]]:
    names: list[str] = []
    sizes = []
    for step in steps_of(graph):
        its = (
            [each.node for each in step.stage.convolutions]
            if isinstance(step, NumberedStage)
            else [step.node]
        )
        names += its
        sizes.append(len(its))
    return names, sizes


def _corner(place: Place) -> tuple[float, float]:
    column, row = place
    return _MARGIN + column * _COLUMN_PITCH, _MARGIN + row * _ROW_PITCH


def _node_title(name: str, stage_of: Mapping[str, int]) -> str:
    stage = stage_of.get(name)
    return f"{name}: " + ("in no stage" if stage is None else f"stage {stage}")


def _around_stages(nodes: tuple[DrawnNode, ...]) -> tuple[DrawnStage, ...]:
    members: dict[int, list[DrawnNode]] = {}
    for node in nodes:
        if node.stage is not None:
            members.setdefault(node.stage, []).append(node)
    around = []
    for number, its in sorted(members.items()):
        left, top = min(node.x for node in its), min(node.y for node in its)
        right = max(node.x for node in its) + NODE_WIDTH
        bottom = max(node.y for node in its) + NODE_HEIGHT
        around.append(
            DrawnStage(
                number,
                left - _STAGE_PADDING,
                top - _STAGE_PADDING,
                right - left + 2 * _STAGE_PADDING,
                bottom - top + 2 * _STAGE_PADDING,
            )
        )
    return tuple(around)


def _path(places: tuple[Place, ...]) -> str:
    """A line from the right of the first place to the left of the last, level at every place."""
    (x, y), *rest = [
        (corner_x, corner_y + NODE_HEIGHT / 2) for corner_x, corner_y in map(_corner, places)
    ]
    x += NODE_WIDTH
    words = [f"M{x:g} {y:g}"]
    for index, (next_x, next_y) in enumerate(rest):
        middle = (x + next_x) / 2
        words.append(f"C{middle:g} {y:g} {middle:g} {next_y:g} {next_x:g} {next_y:g}")
        x, y = next_x, next_y
        if index < len(rest) - 1:
            x += NODE_WIDTH
            words.append(f"H{x:g}")
    return "".join(words)


def _draw_span(
    span: Span, scale: float, short_name_of: Mapping[str, str], simulated: bool
) -> DrawnSpan:
    """A span; `scale` is percent of the width in a microsecond."""
    names = ", ".join(
        f"{each.node} with {each.algorithm}" if each.algorithm else each.node
        for each in span.convolutions
    )
    where = "in no stage" if span.stage is None else f"stage {span.stage}"
    if span.lane is not None:
        where += f", lane {span.lane}"
    kind = figure_label(span.source if span.row else FigureSource.MEASURED, simulated=simulated)
    took = f"{microseconds(span.duration_us)} {kind}"
    if span.row and span.busy_us is not None:
        took = f"the stage takes {took}, this lane alone {microseconds(span.busy_us)}"
    return DrawnSpan(
        row=span.row,
        start=span.start_us * scale,
        width=span.duration_us * scale,
        busy=None if span.busy_us is None else span.busy_us * scale,
        stage=span.stage,
        label=(short_name_of[span.convolutions[0].node] if span.stage is None else str(span.stage)),
        title=f"{where}: {names}; {took}",
    )


def _ticks(longest_us: float, unit_us: float) -> list[float]:
    """Round times from 0 on."""
    rough = longest_us / unit_us / _TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [number * step * unit_us for number in range(int(longest_us / unit_us / step) + 1)]
