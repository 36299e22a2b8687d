#!/usr/bin/env bash
# On a GPU machine with TensorFlow: checks that the numbers are right, then profiles, plans and
# benchmarks networks in order of value, as far as the time goes.
#
#   scripts/benchmark_gpu.sh RESULTS [SECONDS]
#
# RESULTS is the folder for logs and results; after every network it holds what there is so far:
# profile.json, results.json, results.csv, results.png and tables.txt. Given again, the command goes on
# where it ended. SECONDS (default 1500) are for all of it, building and tests included.
#   TOOLS       what pack_for_gpu.sh made, for machines without a network (default: .gpu/tools)
#   BACKEND     cudnn (default), or host to see all of it work without a GPU
#   PYTHON      a Python with TensorFlow (default: python3)
#   SKIP_TESTS  anything: correctness is not checked
#   COMPARISON  more options of python/benchmarks/compare_networks.py, such as "--network GoogLeNet"
# TF_INTEROP_LIBRARY and TF_INTEROP_CORE_LIBRARY name libraries that are built already; without them
# the core is built from source, and the library of ops is that of TOOLS or, where TensorFlow's headers
# fit the compiler here, built too. Ends with the number of steps that failed.
set -uo pipefail
cd "$(dirname "$0")/.."
results=$(realpath -m "$1")
end=$((SECONDS + ${2:-1500}))
tools=$(realpath -m "${TOOLS:-.gpu/tools}")
backend=${BACKEND:-cudnn}
python=${PYTHON:-python3}
mkdir -p "$results"
source scripts/gpu_machine.sh

build_library() {
  cmake -S . -B "$build/library" -DCMAKE_BUILD_TYPE=Release \
    -DTF_INTEROP_CUDNN_BACKEND="$([ "$backend" = cudnn ] && echo on || echo auto)" \
    -DPython_EXECUTABLE="$(command -v "$python")" &&
    cmake --build "$build/library" --parallel
}

check_numbers() {
  if [ "$backend" = cudnn ]; then
    [ -n "${TF_INTEROP_CORE_BUILT:-}" ] && run_gpu_tests
    step op_tests "$python" -m pytest tests/gpu -v
  fi
  local options=(--plan-dir "$results/plans")
  if [ "$backend" = host ]; then
    options+=(--network googlenet --image-size 75 --batch 1)
  fi
  step demonstration "$python" python/examples/stages_demonstration.py "${options[@]}"
}

step machine machine
if ! "$python" -c 'import tensorflow' 2>"$results/tensorflow.log"; then
  echo "Expected a Python with TensorFlow, got '$python' ($results/tensorflow.log). Set PYTHON." >&2
  exit 1
fi
given_core=${TF_INTEROP_CORE_LIBRARY:-}
if [ -z "$given_core" ]; then
  step build build_core || exit 1
  TF_INTEROP_CORE_BUILT=1
fi
step packages install_packages
use_packages_and_core
export TF_INTEROP_CORE_LIBRARY=${given_core:-$TF_INTEROP_CORE_LIBRARY}
if [ -z "${TF_INTEROP_LIBRARY:-}" ]; then
  export TF_INTEROP_LIBRARY=$tools/lib/libtf_interop.so
  if ! [ -e "$TF_INTEROP_LIBRARY" ]; then
    step build_library build_library || exit 1
    TF_INTEROP_LIBRARY=$build/library/cc_kernels/libtf_interop.so
  fi
fi
if [ "$backend" = host ]; then
  # A GPU that is here would be used by TensorFlow, and not by the profile.
  export CUDA_VISIBLE_DEVICES=
fi
if [ -z "${SKIP_TESTS:-}" ]; then
  check_numbers
fi

# However long the tests took: something is better than nothing.
left=$((end - SECONDS))
[ "$left" -ge 20 ] || left=20
# Its log says what is being measured; RESULTS has the values.
step comparison "$python" python/benchmarks/compare_networks.py "$results" --budget "${left}s" \
  --backend "$backend" ${COMPARISON:-}
[ -e "$results/results.json" ] || failed=$((failed + 1))
exit "$failed"
