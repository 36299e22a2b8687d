#!/usr/bin/env bash
# Sets everything up and runs the tests: first the C++ core's, then the Python package's.
#
#   scripts/test.sh [PYTEST OPTIONS]
#
# Without options it leaves out those marked slow, which scripts/check_slow.sh runs.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh dev
scripts/test_core.sh

# profile_cudnn_test.py opens these instead of libcuda and libcudnn.
export TF_INTEROP_STAND_INS=$PWD/build/core/tests/cc
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}
# Several files at once, because most tests keep only one core busy.
[ $# -gt 0 ] || set -- -m "not slow"
exec python -m pytest -n auto --maxprocesses 4 --dist loadfile "$@"
