"""The checks of `tf-interop doctor`, and the process that runs a group of them.

Checks open libraries, load the plugin and run a graph, which affects the rest of their process. A
check that ends its process, as a library built for another version may, is a finding too. So the
process writes each finding to a file at once.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import importlib.metadata
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator

import msgspec
from rich.filesize import decimal

from tf_interop import tensorflow_internals
from tf_interop.errors import INSTALL_TENSORFLOW, LibraryError
from tf_interop.measure.core import CORE_LIBRARY_NAME, find_library_file, load_core_library
from tf_interop.measure.device import (
    QUEUES_VARIABLE,
    free_memory_bytes,
    hardware_queues,
    has_nvidia_gpu,
    visible_gpus,
)
from tf_interop.runtime.kernel_library import (
    LIBRARY_NAME,
    REBUILD_COMMAND,
    read_build_info,
)
from tf_interop.tensorflow_internals import ONEDNN_VARIABLE

_PYTHONS = ((3, 10), (3, 13))
_SETUP = "Build it, in tf_interop's source folder: scripts/setup.sh"
_REBUILD = f"In tf_interop's source folder: {REBUILD_COMMAND}"
_REPORT_IT = "If the message does not help, report it with the output of tf-interop doctor --json."
# A stage has a workspace for each lane, and TensorFlow itself needs a few hundred MB.
_LITTLE_MEMORY_BYTES = 1 << 30
_PCI_DEVICES = pathlib.Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"  # as a vendor of PCI devices


class Level(enum.Enum):
    """How bad a finding is. A warning is for something that works, but not as expected."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check of `name`, with a `fix` unless all is well."""

    name: str
    level: Level
    text: str
    fix: str = ""


def ok(text: str, name: str = "") -> Finding:
    """A finding that all is well. Without a `name` it gets the check's name."""
    return Finding(name, Level.OK, text)


def warning(text: str, fix: str, name: str = "") -> Finding:
    """A finding that something is not as expected."""
    return Finding(name, Level.WARNING, text, fix)


def problem(text: str, fix: str = _REPORT_IT, name: str = "") -> Finding:
    """A finding that something does not work."""
    return Finding(name, Level.PROBLEM, text, fix)


Check = Callable[[], Finding | Iterator[Finding]]


def run_check(name: str, check: Check) -> Iterator[Finding]:
    """The findings of a check; an exception is a finding too."""
    try:
        found = check()
        for finding in found if isinstance(found, Iterator) else [found]:
            yield dataclasses.replace(finding, name=finding.name or name)
    except Exception as error:
        yield problem(f"{type(error).__name__}: {error}", name=name)


def _write_findings(request: pathlib.Path, result: pathlib.Path) -> None:
    """Runs a group of a module's `CHECKS` in this process."""
    module, group = msgspec.json.decode(request.read_bytes())
    checks = importlib.import_module(module).CHECKS[group]
    with result.open("wb", buffering=0) as file:
        for name, check in checks.items():
            # The name of the check that runs next; null after the last one.
            file.write(msgspec.json.encode(name) + b"\n")
            for finding in run_check(name, check):
                file.write(msgspec.json.encode(finding) + b"\n")
        file.write(b"null\n")


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        return ok(version)
    return warning(
        f"{version}, for which TensorFlow 2.20 and 2.21 have no packages",
        "Use Python 3.10 to 3.13.",
    )


def _tensorflow_package() -> Finding:
    # Finds the installed packages that provide TensorFlow, without importing it.
    found = {
        name: importlib.metadata.version(name)
        for name in importlib.metadata.packages_distributions().get("tensorflow", [])
        if name.startswith(("tensorflow", "tf"))
    }
    listed = ", ".join(f"{name} {version}" for name, version in found.items())
    if not found:
        return problem(
            "not installed; without it only show, report and profile of a saved list work",
            INSTALL_TENSORFLOW,
        )
    if len(set(found.values())) > 1:
        return problem(f"several versions: {listed}", "Uninstall all but one.")
    return ok(listed)


def _core_library() -> Finding:
    path = find_library_file(CORE_LIBRARY_NAME)
    try:
        load_core_library()
    except Exception as error:
        return problem(str(error), _SETUP)
    return ok(str(path))


def _driver() -> Iterator[Finding]:
    if not has_nvidia_gpu():
        if any(path.read_text().strip() == _NVIDIA for path in _PCI_DEVICES.glob("*/vendor")):
            remedy = "Install NVIDIA's driver; in a container, pass it the GPU."
            yield warning("none found, so the NVIDIA GPU is not used", remedy)
        else:
            yield ok("not needed: there is no NVIDIA GPU, and CPUs get units")
        return
    gpus = visible_gpus()
    if not gpus:
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        yield problem(
            f"CUDA_VISIBLE_DEVICES={chosen!r} hides every GPU",
            "Unset it, or name a GPU that nvidia-smi -L lists.",
            "GPU",
        )
        return
    yield ok(f"{gpus[0].driver}, for CUDA up to {gpus[0].cuda or 'unknown'}")
    for number, gpu in enumerate(gpus):
        words = [gpu.name, f"compute capability {gpu.compute_capability or 'unknown'}"]
        words += [f"{gpu.sm_count} SMs"] if gpu.sm_count else []
        words += [decimal(gpu.memory_bytes)] if gpu.memory_bytes else []
        yield ok(", ".join(words), f"GPU {number}")
    free, name = free_memory_bytes(), "free memory"
    if free is None:
        remedy = "Pass the memory to tf-interop plan with --memory."
        yield warning("the driver does not report it", remedy, name)
    elif free < _LITTLE_MEMORY_BYTES:
        remedy = "End other programs on the GPU: nvidia-smi lists them."
        yield warning(f"{decimal(free)} on GPU 0", remedy, name)
    else:
        yield ok(f"{decimal(free)} on GPU 0", name)


def _cudnn() -> Finding:
    version = load_core_library().cudnn_version()
    if not version and has_nvidia_gpu():
        return problem(
            "libcudnn.so.9 was not found",
            "pip install 'tensorflow[and-cuda]', or set TF_INTEROP_LIBCUDNN to its path.",
        )
    return ok(version or "none; it is not needed without a GPU")


# A variable, whether its value is troublesome, the effect, and the fix.
_SETTINGS: tuple[tuple[str, Callable[[str], object], str, str], ...] = (
    (
        "TF_XLA_FLAGS",
        lambda value: re.search("--tf_xla_auto_jit=(?!0|off)", value),
        "XLA compiles clusters of every graph, and leaves nothing in them for stages",
        "Remove --tf_xla_auto_jit from it.",
    ),
    (
        ONEDNN_VARIABLE,
        lambda value: value == "0",
        "TensorFlow's own convolutions on a CPU, the baseline, are slower and round differently",
        "Unset it, unless you want that.",
    ),
    (
        QUEUES_VARIABLE,
        lambda _: hardware_queues() < 32,
        "CUDA has fewer than 32 hardware queues, and lanes that share one wait for each other",
        "Unset it: tf_interop requests all of them if it is turned on before CUDA starts.",
    ),
    (
        "NVIDIA_TF32_OVERRIDE",
        lambda value: value == "0",
        "it turns TF32 off without TensorFlow's knowledge",
        "Unset it, and use tf.config.experimental.enable_tensor_float_32_execution(False) and "
        "--no-tf32; or also profile with it set.",
    ),
)


def _settings() -> Iterator[Finding]:
    for name, is_troublesome, what, fix in _SETTINGS:
        value = os.environ.get(name)
        if value is None:
            yield ok("not set", name)
        elif is_troublesome(value):
            yield warning(f"{value}: {what}", fix, name)
        else:
            yield ok(value, name)


def _tensorflow_imports() -> Finding:
    import tensorflow as tf

    built = "with" if tf.test.is_built_with_cuda() else "without"
    return ok(f"{tf.version.VERSION}, built {built} CUDA")


def _onednn() -> Finding:
    if tensorflow_internals.is_onednn_on():
        return ok("on")
    if os.environ.get(ONEDNN_VARIABLE) == "0":
        return ok(f"off, because of {ONEDNN_VARIABLE}")
    return warning(
        "TensorFlow leaves it off on this CPU, which has no instructions for neural networks",
        f"Set {ONEDNN_VARIABLE}=1 before Python starts, and measure: tf_interop may gain more, "
        "though TensorFlow alone may be slower. Results round differently.",
    )


def _library() -> Finding:
    path = find_library_file(LIBRARY_NAME)
    if path is None or not path.is_file():
        return problem(f"{path or LIBRARY_NAME} is missing", _REBUILD)
    try:
        info = read_build_info(path)
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
            yield ok(f"none: {reason}", "plugin for GPU")
        else:
            yield problem(
                reason,
                "TensorFlow accepts one graph plugin for each device type: use a process or an "
                "environment without the other plugin.",
                f"plugin for {device_type}",
            )


def _keras() -> Iterator[Finding]:
    import tensorflow as tf

    backend = tf.keras.backend.backend() if hasattr(tf.keras.backend, "backend") else "tensorflow"
    version = getattr(tf.keras, "__version__", "")
    if backend != "tensorflow":
        yield problem(
            f"{version} with the backend {backend}, which makes no TensorFlow graphs",
            "Set KERAS_BACKEND=tensorflow.",
        )
        return
    yield ok(version)
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    if tensorflow_internals.resolves_auto_to_xla(model):
        yield warning(
            'jit_compile="auto" compiles models with XLA here, and these need plans of their own',
            "Leave it so, because XLA may be much faster. To try stages, profile and plan with "
            "--jit-compile.",
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
            f"none, but the driver has {there}",
            "pip install 'tensorflow[and-cuda]==2.21.*'; TF_CPP_MIN_LOG_LEVEL=0 python -c 'import "
            'tensorflow as tf; tf.config.list_physical_devices("GPU")\' names the missing library.',
        )
    return ok(str(seen) if seen else "none; the driver has none either")


def _convolutions() -> Finding:
    """Compares two convolutions without the plugin, and as a stage or as units."""
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
    has_stages = any(report.plan.stages for report in status.graphs)
    if not (status.counters.stages_run if has_stages else status.op_count):
        causes = [failure.cause for failure in status.failures] or ["the pass did not change them"]
        return problem("; ".join(causes), _REBUILD)
    # Sums of 36 products of values near 1 are rounded, possibly to TF32.
    if not np.allclose(got, expected, rtol=0, atol=0.05):
        error = float(np.abs(got - expected).max())
        return problem(f"their results differ from TensorFlow's by {error:.3g}", _REBUILD)
    form = "a stage" if has_stages else "units"
    where = "a GPU" if tf.config.list_physical_devices("GPU") else "the CPU"
    return ok(f"run as {form} on {where} with TensorFlow's results")


CHECKS: dict[str, dict[str, Check]] = {
    "machine": {
        "Python": _python,
        "TensorFlow": _tensorflow_package,
        "measuring library": _core_library,
        "NVIDIA driver": _driver,
        "cuDNN": _cudnn,
        "settings": _settings,
    },
    # In another process, so that TensorFlow does not use a cuDNN that the checks above loaded.
    "TensorFlow": {
        "TensorFlow imports": _tensorflow_imports,
        "compiled library": _library,
        "plugin": _plugin,
        "oneDNN on CPUs": _onednn,
        "Keras": _keras,
        "TensorFlow's GPUs": _gpus,
        "two convolutions": _convolutions,
    },
}

if __name__ == "__main__":
    _write_findings(*map(pathlib.Path, sys.argv[1:]))
