"""Several devices in one process, and several processes."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from unnoticed import ROOT, run_python

from tf_interop import tensorflow_internals
from tf_interop.graph.device_names import is_local

# Devices have to be there before TensorFlow starts.
DEVICES = '''
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from tf_interop.graph.program import decode_stage
    from tf_interop.runtime.plugin import get_plugin
    from unnoticed import stages_run

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 3
    )
    NAMES = ["CPU:0", "CPU:1", "CPU:2"]

    def stages_by_device(call):
        """What a call returns, and how many convolutions each stage has that it makes, by device.
        """
        device_of, counts = {}, {}
        def look(graph_def, _):
            for node in graph_def.node:
                if node.op != "TfInterop>ConvStage":
                    device_of[node.name] = node.device
                    continue
                steps = [each.name for each in decode_stage(node).operations]
                assert {device_of[name] for name in steps} == {node.device}
                counts.setdefault(node.device[-len("CPU:0"):], {})[node.name] = len(steps)
        with get_plugin().observe(look):
            result = call()
        # What fails in an observer fails in the pass.
        assert tf_interop.status().failures == (), tf_interop.status().failures
        return result, {name: sorted(each.values()) for name, each in sorted(counts.items())}

    def again_with_its_plan(call):
        plan = tf_interop.status().plan
        tf_interop.disable()
        tf_interop.enable(plan=plan)
        return stages_by_device(call)
'''


def test_mirrored_training_gives_the_same_weights() -> None:
    run_python(
        f"""{DEVICES}
    IMAGES = np.random.default_rng(0).random((12, 8, 8, 3), np.float32)
    LABELS = IMAGES[:, 0, 0, :2]

    def train():
        layers = tf.keras.layers
        tf.keras.utils.set_random_seed(1)
        with tf.distribute.MirroredStrategy(NAMES).scope():
            image = tf.keras.Input((8, 8, 3))
            outputs = [layers.Conv2D(4, size, padding="same", name=f"{{size}}x{{size}}")(image)
                       for size in (1, 3)]
            x = layers.GlobalAveragePooling2D()(layers.Concatenate()(outputs))
            model = tf.keras.Model(image, layers.Dense(2)(x), name="branches")
            model.compile(tf.keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        model.fit(IMAGES, LABELS, batch_size=6, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    tf_interop.disable()
    expected, counts = stages_by_device(train)
    assert counts == {{}}
    tf_interop.enable("always")
    before = stages_run()
    weights, counts = stages_by_device(train)
    # Forward, and the gradients by filter, in each replica and each of four steps.
    assert counts == {{name: [2, 2] for name in NAMES}}, counts
    assert stages_run() - before == 2 * 3 * 4
    planned, counts = again_with_its_plan(train)
    assert counts == {{name: [2, 2] for name in NAMES}}, counts
    for ours, stock, of_plan in zip(weights, expected, planned):
        # TensorFlow's convolutions of random numbers round in another order.
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(of_plan, ours)
    """
    )


TIMEOUT_S = 180
STEPS = 4

# A worker of two: trains with stages and without, and writes the weights.
WORKER = f"""
    import sys
    import numpy as np
    import tensorflow as tf
    import tf_interop

    tf_interop.enable("always")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == 2
    random = np.random.default_rng(strategy.cluster_resolver.task_id)
    batch = [tf.constant(random.random((4, *shape), np.float32)) for shape in ((8, 8, 3), (2,))]
    random = np.random.default_rng(7)
    shapes = [(1, 1, 3, 4), (3, 3, 3, 4), (5, 5, 3, 4), (12, 2)]
    start = [random.normal(0, 0.2, shape).astype(np.float32) for shape in shapes]

    def train():
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

        step = tf.function(lambda: strategy.run(replica_step, batch))
        for _ in range({STEPS}):
            step()
        return [variable.numpy() for variable in variables]

    with_stages = train()
    stages_run = tf_interop.status().counters.stages_run
    tf_interop.disable()
    without = train()
    assert tf_interop.status().counters.stages_run == stages_run
    # The three convolutions are a stage, and their gradients by filter another.
    assert stages_run == 2 * {STEPS}, tf_interop.status()
    for ours, stock in zip(with_stages, without):
        # TensorFlow's convolutions of random numbers round in another order.
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-6)
    np.savez(sys.argv[1], *with_stages)
"""


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def test_two_workers_reach_the_same_weights(tmp_path: pathlib.Path) -> None:
    cluster = {"worker": free_addresses(2)}
    workers = []
    try:
        for index in range(2):
            config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            workers.append(
                subprocess.Popen(
                    [sys.executable, "-c", textwrap.dedent(WORKER), tmp_path / f"{index}.npz"],
                    env=os.environ | {"TF_CONFIG": json.dumps(config), "PYTHONPATH": str(ROOT)},
                    stderr=(tmp_path / f"{index}.log").open("w"),
                )
            )
        for index, worker in enumerate(workers):
            status = worker.wait(TIMEOUT_S)
            assert status == 0, (tmp_path / f"{index}.log").read_text()[-4000:]
    finally:
        # One that failed leaves the other waiting for it.
        for worker in workers:
            worker.kill()
            worker.wait()
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
def test_a_device_is_local_in_the_task_that_the_context_says_it_is(
    device: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorflow_internals, "local_task", lambda: ("worker", 1))
    assert is_local(device) == expected


def test_a_process_without_the_plugin_gets_no_units() -> None:
    """This process optimizes what its functions run in another one."""
    run_python(
        """
    import socket
    import subprocess
    import sys
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from tf_interop.runtime.plugin import get_plugin
    from unnoticed import IMAGE, conv

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    serve = "; ".join((
        "import sys",
        "import tensorflow as tf",
        f"server = tf.distribute.Server({{'worker': ['{address}']}}, 'worker', 0)",
        "print('up', flush=True)",
        "sys.stdin.read()",
    ))
    pipe = subprocess.PIPE
    worker = subprocess.Popen([sys.executable, "-c", serve], stdin=pipe, stdout=pipe)
    devices = set()

    def look(graph_def, _):
        devices.update(node.device for node in graph_def.node if node.op == "TfInterop>Unit")

    @tf.function
    def here_and_there(image):
        here = tf.nn.relu(conv(image, 0)) * 2
        with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
            there = tf.nn.relu(conv(image, 0)) * 2
        return here, there

    try:
        worker.stdout.readline()
        tf_interop.enable("always")
        cluster = tf.train.ClusterSpec({"worker": [address]})
        tf.config.experimental_connect_to_cluster(cluster)
        with get_plugin().observe(look):
            here, there = here_and_there(tf.constant(IMAGE))
        np.testing.assert_array_equal(here, there)
        status = tf_interop.status()
        assert not status.failures and status.plan.graphs[0].narrow_units, str(status)
        assert devices and not any("worker" in device for device in devices), devices
    finally:
        worker.kill()
    """,
        TF_INTEROP_HOST_STAGES="0",
    )
