#!/usr/bin/env bash
# Sets everything up, and compares some networks with and without tf_interop on this machine's CPU.
#
#   scripts/demo.sh [OPTIONS]
#
# OPTIONS go to python/examples/demonstration.py (see its --help).
set -euo pipefail
cd "$(dirname "$0")/.."
export PIP_ROOT_USER_ACTION=ignore TF_CPP_MIN_LOG_LEVEL=3
scripts/setup.sh
# TensorFlow logs some lines whatever the log level.
"$(realpath -m "${VENV:-.venv}")/bin/python" python/examples/demonstration.py "$@" \
  2> >(grep --line-buffered -Ev '^([IWE]0000 |WARNING: All log messages)' >&2)
