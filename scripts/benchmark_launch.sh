#!/usr/bin/env bash
# Times how long the host takes to launch a pinned convolution, beside the bare cuDNN calls it makes,
# and to run a stage that is prepared: finding it by its shapes, fork, launches and join.
#
#   scripts/benchmark_launch.sh [OUT]
#
# OUT (default docs/results/launch_overhead.json) is written. TF_INTEROP_LIBCUDA and TF_INTEROP_LIBCUDNN
# choose the libraries; where neither is set and there is no GPU, the stand-ins of the C++ tests serve,
# which enqueue nothing then. The environment that setup.sh made (VENV) gives CMake and headers.
#   BUILD  a folder where the benchmark has been built (default: build/core, where it is built)
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
out=${1:-docs/results/launch_overhead.json}

build=$(realpath -m "${BUILD:-build/core}")
if [ -z "${BUILD:-}" ]; then
  cmake -S . -B "$build" -G Ninja -DTF_INTEROP_BUILD_LIBRARY=OFF -DTF_INTEROP_BUILD_TESTS=ON \
    -DTF_INTEROP_CUDNN_BACKEND=on >/dev/null
  cmake --build "$build" --parallel --target launch_overhead fake_cuda fake_cudnn
fi

if [ -z "${TF_INTEROP_LIBCUDA:-}${TF_INTEROP_LIBCUDNN:-}" ] && ! nvidia-smi -L >/dev/null 2>&1; then
  echo "No GPU here: timing with the stand-ins for libcuda and libcudnn."
  export TF_INTEROP_LIBCUDA=$build/tests/cc/libfake_cuda.so
  export TF_INTEROP_LIBCUDNN=$build/tests/cc/libfake_cudnn.so
fi
# Has no meaning to real libraries.
export TF_INTEROP_FAKE_CUDNN_NO_WORK=1
"$build/cc_kernels/launch_overhead" | PYTHONPATH=$PWD python3 -c '
import datetime, json, os, pathlib, re, sys

from tf_interop.versioned_file import in_lines

measured = json.load(sys.stdin)
for library in ("libcuda", "libcudnn"):
    name = pathlib.Path(measured[library]).name
    measured[library] = f"fake ({name})" if name.startswith("libfake_") else name
model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
cores = len(os.sched_getaffinity(0))
result = {
    "format": "tf_interop.launch_overhead",
    "version": 2,
    "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    "machine": f"{model[1]}, {cores} cores" if model else f"{cores} cores",
    "command": "scripts/benchmark_launch.sh",
    **measured,
}
pathlib.Path(sys.argv[1]).write_text(in_lines(result) + "\n")
for launch in filter(None, result["launches"]):
    print(launch["name"] + ":", launch["overhead_ns"], "ns over the bare calls of", measured["libcudnn"])
for stage in result["stages"]:
    times = [stage[call]["median_ns"] for call in ("call", "call_with_new_addresses")]
    print(stage["lanes"], "lanes:", times[0], "ns a call,", times[1], "ns where addresses change")
' "$out"
