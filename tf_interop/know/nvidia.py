"""What NVIDIA's management library says of this machine."""

from __future__ import annotations


def has_nvidia_gpu() -> bool:
    """Whether the machine has an NVIDIA GPU with a driver.

    Asks the driver through NVML. TensorFlow's own list of GPUs would settle, for the whole process,
    which of them it uses; a program may want to choose later.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    try:
        return bool(pynvml.nvmlDeviceGetCount() > 0)
    except pynvml.NVMLError:
        return False
    finally:
        pynvml.nvmlShutdown()
