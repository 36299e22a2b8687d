#!/usr/bin/env bash
# Sets everything up and runs all tests: those of the C++ core, then those of the Python package.
#
#   scripts/test.sh [PYTEST OPTIONS]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh dev
scripts/test_core.sh

# What profile_cudnn_test.py opens in place of libcuda and libcudnn.
export TF_INTEROP_STAND_INS=$PWD/build/core/tests/cc
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
# The logs of TensorFlow's start are long and say nothing about the tests.
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}
# Files at the same time, as most of a test is Python on one core.
exec python -m pytest -n auto --maxprocesses 4 --dist loadfile "$@"
