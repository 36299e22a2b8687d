"""The compiled core, which needs no TensorFlow: finding it, loading it, opening a backend.

What goes through its C interface is read from the library's own header, which lies beside it.
"""

from __future__ import annotations

import functools
from typing import Any

from tf_interop.errors import LibraryError
from tf_interop.library_file import find_library_file
from tf_interop.measure.backend import Backend

CORE_LIBRARY_NAME = "libtf_interop_core.so"

# Of the interface in cc_kernels/core/c_api.h that this package was written for.
_VERSION = 2
_FIRST_MARK, _LAST_MARK = "// ---- Python reads from here", "// ---- Python reads to here"
_REBUILD = "Build it again, in tf_interop's source folder: scripts/setup.sh"


class CoreLibrary:
    """The loaded library. Use `load_core_library`, which loads it once.

    Attributes:
        ffi: makes the structs of the interface.
        functions: the functions of the interface.
    """

    def __init__(self, ffi: Any, functions: Any) -> None:
        self.ffi = ffi
        self.functions = functions

    def cudnn_version(self) -> str:
        """The version of libcudnn, such as `9.10.2`; empty where there is none. Uses no GPU."""
        version, sink = self.collect()
        self.functions.TfiCudnnVersion(sink)
        return version[0]

    def open_backend(self, name: str) -> Backend:
        """Opens a backend, the same one every time.

        Args:
            name: `host` or `cudnn`. The latter takes the first GPU; where cuDNN is not on the
                loader's path, TF_INTEROP_LIBCUDNN names libcudnn.so.9.

        Raises:
            LibraryError: there is no such backend, or no GPU, driver or cuDNN for it.
        """
        device = self.ffi.new("TfiDevice **")
        error, error_sink = self.collect()
        if self.functions.TfiOpen(name.encode(), device, error_sink):
            raise LibraryError(f"Expected backend '{name}' to open: {error[0]}")
        return Backend(self, name, device[0])

    def collect(self) -> tuple[list[str], Any]:
        """A list, and a sink of the library that puts strings into it while it lives."""
        collected: list[str] = []

        def take(text: Any, size: int) -> None:
            collected.append(bytes(self.ffi.unpack(text, size)).decode(errors="replace"))

        return collected, self.ffi.callback("TfiSink", take)


@functools.cache
def load_core_library() -> CoreLibrary:
    """Loads the library into this process, once.

    TF_INTEROP_CORE_LIBRARY names another file than the one that was installed with the package.

    Raises:
        LibraryError: it or its header is missing, it does not load, has another version of the
            interface, or this CPU lacks instructions that it was compiled for.
    """
    import cffi  # here, as most programs need none of it

    path = find_library_file(CORE_LIBRARY_NAME, "TF_INTEROP_CORE_LIBRARY")
    if path is None or not path.is_file():
        raise LibraryError(
            f"Expected the compiled library {path or CORE_LIBRARY_NAME}, found none. {_REBUILD}"
        )
    ffi = cffi.FFI()
    try:
        _, declarations = path.with_suffix(".h").read_text().split(_FIRST_MARK)
        # The mark's line goes on after the mark.
        ffi.cdef(declarations.split(_LAST_MARK)[0].partition("\n")[2])
        functions = ffi.dlopen(str(path))
        version = functions.TFI_CORE_VERSION
        is_supported = functions.TfiCpuIsSupported()
    except (OSError, ValueError, AttributeError, cffi.FFIError, cffi.CDefError) as error:
        raise LibraryError(f"{path} does not load: {error}. {_REBUILD}") from error
    if version != _VERSION:
        raise LibraryError(
            f"Expected version {_VERSION} of the interface of {path}, got {version}. {_REBUILD}"
        )
    if not is_supported:
        raise LibraryError(
            f"{path} was compiled for CPUs with AVX2 and FMA, which this CPU lacks. Build it with "
            "the CMake option TF_INTEROP_CPU_FLAGS empty."
        )
    return CoreLibrary(ffi, functions)
