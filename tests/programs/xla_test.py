"""The status lists the functions that XLA compiles, and says if it compiles all."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf
from unnoticed import IMAGE, branches, counted, run_python

import tf_interop
from tf_interop.graph.xla import XlaFunction, xla_auto_clustering

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


def compiled() -> list[XlaFunction]:
    """The functions in the status that call `branches`."""
    return [each for each in tf_interop.status().xla_functions if "branches" in each.name]


@pytest.mark.usefixtures("units_on_cpus")
def test_a_compiled_function_has_no_units_and_is_listed_while_it_lives() -> None:
    called = tf.function(branches, autograph=False)

    def branches_twice(image: tf.Tensor) -> tf.Tensor:
        return called(image) + called(image)

    function = tf.function(branches_twice, jit_compile=True, autograph=False)
    tf_interop.enable("always")
    of_other_tests = compiled()
    with counted() as new:
        np.testing.assert_array_equal(function(IMAGE), 2 * branches(IMAGE))
    assert new.stages_run == 0
    [listed] = set(compiled()) - set(of_other_tests)
    assert listed.convolution_count == 4
    line = f"compiled by XLA (jit_compile=True): {listed.name}, 4 convolutions"
    assert line in str(tf_interop.status())
    del function
    gc.collect()
    assert listed not in compiled()


def test_asking_for_the_status_or_for_gpus_makes_no_context() -> None:
    """The context would settle which devices TensorFlow uses."""
    run_python(
        """
    import tensorflow as tf
    from tensorflow.python.eager import context
    from tf_interop.tensorflow_internals import may_have_gpus
    from tf_interop.graph.xla import find_xla_functions, xla_auto_clustering
    assert find_xla_functions() == ()
    assert xla_auto_clustering() == ""
    assert may_have_gpus() == tf.test.is_built_with_cuda()
    assert context.context()._physical_devices is None
    tf.config.set_visible_devices([], "GPU")
    assert not may_have_gpus()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    """
    )


def test_reads_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    is_on = {
        **dict.fromkeys(["", "--tf_xla_auto_jit=0", "--tf_xla_auto_jit=-1"], False),
        **dict.fromkeys(["--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"], True),
        **dict.fromkeys(["--tf_xla_auto_jit=single-gpu(1)", "--tf_xla_auto_jit=fusible"], True),
        "--tf_xla_cpu_global_jit": False,
    }
    for flags, expected in is_on.items():
        monkeypatch.setenv("TF_XLA_FLAGS", flags)
        assert xla_auto_clustering() == ("TF_XLA_FLAGS" if expected else ""), flags


def test_warns_if_xla_is_on_for_all_graphs(logged: list[str]) -> None:
    tf_interop.enable("always")
    assert logged == []
    tf.config.optimizer.set_jit(True)
    try:
        tf_interop.enable("always")
        status = tf_interop.status()
    finally:
        tf.config.optimizer.set_jit(False)
    assert status.xla_auto_clustering == "tf.config.optimizer.set_jit"
    for text in (*logged, str(status)):
        assert "XLA is on for all graphs (tf.config.optimizer.set_jit)" in text
    assert len(logged) == 1
    assert tf_interop.status().xla_auto_clustering == ""
