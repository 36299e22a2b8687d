"""Steps are timed as programs run them, in turns."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tuning_graphs import branches, training_step

from tf_interop.graph.program import UNIT_OP
from tf_interop.model.graphs import trace
from tf_interop.planning.types import OURS, STOCK
from tf_interop.runtime import known_calls, packed_calls
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.switch import disable
from tf_interop.tuning import compare, timed_steps
from tf_interop.tuning.timed_steps import Timed, Variant, measure


def measured(graph_def: graph_pb2.GraphDef, **options: float) -> Timed:
    try:
        return measure(compare._work_of(trace(graph_def), **{"timed_s": 0.1, **options}))
    finally:
        disable()


@pytest.mark.usefixtures("plugin_as_after_import", "units_on_cpus")
@pytest.mark.parametrize("graph_def", [branches(), training_step()], ids=["inference", "training"])
def test_the_changed_graph_is_timed_once_it_has_found_its_way(
    graph_def: graph_pb2.GraphDef,
) -> None:
    seen: list[set[str]] = []
    with get_plugin().observe(lambda graph, _: seen.append({node.op for node in graph.node})):
        found = measured(graph_def, trying_s=20.0)
    assert [each.name for each in found.compared] == [STOCK, OURS]
    [name] = {report.timed_graph for report in get_plugin().reports}
    timings = get_plugin().library.read_self_timings()
    [tried] = [each.tried for each in timings if each.name == name]
    assert found.way in [each.way for each in tried]  # it may have found another since
    # Stock TensorFlow's graph, and then the changed one.
    assert [UNIT_OP in ops for ops in seen if ops] == [False, False, True]
    is_training = graph_def == training_step()
    assert all(("AssignSubVariableOp" in ops) == is_training for ops in seen)


@pytest.mark.usefixtures("plugin_as_after_import", "units_on_cpus")
def test_without_time_the_graph_is_still_trying() -> None:
    found = measured(branches((3, 7)), trying_s=0.0)
    assert found.way is None


@pytest.mark.usefixtures("plugin_as_after_import", "units_on_cpus")
def test_stock_steps_are_called_as_in_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[bool]] = {}

    def turn(variant: Variant, count: int) -> list[float]:
        with variant.circumstances():
            both = {packed_calls.is_on(), known_calls._Function._call is known_calls._call}
            seen.setdefault(variant.name, set()).update(both)
        return [0.1]

    monkeypatch.setattr(timed_steps, "_turn", turn)
    measured(branches(), trying_s=0.0)
    assert seen == {STOCK: {False}, OURS: {True}}


filters = tf.Variable(tf.random.stateless_normal((3, 3, 4, 4), (1, 2)))
calls = tf.Variable(0.0)


def loops(images: tf.Tensor, factor: tf.Tensor) -> Any:
    for _ in tf.range(3):
        images = tf.nn.relu(tf.nn.conv2d(images, filters, 1, "SAME"))
    return images * factor


def branched(images: tf.Tensor, factor: tf.Tensor) -> Any:
    def first() -> tf.Tensor:
        calls.assign_add(1)
        return tf.nn.conv2d(images, filters, 1, "SAME")

    return tf.cond(tf.reduce_sum(factor) > 1e9, lambda: images, first), calls + 1


def several(images: tf.Tensor, factor: tf.Tensor) -> Any:
    calls.assign_add(tf.reduce_sum(factor))
    convolved = tf.nn.conv2d(images, filters, 1, "SAME")
    return {"one": convolved, "two": [convolved + calls, tf.split(images, 2, 3)[0]]}


@pytest.mark.parametrize("program", [loops, branched, several])
def test_a_graph_gives_what_its_function_gives(program: Callable[..., Any]) -> None:
    specs = [tf.TensorSpec((2, 8, 8, 4)), tf.TensorSpec((2, 1, 1, 1))]
    function = tf.function(program, input_signature=specs)
    work = compare._work_of(trace(function), timed_s=1.0)
    graph_def = graph_pb2.GraphDef.FromString(work.graph_def)
    graph, inputs = timed_steps.function_of(graph_def, work.results)
    random = np.random.default_rng(0)
    for node in graph_def.node:  # the values that the graph has
        shape = tf.TensorShape(node.attr["shape"].shape)
        if node.op in ("Placeholder", "VarHandleOp"):
            value = timed_steps._random_values(random, shape, tf.float32)
            if node.op == "VarHandleOp":
                (filters if shape.rank else calls).assign(value)
    changed = tf.function(lambda *tensors: graph(*tensors), autograph=False)
    for _ in range(2):
        got = [each for each in tf.nest.flatten(changed(*inputs)) if each is not None]
        expected = tf.nest.flatten(function(*inputs))
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_process_has_the_settings_of_the_program_and_says_what_failed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[Any, ...]] = []

    def hashable(value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    for owner, name in (
        (tf.config, "set_visible_devices"),
        (tf.config.experimental, "enable_op_determinism"),
        (tf.config.experimental, "enable_tensor_float_32_execution"),
        (tf.config.threading, "set_intra_op_parallelism_threads"),
        (tf.config.threading, "set_inter_op_parallelism_threads"),
    ):
        monkeypatch.setattr(
            owner, name, lambda *given, name=name: called.append((name, *map(hashable, given)))
        )
    errors = [MemoryError(), ValueError("first\nsecond")]

    def fail(_: timed_steps.Work) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(timed_steps, "measure", fail)
    request, result = tmp_path / "request", tmp_path / "result"
    work = timed_steps.Work(b"", [], False, 0.0, 0.0, is_deterministic=True, uses_tf32=False)
    work.intra_op_threads, work.inter_op_threads = 3, 5
    request.write_bytes(msgspec.msgpack.encode(work))
    said = []
    for _ in range(2):
        timed_steps._main(request, result)
        said.append(msgspec.json.decode(result.read_bytes()))
    assert said == ["MemoryError: no message", "ValueError: first"]
    assert set(called) == {
        ("set_visible_devices", (), "GPU"),
        ("enable_op_determinism",),
        ("enable_tensor_float_32_execution", False),
        ("set_intra_op_parallelism_threads", 3),
        ("set_inter_op_parallelism_threads", 5),
    }


def test_the_first_round_does_not_count_and_ratios_are_to_stock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps_s = {"stock": [0.9, 0.02, 0.04], "other": [0.1, 0.01, 0.01]}
    monkeypatch.setattr(timed_steps, "_turn", lambda each, count: [steps_s[each.name].pop(0)])
    first, second = (Variant(name, lambda: None, contextlib.nullcontext) for name in steps_s)
    stock, other = timed_steps.compare_in_turns((first, second), 0.0)
    assert dataclasses.astuple(stock) == pytest.approx(("stock", 30, 1, 0))
    # The quartiles of 2 and 4 are 2.5 and 3.5.
    assert dataclasses.astuple(other) == pytest.approx(("other", 10, 3, 1 / 2**0.5))
