"""The checks of `tf-interop doctor` that import TensorFlow, for a process of their own.

They load the plugin, list GPUs and run a graph, all of which settles things for a whole process.
"""

from __future__ import annotations

from collections.abc import Iterator

from tf_interop import tensorflow_internals
from tf_interop.doctor.examine import Finding, ok, problem, warning
from tf_interop.errors import LibraryError
from tf_interop.measure.core import find_library_file
from tf_interop.measure.device import visible_gpus
from tf_interop.runtime.kernel_library import (
    LIBRARY_NAME,
    REBUILD_COMMAND,
    check_tensorflow_version,
    read_build_info,
)

_REBUILD = f"In tf_interop's source folder: {REBUILD_COMMAND}"


def _import() -> Finding:
    import tensorflow as tf

    built = "with" if tf.test.is_built_with_cuda() else "without"
    return ok(f"{tf.version.VERSION}, built {built} CUDA")


def _library() -> Finding:
    path = find_library_file(LIBRARY_NAME)
    if path is None or not path.is_file():
        return problem(f"{path or LIBRARY_NAME} is missing", _REBUILD)
    try:
        info = read_build_info(path)
        check_tensorflow_version(info, tensorflow_internals.tensorflow_version())
    except LibraryError as error:
        return problem(str(error), _REBUILD)
    text = f"{path}, for TensorFlow {info.tensorflow}"
    if visible_gpus() and not info.cudnn_backend:
        return problem(f"{text}, without the cudnn backend", _REBUILD)
    return ok(text)


def _plugin() -> Iterator[Finding]:
    from tf_interop.runtime.plugin import get_plugin

    try:
        plugin = get_plugin()
    except LibraryError as error:
        yield problem(str(error), _REBUILD)
        return
    for device_type in plugin.device_types:
        yield ok("registered", f"plugin for {device_type}")
    for device_type, reason in plugin.refused_device_types.items():
        if device_type == "GPU" and not visible_gpus():
            yield ok(f"none, and there is no GPU: {reason}", "plugin for GPU")
        else:
            yield problem(
                reason,
                "TensorFlow takes one graph plugin for each device type: use a process or an "
                "environment without the other.",
                f"plugin for {device_type}",
            )


def _keras() -> Iterator[Finding]:
    import tensorflow as tf

    from tf_interop.tensorflow_internals import resolves_auto_to_xla

    backend = tf.keras.backend.backend() if hasattr(tf.keras.backend, "backend") else "tensorflow"
    version = getattr(tf.keras, "__version__", "")
    if backend != "tensorflow":
        yield problem(
            f"{version} with the backend {backend}, which makes no TensorFlow graphs",
            "KERAS_BACKEND=tensorflow",
        )
        return
    yield ok(version)
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    if resolves_auto_to_xla(model):
        yield warning(
            'jit_compile="auto" compiles models with XLA here, and XLA leaves nothing to stages',
            "Compile models with jit_compile=False, or use tf_interop.keras.ConvStages.",
            "Keras and XLA",
        )
    else:
        yield ok('jit_compile="auto" does not compile with XLA here', "Keras and XLA")


def _gpus() -> Finding:
    import tensorflow as tf

    seen = len(tf.config.list_physical_devices("GPU"))
    there = len(visible_gpus())
    if there and not seen:
        return problem(
            f"none, and the driver has {there}",
            "pip install 'tensorflow[and-cuda]==2.21.*'; TF_CPP_MIN_LOG_LEVEL=0 python -c 'import "
            'tensorflow as tf; tf.config.list_physical_devices("GPU")\' names the missing library.',
        )
    return ok(str(seen) if seen else "none, as the driver says")


def _convolutions() -> Finding:
    """Runs two convolutions without the plugin, and as a stage or as units."""
    import numpy as np
    import tensorflow as tf

    import tf_interop

    image = tf.random.stateless_normal([1, 8, 8, 4], [1, 2])
    filters = [tf.random.stateless_normal([side, side, 4, 4], [3, side]) for side in (1, 3)]

    def run() -> np.ndarray:
        @tf.function(jit_compile=False)  # type: ignore[untyped-decorator]
        def branches(x: tf.Tensor) -> tf.Tensor:
            return tf.concat([tf.nn.conv2d(x, each, 1, "SAME") for each in filters], -1)

        return np.asarray(branches(image))

    tf_interop.disable()
    expected = run()
    tf_interop.enable(policy="always")
    got = run()
    status = tf_interop.status()
    if not status.counters.stages_run and not status.unit_node_count:
        causes = [failure.cause for failure in status.failures] or ["stay unchanged"]
        return problem("; ".join(causes), _REBUILD)
    # Rounding, TF32 among it: sums of 36 products of values near 1.
    if not np.allclose(got, expected, rtol=0, atol=0.05):
        error = float(np.abs(got - expected).max())
        return problem(f"give other results than TensorFlow, off by {error:.3g}", _REBUILD)
    form = "units" if status.unit_node_count else "a stage"
    where = "a GPU" if tf.config.list_physical_devices("GPU") else "the CPU"
    return ok(f"run as {form} on {where} with TensorFlow's results")


CHECKS = {
    "TensorFlow imports": _import,
    "compiled library": _library,
    "plugin": _plugin,
    "Keras": _keras,
    "TensorFlow's GPUs": _gpus,
    "two convolutions": _convolutions,
}
