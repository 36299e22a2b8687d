#!/usr/bin/env bash
# Times a call of a prepared stage on the host: lookup by shapes, fork, launches and join.
#
#   scripts/benchmark_launch.sh [OUT]
#
# Writes OUT (default docs/results/launch_overhead.json). TF_INTEROP_LIBCUDA and TF_INTEROP_LIBCUDNN
# choose the libraries. If neither is set and there is no GPU, uses the C++ tests' stand-ins, which
# execute nothing here. The environment of setup.sh (VENV) provides CMake and headers.
#   BUILD  a folder with the built benchmark (default: builds it in build/core)
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
  echo "No GPU found: timing with the stand-ins for libcuda and libcudnn."
  scripts/get_cudnn.sh
  export TF_INTEROP_LIBCUDA=$build/tests/cc/libfake_cuda.so
  export TF_INTEROP_LIBCUDNN=$build/tests/cc/libfake_cudnn.so
fi
# Real libraries ignore this.
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
    "Host time of a stage call",
    "Median host time of a whole call of a stage, from its lookup to the join, with a small "
    "convolution on each lane. With new addresses, the results have another address at every call. "
    "Replayed, the stage is a CUDA graph. The fake libraries of the C++ tests execute nothing, so the "
    "times exclude what CUDA takes for launches, events or a graph; with new addresses they include "
    "cuDNN keeping the addresses.",
    measured["stages"], command="scripts/benchmark_launch.sh", made_with=(), **versions,
)
' "$out"
