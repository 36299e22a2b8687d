"""Thousands of calls in eight threads, of changing shapes: stock's results, and nothing grows."""

from __future__ import annotations

import pytest
from unnoticed import run_python

SOAK = """
    import ctypes, gc, os, pathlib, random, threading
    import keras
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.framework import convert_to_constants
    import tf_interop

    THREADS, CALLS, ROUNDS = 8, 100, 7  # calls of each thread in a round
    # After the first round, which fills caches. It was 0.1 MiB with units, and 3 MiB with stages or
    # without the plugin. If each call leaked one branch's result, it would be over 20 MiB.
    ALLOWED_GROWTH_MIB = 8
    v1 = tf.compat.v1
    layers = keras.layers

    keras.utils.set_random_seed(1)
    x = image = keras.Input((None, None, 3))
    for _ in range(2):
        # With momentum 1 training in one thread changes no prediction in another.
        branches = [layers.BatchNormalization(momentum=1)(
            layers.Conv2D(8, side, padding="same")(x)) for side in (1, 3)]
        pooled = layers.Conv2D(8, 1)(layers.MaxPooling2D(3, 1, "same")(x))
        x = layers.Concatenate()([*map(layers.ReLU(), branches), pooled])
    model = keras.Model(image, layers.Dense(4)(layers.GlobalAveragePooling2D()(x)))
    rate = tf.Variable(0.0)  # training moves no weight
    spec = tf.TensorSpec([None, None, None, 3])

    @tf.function(input_signature=[spec], autograph=False)
    def serve(images):
        return [model(images, training=False)]

    @tf.function(input_signature=[spec], autograph=False)
    def train(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(images, training=True) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        for variable, gradient in zip(model.trainable_variables, gradients):
            variable.assign_sub(rate * gradient)
        return [loss, *gradients]

    def in_session():
        frozen = convert_to_constants.convert_variables_to_constants_v2(
            serve.get_concrete_function())
        config = v1.ConfigProto()
        rewrites = config.graph_options.rewrite_options
        rewrites.min_graph_nodes = -1
        rewrites.use_plugin_optimizers = rewrites.ON
        options = v1.RunOptions()
        options.experimental.use_run_handler_pool = True
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(frozen.graph.as_graph_def(), name="")
            session = v1.Session(graph=graph, config=config)
            call = session.make_callable(
                [each.name for each in frozen.outputs], [frozen.inputs[0].name],
                accept_options=True)
        return lambda images: call(images.numpy(), options=options)

    # More shapes than a stage keeps.
    images = [tf.random.stateless_normal([batch, side, 12, 3], [batch, side])
              for batch in (1, 2, 3) for side in (9, 10, 11, 12)]
    tf_interop.disable()
    expected = {program: [[np.asarray(each) for each in program(one)] for one in images]
                for program in (serve, train)}
    tf_interop.enable("always")
    programs = [(each, each) for each in (serve, train)] + [(in_session(), serve)]

    def work(seed):
        choose = random.Random(seed)
        for _ in range(ROUNDS):
            for _ in range(CALLS):
                program, stock = choose.choice(programs)
                number = choose.randrange(len(images))
                for ours, theirs in zip(program(images[number]), expected[stock][number],
                                        strict=True):
                    # TensorFlow adds up filter gradients in one part for each thread.
                    np.testing.assert_allclose(
                        ours, theirs, rtol=0, atol=1e-5 * max(1, np.abs(theirs).max()))
            barrier.wait()

    def look():
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        seen.append((len(os.listdir("/proc/self/task")), pages * 4096 / 2**20))

    def work_or_say(seed):
        try:
            work(seed)
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            failures.append(repr(error))
            barrier.abort()

    seen, failures = [], []
    barrier = threading.Barrier(THREADS, look)
    threads = [threading.Thread(target=work_or_say, args=[seed]) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    status = tf_interop.status()
    assert not status.failures, status.failures
    assert not status.counters.fallbacks, status.counters.fallbacks
    (threads, mib), *later = seen
    assert len(later) == ROUNDS - 1
    # Prediction, training and the Session.
    assert len(status.graphs) == 3
    if os.environ["TF_INTEROP_HOST_STAGES"] == "0":
        assert min(each.operation_count for each in status.graphs) > 10
        assert max(each[0] for each in later) <= threads, f"more threads: {seen}"
    else:  # stages have their own threads, as many as ran together
        assert status.counters.stages_run > THREADS * CALLS * ROUNDS
    assert max(each[1] for each in later) - mib < ALLOWED_GROWTH_MIB, f"more memory: {seen}"
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stages", "units"])
def test_results_are_those_of_stock_and_nothing_grows(kind: str) -> None:
    run_python(SOAK, TF_INTEROP_HOST_STAGES=str(int(kind == "stages")))
