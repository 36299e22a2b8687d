#!/usr/bin/env bash
# Times how long the host takes to call a stage that is prepared: finding it by its shapes, fork,
# launches and join.
#
#   scripts/benchmark_launch.sh [OUT]
#
# OUT (default docs/results/launch_overhead.json) is written. TF_INTEROP_LIBCUDA and TF_INTEROP_LIBCUDNN
# choose the libraries; where neither is set and there is no GPU, the stand-ins of the C++ tests serve,
# which execute nothing here. The environment that setup.sh made (VENV) gives CMake and headers.
#   BUILD  a folder where the benchmark has been built (default: build/core, where it is built)
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
out=${1:-docs/results/launch_overhead.json}

build=$(realpath -m "${BUILD:-build/core}")
if [ -z "${BUILD:-}" ]; then
  cmake -S . -B "$build" -G Ninja -DTF_INTEROP_BUILD_LIBRARY=OFF -DTF_INTEROP_BUILD_TESTS=ON \
    -DTF_INTEROP_CUDNN_BACKEND=on >/dev/null
  cmake --build "$build" --parallel --target launch_overhead fake_cuda fake_cudnn
fi

if [ -z "${TF_INTEROP_LIBCUDA:-}${TF_INTEROP_LIBCUDNN:-}" ] && ! nvidia-smi -L >/dev/null 2>&1; then
  echo "No GPU here: timing with the stand-ins for libcuda and libcudnn."
  scripts/get_cudnn.sh
  export TF_INTEROP_LIBCUDA=$build/tests/cc/libfake_cuda.so
  export TF_INTEROP_LIBCUDNN=$build/tests/cc/libfake_cudnn.so
fi
# It has no meaning to real libraries.
export TF_INTEROP_FAKE_CUDNN_NO_WORK=1
"$build/cc_kernels/launch_overhead" | PYTHONPATH=$PWD python3 -c '
import json, pathlib, sys

from python.benchmarks.result_file import write_result

measured = json.load(sys.stdin)
versions = {name: measured[name] for name in ("cuda", "cudnn")}
for library in ("libcuda", "libcudnn"):
    name = pathlib.Path(measured[library]).name
    versions[library] = f"fake ({name})" if name.startswith("libfake_") else name
write_result(
    pathlib.Path(sys.argv[1]),
    "What a call of a stage costs the host",
    "What the whole call of a stage costs the host, from finding what was kept for it to the join, "
    "with a small convolution on each lane: medians. With new addresses, results lie elsewhere at "
    "every call. Replayed, the stage is a CUDA graph. Where the libraries are fake, they are those of "
    "the C++ tests: nothing executes, so these are the costs of this project, and, with new addresses, "
    "of the fake cuDNN noting them. What CUDA takes for launches, events or a graph is in none of them.",
    measured["stages"], command="scripts/benchmark_launch.sh", made_with=(), **versions,
)
' "$out"
