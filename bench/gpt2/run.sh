#!/usr/bin/env bash
# Measures headroom and PyTorch side by side on one GPU, in one go. Needs Python
# with PyTorch, bin/gpt2bench (or GPT2BENCH) and bin/headroom (or HEADROOM), no Go.
#
#   bench/gpt2/run.sh OUTPUT [quick|search]
#
# OUTPUT receives gpt2.md, gpt2.json, kernels.md (where headroom's time goes),
# peers-PRECISION.md and .json, and run.log;
# gigabytes of weights and gradients go to a temporary folder under WORK (/tmp). A stage
# that fails is shown and the others continue; the status is then 1.
# PEERS="tf32 bf16" are the precisions of the search, by PyTorch's tools and by
# headroom find. With "search" in place of "quick" only the search is measured.
set -uo pipefail
(($# == 1 || $# == 2)) && [[ ${2:-quick} =~ ^(quick|search)$ ]] || { echo "usage: $0 OUTPUT [quick|search]" >&2; exit 2; }
mkdir -p "$1" || exit 1
out=$(cd "$1" && pwd) mode=${2:-full}
cd "$(dirname "$0")/../.." || exit 1
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
python=${PYTHON:-python3} bench=${GPT2BENCH:-bin/gpt2bench} headroom=${HEADROOM:-bin/headroom} here=bench/gpt2
work=$(mktemp -d "${WORK:-/tmp}/gpt2bench.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
exec > >(tee "$out/run.log") 2>&1
log=$!
failed=()

# stage NAME LIMIT COMMAND… runs the command for at most LIMIT seconds.
stage() {
	local name=$1 limit=$2 start=$SECONDS status=0
	shift 2
	echo "== $name"
	timeout --kill-after=5 "$limit" "$@" || status=$?
	if ((status == 0)); then
		echo "== $name: $((SECONDS - start)) s"
	else
		echo "== $name: FAILED with status $status after $((SECONDS - start)) s"
		failed+=("$name")
	fi
}

# pair PRECISION CONTEXT MICRO STEPS [steep] runs both sides of one row of the
# table, and PyTorch once more with its attention computed in another order: how far
# that is from itself is what rounding alone comes to. The learning rate is that of
# GPT-2 124M as it is usually trained, 6e-4 after 2000 steps; steep goes up to 3e-4
# in 10 steps, where small differences grow.
pair() {
	local name=$1-$2${5:+-$5} small=$(($3 / 2)) first=() rate=(lr=6e-4 lr-warmup=2000)
	[[ ${5:-} != steep ]] || rate=(lr=3e-4 lr-warmup=10)
	local all=(precision="$1" context="$2" micro="$3" steps="$4" warmup=$(($4 > 20 ? 10 : $4 / 3)) "${rate[@]}")
	[[ -e $work/weights.safetensors ]] || first=(-save-weights "$work/weights.safetensors")
	stage "headroom $name" 60 "$bench" "${all[@]/#/-}" "${first[@]}" -memory "$small,$3" -profile "$work/kernels.md" \
		-gradients "$work/headroom-$name.safetensors" -out "$work/headroom-$name.json"
	{ printf '\n%s, a step of %s samples:\n\n' "$name" "$3" && cat "$work/kernels.md"; } >>"$out/kernels.md"
	stage "pytorch $name" 60 "$python" $here/torch_gpt2.py "${all[@]/#/--}" --weights "$work/weights.safetensors" --memory "$small,$3" \
		--gradients "$work/pytorch-$name.safetensors" --out "$work/pytorch-$name.json"
	[[ $mode == quick ]] || stage "pytorch $name, other attention" 60 "$python" $here/torch_gpt2.py "${all[@]/#/--}" \
		--weights "$work/weights.safetensors" --attention math --out "$work/control-$name.json"
}

{
	echo "Date: $(date -u +%F)  "
	echo "GPU, driver: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || echo unknown)  "
	echo "Versions: $("$python" -c 'import torch; print("PyTorch", torch.__version__)')  "
	echo "Command: bench/gpt2/run.sh OUTPUT ${2:-}  "
} | tee "$work/about.txt"
cp "$work/about.txt" "$out/kernels.md"

if [[ $mode == quick ]]; then
	pair fp32 512 16 3
	pair tf32 512 16 20
	pair bf16 512 16 20
elif [[ $mode == full ]]; then
	pair fp32 512 16 100
	pair tf32 512 16 100
	pair tf32 512 16 100 steep
	pair bf16 512 16 100
	pair fp32 1024 8 20
	pair tf32 1024 8 100
	pair tf32 1024 8 100 steep
	pair bf16 1024 8 100
fi
[[ $mode == search ]] || stage compare 90 "$python" $here/compare.py "$work" "$out"
if [[ $mode != quick ]]; then
	for precision in ${PEERS:-tf32 bf16}; do
		stage "search, $precision" 180 "$python" $here/search_peers.py --precision "$precision" --headroom "$headroom" --out "$out/peers-$precision.json"
		cat "$out/peers-$precision.md"
	done
fi
echo "all stages: $SECONDS s; failed: ${failed[*]:-none}"
exec >&- 2>&-
wait "$log" # so that run.log is whole when this ends
((${#failed[@]} == 0))
