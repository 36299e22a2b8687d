"""Training with shares of variables on several devices: every use of a variable sees its value."""

from __future__ import annotations

import pathlib

import pytest
from parallel.shared_training import PROGRAM
from unnoticed import run_python

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
    handle = model.layers[-2].kernel._value._handle
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
    share_of(model)

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
    assert len(seen) == 2 and held(model) == 0
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
