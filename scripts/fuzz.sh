#!/usr/bin/env bash
# Fuzzes the readers of files and the graph pass, each for some seconds.
#
#   scripts/fuzz.sh [SECONDS]             default: 10
#
# Ends with an error at the first finding, and leaves the input that shows it in build/fuzz/.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
export TF_CPP_MIN_LOG_LEVEL=3
seconds=${1:-10}
mkdir -p build/fuzz
# The edits are chosen by the fuzzer's bytes, so that short inputs say all there is to say.
options=(-max_total_time="$seconds" -max_len=128 -len_control=0 -artifact_prefix=build/fuzz/)

fuzz() { # NAME COMMAND…
  local log=build/fuzz/$1.log
  if ! python "${@:2}" "${options[@]}" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "fuzz.sh: expected $1 to refuse what is damaged, got the above" >&2
    exit 1
  fi
  echo "$1: $(grep -o 'Done .*' "$log")"
}
for reader in plan problem profile configurations nsight; do
  fuzz "$reader" tests/fuzz/fuzz_files.py "$reader"
done
fuzz pass tests/fuzz/fuzz_pass.py
