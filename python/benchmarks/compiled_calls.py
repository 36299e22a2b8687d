"""Times eager calls of functions that XLA compiles and that have no convolutions."""

from __future__ import annotations

import statistics
import time
from typing import Any

from python.benchmarks.result_file import Case

TURNS = 15
VARIABLES = {"1 operation": 0, "300 variables": 300}


def measure(name: str) -> dict[str, Any]:
    """A row of the result."""
    import tensorflow as tf

    variables = [tf.Variable(tf.ones([4])) for _ in range(VARIABLES[name])]
    value = tf.ones([4])
    calls = 300 if variables else 3000

    @tf.function(jit_compile=True, autograph=False)
    def compiled(x: tf.Tensor) -> tf.Tensor:
        return tf.add_n([x, x, *(each.read_value() for each in variables)])

    def turn_us() -> float:
        for _ in range(calls // 10):  # after a change it is compiled anew
            compiled(value)
        start = time.perf_counter()
        for _ in range(calls):
            compiled(value)
        return (time.perf_counter() - start) / calls * 1e6

    stock = [turn_us() for _ in range(TURNS)]

    import tf_interop

    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(TURNS):
        for is_on in (False, True):
            (tf_interop.enable if is_on else tf_interop.disable)()
            times[is_on].append(turn_us())
    return {
        "stock, µs": statistics.median(stock),
        "off, µs": statistics.median(times[False]),
        "on, µs": statistics.median(times[True]),
        "on against off, µs": statistics.median(
            on - off for off, on in zip(times[False], times[True], strict=True)
        ),
    }


CASE = Case(
    title="Calls of functions that XLA compiles, without convolutions",
    says=f"""
Eager calls of functions with jit_compile=True that tf_interop does not change, in one process: the
median of {TURNS} turns before tf_interop is imported, and then of as many with it off and on, which
alternate. The last column is the median difference of such a pair. With many variables calls are
shorter while it is on, because it lets TensorFlow compute the hash of a function's type only once.
""",
    networks=tuple(VARIABLES),
    measure=measure,
)
