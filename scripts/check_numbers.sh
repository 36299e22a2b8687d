#!/usr/bin/env bash
# Compares numbers with stock TensorFlow's on the CPU, and writes the values and the page of results.
# Fails if a network computes different numbers. The tests run a few of the cases.
#
#   scripts/check_numbers.sh CASE [OPTIONS OF python/benchmarks/run.py]
#
# The cases applications, folded_applications and compiled_applications compare every architecture of
# keras.applications with the plugin on and off: in units and folded, each in about half an hour on two
# cores, and compiled by XLA, in hours. divided_training trains small networks with their layers divided over
# logical devices in many ways, in about 20 minutes. random_networks updates the variables of thousands of
# random networks between and during calls, in about 30 minutes. After an interruption, `--resume` keeps the
# networks that are in the results file.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
python python/benchmarks/run.py "${1:?check_numbers.sh: expected a case}" -o "docs/results/$1.json" "${@:2}"
scripts/write_results.py
