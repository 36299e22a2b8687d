"""Collects the convolutions of models, and the stages that are worth measuring."""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from tensorflow.core.framework import graph_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import (
    ConvolutionConfiguration,
    ConvolutionKind,
    ConvolutionNode,
    has_known_shapes,
    multiply_adds,
)
from tf_interop.errors import PlanError
from tf_interop.graph.independence import (
    Independence,
    find_merge_keys,
    lanes_by_merge_key,
    level_groups,
)
from tf_interop.graph.landmarks import find_structure
from tf_interop.graph.view import GraphView
from tf_interop.model.graphs import convolutions_of, planned_graph, trace
from tf_interop.model.load import check_trains, load_model
from tf_interop.planning.lookup import stages_from_plan
from tf_interop.planning.types import Plan
from tf_interop.profile.worklist import ConfigurationList, ListedConvolution, ListedStage
from tf_interop.stage import Lane, Stage, Step

_NodeStage = Stage[ConvolutionNode]


class StageSource(enum.Enum):
    """A source of stages to measure.

    LEVELS: all convolutions of one depth.
    PAIRS: pairs of independent convolutions.
    MERGES: convolutions of one depth that read one image, merged into a wider one.
    """

    LEVELS = "levels"
    PAIRS = "pairs"
    MERGES = "merges"


@dataclasses.dataclass(frozen=True)
class CollectOptions:
    """What to collect from each model.

    Attributes:
        batch_sizes: for inputs whose first dimension is unknown.
        dtype: Keras' policy for models that are built here; None leaves it to the model.
        image_size: height and width, for inputs of rank 4 that leave them open.
        jit_compile: whether XLA compiles the models.
        compute_capability: of the GPU that the graphs are made for, such as `9.0`; None for a CPU.
        stage_sources: sources of stages in addition to the plan.
        max_pairs: the most pairs of one graph.
        plan: a plan for at least one of the graphs; its stages are collected too.
    """

    batch_sizes: tuple[int, ...] = (1,)
    dtype: str | None = None
    inference: bool = True
    training: bool = False
    image_size: tuple[int, int] | None = None
    jit_compile: bool = False
    compute_capability: str | None = None
    stage_sources: Collection[StageSource] = tuple(StageSource)
    max_pairs: int = 32
    plan: Plan | None = None


@dataclasses.dataclass(frozen=True)
class Collected:
    """A list of convolutions and stages, and notes on the convolutions left out."""

    configurations: ConfigurationList
    notes: tuple[str, ...]


def collect_configurations(
    models: Sequence[str],
    options: CollectOptions,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> Collected:
    """Collects the distinct convolutions of models, as the pass will meet them.

    The models do not run; only Grappler's own passes do, on the traced graphs, for the chosen
    device, and then the plugin's folding.

    Args:
        models: arguments of `load_model`.
        options: what to collect.
        say: called with a few words on the progress.

    Raises:
        ModelArgumentError: there is no such model, or it does not load with that dtype or at all.
        ValueError: arguments contradict each other, or an input's shape is unknown.
        GraphError: a graph is not well-formed.
        PlanError: the plan is for none of the graphs.
    """
    return collect_graphs(_trace(models, options, say), options)


def collect_graphs(
    graphs: Iterable[tuple[str, graph_pb2.GraphDef]], options: CollectOptions
) -> Collected:
    """Collects the distinct convolutions of graphs, as `collect_configurations` does.

    Each comes with its name, as Grappler hands it over for the device. Fields of `options` about
    models are ignored.
    """
    counts: collections.Counter[ConvolutionConfiguration] = collections.Counter()
    stages: dict[
        object, tuple[Stage[ConvolutionConfiguration], tuple[int, ...], dict[str, None]]
    ] = {}
    notes: list[str] = []
    plan_errors: list[PlanError | None] = []
    for origin, graph_def in graphs:
        view, found, refusals = convolutions_of(graph_def)
        for reason, count in collections.Counter(each.reason for each in refusals).items():
            notes.append(f"{origin}: {count} left out for their {reason.value}")
        known = [node for node in found if has_known_shapes(node.configuration)]
        if len(known) < len(found):
            notes.append(f"{origin}: {len(found) - len(known)} left out for unknown shapes")
        if not known:
            notes.append(f"{origin}: no convolution to measure")
            continue
        counts.update(node.configuration for node in known)
        listed = list(_stages_of(view, found, options))
        if options.plan is not None:
            node_of = {node.name: node for node in found}
            try:
                planned = stages_from_plan(options.plan, found, find_structure(view, found))
                listed[:0] = [(each.stage.map(node_of.__getitem__), "plan") for each in planned]
                plan_errors.append(None)
            except PlanError as error:
                plan_errors.append(error)
        for of_nodes, source in listed:
            stage = of_nodes.map(lambda node: node.configuration)
            if all(map(has_known_shapes, stage.operations)):
                images = _images_of(view, of_nodes.operations)
                *_, origins = stages.setdefault(_key_of(stage), (stage, images, {}))
                origins[f"{origin}, {source}"] = None
    if plan_errors and all(plan_errors):
        assert plan_errors[0] is not None
        raise plan_errors[0]
    if not counts:
        raise ValueError(
            f"No convolution can be measured: {'; '.join(notes) or 'there is no graph'}."
        )
    place_of = {configuration: place for place, configuration in enumerate(counts)}
    configurations = ConfigurationList(
        convolutions=tuple(itertools.starmap(ListedConvolution, counts.items())),
        stages=tuple(
            ListedStage(stage.map(place_of.__getitem__), tuple(origins), images)
            for stage, images, origins in stages.values()
        ),
        made_with={"tensorflow": tensorflow_internals.tensorflow_version()},
    )
    return Collected(configurations, tuple(notes))


def _trace(
    models: Sequence[str], options: CollectOptions, say: Callable[[str], None]
) -> Iterator[tuple[str, graph_pb2.GraphDef]]:
    """Traces each model for each batch size and mode; each graph comes with a name."""
    modes = [False] * options.inference + [True] * options.training
    for model in models:
        say(f"Loading {model}")
        loaded = load_model(model, image_size=options.image_size, dtype=options.dtype)
        if options.training:
            check_trains(loaded, model)
        # A file without its folder.
        short = model if ":" in model else pathlib.PurePath(model).name
        for batch_size, training in itertools.product(options.batch_sizes, modes):
            origin = f"{short}, batch {batch_size}, {'training step' if training else 'inference'}"
            if options.dtype not in (None, "float32"):
                origin += f", {options.dtype}"
            if options.jit_compile:
                origin += ", compiled by XLA"
            say(f"Tracing {origin}")
            traced = trace(
                loaded,
                batch_size=batch_size,
                training=training,
                image_size=options.image_size,
                jit_compile=options.jit_compile,
            )
            yield origin, planned_graph(traced, options.compute_capability)


def _images_of(view: GraphView, nodes: Sequence[ConvolutionNode]) -> tuple[int, ...]:
    """For each node, the first node that reads the same image; empty if all images differ."""
    first_of: dict[object, int] = {}
    images: list[int] = []
    for place, node in enumerate(nodes):
        configuration = node.configuration
        reads_image = configuration.kind is not ConvolutionKind.BACKWARD_INPUT
        image = (view.fanins[node.index][0], configuration.layout) if reads_image else node.name
        images.append(first_of.setdefault(image, place))
    return tuple(images) if len(first_of) < len(images) else ()


def _stages_of(
    view: GraphView, found: tuple[ConvolutionNode, ...], options: CollectOptions
) -> Iterator[tuple[_NodeStage, str]]:
    """The stages of a graph, each with the name of its source."""
    sources = options.stage_sources
    independence = Independence(view, found)
    groups = [group for _, group in level_groups(found, independence)]
    if StageSource.LEVELS in sources:
        for group in groups:
            if len(group) > 1:
                yield _stage_of_lanes([node] for node in group), "level"
    if StageSource.PAIRS in sources and all(has_known_shapes(n.configuration) for n in found):
        for stage in pairs_with_most_to_gain(found, independence, options.max_pairs):
            yield stage, "pair"
    if StageSource.MERGES in sources:
        merge_keys = find_merge_keys(view, found)
        for group in groups:
            lanes = list(lanes_by_merge_key(group, merge_keys))
            merged = [lane for lane in lanes if len(lane) > 1]
            for lane in merged:
                yield _stage_of_lanes([lane]), "merge"
            # Then the whole group. A group of one lane is that stage again.
            if merged:
                yield _stage_of_lanes(lanes), "merge"


def pairs_with_most_to_gain(
    convolutions: Sequence[ConvolutionNode], independence: Independence, at_most: int
) -> list[_NodeStage]:
    """Distinct pairs of configurations that are independent somewhere in the graph.

    A pair saves at most the time of its smaller convolution, as often as it occurs.
    """
    # Each configuration's number.
    numbers: dict[ConvolutionConfiguration, int] = {}
    kinds = [numbers.setdefault(node.configuration, len(numbers)) for node in convolutions]
    sizes = [multiply_adds(configuration) for configuration in numbers]
    gains: collections.Counter[tuple[int, int]] = collections.Counter()
    examples: dict[tuple[int, int], tuple[int, int]] = {}
    ancestors = independence.ancestors
    where = [(node.device, node.region) for node in convolutions]
    for one, other in itertools.combinations(range(len(convolutions)), 2):
        depend = ancestors[one] >> other & 1 or ancestors[other] >> one & 1
        if depend or where[one] != where[other]:
            continue
        first, second = sorted((one, other), key=kinds.__getitem__)
        low, high = kinds[first], kinds[second]
        gains[low, high] += min(sizes[low], sizes[high])
        examples.setdefault((low, high), (first, second))
    best = sorted(gains, key=lambda pair: (-gains[pair], pair))[:at_most]
    return [
        Stage.side_by_side(Step(convolutions[place]) for place in examples[each]) for each in best
    ]


def _stage_of_lanes(lanes: Iterable[Sequence[ConvolutionNode]]) -> _NodeStage:
    return Stage(tuple(Lane(tuple(map(Step, lane)), merged=len(lane) > 1) for lane in lanes))


def _key_of(stage: Stage[ConvolutionConfiguration]) -> object:
    """A key that is equal for equal stages. If nothing is pinned, the order does not matter."""
    if stage != Stage.side_by_side(map(Step, stage.operations)):
        return stage
    return frozenset(collections.Counter(stage.operations).items())
