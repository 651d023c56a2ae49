#!/usr/bin/env bash
# Shows without a GPU that gpt2bench and torch_gpt2.py are one model: 20 steps of
# a small GPT on the embedded device and on PyTorch's CPU, in fp32. Losses and
# gradients must agree within 2e-6, tight enough to tell one form of GELU from the
# other.
#
#   bench/gpt2/agree.sh            # PYTHON=python3 GPT2BENCH=bin/gpt2bench
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONDONTWRITEBYTECODE=1
python=${PYTHON:-python3} bench=${GPT2BENCH:-bin/gpt2bench}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

flags=(layers=2 width=64 heads=2 vocab=257 positions=48 context=32 steps=20 warmup=2 lr=3e-3)
# The second run cuts each step into unequal micro-batches and does not clip.
for cut in "micro=8" "micro=3 effective=8 clip=0 seed=7"; do
	run=$work/${cut%% *}
	mkdir "$run"
	read -ra more <<<"$cut"
	all=("${flags[@]}" "${more[@]}")
	"$bench" -device host -precision fp32 "${all[@]/#/-}" -memory 4,8 -save-weights "$run/weights.safetensors" \
		-gradients "$run/headroom-fp32-32.safetensors" -out "$run/headroom-fp32-32.json"
	"$python" bench/gpt2/torch_gpt2.py --device cpu --precision fp32 "${all[@]/#/--}" --weights "$run/weights.safetensors" \
		--gradients "$run/pytorch-fp32-32.safetensors" --out "$run/pytorch-fp32-32.json"
	"$python" bench/gpt2/compare.py "$run" "$run" 2e-6
done
