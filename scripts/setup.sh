#!/usr/bin/env bash
# Makes a virtual environment with TensorFlow and tf_interop, built for that TensorFlow.
#
#   scripts/setup.sh [EXTRAS]
#
# EXTRAS is a list such as "dev"; without it only the run-time dependencies are installed.
#   VENV                folder of the environment (default: .venv)
#   PYTHON              makes the environment (default: python3)
#   TENSORFLOW_VERSION  (default: 2.21.*)
# Running it again updates the environment.
set -euo pipefail
cd "$(dirname "$0")/.."

extras=${1:-}
venv=$(realpath -m "${VENV:-.venv}")
python=${PYTHON:-python3}

if ! command -v g++ >/dev/null; then
  echo "setup.sh: no C++ compiler found; g++ 9 or newer is needed. On Debian and Ubuntu:" \
    "apt-get install g++" >&2
  exit 1
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

# Prints a line every ten seconds while a command runs, which itself may be silent for minutes.
with_a_clock() {
  local begun=$SECONDS clock status=0
  # It keeps no pipe open and ends with this script.
  while sleep 10 >&- 2>&- && kill -0 $$ 2>/dev/null; do echo "  … $((SECONDS - begun)) s"; done &
  clock=$!
  "$@" || status=$?
  kill "$clock"
  wait "$clock" 2>/dev/null || true
  return "$status"
}

tensorflow="tensorflow==${TENSORFLOW_VERSION:-2.21.*}"

echo "Installing TensorFlow and build tools into $venv …"
with_a_clock "${pip[@]}" install "$tensorflow" \
  "scikit-build-core>=0.11" "cmake>=3.22" ninja
echo "Building tf_interop, which takes two to four minutes on two cores …"
# The build is not isolated, because the library must be built against the TensorFlow that it will run
# with. TensorFlow's version is given again, so that no other package changes it. Each environment has
# its own build folder: a shared one would be rebuilt for each TensorFlow.
PATH="$venv/bin:$PATH" with_a_clock "${pip[@]}" install --no-build-isolation \
  --config-settings="build-dir=build/for-$(basename "$venv")" --editable ".${extras:+[$extras]}" "$tensorflow"
echo "Done. Next: . ${venv#"$PWD"/}/bin/activate && tf-interop doctor"
