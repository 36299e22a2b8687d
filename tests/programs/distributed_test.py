"""Several devices in one process, and several processes."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from command_line import free_addresses, python_output
from unnoticed import run_python

import tf_interop
from tf_interop import tensorflow_internals
from tf_interop.graph.view import is_local

# Trains on three devices of a process, or as one worker of two: without the plugin, with it, and
# with the plan that it made. Writes the weights.
TRAINING = """
    import collections
    import os
    import sys
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from tf_interop.runtime.plugin import get_plugin
    from unnoticed import stages_run

    STEPS = 4
    if "TF_CONFIG" in os.environ:
        devices = ["CPU:0"]
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        assert strategy.num_replicas_in_sync == 2
        random = np.random.default_rng(strategy.cluster_resolver.task_id)
    else:
        devices = ["CPU:0", "CPU:1", "CPU:2"]
        # Devices must exist before TensorFlow starts.
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 3
        )
        strategy = tf.distribute.MirroredStrategy(devices)
        random = np.random.default_rng(0)
    batch = [tf.constant(random.random((4, *shape), np.float32)) for shape in ((8, 8, 3), (2,))]
    random = np.random.default_rng(7)
    shapes = [(1, 1, 3, 4), (3, 3, 3, 4), (5, 5, 3, 4), (12, 2)]
    start = [random.normal(0, 0.2, shape).astype(np.float32) for shape in shapes]

    def train():
        '''The weights, and the number of stages or units on each device.'''
        with strategy.scope():
            variables = [tf.Variable(each) for each in start]

        def replica_step(images, labels):
            with tf.GradientTape() as tape:
                outputs = [tf.nn.relu(tf.nn.conv2d(images, each, 1, "SAME"))
                           for each in variables[:3]]
                result = tf.reduce_mean(tf.concat(outputs, -1), [1, 2]) @ variables[3]
                loss = tf.reduce_sum((result - labels) ** 2) / 8
            gradients = tape.gradient(loss, variables)
            gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
            for variable, gradient in zip(variables, gradients):
                variable.assign_sub(0.1 * gradient)

        made = collections.defaultdict(set)
        def look(graph_def, _):
            for node in graph_def.node:
                if node.op in ("TfInterop>ConvStage", "TfInterop>Unit"):
                    made[node.device[-len("CPU:0"):]].add(node.name)

        step = tf.function(lambda: strategy.run(replica_step, batch))
        with get_plugin().observe(look):
            for _ in range(STEPS):
                step()
        assert tf_interop.status().failures == (), tf_interop.status().failures
        return [each.numpy() for each in variables], {name: len(made[name]) for name in made}

    tf_interop.disable()
    expected, counts = train()
    assert counts == {}
    tf_interop.enable("always")
    before = stages_run()
    weights, counts = train()
    assert sorted(counts) == devices, counts
    if os.environ["TF_INTEROP_HOST_STAGES"] == "1":
        # The three convolutions are a stage, and their gradients by filter another.
        assert set(counts.values()) == {2}, counts
        assert stages_run() - before == 2 * len(devices) * STEPS
    plan = tf_interop.status().plan
    tf_interop.disable()
    tf_interop.enable(plan=plan)
    of_plan, again = train()
    has_stages = stages_run() > 0
    # Under a plan units time themselves, and small ones stay ops.
    assert again == counts if has_stages else sorted(again) == devices, again
    assert all(each.is_in_plan for each in tf_interop.status().current_graphs)
    for ours, stock, planned in zip(weights, expected, of_plan):
        # TensorFlow's convolutions of random numbers round in another order.
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(planned, stock, rtol=1e-5, atol=1e-6)
        assert not has_stages or np.array_equal(planned, ours)
    np.savez(sys.argv[1], *weights)
"""


@pytest.mark.parametrize("kind", [pytest.param("stages", marks=pytest.mark.slow), "units"])
def test_mirrored_training_gives_the_same_weights(kind: str, tmp_path: pathlib.Path) -> None:
    python_output(
        *("-c", textwrap.dedent(TRAINING), str(tmp_path / "weights.npz")),
        TF_INTEROP_HOST_STAGES=str(int(kind == "stages")),
    )


@pytest.mark.slow
def test_two_workers_reach_the_same_weights(tmp_path: pathlib.Path) -> None:
    cluster = {"worker": free_addresses(2)}

    def work(index: int) -> str:
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        weights = str(tmp_path / f"{index}.npz")
        return python_output(
            *("-c", textwrap.dedent(TRAINING), weights), TF_CONFIG=json.dumps(config)
        )

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    first, second = (np.load(tmp_path / f"{index}.npz") for index in range(2))
    for name in first.files:
        np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("", True),
        ("/device:CPU:0", True),
        ("/job:worker/task:1/device:CPU:0", True),
        ("/job:Worker/replica:0/task:1/device:GPU:0", True),
        ("/job:worker/replica:0/task:0/device:CPU:0", False),
        ("/job:worker/replica:1/task:1/device:CPU:0", False),
        ("/job:localhost/replica:0/task:0/device:CPU:0", False),
        ("/job:ps/task:1", False),
    ],
)
def test_a_device_is_local_in_the_task_of_the_context(
    device: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorflow_internals, "local_task", lambda: ("worker", 1))
    assert is_local(device) == expected


def test_a_compiled_function_on_another_task_stays_as_it_is() -> None:
    """That task has neither the op nor the pass."""
    run_python(
        """
    import subprocess, sys
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from unnoticed import IMAGE, branches, stages_run
    server = (
        "import tensorflow as tf; s = tf.distribute.Server.create_local_server();"
        "print(s.target, flush=True); s.join()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", server], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        tf.config.experimental_connect_to_host(worker.stdout.readline().strip())
        tf_interop.enable("always")
        inner = tf.function(branches, jit_compile=True, autograph=False)
        def outer(image):
            with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
                return inner(image) + 0
        result = tf.function(outer, autograph=False)(tf.constant(IMAGE))
        np.testing.assert_array_equal(result, branches(IMAGE))
        assert stages_run() == 0
    finally:
        worker.kill()
    """
    )


# Trains on one device, and then with its layers divided over the hosts of a cluster.
OF_A_CLUSTER = """
    import sys
    import keras
    import numpy as np
    import tensorflow as tf
    import tf_interop

    tf_interop.join_cluster()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((12, 12, 3)),
        keras.layers.Conv2D(32, 5, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.Dense(10),
    ])
    images = np.random.default_rng(0).normal(size=(80, 12, 12, 3)).astype(np.float32)
    pairs = tf.data.Dataset.from_tensor_slices((images, np.arange(80) % 10))
    start = model.get_weights()

    def train(epochs=2, **options):
        model.set_weights(start)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, jit_compile=False)
        batches = pairs.batch(32)  # two, and a smaller one
        history = model.fit(batches, epochs=epochs, verbose=0, **options)
        return [history.history["loss"], *model.get_weights()]

    expected = train()
    names = [each.name for each in tf.config.list_logical_devices()]
    assert len(names) == 2, names
    devices = tf_interop.uniform_device_graph(
        names, multiply_adds_per_s=2e10, memory_bytes_per_s=1e10, bytes_per_s=5e9, latency_s=1e-5
    )
    plan = tf_interop.parallelize(model, device_graph=devices, batch_size=32, training=True)
    tf_interop.enable(parallel=plan)

    class Busy(keras.callbacks.Callback):
        '''Gives the other host long work before each step, so that it begins others late.'''
        def on_train_batch_begin(self, batch, logs=None):
            with tf.device(names[1]):
                ones = tf.ones([1500, 1500])
                for _ in range(5):
                    ones = ones @ ones / 1500

    for ours, stock in zip(train(callbacks=[Busy()]), expected):
        np.testing.assert_allclose(ours, stock, rtol=1e-3, atol=1e-4)
    [graph] = plan.graphs
    planned = [each.sent_bytes for each in graph.prediction.sent]
    sent = [[*each.sent_bytes.values()] for each in tf_interop.status().divided_graphs]
    assert graph.layers and sorted(planned) in map(sorted, sent), (planned, sent)
    print("trained", flush=True)
    if "goes on" in sys.argv:
        train(epochs=1_000_000)
"""


def start_hosts(*arguments: str) -> list[subprocess.Popen[str]]:
    """Starts the program on two hosts, the first one first."""
    cluster = {"worker": free_addresses(2)}
    return [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(OF_A_CLUSTER), *arguments],
            env=os.environ
            | {
                "TF_CONFIG": json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": i}}
                )
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]


@pytest.mark.parametrize("task", [None, ("worker", 3), ("evaluator", 0)])
def test_a_host_must_be_a_task_of_the_cluster(
    task: tuple[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, object] = {"cluster": {"worker": free_addresses(1)}}
    if task is not None:
        config["task"] = {"type": task[0], "index": task[1]}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(ValueError, match=r"Expected TF_CONFIG to have .* got the cluster"):
        tf_interop.join_cluster()


def test_fit_divides_layers_over_the_hosts_of_a_cluster() -> None:
    first, second = start_hosts()
    output, _ = first.communicate(timeout=300)
    assert first.returncode == 0, output
    assert "trained" in output
    # It has served, and ends by itself.
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 0, output


@pytest.mark.slow
def test_a_host_that_dies_ends_the_step_with_an_error() -> None:
    first, second = start_hosts("goes on")
    assert first.stdout is not None
    for line in first.stdout:
        if line == "trained\n":
            break
    time.sleep(2)
    second.kill()
    output, _ = first.communicate(timeout=120)
    assert first.returncode == 1, output
    assert "UnavailableError" in output or "AbortedError" in output, output
