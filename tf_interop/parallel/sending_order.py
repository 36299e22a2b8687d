"""Makes the shares of parameters travel in the order in which layers need them.

All shares are there when a step begins. If all were sent at once, the first layers would get theirs
as late as the last ones, and no device could compute meanwhile. So parameters are in groups, and
devices read the shares of a group when all of them have the group before the last one:

    read a ==> a        read b ==> b        read c ==> c        (==> between devices)
               |                            ^
               +============================+                   (a message without a value)

Group b is on its way meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from tensorflow.core.framework import graph_pb2

from tf_interop.parallel.node_maker import NodeMaker

_LEAST_GROUP_BYTES = 1 << 19
"""Takes longer than the message on links of up to 1 GB/s."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gathering:
    """A parameter whose shares devices send each other.

    Attributes:
        reads: the nodes that read its shares, by the name of their device.
        gathered: the nodes that have all of what a device needs, by the name of that device.
        byte_count: what a device receives.
    """

    reads: Mapping[str, Sequence[str]]
    gathered: Mapping[str, Sequence[str]]
    byte_count: int


def order_gatherings(
    graph_def: graph_pb2.GraphDef,
    gatherings: Iterable[Gathering],
    makers: Mapping[str, NodeMaker],
) -> None:
    """Adds control dependencies to a graph; `gatherings` are in the order of their use.

    Nothing else may wait for a read of a later gathering than for an earlier one, or the graph
    would have a circle.
    """
    nodes = {node.name: node for node in graph_def.node}
    groups: list[list[Gathering]] = [[]]
    for gathering in gatherings:
        if sum(each.byte_count for each in groups[-1]) >= _LEAST_GROUP_BYTES:
            groups.append([])
        groups[-1].append(gathering)
    for before, group in zip(groups, groups[2:], strict=False):
        for device, maker in makers.items():
            names = [f"^{name}" for each in before for name in each.gathered.get(device, ())]
            if not names:
                continue
            arrived = maker.named("arrived")("NoOp", *names)
            for gathering in group:
                for of_device, reads in gathering.reads.items():
                    for name in reads if of_device != device else ():
                        nodes[name].input.append(f"^{arrived}")
