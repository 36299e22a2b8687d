"""Sends damaged GraphDefs through the pass under a coverage-guided fuzzer (atheris).

    python tests/fuzz/fuzz_pass.py [LIBFUZZER OPTIONS]

What `damaged_graphs_test.py` tries with drawn edits, with edits that reach new lines. The
pass may refuse a graph with an error of this package; whatever else it raises is a finding, and so
is a graph that TensorFlow imports before the pass and not after it.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys

import atheris

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

with atheris.instrument_imports(include=["tf_interop.graph", "tf_interop.planning"]):
    import tf_interop.runtime.graph_pass  # noqa: F401 (instrumented here, used below)
    from tf_interop.errors import TfInteropError

from damaged_graphs_test import run_pass  # noqa: E402 (the path is set above)
from graph_edits import damage_graph, whole_graph  # noqa: E402

from tf_interop.runtime.plugin import get_plugin  # noqa: E402


def run_damaged(fuzzed: bytes) -> None:
    """Damages a graph as the fuzzer says and runs the pass on it."""
    data = atheris.FuzzedDataProvider(fuzzed)
    graph_def = whole_graph()
    damage_graph(graph_def, lambda count: data.ConsumeIntInRange(0, count - 1), edits=4)
    with contextlib.suppress(TfInteropError):
        run_pass(graph_def)


def main() -> None:
    """Fuzzes the pass."""
    get_plugin()  # registers the op, which graphs that come out hold
    atheris.Setup(sys.argv, run_damaged)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
