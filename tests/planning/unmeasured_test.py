"""Double and volumes on a GPU: the policy "always" takes them only if they were measured."""

from __future__ import annotations

import pytest
from graph_builder import CPU, DOUBLE, GPU, GraphBuilder
from profile_values import make_algorithm, make_profile

from tf_interop.convolution import RefusalReason
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.runtime.graph_pass import run_conv_stage_pass
from tf_interop.runtime.settings import Policy, Settings


def _graph(device: str) -> GraphBuilder:
    """A convolution in float, one in double, and one of volumes, all independent."""
    graph = GraphBuilder(device)
    for name, shape in (
        ("image", (2, 8, 8, 3)),
        ("filter", (3, 3, 3, 4)),
        ("double_image", (2, 8, 8, 3)),
        ("double_filter", (3, 3, 3, 4)),
        ("volume", (2, 4, 8, 8, 3)),
        ("volume_filter", (2, 3, 3, 3, 4)),
    ):
        graph.source(name, shape)
    graph.conv("float", "image", "filter")
    graph.conv("double", "double_image", "double_filter", T=DOUBLE)
    graph.conv("deep", "volume", "volume_filter", op="Conv3D")
    return graph


def _run(graph: GraphBuilder, device_type: str, *measured: str) -> tuple[set[str], dict[str, str]]:
    """The convolutions put into stages, and the details of those left out as not measured."""
    view = GraphView(graph.graph_def)
    found, _ = find_convolutions(view, GraphProperties(view))
    entries = [
        make_algorithm(node.configuration, "eng1") for node in found if node.name in measured
    ]
    profile = make_profile(*entries) if entries else None
    result = run_conv_stage_pass(
        graph.graph_def, Settings(Policy.ALWAYS, profile=profile), device_type
    )
    assert result.report is not None
    grouped = {node for stage in result.report.plan.stages for node in stage.nodes}
    refusals = {
        refusal.node: refusal.detail
        for refusal in result.report.refusals
        if refusal.reason is RefusalReason.NOT_MEASURED
    }
    return grouped, refusals


def test_keeps_them_as_they_are_on_a_gpu() -> None:
    grouped, refusals = _run(_graph(GPU), "GPU")
    assert grouped == {"float"}
    assert refusals.keys() == {"double", "deep"}
    assert "float64" in refusals["double"]
    assert "volumes" in refusals["deep"]


@pytest.mark.parametrize("measured", ["double", "deep"])
def test_takes_those_that_the_gpu_was_measured_on(measured: str) -> None:
    grouped, refusals = _run(_graph(GPU), "GPU", measured)
    assert grouped == {"float", measured}
    assert refusals.keys() == {"double", "deep"} - {measured}


def test_takes_all_on_the_cpu() -> None:
    grouped, refusals = _run(_graph(CPU), "CPU")
    assert grouped == {"float", "double", "deep"}
    assert not refusals


def test_a_plan_of_such_a_graph_counts_all_of_it() -> None:
    on_gpu = run_conv_stage_pass(_graph(GPU).graph_def, Settings(Policy.ALWAYS), "GPU").report
    on_cpu = run_conv_stage_pass(_graph(CPU).graph_def, Settings(Policy.ALWAYS), "CPU").report
    assert on_gpu is not None
    assert on_cpu is not None
    assert on_gpu.plan.fingerprint == on_cpu.plan.fingerprint
    assert on_gpu.plan.convolution_count == 3
    assert on_gpu.convolution_count == 1
