"""The checks of `tf-interop doctor` that need no TensorFlow."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator

from rich.filesize import decimal

from tf_interop.doctor.finding import Check, Finding, ok, problem, warning
from tf_interop.library_file import find_library_file
from tf_interop.measure.core_library import CORE_LIBRARY_NAME, load_core_library
from tf_interop.measure.nvidia import free_memory_bytes, has_nvidia_gpu, visible_gpus

_PYTHONS = ((3, 10), (3, 13))
_INSTALL_TENSORFLOW = (
    "pip install 'tensorflow==2.21.*' (with a GPU: 'tensorflow[and-cuda]==2.21.*')"
)
_SETUP = "Build it, in tf_interop's source folder: scripts/setup.sh"
# A stage has a workspace for every lane, and TensorFlow itself wants some hundreds of MB.
_LITTLE_MEMORY_BYTES = 1 << 30


def tensorflow_distributions() -> dict[str, str]:
    """The installed packages that bring TensorFlow, with their versions; nothing is imported."""
    found = {}
    for name in importlib.metadata.packages_distributions().get("tensorflow", []):
        if name.startswith(("tensorflow", "tf")):
            found[name] = importlib.metadata.version(name)
    return found


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if not _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        yield warning(
            "Python",
            f"{version}, which TensorFlow 2.20 and 2.21 have no packages for",
            "Use Python 3.10 to 3.13.",
        )
    else:
        yield ok("Python", version)


def _tensorflow_package() -> Iterator[Finding]:
    found = tensorflow_distributions()
    listed = ", ".join(f"{name} {version}" for name, version in found.items())
    if not found:
        yield problem(
            "TensorFlow",
            "not installed: only profile of a saved list, plan explain and report work without",
            _INSTALL_TENSORFLOW,
        )
    elif len(set(found.values())) > 1:
        yield problem("TensorFlow", f"several versions: {listed}", "Uninstall all but one.")
    else:
        yield ok("TensorFlow", listed)


def _core_library() -> Iterator[Finding]:
    path = find_library_file(CORE_LIBRARY_NAME, "TF_INTEROP_CORE_LIBRARY")
    try:
        load_core_library()
    except Exception as error:
        yield problem("measuring library", str(error), _SETUP)
    else:
        yield ok("measuring library", str(path))


def _driver() -> Iterator[Finding]:
    if not has_nvidia_gpu():
        yield warning(
            "NVIDIA driver",
            "none answers: stages run on the CPU, which shows how they work and gains nothing",
            "On a machine with a GPU install NVIDIA's driver, and in a container pass the GPU in.",
        )
        return
    gpus = visible_gpus()
    if not gpus:
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        yield problem(
            "GPU",
            f"CUDA_VISIBLE_DEVICES={chosen!r} hides every GPU",
            "Unset it, or name a GPU of nvidia-smi -L.",
        )
        return
    yield ok("NVIDIA driver", f"{gpus[0].driver}, for CUDA up to {gpus[0].cuda or 'unknown'}")
    for number, gpu in enumerate(gpus):
        words = [gpu.name, f"compute capability {gpu.compute_capability or 'unknown'}"]
        words += [f"{gpu.sm_count} SMs"] if gpu.sm_count else []
        words += [decimal(gpu.memory_bytes)] if gpu.memory_bytes else []
        yield ok(f"GPU {number}", ", ".join(words))
    yield from _free_memory()


def _free_memory() -> Iterator[Finding]:
    free = free_memory_bytes()
    if free is None:
        yield warning(
            "free memory",
            "the driver does not tell",
            "Give tf-interop plan the memory that there is, with --memory.",
        )
    elif free < _LITTLE_MEMORY_BYTES:
        yield warning(
            "free memory",
            f"{decimal(free)} on GPU 0",
            "End what else uses the GPU: nvidia-smi lists it.",
        )
    else:
        yield ok("free memory", f"{decimal(free)} on GPU 0")


def _cudnn() -> Iterator[Finding]:
    version = load_core_library().cudnn_version()
    if version:
        yield ok("cuDNN", version)
    elif has_nvidia_gpu():
        yield problem(
            "cuDNN",
            "libcudnn.so.9 was not found",
            "pip install 'tensorflow[and-cuda]', or set TF_INTEROP_LIBCUDNN to its path.",
        )
    else:
        yield ok("cuDNN", "none, and without a GPU none is needed")


def _xla_flags() -> Iterator[Finding]:
    flags = os.environ.get("TF_XLA_FLAGS", "")
    clustering = re.search(r"--tf_xla_auto_jit=(\S+)", flags)
    if clustering and clustering[1].strip("\"'") not in ("0", "off"):
        yield warning(
            "TF_XLA_FLAGS",
            f"{flags}: XLA compiles clusters of every graph, and leaves nothing in them to stages",
            "Take --tf_xla_auto_jit out of it.",
        )
    else:
        yield ok("TF_XLA_FLAGS", flags or "not set")


def _onednn() -> Iterator[Finding]:
    value = os.environ.get("TF_ENABLE_ONEDNN_OPTS")
    if value == "0":
        yield warning(
            "oneDNN",
            "off by TF_ENABLE_ONEDNN_OPTS=0: on a CPU TensorFlow's own convolutions, which stages "
            "are compared with, are slower and round otherwise",
            "Unset it, unless that is wanted.",
        )
    else:
        by = "TensorFlow's default" if value is None else f"TF_ENABLE_ONEDNN_OPTS={value}"
        yield ok("oneDNN", by)


def _workspace_limit() -> Iterator[Finding]:
    name = "TF_CUDNN_WORKSPACE_LIMIT_IN_MB"
    value = os.environ.get(name)
    if value is None:
        yield ok("workspace limit", f"TensorFlow's default ({name} is not set)")
    elif not value.strip().isdecimal() or not int(value):
        yield warning(
            "workspace limit",
            f"{name}={value!r} is no number of megabytes",
            "Set it to one such as 4096, or unset it.",
        )
    else:
        yield ok("workspace limit", f"{value} MB by {name}; algorithms that need more fall back")


def _tf32_override() -> Iterator[Finding]:
    value = os.environ.get("NVIDIA_TF32_OVERRIDE")
    if value == "0":
        yield warning(
            "TF32",
            "NVIDIA_TF32_OVERRIDE=0 turns it off below TensorFlow, which does not know of it",
            "Unset it, and use tf.config.experimental.enable_tensor_float_32_execution(False) and "
            "--no-tf32; or profile under it, too.",
        )
    else:
        yield ok("TF32", "by TensorFlow's switch")


CHECKS = (
    Check("Python", _python),
    Check("TensorFlow", _tensorflow_package),
    Check("measuring library", _core_library),
    Check("NVIDIA driver", _driver),
    Check("cuDNN", _cudnn),
    Check("TF_XLA_FLAGS", _xla_flags),
    Check("oneDNN", _onednn),
    Check("workspace limit", _workspace_limit),
    Check("TF32", _tf32_override),
)
