#!/usr/bin/env bash
# Runs everything that needs a GPU, the most informative steps first: which GPU it is, whether the
# numbers are right, and what a launch takes; then profiles, and networks compared with stock TensorFlow
# and XLA. Builds the core from source.
#
#   scripts/gpu.sh RESULTS [SECONDS]
#
# RESULTS is the folder for logs and results, which are usable after every step: device.json,
# profile.json, results.json and tables.txt. Each step has a log there and a line in steps.txt with its
# name, its exit status (124 or 137: it took too long; 77: all its tests were skipped) and its seconds.
# A failed step does not stop the others. Running the same command again continues profiles and
# benchmarks. SECONDS (default 1500) limits everything, including the build. The exit code is the number
# of failed steps. A step is skipped if it lacks TensorFlow, lists, or (with BACKEND=host) a GPU.
#   STEPS    some of these groups (default: "tests launch op profile benchmark")
#   LISTS    a list of configurations to profile, or a folder of them, which are profiled in the order
#            of their names (default: TOOLS/configurations)
#   TOOLS    the folder of pack_for_gpu.sh, for machines without a network (default: .gpu/tools)
#   BACKEND  cudnn (default), or host to try everything without a GPU
#   PYTHON   (default: python3)
#   OPTIONS  more options of `tf-interop benchmark`, such as "--image-size 64"
# TF_INTEROP_LIBRARY names a built library of ops (default: that of TOOLS, else the installed one).
set -uo pipefail
set -a # A step runs in a shell of its own.
cd "$(dirname "$0")/.."
results=$(realpath -m "$1")
end=$(($(date +%s) + ${2:-1500}))
tools=$(realpath -m "${TOOLS:-.gpu/tools}")
lists=$(realpath -m "${LISTS:-$tools/configurations}")
backend=${BACKEND:-cudnn}
python=${PYTHON:-python3}
build=$PWD/build/gpu
failed=0
mkdir -p "$results"

left() { # Every step gets at least 20 seconds, however long the others took.
  local seconds=$((end - $(date +%s)))
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
    # Both, because their versions must match. CUPTI names the kernels of an algorithm.
    if [ -d "$tools/cuda" ] && ! [ -e /usr/local/cuda/extras/CUPTI/include/cupti_activity.h ]; then
      options+=(-DCUDA_INCLUDE_DIR="$tools/cuda/include"
        -DCUPTI_INCLUDE_DIR="$tools/cuda/extras/CUPTI/include")
    fi
  fi
  cmake -S . -B "$build" "${options[@]}"
}

build_targets() { cmake --build "$build" --parallel --target "$@"; }

install_packages() {
  "$python" -c 'import cffi, click, jinja2, msgspec, platformdirs, pynvml, pytest, rich, wrapt' && return 0
  "$python" -m pip install --quiet --target "$build/packages" --no-index --no-deps \
    "$tools"/wheels/*.whl ||
    "$python" -m pip install --quiet --target "$build/packages" \
      cffi click jinja2 msgspec nvidia-ml-py platformdirs pytest rich wrapt
}

run_tests() { # run_tests COMMAND…: fails with 77 if all tests were skipped.
  local status
  "$@" 2>&1 | tee "$results/last_tests.txt"
  status=${PIPESTATUS[0]}
  [ "$status" = 0 ] || return "$status"
  grep -Eq '\[  PASSED  \] [1-9]|[0-9] passed' "$results/last_tests.txt" || return 77
}

gpu_test() { run_tests "$build/tests/cc/gpu_test" --gtest_filter="$1"; }

# Timeouts inside a step run in the foreground, so that the end of the step ends their commands.
algorithms() { # One process per convolution, and another for the rest after an algorithm that fails.
  local wrong=0 count index first tried
  count=$("$build/tests/cc/gpu_test" --gtest_filter='*ListedAlgorithms*' --gtest_list_tests | grep -c '^  ')
  [ "$count" -gt 0 ] || return 1
  for ((index = 0; index < count; index++)); do
    first=0
    until GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$index TF_INTEROP_FIRST_ALGORITHM=$first \
      run_tests timeout --foreground --kill-after=5 60 \
      "$build/tests/cc/gpu_test" --gtest_filter='*ListedAlgorithms*'; do
      wrong=1
      tried=$(sed -n 's/^algorithm //p' "$results/last_tests.txt" | tail -n 1)
      [ -n "$tried" ] || break
      first=$((tried + 1))
    done
  done
  return "$wrong"
}

op_matrix() { # One process per type: some have ended with a segmentation fault.
  local wrong=0 dtype where
  for where in "not XLA" XLA; do
    for dtype in float32 float16 bfloat16 float64; do
      run_tests "$python" -m pytest tests/op/op_matrix_test.py -v -k "GPU and $dtype and $where" || wrong=1
    done
  done
  return "$wrong"
}

profile_lists() {
  local names=("$lists") result=0 status
  [ ! -d "$lists" ] || names=("$lists"/*.json)
  local until=$(($(date +%s) + $1)) count=${#names[@]} index share again
  for ((index = 0; index < count; index++)); do
    # Earlier lists may take longer than later ones.
    share=$((2 * (until - $(date +%s)) / (count - index + 1)))
    [ "$share" -ge 2 ] || break
    for again in 1 2; do
      # The budget excludes the last measurement, and reading and writing the profile. A kernel that
      # does not end delays the signal.
      timeout --foreground --kill-after=20 $((share + 30)) "$python" -m tf_interop profile \
        "${names[index]}" --backend "$backend" --budget "${share}s" -o "$results/profile.json"
      status=$?
      # A device that failed (3) works again in a new process, which skips the failed measurement.
      [ "$status" = 3 ] || break
    done
    [ "$status" = 0 ] || result=$status
  done
  return "$result"
}

launch() { # Names libcuda, so that the stand-ins for machines without a GPU are never used.
  TF_INTEROP_LIBCUDA=libcuda.so.1 BUILD=$build scripts/benchmark_launch.sh "$results/launch_overhead.json"
}

tune() { # It measures while TensorFlow runs, which would otherwise take all memory.
  local network
  for network in NASNetMobile InceptionV3; do
    TF_FORCE_GPU_ALLOW_GROWTH=true "$python" -m tf_interop tune "$network" -o "$results/$network.json"
  done
}

benchmark() { # benchmark OPTIONS…
  local status=0
  "$python" -m tf_interop benchmark "$@" --repetitions 2 --budget "$(left)s" \
    -o "$results/results.json" ${OPTIONS:-} >"$results/unfinished_tables.txt" || status=$?
  # A variant that runs out of memory (3) is a result too.
  [ "$status" = 0 ] || [ "$status" = 3 ] || return "$status"
  mv "$results/unfinished_tables.txt" "$results/tables.txt"
}

# Each step has a group, a name, a limit in seconds (at most the time left) and a command. The group
# `all` always runs; `op` and `benchmark` need TensorFlow.
first="python.models.googlenet:googlenet InceptionV3 ResNet50"
others="python.models.squeezenet:squeezenet python.models.randwire:randwire NASNetMobile DenseNet121 NASNetLarge"
steps() {
  cat <<'END'
all       machine               30     machine
tests     device                60     "$python" scripts/save_device.py "$results/device.json"
all       configure             120    configure
all       build                 600    build_targets tf_interop_core_library
tests     build_tests           600    build_targets gpu_test
tests     geometry              120    gpu_test 'GpuTest.MatchesReference*'
tests     algorithms            300    algorithms
tests     transforms            60     gpu_test '*Transformed*:*CopiesRows*'
launch    build_launch          300    build_targets launch_overhead
launch    launch                120    launch
tests     other_tests           240    gpu_test '-GpuTest.Matches*:All/*:*Transformed*:*CopiesRows*'
all       packages              120    install_packages
op        module                120    run_tests "$python" -m pytest tests/gpu -v -k inception
tests     sanitizer             180    run_tests compute-sanitizer --error-exitcode 9 "$build/tests/cc/gpu_test" --gtest_filter='*AMergedLane*'
op        op_tests              240    run_tests "$python" -m pytest tests/gpu -v
op        op_tests_launched     240    TF_INTEROP_CUDA_GRAPHS=0 run_tests "$python" -m pytest tests/gpu -v
profile   profile               left/3 profile_lists $(($(left) / 4))
profile   check                 60     "$python" -m tf_interop show "$results/profile.json"
op        op_matrix             600    op_matrix
op        tune                  300    tune
benchmark inference             left   benchmark $first --batch 1,32
benchmark training              left   benchmark $first --batch 32 --no-inference --training
benchmark batches               left   benchmark $first --batch 8,128 --training
benchmark others                left   benchmark $others --batch 1,32
benchmark half                  left   benchmark $first --batch 1,32 --training --precision float16
benchmark others_training       left   benchmark $others --batch 32 --no-inference --training
benchmark plans                 left   benchmark $first --batch 1,32 --profile "$results/profile.json"
END
}

export PYTHONPATH=$PWD:$build/packages${PYTHONPATH:+:$PYTHONPATH}
export TF_INTEROP_CORE_LIBRARY=$build/cc_kernels/libtf_interop_core.so
if [ -e "$tools/lib/libtf_interop.so" ]; then
  export TF_INTEROP_LIBRARY=${TF_INTEROP_LIBRARY:-$tools/lib/libtf_interop.so}
fi

# Otherwise TensorFlow would use a GPU, unlike the profile.
[ "$backend" = cudnn ] || export CUDA_VISIBLE_DEVICES=
tensorflow=$("$python" -c 'import tensorflow as tf, sys
print("yes" if tf.config.list_physical_devices("GPU") or sys.argv[1] == "host" else "blind")' \
  "$backend" 2>"$results/tensorflow.log")
if [ "$tensorflow" = blind ]; then # It would spend a long time measuring the CPU.
  echo "FAILED  TensorFlow sees no GPU: $results/tensorflow.log"
  failed=1
fi

is_possible() { # is_possible GROUP
  case $1 in
    tests | launch) [ "$backend" = cudnn ] ;;
    profile) [ -e "$lists" ] ;;
    op | benchmark) [ "$tensorflow" = yes ] ;;
  esac
}

while read -r group name limit command; do
  [[ " all ${STEPS:-tests launch op profile benchmark} " = *" $group "* ]] || continue
  if ! is_possible "$group"; then
    echo "skipped $name"
    continue
  fi
  left=$(left)
  limit=$((limit < left ? limit : left))
  start=$(date +%s)
  # A kernel that does not end must not take time from the other steps.
  timeout --kill-after=5 "$limit" bash -uo pipefail -c "$command" </dev/null >>"$results/$name.log" 2>&1
  status=$?
  taken=$(($(date +%s) - start))
  echo "$name, $status, $taken" >>"$results/steps.txt"
  if [ "$status" = 0 ]; then
    echo "ok      $name ($taken s)"
  else
    echo "FAILED  $name ($taken s, status $status): $results/$name.log"
    tail -n 15 "$results/$name.log"
    failed=$((failed + 1))
  fi
done < <(steps)
exit "$failed"
