#!/usr/bin/env bash
# Checks the C++ of cc_kernels/ with clang-tidy (.clang-tidy lists the checks). Warnings are errors.
#
#   scripts/tidy.sh [--quick] [FILE.cc...]
#
# Without files it checks all sources. --quick skips the static analyzer, which takes two thirds of the
# time. The environment of `setup.sh dev` (VENV) provides clang-tidy and headers; headers of other
# projects are system headers, which are not checked.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
checks=()
if [ "${1:-}" = --quick ]; then
  checks=(-checks=-clang-analyzer-*)
  shift
fi
build=build/tidy
cmake -S . -B "$build" -G Ninja -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DTF_INTEROP_BUILD_TESTS=ON \
  -DTF_INTEROP_CUDNN_BACKEND=on >/dev/null
files=("$@")
[ $# -gt 0 ] || mapfile -t files < <(git ls-files --cached --others --exclude-standard 'cc_kernels/*.cc')
# It expects regular expressions.
run-clang-tidy.py -quiet -p "$build" "${checks[@]}" $(realpath "${files[@]}" | sed 's/[.+]/\\&/g; s/.*/^&$/')
