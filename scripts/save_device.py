"""Writes the properties of the first GPU, as cuDNN 9.8 or newer reports them, to a file.

    python scripts/save_device.py OUT.json

With such a file cuDNN makes plans for that GPU on machines without it; tests/cc/devices/ has some.
TF_INTEROP_LIBCUDNN names another libcudnn.so.9 than Python's package or the loader's.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import sys
from collections.abc import Callable

# From cuDNN's cudnn_graph.h.
_DEVICE_PROPERTIES = 38
_DEVICE_ID, _JSON = 2700, 2702
_INT32, _CHAR = 23, 24


def open_cudnn() -> ctypes.CDLL:
    """Opens cuDNN; raises OSError if there is none."""
    named = os.environ.get("TF_INTEROP_LIBCUDNN")
    packages = (pathlib.Path(folder) / "nvidia/cudnn/lib/libcudnn.so.9" for folder in sys.path)
    installed = next((str(path) for path in packages if path.is_file()), "libcudnn.so.9")
    return ctypes.CDLL(named or installed)


def read_properties(cudnn: ctypes.CDLL) -> dict[str, object]:
    """The properties of the first GPU.

    Raises:
        RuntimeError: there is no GPU, or cuDNN is older than 9.8.
    """

    def call(function: Callable[..., int], *arguments: object) -> None:
        status = function(*arguments)
        if status != 0:
            raise RuntimeError(
                f"cuDNN {cudnn.cudnnGetVersion()} cannot describe a GPU: {function.__name__} "
                f"returned status {status}. This needs a GPU, its driver and cuDNN 9.8 or newer."
            )

    device, size = ctypes.c_void_p(), ctypes.c_int64()
    call(cudnn.cudnnBackendCreateDescriptor, _DEVICE_PROPERTIES, ctypes.byref(device))
    set_attribute, get_attribute = cudnn.cudnnBackendSetAttribute, cudnn.cudnnBackendGetAttribute
    first = ctypes.byref(ctypes.c_int32(0))
    call(set_attribute, device, _DEVICE_ID, _INT32, ctypes.c_int64(1), first)
    call(cudnn.cudnnBackendFinalize, device)
    asked = (get_attribute, device, _JSON, _CHAR)
    call(*asked, ctypes.c_int64(0), ctypes.byref(size), None)
    text = ctypes.create_string_buffer(size.value)
    call(*asked, size, ctypes.byref(size), text)
    properties: dict[str, object] = json.loads(text.value)
    return properties


if __name__ == "__main__":
    found = read_properties(open_cudnn())
    pathlib.Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
