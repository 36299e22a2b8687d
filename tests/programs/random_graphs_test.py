"""Random graphs in stock TensorFlow: rewritten, judged by rules that know nothing of the rewriter,
and run with and without the plugin.

All values are small whole numbers, clipped after every convolution, so that every sum is exact and
the comparison is to the bit.
"""

from __future__ import annotations

import numpy as np
import pytest
from random_graphs import CHANNELS, SIZE, RandomGraph
from tensorflow.core.framework import graph_pb2, node_def_pb2

import tf_interop
from tf_interop.graph.program import decode_stage
from tf_interop.runtime.graph_pass import run_conv_stage_pass
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import Policy, Settings

GRAPHS = 240
GRAPHS_PER_TEST = 24


pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


def dependencies(node: node_def_pb2.NodeDef) -> set[str]:
    return {text.removeprefix("^").split(":")[0] for text in node.input}


def judge(before: graph_pb2.GraphDef, after: graph_pb2.GraphDef) -> int:
    """Asserts what every rewrite has to keep. Returns how many convolutions are in wide stages."""
    stage_of: dict[str, str] = {}
    in_wide_stages = 0
    for node in after.node:
        if node.op == "TfInterop>ConvStage":
            steps = decode_stage(node).operations
            stage_of.update({step.name: node.name for step in steps})
            in_wide_stages += len(steps) if len(steps) > 1 else 0
    nodes_before = {node.name: node for node in before.node}
    nodes_after = {node.name: node for node in after.node}
    assert len(nodes_after) == len(after.node)
    # Every other node is there, with its op, device and attributes; nothing was added but stages.
    kept = set(nodes_before) - set(stage_of)
    assert kept == set(nodes_after) - set(stage_of.values())
    for name in kept:
        assert nodes_after[name].op == nodes_before[name].op
        assert nodes_after[name].device == nodes_before[name].device
        assert nodes_after[name].attr == nodes_before[name].attr
    # No dependency is lost, and none is inside a stage but that of an activation.
    for name, node in nodes_before.items():
        for source in dependencies(node):
            reader, origin = stage_of.get(name, name), stage_of.get(source, source)
            if reader == origin:
                assert node.op == "Relu", (source, name)
            else:
                assert origin in dependencies(nodes_after[reader]), (source, name)
    assert_acyclic(nodes_after)
    assert before.library == after.library
    return in_wide_stages


def assert_acyclic(nodes: dict[str, node_def_pb2.NodeDef]) -> None:
    waits = {
        name: {
            source
            for source in dependencies(node)
            if not (node.op == "Merge" and nodes[source].op == "NextIteration")
        }
        for name, node in nodes.items()
    }
    done: set[str] = set()
    while ready := [name for name in waits if waits[name] <= done]:
        done.update(ready)
        waits = {name: sources for name, sources in waits.items() if name not in done}
    assert not waits, f"cycle among {sorted(waits)[:10]}"


@pytest.mark.parametrize("first", range(0, GRAPHS, GRAPHS_PER_TEST))
def test_random_graphs_compute_the_same_numbers(first: int) -> None:
    in_wide_stages = 0
    for seed in range(first, first + GRAPHS_PER_TEST):
        graph = RandomGraph(seed)
        image = graph.digits(2, SIZE, SIZE, CHANNELS)
        compute = graph.function()
        tf_interop.disable()
        expected = compute(image)
        tf_interop.enable("always")
        handed_over: list[graph_pb2.GraphDef] = []
        with get_plugin().observe(lambda graph_def, _: handed_over.append(graph_def)):  # noqa: B023
            result = compute(image)
        assert tf_interop.status().failures == (), f"seed {seed}"
        for ours, theirs in zip(result, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"seed {seed}")
        for before in handed_over:
            if any(node.op == "TfInterop>ConvStage" for node in before.node):
                continue
            again = graph_pb2.GraphDef()
            again.CopyFrom(before)
            outcome = run_conv_stage_pass(before, Settings(Policy.ALWAYS), "CPU")
            assert before == again, "the pass changed its input"
            if outcome.graph_def is None:
                continue
            in_wide_stages += judge(before, outcome.graph_def)
            # The same bytes again, and nothing more to do on its own output.
            assert outcome.graph_def.SerializeToString(deterministic=True) == run_conv_stage_pass(
                again, Settings(Policy.ALWAYS), "CPU"
            ).graph_def.SerializeToString(deterministic=True)
            once_more = run_conv_stage_pass(outcome.graph_def, Settings(Policy.ALWAYS), "CPU")
            assert once_more.graph_def is None
    assert in_wide_stages > GRAPHS_PER_TEST  # more than one a graph: the test has something to say
