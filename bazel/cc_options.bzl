"""Options for all C++ code, as in CMakeLists.txt."""

CC_OPTIONS = [
    "-std=c++17",
    "-Wall",
    "-Wextra",
    "-Werror",
    # With errno, GCC computes square roots one by one.
    "-fno-math-errno",
    # The library refuses to load on a CPU without these.
    "-mavx2",
    "-mfma",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
]

LIBRARY_LINK_OPTIONS = [
    "-Wl,-z,defs",
    "-s",
]
