"""What is used of TensorFlow and Keras that they do not promise to keep."""

from __future__ import annotations

import pathlib

from scripts import tensorflow_interfaces as interfaces

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Whoever adds to this makes the next version of TensorFlow harder.
PYTHON = """
keras_internals.py:._compile_config
keras_internals.py:._resolve_auto_jit_compile
tensorflow.python.eager.context
tensorflow.python.eager.context:context
tensorflow.python.eager.context:context()._physical_devices
tensorflow.python.eager.context:context().clear_kernel_cache
tensorflow.python.eager.context:context().get_function_def
tensorflow.python.eager.context:context_safe
tensorflow.python.eager.context:context_safe()._collective_ops_server_def
tensorflow.python.eager.context:context_safe()._context_handle
tensorflow.python.eager.context:context_safe()._optimizer_experimental_options
tensorflow.python.eager.context:context_safe()._optimizer_jit
tensorflow.python.eager.context:context_safe()._server_def
tensorflow.python.eager.context:context_safe().list_function_names
tensorflow.python.framework.config
tensorflow.python.framework.config:is_op_determinism_enabled
tensorflow.python.framework.kernels
tensorflow.python.framework.kernels:get_registered_kernels_for_op
tensorflow.python.framework.op_def_registry
tensorflow.python.framework.op_def_registry:get
tensorflow.python.grappler.cluster
tensorflow.python.grappler.cluster:Cluster
tensorflow.python.grappler.tf_optimizer
tensorflow.python.grappler.tf_optimizer:OptimizeGraph
tensorflow.python.ops.handle_data_util
tensorflow.python.ops.handle_data_util:get_resource_handle_data
"""

IN_GRAPHS = """
_Arg _FusedConv2D _FusedConv3D _FusedDepthwiseConv2dNative _FusedMatMul _Retval _SwitchN
_XlaCluster _XlaCompile _XlaMustCompile _class _handle_dtypes _handle_shapes _input_shapes _kernel
_output_shapes _tpu_replicate _xla_cluster_id _xla_compile_id _xla_outside_compilation
"""


def is_protobuf(interface: str) -> bool:
    return interface.endswith("_pb2")


def test_python_interfaces_are_these() -> None:
    listed = interfaces.python_interfaces() | interfaces.private_attributes()
    assert {each for each in listed if not is_protobuf(each)} == set(PYTHON.split())
    assert any(map(is_protobuf, listed))
    assert listed < set(interfaces.interfaces())


def test_names_in_graphs_are_these() -> None:
    assert interfaces.graph_names() == {f"graph:{name}" for name in IN_GRAPHS.split()}


def test_of_grapplers_cc_interfaces_these_are_used() -> None:
    headers = interfaces.cc_headers()
    assert len(headers) > 10
    assert {each for each in headers if "grappler" in each} == {
        "tensorflow/c/experimental/grappler/grappler.h",
        "tensorflow/core/grappler/optimizers/custom_graph_optimizer_registry.h",
    }
    assert interfaces.cc_declarations() == {"tensorflow::grappler::InitGraphPlugin"}


def test_tensorflows_namespace_is_entered_in_one_file() -> None:
    files = [*(ROOT / "cc_kernels").rglob("*.cc"), *(ROOT / "cc_kernels").rglob("*.h")]
    declaring = [file.name for file in files if "\nnamespace tensorflow" in file.read_text()]
    assert declaring == ["tensorflow_registry.cc"]


def test_all_of_them_are_there() -> None:
    assert [each for each in interfaces.interfaces() if interfaces.look(each) == "MISSING"] == []
    assert interfaces.look("tensorflow.python.grappler.tf_optimizer:NoSuchName") == "MISSING"
    assert interfaces.look("tensorflow/core/no_such_header.h") == "MISSING"
    assert interfaces.look("tensorflow.python.eager.context:context().no_such_name") == "MISSING"
    assert interfaces.look("tensorflow::grappler::NoSuchFunction") == "MISSING"


def test_a_comparison_names_what_differs_and_gathers_headers() -> None:
    this = "a.b:c  function ()\na.b:d  type\nx/y.h  1\nx/z.h  2\ngone.h  3\n"
    other = "a.b:c  function (n)\na.b:d  type\nx/y.h  4\nx/z.h  2\ngone.h  MISSING\n"
    assert interfaces.differences(this, this) == []
    assert interfaces.differences(this, other) == [
        "a.b:c: function () -> function (n)",
        "gone.h: 3 -> MISSING",
        "1 of 3 headers have another content: x/y.h",
    ]
