#!/usr/bin/env bash
# Measures how much this package gains on this machine's CPU over stock TensorFlow, its best thread
# settings, a frozen graph, XLA and other runtimes: eleven networks, inference at batch sizes 1 and 8, a
# training step at batch size 4.
#
#   scripts/benchmark_cpu.sh [OUT] [OPTIONS of tf-interop benchmark]
#
# If OUT (default docs/results/cpu.json) exists, the run continues it, so you can interrupt a long run.
# The variants of a case take turns, each in a new process. Do not use the machine meanwhile. On two
# cores a round of only stock and XLA took 38 minutes. onnxruntime and openvino need more packages: the
# extra `benchmark` of this package.
#   PARTS     the parts to measure (default: "1 8 training")
#   NETWORKS  the networks, as `tf-interop benchmark` accepts them (default: eleven)
#   VARIANTS  the variants, as `tf-interop benchmark` accepts them (default: ten)
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
out=$(realpath -m "${1:-docs/results/cpu.json}")
[ $# -eq 0 ] || shift

cd python # for the models that Keras lacks
networks=(${NETWORKS:-NASNetMobile InceptionV3 MobileNetV2 EfficientNetB0 DenseNet121 ResNet50 Xception
  models.googlenet:googlenet models.squeezenet:squeezenet models.randwire:randwire NASNetLarge})
variants=${VARIANTS:-stock,frozen,enabled,ours,intra-1,inter-1,xla,tflite,onnxruntime,openvino}
for part in ${PARTS:-1 8 training}; do
  case $part in
    training) what=(--no-inference --training --batch 4) ;;
    *) what=(--batch "$part") ;;
  esac
  tf-interop benchmark "${networks[@]}" "${what[@]}" --precision float32 --tune 30s \
    --variants "$variants" --repetitions 3 --seconds 2 --warmup-steps 5 -o "$out" "$@"
done
