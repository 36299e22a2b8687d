#!/bin/sh
# Runs the launch benchmark over the stand-ins, in the root of Bazel's runfiles.
[ -e "$TF_INTEROP_REAL_CUDNN" ] || { echo "no cuDNN; scripts/get_cudnn.sh installs it" && exit 0; }
export TF_INTEROP_LIBCUDA=$PWD/tests/cc/libfake_cuda.so
export TF_INTEROP_LIBCUDNN=$PWD/tests/cc/libfake_cudnn.so
export TF_INTEROP_FAKE_CUDNN_NO_WORK=1
exec cc_kernels/launch_overhead
