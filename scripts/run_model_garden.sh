#!/usr/bin/env bash
# Runs an unchanged program of TensorFlow's model garden, ResNet50 in its own training loop on synthetic
# data, three times on the CPU: with the plugin, without it, and without it and oneDNN. TensorFlow's two
# ways of computing convolutions differ by rounding. The plugin may change losses, weights and momenta
# by a small multiple of that difference.
#
#   scripts/run_model_garden.sh [OUT]
#
# Writes OUT (default docs/results/model_garden.json). Fails if the plugin made no stages or changed a
# tensor too much. The environment of `setup.sh dev` (VENV) stays as it is: the program and the packages
# that it imports go into a folder of their own.
#   GARDEN  that folder, created if missing (default: build/model_garden)
#   STEPS   training steps, a multiple of 5: the program saves after every fifth (default: 5)
#   BATCH   images of a step (default: 2)
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
out=$(realpath -m "${1:-docs/results/model_garden.json}")
garden=$(realpath -m "${GARDEN:-build/model_garden}")
steps=${STEPS:-5}
batch=${BATCH:-2}

# Without dependencies, which require another TensorFlow and a gigabyte of packages that this program
# does not import.
if [ ! -e "$garden/complete" ]; then
  echo "Installing the model garden into $garden …"
  python -m pip --disable-pip-version-check install --quiet --upgrade --no-deps --target "$garden" \
    tf-models-official==2.20.0 tensorflow-model-optimization==0.8.1 gin-config==0.5.0 \
    dm-tree==0.1.10 attrs tensorboard==2.21.0
  touch "$garden/complete"
fi

runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
export PYTHONPATH=$PWD/scripts/model_garden:$garden:$PWD${PYTHONPATH:+:$PYTHONPATH}
# Run stages on the CPU's host backend, as on a GPU, instead of units.
export TF_INTEROP_HOST_STAGES=1
export TF_USE_LEGACY_KERAS=1 TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}

# run NAME PYTHON-OPTIONS... : runs the program, with its model_dir in $runs/NAME.
run() {
  local name=$1
  shift
  echo "Running: $name"
  if ! python "$@" -m official.legacy.image_classification.resnet.resnet_ctl_imagenet_main \
    --use_synthetic_data --batch_size="$batch" --train_steps="$steps" --steps_per_loop=1 \
    --skip_eval --num_gpus=0 --distribution_strategy=off --enable_checkpoint_and_export \
    --model_dir="$runs/$name" >"$runs/$name.log" 2>&1; then
    tail -40 "$runs/$name.log" >&2
    return 1
  fi
}

run staged -m tf_interop run --policy always --report --save-plan "$runs/plan.json"
sed -n '/^tf_interop is /,$p' "$runs/staged.log"
run stock
TF_ENABLE_ONEDNN_OPTS=0 run without_onednn
python scripts/model_garden/compare_runs.py "$runs" --out "$out" \
  --command "STEPS=$steps BATCH=$batch scripts/run_model_garden.sh"
