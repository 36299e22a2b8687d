"""Kept values belong to the variables' present values, however these are updated."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from tf_interop.runtime.kernel_library import load_kernel_library

SHAPE = (4, 3)
Update = Callable[[tf.Variable], object]


pytestmark = pytest.mark.usefixtures("plugin_off")


def node(op: str, inputs: list[str], **types: int) -> bytes:
    made = node_def_pb2.NodeDef(name=op.lower(), op=op, input=inputs)
    for name, value in types.items():
        made.attr[name].type = value
    return bytes(made.SerializeToString())


READ = node("ReadVariableOp", ["inputs:0"], dtype=1)


def kept(ops: Any, variables: list[Any], packed: Any = None, **attributes: Any) -> Any:
    given = {
        "packed": [] if packed is None else [packed],
        "handles": list(range(len(variables))),
        "constants": [],
        "Tout": [tf.float32] * len(attributes["results"]),
        "reads": [READ],
        "steps": [],
    }
    return ops.tf_interop_kept(variables=variables, **given | attributes)


def doubled(ops: Any, variable: tf.Variable, how: str = "handles") -> Any:
    """A function that returns twice the variable's value, and the value itself."""
    steps = [node("Add", ["inputs:0", "inputs:0"], T=1)]
    given = {"steps": steps, "results": ["steps:0:0", "inputs:0"]}
    pack = ops.tf_interop_pack_variables(handles=[variable.handle] * 2)
    unit_steps = [node("Neg", [f"inputs:{place}"], T=1) for place in range(2)]
    results = ["steps:0:0", "steps:1:0"]

    @tf.function
    def run() -> Any:
        if how == "handles":
            return kept(ops, [variable.handle], **given)
        if how == "packed":
            return kept(ops, [], pack, handles=[1], **given)
        assert how == "packed for a unit"
        values = kept(
            ops, [], pack, handles=[0], **given, Tout=[tf.variant], kept_types=[tf.float32] * 2
        )
        # Element-wise kernels write into an operand that nobody else holds.
        negative = ops.tf_interop_unit(
            inputs=values,
            kept_types=[tf.float32] * 2,
            steps=unit_steps,
            results=results,
            Tout=[tf.float32] * 2,
        )
        return [-each for each in negative]

    return run


def computations() -> int:
    return load_kernel_library().read_counters().kept_computations


raw = tf.raw_ops
ONES = tf.ones(SHAPE)
ROWS = tf.constant([0, 2])


@tf.function(jit_compile=True)
def add_with_xla(variable: tf.Variable) -> None:
    variable.assign_add(tf.ones_like(variable))


UPDATES: dict[str, Update] = {
    "assign": lambda v: v.assign(v + 1),
    "assign an array": lambda v: v.assign(v.numpy() + 1),
    "assign_add": lambda v: v.assign_add(ONES),
    "assign_sub": lambda v: v.assign_sub(ONES),
    "strided slice": lambda v: v[1:2].assign(v[1:2] + 1),
    "gradient descent": lambda v: raw.ResourceApplyGradientDescent(
        var=v.handle, alpha=0.1, delta=ONES
    ),
    "scatter": lambda v: raw.ResourceScatterAdd(
        resource=v.handle, indices=ROWS, updates=tf.ones([2, 3])
    ),
    "scatter of slices": lambda v: raw.ResourceScatterNdAdd(
        ref=v.handle, indices=[[0], [2]], updates=tf.ones([2, 3])
    ),
    "XLA": add_with_xla,
}


WAYS = ("handles", "packed", "packed for a unit")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("update", UPDATES)
def test_sees_every_update(ops: Any, update: str, way: str) -> None:
    variable = tf.Variable(np.arange(12, dtype=np.float32).reshape(SHAPE))
    run = doubled(ops, variable, way)
    for _ in range(6):  # more than the changes after which holding pauses
        before = variable.numpy()
        run()
        UPDATES[update](variable)
        twice, value = run()
        assert (variable.numpy() != before).any()
        np.testing.assert_array_equal(value, variable.numpy())
        np.testing.assert_array_equal(twice, 2 * variable.numpy())


def test_sees_sparse_updates_after_copying_on_read_was_turned_off(ops: Any) -> None:
    variable = tf.Variable(ONES)
    run = doubled(ops, variable)
    for _ in range(3):
        UPDATES["scatter"](variable)
        raw.DisableCopyOnRead(resource=variable.handle)
        run()
        UPDATES["scatter"](variable)
        np.testing.assert_array_equal(run()[0], 2 * variable.numpy())


def test_sees_writes_into_memory_from_dlpack(ops: Any) -> None:
    # TensorFlow's kernels abort on memory that is not aligned.
    memory = np.zeros([1024 * 4 + 64], np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + 1024 * 4].view(np.float32)
    variable = tf.Variable(tf.zeros([1024]))
    variable.assign(tf.experimental.dlpack.from_dlpack(array.__dlpack__()))
    run = doubled(ops, variable)
    run()
    array[0] = 7
    stock = variable.numpy()
    np.testing.assert_array_equal(run()[0], 2 * stock)


@pytest.mark.parametrize("way", WAYS)
def test_computes_once_while_nothing_changes(ops: Any, way: str) -> None:
    for initial in (tf.random.normal([8, 8]), np.ones([8, 8]), np.zeros([300, 300], np.float32)):
        variable = tf.Variable(initial, dtype=tf.float32)
        run = doubled(ops, variable, way)
        run()
        before = computations()
        for _ in range(5):
            np.testing.assert_array_equal(run()[0], 2 * variable.numpy())
        assert computations() == before
        variable.assign_add(tf.ones_like(variable))
        run()
        run()
        assert computations() == before + 1


@pytest.mark.parametrize("size", [4, 300])  # a large one is not held
@pytest.mark.parametrize("update", ["assign", "assign_add", "strided slice", "scatter", "XLA"])
def test_sees_updates_of_a_variable_that_is_only_passed_on(
    ops: Any, update: str, size: int
) -> None:
    doubled_one, passed = tf.Variable(ONES), tf.Variable(tf.random.normal([size, size]))

    @tf.function
    def run() -> Any:
        return kept(
            ops,
            [doubled_one.handle, passed.handle],
            reads=[READ, READ],
            steps=[node("Add", ["inputs:0", "inputs:0"], T=1)],
            results=["steps:0:0", "inputs:1"],
        )

    updates = UPDATES | {
        "assign_add": lambda v: v.assign_add(tf.ones_like(v)),
        "scatter": lambda v: raw.ResourceScatterAdd(
            resource=v.handle, indices=ROWS, updates=tf.ones([2, size])
        ),
    }
    run()
    before = computations()
    for _ in range(6):
        run()
        updates[update](passed)
        twice, value = run()
        np.testing.assert_array_equal(value, passed)
        np.testing.assert_array_equal(twice, 2 * ONES)
    assert computations() == before
    doubled_one.assign_add(ONES)
    for _ in range(3):
        twice, value = run()
        np.testing.assert_array_equal(value, passed)
        np.testing.assert_array_equal(twice, 4 * ONES)
    assert computations() == before + 1


def test_sees_another_shape_of_the_same_memory(ops: Any) -> None:
    variable = tf.Variable(tf.random.normal([2, 6]), shape=tf.TensorShape(None))
    run = doubled(ops, variable)
    for shape in ([2, 6], [6, 2], [3, 4], [12]):
        variable.assign(tf.reshape(variable.read_value(), shape))
        twice, value = run()
        np.testing.assert_array_equal(value, variable.read_value())
        np.testing.assert_array_equal(twice, 2 * variable.read_value())


def test_pauses_while_a_variable_keeps_changing_and_resumes(ops: Any) -> None:
    variable = tf.Variable(ONES)
    run = doubled(ops, variable)
    for _ in range(8):
        variable.assign_add(ONES)
        np.testing.assert_array_equal(run()[0], 2 * variable.numpy())
    before = computations()
    run()
    assert computations() == before + 1  # nothing is held
    for _ in range(20):
        run()
    before = computations()
    run()
    assert computations() == before


def test_reports_a_variable_without_value_as_stock_does(ops: Any) -> None:
    handle = raw.VarHandleOp(dtype=tf.float32, shape=SHAPE, shared_name="without_value")
    with pytest.raises(tf.errors.FailedPreconditionError, match="without_value"):
        kept(ops, [handle], results=["inputs:0"])
    with pytest.raises(tf.errors.FailedPreconditionError, match="without_value"):
        pack = ops.tf_interop_pack_variables(handles=[handle])
        kept(ops, [], pack, handles=[0], results=["inputs:0"])


def test_refuses_reads_handles_and_types_that_do_not_fit(ops: Any) -> None:
    handle = tf.Variable(ONES).handle
    pack = ops.tf_interop_pack_variables(handles=[handle])
    for variables, packed, given, message in (
        *(
            ([handle], None, {"reads": reads}, "read")
            for reads in ([], [b"\xff"], [node("Add", ["inputs:0", "inputs:0"], T=1)])
        ),
        ([handle], None, {"handles": [1]}, "from 0 to 0, got .1."),
        ([handle], None, {"handles": [-1]}, "got .-1."),
        ([handle], pack, {"handles": [2]}, "more than 1 packed variables, got 1"),
        ([], tf.constant(1.0)[None], {"handles": [0]}, "variant"),
        ([handle], None, {"kept_types": [tf.float32]}, "one output for 1 packed values"),
    ):
        with pytest.raises((tf.errors.InvalidArgumentError, TypeError), match=message):
            kept(ops, variables, packed, results=["inputs:0"], **given)
    for wrong in (
        tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=1, element_dtype=tf.float32),
        pack,
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Expected 1 kept values, got 0"):
            ops.tf_interop_unit(
                inputs=[wrong],
                kept_types=[tf.float32],
                steps=[node("Neg", ["inputs:0"], T=1)],
                results=["steps:0:0"],
                Tout=[tf.float32],
            )
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected 2 packed variables, got 1"):
        ops.tf_interop_unpack_variables(packed=pack, N=2, dtypes=[tf.float32] * 2, shapes=[[]] * 2)


def test_packed_variables_beside_one_that_is_another_in_each_call(ops: Any) -> None:
    first, second, packed = (tf.Variable(ONES * value) for value in (1.0, 2.0, 10.0))
    pack = ops.tf_interop_pack_variables(handles=[packed.handle])

    @tf.function
    def add(variable: tf.Variable) -> Any:
        return kept(
            ops,
            [variable.handle],
            pack,
            handles=[1, 0],
            reads=[READ, READ],
            steps=[node("Add", ["inputs:0", "inputs:1"], T=1)],
            results=["steps:0:0"],
        )[0]

    for variable in (first, first, first, second, first, second):
        np.testing.assert_array_equal(add(variable), packed + variable)


@pytest.mark.parametrize("way", WAYS)
def test_a_call_computes_from_one_value(ops: Any, way: str) -> None:
    variable = tf.Variable(tf.zeros([64, 64]))
    run = doubled(ops, variable, way)
    run()
    is_over = threading.Event()

    def assign() -> None:
        value = 0
        while not is_over.is_set():
            value += 1
            variable.assign(tf.fill([64, 64], float(value)))

    thread = threading.Thread(target=assign)
    thread.start()
    try:
        for _ in range(300):
            twice, value = (each.numpy() for each in run())
            assert (value == value[0, 0]).all()
            assert (twice == 2 * value).all()
    finally:
        is_over.set()
        thread.join()
