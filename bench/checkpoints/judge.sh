#!/usr/bin/env bash
# Lets ckpt-chaos, a program of other people, judge which checkpoint a command is continued from: it kills the command at
# every file event of its saves, or with the file cut in half, and then "headroom resume" continues the run.
#
#   bench/checkpoints/judge.sh HEADROOM OUT [PART…]      parts: plain trainer lightning
#
# PYTHON is an interpreter with PyTorch, Transformers, Lightning and ckpt-chaos (pip install ckpt-chaos). A point is
# lost if a complete checkpoint was there that the run did not continue from, and diverged if the weights at the end
# are not those of the undisturbed run, to the bit. OUT/PART.md has every point. The exit status is 0 if nothing was lost,
# diverged or failed.
set -uo pipefail
(($# >= 2)) || { echo "usage: $0 HEADROOM OUT [PART…]" >&2; exit 2; }
headroom=$(realpath "$1") && mkdir -p "$2" && out=$(realpath "$2") || exit 1
shift 2
here=$(realpath "$(dirname "$0")") python=${PYTHON:-python3} failed=()
torch=$(realpath "$here/../../wrap/testdata/torch")
export HEADROOM_RUNS_DIR=runs OMP_NUM_THREADS=1 TRANSFORMERS_VERBOSITY=error

# judge PART GLOB WORDS… judges a command whose checkpoints GLOB matches, below the folder where it runs.
judge() {
  local part=$1 glob=$2
  shift 2
  rm -rf "${out:?}/$part" "$out/$part.md"
  "$python" -m ckpt_chaos run --work "$out/$part" --summary "$out/$part.md" --max-points "${POINTS:-1000}" --jobs "${JOBS:-1}" \
    --checkpoint-glob "{out}/$glob" --step-regex 'attempt \d+ starts from step (\d+)' \
    --result-cmd "'$python' '$here/weights.py' '{out}/$glob'" \
    --resume-cmd "sh -c 'cd \"{out}\" && exec \"$headroom\" resume judged'" \
    --fail-on HARD_FAIL,SILENT_DIVERGENCE,LOST_WORK,CONTROL_FAIL \
    -- sh -c "mkdir -p '{out}' && cd '{out}' && exec \"\$@\"" sh "$headroom" run --name judged "$@" || failed+=("$part")
}

plain() {
  judge plain 'saved/step-*' --profile "$torch/plain.yaml" -- "$python" "$torch/plain.py" --batch-size 8 --width 64 --steps 8 --save-every 2 --output-dir saved
}

trainer() {
  judge trainer 'saved/checkpoint-*' -- "$python" "$torch/hf.py" --output_dir saved --max_steps 6 --save_steps 2 --logging_steps 1 --use_cpu \
    --report_to none --disable_tqdm true --dataloader_pin_memory false --per_device_train_batch_size 4
}

lightning() {
  judge lightning 'saved/lightning_logs/version_*/checkpoints/*.ckpt' -- "$python" "$torch/lit.py" fit --config "$torch/lit.yaml" --trainer.default_root_dir saved \
    --model.width 64 --model.long_epoch -1 --trainer.callbacks ModelCheckpoint --trainer.callbacks.save_top_k -1
}

(($# > 0)) || set -- plain trainer lightning
for part in "$@"; do "$part"; done
((${#failed[@]} == 0)) || { echo "not all passed: ${failed[*]}" >&2; exit 1; }
