"""The limit for the workspaces of a stage: how it reaches the op, and that results stay right."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_program import arguments, operation, program

import tf_interop
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.switch import make_settings

IMAGE = np.random.default_rng(0).integers(-2, 3, [2, 9, 9, 3]).astype(np.float32)
NO_MEMORY = "no memory for the workspaces of a stage"


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    tf_interop.enable()  # settings as they were at first, the limit too
    tf_interop.disable()


def make_branches(count: int = 4) -> tf.types.experimental.GenericFunction:
    """Convolutions of one image, which share a stage."""
    random = np.random.default_rng(1)
    filters = [random.integers(-2, 3, [3, 3, 3, 4]).astype(np.float32) for _ in range(count)]

    @tf.function
    def branches(image: tf.Tensor) -> list[tf.Tensor]:
        return [tf.nn.conv2d(image, each, 1, "SAME") for each in filters]

    return branches


def _fallbacks() -> dict[str, int]:
    counted = tf_interop.status().counters.fallbacks
    return {reason: count for reason, count in counted.items() if NO_MEMORY in reason}


def test_a_stage_over_the_limit_needs_less_and_gives_the_same() -> None:
    tf_interop.disable()
    expected = make_branches()(IMAGE)
    tf_interop.enable("always", workspace_limit_mb=0)
    branches = make_branches()
    before = _fallbacks()
    for result, own in zip(branches(IMAGE), expected, strict=True):
        np.testing.assert_array_equal(result, own)
    after = _fallbacks()
    [(reason, count)] = (after.items() - before.items()) or [("", 0)]
    assert "algorithms that need less" in reason
    assert count == before.get(reason, 0) + 1

    # Stages that were made before go by a new limit, too.
    tf_interop.enable("always")
    branches(IMAGE)
    assert _fallbacks() == after


def test_a_stage_over_the_limit_is_prepared_once(conv_stage: Any) -> None:
    plain = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    operands = ["inputs:0", "inputs:1"]
    operations = [
        operation(f"convolution_{i}", "Conv2D", operands, dtype=tf.float16, **plain)
        for i in range(8)
    ]
    image = tf.ones([2, 16, 16, 4], tf.float16)
    filter_ = tf.ones([3, 3, 4, 4], tf.float16)

    @tf.function(autograph=False)
    def stage(image: tf.Tensor) -> list[tf.Tensor]:
        document = program(operations, constant_inputs=[1])
        return conv_stage(**arguments([image, filter_], [], document))

    tf_interop.enable("always", workspace_limit_mb=1)
    before, transformed = _fallbacks(), tf_interop.status().counters.filters_transformed
    for _ in range(3):
        for result in stage(image):
            assert np.all(result[:, 1:-1, 1:-1] == 36)
    [(reason, count)] = _fallbacks().items() - before.items()
    assert reason.endswith("it ran on fewer lanes")
    assert count == before.get(reason, 0) + 3
    # What is kept of the lesser stage has its filters transformed once, as that of the plan has.
    assert tf_interop.status().counters.filters_transformed > transformed


def test_the_limit_is_part_of_the_settings() -> None:
    settings = make_settings("always", workspace_limit_mb=64)
    assert settings.workspace_limit_mb == 64
    tf_interop.enable("always", workspace_limit_mb=7)
    assert get_plugin().settings.workspace_limit_mb == 7
    callback = tf_interop.keras.ConvStages("always", workspace_limit_mb=5, verbose=0)
    model = tf.keras.Sequential([tf.keras.Input([9, 9, 3]), tf.keras.layers.Conv2D(2, 3)])
    with callback:
        callback.set_model(model)
        assert get_plugin().settings.workspace_limit_mb == 5
    assert get_plugin().settings.workspace_limit_mb == 7


def test_refuses_a_negative_limit() -> None:
    with pytest.raises(ValueError, match="workspace_limit_mb to be at least 0, got -1"):
        tf_interop.enable("always", workspace_limit_mb=-1)


PROGRAM = """
import tensorflow as tf, tf_interop, numpy as np
from tf_interop.runtime.plugin import get_plugin
print("limit", get_plugin().settings.workspace_limit_mb)
"""


def test_run_takes_the_limit(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "tf_interop", "run", "--policy", "always"]
    ran = subprocess.run(
        [*command, "--workspace-limit-mb", "3", script], capture_output=True, text=True, check=False
    )
    assert "limit 3" in ran.stdout, ran.stderr
