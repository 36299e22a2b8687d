"""Times eager calls of functions that XLA compiles and that have no convolutions."""

from __future__ import annotations

import statistics
import time
from typing import Any

from python.benchmarks.result_file import Case

TURNS = 9
CALLS = {"1 operation": 3000, "300 variables": 300}
MODES = ("stock TensorFlow", "tf_interop off", "tf_interop on")


def measure(mode: str) -> dict[str, Any]:
    """A row of the result."""
    import tensorflow as tf

    if mode != MODES[0]:
        import tf_interop

        (tf_interop.enable if mode == MODES[2] else tf_interop.disable)()
    variables = [tf.Variable(tf.ones([4])) for _ in range(300)]
    value = tf.ones([4])
    functions = {
        "1 operation": lambda x: x + 1,
        "300 variables": lambda x: x + tf.add_n([each.read_value() for each in variables]),
    }
    row: dict[str, Any] = {}
    for name, function in functions.items():
        compiled = tf.function(function, jit_compile=True, autograph=False)
        turns = []
        for _ in range(TURNS + 1):
            start = time.perf_counter()
            for _ in range(CALLS[name]):
                compiled(value)
            turns.append((time.perf_counter() - start) / CALLS[name] * 1e6)
        # The first turn compiles.
        row[f"{name}, µs"] = statistics.median(turns[1:])
    return row


CASE = Case(
    title="Calls of functions that XLA compiles, without convolutions",
    says="""
Eager calls of two functions with jit_compile=True that tf_interop does not change: the median of
nine turns, in a process each for stock TensorFlow alone, and with tf_interop imported and off or
on. While it is on, it looks at each such call once more before XLA runs it.
""",
    networks=MODES,
    measure=measure,
)
