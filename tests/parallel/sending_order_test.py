"""The order in which shares of parameters travel."""

from __future__ import annotations

from tensorflow.core.framework import graph_pb2

from tf_interop.graph.ops import make_node
from tf_interop.graph.view import GraphView
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.sending_order import _LEAST_GROUP_BYTES, Gathering, order_gatherings

DEVICES = ("/device:CPU:0", "/device:CPU:1")


def test_a_group_is_read_when_the_group_before_the_last_has_arrived() -> None:
    graph_def = graph_pb2.GraphDef()
    gatherings = []
    # Two small parameters are one group.
    for name, share in (("a", 1.0), ("b", 0.5), ("c", 0.5), ("d", 1.0), ("e", 1.0)):
        reads = {device: [f"{name}/read_{at}"] for at, device in enumerate(DEVICES)}
        gathered = {device: [f"{name}/all_{at}"] for at, device in enumerate(DEVICES)}
        for device in DEVICES:
            for node in (*reads[device], *gathered[device]):
                graph_def.node.append(make_node("NoOp", node, (), device))
        gatherings.append(Gathering(reads, gathered, int(share * _LEAST_GROUP_BYTES)))
    taken = {node.name for node in graph_def.node}
    makers = {device: NodeMaker(graph_def, device, "", taken) for device in DEVICES}
    order_gatherings(graph_def, gatherings, makers)

    view = GraphView(graph_def)

    def awaited(read: str) -> set[str]:
        """What a read waits for, over one node that collects it."""
        [arrived] = view.control_fanins[view.index_of[read]]
        return {view.names[node] for node in view.control_fanins[arrived]}

    for at in (0, 1):
        other = 1 - at
        assert awaited(f"d/read_{at}") == {f"a/all_{other}"}
        assert awaited(f"e/read_{at}") == {f"b/all_{other}", f"c/all_{other}"}
        for name in "abc":
            assert not view.control_fanins[view.index_of[f"{name}/read_{at}"]]
    assert {view.nodes[node].device for node in range(len(view))} == set(DEVICES)
