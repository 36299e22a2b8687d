#!/usr/bin/env bash
# Trains small networks with their layers divided over logical devices of the CPU in many ways,
# compares with one device, and writes the values and the page of results anew. Takes about 20
# minutes on two cores; some of it is in the tests. Fails where a network gives other numbers.
#
#   scripts/check_divided_training.sh [OPTIONS OF python/benchmarks/run.py]
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}
python python/benchmarks/run.py divided_training -o docs/results/divided_training.json "$@"
scripts/write_results.py
