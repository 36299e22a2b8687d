"""Functions that XLA compiles: their stages, and their place in the status.

Values are whole numbers, compared to the bit.
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from branched_models import build_normalized
from unnoticed import (
    FILTERS,
    IMAGE,
    assert_same,
    branches,
    conv,
    counted,
    digits,
    gradients,
    in_session,
    run_python,
    stages_run_by,
)

import tf_interop
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.landmarks import find_structure
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.graph.xla import XlaFunction, xla_auto_clustering
from tf_interop.model.graphs import planned_graph, trace
from tf_interop.planning.types import Plan
from tf_interop.runtime.graph_pass import change_compiled, read_compiled_body
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import GraphItem, Settings

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")

BIAS = np.float32([1, -2, 3, 0])


def compiled(program: Callable[..., Any], *signature: Any) -> Any:
    """A function that XLA compiles anew."""
    return tf.function(program, signature or None, jit_compile=True, autograph=False)


def biased(image: tf.Tensor, number: int) -> tf.Tensor:
    return tf.nn.relu(tf.nn.bias_add(conv(image, number), BIAS))


def modules(image: tf.Tensor) -> tf.Tensor:
    """Two modules with a bias and an activation, as BiasAdd and as Keras adds it."""
    first = biased(image, 0) + tf.nn.relu(conv(image, 1))
    return tf.nn.relu6(conv(first, 2) + tf.reshape(BIAS, [1, 1, 1, 4])) - biased(first, 3)


def loop(image: tf.Tensor) -> tf.Tensor:
    body = lambda i, x: (i + 1, branches(x))  # noqa: E731
    return tf.while_loop(lambda i, _: i < 3, body, (0, image), maximum_iterations=3)[1]


def cond(image: tf.Tensor) -> tf.Tensor:
    is_large = tf.reduce_sum(image) > 1e6
    return tf.cond(is_large, lambda: conv(image, 2), lambda: branches(image)) + branches(image)


def nested(image: tf.Tensor) -> tf.Tensor:
    inner = tf.function(branches, autograph=False)
    return inner(image) + conv(image, 2) - inner(conv(image, 3))


def in_bfloat16(image: tf.Tensor) -> tf.Tensor:
    filter_ = FILTERS[0].astype("bfloat16")
    return tf.nn.conv2d(tf.cast(image, tf.bfloat16), filter_, 1, "SAME")


def volumes(image: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv3d(image[None], FILTERS[0][None], [1] * 5, "SAME")


PROGRAMS: dict[str, tuple[Callable[[tf.Tensor], Any], int]] = {
    "gradients of epilogues": (gradients(modules), 4),
    "gradients of a loop": (gradients(loop), 6),
    "cond": (cond, 2),
    "nested functions": (nested, 3),
    "kinds": (lambda x: (in_bfloat16(x), volumes(x)), 1),  # both in one stage
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name: str) -> None:
    program, stages = PROGRAMS[name]
    expected = compiled(program)(IMAGE)
    tf_interop.enable("always")
    assert stages_run_by(lambda: compiled(program)(tf.constant(IMAGE)), expected) == stages
    assert tf_interop.status().failures == ()


def test_each_way_into_a_compiled_function(tmp_path: pathlib.Path) -> None:
    expected = branches(IMAGE)
    open_batch = tf.TensorSpec([None, *IMAGE.shape[1:]])
    module = tf.Module()
    module.function = compiled(branches, tf.TensorSpec(IMAGE.shape, name="image"))
    tf.saved_model.save(module, str(tmp_path), signatures=module.function)
    loaded = tf.saved_model.load(str(tmp_path))
    inner = compiled(branches)

    def in_a_session() -> Any:
        spec = tf.TensorSpec(IMAGE.shape, tf.float32)
        inside = compiled(branches, spec)
        return in_session(lambda session: session.run(inside(tf.constant(IMAGE))))()(IMAGE)

    def on_replicas() -> Any:
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
        return tf.function(lambda: strategy.run(inner, [tf.constant(IMAGE)]), autograph=False)()

    ways: dict[str, Callable[[], Any]] = {
        "again": lambda: inner(IMAGE),
        "concrete": lambda: inner.get_concrete_function(tf.constant(IMAGE))(tf.constant(IMAGE)),
        "under a tape": lambda: under_a_tape(inner),
        "in another function": lambda: tf.function(lambda: inner(IMAGE) + 0, autograph=False)(),
        "unknown batch": lambda: compiled(branches, open_batch)(IMAGE),
        "unknown shape": lambda: compiled(branches, tf.TensorSpec([None] * 4))(IMAGE),
        "saved function": lambda: loaded.function(tf.constant(IMAGE)),
        "saved signature": lambda: loaded.signatures["serving_default"](image=tf.constant(IMAGE)),
        "session": in_a_session,
        "replicas": on_replicas,
    }
    inner(IMAGE)
    tf_interop.enable("always")
    for way, call in ways.items():
        with counted() as new:
            assert_same(list(tf.nest.flatten(call()))[:1], [expected])
        assert new.stages_run, way
    assert tf_interop.status().failures == ()


def under_a_tape(function: Any) -> tf.Tensor:
    image = tf.constant(IMAGE)
    with tf.GradientTape() as tape:
        tape.watch(image)
        result = function(image)
    assert tape.gradient(result, image).shape == image.shape
    return result


def plan_of_first_stage(program: Callable[..., Any]) -> Plan:
    tf_interop.enable("always")
    compiled(program)(IMAGE)
    plan = tf_interop.status().plan
    [graph] = plan.graphs
    get_plugin().forget_reports()
    return Plan((dataclasses.replace(graph, stages=graph.stages[:1]),), plan.made_with)


def test_convolutions_outside_the_plans_stages_have_their_own() -> None:
    expected = compiled(modules)(IMAGE)
    plan = plan_of_first_stage(modules)
    [planned] = plan.graphs[0].stages
    tf_interop.enable(plan=plan)
    assert stages_run_by(lambda: compiled(modules)(IMAGE), expected) == 3
    [report] = tf_interop.status().graphs
    assert report.is_compiled
    first, *others = report.plan.stages
    assert first.nodes == planned.nodes
    assert [len(each.nodes) for each in others] == [1, 1]
    assert "CPU, XLA" in str(tf_interop.status())
    # Another function is left alone.
    assert stages_run_by(lambda: compiled(branches)(IMAGE), branches(IMAGE)) == 0
    [failure] = tf_interop.status().failures
    assert "--jit-compile" in failure.cause


def test_a_gpu_needs_no_plan() -> None:
    graph = tf.function(modules).get_concrete_function(tf.TensorSpec(IMAGE.shape)).graph
    item = GraphItem("GPU", ("Identity",), is_compiled=True)
    body = read_compiled_body(graph.as_graph_def(add_shapes=True), item)
    changed = change_compiled(body, item, Settings(captures_compiled=True)).graph_def
    assert changed is not None
    assert collections.Counter(node.op for node in changed.node)["TfInterop>ConvStage"] == 2
    assert not find_convolutions(GraphView(changed), GraphProperties(GraphView(changed)))[0]
    left = change_compiled(body, item, Settings())
    assert left.graph_def is None
    assert left.report is not None and left.report.why_unchanged


def test_batch_sizes_without_a_plan_and_empty_batches_are_xlas() -> None:
    plan = plan_of_first_stage(branches)
    [graph] = plan.graphs
    fixed = dataclasses.replace(graph, batch_size=2)
    other = dataclasses.replace(graph, batch_size=3)
    function = compiled(branches, tf.TensorSpec([None, *IMAGE.shape[1:]]))
    tf_interop.enable(plan=Plan((fixed, other), plan.made_with))
    for batch, stages in ((2, 1), (5, 0), (3, 1), (0, 0)):
        image = digits(0, batch, *IMAGE.shape[1:])
        assert stages_run_by(lambda image=image: function(image), branches(image)) == stages, batch
    assert tf_interop.status().xla_calls.translated_stages


def by_switch(is_on: bool) -> None:
    if is_on:
        tf_interop.enable("always")
    else:
        tf_interop.disable()


def by_option(is_on: bool) -> None:
    tf_interop.enable("always")
    tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": is_on})


@pytest.mark.parametrize("turn", [by_switch, by_option])
def test_turning_it_off_and_on_reaches_functions_that_ran(turn: Callable[[bool], None]) -> None:
    function = compiled(branches)
    outer = tf.function(lambda image: function(image) + 0, autograph=False)
    expected = function(IMAGE)
    before = tf_interop.status().xla_calls.stages
    for is_on in (False, True, False, True):
        turn(is_on)
        for called in (function, outer):
            assert stages_run_by(lambda called=called: called(IMAGE), expected) == is_on
    # Functions that call it share one program, and eager calls have another.
    also = tf.function(lambda image: function(image) - 0, autograph=False)
    assert stages_run_by(lambda: also(IMAGE), expected) == 1
    assert tf_interop.status().xla_calls.stages - before == 2
    assert not any("__tf_interop_" in each.name for each in tf_interop.status().xla_functions)


def test_variables_of_other_shapes_have_copies_of_their_own() -> None:
    """The shape of what is added decides whether it is a bias."""

    def add(image: tf.Tensor, handle: tf.Tensor) -> tf.Tensor:
        read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        return conv(image, 0) + read + conv(image, 1)

    spec = tf.TensorSpec(IMAGE.shape, tf.float32)
    function = compiled(add, spec, tf.TensorSpec([], tf.resource))
    variables = [tf.Variable(each) for each in (BIAS, np.float32(2), BIAS.reshape(1, 1, 1, 4))]
    expected = [add(tf.constant(IMAGE), each.handle) for each in variables]
    tf_interop.enable("always")
    for variable, each in zip(variables, expected, strict=True):
        call = lambda variable=variable: function(IMAGE, variable.handle)  # noqa: E731
        assert stages_run_by(call, each) == 1


def test_errors_are_xlas() -> None:
    unknown = tf.TensorSpec([None] * 4)
    function = compiled(lambda x, f: tf.nn.conv2d(x, f, 1, "SAME") + 0, unknown, unknown)
    for turn in (tf_interop.disable, lambda: tf_interop.enable("always")):
        turn()
        with pytest.raises(tf.errors.InvalidArgumentError, match="Depth of input must be a mult"):
            function(tf.ones(IMAGE.shape), tf.ones([3, 3, 3, 4]))


def test_keras_trains_and_predicts_with_stages_as_planned_with_jit_compile() -> None:
    def planned(training: bool) -> str:
        traced = trace(build_normalized(), batch_size=4, training=training, jit_compile=True)
        view = GraphView(planned_graph(traced, None))
        return find_structure(view, find_convolutions(view, GraphProperties(view))[0]).fingerprint

    def run() -> list[Any]:
        tf.keras.utils.set_random_seed(1)
        model = build_normalized()
        model.compile(tf.keras.optimizers.SGD(0.05), "mse", jit_compile=True)
        images = digits(2, 8, *model.input_shape[1:])
        labels = digits(3, 8, *model.output_shape[1:])
        history = model.fit(images, labels, batch_size=4, epochs=2, verbose=0, shuffle=False)
        return [history.history["loss"], model.predict(images, batch_size=4, verbose=0)]

    expected = run()
    tf_interop.enable("always")
    with counted() as new:
        assert_same(tf.nest.flatten(run()), tf.nest.flatten(expected), rtol=1e-4, atol=1e-6)
    assert new.stages_run > 10
    assert tf_interop.status().failures == ()
    inference, training = tf_interop.status().graphs
    assert inference.plan.fingerprint == planned(training=False)
    assert training.plan.fingerprint == planned(training=True)


def test_clusters_of_xlas_take_stages_and_depthwise_convolutions_in() -> None:
    run_python(
        """
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from unnoticed import IMAGE, conv, in_function, stages_run
    def clipped(image):
        # Ten more ops for a cluster.
        for _ in range(10):
            image = tf.clip_by_value(image * 3 - 1, -2, 2)
        return image
    def branches(image):
        image = clipped(image)
        return tf.nn.relu(conv(image, 0) + conv(image, 1)) * 2 - 1
    expected = branches(tf.constant(IMAGE))
    tf_interop.enable("always")
    result = in_function(branches)()(tf.constant(IMAGE))
    np.testing.assert_array_equal(result, expected)
    assert tf_interop.status().xla_calls.stages == 1, tf_interop.status().xla_calls
    assert stages_run() == 1
    def depthwise(image):
        return clipped(tf.nn.depthwise_conv2d(image, tf.ones([3, 3, 4, 1]), [1] * 4, "SAME"))
    tf_interop.enable(self_timing=False)
    result = in_function(depthwise)()(tf.constant(IMAGE))
    np.testing.assert_array_equal(result, depthwise(tf.constant(IMAGE)))
    assert tf_interop.status().xla_calls.run == 1, tf_interop.status().xla_calls
    """,
        TF_XLA_FLAGS="--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=2",
    )


@pytest.mark.slow
def test_xlas_persistent_cache_keeps_programs_with_stages(tmp_path: pathlib.Path) -> None:
    program = """
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from unnoticed import IMAGE, branches, stages_run
    expected = branches(tf.constant(IMAGE))
    tf_interop.enable("always")
    function = tf.function(branches, jit_compile=True, autograph=False)
    np.testing.assert_array_equal(function(tf.constant(IMAGE)), expected)
    assert stages_run() == 1
    """
    flags = f"--tf_xla_persistent_cache_directory={tmp_path}"
    cached = []
    for _ in range(2):
        run_python(program, TF_XLA_FLAGS=flags)
        cached.append(sorted(each.name for each in tmp_path.iterdir()))
    assert cached[0] == cached[1] != []


def listed_functions() -> list[XlaFunction]:
    """The functions in the status that call `branches`."""
    return [each for each in tf_interop.status().xla_functions if "branches" in each.name]


@pytest.mark.usefixtures("units_on_cpus")
def test_a_compiled_function_has_no_units_and_is_listed_while_it_lives() -> None:
    called = tf.function(branches, autograph=False)

    def branches_twice(image: tf.Tensor) -> tf.Tensor:
        return called(image) + called(image)

    function = compiled(branches_twice)
    tf_interop.enable("always")
    of_other_tests = listed_functions()
    with counted() as new:
        np.testing.assert_array_equal(function(IMAGE), 2 * branches(IMAGE))
    assert new.stages_run == 0
    [listed] = set(listed_functions()) - set(of_other_tests)
    assert listed.convolution_count == 4
    line = f"compiled by XLA (jit_compile=True): {listed.name}, 4 convolutions"
    assert line in str(tf_interop.status())
    del function
    gc.collect()
    assert listed not in listed_functions()


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
