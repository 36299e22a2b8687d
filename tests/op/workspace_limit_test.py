"""The limit for the workspaces of a stage: how it reaches the op, and that results stay right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_program import arguments, operation, program
from unnoticed import IMAGE, assert_same, conv, counted, in_function

import tf_interop
from tf_interop.runtime.plugin import get_plugin

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")

NO_MEMORY = "no memory for the workspaces of a stage"


def test_a_stage_over_the_limit_needs_less_and_gives_the_same() -> None:
    make_branches = in_function(lambda image: [conv(image, number) for number in range(4)])
    tf_interop.disable()
    expected = make_branches()(IMAGE)
    tf_interop.enable("always", workspace_limit_mb=0)
    branches = make_branches()
    with counted() as new:
        assert_same(branches(IMAGE), expected)
    [(reason, count)] = new.fallbacks.items()
    assert NO_MEMORY in reason
    assert "algorithms that need less" in reason
    assert count == 1

    # Stages that were made before go by a new limit, too.
    tf_interop.enable("always")
    with counted() as new:
        branches(IMAGE)
    assert new.fallbacks == {}


def test_a_stage_over_the_limit_is_prepared_once(conv_stage: Any) -> None:
    plain: Any = {"dtype": tf.float16, "strides": [1, 1, 1, 1], "padding": "SAME"}
    operands = ["inputs:0", "inputs:1"]
    document = program(
        [operation(f"convolution_{i}", "Conv2D", operands, **plain) for i in range(8)],
        held_inputs=[1],
    )
    filter_ = tf.ones([3, 3, 4, 4], tf.float16)

    @tf.function(autograph=False)
    def stage(image: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments([image, filter_], [], document))

    tf_interop.enable("always", workspace_limit_mb=1)
    with counted() as new:
        for _ in range(3):
            for result in stage(tf.ones([2, 60, 60, 4], tf.float16)):
                assert np.all(result[:, 1:-1, 1:-1] == 36)
    [(reason, count)] = new.fallbacks.items()
    assert NO_MEMORY in reason
    assert reason.endswith("it ran on fewer lanes")
    assert count == 3
    # What is kept of the lesser stage has its filters transformed once, as that of the plan has.
    assert new.filters_transformed > 0


def test_the_callback_sets_the_limit_for_its_call() -> None:
    tf_interop.enable("always", workspace_limit_mb=7)
    callback = tf_interop.keras.ConvStages("always", workspace_limit_mb=5, verbose=0)
    with callback:
        callback.set_model(tf.keras.Sequential([tf.keras.Input([9, 9, 3])]))
        assert get_plugin().settings.workspace_limit_mb == 5
    assert get_plugin().settings.workspace_limit_mb == 7
