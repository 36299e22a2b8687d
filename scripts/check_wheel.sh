#!/usr/bin/env bash
# Builds the source distribution and a wheel from it, checks their contents, and tries the wheel in
# fresh environments. With its own TensorFlow it must install without changing any other package, work,
# and leave nothing when removed. It must refuse another TensorFlow.
#
#   scripts/check_wheel.sh [FOLDER]       for the wheel and the source distribution (default: dist)
#
# TENSORFLOW_VERSION and OTHER_TENSORFLOW_VERSION choose the two (default: 2.21.* and 2.20.*).
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:-dist}"
out=$(realpath "${1:-dist}")
this_version=${TENSORFLOW_VERSION:-2.21.*}
other_version=${OTHER_TENSORFLOW_VERSION:-2.20.*}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A developer's settings must not replace the installed package.
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
echo "Building the source distribution, and a wheel from it …"
export PATH="$work/build/bin:$PATH"
python -m build --no-isolation --outdir "$out" . >"$work/build.log" 2>&1 ||
  { tail -n 40 "$work/build.log" >&2; exit 1; }
wheel=$(ls -t "$out"/tf_interop-*.whl | head -n 1)
sources=$(ls -t "$out"/tf_interop-*.tar.gz | head -n 1)
(
  git ls-files -- tf_interop
  printf 'tf_interop/%s\n' build_info.json libtf_interop_core.h libtf_interop.so libtf_interop_core.so
) | sort >"$work/expected"
python -m zipfile -e "$wheel" "$work/wheel"
(cd "$work/wheel" && find . -type f -not -path '*.dist-info/*' -printf '%P\n') | sort |
  diff "$work/expected" - >&2 ||
  fail "expected the package and its built files in $wheel, got the differences above"
ls "$work"/wheel/*.dist-info/licenses/LICENSE >/dev/null || fail "expected the license in $wheel"
grep -Eq '"cudnn_backend": *true' "$work/wheel/tf_interop/build_info.json" ||
  fail "expected the cudnn backend in $wheel, which would never use a GPU"
# The dev tools may require one: setup.sh pins TensorFlow's version with them.
! grep -hE '^Requires-Dist: tensorflow' "$work"/wheel/*.dist-info/METADATA | grep -v 'extra == "dev"' ||
  fail "expected a wheel that requires no TensorFlow, because it must not replace the user's"
if [ -e .git ]; then
  # .ci is not part of the distribution.
  git ls-files -- . ':!.ci' | sort >"$work/tracked"
  tar -tzf "$sources" | sed 's,^[^/]*/,,' | grep -vx 'PKG-INFO' | sort >"$work/packed"
  diff "$work/tracked" "$work/packed" >&2 ||
    fail "expected the repository's files in $sources, got the differences above (<: missing, >: extra)"
fi

make_environment "$work/fresh" "tensorflow==$this_version"
packages "$work/fresh" >"$work/before"
"$work/fresh/bin/pip" install --quiet "$wheel"
packages "$work/fresh" >"$work/after"
changed=$(comm -23 "$work/before" "$work/after")
[ -z "$changed" ] || fail "expected the installation to change no other package, it changed: $changed"
"$work/fresh/bin/pip" install --quiet --dry-run "$wheel[gpu]" "tensorflow==$this_version" >"$work/gpu" 2>&1 ||
  fail "expected the extra gpu to install with TensorFlow $this_version: $(cat "$work/gpu")"

echo "The wheel in a fresh environment:"
cp -r python/examples "$work/examples"
cd "$work"
export TF_CPP_MIN_LOG_LEVEL=2
# The doctor compares the results of a stage or of units with TensorFlow's.
fresh/bin/tf-interop doctor 2>/dev/null | tee doctor
grep -Eq "^ok +two convolutions +run as .* with TensorFlow's results" doctor ||
  fail "expected convolutions with TensorFlow's results, the doctor found none"
TF_INTEROP_HOST_STAGES=1 fresh/bin/tf-interop run --policy always --report examples/branches.py --steps 2 >run 2>&1 ||
  { cat run >&2; exit 1; }
grep -E '^ +stages run: [1-9]' run || fail "expected stages to run, got: $(cat run)"
fresh/bin/pip uninstall --quiet --yes tf-interop
left=$(find fresh -ipath '*tf[-_]interop*')
[ -z "$left" ] || fail "expected no files of the package after its removal, found: $left"

make_environment "$work/other" "tensorflow==$other_version" "$wheel"
if other/bin/python -c "import tf_interop; tf_interop.enable(policy='always')" >refusal 2>&1; then
  fail "expected the wheel to refuse TensorFlow $other_version, it did not"
fi
echo "With TensorFlow $other_version:"
grep 'was built for TensorFlow' refusal || fail "expected a message about TensorFlow's version: $(cat refusal)"
echo "$wheel: $(du -h "$wheel" | cut -f1)"
