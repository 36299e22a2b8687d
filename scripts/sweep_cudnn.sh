#!/usr/bin/env bash
# Runs tests/cc/cudnn_sweep_test.cc over every convolution, with the oldest and the newest cuDNN that
# make plans without a GPU. Executes no convolution. Takes 16 minutes on two busy cores.
#
#   scripts/sweep_cudnn.sh [OUT]
#
# Writes OUT (default docs/results/cudnn_sweep.json). The environment of setup.sh (VENV) provides
# CMake and headers.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
out=${1:-docs/results/cudnn_sweep.json}

scripts/get_cudnn.sh
build=build/core
cmake -S . -B "$build" -G Ninja -DTF_INTEROP_BUILD_LIBRARY=OFF -DTF_INTEROP_BUILD_TESTS=ON \
  -DTF_INTEROP_CUDNN_BACKEND=on >/dev/null
cmake --build "$build" --parallel --target cudnn_sweep_test
for version in cudnn-oldest cudnn; do
  lines=build/$version/sweep.tsv
  rm -f "$lines"
  TF_INTEROP_SWEEP_OUT=$lines \
    TF_INTEROP_REAL_CUDNN=$PWD/build/$version/nvidia/cudnn/lib/libcudnn.so.9 \
    "$build/tests/cc/cudnn_sweep_test"
done
PYTHONPATH=$PWD python3 scripts/write_cudnn_sweep.py "$out" build/cudnn-oldest build/cudnn
