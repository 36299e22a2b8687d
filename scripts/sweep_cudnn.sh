#!/usr/bin/env bash
# Runs tests/cc/cudnn_sweep_test.cc over every convolution, with the oldest and the newest cuDNN that
# make plans without a GPU, and writes the results to tests/cc/cudnn_sweep.txt. Takes about six minutes
# on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
scripts/get_cudnn.sh
build=build/core
cmake -S . -B "$build" -G Ninja -DTF_INTEROP_BUILD_LIBRARY=OFF -DTF_INTEROP_BUILD_TESTS=ON \
  -DTF_INTEROP_CUDNN_BACKEND=on >/dev/null
cmake --build "$build" --parallel --target cudnn_sweep_test
result=$(mktemp)
for version in cudnn-oldest cudnn; do
  cut -d' ' -f1 "build/$version/installed" >>"$result"
  TF_INTEROP_WHOLE_SWEEP=1 TF_INTEROP_REAL_CUDNN=$PWD/build/$version/nvidia/cudnn/lib/libcudnn.so.9 \
    "$build/tests/cc/cudnn_sweep_test" 2>&1 | tee -a /dev/stderr | sed -n 's/^sweep:/ /p' >>"$result"
done
mv "$result" tests/cc/cudnn_sweep.txt
