#!/usr/bin/env bash
# Installs cuDNN for the C++ tests, which use it without a GPU (tests/cc/fake_cudnn.h): the newest into
# build/cudnn, the oldest that works without one into build/cudnn-oldest. Downloads about 2 GB once,
# which take 3 GB on disk. Needs a python3 with pip on the path.
set -euo pipefail
cd "$(dirname "$0")/.."
newest=9.28.0.42
oldest=9.8.0.87

# TARGET REQUIREMENT...
install() {
  local target=build/$1
  shift
  [ "$(cat "$target/installed" 2>/dev/null)" = "$*" ] && return
  echo "Installing $* into $target …"
  rm -rf "$target"
  python3 -m pip --disable-pip-version-check install --quiet --no-deps --target "$target" "$@"
  echo "$*" >"$target/installed"
}
install cudnn "nvidia-cudnn-cu12==$newest" nvidia-cublas-cu12==12.9.* nvidia-cuda-nvrtc-cu12==12.9.*
install cudnn-oldest "nvidia-cudnn-cu12==$oldest"
# cuDNN looks for the other libraries beside itself; the oldest looks for NVRTC in a folder that no
# wheel has. Without NVRTC it has no engine for most epilogues, and none for an epilogue alone.
ln -sfn ../../cudnn/nvidia/cublas build/cudnn-oldest/nvidia/cublas
ln -sfn ../../cudnn/nvidia/cuda_nvrtc build/cudnn-oldest/nvidia/nvrtc
