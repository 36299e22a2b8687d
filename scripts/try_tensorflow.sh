#!/usr/bin/env bash
# Tries another version of TensorFlow, also one outside pyproject.toml's bounds: builds against it and
# runs the tests, in an environment of its own under build/, which stays for whoever fixes what differs.
#
#   scripts/try_tensorflow.sh VERSION [PYTEST OPTIONS]       such as '2.20.*' or 2.22.0rc0
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?try_tensorflow.sh: expected a version of TensorFlow, such as 2.20.*}
shift
other=$PWD/build/tensorflow-${version%.\*}
export TF_CPP_MIN_LOG_LEVEL=3 PIP_DISABLE_PIP_VERSION_CHECK=1

VENV=$other TENSORFLOW_VERSION=$version scripts/setup.sh
# The tools of the extra dev. A TensorFlow that is not released yet has no tf_keras of its own.
"$other/bin/python" - >"$other/tools.txt" <<'END'
import importlib.metadata
from packaging.requirements import Requirement

for each in map(Requirement, importlib.metadata.requires("tf-interop")):
    if each.marker and each.marker.evaluate({"extra": "dev"}) and each.name != "tf_keras":
        print(f"{each.name}{each.specifier}")
END
"$other/bin/pip" install --quiet --requirement "$other/tools.txt" "tensorflow==$version"
if ! "$other/bin/pip" install --quiet tf_keras "tensorflow==$version" 2>/dev/null; then
  echo "There is no tf_keras for TensorFlow $version; the last one stands in for it."
  "$other/bin/pip" install --quiet --no-deps tf_keras
fi
VENV=$other scripts/test_core.sh
export PATH="$other/bin:$PATH" TF_INTEROP_STAND_INS=$PWD/build/core/tests/cc
# That tf_keras may not import there; what does not need it runs all the same.
exec python -m pytest --continue-on-collection-errors "$@"
