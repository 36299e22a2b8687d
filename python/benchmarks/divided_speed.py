"""Times training steps whose layers two or four processes share, and compares them with the model.

Two processes have one core each. Four have half a core each: one of each two milliseconds, whether
the others work or not (a cgroup of version 1). They are a TensorFlow cluster in network namespaces
of this program's own. A cable (veth) of each leads to a switch (a bridge), and the kernel limits
its rate in each direction (tc-tbf). So it needs root and iproute2.

    python -m python.benchmarks.divided_speed PROGRAM TASK NETWORK ADDRESSES

is one of the processes. PROGRAM is `divided`, in which task 0 trains and the others serve, or
`mirrored`, in which all train a copy under TensorFlow's own strategy.
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

BATCH = 64
TURNS = 5
SECONDS_OF_TURN = 1.0
RATES = {"local": None, "1 Gbit/s": "1gbit", "400 Mbit/s": "400mbit"}
COUNTS = (2, 4)
PLAN = "layer by layer"
_PORT = 4711
# With one thread, a process answers others only after its part of a step.
_THREADS = 4
_MIRRORED_STEPS = 25
_LONGEST_WAIT_S = 600.0
_CORES = 2
_PERIOD_US = 2000
_CGROUPS = pathlib.Path("/sys/fs/cgroup/cpu")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def _network(name: str) -> Any:
    from python.models.googlenet import googlenet
    from python.models.small import CLASSES, lenet, narrow_alexnet, narrow_resnet, narrow_vgg

    made: dict[str, Callable[[], Any]] = {
        "LeNet-5": lenet,
        "narrow VGG": narrow_vgg,
        "narrow AlexNet": narrow_alexnet,
        "GoogLeNet": lambda: googlenet((64, 64), CLASSES),
        "narrow ResNet": narrow_resnet,
    }
    return made[name]()


NETWORKS = ("LeNet-5", "narrow VGG", "narrow AlexNet", "GoogLeNet", "narrow ResNet")


def measure(name: str) -> dict[str, Any]:
    """A row of the result, such as `LeNet-5 on 2, 1 Gbit/s`."""
    words, _, rate = name.partition(", ")
    network, _, count = words.partition(" on ")
    with _hosts(int(count), RATES[rate]) as hosts:
        divided = _run("divided", network, hosts)
        mirrored = _run("mirrored", network, hosts)
    return divided | mirrored


def _run(program: str, network: str, hosts: dict[str, str]) -> dict[str, Any]:
    """Runs a program on all hosts, and returns what task 0 prints."""
    addresses = ",".join(f"{address}:{_PORT}" for address in hosts.values())
    with contextlib.ExitStack() as stack:

        def start(task: int, namespace: str, **pipes: Any) -> subprocess.Popen[str]:
            place = ["ip", "netns", "exec", namespace, "taskset", "-c", str(task % _CORES)]
            module = [sys.executable, "-m", __spec__.name, program, str(task), network, addresses]
            share = min(_CORES / len(hosts), 1.0)
            group = stack.enter_context(_share_of_a_core(namespace, share))
            process = subprocess.Popen([*place, *module], cwd=ROOT, text=True, **pipes)
            (group / "cgroup.procs").write_text(str(process.pid))
            return stack.enter_context(process)

        first, *others = hosts
        for task, each in enumerate(others, 1):
            stack.callback(start(task, each, stderr=subprocess.DEVNULL).kill)
        client = start(0, first, stdout=subprocess.PIPE)
        output, _ = client.communicate()
    if client.returncode:
        raise RuntimeError(f"{network}, {program}: task 0 ended with {client.returncode}.")
    row: dict[str, Any] = json.loads(output.splitlines()[-1])
    return row


@contextlib.contextmanager
def _hosts(count: int, rate: str | None) -> Iterator[dict[str, str]]:
    """The address of each of some network namespaces, which a switch joins."""
    prefix = f"speed{os.getpid()}"
    hosts = {f"{prefix}_{number}": f"10.77.0.{1 + number}" for number in range(count)}
    switch = f"{prefix}s"

    def run(*words: str) -> None:
        subprocess.run(words, check=True)

    try:
        run("ip", "link", "add", switch, "type", "bridge")
        run("ip", "link", "set", switch, "up")
        for number, (name, address) in enumerate(hosts.items()):
            port = f"{prefix}p{number}"
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "link", "add", port, "type", "veth", "peer", "cable", "netns", name)
            run("ip", "link", "set", port, "master", switch, "up")
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "cable")
            run("ip", "-n", name, "link", "set", "cable", "up")
            if rate is not None:
                # A burst of one of the largest packets, which have 64 KiB. Small networks send
                # little more than that at once.
                limit = ["root", "tbf", "rate", rate, "burst", "68k", "latency", "1s"]
                run("tc", "-n", name, "qdisc", "add", "dev", "cable", *limit)
                run("tc", "qdisc", "add", "dev", port, *limit)
        yield hosts
    finally:
        for name in hosts:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        subprocess.run(["ip", "link", "delete", switch], check=False)


@contextlib.contextmanager
def _share_of_a_core(name: str, share: float) -> Iterator[pathlib.Path]:
    """A cgroup whose processes together get at most a share of a core's time."""
    group = _CGROUPS / name
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(share * _PERIOD_US)))
        yield group
    finally:
        group.rmdir()


def _work(task: int, addresses: list[str]) -> None:
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=_THREADS)
    cluster = {"worker": addresses}
    tf.distribute.Server(cluster, job_name="worker", task_index=task, config=config).join()


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

    tf.config.threading.set_inter_op_parallelism_threads(_THREADS)
    cluster = tf.train.ClusterSpec({"worker": addresses})
    tf.config.experimental_connect_to_cluster(cluster, job_name="worker", task_index=0)
    tasks = range(len(addresses))
    names = [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in tasks]
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
        "call ms": devices.call_s * 1e3,
        "copying ms/message": devices.busy_s_of_message * 1e3,
        "copying ms/MB": devices.busy_s_of_byte * 1e9,
        "slowdown": devices.slowdown,
        "memory slowdown": devices.memory_slowdown,
        **{
            f"{name} ms": f"{measured_ms[name]:.3g} ({predicted_ms[name]:.3g})"
            for name in (WHOLE, *(each for each in measured_ms if each != WHOLE))
        },
        "layers divided": len(divisions[PLAN]),
        "against the best other": measured_ms[best] / measured_ms[PLAN],
        "best other": best,
    }


def _mirror(task: int, network: str, addresses: list[str]) -> dict[str, Any]:
    """Steps of copies of a network, whose gradients TensorFlow's collectives add up."""
    worker = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": task}}
    os.environ["TF_CONFIG"] = json.dumps(worker)
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(_THREADS)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    share = BATCH // len(addresses)
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = _network(network)
        optimizer = tf.keras.optimizers.SGD(1e-3, momentum=0.9)
        optimizer.build(model.trainable_variables)
    images = tf.random.normal((share, *model.input_shape[1:]))
    labels = tf.random.uniform((share,), 0, 10, tf.int32)

    def of_copy() -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / BATCH
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    @tf.function(jit_compile=False, autograph=False)  # type: ignore[untyped-decorator]
    def step() -> tf.Tensor:
        return strategy.reduce("sum", strategy.run(of_copy), axis=None)

    times = []
    for _ in range(_MIRRORED_STEPS):  # all tasks take the same number
        start = time.perf_counter()
        step().numpy()
        times.append(time.perf_counter() - start)
    return {"mirrored ms": f"{statistics.median(times[5:]) * 1e3:.3g}"}


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
    title="Layers divided over several processes",
    says="""
Training steps of 64 images, with momentum, on processes of a TensorFlow cluster on one machine: two
with a core each, or four with half a core each. Their connections to a switch are limited to the
rate in each direction. They run on one device (whole), with data and model parallelism, with "one
weird trick", and with the division that tf_interop.parallelize plans. Each has a function of its
own; they take turns. In brackets is the time that the cost model predicts from the measured speed
of the devices and the link, and from a step on one device. "Call" is how much longer a call takes
in which others take part. "Copying" is how long a core works for what it sends or receives.
"Slowdown" is how many times as long a device takes for a convolution while all others compute, and
"memory slowdown" for reads and writes. "Against the best other" is the step of the fastest other
strategy divided by that of the plan. "Mirrored" is tf.distribute.MultiWorkerMirroredStrategy, in
processes of its own on the same hosts; its copies normalize their own images alone, so a network
with batch normalization, as ResNet, does not compute the same as on one device. Where no layer is
divided, the plan is the whole graph again, and their difference shows the error.
""",
    networks=tuple(
        f"{network} on {count}, {rate}"
        for network in NETWORKS
        for count in COUNTS
        for rate in RATES
    ),
    measure=measure,
)


if __name__ == "__main__":
    _, program_, task_, network_, addresses_ = sys.argv
    if program_ == "mirrored":
        row_ = _mirror(int(task_), network_, addresses_.split(","))
        if task_ != "0":
            time.sleep(_LONGEST_WAIT_S)  # task 0 may not have ended; then this one is killed
    elif task_ != "0":
        _work(int(task_), addresses_.split(","))
    else:
        row_ = _train(network_, addresses_.split(","))
    print(json.dumps(row_))
    sys.stdout.flush()
    os._exit(0)  # TensorFlow's server has no end
