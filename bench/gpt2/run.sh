#!/usr/bin/env bash
# Measures headroom and PyTorch side by side on one GPU, in one go. Needs Python
# with PyTorch and bin/gpt2bench, no Go.
#
#   bench/gpt2/run.sh OUTPUT [quick]
#
# OUTPUT receives gpt2.md, gpt2.json, peers-PRECISION.json and run.log; gigabytes
# of weights and gradients go to a temporary folder under WORK (/tmp). A stage
# that fails is shown and the others go on; the status is then 1.
# PEERS="tf32 bf16" are the precisions of the search by PyTorch's tools.
set -uo pipefail
(($# == 1 || $# == 2)) && [[ ${2:-quick} == quick ]] || { echo "usage: $0 OUTPUT [quick]" >&2; exit 2; }
mkdir -p "$1" || exit 1
out=$(cd "$1" && pwd) mode=${2:-full}
cd "$(dirname "$0")/../.." || exit 1
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
python=${PYTHON:-python3} bench=${GPT2BENCH:-bin/gpt2bench} here=bench/gpt2
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

# pair PRECISION CONTEXT MICRO STEPS runs both sides of one row of the table.
pair() {
	local name=$1-$2 small=$(($3 / 2)) first=()
	local all=(precision="$1" context="$2" micro="$3" steps="$4" warmup=$(($4 > 20 ? 10 : $4 / 3)) memory="$small,$3")
	[[ -e $work/weights.safetensors ]] || first=(-save-weights "$work/weights.safetensors")
	stage "headroom $name" 60 "$bench" "${all[@]/#/-}" "${first[@]}" \
		-gradients "$work/headroom-$name.safetensors" -out "$work/headroom-$name.json"
	stage "pytorch $name" 60 "$python" $here/torch_gpt2.py "${all[@]/#/--}" --weights "$work/weights.safetensors" \
		--gradients "$work/pytorch-$name.safetensors" --out "$work/pytorch-$name.json"
}

{
	echo "Date: $(date -u +%F)  "
	echo "GPU, driver: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || echo unknown)  "
	echo "Versions: $("$python" -c 'import torch; print("PyTorch", torch.__version__)')  "
	echo "Command: bench/gpt2/run.sh OUTPUT ${2:-}  "
} | tee "$work/about.txt"

if [[ $mode == quick ]]; then
	pair fp32 512 16 3
	pair tf32 512 16 20
	pair bf16 512 16 20
else
	pair fp32 512 16 20
	pair tf32 512 16 100
	pair bf16 512 16 100
	pair fp32 1024 8 6
	pair tf32 1024 8 100
	pair bf16 1024 8 40
fi
stage compare 90 "$python" $here/compare.py "$work" "$out"
if [[ $mode == full ]]; then
	for precision in ${PEERS:-tf32 bf16}; do
		stage "search by PyTorch's tools, $precision" 90 "$python" $here/search_peers.py --precision "$precision" --out "$out/peers-$precision.json"
	done
fi
echo "all stages: $SECONDS s; failed: ${failed[*]:-none}"
exec >&- 2>&-
wait "$log" # so that run.log is whole when this ends
((${#failed[@]} == 0))
