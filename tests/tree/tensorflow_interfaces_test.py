"""What is used of TensorFlow and Keras that they do not promise to keep."""

from __future__ import annotations

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Whoever adds to this makes the next version of TensorFlow harder.
PYTHON = """
keras_internals.py:._compile_config
keras_internals.py:._resolve_auto_jit_compile
tensorflow.python.eager.context
tensorflow.python.eager.context:context
tensorflow.python.eager.context:context_safe
tensorflow.python.framework.config
tensorflow.python.framework.config:is_op_determinism_enabled
tensorflow.python.framework.op_def_registry
tensorflow.python.framework.op_def_registry:get
tensorflow.python.grappler.cluster
tensorflow.python.grappler.cluster:Cluster
tensorflow.python.grappler.tf_optimizer
tensorflow.python.grappler.tf_optimizer:OptimizeGraph
tensorflow.python.ops.handle_data_util
tensorflow.python.ops.handle_data_util:get_resource_handle_data
tensorflow_internals.py:._context_handle
tensorflow_internals.py:._optimizer_experimental_options
tensorflow_internals.py:._optimizer_jit
tensorflow_internals.py:._physical_devices
"""


def load_script():  # type: ignore[no-untyped-def]
    path = ROOT / "scripts" / "tensorflow_interfaces.py"
    spec = importlib.util.spec_from_file_location("tensorflow_interfaces", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = load_script()


def is_protobuf(interface: str) -> bool:
    return interface.endswith("_pb2")


def test_python_interfaces_are_these() -> None:
    listed = [each for each in SCRIPT.interfaces() if not each.endswith(".h")]
    assert {each for each in listed if not is_protobuf(each)} == set(PYTHON.split())
    assert any(map(is_protobuf, listed))


def test_of_grapplers_cc_interfaces_one_is_used() -> None:
    headers = SCRIPT.cc_headers()
    assert len(headers) > 10
    assert {each for each in headers if "grappler" in each} == {
        "tensorflow/core/grappler/optimizers/custom_graph_optimizer_registry.h"
    }


def test_all_of_them_are_there() -> None:
    assert [each for each in SCRIPT.interfaces() if SCRIPT.look(each) == "MISSING"] == []
    assert SCRIPT.look("tensorflow.python.grappler.tf_optimizer:NoSuchName") == "MISSING"
    assert SCRIPT.look("tensorflow/core/no_such_header.h") == "MISSING"
