#!/usr/bin/env bash
# Wraps PyTorch trainings that run a real GPU out of memory, and compares the steps
# with those of a run that had enough memory:
#   transformers  the Trainer, capped at a few GiB
#   lightning     LightningCLI, capped at a quarter of the GPU; one epoch, which needs more
#   ddp           torchrun with one rank on each of two GPUs, one of which is nearly full
#   find          the largest micro-batch of the Trainer's command
#   hang          a command that hangs and is restarted
#   free          a start that waits for memory that another process holds
#
#   bench/gpu/wrapped.sh HEADROOM OUT [PART…]
#
# Needs PyTorch, Transformers, and Lightning with jsonargparse.
set -uo pipefail
headroom=$(realpath "$1") python=${PYTHON:-python3} broken=0
mkdir -p "$2" && out=$(realpath "$2") || exit 1
shift 2
here=$(realpath "$(dirname "$0")")
scripts=$(realpath "$here/../../wrap/testdata/torch")
work=$(mktemp -d) && cd "$work" || exit 1
trap 'rm -rf "$work"' EXIT
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
capped() { PYTORCH_ALLOC_CONF=per_process_memory_fraction:$1 PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:$1 "${@:2}"; }

# check NAME EXPECTED COMMAND…: runs the command, keeps its output, and prints how it ended.
check() {
  local name=$1 expected=$2 begun=$SECONDS
  shift 2
  "$@" >"$out/$name.log" 2>&1
  local status=$?
  echo "== $name: exit $status after $((SECONDS - begun)) s"
  [ $status -eq "$expected" ] || { broken=1; tail -n 15 "$out/$name.log"; }
  grep '^headroom: ' "$out/$name.log" | cut -c1-240
}
# same REFERENCE OTHER [RUN]: compares the steps of two output folders.
same() { "$python" "$here/steps.py" "$1/steps.jsonl" "$2/steps.jsonl" "${3:-}" || broken=1; }

trainer=("$python" "$scripts/hf.py" --max_steps 12 --save_steps 4 --logging_steps 1 --report_to none --disable_tqdm true --width 1024 --layers 12 --bf16 true)
transformers() {
  check transformers-reference 0 "${trainer[@]}" --output_dir free --per_device_train_batch_size 512
  check transformers 0 capped 0.04 "$headroom" run --name night -- "${trainer[@]}" --output_dir tight --per_device_train_batch_size 512
  same free tight headroom-runs/night
}
lightning() {
  # --trust: 8192 rows are a multiple of the effective batch of 1024, which headroom cannot see.
  local lit=("$python" "$scripts/lit.py" fit --config "$scripts/lit.yaml" --trainer.accelerator gpu --model.width 65536 --data.init_args.rows 8192 --data.init_args.batch_size 1024)
  PYTHONPATH=$scripts${PYTHONPATH:+:$PYTHONPATH} check lightning-reference 0 "${lit[@]}" --trainer.default_root_dir lit-free
  PYTHONPATH=$scripts${PYTHONPATH:+:$PYTHONPATH} check lightning 0 capped 0.25 "$headroom" run --name lit --trust -- "${lit[@]}" --trainer.default_root_dir lit-tight
  same lit-free lit-tight headroom-runs/lit
}
ddp() {
  (($(nvidia-smi -L | wc -l) > 1)) || { echo "== ddp: skipped, it needs two GPUs"; return; }
  local both=("$python" -m torch.distributed.run --nproc-per-node 2 --log-dir logs "${trainer[@]:1}")
  check ddp-reference 0 "${both[@]}" --output_dir ddp-free --per_device_train_batch_size 256
  CUDA_VISIBLE_DEVICES=1 "$python" "$here/hold.py" 8 180 >hold.log 2>&1 &
  local holder=$!
  while ! grep -q holding hold.log; do kill -0 $holder || break; sleep 0.2; done
  check ddp 0 "$headroom" run --name ddp -- "${both[@]}" --output_dir ddp-tight --per_device_train_batch_size 256
  kill $holder 2>/dev/null
  same ddp-free ddp-tight headroom-runs/ddp
}
find() { check find 0 capped 0.04 "$headroom" find -- "${trainer[@]}" --output_dir found --per_device_train_batch_size 512; cat "$out/find.log"; }
hang() {
  cat >hangs.py <<'PY'
import os, sys, time, torch
torch.ones(1 << 28, device="cuda").sum().item()
for _ in range(200): torch.ones(1 << 28, device="cuda").sum().item()
print("begun", flush=True)
if not os.path.exists("hung"):
    open("hung", "w").close()
    time.sleep(1000)
PY
  check hang 0 "$headroom" run --name hang --hang 20s --restart-hung --knob micro=--bs --knob accumulation=--acc -- "$python" hangs.py --bs 8 --acc 1
}
free() {
  "$python" "$here/hold.py" 5 20 >hold.log 2>&1 &
  local holder=$!
  while ! grep -q holding hold.log; do kill -0 $holder || break; sleep 0.2; done
  check free 0 "$headroom" run --name free --free 40GiB -- "$python" -c 'import torch; print(torch.cuda.mem_get_info()[0] >> 30, "GiB free")'
  cat "$out/free.log"
}

(($# > 0)) || set -- transformers lightning ddp find hang free
for part in "$@"; do "$part"; done
exit $broken
