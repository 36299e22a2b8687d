"""Shared libraries that stand in for NVIDIA's in tests."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library")
load("//bazel:cc_options.bzl", "CC_OPTIONS")

def stand_in(name, srcs, deps = [], local_defines = [], linkopts = []):
    """Defines lib<name>.so, and a library <name> that links it.

    Args:
        name: The library's name.
        srcs: Its sources.
        deps: Libraries that it links, such as other stand-ins.
        local_defines: Defines for its sources.
        linkopts: Link options of the library.
    """
    cc_binary(
        name = "lib%s.so" % name,
        testonly = True,
        srcs = srcs + native.glob(["*.h"]),
        # All symbols must be visible, because libraries find them by name.
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
