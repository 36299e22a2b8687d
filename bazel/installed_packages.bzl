"""What is installed on this machine as repositories: TensorFlow, GoogleTest.

TensorFlow is that of a Python environment. Its interpreter is that of the variable
TF_INTEROP_PYTHON, or else .venv/bin/python of this workspace, which scripts/setup.sh makes, or else
python3.
"""

_TENSORFLOW_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# With Eigen's headers, which are all that the core needs of TensorFlow.
cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = ["include"],
    defines = ["EIGEN_MAX_ALIGN_BYTES=64"],
)

cc_library(
    name = "cuda_headers",
    hdrs = glob(["cuda/**/*.h"]),
    includes = ["cuda"],
)

cc_library(
    name = "cudnn_headers",
    hdrs = glob(["cudnn/*.h"]),
    includes = ["cudnn"],
)

cc_library(
    name = "cupti_headers",
    # None where CUPTI is not installed.
    hdrs = glob(["cupti/*.h"], allow_empty = True),
    includes = ["cupti"],
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

def _run(repository_ctx, arguments):
    result = repository_ctx.execute(arguments)
    if result.return_code != 0:
        fail(("Expected a Python environment with TensorFlow 2.20 or 2.21, got from {}: {} Make one " +
              "with scripts/setup.sh dev, or name its interpreter with TF_INTEROP_PYTHON.").format(
            arguments[0],
            result.stderr,
        ))
    return result.stdout

def _interpreter(repository_ctx):
    named = repository_ctx.os.environ.get("TF_INTEROP_PYTHON", "")
    if named:
        return named
    own = str(repository_ctx.path(Label("//:WORKSPACE")).dirname) + "/.venv/bin/python"
    return own if repository_ctx.path(own).exists else "python3"

def _first_with(repository_ctx, header, folders):
    """The first of the folders that holds the header, or None."""
    for folder in folders:
        if repository_ctx.path(folder + "/" + header).exists:
            return folder
    return None

def _installed_tensorflow(repository_ctx):
    python = _interpreter(repository_ctx)
    finder = str(repository_ctx.path(Label("//:cmake/find_tensorflow.py")))
    folder, version = _run(repository_ctx, [python, finder]).split(";")
    site_packages = _run(
        repository_ctx,
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'), end='')"],
    )
    repository_ctx.symlink(folder + "/include", "include")
    for library in ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"]:
        repository_ctx.symlink(folder + "/" + library, library)

    # As in cmake/CudnnHeaders.cmake and cmake/CuptiHeaders.cmake.
    gpus = folder + "/include/third_party/gpus"
    nvidia = site_packages + "/nvidia"
    cuda = _first_with(repository_ctx, "cuda.h", [
        gpus + "/cuda/include",
        "/usr/local/cuda/include",
        nvidia + "/cuda_runtime/include",
        nvidia + "/cu13/include",
    ])
    cudnn = _first_with(repository_ctx, "cudnn_graph.h", [
        gpus + "/cudnn/include",
        nvidia + "/cudnn/include",
        "/usr/local/cuda/include",
        "/usr/include",
    ])
    if not cuda or not cudnn:
        fail(("Expected the headers of CUDA and cuDNN 9, found CUDA's in {} and cuDNN's in {}. " +
              "Install them with 'pip install nvidia-cudnn-cu12'.").format(cuda, cudnn))
    cupti = _first_with(repository_ctx, "cupti_activity.h", [
        cuda,
        cuda + "/../extras/CUPTI/include",
        nvidia + "/cuda_cupti/include",
        nvidia + "/cu13/include",
        "/usr/local/cuda/extras/CUPTI/include",
    ])
    repository_ctx.symlink(cuda, "cuda")
    repository_ctx.symlink(cudnn, "cudnn")
    if cupti:
        repository_ctx.symlink(cupti, "cupti")
    repository_ctx.file("BUILD", _TENSORFLOW_BUILD)
    repository_ctx.file(
        "python",
        '#!/bin/sh\nexec "{}" "$@"\n'.format(python),
    )
    repository_ctx.file("installed.bzl", "TENSORFLOW_VERSION = \"{}\"\nHAS_CUPTI = {}\n".format(
        version,
        bool(cupti),
    ))

installed_tensorflow = repository_rule(
    implementation = _installed_tensorflow,
    environ = ["TF_INTEROP_PYTHON"],
    doc = "TensorFlow and the headers of CUDA, cuDNN and CUPTI that come with it, as installed.",
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
    folder = _first_with(repository_ctx, "gtest/gtest.h", ["/usr/include", "/usr/local/include"])
    if not folder:
        fail("Expected GoogleTest in /usr or /usr/local, found none. On Debian and Ubuntu: " +
             "apt-get install libgtest-dev.")
    repository_ctx.symlink(folder + "/gtest", "include/gtest")
    repository_ctx.file("BUILD", _GOOGLETEST_BUILD)

installed_googletest = repository_rule(
    implementation = _installed_googletest,
    doc = "The system's GoogleTest.",
    local = True,
)
