"""Serves a network from four threads for 45 minutes, with and without the plugin.

Batch sizes change from call to call, a variable is assigned twice a second, and another TensorFlow
program runs beside. Every result is compared with those of eager TensorFlow for the values that the
variable had during the call. The plugin and stock TensorFlow take turns in one process.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tf_interop
from python.benchmarks.applications import set_random_weights
from python.benchmarks.result_file import Case

THREADS = 4
LARGEST_BATCH = 8
FACTORS = (1.0, 1.5, 0.5, 2.0)  # of the variable that changes
SECONDS_BETWEEN_UPDATES = 0.5
TURNS = 30
SECONDS = {"enabled": 60.0, "stock": 30.0}  # of each turn
TOLERANCE = 1e-3  # of the largest output

OTHER_PROGRAM = """
import tensorflow as tf
model = tf.keras.applications.MobileNetV2(weights=None)
call = tf.function(lambda images: model(images, training=False), autograph=False)
while True:
    call(tf.zeros([2, 224, 224, 3]))
"""


class Server:
    """A network, its inputs, and what it should compute from them."""

    def __init__(self, name: str) -> None:
        model = getattr(tf.keras.applications, name)(weights=None)
        set_random_weights(model)
        self.call = tf.function(
            lambda images: model(images, training=False),
            input_signature=[tf.TensorSpec([None, *model.input_shape[1:]])],
            autograph=False,
        )
        *_, self.variable = (each.value for each in model.variables if "gamma" in each.path)
        self.first = self.variable.numpy()
        numbers = np.random.default_rng(0)
        self.images = [
            tf.constant(numbers.uniform(0, 255, [batch, *model.input_shape[1:]]).astype(np.float32))
            for batch in range(1, LARGEST_BATCH + 1)
        ]
        self.started = self.ended = 0  # updates
        self.expected = []
        for factor in FACTORS:
            self.variable.assign(self.first * factor)
            self.expected.append([model(each, training=False).numpy() for each in self.images])
        self.variable.assign(self.first)
        for one, other in zip(self.expected, self.expected[1:], strict=False):
            if all(self._is_near(*each) for each in zip(one, other, strict=True)):
                raise ValueError(f"Expected another output after an update of '{name}'.")

    @staticmethod
    def _is_near(got: np.ndarray, expected: np.ndarray) -> bool:
        return bool(np.abs(got - expected).max() <= TOLERANCE * np.abs(expected).max())

    def update(self) -> None:
        """Assigns the variable its next value."""
        self.started += 1
        self.variable.assign(self.first * FACTORS[self.started % len(FACTORS)])
        self.ended += 1

    def serve(self, batch_size: int) -> tuple[float, bool]:
        """The milliseconds of a call, and whether its result is right."""
        first = self.ended
        start = time.perf_counter()
        got = self.call(self.images[batch_size - 1]).numpy()
        ms = (time.perf_counter() - start) * 1e3
        present = range(first, self.started + 1)
        return ms, any(
            self._is_near(got, self.expected[update % len(FACTORS)][batch_size - 1])
            for update in present
        )


def measure(name: str) -> dict[str, Any]:
    """Serves one network."""
    server = Server(name)
    times: dict[str, list[float]] = collections.defaultdict(list)
    wrong = collections.Counter[str]()
    tf_interop.enable()
    with _other_program():
        for variant in SECONDS:
            _turn(server, variant, times, wrong)
        times.clear()
        sizes = [_sizes()]
        for _ in range(TURNS):
            for variant in SECONDS:
                _turn(server, variant, times, wrong)
            sizes.append(_sizes())
            print(*(f"{size:.0f} {what}" for what, size in sizes[-1].items()), sep=", ", flush=True)
    row: dict[str, Any] = {"network": name, "wrong results": wrong.total()}
    for variant, seconds in SECONDS.items():
        found = times[variant]
        row |= {
            f"{variant}: calls a second": len(found) / (TURNS * seconds),
            f"{variant}: median ms": float(np.median(found)),
            f"{variant}: 99.9 % ms": float(np.quantile(found, 0.999)),
            f"{variant}: longest ms": max(found),
        }
    for name, after in sizes[-1].items():
        row[f"more {name}"] = after - sizes[0][name]
        row[f"of them in the last third: {name}"] = after - sizes[TURNS * 2 // 3][name]
    return row


def _turn(
    server: Server, variant: str, times: dict[str, list[float]], wrong: collections.Counter[str]
) -> None:
    tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": variant == "enabled"})
    end = time.monotonic() + SECONDS[variant]
    errors: list[BaseException] = []
    lock = threading.Lock()

    def work(seed: int) -> None:
        choose = random.Random(seed)
        try:
            while time.monotonic() < end:
                ms, is_right = server.serve(choose.randint(1, LARGEST_BATCH))
                with lock:
                    times[variant].append(ms)
                    wrong[variant] += not is_right
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        time.sleep(SECONDS_BETWEEN_UPDATES)
        server.update()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@contextlib.contextmanager
def _other_program() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", OTHER_PROGRAM], stderr=subprocess.DEVNULL) as it:
        try:
            yield
            if it.poll() is not None:
                raise RuntimeError(f"The program beside ended with code {it.returncode}.")
        finally:
            it.kill()


class _MallocInfo(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _sizes() -> dict[str, float]:
    """The threads of this process, its memory, and what it has from malloc."""
    status = dict(
        line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines()
    )
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallocInfo
    info = mallinfo2()
    return {
        "threads": int(status["Threads"]),
        "MiB": int(status["VmRSS"].split()[0]) / 1024,
        "MiB in use": (info.uordblks + info.hblkhd) / 2**20,
    }


CASE = Case(
    title="Serving for 45 minutes beside another program",
    says=f"""
Four threads call a network with one to {LARGEST_BATCH} images, one of its variables changes twice
a second, and another program runs MobileNetV2 in stock TensorFlow all the time. `enable()` has
turns of one minute, half an hour in all, and stock TensorFlow half as much. A result is wrong if
it differs from those for all values that the variable had during the call. Threads and memory are
those of the process at the end, less those after the first turns, and less those after two thirds
of the others. Memory in use is what malloc has given out; the rest is free and waits in malloc's
arenas.
""",
    networks=("MobileNetV2",),
    measure=measure,
    is_right=lambda row: row["wrong results"] == 0,
)
