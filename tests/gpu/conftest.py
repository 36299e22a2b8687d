import pytest
import tensorflow as tf


@pytest.fixture(autouse=True)
def needs_gpu() -> None:
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("needs a GPU, TensorFlow sees none")
