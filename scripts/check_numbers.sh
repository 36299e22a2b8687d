#!/usr/bin/env bash
# Compares numbers with stock TensorFlow's on the CPU, and writes the values and the page of results.
# Fails if a network computes different numbers. The tests run a few of the cases.
#
#   scripts/check_numbers.sh applications [OPTIONS OF python/benchmarks/run.py]
#   scripts/check_numbers.sh compiled_applications [OPTIONS OF python/benchmarks/run.py]
#   scripts/check_numbers.sh folded_applications [OPTIONS OF python/benchmarks/run.py]
#   scripts/check_numbers.sh divided_training [OPTIONS OF python/benchmarks/run.py]
#   scripts/check_numbers.sh random_networks [OPTIONS OF python/benchmarks/run.py]
#
# The first three compare every architecture of keras.applications with the plugin on and off: in units
# and folded, each in about half an hour on two cores, and compiled by XLA, in hours. The fourth trains
# small networks with their layers divided over logical devices in many ways, in about 20 minutes. The last
# updates the variables of thousands of random networks between and during calls, in about 30 minutes. After
# an interruption, `--resume` keeps the networks that are in the results file.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ! "${1:-}" =~ ^(applications|compiled_applications|folded_applications|divided_training|random_networks)$ ]]; then
  echo "Expected 'applications', 'compiled_applications', 'folded_applications', 'divided_training' or 'random_networks', got '${1:-}'." >&2
  exit 2
fi
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}
python python/benchmarks/run.py "$1" -o "docs/results/$1.json" "${@:2}"
scripts/write_results.py
