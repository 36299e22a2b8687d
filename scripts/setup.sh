#!/usr/bin/env bash
# Makes a virtual environment with TensorFlow and tf_interop, built for that TensorFlow.
#
#   scripts/setup.sh [EXTRAS]
#
# EXTRAS is a list such as "dev"; without it only what running needs is installed.
#   VENV                folder of the environment (default: .venv)
#   PYTHON              the Python to make it with (default: python3)
#   TENSORFLOW_VERSION  (default: 2.21.*)
# Running it again brings an environment up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

extras=${1:-}
venv=$(realpath -m "${VENV:-.venv}")
python=${PYTHON:-python3}

if ! command -v g++ >/dev/null; then
  echo "setup.sh: expected a C++ compiler (g++ 9 or newer), found none. On Debian and Ubuntu:" \
    "apt-get install g++" >&2
  exit 1
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

tensorflow="tensorflow==${TENSORFLOW_VERSION:-2.21.*}"

echo "Installing TensorFlow and build tools into $venv …"
"${pip[@]}" install --quiet "$tensorflow" \
  "scikit-build-core>=0.11" "cmake>=3.22" ninja
echo "Building tf_interop …"
# Not isolated: the library has to be built against the very TensorFlow that it will run with. That is
# named again so that no other package brings another version. Each environment has a build folder of
# its own: with one for all, building for another TensorFlow would build everything again each time.
PATH="$venv/bin:$PATH" "${pip[@]}" install --quiet --no-build-isolation \
  --config-settings="build-dir=build/for-$(basename "$venv")" --editable ".${extras:+[$extras]}" "$tensorflow"
echo "Done. Next: . ${venv#"$PWD"/}/bin/activate && tf-interop doctor"
