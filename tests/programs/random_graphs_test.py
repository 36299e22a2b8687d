"""Random graphs in stock TensorFlow, run with and without the plugin.

All values are small whole numbers, clipped after every convolution, so that every sum is exact and
the comparison is to the bit. That a rewritten graph is legal is what the pass checks of itself.
"""

from __future__ import annotations

import numpy as np
import pytest
from random_graphs import CHANNELS, SIZE, RandomGraph
from tensorflow.core.framework import graph_pb2

import tf_interop
from tf_interop.graph.program import CONV_STAGE_OP, decode_stage
from tf_interop.runtime.graph_pass import run_conv_stage_pass
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import Policy, Settings

GRAPHS = 240
GRAPHS_PER_TEST = 60

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


def run_pass(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef | None:
    """What the pass makes of a graph, which it leaves alone."""
    before = graph_pb2.GraphDef.FromString(graph_def.SerializeToString())
    rewritten = run_conv_stage_pass(graph_def, Settings(Policy.ALWAYS), "CPU").graph_def
    assert graph_def == before
    return rewritten


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
            if any(node.op == CONV_STAGE_OP for node in before.node):
                continue
            after = run_pass(before)
            if after is None:
                continue
            # The same again, and nothing more to do on its own output.
            assert after == run_pass(before)
            assert run_pass(after) is None
            stages = [decode_stage(node) for node in after.node if node.op == CONV_STAGE_OP]
            sizes = [len(stage.operations) for stage in stages]
            in_wide_stages += sum(size for size in sizes if size > 1)
    assert in_wide_stages > GRAPHS_PER_TEST  # more than one a graph: the test has something to say
