"""The checks of `tf-interop doctor` that need no TensorFlow."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator

from rich.filesize import decimal

from tf_interop.doctor.examine import Finding, ok, problem, warning
from tf_interop.errors import INSTALL_TENSORFLOW
from tf_interop.measure.core import CORE_LIBRARY_NAME, find_library_file, load_core_library
from tf_interop.measure.device import (
    QUEUES_VARIABLE,
    free_memory_bytes,
    has_nvidia_gpu,
    visible_gpus,
)

_PYTHONS = ((3, 10), (3, 13))
_SETUP = "Build it, in tf_interop's source folder: scripts/setup.sh"
# A stage has a workspace for every lane, and TensorFlow itself wants some hundreds of MB.
_LITTLE_MEMORY_BYTES = 1 << 30


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        return ok(version)
    return warning(
        f"{version}, for which TensorFlow 2.20 and 2.21 have no packages",
        "Use Python 3.10 to 3.13.",
    )


def _tensorflow_package() -> Finding:
    # The installed packages that bring TensorFlow; nothing is imported.
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
        yield warning(
            "none found: convolutions run on the CPU, as units and not as stages",
            "On a machine with a GPU install NVIDIA's driver; in a container pass the GPU in.",
        )
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
    return ok(version or "none, and none is needed without a GPU")


# Of environment variables that stand in the way: which values do, what they do, and the cure.
_SETTINGS = (
    (
        "TF_XLA_FLAGS",
        r"--tf_xla_auto_jit=(?!0|off)",
        "XLA compiles clusters of every graph, and leaves nothing in them to stages",
        "Remove --tf_xla_auto_jit from it.",
    ),
    (
        "TF_ENABLE_ONEDNN_OPTS",
        r"^0$",
        "TensorFlow's own convolutions on a CPU, which stages are compared with, are slower "
        "and round differently",
        "Unset it, unless you want that.",
    ),
    (
        QUEUES_VARIABLE,
        r"^(?!\s*0*(?:3[2-9]|[4-9]\d|[1-9]\d{2,})\s*$)",
        "CUDA has fewer than 32 hardware queues, and lanes that share one wait for each other",
        "Unset it: tf_interop asks for all of them if it is turned on before CUDA starts.",
    ),
    (
        "NVIDIA_TF32_OVERRIDE",
        r"^0$",
        "it turns TF32 off without TensorFlow's knowledge",
        "Unset it, and use tf.config.experimental.enable_tensor_float_32_execution(False) and "
        "--no-tf32; or also profile with it set.",
    ),
)


def _settings() -> Iterator[Finding]:
    for name, in_the_way, what, fix in _SETTINGS:
        value = os.environ.get(name)
        if value is None:
            yield ok("not set", name)
        elif re.search(in_the_way, value):
            yield warning(f"{value}: {what}", fix, name)
        else:
            yield ok(value, name)


CHECKS = {
    "Python": _python,
    "TensorFlow": _tensorflow_package,
    "measuring library": _core_library,
    "NVIDIA driver": _driver,
    "cuDNN": _cudnn,
    "settings": _settings,
}
