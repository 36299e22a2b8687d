"""Stages on a CPU where the system gives no further thread."""

from __future__ import annotations

import pathlib

import pytest
from unnoticed import run_python

TESTS = pathlib.Path(__file__).parent.parent

PROGRAM = """
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
        ran = run_python(PROGRAM, PYTHONPATH=str(TESTS), MALLOC_PERTURB_="165")
    except AssertionError as error:
        # TensorFlow ends the process where it gets no thread for a pool of its own, which it
        # seldom asks for so late.
        if "tsl::thread::ThreadPool" in str(error) and "pthread_create() failed" in str(error):
            pytest.skip("TensorFlow itself asked for a thread")
        raise
    assert "ran without threads" in ran
