"""Compares networks with tf_interop.enable() and in stock TensorFlow, on this machine's CPU.

The networks are from Keras, with random weights. Stock TensorFlow and tf_interop take turns.
Outputs are compared, too.

Example: python python/examples/demonstration.py --network ResNet50 --batch 8
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click

click.echo("Importing TensorFlow …", err=True)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import tf_interop  # noqa: E402

NETWORKS = ("MobileNetV2", "EfficientNetB0", "ResNet50", "DenseNet121")

TURNS = 2


def set_statistics(model: tf.keras.Model) -> None:
    """Gives normalizations the statistics of their inputs; with fresh ones activations vanish."""
    layers = [layer for layer in model.layers if hasattr(layer, "moving_variance")]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    model(tf.random.normal((4, *model.input_shape[1:])), training=True)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


def median_ms(step: Callable[[], object], seconds: float) -> float:
    """The median time of a step, once the graph has found out how it runs fastest."""
    step()
    while any(timing.is_trying for timing in tf_interop.status().self_timings):
        step()
    times: list[float] = []
    while sum(times) < seconds:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


@click.command(help=__doc__)
@click.option("--network", "names", multiple=True, help="An application of Keras.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--seconds", type=float, default=2.0, show_default=True, help="Of each round.")
def main(names: tuple[str, ...], batch: int, seconds: float) -> None:
    """Runs the demonstration."""
    console = Console(soft_wrap=True, highlight=False)
    columns = ("network", "stock TensorFlow", "enable()", "times as fast", "outputs differ by")
    table = Table(title=f"A call with {batch} image{'s' * (batch > 1)}")
    for column in columns:
        table.add_column(column, justify="left" if column == "network" else "right")
    for name in names or NETWORKS:
        tf.keras.utils.clear_session()
        tf.keras.utils.set_random_seed(0)
        model = getattr(tf.keras.applications, name)(weights=None)
        images = tf.random.normal((batch, *model.input_shape[1:]))
        set_statistics(model)

        def infer(model: tf.keras.Model = model, images: tf.Tensor = images) -> tf.Tensor:
            return model(images, training=False)

        infer.__name__ = name  # which the status shows
        run = tf.function(infer)
        times: dict[bool, list[float]] = {False: [], True: []}
        outputs: dict[bool, np.ndarray] = {}
        for is_on in (False, True) * TURNS:
            click.echo(f"{name}: {columns[2 if is_on else 1]}", err=True)
            (tf_interop.enable if is_on else tf_interop.disable)()
            times[is_on].append(median_ms(run, seconds))
            outputs[is_on] = run().numpy()
        stock, ours = (statistics.fmean(times[is_on]) for is_on in (False, True))
        difference = np.max(np.abs(outputs[True] - outputs[False])) / np.max(np.abs(outputs[False]))
        cells = (f"{stock:.1f} ms", f"{ours:.1f} ms", f"{stock / ours:.2f}", f"{difference:.0e}")
        table.add_row(name, *cells)
    console.print(table)
    console.print('"Outputs differ by": the largest difference, divided by the largest output.')
    console.print(f"The last network: {tf_interop.status()}")


if __name__ == "__main__":
    main()
