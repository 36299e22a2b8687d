#!/usr/bin/env bash
# Tries another version of TensorFlow: builds against it in an environment of its own, says which of the
# interfaces used here are others there, and runs the tests.
#
#   scripts/try_tensorflow.sh VERSION [PYTEST OPTIONS]       such as 2.20.*
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?try_tensorflow.sh: expected a version of TensorFlow, such as 2.20.*}
shift
this=$(realpath -m "${VENV:-.venv}")
other=$PWD/build/tensorflow-${version//[^0-9.]/}
export TF_CPP_MIN_LOG_LEVEL=3

scripts/setup.sh dev
VENV=$other TENSORFLOW_VERSION=$version scripts/setup.sh dev
for venv in "$this" "$other"; do
  "$venv/bin/python" scripts/tensorflow_interfaces.py --look 2>/dev/null >"$venv/interfaces.txt"
done
echo "Interfaces that differ (<: $("$this/bin/python" -c 'import tensorflow as tf; print(tf.__version__)' \
  2>/dev/null), >: $version):"
diff "$this/interfaces.txt" "$other/interfaces.txt" || true
# Leaves the other environment as it is, for whoever mends what differs.
VENV=$other TENSORFLOW_VERSION=$version scripts/test.sh "$@"
