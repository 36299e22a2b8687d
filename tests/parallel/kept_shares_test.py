"""Training with shares of variables on several devices: every use of a variable sees its value."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import tensorflow as tf
from parallel.shared_training import PROGRAM
from unnoticed import in_threads, run_python

from tf_interop.parallel import kept_shares
from tf_interop.parallel.kept_shares import KeptShares, Share, SharedVariable

OPTIMIZERS = """
    optimizers = {
        "SGD": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
        "Adam": lambda: keras.optimizers.Adam(0.005, clipnorm=1.0),
        "RMSprop": lambda: keras.optimizers.RMSprop(0.001, momentum=0.5),
        "Adagrad": lambda: keras.optimizers.Adagrad(0.05),
        "Adadelta": lambda: keras.optimizers.Adadelta(0.5),
        "Adamax": lambda: keras.optimizers.Adamax(0.005),
        "Nadam": lambda: keras.optimizers.Nadam(0.005),
        "Ftrl": lambda: keras.optimizers.Ftrl(0.05),
        "Lion": lambda: keras.optimizers.Lion(0.0005),
        "Lamb": lambda: keras.optimizers.Lamb(0.005),
        "Adafactor": lambda: keras.optimizers.Adafactor(0.005),
        "average": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9),
    }
    names = os.environ["OPTIMIZERS"].split()
    expected = {}
    for name in names:
        model = make(optimizers[name]())
        expected[name] = (fit(model, 2), values_of(model))
    share_of(model)
    for name in names:
        model = make(optimizers[name]())
        get_plugin().forget_reports()
        losses = fit(model, 2)
        of_step = max(tf_interop.status().divided_graphs, key=lambda each: each.node_count)
        # Adafactor has no slots of the size of the variables.
        assert of_step.shared_variable_count >= (2 if name == "Adafactor" else 4), str(of_step)
        # At the end of `fit` the averages are assigned to the variables, so these are whole.
        assert held(model) == (0 if name == "average" else of_step.shared_variable_count), name
        assert not tf_interop.status().failures, tf_interop.status().failures
        np.testing.assert_allclose(losses, expected[name][0], rtol=1e-3, err_msg=name)
        assert_close(values_of(model), expected[name][1])
"""

USES = """
    def run(folder):
        '''What a program reads and writes between steps.'''
        seen = []
        model = make(keras.optimizers.Adam(0.005))
        seen.append(fit(model))
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        path = checkpoint.save(os.path.join(folder, "checkpoint"))
        seen.append(fit(model))
        seen.append(model.evaluate(images, labels, verbose=0))
        seen.append(fit(model))
        checkpoint.restore(path)
        seen.append(fit(model))
        model.save_weights(os.path.join(folder, "all.weights.h5"))
        model.set_weights([0.9 * each for each in model.get_weights()])
        seen.append(fit(model))
        kernel = model.layers[-2].kernel
        kernel.assign_add(0.01 * np.ones(kernel.shape))
        seen.append(fit(model))
        scaled = tf.function(lambda: kernel.value * 2)
        seen.append(scaled().numpy())
        seen.append(fit(model))
        seen.append(scaled().numpy())
        model.load_weights(os.path.join(folder, "all.weights.h5"))
        seen.append(fit(model))
        seen.append(model.predict(images, verbose=0))
        # Another function updates the same variables.
        model.compile(keras.optimizers.SGD(0.01), model.loss, jit_compile=False)
        seen.append(fit(model))
        seen.append(fit(model))
        return model, [*seen, *values_of(model)]

    folder = os.environ["FOLDER"]
    stock, expected = run(os.path.join(folder, "stock"))
    share_of(stock)
    model, ours = run(os.path.join(folder, "ours"))
    # The plan is for training, and the graph of evaluate has other layers.
    failures = tf_interop.status().failures
    assert all("for another network" in each.cause for each in failures), failures
    assert_close(ours, expected)

    # While devices have the values, the variables have no memory; the shares take it once.
    fit(model), fit(stock)
    assert held(model) >= 2
    handle = vars(model.layers[-2].kernel._value)["_handle"]
    left = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
    assert left.shape.num_elements() == 0, left.shape
    tf_interop.disable()
    assert not kept_shares._holders and not kept_shares._kept
    assert_close(values_of(model), values_of(stock))
    fit(model), fit(stock)
    assert_close(values_of(model), values_of(stock))

    # A checkpoint that was written divided is read whole.
    def restored(folder):
        model = make(keras.optimizers.Adam(0.005))
        fit(model)
        path = os.path.join(folder, "checkpoint-1")
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(path)
        return [*values_of(model), fit(model)]

    first, second = (restored(os.path.join(folder, its)) for its in ("ours", "stock"))
    assert_close(first, second)
    assert not all(map(np.array_equal, first, second))  # other roundings: they are two checkpoints
"""

FAULTS = """
    model = make(keras.optimizers.Adam(0.005))
    expected = fit(model, 3), values_of(model)
    plan = share_of(model)

    # The pass fails for the copy: the step runs as before.
    prepare, seen = divide.prepare, []
    def broken(graph_def, infer, preserve, shares):
        if shares.endswith("_shares"):
            seen.append(shares)
            raise ValueError("broken")
        return prepare(graph_def, infer, preserve, shares)
    divide.prepare = broken
    model = make(keras.optimizers.Adam(0.005))
    losses = fit(model, 3)
    assert len(seen) == 1 and held(model) == 0 and not kept_shares._kept
    np.testing.assert_allclose(losses, expected[0], rtol=1e-3)
    assert_close(values_of(model), expected[1])
    divide.prepare = prepare

    # It fails when TensorFlow optimizes the copy again, while the variables are empty. A batch is
    # lost, and training goes on.
    model = make(keras.optimizers.Adam(0.005))
    fit(model)
    assert held(model) > 0
    divide.prepare = broken
    tf.random.set_seed(1)
    fit(model)
    assert len(seen) == 3 and held(model) == 0  # a first copy, and the one that follows it
    divide.prepare = prepare
    fit(model)
    assert np.isfinite(model.evaluate(images, labels, verbose=0))

    # Another thread takes a handle, and reads it after a step.
    model = make(keras.optimizers.Adam(0.005))
    fit(model)
    kernel, taken = model.layers[-2].kernel, []
    kernel.numpy()
    reader = threading.Thread(target=lambda: taken.append(kernel._value.handle))
    reader.start()
    reader.join()
    fit(model)
    assert held(model) > 0
    left = tf.raw_ops.ReadVariableOp(resource=taken[0], dtype=tf.float32)
    assert left.shape == kernel.shape, left.shape

    # Another thread reads while a step runs.
    model = make(keras.optimizers.Adam(0.005))
    fit(model)
    def read(stop):
        while not stop.is_set():
            for weights, first in zip(model.get_weights(), start, strict=True):
                if weights.shape != first.shape or not np.isfinite(weights).all():
                    wrong.append(weights.shape)
    wrong, start = [], model.get_weights()
    stop = threading.Event()
    reader = threading.Thread(target=read, args=[stop])
    reader.start()
    fit(model, 2)
    stop.set()
    reader.join()
    assert not wrong, wrong
    assert_close(values_of(model), expected[1])

    # A function that is gone gives its variables back, and leaves no shares.
    model = make(keras.optimizers.Adam(0.005))
    before = set(kept_shares._kept)
    fit(model, 2)
    [name] = kept_shares._kept.keys() - before
    kernel = model.layers[-2].kernel
    model.train_function = None
    gc.collect()
    fit(model)
    assert name not in kept_shares._kept
    np.testing.assert_allclose(kernel.numpy().std(), expected[1][4].std(), rtol=1e-3)
    assert_close(values_of(model), expected[1])

    # The same for one that had shares before, until they were turned off.
    model = make(keras.optimizers.Adam(0.005))
    fit(model)
    tf_interop.disable()
    tf_interop.enable(parallel=plan)
    tf.random.set_seed(2)  # TensorFlow optimizes the function again
    fit(model)
    assert held(model) > 0
    model.train_function = None
    gc.collect()
    fit(model)
    assert_close(values_of(model), expected[1])

    # Under a tape the function runs as TensorFlow calls it.
    model = make(keras.optimizers.Adam(0.005))
    fit(model)
    assert held(model) > 0
    with tf.GradientTape():
        fit(model)
        assert held(model) == 0
    fit(model)
    assert_close(values_of(model), expected[1])

    # TensorFlow's own option turns shares off as well.
    model = make(keras.optimizers.Adam(0.005))
    fit(model)
    tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": False})
    fit(model)
    assert held(model) == 0
    tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": True})
    fit(model)
    assert held(model) > 0
    assert_close(values_of(model), expected[1])
"""


@pytest.mark.parametrize(
    ("optimizers", "strategy"),
    [
        ("SGD Adam Lamb Adafactor", "data"),
        pytest.param("RMSprop Adagrad Adadelta Adamax average", "model", marks=pytest.mark.slow),
        pytest.param("Nadam Ftrl Lion Adam", "one weird trick", marks=pytest.mark.slow),
    ],
)
def test_optimizers_update_shares_as_whole_variables(optimizers: str, strategy: str) -> None:
    run_python(PROGRAM + OPTIMIZERS, OPTIMIZERS=optimizers, STRATEGY=strategy)


@pytest.mark.parametrize(
    ("devices", "strategy"),
    [("2", "model"), pytest.param("4", "data", marks=pytest.mark.slow)],
)
def test_a_program_sees_current_values(devices: str, strategy: str, tmp_path: pathlib.Path) -> None:
    run_python(PROGRAM + USES, DEVICES=devices, STRATEGY=strategy, FOLDER=str(tmp_path))


def test_a_function_that_cannot_be_divided_again_runs_as_before() -> None:
    run_python(PROGRAM + FAULTS)


class Shared:
    """A variable in two shares, to each of which a step adds 1."""

    def __init__(self, name: str = "a step") -> None:
        self.variable = tf.Variable(tf.zeros([4]))
        device = self.variable.device
        boxes = ((0, 1),), ((1, 4),)
        shares = (Share(place, device, box) for place, box in enumerate(boxes))
        self.shared = SharedVariable(0, (4,), tf.float32, tuple(shares))
        self.handle = vars(self.variable)["_handle"]
        self.kept = KeptShares(name, self, {self.shared: self.handle})
        self.kept.is_divided = True
        self.during: Callable[[], object] = lambda: None

    def call_preflattened(self, _inputs: Sequence[Any]) -> None:
        self.during()
        for share in self.shared.shares:
            handle = self.kept._handle_of(self.shared, share)
            value = tf.ones([share.box[0][1] - share.box[0][0]])
            tf.raw_ops.AssignAddVariableOp(resource=handle, value=value)

    def step(self, during: Callable[[], object] = lambda: None) -> None:
        self.during = during
        self.kept.call([self.handle])

    @property
    def is_empty(self) -> bool:
        value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=tf.float32)
        return value.shape.num_elements() == 0


def on_another_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: next(iter(in_threads(lambda _: call(), [0])))


@pytest.fixture(name="shared")
def fixture_shared() -> Iterator[Shared]:
    kept_shares.turn_on()
    shared = Shared()
    kept_shares._kept[shared.kept.name] = shared.kept
    kept_shares._users[id(shared.handle)] = set()
    yield shared
    kept_shares.turn_off()


@pytest.mark.parametrize(
    "use",
    [
        lambda variable: variable.numpy()[0],
        lambda variable: tf.reduce_sum(variable) / 4,
        lambda variable: tf.sqrt(tf.nn.l2_loss(variable) / 2),
        lambda variable: tf.concat([tf.reshape(variable, [-1])], 0)[3],
        lambda variable: tf.matmul(variable[None], variable[:, None])[0, 0] ** 0.5 / 2,
        lambda variable: tf.io.parse_tensor(tf.io.serialize_tensor(variable), tf.float32)[1],
        lambda variable: variable.assign_add(tf.zeros([4])).numpy()[2],
        lambda variable: tf.function(lambda: variable + 0.0)()[3],
    ],
)
def test_operations_see_the_value_of_a_variable(
    use: Callable[[tf.Variable], Any], shared: Shared
) -> None:
    for step in range(1, 4):
        shared.step()
        assert shared.is_empty
        assert float(use(shared.variable)) == step
        assert not shared.is_empty


@pytest.mark.parametrize("first", [True, False])
def test_what_another_thread_writes_during_a_step_stays(first: bool, shared: Shared) -> None:
    if not first:
        shared.step()
    shared.step(on_another_thread(lambda: shared.variable.assign(tf.fill([4], 7.0))))
    shared.step()
    written = float(shared.variable.numpy()[0])
    assert written in (8.0, 9.0)  # the step's own update is before or after what is written
    shared.step(on_another_thread(lambda: shared.variable.numpy()))
    shared.step()
    assert shared.variable.numpy().tolist() == [written + 2.0] * 4


def test_a_graph_that_was_not_divided_loses_nothing(shared: Shared) -> None:
    for step in range(1, 4):
        shared.during = lambda: shared.variable.assign_add(tf.ones([4]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shared, "call_preflattened", lambda _: shared.during())
            shared.kept.call([shared.handle])
        assert not shared.is_empty
        assert shared.variable.numpy().tolist() == [float(step)] * 4
    shared.step()
    assert shared.is_empty
    assert shared.variable.numpy().tolist() == [4.0] * 4


def test_values_that_are_lost_are_an_error_where_they_are_used(shared: Shared) -> None:
    other = Shared("another step")
    kept_shares._kept[other.kept.name] = other.kept
    kept_shares._users[id(other.handle)] = set()
    for each in (shared, other):
        each.step()
    lost = shared.kept._handle_of(shared.shared, shared.shared.shares[0])
    tf.raw_ops.DestroyResourceOp(resource=lost)  # as if its device were gone
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError):
            kept_shares.turn_off()
        assert not other.is_empty
        with pytest.raises(tf.errors.FailedPreconditionError):
            shared.variable.numpy()
    kept_shares._dropped.append(shared.kept)
    kept_shares._put_together([])
    assert other.variable.numpy().tolist() == [1.0] * 4
    tf.raw_ops.AssignVariableOp(resource=lost, value=tf.zeros([1]))


def test_a_step_that_fails_leaves_the_last_values(shared: Shared) -> None:
    def fail() -> None:
        raise tf.errors.OutOfRangeError(None, None, "no more batches")

    for _ in range(2):
        with pytest.raises(tf.errors.OutOfRangeError):
            shared.step(fail)
        shared.variable.assign_add(tf.ones([4]))
    shared.step()
    assert shared.variable.numpy().tolist() == [3.0] * 4


def test_a_running_function_keeps_the_memory_of_what_it_reads(shared: Shared) -> None:
    def step_once() -> int:
        del kept_shares._users[id(shared.handle)]  # as before any function had shares
        kept_shares._users[id(shared.handle)] = set()
        on_another_thread(shared.step)()
        return 0

    def read() -> Any:
        with tf.control_dependencies(tf.py_function(step_once, [], [tf.int32])):
            return shared.variable + 0.0

    value = tf.function(read, autograph=False)()
    assert value.numpy().tolist() in ([0.0] * 4, [1.0] * 4)
    assert shared.variable.numpy().tolist() == [1.0] * 4


def test_two_steps_at_once_have_the_shares_one_at_a_time(shared: Shared) -> None:
    other = KeptShares("another step", shared, {shared.shared: shared.handle})
    shared.step()
    assert not other.is_used_elsewhere()
    found = []
    shared.step(lambda: found.append(other.is_used_elsewhere()))
    assert found == [True] and not shared.kept.is_used_elsewhere()


DENSE = """
    from python.benchmarks.divided_training import on_first_devices
    from tf_interop.parallel.types import Axis, Degrees

    def make(optimizer):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(129, activation="relu"), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input((8, 8, 4)), keras.layers.Flatten(), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, jit_compile=False)
        return model

    stock = make(keras.optimizers.SGD(0.05, global_clipnorm=1.0))
    expected = [fit(stock), values_of(stock)]
    layers = handed_layers(lambda: fit(make(keras.optimizers.SGD())))
    both = (Axis.SAMPLE, Axis.FILTER)
    fitting = [{axis.value: min(2, its.extents[axis]) for axis in both} for its in layers.layers]
    division = on_first_devices(layers, [Degrees(**each) for each in fitting])
    tf_interop.enable(parallel=plan_of(layers, division, devices))
    model = make(keras.optimizers.SGD(0.05, global_clipnorm=1.0))
    losses = fit(model)
    assert held(model) >= 1 and not tf_interop.status().failures, tf_interop.status()
    assert_close([losses, *values_of(model)], [expected[0], *expected[1]])
"""


def test_divides_networks_without_convolutions_into_unequal_parts() -> None:
    run_python(PROGRAM + DENSE, DEVICES="4")
