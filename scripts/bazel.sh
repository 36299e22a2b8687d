#!/usr/bin/env bash
# Runs Bazel: by default it builds everything and runs the tests.
#
#   scripts/bazel.sh [COMMAND [TARGETS]]      default: test //...
#
# Uses a Bazel from 4 to 8 on the path, which downloads the C++ rules; 9 reads no WORKSPACE. If there is
# none, installs Debian's bazel-bootstrap, whose built-in C++ rules need no network.
set -euo pipefail
cd "$(dirname "$0")/.."
rules=/usr/share/bazel

if ! command -v bazel >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing Debian's Bazel …"
  packages="bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib libgtest-dev"
  (apt-get install -y -qq $packages || (apt-get update -qq && apt-get install -y -qq $packages)) >/dev/null
fi
command=${1:-test}
shift || true
[ $# -gt 0 ] || set -- //...
options=()
case $(bazel --version) in
  "bazel no_version") # Debian's
    options=(
      --override_repository=bazel_skylib=$rules/tools/skylib
      --override_repository=platforms=$rules/platforms
      --override_repository=remote_coverage_tools="$PWD/bazel/coverage_tools"
      --override_repository=rules_cc="$PWD/bazel/rules_cc"
      --override_repository=rules_java=$rules/rules/java
      --override_repository=rules_proto=$rules/rules/proto
    ) ;;
  "bazel 7."*) options=(--noenable_bzlmod) ;;
  "bazel 8."*) options=(--noenable_bzlmod --enable_workspace) ;;
  "bazel 4."* | "bazel 5."* | "bazel 6."*) ;;
  *)
    echo "bazel.sh: expected a Bazel that reads WORKSPACE, 4 to 8, found $(bazel --version). With Bazelisk" \
      "or Bazel's own launcher, set USE_BAZEL_VERSION, such as to 7.6.1." >&2
    exit 1
    ;;
esac
# scripts/get_cudnn.sh installs it; without it the tests that need it are skipped.
options+=(--test_env=TF_INTEROP_REAL_CUDNN="$PWD/build/cudnn/nvidia/cudnn/lib/libcudnn.so.9")
exec bazel "$command" "${options[@]}" "$@"
