"""Units on groups of cores, in processes that may have more threads than the machine has cores."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from tensorflow.python.framework import test_util
from unnoticed import run_python

# A filter gradient's bits show the number of threads: oneDNN's kernels for AVX-512 add it up in
# that many parts.
START = """
    import json, os, pathlib, traceback
    import numpy as np
    import tensorflow as tf
    tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["CORES"]))
    tf.config.threading.set_inter_op_parallelism_threads(int(os.environ["THREADS"]))
    from stage_program import operation
    from unit_program import (
        PLAIN, assert_same_bits, call_divided, chain, in_graph, self_timed, stock, values_of_chain)
    import tf_interop
    from tf_interop.runtime.kernel_library import load_kernel_library
    tf_interop.disable()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    unit = tf.load_op_library(str(load_kernel_library().build_info.path)).tf_interop_unit

    gradient = [operation(
        "gradient", "Conv2DBackpropFilter", ["inputs:0", "inputs:1", "inputs:2"], **PLAIN)]

    def values(batch_size, side=32):
        random = np.random.default_rng(batch_size)
        images = random.standard_normal([2, batch_size, side, side, 16], np.float32)
        return images[0], np.array([3, 3, 16, 16], np.int32), images[1]

    def with_cores(cores):
        return in_graph(unit, gradient, ["steps:0:0"], cores=cores)

    def bits(results):
        return [each.numpy().tobytes().hex() for each in results]

    def check_no_threads_of_ours():
        files = pathlib.Path("/proc/self/task").glob("*/comm")
        names = [each.read_text().strip() for each in files]
        assert not any("interop" in name for name in names), names
"""


def run(program: str, cores: int = 4, threads: int = 4) -> Any:
    """Runs a program with `cores` intra-op threads and returns the JSON that it prints."""
    printed = run_python(
        START + program,
        CORES=str(cores),
        THREADS=str(threads),
        TF_INTEROP_HOST_STAGES="0",
        TF_MKL_OPTIMIZE_PRIMITIVE_MEMUSE="0",  # otherwise gradients do not use the cache
    )
    return json.loads(printed.splitlines()[-1]) if printed else None


shows_threads = pytest.mark.skipif(
    not test_util.IsMklEnabled() or "avx512f" not in pathlib.Path("/proc/cpuinfo").read_text(),
    reason="no kernels of oneDNN for AVX-512",
)


@shows_threads
def test_a_group_computes_as_stock_on_as_many_cores() -> None:
    program = """
    widths = [with_cores(number) for number in (1, 2, 3, 4, 5)]
    found = [[bits(each(*values(4)))[0] for each in widths] for _ in range(2)]
    assert found[0] == found[1]
    print(json.dumps(found[0] + bits(stock(gradient, ["steps:0:0"])(*values(4)))))
    """
    # On one thread, which keeps oneDNN's primitives for every number of cores.
    *of_four, stock_of_four = run(program, threads=1)
    *of_two, stock_of_two = run(program, cores=2, threads=1)
    assert of_four[3:] == [stock_of_four] * 2
    assert len(set(of_four)) == 4
    assert of_four[1] == of_two[1] == stock_of_two
    assert of_four[0] == of_two[0] != stock_of_two


CHECKS = """
    def a_third_unit_gets_only_its_calling_thread():
        image, sizes, other = map(tf.constant, values(4, side=128))
        one, two = with_cores(1), with_cores(2)
        images = [number * image for number in (1, 2, 3)]  # or TensorFlow merges them
        cores_of = {bits(run(each, sizes, other))[0]: cores
                    for cores, run in ((1, one), (2, two)) for each in images}
        assert len(cores_of) == 6
        check_no_threads_of_ours()
        three = tf.function(
            lambda: [two(each, sizes, other)[0] for each in images], autograph=False)
        seen = set()
        for _ in range(2000):  # they seldom overlap on a busy machine
            seen.add(tuple(sorted(cores_of[each] for each in bits(three()))))
            if (1, 2, 2) in seen:
                break
        assert (1, 2, 2) in seen, seen

    def neither_calls_nor_errors_keep_a_group():
        expected = bits(with_cores(2)(*values(4)))
        product = [operation("product", "MatMul", ["inputs:0", "inputs:1"])]
        failing = in_graph(unit, product, ["steps:0:0"], cores=2)
        small = with_cores(2)
        for _ in range(1000):
            small(*values(4, side=4))
        for _ in range(3):
            try:
                failing(np.ones([2, 3], np.float32), np.ones([4, 5], np.float32))
            except tf.errors.InvalidArgumentError:
                continue
            raise AssertionError("The shapes do not fit.")
        check_no_threads_of_ours()
        assert bits(with_cores(2)(*values(4))) == expected

    def parts_of_a_small_batch_share_all_cores():
        results = ["steps:0:0", "steps:4:0"]
        own = stock(chain(), results)
        for size in (2, 3, 8):
            given, inputs = self_timed(), values_of_chain(size)
            run = in_graph(unit, chain(), results, **given)
            divided = call_divided(lambda: run(*inputs), given["timed_graph"])
            assert_same_bits(divided, own(*inputs))

    failures = {}
    for check in (a_third_unit_gets_only_its_calling_thread, neither_calls_nor_errors_keep_a_group,
                  parts_of_a_small_batch_share_all_cores):
        try:
            check()
            check_no_threads_of_ours()
        except BaseException:
            failures[check.__name__] = traceback.format_exc()
    print(json.dumps(failures))
"""


@pytest.fixture(scope="module", name="failures")
def fixture_failures() -> Any:
    """The tracebacks of the checks that failed, by their names; all run in one process."""
    return run(CHECKS)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param("a_third_unit_gets_only_its_calling_thread", marks=shows_threads),
        pytest.param("neither_calls_nor_errors_keep_a_group", marks=shows_threads),
        "parts_of_a_small_batch_share_all_cores",
    ],
)
def test_no_threads_of_ours_run_and(check: str, failures: dict[str, str]) -> None:
    assert failures.get(check, "") == ""
