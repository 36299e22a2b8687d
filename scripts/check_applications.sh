#!/usr/bin/env bash
# Compares every architecture of keras.applications with the plugin on and off, on the CPU, and writes
# the values and the page of results again. Takes about half an hour on two cores; a few networks are in the
# tests. Fails where a network gives other numbers.
#
#   scripts/check_applications.sh [OPTIONS OF python/benchmarks/run.py]
#
# After an interruption, `--resume` keeps the networks that docs/results/applications.json has.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}
python python/benchmarks/run.py applications -o docs/results/applications.json "$@"
scripts/write_results.py
