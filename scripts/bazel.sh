#!/usr/bin/env bash
# Runs Bazel on the same sources: build everything and run the tests, or whatever is asked for.
#
#   scripts/bazel.sh [COMMAND [TARGETS]]      default: test //...
#
# With current Bazel (bazel or bazelisk on the path, WORKSPACE enabled) this is Bazel itself. Debian's
# bazel-bootstrap, which it installs where there is none, comes without network access: its rules are
# those of Debian's packages, and the C++ rules those that are built in.
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
if [ -d $rules/rules/java ]; then
  options=(
    --override_repository=bazel_skylib=$rules/tools/skylib
    --override_repository=platforms=$rules/platforms
    --override_repository=remote_coverage_tools="$PWD/bazel/coverage_tools"
    --override_repository=rules_cc="$PWD/bazel/rules_cc"
    --override_repository=rules_java=$rules/rules/java
    --override_repository=rules_proto=$rules/rules/proto
  )
fi
exec bazel "$command" "${options[@]}" "$@"
