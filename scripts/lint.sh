#!/usr/bin/env bash
# Checks formatting, lint rules and types. `scripts/lint.sh --fix` formats instead.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
cc_files=$(git ls-files --cached --others --exclude-standard 'cc_kernels/*.cc' 'cc_kernels/*.h' 'tests/*.cc' 'tests/*.h')
if [ "${1:-}" = --fix ]; then
  clang-format -i $cc_files
  ruff format .
  ruff check --fix .
  exit
fi
clang-format --dry-run --Werror $cc_files
ruff format --check .
ruff check .
mypy
