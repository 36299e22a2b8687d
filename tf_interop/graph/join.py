"""Connects Kept nodes with what they read and with their reader, so that each call passes less.

    before                                        after

    UnpackVariables --:0, :1, ..--> Kept          packed --> Kept --> Unit
    Kept --:0, :1, ..--> Unit

A Kept node takes packed variables packed. If one Unit reads all of its values, and nothing else
reads any, they are one tensor. TensorFlow takes about 0.2 us to pass a tensor from op to op, and a
network may have a thousand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from tf_interop.graph.ops import UNPACK_OP
from tf_interop.graph.program import KEPT_OP, UNIT_OP, UnitNode, decode_node, encode_node
from tf_interop.graph.view import GraphView, parse_input


def join_kept(
    graph_def: graph_pb2.GraphDef, nodes_to_preserve: Collection[str] = ()
) -> graph_pb2.GraphDef | None:
    """The graph with Kept nodes connected to Units and to packed variables; None if none is."""
    view = GraphView(graph_def, nodes_to_preserve)
    replaced: dict[int, node_def_pb2.NodeDef] = {}
    take_packed: set[int] = set()  # Kept nodes
    unread = set()
    for index, op in enumerate(view.ops):
        if op != KEPT_OP:
            continue
        kept = node_def_pb2.NodeDef()
        kept.CopyFrom(view.nodes[index])
        variables = view.fanins[index][: kept.attr["N"].i]
        unpacks = {source for source, _ in variables if view.ops[source] == UNPACK_OP}
        if len(unpacks) == 1:
            [unpack] = unpacks
            _take_packed(kept, view.nodes[unpack])
            replaced[index] = kept
            take_packed.add(index)
            if take_packed.issuperset(view.fanouts[unpack]):
                unread.add(unpack)
        readers = view.data_readers(index)
        # TensorFlow computes a node without variables once, and cannot write down what is packed.
        has_variables = kept.attr["N"].i or kept.attr["P"].i
        if len(readers) != 1 or view.ops[readers[0]] != UNIT_OP or not has_variables:
            continue
        unit = decode_node(replaced.get(readers[0], view.nodes[readers[0]]))
        if not isinstance(unit, UnitNode) or unit.kept_types:
            continue
        replaced[readers[0]] = _reader_of(unit, kept, view.nodes[readers[0]].device)
        _pack(kept)
        replaced[index] = kept
    if not replaced:
        return None
    return view.with_nodes(
        replaced.get(index, node)
        for index, node in enumerate(view.nodes)
        if index not in unread or node.name in view.preserved
    )


def _take_packed(kept: node_def_pb2.NodeDef, unpack: node_def_pb2.NodeDef) -> None:
    variables = list(kept.input[: kept.attr["N"].i])
    rest = list(kept.input[len(variables) :])
    others = [text for text in variables if parse_input(text)[0] != unpack.name]
    places = {text: place for place, text in enumerate(others)}
    kept.attr["handles"].list.i[:] = [
        places[text] if text in places else len(others) + parse_input(text)[1] for text in variables
    ]
    kept.attr["N"].i = len(others)
    kept.attr["P"].i = 1
    kept.input[:] = [*others, unpack.input[0], *rest]


def _pack(kept: node_def_pb2.NodeDef) -> None:
    kept.attr["kept_types"].list.type[:] = kept.attr["Tout"].list.type
    kept.attr["Tout"].list.type[:] = [types_pb2.DT_VARIANT]
    for name in ("output_shapes", "_output_shapes"):
        del kept.attr[name].list.shape[1:]
        kept.attr[name].list.shape[0].Clear()


def _reader_of(unit: UnitNode, kept: node_def_pb2.NodeDef, device: str) -> node_def_pb2.NodeDef:
    """The unit, reading the values of a Kept node as one tensor, its last input."""
    sources = [parse_input(text) for text in unit.inputs]
    others = [place for place, (name, _) in enumerate(sources) if name != kept.name]
    places = {old: new for new, old in enumerate(others)}
    for old, (name, port) in enumerate(sources):
        if name == kept.name:
            places[old] = len(others) + port
    node = encode_node(
        dataclasses.replace(
            unit,
            inputs=(*(unit.inputs[place] for place in others), kept.name),
            input_dtypes=(*(unit.input_dtypes[place] for place in others), types_pb2.DT_VARIANT),
            steps=tuple(_with_places(step, places) for step in unit.steps),
            kept_inputs=tuple(sorted(places[each] for each in unit.kept_inputs)),
            split_inputs=tuple(sorted(places[each] for each in unit.split_inputs)),
            kept_types=tuple(kept.attr["Tout"].list.type),
        )
    )
    node.device = device
    return node


def _with_places(step: node_def_pb2.NodeDef, places: Mapping[int, int]) -> node_def_pb2.NodeDef:
    """A step whose operands have other places among the inputs."""
    moved = node_def_pb2.NodeDef()
    moved.CopyFrom(step)
    for position, text in enumerate(step.input):
        kind, place, *_ = text.split(":")
        if kind == "inputs":
            moved.input[position] = f"inputs:{places[int(place)]}"
    return moved
