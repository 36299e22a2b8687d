#!/usr/bin/env bash
# Packs the tools that gpu.sh needs on a GPU machine without a network and without TensorFlow: headers
# of Eigen, CUDA, cuDNN and GoogleTest, the compiled library, Python packages, and the configurations of
# five networks in FOLDER/configurations.
#
#   scripts/pack_for_gpu.sh [FOLDER]
#
# Copy FOLDER (default .gpu/tools) to the GPU machine with the source tree. PYTHON_VERSION is that
# machine's (default 3.12), COMPUTE_CAPABILITY its GPU's (default 9.0). Run scripts/setup.sh and
# scripts/test_core.sh first.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.gpu/tools}
python=$(realpath -m "${VENV:-.venv}")/bin/python

rm -rf "$folder"
mkdir -p "$folder/include" "$folder/lib" "$folder/wheels"
include=$("$python" cmake/find_tensorflow.py | cut -d';' -f1)/include
cp -r "$include/Eigen" "$folder/include/"
mkdir -p "$folder/include/unsupported"
cp -r "$include/unsupported/Eigen" "$folder/include/unsupported/"
mkdir -p "$folder/include/third_party/gpus/cudnn"
cp -r "$include/third_party/gpus/cudnn/include" "$folder/include/third_party/gpus/cudnn/"
# Under include/ they would hide the machine's own CUDA headers.
mkdir -p "$folder/cuda"
cp -r "$include/third_party/gpus/cuda/include" "$include/third_party/gpus/cuda/extras" "$folder/cuda/"
cp -r /usr/include/gtest "$folder/include/"
find /usr/lib -name 'libgtest*.a' -exec cp {} "$folder/lib/" \;
library=$("$python" -c 'from tf_interop.runtime.kernel_library import load_kernel_library
print(load_kernel_library().build_info.path)')
cp "$library" "$(dirname "$library")/build_info.json" "$folder/lib/"
"$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$folder/wheels" \
  --python-version "${PYTHON_VERSION:-3.12}" --implementation cp \
  --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
  cffi click iniconfig jinja2 markdown-it-py markupsafe mdurl msgspec nvidia-ml-py packaging \
  platformdirs pluggy pycparser pygments pytest rich wrapt
# The order of the names is the order of profiling: GoogLeNet first, small batches first.
mkdir "$folder/configurations"
number=10
for model in python.models.googlenet:googlenet InceptionV3 python.models.squeezenet:squeezenet \
  ResNet50 NASNetMobile; do
  for batch in 1 8 32 128; do
    for mode in --inference "--no-inference --training"; do
      number=$((number + 1))
      TF_CPP_MIN_LOG_LEVEL=2 PYTHONPATH=$PWD "$python" -m tf_interop profile "$model" --batch "$batch" $mode \
        --for "${COMPUTE_CAPABILITY:-9.0}" \
        --export-configurations "$folder/configurations/$number-${model#*:}-$batch-${mode##*--}.json"
    done
  done
done
du -sh "$folder"
