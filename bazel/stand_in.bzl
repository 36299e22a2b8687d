"""Shared libraries that stand in for NVIDIA's in tests."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library")
load("//bazel:cc_options.bzl", "CC_OPTIONS")

def stand_in(name, srcs, deps = [], local_defines = [], linkopts = []):
    """Makes lib<name>.so, and <name> to link it.

    Args:
        name: of the library.
        srcs: its sources.
        deps: what it links, such as other stand-ins.
        local_defines: for its sources.
        linkopts: for the library.
    """
    cc_binary(
        name = "lib%s.so" % name,
        testonly = True,
        srcs = srcs + native.glob(["*.h"]),
        # Their symbols are what they are for.
        copts = [option for option in CC_OPTIONS if "visibility" not in option],
        linkopts = ["-lpthread", "-ldl"] + linkopts,
        linkshared = True,
        local_defines = local_defines,
        deps = deps + ["@tensorflow//:gpu_headers"],
    )
    cc_library(
        name = name,
        testonly = True,
        srcs = [":lib%s.so" % name],
    )
