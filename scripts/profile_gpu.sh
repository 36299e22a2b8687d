#!/usr/bin/env bash
# Profiles lists of configurations on a GPU machine, with or without a network or TensorFlow: builds the
# core from source, measures the first list, runs the core's tests on the GPU, then measures as far as the
# time goes.
#
#   scripts/profile_gpu.sh LISTS RESULTS [MINUTES]
#
# LISTS is a list of configurations, or a folder of them, which are measured in the order of their names;
# each may take a share of the time that is left, the first ones more than the last. RESULTS is the folder
# for profile.json, tables.txt and the logs; a profile that is there is gone on with. MINUTES (default 9)
# are for all of it, building and tests included. The profile is usable after every list.
#   TOOLS           what pack_for_gpu.sh made, for machines without a network (default: .gpu/tools)
#   BACKEND         cudnn (default) or host
#   PYTHON          (default: python3)
#   SKIP_TESTS      anything: the tests are not run
#   PROFILE_OPTIONS more options of `tf-interop profile`, such as "--algorithms knobs"
# Ends with the number of steps that failed.
set -uo pipefail
cd "$(dirname "$0")/.."
lists=$(realpath -m "$1")
results=$(realpath -m "$2")
end=$((SECONDS + ${3:-9} * 60))
tools=$(realpath -m "${TOOLS:-.gpu/tools}")
backend=${BACKEND:-cudnn}
python=${PYTHON:-python3}
mkdir -p "$results"
source scripts/gpu_machine.sh

profile() {  # profile LIST SECONDS
  echo "== $(basename "$1"), $2 s"
  # The measurement in hand at the end, and reading and writing the profile, are not in the budget. A
  # kernel that does not end keeps the signal from being seen.
  timeout --signal=TERM --kill-after=20 $(($2 + 30)) "$python" -m tf_interop profile "$1" \
    --backend "$backend" --budget "$2s" -o "$results/profile.json" ${PROFILE_OPTIONS:-} \
    >"$results/tables.txt"
  local status=$?
  # The tables are of all lists so far: the last ones are kept, of the others what was done.
  sed -n '/measured now/,$p' "$results/tables.txt"
  return "$status"
}

step machine machine
step build build_core || exit 1
step packages install_packages
use_packages_and_core

names=("$lists")
if [ -d "$lists" ]; then
  names=("$lists"/*.json)
fi
for ((index = 0; index < ${#names[@]}; index++)); do
  left=$((end - SECONDS))
  share=$((2 * left / (${#names[@]} - index + 1)))
  # However long building took: something is better than nothing.
  if [ "$index" = 0 ] && [ "$share" -lt 20 ]; then
    share=20
  fi
  [ "$share" -ge 2 ] || break
  # A device that failed works again in a new process, which goes on after what it failed at.
  started=$SECONDS
  step profile profile "${names[index]}" "$share"
  while [ "$?" = 3 ] && [ $((share -= SECONDS - started)) -ge 2 ]; do
    started=$SECONDS
    step profile profile "${names[index]}" "$share"
  done
  if [ "$index" = 0 ] && [ "$backend" = cudnn ] && [ -z "${SKIP_TESTS:-}" ]; then
    # Something is in hand now; a test that fails says how far to trust it.
    run_gpu_tests
  fi
done
if [ -e "$results/profile.json" ]; then
  gzip --best --keep --force "$results/profile.json"
  step check "$python" -m tf_interop profile check "$results/profile.json"
else
  failed=$((failed + 1))
fi
exit "$failed"
