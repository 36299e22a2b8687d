#!/usr/bin/env bash
# Builds the source distribution, a wheel from it and one from this tree, compares them, and tries the
# wheel in fresh environments: with the TensorFlow that it was built for it has to install without a
# change of any other package, to work, and to leave nothing behind; another TensorFlow it has to refuse.
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
# What a developer's shell names must not stand in for what is installed.
unset PYTHONPATH TF_INTEROP_LIBRARY TF_INTEROP_CORE_LIBRARY
export PIP_DISABLE_PIP_VERSION_CHECK=1

fail() { # MESSAGE
  echo "check_wheel.sh: $1" >&2
  exit 1
}
make_environment() { # FOLDER PACKAGES…
  echo "Installing ${*:2} into a fresh environment …"
  "${PYTHON:-python3}" -m venv "$1"
  "$1/bin/pip" install --quiet "${@:2}"
}
packages() { # FOLDER
  "$1/bin/pip" freeze | sort
}

make_environment "$work/build" "tensorflow==$this_version" build "scikit-build-core>=0.11" \
  "cmake>=3.22" ninja
echo "Building the source distribution, a wheel from it, and a wheel from this tree …"
export PATH="$work/build/bin:$PATH"
python -m build --no-isolation --outdir "$out" . >"$work/build.log" 2>&1 ||
  { tail -n 40 "$work/build.log" >&2; exit 1; }
pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work" .
wheel=$(ls -t "$out"/tf_interop-*.whl | head -n 1)
sources=$(ls -t "$out"/tf_interop-*.tar.gz | head -n 1)
python scripts/compare_wheels.py "$wheel" "$work"/tf_interop-*.whl
if [ -e .git ]; then
  # What runs the project's own checks is no part of it.
  git ls-files -- . ':!.ci' | sort >"$work/tracked"
  tar -tzf "$sources" | sed 's,^[^/]*/,,' | grep -vx 'PKG-INFO' | sort >"$work/packed"
  diff "$work/tracked" "$work/packed" >&2 ||
    fail "expected the files of the repository in $sources, got the others above (<: missing, >: needless)"
fi

make_environment "$work/fresh" "tensorflow==$this_version"
packages "$work/fresh" >"$work/before"
"$work/fresh/bin/pip" install --quiet "$wheel"
packages "$work/fresh" >"$work/after"
changed=$(comm -23 "$work/before" "$work/after")
[ -z "$changed" ] || fail "expected an installation that changes no package, it changed: $changed"
"$work/fresh/bin/pip" install --quiet --dry-run "$wheel[gpu]" "tensorflow==$this_version" >"$work/gpu" 2>&1 ||
  fail "expected the extra gpu to go with TensorFlow $this_version: $(cat "$work/gpu")"

echo "The wheel in a fresh environment:"
cp -r python/examples "$work/examples"
cd "$work"
export TF_CPP_MIN_LOG_LEVEL=2
# The doctor runs a stage, and holds its numbers against TensorFlow's.
fresh/bin/tf-interop doctor 2>/dev/null | tee doctor
grep -Eq "^ok +a stage .* runs on the [CG]PU with TensorFlow's numbers" doctor ||
  fail "expected a stage with TensorFlow's numbers, the doctor saw none"
TF_INTEROP_HOST_STAGES=1 fresh/bin/tf-interop run --policy always --report examples/branches.py --steps 2 >run 2>&1 ||
  { cat run >&2; exit 1; }
grep -E '^ +stages run: [1-9]' run || fail "expected stages to run, got: $(cat run)"
fresh/bin/pip uninstall --quiet --yes tf-interop
left=$(find fresh -ipath '*tf[-_]interop*')
[ -z "$left" ] || fail "expected nothing of the package after its removal, found: $left"

make_environment "$work/other" "tensorflow==$other_version" "$wheel"
if other/bin/python -c "import tf_interop; tf_interop.enable(policy='always')" >refusal 2>&1; then
  fail "expected the wheel to refuse TensorFlow $other_version, it did not"
fi
echo "With TensorFlow $other_version:"
grep 'Expected TensorFlow' refusal || fail "expected a message about TensorFlow's version: $(cat refusal)"
echo "$wheel: $(du -h "$wheel" | cut -f1)"
