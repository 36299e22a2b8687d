"""The Python code that depends on TensorFlow and Keras interfaces that may change between versions.

What changes how TensorFlow calls functions is in `runtime/packed_calls.py`,
`runtime/known_calls.py`, `parallel/kept_shares.py` and `parallel/known_shapes.py`.
`docs/development.md` lists the C++ files that depend on such interfaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any

from tf_interop.convolution import Shape


def tensorflow_version() -> str:
    """This process's version of TensorFlow, such as `2.21.0`."""
    import tensorflow as tf

    return str(tf.version.VERSION)


def op_def(op: str) -> Any:
    """The OpDef of an op type; None if TensorFlow does not know it."""
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(op)


def _existing_context() -> Any:
    """TensorFlow's eager context; None if there is none yet: making one fixes the devices."""
    from tensorflow.python.eager import context

    return context.context_safe()


def may_be_stateful(op: str) -> bool:
    """Whether TensorFlow declares an op type stateful, or does not know it."""
    found = op_def(op)
    return found is None or bool(found.is_stateful)


@functools.lru_cache(maxsize=1024)
def cpu_kernel_types(op: str) -> tuple[dict[str, frozenset[int]], ...]:
    """For each unlabeled CPU kernel of an op type, the values that its type attributes may have."""
    from tensorflow.python.framework import kernels

    return tuple(
        {
            constraint.name: frozenset(constraint.allowed_values.list.type)
            for constraint in kernel.constraint
        }
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
        if kernel.device_type == "CPU" and not kernel.label
    )


def shape_of_tensor_properties(serialized: bytes) -> Shape | None:
    """Reads the shape in a serialized `OpInfo.TensorProperties` from Grappler's C API."""
    from tensorflow.core.grappler.costs import op_performance_data_pb2

    properties = op_performance_data_pb2.OpInfo.TensorProperties.FromString(serialized)
    if properties.shape.unknown_rank:
        return None
    # Grappler writes -1 for an unknown dimension, and less for unknown dimensions that are equal.
    return tuple(dim.size if dim.size >= 0 else None for dim in properties.shape.dim)


def python_name(function: str) -> str:
    """The name of the Python function that one of TensorFlow's functions was made from."""
    made_from = re.match(r"__(?:inference|forward|backward)_(.+?)_\d+(?:_.*)?$", function)
    return made_from[1] if made_from else function


def is_tf32_on() -> bool:
    """Whether TensorFlow's switch for TF32 is on."""
    import tensorflow as tf

    return bool(tf.config.experimental.tensor_float_32_execution_enabled())


ONEDNN_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
"""The environment variable that turns oneDNN on (1) or off (0), before TensorFlow is imported."""


@functools.cache
def is_onednn_on() -> bool:
    """Whether TensorFlow computes with oneDNN on CPUs; by default only on those with VNNI."""
    from tensorflow.python.util import _pywrap_util_port

    return bool(_pywrap_util_port.IsMklEnabled())


@functools.cache
def has_onednn_bfloat16() -> bool:
    """Whether oneDNN is on and computes in bfloat16 on this CPU; it needs AVX-512 or newer."""
    import tensorflow as tf
    from tensorflow.python.util import _pywrap_utils

    return is_onednn_on() and bool(_pywrap_utils.IsDataTypeSupportedByOneDNNOnThisCPU(tf.bfloat16))


def is_op_determinism_on() -> bool:
    """Whether convolutions must return the same bits every time.

    They must after `tf.config.experimental.enable_op_determinism`, and with the variable
    `TF_CUDNN_DETERMINISTIC`, which TensorFlow's own convolutions on GPUs obey.
    """
    from tensorflow.python.framework import config

    variable = os.environ.get("TF_CUDNN_DETERMINISTIC", "").lower()
    return variable in ("1", "true") or bool(config.is_op_determinism_enabled())


def may_have_gpus() -> bool:
    """Whether TensorFlow may show this process a GPU.

    It will not if it was built without CUDA, or has listed its devices and shows no GPU. This
    function lists none, because listing fixes which devices the process uses.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    if not tf.test.is_built_with_cuda():
        return False
    if context.context()._physical_devices is None:
        return True
    return bool(tf.config.get_visible_devices("GPU"))


def has_pluggable_gpu() -> bool:
    """Whether this process's GPUs come from a plugin and not from CUDA. Safe in the pass.

    False if TensorFlow has not listed its devices, as in a program with only a Session.
    """
    current = _existing_context()
    devices = current and current._pluggable_devices
    return any(device.device_type == "GPU" for device in devices or ())


def plugin_optimizers_option() -> bool | None:
    """`use_plugin_optimizers` of `tf.config.optimizer`; None if it is not set."""
    import tensorflow as tf

    value = tf.config.optimizer.get_experimental_options().get("use_plugin_optimizers")
    return None if value is None else bool(value)


def set_plugin_optimizers_option(value: bool | None) -> None:
    """Sets `use_plugin_optimizers`, or unsets it; functions are then optimized again."""
    import tensorflow as tf

    # TensorFlow treats an option of None as not set, though no document says so.
    tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": value})


def call_before_graph_plugins(call: Callable[[str], None]) -> None:
    """Calls `call` with the path of each graph plugin before the program loads it.

    Installed plugins are not among them: importing TensorFlow has already loaded those.
    """
    from tensorflow.python.framework import load_library

    load = load_library.load_pluggable_device_library

    def call_and_load(library_location: str) -> None:
        folder = pathlib.Path(library_location).absolute()
        for path in map(str, folder.iterdir()) if folder.is_dir() else [library_location]:
            # If it cannot be loaded, the original function raises.
            with contextlib.suppress(OSError):
                if hasattr(ctypes.CDLL(path), "TF_InitGraph"):
                    call(path)
        load(library_location)

    load_library.load_pluggable_device_library = call_and_load


def are_plugins_turned_off() -> bool:
    """Whether `use_plugin_optimizers` is False. Safe in the pass: no lock, no list of devices."""
    current = _existing_context()
    if current is None:
        return False
    return current._optimizer_experimental_options.get("use_plugin_optimizers") is False


def local_task() -> tuple[str, int]:
    """The job and the task in this process's device names."""
    current = _existing_context()
    server = current and (current._server_def or current._collective_ops_server_def)
    return (server.job_name, server.task_index) if server else ("localhost", 0)


def optimize_functions_anew() -> None:
    """Makes TensorFlow optimize every tf.function again at its next call.

    Like `tf.random.set_seed` it drops the kernels of eager execution, so random ops with their own
    seed start again.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    # Dropping kernels waits for asynchronous functions while holding the interpreter lock, which
    # the pass may need. A function's error is raised where its result is read.
    with contextlib.suppress(tf.errors.OpError):
        context.async_wait()
    context.context().clear_kernel_cache()


def is_auto_clustering_on() -> bool:
    """Whether `tf.config.optimizer.set_jit` is on; unlike `get_jit` this lists no devices."""
    current = _existing_context()
    return current is not None and bool(current._optimizer_jit)


def function_names() -> list[str]:
    """Names of the process's traced functions that are still in use."""
    current = _existing_context()
    if current is None or current._context_handle is None:
        return []
    return sorted(current.list_function_names())


def function_def_of(name: str) -> Any | None:
    """The FunctionDef with this name; None if it is no longer in use."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    try:
        return context.context().get_function_def(name)
    except tf.errors.NotFoundError:
        return None


def is_compiled_by_xla(function: Any) -> bool:
    """Whether a concrete function was made with `jit_compile=True`."""
    attributes = function.function_def.attr
    return "_XlaMustCompile" in attributes and bool(attributes["_XlaMustCompile"].b)


def function_fetches(function: Any) -> list[str]:
    """The nodes that a concrete function runs for: its outputs, and ops with side effects."""
    graph = function.graph
    return [tensor.op.name for tensor in graph.outputs] + [op.name for op in graph.control_outputs]


def add_changed_copy(function: Any, definition: Any, *graph: Any) -> Any:
    """Adds a changed copy of an AtomicFunction, which may have a FuncGraph, to its context.

    Its errors name the same lines of the user's program as those of the function.
    """
    function._bound_context.add_function_def(definition)
    copy = _changed_copy_type()(
        definition.signature.name,
        function._bound_context,
        function.function_type,
        function.children,
        function.call_options,
        *graph,
    )
    copy.original = function
    return copy


@functools.cache
def _changed_copy_type() -> Any:
    from tensorflow.python.eager.polymorphic_function import atomic_function

    class ChangedCopy(atomic_function.AtomicFunction):  # type: ignore[misc]
        original: Any = None

        @property
        def graph_debug_info(self) -> Any:
            return self.original.graph_debug_info

    return ChangedCopy


def without_variables(function: Any) -> Any:
    """A copy of a concrete function in which constants replace the variables that it reads."""
    from tensorflow.python.framework import convert_to_constants

    return convert_to_constants.convert_variables_to_constants_v2(function)


def variable_spec(handle: Any) -> Any:
    """The `tf.TensorSpec` of the variable behind a resource tensor, if it is known."""
    import tensorflow as tf
    from tensorflow.python.ops import handle_data_util

    if handle.dtype != tf.resource:
        return None
    data = handle_data_util.get_handle_data(handle)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    [value] = data.shape_and_type
    return tf.TensorSpec(tf.TensorShape(value.shape), tf.as_dtype(value.dtype))


_ONEDNN_FUSED = "_MklNativeFusedConv2D"


def name_bfloat16_for_onednn(node: Any) -> None:
    """Gives a _FusedConv2D of bfloat16 the name that a CPU runs it under.

    Grappler makes such nodes, and the oneDNN pass renames them before a run, but an import refuses
    them: the definition of _FusedConv2D lacks bfloat16.
    """
    from tensorflow.core.framework import types_pb2

    if node.op == "_FusedConv2D" and node.attr["T"].type == types_pb2.DT_BFLOAT16:
        node.op = _ONEDNN_FUSED
        node.attr["_kernel"].s = b"MklNameChangeOp"


def name_as_grappler_does(node: Any) -> None:
    """Undoes `name_bfloat16_for_onednn`."""
    if node.op == _ONEDNN_FUSED:
        node.op = "_FusedConv2D"
        for name in ("_kernel", "is_filter_const"):
            del node.attr[name]


def inline_function_calls(graph_def: Any, nodes_to_preserve: Iterable[str]) -> Any:
    """Inlines calls, and lowers conditionals and loops to Switch and Merge, as before a run.

    Returns:
        A new GraphDef, without `_output_shapes`. Its library has the functions that were not
        inlined, such as those that XLA compiles.

    Raises:
        tf.errors.OpError: the graph is not well-formed, or has an op that is not registered.
    """
    # With no device given, Grappler would open a session on the machine's GPUs.
    devices = [_named_device("CPU")]
    return _run_grappler(graph_def, nodes_to_preserve, devices, only_optimizer="function")


def optimize_for_device(
    graph_def: Any, nodes_to_preserve: Iterable[str], compute_capability: str | None
) -> Any:
    """Runs Grappler's own passes on a graph as before a run, but does not run the graph.

    Args:
        graph_def: a GraphDef without function calls; its nodes' devices do not matter.
        nodes_to_preserve: names that must stay.
        compute_capability: such as `9.0`, of a GPU that need not be present; None for a CPU.

    Returns:
        A new GraphDef with every node on that device.

    Raises:
        tf.errors.OpError: the graph is not well-formed, or has an op that is not registered.
    """
    devices = [_named_device("CPU")]
    if compute_capability is not None:
        gpu = _named_device("GPU")
        gpu.properties.environment["architecture"] = compute_capability
        devices.append(gpu)
    placed = type(graph_def)()
    placed.CopyFrom(graph_def)
    for node in placed.node:
        node.device = devices[-1].name
    return _run_grappler(placed, nodes_to_preserve, devices)


def _named_device(device_type: str) -> Any:
    from tensorflow.core.protobuf import device_properties_pb2

    device = device_properties_pb2.NamedDevice(
        name=f"/job:localhost/replica:0/task:0/device:{device_type}:0"
    )
    device.properties.type = device_type
    return device


def _run_grappler(
    graph_def: Any,
    nodes_to_preserve: Iterable[str],
    devices: list[Any],
    *,
    only_optimizer: str | None = None,
) -> Any:
    """Runs all of Grappler's own passes, or only one, for devices that need not be present."""
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
    from tensorflow.python.grappler import cluster as grappler_cluster
    from tensorflow.python.grappler import tf_optimizer

    meta_graph = meta_graph_pb2.MetaGraphDef()
    meta_graph.graph_def.CopyFrom(graph_def)
    # Grappler treats the members of this collection as the fetches.
    meta_graph.collection_def["train_op"].node_list.value.extend(nodes_to_preserve)
    config = config_pb2.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.min_graph_nodes = -1
    if only_optimizer is not None:
        rewrites.optimizers.append(only_optimizer)
    # When all passes run, one that fails is skipped, as before a run: the layout optimizer fails if
    # a model drops out parts of an image.
    rewrites.fail_on_optimizer_errors = only_optimizer is not None
    rewrites.use_plugin_optimizers = rewriter_config_pb2.RewriterConfig.OFF
    cluster = grappler_cluster.Cluster(devices=devices)
    return tf_optimizer.OptimizeGraph(config, meta_graph, verbose=False, cluster=cluster)


# Functions of Keras 3 and of tf_keras, which continues Keras 2. Only tf_keras has the last one,
# which it makes with the first.
_MODEL_FUNCTIONS = ("train_function", "test_function", "predict_function", "train_tf_function")


def resolves_auto_to_xla(model: Any) -> bool:
    """Whether `compile(jit_compile="auto")` would turn XLA on for a Keras model, here and now.

    Keras 3 resolves "auto" in `compile` and keeps only the result, so a model does not show whether
    the user asked for `jit_compile=True`. tf_keras has no "auto".
    """
    resolve = getattr(model, "_resolve_auto_jit_compile", None)
    return resolve is not None and bool(resolve())


def model_compilation(model: Any) -> object:
    """An object that each `compile` of a Keras model replaces; None before the first."""
    return getattr(model, "_compile_config", None)


def model_functions(model: Any) -> dict[str, Any]:
    """The functions of `fit`, `evaluate` and `predict`, by attribute; None if not made yet."""
    return {name: getattr(model, name) for name in _MODEL_FUNCTIONS if hasattr(model, name)}


def set_model_functions(model: Any, functions: dict[str, Any]) -> None:
    """Puts functions from `model_functions` back."""
    for name, function in functions.items():
        setattr(model, name, function)


def drop_model_functions(model: Any) -> None:
    """Removes the functions; Keras makes them again when it needs them."""
    set_model_functions(model, dict.fromkeys(model_functions(model)))


def make_model_functions_anew(model: Any) -> None:
    """Makes the functions that a running `fit`, `evaluate` or `predict` uses for its next batch."""
    made = [name for name, function in model_functions(model).items() if function is not None]
    drop_model_functions(model)
    for name in made:
        if name != "train_tf_function":
            getattr(model, f"make_{name}")()


def states_inputs(model: Any) -> bool:
    """Whether the inputs of a Keras model are known; else they are after its first call."""
    return bool(getattr(model, "inputs", None)) or built_input_shape(model) is not None


def model_batch_size(model: Any) -> int | None:
    """The batch size of a Keras model's inputs; None if they leave it open.

    Of a model that does not state its inputs, that of the first call.
    """
    inputs = getattr(model, "inputs", None)
    shapes = [tuple(each.shape) for each in inputs] if inputs else [built_input_shape(model)]
    sizes = {shape[0] for shape in shapes if isinstance(shape, (list, tuple)) and shape}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def built_input_shape(model: Any) -> Any:
    """The shapes of the first call of a Keras model, in the structure of its inputs; None before.

    It is None, too, if the model takes several arguments.
    """
    config = model.get_build_config() if hasattr(model, "get_build_config") else None
    shape: Any = (config or {}).get("input_shape")
    return tuple(shape) if type(shape).__name__ == "TensorShape" else shape
