#!/usr/bin/env bash
# Profiles lists of configurations on a GPU machine, with or without a network or TensorFlow: builds the
# core from source, runs its tests on the GPU, then measures as far as the time goes.
#
#   scripts/profile_gpu.sh LISTS RESULTS [MINUTES]
#
# LISTS is a list of configurations, or a folder of them, which are measured in the order of their names;
# each may take a share of the time that is left, the first ones more than the last. RESULTS is the folder
# for profile.json and the logs; a profile that is there is gone on with. MINUTES (default 9) are for all
# of it, building and tests included. The profile is usable after every list.
#   TOOLS           what pack_for_gpu.sh made, for machines without a network (default: .gpu/tools)
#   BACKEND         cudnn (default) or host
#   PROFILE_OPTIONS more options of `tf-interop profile`, such as "--algorithms knobs"
# Ends with 1 if a test or a list failed.
set -uo pipefail
cd "$(dirname "$0")/.."
lists=$(realpath -m "$1")
results=$(realpath -m "$2")
end=$((SECONDS + ${3:-9} * 60))
tools=$(realpath -m "${TOOLS:-.gpu/tools}")
backend=${BACKEND:-cudnn}
python=${PYTHON:-python3}
mkdir -p "$results"
failed=0

step() {  # step NAME COMMAND…: runs it, its output at the end of RESULTS/NAME.log
  local name=$1
  shift
  local start=$SECONDS
  if "$@" >>"$results/$name.log" 2>&1; then
    echo "ok      $name ($((SECONDS - start)) s)"
  else
    echo "FAILED  $name ($((SECONDS - start)) s): $results/$name.log"
    tail -n 15 "$results/$name.log"
    failed=1
    return 1
  fi
}

machine() {
  date -u
  git rev-parse HEAD 2>/dev/null
  nvidia-smi
  g++ --version
  "$python" --version
  return 0
}

build_core() {
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
  cmake -S . -B build/profile "${options[@]}" || return 1
  # Of all tests only those that are run here are built.
  cmake --build build/profile --parallel --target tf_interop_core_library || return 1
  for test in "${tests[@]}"; do
    cmake --build build/profile --parallel --target "$test" || echo "not built: $test"
  done
}

packages() {
  "$python" -c 'import click, msgspec, pynvml, rich, wrapt' && return 0
  "$python" -m pip install --quiet --target build/profile/packages --no-index --no-deps \
    "$tools"/wheels/*.whl ||
    "$python" -m pip install --quiet --target build/profile/packages \
      click msgspec nvidia-ml-py rich wrapt
}

profile() {  # profile LIST SECONDS
  echo "== $(basename "$1"), $2 s"
  # The measurement in hand at the end, and reading and writing the profile, are not in the budget.
  timeout --signal=TERM $(($2 + 30)) "$python" -m tf_interop profile "$1" --backend "$backend" \
    --budget "$2s" -o "$results/profile.json" ${PROFILE_OPTIONS:-}
}

tests=()
if [ "$backend" = cudnn ]; then
  tests=(cudnn_gpu_test measure_gpu_test partition_gpu_test)
fi
: >"$results/profile.log"
step machine machine
step build build_core || exit 1
step packages packages
export PYTHONPATH=$PWD:$PWD/build/profile/packages${PYTHONPATH:+:$PYTHONPATH}
export TF_INTEROP_CORE_LIBRARY=$PWD/build/profile/cc_kernels/libtf_interop_core.so

names=("$lists")
if [ -d "$lists" ]; then
  names=("$lists"/*.json)
fi
for ((index = 0; index < ${#names[@]}; index++)); do
  left=$((end - SECONDS))
  share=$((2 * left / (${#names[@]} - index + 1)))
  # However long building took: something is better than nothing.
  if [ "$index" = 0 ] && [ "$share" -lt 20 ]; then
    share=20
  fi
  [ "$share" -ge 2 ] || break
  step profile profile "${names[index]}" "$share"
  if [ "$index" = 0 ]; then
    # Something is in hand now; a test that fails says how far to trust it.
    for test in "${tests[@]}"; do
      if [ -x "build/profile/tests/cc/$test" ]; then
        step "$test" "build/profile/tests/cc/$test"
      fi
    done
  fi
done
if [ -e "$results/profile.json" ]; then
  gzip --best --keep --force "$results/profile.json"
  "$python" -m tf_interop profile check "$results/profile.json" || failed=1
else
  failed=1
fi
exit "$failed"
