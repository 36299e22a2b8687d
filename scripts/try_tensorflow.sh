#!/usr/bin/env bash
# Builds against another version of TensorFlow, which may be outside pyproject.toml's bounds, and runs
# the tests. Keeps the environment, under build/, for fixing failures.
#
#   scripts/try_tensorflow.sh VERSION [PYTEST OPTIONS]       such as '2.20.*' or 2.22.0rc0
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?try_tensorflow.sh: expected a version of TensorFlow, such as 2.20.*}
shift
other=$PWD/build/tensorflow-${version%.\*}
export TF_CPP_MIN_LOG_LEVEL=3 PIP_DISABLE_PIP_VERSION_CHECK=1

VENV=$other TENSORFLOW_VERSION=$version scripts/setup.sh
# The dev tools. An unreleased TensorFlow has no tf_keras yet.
"$other/bin/python" - >"$other/tools.txt" <<'END'
import importlib.metadata
from packaging.requirements import Requirement

for each in map(Requirement, importlib.metadata.requires("tf-interop")):
    if each.marker and each.marker.evaluate({"extra": "dev"}) and each.name != "tf_keras":
        print(f"{each.name}{each.specifier}")
END
"$other/bin/pip" install --quiet --requirement "$other/tools.txt" "tensorflow==$version"
if ! "$other/bin/pip" install --quiet tf_keras "tensorflow==$version" 2>/dev/null; then
  echo "No tf_keras exists for TensorFlow $version; installing the latest one."
  "$other/bin/pip" install --quiet --no-deps tf_keras
fi
VENV=$other scripts/test_core.sh
export PATH="$other/bin:$PATH" TF_INTEROP_STAND_INS=$PWD/build/core/tests/cc
# Even if tf_keras cannot be imported, the other tests run.
exec python -m pytest --continue-on-collection-errors "$@"
