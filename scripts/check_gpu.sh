#!/usr/bin/env bash
# Everything that needs a GPU, in order of value, with logs that are usable after every step:
# the C++ tests of the cudnn backend, built from source here; then, where Python has TensorFlow, the op's
# tests and the demonstration.
#
#   scripts/check_gpu.sh RESULTS [TOOLS]
#
# RESULTS is the folder for the logs; TOOLS (default .gpu/tools) what pack_for_gpu.sh made, for machines
# without a network. Ends with the number of steps that failed.
set -uo pipefail
cd "$(dirname "$0")/.."
results=$(realpath -m "$1")
tools=$(realpath -m "${2:-.gpu/tools}")
mkdir -p "$results"
failed=0

step() {  # step NAME COMMAND…: runs it with its log in RESULTS/NAME.log
  local name=$1
  shift
  local start=$SECONDS
  if "$@" >"$results/$name.log" 2>&1; then
    echo "ok      $name ($((SECONDS - start)) s)"
  else
    echo "FAILED  $name ($((SECONDS - start)) s): $results/$name.log"
    tail -n 15 "$results/$name.log"
    failed=$((failed + 1))
  fi
}

machine() {
  date -u
  git rev-parse HEAD 2>/dev/null
  nvidia-smi
  python3 --version
  python3 -c 'import torch; print("torch", torch.__version__, "cuDNN", torch.backends.cudnn.version())'
}

build_core() {
  cmake -S . -B build/gpu -DTF_INTEROP_BUILD_LIBRARY=OFF -DTF_INTEROP_BUILD_TESTS=ON \
    -DTF_INTEROP_CUDNN_BACKEND=on -DTF_INTEROP_EIGEN_INCLUDE_DIR="$tools/include" \
    -DGTEST_INCLUDE_DIR="$tools/include" -DGTEST_LIBRARY="$tools/lib/libgtest.a" \
    -DGTEST_MAIN_LIBRARY="$tools/lib/libgtest_main.a" -DPython_EXECUTABLE="$(command -v python3)" &&
    cmake --build build/gpu --parallel
}

step machine machine
step build_core build_core
step core_gpu_tests build/gpu/tests/cc/cudnn_gpu_test --gtest_output="xml:$results/core_gpu_tests.xml"
step core_partition_tests build/gpu/tests/cc/partition_gpu_test
step core_runner_tests build/gpu/tests/cc/stage_runner_test
step core_measure_tests build/gpu/tests/cc/measure_test

if ! python3 -c 'import tensorflow' 2>"$results/tensorflow.log"; then
  echo "skipped: Python has no TensorFlow here ($results/tensorflow.log)"
  exit "$failed"
fi
export TF_INTEROP_LIBRARY=${TF_INTEROP_LIBRARY:-$tools/lib/libtf_interop.so}
packages=$(mktemp -d)
python3 -m pip install --quiet --no-index --no-deps --target "$packages" "$tools"/wheels/*.whl
export PYTHONPATH=$PWD:$packages${PYTHONPATH:+:$PYTHONPATH}
step op_tests python3 -m pytest tests/gpu -v
step demonstration python3 python/examples/demonstration.py --plan-dir "$results/plans"
step demonstration_half python3 python/examples/demonstration.py --dtype mixed_float16 \
  --plan-dir "$results/plans_half"
exit "$failed"
