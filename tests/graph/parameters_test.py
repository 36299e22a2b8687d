"""Parameters: what may be kept between calls."""

from __future__ import annotations

from graph_builder import CPU, graph_of

from tf_interop.convolution import RefusalReason
from tf_interop.graph.parameters import find_parameters
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView

SECOND_CPU = CPU.replace("CPU:0", "CPU:1")
WORKER = CPU.replace("localhost", "worker")


def test_what_another_device_or_process_reads_is_no_parameter() -> None:
    view = GraphView(
        graph_of(
            {
                "alone": "ReadVariableOp handle",
                "root": "Rsqrt alone",
                "conv": "Conv2D image root",
                "shared": "ReadVariableOp handle",
                "here": "Conv2D image shared",
                "on_second": f"Conv2D image shared @{SECOND_CPU}",
                "sent": "ReadVariableOp handle",
                "on_worker": f"Conv2D image sent @{WORKER}",
                "of_worker": f"ReadVariableOp worker_handle @{WORKER}",
                "too": f"Conv2D image of_worker @{WORKER}",
            },
            CPU,
        ).graph_def
    )
    parameters = find_parameters(view, GraphProperties(view), "CPU")
    assert {view.names[index] for index in parameters.shapes} == {"alone", "root"}
    refused = {each.node: each.reason for each in parameters.refusals}
    assert refused == dict.fromkeys(("shared", "sent", "of_worker"), RefusalReason.DEVICE)


def test_a_variable_of_a_branch_is_no_parameter() -> None:
    view = GraphView(
        graph_of(
            {
                "branch": "Switch image condition",
                "pivot": "Identity branch:1",
                "in_branch": "VarHandleOp ^pivot",
                "read": "ReadVariableOp in_branch",
                "conv": "Conv2D branch:1 read",
            },
            CPU,
        ).graph_def
    )
    parameters = find_parameters(view, GraphProperties(view), "CPU")
    assert not parameters.shapes
    assert [each.reason for each in parameters.refusals] == [RefusalReason.CONTROL_FLOW]


def test_a_read_may_be_waited_for_and_other_parameters_may_not() -> None:
    view = GraphView(
        graph_of(
            {
                "read": "ReadVariableOp handle",
                "root": "Rsqrt read",
                "alone": "Sqrt read",
                "late": "ReadVariableOp handle ^image",
                "conv": "Conv2D image alone ^read",
                "last": "Conv2D conv root ^root",
            },
            CPU,
        ).graph_def
    )
    parameters = find_parameters(view, GraphProperties(view), "CPU")
    assert {view.names[index] for index in parameters.shapes} == {"read", "alone"}
    refused = {each.node: each.reason for each in parameters.refusals}
    assert refused == {"late": RefusalReason.CONTROL_DEPENDENCY}
