#!/usr/bin/env bash
# Builds the wheel and the source distribution and tries the wheel in fresh environments: one with
# the TensorFlow that it was built for, one with another.
#
#   scripts/check_wheel.sh [FOLDER]       where wheel and source distribution go (default: dist)
#
# TENSORFLOW_VERSION and OTHER_TENSORFLOW_VERSION name the two (default: 2.21.* and 2.20.*).
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:-dist}"
out=$(realpath "${1:-dist}")
this_version=${TENSORFLOW_VERSION:-2.21.*}
other_version=${OTHER_TENSORFLOW_VERSION:-2.20.*}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

make_environment() { # FOLDER PACKAGES…
  echo "Installing ${*:2} into a fresh environment …"
  "${PYTHON:-python3}" -m venv "$1"
  "$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
}
versions() { # FOLDER
  "$1/bin/pip" freeze --disable-pip-version-check | sort
}

make_environment "$work/build" "tensorflow==$this_version" build "scikit-build-core>=0.11" \
  "cmake>=3.22" ninja
echo "Building the source distribution, a wheel from it, and a wheel from this tree …"
export PATH="$work/build/bin:$PATH"
python -m build --no-isolation --outdir "$out" . >"$work/build.log" 2>&1 ||
  { tail -n 40 "$work/build.log" >&2; exit 1; }
pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work" .
wheel=$(ls -t "$out"/tf_interop-*.whl | head -n 1)
python scripts/compare_wheels.py "$wheel" "$work"/tf_interop-*.whl

make_environment "$work/fresh" "tensorflow==$this_version"
versions "$work/fresh" >"$work/before"
"$work/fresh/bin/pip" install --quiet --disable-pip-version-check "$wheel"
changed=$(comm -23 "$work/before" <(versions "$work/fresh"))
if [ -n "$changed" ]; then
  echo "check_wheel.sh: expected an installation that changes no package, got changes of: $changed" >&2
  exit 1
fi
echo "The wheel in a fresh environment:"
cp -r python/examples "$work/examples"
cd "$work"
export TF_CPP_MIN_LOG_LEVEL=2
"$work/fresh/bin/tf-interop" run --policy always --report examples/branches.py --steps 2

make_environment "$work/other" "tensorflow==$other_version" "$wheel"
if "$work/other/bin/python" -c "import tf_interop; tf_interop.enable(policy='always')" \
  >"$work/refusal" 2>&1; then
  echo "check_wheel.sh: expected the wheel to refuse TensorFlow $other_version, it did not" >&2
  exit 1
fi
echo "With TensorFlow $other_version: $(grep -o 'Expected TensorFlow.*' "$work/refusal")"
echo "$wheel: $(du -h "$wheel" | cut -f1)"
