#!/usr/bin/env bash
# What is too slow for .ci/run: more cases of the tests, all plans of the oldest cuDNN, the C++ under
# clang-tidy's analyzer, the same sources under Bazel, and a wheel in fresh environments. Prints the
# time of each part.
#
#   scripts/check_slow.sh
set -euo pipefail
cd "$(dirname "$0")/.."
times=""
part() { # NAME COMMAND…
  local begin=$SECONDS
  "${@:2}"
  times+=$(printf '\n%5d s  %s' $((SECONDS - begin)) "$1")
}
trap 'echo "Parts of this run:$times"' EXIT

part "slow tests" scripts/test.sh -m slow
part "plans of the oldest cuDNN" env \
  TF_INTEROP_REAL_CUDNN="$PWD/build/cudnn-oldest/nvidia/cudnn/lib/libcudnn.so.9" \
  "${VENV:-.venv}/bin/ctest" --test-dir build/core --output-on-failure --tests-regex cudnn_sweep
part "clang-tidy" scripts/tidy.sh
part "Bazel" scripts/bazel.sh test //cc_kernels/... //tests/cc/... \
  //tests:op/conv_stage_op_test //tests:runtime/plugin_test
part "wheel" scripts/check_wheel.sh build/dist
