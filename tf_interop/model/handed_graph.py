"""The graph of a function as Grappler hands it over to the plugin."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tensorflow.core.framework import graph_pb2

from tf_interop import tensorflow_internals
from tf_interop.errors import LibraryError
from tf_interop.model.graph_counts import count_convolution_nodes
from tf_interop.runtime.plugin import Plugin, get_plugin
from tf_interop.runtime.settings import Settings


def graph_handed_over(run: Callable[[], object]) -> graph_pb2.GraphDef | None:
    """Runs a function once, with the plugin looking on, and rewriting nothing.

    TensorFlow optimizes a function when it runs it for the first time, and hands the graph over
    twice; the second has seen more of Grappler's passes, and is what is run. No function should run
    in another thread meanwhile: its graph may be taken for this one, and is not rewritten.

    Args:
        run: runs a function that has not been run before.

    Returns:
        The graph with the most convolutions of those that were handed over, the last one of these;
        None where none holds a convolution.

    Raises:
        LibraryError: the compiled library is missing or does not fit, or TensorFlow did not take
            its plugin.
    """
    plugin = get_plugin()
    if not plugin.device_types:
        raise LibraryError(" ".join(plugin.refused_device_types.values()))
    largest: graph_pb2.GraphDef | None = None
    most = 1

    def look_at(graph_def: graph_pb2.GraphDef, _device_type: str) -> None:
        nonlocal largest, most
        count = count_convolution_nodes(graph_def)
        if count >= most:
            largest, most = graph_def, count

    with _rewriting_nothing(plugin), plugin.observe(look_at):
        run()
    return largest


@contextlib.contextmanager
def _rewriting_nothing(plugin: Plugin) -> Iterator[None]:
    """Has the plugin called and leave graphs alone, whatever the user asked for."""
    settings = plugin.settings
    is_off = tensorflow_internals.plugin_optimizers_option() is False
    plugin.settings = Settings()
    try:
        if is_off:
            tensorflow_internals.set_plugin_optimizers_option(True)
        yield
    finally:
        if is_off:
            tensorflow_internals.set_plugin_optimizers_option(False)
        plugin.settings = settings
