#!/usr/bin/env bash
# Builds the C++ core and runs its tests, on any machine with a compiler and GoogleTest.
#
#   scripts/test_core.sh [thread|address]
#
# The argument is the sanitizer to build with; only the programs in which it could find something are
# then built (tests/cc/CMakeLists.txt). The environment of setup.sh (VENV) provides CMake and headers.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
sanitizer=${1:-}

if ! [ -e /usr/include/gtest/gtest.h ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing GoogleTest …"
  (apt-get install -y -qq libgtest-dev || (apt-get update -qq && apt-get install -y -qq libgtest-dev)) \
    >/dev/null
fi
scripts/get_cudnn.sh
build=build/core${sanitizer:+-$sanitizer}
cmake -S . -B "$build" -G Ninja -DTF_INTEROP_BUILD_LIBRARY=OFF -DTF_INTEROP_BUILD_TESTS=ON \
  -DTF_INTEROP_CUDNN_BACKEND=on -DTF_INTEROP_SANITIZER="$sanitizer" >/dev/null
cmake --build "$build" --parallel
ctest --test-dir "$build" --output-on-failure --parallel 2
if [ -z "$sanitizer" ]; then
  echo "Again with the oldest cuDNN that makes plans without a GPU, apart from the sweep …"
  TF_INTEROP_REAL_CUDNN=$PWD/build/cudnn-oldest/nvidia/cudnn/lib/libcudnn.so.9 \
    ctest --test-dir "$build" --output-on-failure --parallel 2 --tests-regex '^cudnn_' \
    --exclude-regex sweep
fi
