"""Times training steps whose layers two processes share, and compares them with the model.

Each process has one core. They are a TensorFlow cluster in two network namespaces of this program's
own, joined by a cable (veth) whose rate the kernel limits in each direction (tc-tbf), so it needs
root and iproute2.

    python -m python.benchmarks.divided_speed ROLE NETWORK ADDRESSES

is one of the two processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from python.benchmarks.result_file import Case

BATCH = 32
TURNS = 5
SECONDS_OF_TURN = 1.0
RATES = {"local": None, "10 Gbit/s": "10gbit", "1 Gbit/s": "1gbit", "200 Mbit/s": "200mbit"}
PLAN = "layer by layer"
_HOSTS = ("10.77.0.1", "10.77.0.2")
_PORT = 4711
ROOT = pathlib.Path(__file__).resolve().parents[2]


def _network(name: str) -> Any:
    from python.models.googlenet import googlenet
    from python.models.small import CLASSES, lenet, narrow_alexnet, narrow_vgg, resnet

    made: dict[str, Callable[[], Any]] = {
        "LeNet-5": lenet,
        "narrow VGG": narrow_vgg,
        "narrow AlexNet": narrow_alexnet,
        "GoogLeNet": lambda: googlenet((32, 32), CLASSES),
        "ResNet-8": resnet,
    }
    return made[name]()


NETWORKS = ("LeNet-5", "narrow VGG", "narrow AlexNet", "GoogLeNet", "ResNet-8")


def measure(name: str) -> dict[str, Any]:
    """A row of the result: of a network and a rate, such as `LeNet-5, 1 Gbit/s`."""
    network, _, rate = name.partition(", ")
    with _namespaces(RATES[rate]) as prefixes:
        addresses = ",".join(f"{host}:{_PORT}" for host in _HOSTS)

        def start(role: str, core: int, **pipes: Any) -> subprocess.Popen[str]:
            program = [sys.executable, "-m", __spec__.name, role, network, addresses]
            words = [*prefixes[core], "taskset", "-c", str(core), *program]
            return subprocess.Popen(words, cwd=ROOT, text=True, **pipes)

        with start("worker", 1, stderr=subprocess.DEVNULL) as worker:
            try:
                with start("client", 0, stdout=subprocess.PIPE) as client:
                    output, _ = client.communicate()
            finally:
                worker.kill()
    if client.returncode:
        raise RuntimeError(f"{name}: the process that trains ended with {client.returncode}.")
    row: dict[str, Any] = json.loads(output.splitlines()[-1])
    return row


@contextlib.contextmanager
def _namespaces(rate: str | None) -> Iterator[list[list[str]]]:
    """Two joined network namespaces; the words that run a command in each."""
    names = [f"divided_speed_{os.getpid()}_{number}" for number in range(2)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        cable = ["link", "add", "cable", "type", "veth", "peer", "cable", "netns"]
        ip("-n", names[0], *cable, names[1])
        for name, host in zip(names, _HOSTS, strict=True):
            ip("-n", name, "address", "add", f"{host}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            if rate is not None:
                # A burst of several of the largest packets, which have 64 KiB.
                limit = ["rate", rate, "burst", "256k", "latency", "1s"]
                shaping = ["qdisc", "add", "dev", "cable", "root", "tbf", *limit]
                subprocess.run(["tc", "-n", name, *shaping], check=True)
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def _work(addresses: list[str]) -> None:
    import tensorflow as tf

    tf.distribute.Server({"worker": addresses}, job_name="worker", task_index=1).join()


def _train(network: str, addresses: list[str]) -> dict[str, Any]:
    """Steps of each strategy in turns, beside the model's predictions."""
    import tensorflow as tf

    import tf_interop
    from python.benchmarks.divided_training import handed_layers, on_first_devices, plan_of
    from tf_interop.parallel.costs.local_devices import measure_devices
    from tf_interop.parallel.divide import Divider
    from tf_interop.parallel.explain import WHOLE, baselines
    from tf_interop.parallel.make_division import make_division
    from tf_interop.runtime.plugin import get_plugin
    from tf_interop.runtime.settings import Settings

    cluster = tf.train.ClusterSpec({"worker": addresses})
    tf.config.experimental_connect_to_cluster(cluster, job_name="worker", task_index=0)
    names = [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in range(2)]
    devices = measure_devices(names)

    tf.keras.utils.set_random_seed(0)
    model = _network(network)
    images = tf.random.normal((BATCH, *model.input_shape[1:]))
    labels = tf.random.uniform((BATCH,), 0, 10, tf.int32)
    optimizer = tf.keras.optimizers.SGD(1e-3, momentum=0.9)
    optimizer.build(model.trainable_variables)

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    layers = handed_layers(tf.function(step, jit_compile=False, autograph=False))
    get_plugin().settings = Settings()  # as all steps below, without units
    planned = make_division(
        layers,
        devices,
        mode="training",
        step_s=_median_s(tf.function(step, jit_compile=False, autograph=False)),
    )
    divisions = {
        name: on_first_devices(layers, degrees)
        for name, degrees in baselines(layers, len(names)).items()
    }
    divisions[PLAN] = planned.layers
    assert planned.prediction is not None
    predicted_ms = {name: us / 1e3 for name, us in planned.prediction.steps_us.items()}
    predicted_ms[PLAN] = planned.prediction.step_us / 1e3

    # A function keeps the graph that it had at its first calls.
    Divider(plan_of(layers, (), names)).turn_on()
    functions = {}
    for name, division in divisions.items():
        get_plugin().settings = Settings(divider=Divider(plan_of(layers, division, names)))
        get_plugin().forget_reports()
        functions[name] = tf.function(step, jit_compile=False, autograph=False)
        for _ in range(2):  # the second call makes the shares of variables
            functions[name]().numpy()
        status = tf_interop.status()
        if status.failures or (division and not status.divided_graphs):
            raise RuntimeError(f"Expected divided layers for {name}, got {status}.")
    turns: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(TURNS):
        for name, function in functions.items():
            turns[name].append(_median_s(function) * 1e3)
    measured_ms = {name: statistics.median(its) for name, its in turns.items()}
    best = min((name for name in measured_ms if name != PLAN), key=lambda name: measured_ms[name])
    return {
        "link MB/s": devices.bytes_per_s[0][1] / 1e6,
        "latency ms": devices.latency_s[0][1] * 1e3,
        "message ms": devices.message_s[0][1] * 1e3,
        **{
            f"{name} ms": f"{measured_ms[name]:.3g} ({predicted_ms[name]:.3g})"
            for name in (WHOLE, *(each for each in measured_ms if each != WHOLE))
        },
        "layers divided": len(divisions[PLAN]),
        "against the best other": measured_ms[best] / measured_ms[PLAN],
        "best other": best,
    }


def _median_s(function: Callable[[], Any]) -> float:
    """The median time of calls for one turn; the first call does not count."""
    function().numpy()
    times: list[float] = []
    while sum(times) < SECONDS_OF_TURN:
        start = time.perf_counter()
        function().numpy()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


CASE = Case(
    title="Layers divided over two processes",
    says="""
Training steps of 32 images, with momentum, on two processes of a TensorFlow cluster on one machine,
one core each, whose connection is limited to the rate in each direction: on one device (whole),
with data and model parallelism, with "one weird trick", and with the division that
tf_interop.parallelize plans. Each has a function of its own; they take turns. In brackets is the
time that the cost model predicts from the measured speed of the devices and the link, and from a
step on one device. "Against the best other" is the step of the fastest other strategy divided by
that of the plan. Where no layer is divided, the plan is the whole graph again, and their difference
shows the error.
""",
    networks=tuple(f"{network}, {rate}" for network in NETWORKS for rate in RATES),
    measure=measure,
)


if __name__ == "__main__":
    _, role_, network_, addresses_ = sys.argv
    if role_ == "worker":
        _work(addresses_.split(","))
    else:
        print(json.dumps(_train(network_, addresses_.split(","))))
        sys.stdout.flush()
        os._exit(0)  # TensorFlow's server has no end
