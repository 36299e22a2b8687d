#!/usr/bin/env bash
# Runs a program of TensorFlow's model garden, ResNet50 in a training loop of its own on synthetic
# data, as it was published: three times on the CPU, with the plugin on, without it, and without it and
# without oneDNN. How far the plugin moves losses, weights and momenta is judged by how far TensorFlow's
# own two ways of computing convolutions are apart.
#
#   scripts/run_model_garden.sh [OUT]
#
# OUT (default docs/results/model_garden.json) gets the values. Fails where the plugin made no stages
# or the numbers differ by more. The environment that `setup.sh dev` made (VENV) is left as it is: the
# program and what it imports go into a folder of their own.
#   GARDEN  that folder, filled where it is not there (default: build/model_garden)
#   STEPS   training steps, a multiple of 5, after which the program saves (default: 5)
#   BATCH   images of a step (default: 2)
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$(realpath -m "${VENV:-.venv}")/bin:$PATH"
out=$(realpath -m "${1:-docs/results/model_garden.json}")
garden=$(realpath -m "${GARDEN:-build/model_garden}")
steps=${STEPS:-5}
batch=${BATCH:-2}

# Without dependencies, which ask for another TensorFlow and a gigabyte of packages that this program
# does not import. The other packages are those that it does.
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
# Stages as on a GPU, over the host backend, and not the narrow units that a CPU gets.
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
