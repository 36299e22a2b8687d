import pathlib
import sys

import pytest
import tensorflow as tf

# The cases of the op's tests on the CPU are those of the GPU's.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))


@pytest.fixture(autouse=True)
def needs_gpu() -> None:
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("needs a GPU, TensorFlow sees none")
