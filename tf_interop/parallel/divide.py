"""The door of this folder: divides the layers of a graph, as a parallel plan specifies.

The pass of one device (`runtime/`) knows only this module, and calls a `Divider` before it makes
stages and units. A divider calls its parts in order: take fused operations apart and find layers,
look up the plan, take normalizations apart, divide the graph, rewrite it, check it.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop.errors import GraphError
from tf_interop.graph.ops import attribute_of
from tf_interop.graph.properties import ShapeInference
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import GraphView
from tf_interop.parallel import kept_shares, known_shapes, single_steps
from tf_interop.parallel.costs.local_devices import check_devices_are_there, number_devices
from tf_interop.parallel.kept_shares import Share, SharedVariable
from tf_interop.parallel.layers.find import SHAPES_ARE_UNKNOWN, LayerGraph
from tf_interop.parallel.layers.prepare import expand_layers, prepare
from tf_interop.parallel.layers.updates import argument_of
from tf_interop.parallel.lookup import divided_layers, find_division, structure_of_layers
from tf_interop.parallel.parted_graph import LayerDivision, PartedGraph, part_graph
from tf_interop.parallel.rewrite import rewrite_divided
from tf_interop.parallel.rewrite import was_divided as was_divided
from tf_interop.parallel.types import ParallelPlan as ParallelPlan
from tf_interop.parallel.types import load_parallel_plan
from tf_interop.structure import Structure
from tf_interop.terminal import count_of
from tf_interop.versioned_file import PathLike


@dataclasses.dataclass(frozen=True)
class ParallelReport:
    """The result of the pass for one graph.

    Attributes:
        fingerprint: of the graph's layers.
        divided: how layers are divided, by name.
        device_count: devices that have parts.
        sent_bytes: bytes sent in a step, by the names of source and destination.
        why_whole: nodes that take time but are in no layer, with the reason.
        why_unchanged: empty if layers were divided, else why not.
        shared_variable_count: variables of which devices keep shares.
    """

    fingerprint: str
    node_count: int
    layer_count: int
    divided: Mapping[str, LayerDivision]
    device_count: int
    sent_bytes: Mapping[tuple[str, str], int]
    why_whole: Mapping[str, str]
    milliseconds: float
    why_unchanged: str = ""
    shared_variable_count: int = 0

    def __str__(self) -> str:
        """Such as `2 of 5 layers on 4 devices, 1.5 MB sent in a step (graph of 80 nodes, 9 ms)`."""
        shares = ""
        if self.shared_variable_count:
            shares = f", shares of {count_of(self.shared_variable_count, 'variable')} stay there"
        of_graph = f"(graph of {self.node_count} nodes, {self.milliseconds:.0f} ms)"
        if self.why_unchanged:
            return f"layers on one device, {self.why_unchanged} {of_graph}"
        return (
            f"{len(self.divided)} of {self.layer_count} layers on {self.device_count} devices, "
            f"{sum(self.sent_bytes.values()) / 1e6:.3g} MB sent in a step{shares} {of_graph}"
        )


@dataclasses.dataclass(frozen=True)
class Divider:
    """Divides graphs as a plan specifies."""

    plan: ParallelPlan

    @classmethod
    def of(cls, plan: ParallelPlan | PathLike) -> Divider:
        """Makes the divider of a plan or its file; lists TensorFlow's devices.

        Raises:
            PlanError: the file cannot be read, or devices are missing.
        """
        loaded = plan if isinstance(plan, ParallelPlan) else load_parallel_plan(plan)
        check_devices_are_there(loaded.devices)
        return cls(loaded)

    def turn_on(self) -> None:
        """Calls copies of functions where only these can be divided, or can keep shares."""
        kept_shares.turn_on()
        known_shapes.turn_on()
        single_steps.turn_on()

    def turn_off(self) -> None:
        """Calls functions as TensorFlow does, and gives all variables their values again."""
        single_steps.turn_off()
        known_shapes.turn_off()
        kept_shares.turn_off()

    def divide(
        self,
        graph_def: graph_pb2.GraphDef,
        nodes_to_preserve: Collection[str] = (),
        infer_output_shapes: ShapeInference | None = None,
        function: str = "",
    ) -> tuple[graph_pb2.GraphDef | None, ParallelReport | None]:
        """Runs the pass on one graph, which is not changed.

        Shape inference runs if attributes say too little. `function` is the name of TensorFlow's
        function that has the graph, if devices may keep shares of its variables.

        Returns:
            The new graph, or None if nothing changed; and a report, or None if there is nothing to
            divide, or the graph was divided before.

        Raises:
            GraphError: the graph is not well-formed.
            PlanError: the plan is for other graphs, or for devices that are not there.
            TimeLimitError: it took longer than the `time_limit` around it.
        """
        start = time.perf_counter()
        if was_divided(graph_def):
            return None, None
        kept = kept_shares.find(function)
        if kept is not None:
            kept.is_divided = False
        shares = "" if kept is None else kept.name
        layers = prepare(graph_def, infer_output_shapes, nodes_to_preserve, shares)
        view = layers.view
        if not layers.layers and not layers.why_whole:
            return None, None
        has_unknown_shapes = SHAPES_ARE_UNKNOWN in layers.why_whole.values()
        has_copies = has_unknown_shapes and known_shapes.ask(function)
        check_time_limit()
        structure = structure_of_layers(layers)
        division, why_unchanged = _find_division(self.plan, layers, structure)
        if has_copies and why_unchanged:
            why_unchanged += "; later calls run copies for the shapes of their batches"
        rewritten = None
        sent_bytes: dict[tuple[str, str], int] = {}
        if division:
            parted, device_names = self._part(layers, division)
            layers, view = parted.layers, parted.layers.view
            if any(map(parted.is_divided, parted.parts)):
                rewritten = rewrite_divided(parted, device_names)
                after = GraphView(rewritten)
                after.topological_order()
                preserved = set(nodes_to_preserve) & view.index_of.keys()
                if missing := preserved - after.index_of.keys():
                    raise GraphError(f"Expected the nodes {sorted(missing)[:5]} to stay, got none.")
                sent_bytes = {
                    (device_names[source], device_names[destination]): count
                    for (source, destination), count in parted.sent_bytes.items()
                }
                if kept is not None:
                    if shared_variables(parted, device_names) != kept.variables:
                        raise GraphError("Expected the same shares of variables as before.")
                    kept.is_divided = True
                elif function:
                    again = prepare(graph_def, infer_output_shapes, nodes_to_preserve, function)
                    if again.update_of:
                        offered = shared_variables(*self._part(again, division))
                        kept_shares.offer(function, offered)
            else:
                why_unchanged = "no operation can be divided as the parallel plan specifies"
        used = {device for each in division.values() for device in each.devices}
        report = ParallelReport(
            fingerprint=structure.fingerprint,
            node_count=len(view),
            layer_count=len(layers.layers),
            divided=division,
            device_count=len(used),
            sent_bytes=sent_bytes,
            why_whole=layers.why_whole,
            milliseconds=(time.perf_counter() - start) * 1e3,
            why_unchanged=why_unchanged,
            shared_variable_count=0 if kept is None else len(kept.variables),
        )
        return rewritten, report

    def _part(
        self, layers: LayerGraph, division: Mapping[str, LayerDivision]
    ) -> tuple[PartedGraph, Sequence[str]]:
        """The parts of a graph, and the names of all devices."""
        layers = expand_layers(layers, {name: each.degrees for name, each in division.items()})
        device_names, device_of_node = number_devices(self.plan.devices, layers.view)
        return part_graph(layers, division, device_of_node), device_names


def shared_variables(graph: PartedGraph, device_names: Sequence[str]) -> tuple[SharedVariable, ...]:
    """The variables of which devices can keep shares, by their numbers.

    Returns:
        None of them if one is not an argument of the function.
    """
    view, layers = graph.layers.view, graph.layers
    found = {}
    for node, update in layers.update_of.items():
        if not layers.operations[node].is_assignment or not graph.is_divided(node):
            continue
        shares = [
            Share(part.op_part.place, device_names[part.device], part.reads[1])
            for part in graph.parts[node]
            if part.op_part is not None and part.reads[1] is not None
        ]
        argument = argument_of(view, view.fanins[node][0][0])
        if argument is None:
            return ()
        shape = layers.operations[update.gradient].output_shapes[0]
        dtype = tf.as_dtype(attribute_of(view.nodes[node], "dtype").type)
        found[argument] = SharedVariable(argument, shape, dtype, tuple(shares))
    return tuple(found[argument] for argument in sorted(found))


def _find_division(
    plan: ParallelPlan, layers: LayerGraph, structure: Structure
) -> tuple[dict[str, LayerDivision], str]:
    """How the layers of a graph are divided, or why none is."""
    if not layers.layers:
        reasons = collections.Counter(layers.why_whole.values())
        [(reason, count)] = reasons.most_common(1)
        return {}, f"no layer can be divided: {reason} ({count_of(count, 'operation')})"
    entry = find_division(plan, layers, structure)
    division = divided_layers(entry, layers, structure)
    why_unchanged = entry.why_whole or "the parallel plan leaves this graph as it is"
    return division, "" if division else why_unchanged
