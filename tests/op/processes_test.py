"""The op in processes of its own: what has no way back in one that goes on."""

from __future__ import annotations

import pytest
from unnoticed import run_python

DETERMINISTIC = """
import numpy as np, tensorflow as tf, tf_interop
from tf_interop import tensorflow_internals
assert not tensorflow_internals.is_op_determinism_on()
tf.config.experimental.enable_op_determinism()
tf.random.set_seed(0)
assert tensorflow_internals.is_op_determinism_on()
filters = [np.random.default_rng(seed).normal(size=[3, 3, 4, 8]) for seed in (1, 2)]
image = tf.constant(np.random.default_rng(0).normal(size=[3, 9, 9, 4]), tf.float32)

@tf.function
def gradients(image):
    with tf.GradientTape() as tape:
        variables = [tf.cast(each, tf.float32) for each in filters]
        tape.watch(variables)
        loss = sum(tf.reduce_sum(tf.nn.conv2d(image, each, 1, "SAME") ** 2) for each in variables)
    return tape.gradient(loss, variables)

tf_interop.enable("always")
runs = [[each.numpy() for each in gradients(image)] for _ in range(5)]
assert tf_interop.status().stage_count and tf_interop.status().counters.stages_run
for run in runs[1:]:
    for one, other in zip(run, runs[0]):
        np.testing.assert_array_equal(one, other)
"""


def test_runs_with_op_determinism() -> None:
    run_python(DETERMINISTIC)


WITHOUT_THREADS = """
import ctypes, pathlib, re, resource

import numpy as np, tensorflow as tf
from stage_program import arguments, operation, program

import tf_interop
from tf_interop.runtime.kernel_library import load_kernel_library

library = load_kernel_library().build_info.path
conv_stage = tf.load_op_library(str(library)).tf_interop_conv_stage
plain = {"strides": [1, 1, 1, 1], "padding": "SAME"}
two = [operation(name, "Conv2D", ["inputs:0", "inputs:1"], **plain) for name in "ab"]
filters = tf.constant(np.arange(-9, 9, dtype=np.float32).reshape([3, 3, 1, 2]))
image = tf.constant(np.arange(64, dtype=np.float32).reshape([1, 8, 8, 1]))

@tf.function(autograph=False)
def own(image):
    return tf.nn.conv2d(image, filters, 1, "SAME")

@tf.function(autograph=False)
def stages(image):
    for _ in range(4):
        image = conv_stage(**arguments([image[..., :1], filters], [], program(two)))[1]
    return image

expected = image
for _ in range(4):
    expected = own(expected[..., :1])
# A thread takes more memory for its stack from now on than this process may still have.
stack_bytes = 1 << 30
attributes = ctypes.create_string_buffer(256)
c = ctypes.CDLL(None)
assert c.pthread_attr_init(attributes) == 0
assert c.pthread_attr_setstacksize(attributes, ctypes.c_size_t(stack_bytes)) == 0
assert c.pthread_setattr_default_np(attributes) == 0
status = pathlib.Path("/proc/self/status").read_text()
most = 1024 * int(re.search(r"VmSize:\\s+(\\d+)", status)[1]) + stack_bytes // 2
resource.setrlimit(resource.RLIMIT_AS, (most, most))
threads = len(list(pathlib.Path("/proc/self/task").iterdir()))
for _ in range(20):
    np.testing.assert_array_equal(stages(image), expected)
assert len(list(pathlib.Path("/proc/self/task").iterdir())) == threads
assert tf_interop.status().counters.stages_run == 80
print("ran without threads")
"""


def test_a_stage_runs_on_the_thread_that_calls_it() -> None:
    # What is freed is overwritten, so that whoever reads it is found out.
    try:
        ran = run_python(WITHOUT_THREADS, MALLOC_PERTURB_="165")
    except AssertionError as error:
        # TensorFlow ends the process where it gets no thread for a pool of its own, which it
        # seldom asks for so late.
        if "tsl::thread::ThreadPool" in str(error) and "pthread_create() failed" in str(error):
            pytest.skip("TensorFlow itself asked for a thread")
        raise
    assert "ran without threads" in ran
