#!/usr/bin/env bash
# Runs a file of Python tests on the libraries that Bazel built, in the root of the runfiles.
#
#   run_pytest.sh FILE
set -euo pipefail
export PYTHONPATH=$PWD
export TF_INTEROP_LIBRARY=$PWD/cc_kernels/libtf_interop.so
export TF_INTEROP_CORE_LIBRARY=$PWD/cc_kernels/libtf_interop_core.so
export TF_INTEROP_STAND_INS=$PWD/tests/cc
export TF_CPP_MIN_LOG_LEVEL=2
# Bazel's own HOME does not exist, and a test must not see the user's files.
export HOME=$TEST_TMPDIR
exec ../tensorflow/python -m pytest -p no:cacheprovider "$@"
