"""Everything that depends on interfaces of TensorFlow that it does not promise to keep.

What a new version of TensorFlow may break is here and in `cc_kernels/plugin/tensorflow_registry.h`,
and nowhere else.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

from tf_interop.convolution import Shape


def tensorflow_version() -> str:
    """Version of the TensorFlow of this process, such as `2.21.0`."""
    import tensorflow as tf

    return str(tf.version.VERSION)


def load_op_library(path: str) -> None:
    """Loads a library of ops and kernels, as `tf.load_op_library`, which returns wrappers too."""
    import tensorflow as tf

    tf.load_library(path)


def op_def(op: str) -> Any:
    """The OpDef of an op type; None if TensorFlow knows no op of that name."""
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(op)


def is_stateful(op: str) -> bool | None:
    """Whether TensorFlow calls an op type stateful; None if it knows no op of that name."""
    found = op_def(op)
    return None if found is None else bool(found.is_stateful)


@functools.lru_cache(maxsize=1024)
def cpu_kernel_types(op: str) -> tuple[dict[str, frozenset[int]], ...]:
    """The dtypes that each kernel of an op type takes on a CPU, of kernels without a label.

    Returns:
        For each kernel the values that it allows for attributes that are types.
    """
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
    """The shape in a serialized `OpInfo.TensorProperties`, as Grappler's C API gives it.

    Returns:
        The shape with None for unknown dimensions, or None if the rank is unknown.
    """
    from tensorflow.core.grappler.costs import op_performance_data_pb2

    properties = op_performance_data_pb2.OpInfo.TensorProperties.FromString(serialized)
    if properties.shape.unknown_rank:
        return None
    # Grappler writes unknown dimensions as -1, and ones that are known to be equal below that.
    return tuple(dim.size if dim.size >= 0 else None for dim in properties.shape.dim)


def is_tf32_on() -> bool:
    """TensorFlow's switch for TF32, `tf.config.experimental.enable_tensor_float_32_execution`."""
    import tensorflow as tf

    return bool(tf.config.experimental.tensor_float_32_execution_enabled())


def is_op_determinism_on() -> bool:
    """Whether convolutions have to give the same bits every time.

    Either `tf.config.experimental.enable_op_determinism` was called, or `TF_CUDNN_DETERMINISTIC` is
    1 or true, which TensorFlow's own convolutions on GPUs heed.
    """
    from tensorflow.python.framework import config

    variable = os.environ.get("TF_CUDNN_DETERMINISTIC", "").lower()
    return variable in ("1", "true") or bool(config.is_op_determinism_enabled())


def may_have_gpus() -> bool:
    """Whether TensorFlow may show this process a GPU, without making it look for one.

    Returns:
        False if it was built without CUDA, or has listed its devices already and no GPU is
        visible. Listing them would settle, for the whole process, which ones it uses.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    if not tf.test.is_built_with_cuda():
        return False
    if context.context()._physical_devices is None:
        return True
    return bool(tf.config.get_visible_devices("GPU"))


def has_pluggable_gpu() -> bool:
    """Whether this process' GPUs are of a plugin and not of CUDA; asked while a graph is optimized.

    False if TensorFlow has not listed its devices, as with a Session alone.
    """
    from tensorflow.python.eager import context

    current = context.context_safe()
    devices = current and current._pluggable_devices
    return any(device.device_type == "GPU" for device in devices or ())


def plugin_optimizers_option() -> bool | None:
    """The option `use_plugin_optimizers` of `tf.config.optimizer`; None if it is not set."""
    import tensorflow as tf

    value = tf.config.optimizer.get_experimental_options().get("use_plugin_optimizers")
    return None if value is None else bool(value)


def set_plugin_optimizers_option(value: bool | None) -> None:
    """Sets `use_plugin_optimizers`, or makes it unset; functions are then optimized again."""
    import tensorflow as tf

    # TensorFlow passes over options that are None, though it does not document it.
    tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": value})


def call_before_graph_plugins(call: Callable[[str], None]) -> None:
    """Calls `call` with the path of each graph plugin that the program loads from now on.

    Those that are installed with TensorFlow were loaded when it was imported.
    """
    from tensorflow.python.framework import load_library

    load = load_library.load_pluggable_device_library

    def call_and_load(library_location: str) -> None:
        folder = pathlib.Path(library_location).absolute()
        for path in map(str, folder.iterdir()) if folder.is_dir() else [library_location]:
            # What cannot be loaded raises below, as without this.
            with contextlib.suppress(OSError):
                if hasattr(ctypes.CDLL(path), "TF_InitGraph"):
                    call(path)
        load(library_location)

    load_library.load_pluggable_device_library = call_and_load


def are_plugins_turned_off() -> bool:
    """Whether `use_plugin_optimizers` is set to False; asked while a graph is optimized.

    Unlike `plugin_optimizers_option` it takes no lock and lists no devices.
    """
    from tensorflow.python.eager import context

    current = context.context_safe()
    if current is None:
        return False
    return current._optimizer_experimental_options.get("use_plugin_optimizers") is False


def local_task() -> tuple[str, int]:
    """The job and the task, in names of devices, of this process's own devices."""
    from tensorflow.python.eager import context

    current = context.context_safe()
    server = current and (current._server_def or current._collective_ops_server_def)
    return (server.job_name, server.task_index) if server else ("localhost", 0)


def optimize_functions_anew() -> None:
    """Makes TensorFlow optimize every tf.function again when it is called next.

    It drops the kernels that eager execution keeps, as `tf.random.set_seed` does: random ops with a
    seed of their own start again.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    # Dropping them waits for functions that run asynchronously, and holds the interpreter, which
    # the pass may need. What fails in such a function is raised where its result is read.
    with contextlib.suppress(tf.errors.OpError):
        context.async_wait()
    context.context().clear_kernel_cache()


def is_auto_clustering_on() -> bool:
    """Whether `tf.config.optimizer.set_jit` is on.

    `tf.config.optimizer.get_jit` would list the devices, which settles which ones are used.
    """
    from tensorflow.python.eager import context

    current = context.context_safe()
    return current is not None and bool(current._optimizer_jit)


def function_names() -> list[str]:
    """Names of the functions that have been traced in this process and are still in use."""
    from tensorflow.python.eager import context

    current = context.context_safe()
    # Asking for them would make the context, and with it the devices.
    if current is None or current._context_handle is None:
        return []
    return sorted(current.list_function_names())


def function_def_of(name: str) -> Any | None:
    """The FunctionDef of that name; None if it is not in use any more."""
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
    """The nodes that a concrete function runs for: of its outputs, and those with side effects."""
    graph = function.graph
    return [tensor.op.name for tensor in graph.outputs] + [op.name for op in graph.control_outputs]


def variable_spec(handle: Any) -> Any:
    """The `tf.TensorSpec` of the variable that a resource tensor of a graph stands for.

    Returns:
        None if the tensor is no resource, or nothing is known of it.
    """
    import tensorflow as tf
    from tensorflow.python.ops import handle_data_util

    if handle.dtype != tf.resource:
        return None
    data = handle_data_util.get_resource_handle_data(handle)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    [value] = data.shape_and_type
    return tf.TensorSpec(tf.TensorShape(value.shape), tf.as_dtype(value.dtype))


def inline_function_calls(graph_def: Any, nodes_to_preserve: Iterable[str]) -> Any:
    """Inlines calls, and turns conditionals and loops into Switch and Merge, as done before a run.

    The new graph lacks `_output_shapes`: TensorFlow drops them on the way.

    Returns:
        A new GraphDef. Its library holds the functions that were not inlined, such as those that
        XLA compiles.

    Raises:
        tf.errors.OpError: the graph is not well-formed, or has an op that is not registered.
    """
    # Without a device of its own Grappler would open a session on the machine's GPUs.
    return _run_grappler(
        graph_def,
        nodes_to_preserve,
        [_named_device("CPU")],
        only_optimizer="function",
    )


def optimize_for_device(
    graph_def: Any, nodes_to_preserve: Iterable[str], compute_capability: str | None
) -> Any:
    """Runs Grappler's own passes as they run before a graph does, without running it.

    Args:
        graph_def: a GraphDef without function calls; its nodes' devices do not matter.
        nodes_to_preserve: names that have to stay.
        compute_capability: of the GPU that the graph is made for, such as `9.0`; none has to be
            here. None makes it for a CPU.

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
    """Runs Grappler's own passes, or one of them alone, for devices that need not be here."""
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
    from tensorflow.python.grappler import cluster as grappler_cluster
    from tensorflow.python.grappler import tf_optimizer

    meta_graph = meta_graph_pb2.MetaGraphDef()
    meta_graph.graph_def.CopyFrom(graph_def)
    # Grappler takes the members of this collection for what the graph is run for.
    meta_graph.collection_def["train_op"].node_list.value.extend(nodes_to_preserve)
    config = config_pb2.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.min_graph_nodes = -1
    if only_optimizer is not None:
        rewrites.optimizers.append(only_optimizer)
    # Of all passes one that fails is left out, as before a run: the layout optimizer fails where a
    # model drops out parts of an image.
    rewrites.fail_on_optimizer_errors = only_optimizer is not None
    rewrites.use_plugin_optimizers = rewriter_config_pb2.RewriterConfig.OFF
    cluster = grappler_cluster.Cluster(devices=devices)
    return tf_optimizer.OptimizeGraph(config, meta_graph, verbose=False, cluster=cluster)


def capture(eager_tensor: Any) -> Any:
    """What stands for an eager tensor in the function that is being traced."""
    import tensorflow as tf

    return tf.compat.v1.get_default_graph().capture(eager_tensor)
