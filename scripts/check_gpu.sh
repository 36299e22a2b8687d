#!/usr/bin/env bash
# Everything that needs a GPU, in order of value, with logs that are usable after every step: the C++
# tests of the cudnn backend, of SM partitions and of measuring, built from source here; the launch
# benchmark; a profile; then, where Python has TensorFlow, the op's tests and the demonstration.
#
#   scripts/check_gpu.sh RESULTS [TOOLS]
#
# RESULTS is the folder for logs and profile; TOOLS (default .gpu/tools) what pack_for_gpu.sh made, for
# machines without a network.
#   LISTS    what to profile, as profile_gpu.sh takes it (default: TOOLS/configurations)
#   MINUTES  for the profile (default 4)
#   PYTHON   (default: python3)
# Ends with the number of steps that failed.
set -uo pipefail
cd "$(dirname "$0")/.."
results=$(realpath -m "$1")
tools=$(realpath -m "${2:-.gpu/tools}")
lists=${LISTS:-$tools/configurations}
backend=cudnn
python=${PYTHON:-python3}
mkdir -p "$results"
source scripts/gpu_machine.sh

step machine machine
step build build_core
run_gpu_tests
if step build_benchmark build_targets launch_overhead fake_cuda fake_cudnn; then
  step launch_benchmark env BUILD="$build" scripts/benchmark_launch.sh "$results/launch_overhead.json"
fi
if [ -e "$lists" ]; then
  step profile_all env TOOLS="$tools" PYTHON="$python" SKIP_TESTS=1 scripts/profile_gpu.sh "$lists" \
    "$results" "${MINUTES:-4}"
else
  echo "skipped: the profile, there are no lists at $lists"
fi

if ! "$python" -c 'import tensorflow' 2>"$results/tensorflow.log"; then
  echo "skipped: Python has no TensorFlow here ($results/tensorflow.log)"
  exit "$failed"
fi
export TF_INTEROP_LIBRARY=${TF_INTEROP_LIBRARY:-$tools/lib/libtf_interop.so}
step packages install_packages
use_packages_and_core
step op_tests "$python" -m pytest tests/gpu -v
step op_matrix "$python" -m pytest tests/op/op_matrix_test.py -k GPU
step demonstration "$python" python/examples/stages_demonstration.py --plan-dir "$results/plans"
step demonstration_half "$python" python/examples/stages_demonstration.py --dtype mixed_float16 \
  --plan-dir "$results/plans_half"
exit "$failed"
