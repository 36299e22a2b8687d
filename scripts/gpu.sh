#!/usr/bin/env bash
# Everything that needs a GPU, in order of value, as far as the time goes: the C++ tests of the cudnn
# backend, the launch benchmark, and a profile; then, where Python has TensorFlow, the op's tests, the
# demonstration, and networks beside stock TensorFlow and XLA. The core is built from source here.
#
#   scripts/gpu.sh RESULTS [SECONDS]
#
# RESULTS is the folder for logs and results, which are usable after every step: profile.json,
# results.json and tables.txt. Given again, the command goes on where it ended. SECONDS
# (default 1500) are for all of it, building included. Ends with the number of steps that failed.
#   STEPS    some of these, in this order (default: "tests launch profile op benchmark")
#   LISTS    to profile: a list of configurations, or a folder of them, which are measured in the order
#            of their names (default: TOOLS/configurations)
#   TOOLS    what pack_for_gpu.sh made, for machines without a network (default: .gpu/tools)
#   BACKEND  cudnn (default), or host to see all of it work without a GPU
#   PYTHON   (default: python3)
#   OPTIONS  more options of `tf-interop benchmark`, such as "--image-size 64"
# TF_INTEROP_LIBRARY names a library of ops that is built already; without it that of TOOLS is taken.
set -uo pipefail
cd "$(dirname "$0")/.."
results=$(realpath -m "$1")
end=$((SECONDS + ${2:-1500}))
tools=$(realpath -m "${TOOLS:-.gpu/tools}")
lists=$(realpath -m "${LISTS:-$tools/configurations}")
backend=${BACKEND:-cudnn}
python=${PYTHON:-python3}
build=$PWD/build/gpu
failed=0
mkdir -p "$results"

step() {  # step NAME COMMAND…: runs it, its output at the end of RESULTS/NAME.log; returns its status
  local name=$1 start=$SECONDS
  shift
  if "$@" >>"$results/$name.log" 2>&1; then
    echo "ok      $name ($((SECONDS - start)) s)"
  else
    local status=$?
    echo "FAILED  $name ($((SECONDS - start)) s): $results/$name.log"
    tail -n 15 "$results/$name.log"
    failed=$((failed + 1))
    return "$status"
  fi
}

is_asked_for() { [[ " ${STEPS:-tests launch profile op benchmark} " = *" $1 "* ]]; }

left() { # However long the steps before took: something is better than nothing.
  local seconds=$((end - SECONDS))
  echo $((seconds > 20 ? seconds : 20))
}

machine() {
  date -u
  git rev-parse HEAD 2>/dev/null
  nvidia-smi
  g++ --version
  "$python" --version
  return 0
}

configure() {
  local options=(-DTF_INTEROP_BUILD_LIBRARY=OFF -DCMAKE_BUILD_TYPE=Release
    -DPython_EXECUTABLE="$(command -v "$python")")
  if [ -d "$tools/include" ]; then
    options+=(-DTF_INTEROP_EIGEN_INCLUDE_DIR="$tools/include")
  fi
  if [ -e "$tools/lib/libgtest.a" ]; then
    options+=(-DTF_INTEROP_BUILD_TESTS=ON -DGTEST_INCLUDE_DIR="$tools/include"
      -DGTEST_LIBRARY="$tools/lib/libgtest.a" -DGTEST_MAIN_LIBRARY="$tools/lib/libgtest_main.a")
  elif [ -e /usr/include/gtest/gtest.h ]; then
    options+=(-DTF_INTEROP_BUILD_TESTS=ON)
  fi
  if [ "$backend" = cudnn ]; then
    options+=(-DTF_INTEROP_CUDNN_BACKEND=on)
    # Together, as they have to be of one version: CUPTI's headers name the kernels of an algorithm.
    if [ -d "$tools/cuda" ] && ! [ -e /usr/local/cuda/extras/CUPTI/include/cupti_activity.h ]; then
      options+=(-DCUDA_INCLUDE_DIR="$tools/cuda/include"
        -DCUPTI_INCLUDE_DIR="$tools/cuda/extras/CUPTI/include")
    fi
  fi
  cmake -S . -B "$build" "${options[@]}"
}

build_targets() { cmake --build "$build" --parallel --target "$@"; }

install_packages() {
  "$python" -c 'import cffi, click, msgspec, pynvml, rich, wrapt' && return 0
  "$python" -m pip install --quiet --target "$build/packages" --no-index --no-deps \
    "$tools"/wheels/*.whl ||
    "$python" -m pip install --quiet --target "$build/packages" cffi click msgspec nvidia-ml-py rich wrapt
}

profile() {  # profile LIST SECONDS
  # The measurement in hand at the end, and reading and writing the profile, are not in the budget. A
  # kernel that does not end keeps the signal from being seen.
  timeout --signal=TERM --kill-after=20 $(($2 + 30)) "$python" -m tf_interop profile "$1" \
    --backend "$backend" --budget "$2s" -o "$results/profile.json"
}

profile_lists() {
  local names=("$lists")
  [ ! -d "$lists" ] || names=("$lists"/*.json)
  local until=$((SECONDS + $1)) count=${#names[@]} index share
  for ((index = 0; index < count; index++)); do
    # The first ones may take more than the last.
    share=$((2 * (until - SECONDS) / (count - index + 1)))
    [ "$share" -ge 2 ] || break
    # A device that failed (3) works again in a new process, which goes on after what it failed at.
    step profile profile "${names[index]}" "$share"
    [ "$?" != 3 ] || step profile profile "${names[index]}" "$share"
  done
}

benchmark() {  # benchmark OPTIONS…
  echo "== $*"
  # A variant that runs out of memory (3) is a result, too.
  "$python" -m tf_interop benchmark "$@" --tune 60s --repetitions 2 --budget "$(left)s" \
    -o "$results/results.json" ${OPTIONS:-} >"$results/tables.txt" || [ "$?" = 3 ]
}

step machine machine
step configure configure && step build build_targets tf_interop_core_library || exit 1
if is_asked_for tests && grep -q '^TF_INTEROP_BUILD_TESTS:BOOL=ON' "$build/CMakeCache.txt" &&
  [ "$backend" = cudnn ] && step build_tests build_targets gpu_test; then
  # A kernel that does not end must not take the time of all that follows.
  step gpu_test timeout --kill-after=5 240 "$build/tests/cc/gpu_test" \
    --gtest_output="xml:$results/gpu_test.xml"
fi
if is_asked_for launch && step build_launch build_targets launch_overhead fake_cuda fake_cudnn; then
  step launch env BUILD="$build" scripts/benchmark_launch.sh "$results/launch_overhead.json"
fi
step packages install_packages
export PYTHONPATH=$PWD:$build/packages${PYTHONPATH:+:$PYTHONPATH}
export TF_INTEROP_CORE_LIBRARY=$build/cc_kernels/libtf_interop_core.so
if is_asked_for profile && [ -e "$lists" ]; then
  profile_lists $(($(left) / 4))
  step check "$python" -m tf_interop show "$results/profile.json"
fi

if ! "$python" -c 'import tensorflow' 2>"$results/tensorflow.log"; then
  echo "skipped: Python has no TensorFlow here ($results/tensorflow.log)"
  exit "$failed"
fi
export TF_INTEROP_LIBRARY=${TF_INTEROP_LIBRARY:-$tools/lib/libtf_interop.so}
# A GPU that is here would be used by TensorFlow, and not by the profile.
[ "$backend" = cudnn ] || export CUDA_VISIBLE_DEVICES=
if is_asked_for op; then
  step op_tests "$python" -m pytest tests/gpu -v
  step op_matrix "$python" -m pytest tests/op/op_matrix_test.py -k GPU
  for dtype in float32 mixed_float16; do
    # It measures beside TensorFlow, which would take all of the memory.
    step "demonstration_$dtype" env TF_FORCE_GPU_ALLOW_GROWTH=true "$python" python/examples/demonstration.py --dtype "$dtype" \
      --plan-dir "$results/plans_$dtype"
  done
fi
if is_asked_for benchmark; then
  first=(python.models.googlenet:googlenet InceptionV3 ResNet50)
  others=(python.models.squeezenet:squeezenet python.models.randwire:randwire NASNetMobile DenseNet121 NASNetLarge)
  step benchmark benchmark "${first[@]}" --batch 1,32
  step benchmark benchmark "${first[@]}" --batch 32 --no-inference --training
  step benchmark benchmark "${first[@]}" --batch 8,128 --training
  step benchmark benchmark "${others[@]}" --batch 1,32
  step benchmark benchmark "${first[@]}" --batch 1,32 --training --precision float16
  step benchmark benchmark "${others[@]}" --batch 32 --no-inference --training
fi
exit "$failed"
