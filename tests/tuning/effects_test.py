"""What tune refuses to run."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import tensorflow as tf

import tf_interop


def test_a_graphdef_that_does_more_than_compute_is_refused(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "written")

    def write(x: tf.Tensor) -> tf.Tensor:
        tf.io.write_file(path, "text")
        return x

    def harmless(x: tf.Tensor) -> Any:
        x = tf.nn.conv2d(x, tf.ones([1, 1, 3, 2]), 1, "SAME")
        return x + tf.random.uniform([])

    def in_branch(x: tf.Tensor) -> Any:
        return harmless(tf.cond(tf.reduce_sum(x) > 0, lambda: write(x), lambda: x))

    options: Any = {"budget": 0.1, "compare_xla": False, "use_cache": False, "enable": False}
    for program in (lambda x: harmless(write(x)), in_branch):
        function = tf.function(program, autograph=False)
        graph_def = function.get_concrete_function(tf.TensorSpec([1, 8, 8, 3])).graph.as_graph_def()
        with pytest.raises(ValueError, match=r"\(WriteFile\)\. tune would run them"):
            tf_interop.tune(graph_def, **options)
    function = tf.function(harmless, autograph=False)
    graph_def = function.get_concrete_function(tf.TensorSpec([1, 8, 8, 3])).graph.as_graph_def()
    assert tf_interop.tune(graph_def, **options).graphs
    assert not pathlib.Path(path).exists()
