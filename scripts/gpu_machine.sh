# What check_gpu.sh and profile_gpu.sh share; sourced by them in the root of the source tree, with
#   results  the folder for logs
#   tools    what pack_for_gpu.sh made
#   backend  cudnn or host
#   python   the Python to run
build=$PWD/build/gpu
gpu_tests=(gpu_test)
failed=0

step() {  # step NAME COMMAND…: runs it, its output at the end of RESULTS/NAME.log; returns its status
  local name=$1
  shift
  local start=$SECONDS
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

build_core() {
  configure && cmake --build "$build" --parallel --target tf_interop_core_library
}

build_targets() {  # build_targets TARGET…
  cmake --build "$build" --parallel --target "$@"
}

install_packages() {
  "$python" -c 'import cffi, click, msgspec, pynvml, rich, wrapt' && return 0
  "$python" -m pip install --quiet --target "$build/packages" --no-index --no-deps \
    "$tools"/wheels/*.whl ||
    "$python" -m pip install --quiet --target "$build/packages" cffi click msgspec nvidia-ml-py rich wrapt
}

use_packages_and_core() {
  export PYTHONPATH=$PWD:$build/packages${PYTHONPATH:+:$PYTHONPATH}
  export TF_INTEROP_CORE_LIBRARY=$build/cc_kernels/libtf_interop_core.so
}

run_gpu_tests() {
  if ! grep -q '^TF_INTEROP_BUILD_TESTS:BOOL=ON' "$build/CMakeCache.txt"; then
    echo "skipped: the tests, GoogleTest was not found"
    return
  fi
  step build_tests build_targets "${gpu_tests[@]}" || return
  local test
  for test in "${gpu_tests[@]}"; do
    # A kernel that does not end must not take the time of all that follows.
    step "$test" timeout --kill-after=5 240 "$build/tests/cc/$test" \
      --gtest_output="xml:$results/$test.xml"
  done
}
