"""Packages installed on this machine, as repositories: TensorFlow and GoogleTest.

TensorFlow comes from a Python environment. The variable TF_INTEROP_PYTHON names its interpreter;
the default is this workspace's .venv/bin/python, which scripts/setup.sh makes, or else python3.
"""

_TENSORFLOW_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# Includes Eigen's headers, which are all that the core needs from TensorFlow.
cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = [
        "include",
        "include/external/onednn/include",
    ],
    defines = ["EIGEN_MAX_ALIGN_BYTES=64"],
)

# They include the CUDA, cuDNN and CUPTI headers that TensorFlow was built with.
cc_library(
    name = "gpu_headers",
    includes = [
        "include/third_party/gpus/cuda/extras/CUPTI/include",
        "include/third_party/gpus/cuda/include",
        "include/third_party/gpus/cudnn/include",
    ],
    deps = [":headers"],
)

cc_library(
    name = "libraries",
    srcs = [
        "libtensorflow_cc.so.2",
        "libtensorflow_framework.so.2",
    ],
)

exports_files(["python"])
"""

def _interpreter(repository_ctx):
    named = repository_ctx.os.environ.get("TF_INTEROP_PYTHON", "")
    if named:
        return named
    own = str(repository_ctx.path(Label("//:WORKSPACE")).dirname) + "/.venv/bin/python"
    return own if repository_ctx.path(own).exists else "python3"

def _installed_tensorflow(repository_ctx):
    python = _interpreter(repository_ctx)
    finder = str(repository_ctx.path(Label("//:cmake/find_tensorflow.py")))
    found = repository_ctx.execute([python, finder])
    if found.return_code != 0:
        fail(("Expected a Python environment with TensorFlow 2.20 or 2.21, got from {}: {} Make one " +
              "with scripts/setup.sh dev, or set TF_INTEROP_PYTHON to its interpreter.").format(
            python,
            found.stderr,
        ))
    folder, version = found.stdout.split(";")
    if not repository_ctx.path(folder + "/include/third_party/gpus/cudnn/include/cudnn_graph.h").exists:
        fail(("CUDA and cuDNN headers not found in {}/include. Install TensorFlow from PyPI, whose " +
              "packages have them.").format(folder))
    repository_ctx.symlink(folder + "/include", "include")
    for library in ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"]:
        repository_ctx.symlink(folder + "/" + library, library)
    repository_ctx.file("BUILD", _TENSORFLOW_BUILD)
    repository_ctx.file(
        "python",
        '#!/bin/sh\nexec "{}" "$@"\n'.format(python),
    )
    repository_ctx.file("installed.bzl", "TENSORFLOW_VERSION = \"{}\"\n".format(version))

installed_tensorflow = repository_rule(
    implementation = _installed_tensorflow,
    environ = ["TF_INTEROP_PYTHON"],
    doc = "The installed TensorFlow, with the CUDA, cuDNN and CUPTI headers that come with it.",
    local = True,
)

_GOOGLETEST_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "gtest_main",
    hdrs = glob(["include/gtest/**/*.h"]),
    includes = ["include"],
    linkopts = ["-lgtest_main", "-lgtest", "-lpthread"],
    visibility = ["//visibility:public"],
)
"""

def _installed_googletest(repository_ctx):
    folders = [
        folder
        for folder in ["/usr/include", "/usr/local/include"]
        if repository_ctx.path(folder + "/gtest/gtest.h").exists
    ]
    if not folders:
        fail("GoogleTest not found in /usr or /usr/local. On Debian and Ubuntu: " +
             "apt-get install libgtest-dev.")
    repository_ctx.symlink(folders[0] + "/gtest", "include/gtest")
    repository_ctx.file("BUILD", _GOOGLETEST_BUILD)

installed_googletest = repository_rule(
    implementation = _installed_googletest,
    doc = "The system's GoogleTest.",
    local = True,
)
