#!/usr/bin/env bash
# Sets everything up and tunes NASNetMobile and InceptionV3 on this machine.
#
#   scripts/demo.sh [OPTIONS]
#
# OPTIONS go to python/examples/demonstration.py (see its --help).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
exec "$(realpath -m "${VENV:-.venv}")/bin/python" python/examples/demonstration.py "$@"
