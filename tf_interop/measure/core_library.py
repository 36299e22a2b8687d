"""The compiled core, which needs no TensorFlow: finding it, loading it, opening a backend."""

from __future__ import annotations

import ctypes
import functools
import pathlib

from tf_interop.errors import LibraryError
from tf_interop.library_file import find_library_file
from tf_interop.measure.core_arguments import CollectedStrings
from tf_interop.measure.core_backend import MeasuringBackend
from tf_interop.measure.core_interface import INTERFACE_VERSION, declare_functions

CORE_LIBRARY_NAME = "libtf_interop_core.so"

_REBUILD = "Build it again, in tf_interop's source folder: scripts/setup.sh"


class CoreLibrary:
    """The loaded library. Use `load_core_library`, which loads it once."""

    def __init__(self, path: pathlib.Path, functions: ctypes.CDLL) -> None:
        self.path = path
        self._functions = functions
        declare_functions(functions)

    def cudnn_version(self) -> str:
        """The version of libcudnn, such as `9.10.2`; empty where there is none. Uses no GPU."""
        version = CollectedStrings()
        self._functions.TfiCoreCudnnVersion(version.sink)
        return version.only

    def open_backend(self, name: str) -> MeasuringBackend:
        """Opens a backend, the same one every time.

        Args:
            name: `host` or `cudnn`. The latter takes the first GPU; where cuDNN is not on the
                loader's path, TF_INTEROP_LIBCUDNN names libcudnn.so.9.

        Raises:
            LibraryError: there is no such backend, or no GPU, driver or cuDNN for it.
        """
        device = ctypes.c_void_p()
        error = CollectedStrings()
        if self._functions.TfiCoreOpen(name.encode(), ctypes.byref(device), error.sink):
            raise LibraryError(f"Expected backend '{name}' to open: {error.only}")
        return MeasuringBackend(self._functions, name, device)


def find_core_library() -> pathlib.Path | None:
    """The library's file, or None where it has not been built.

    TF_INTEROP_CORE_LIBRARY names another file than the one that was installed with the package.
    """
    return find_library_file(CORE_LIBRARY_NAME, "TF_INTEROP_CORE_LIBRARY")


@functools.cache
def load_core_library() -> CoreLibrary:
    """Loads the library into this process, once.

    Raises:
        LibraryError: it is missing, does not load, has another version of the interface, or this
            CPU lacks instructions that it was compiled for.
    """
    path = find_core_library()
    if path is None or not path.is_file():
        raise LibraryError(
            f"Expected the compiled library {path or CORE_LIBRARY_NAME}, found none. {_REBUILD}"
        )
    try:
        functions = ctypes.CDLL(str(path))
        is_supported = bool(functions.TfiCoreCpuIsSupported())
        version = int(functions.TfiCoreVersion())
    except (OSError, AttributeError) as error:
        raise LibraryError(f"{path} does not load: {error}. {_REBUILD}") from error
    if not is_supported:
        raise LibraryError(
            f"{path} was compiled for CPUs with AVX2 and FMA, which this CPU lacks. Build it with "
            "the CMake option TF_INTEROP_CPU_FLAGS empty."
        )
    if version != INTERFACE_VERSION:
        raise LibraryError(
            f"Expected version {INTERFACE_VERSION} of the interface of {path}, got {version}. "
            f"{_REBUILD}"
        )
    return CoreLibrary(path, functions)
