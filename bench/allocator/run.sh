#!/usr/bin/env bash
# Replays one trace of allocations on headroom's allocator, on the driver and on
# PyTorch's allocator, on one GPU, in about two minutes. Needs Python, for
# PyTorch's rows with PyTorch, and no Go.
#
#   bench/allocator/run.sh BINARY OUT
#
# BINARY is allocbench. OUT receives allocator.md, allocator.json and
# allocator.log. A replay that fails is shown and the others continue; the status is
# then 1. TRACE="-steps 1000 -layers 2" makes another trace, BUDGET=5 ends each
# replay after so many seconds, PRETEND=16 takes that many GiB of the host's
# memory instead of a GPU.
set -uo pipefail
(($# == 2)) || { echo "usage: $0 BINARY OUT" >&2; exit 2; }
bench=$(realpath "$1") && mkdir -p "$2" && out=$(cd "$2" && pwd) || exit 1
cd "$(dirname "$0")/../.." || exit 1
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
python=${PYTHON:-python3} here=bench/allocator budget=${BUDGET:-20}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
exec > >(tee "$out/allocator.log") 2>&1
log=$!
failed=() number=100
device=cuda pretend=()
[[ -z ${PRETEND:-} ]] || { device=host pretend=(--pretend "$PRETEND"); }

# replay NAME COMMAND… runs a replay that writes the file behind its last flag.
replay() {
	local name=$1 start=$SECONDS result=$work/result-$number.json
	shift
	number=$((number + 1))
	if timeout --kill-after=5 90 "$@" "$result"; then
		echo "== $name: $((SECONDS - start)) s"
	else
		echo "== $name: FAILED"
		failed+=("$name")
		rm -f "$result"
	fi
}

headroom() { # limit ÷ peak
	replay "headroom, limit $1" "$bench" -trace "$work/trace.json" -device $device -factor "$1" -budget "${budget}s" -out
}

peer() { # allocator, limit ÷ peak
	replay "$1${PYTORCH_CUDA_ALLOC_CONF:+ $PYTORCH_CUDA_ALLOC_CONF}, limit $2" \
		"$python" $here/replay.py --trace "$work/trace.json" --allocator "$1" --factor "$2" --budget "$budget" "${pretend[@]}" --out
}

{
	echo "Date: $(date -u +%F)  "
	echo "GPU, driver: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || echo none)  "
	echo "Command: bench/allocator/run.sh $1 OUT  "
} 2>/dev/null | tee "$work/about.txt"

# shellcheck disable=SC2086 # TRACE is words
"$bench" -write "$work/trace.json" ${TRACE:-} || exit 1
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
torch=$("$python" -c 'import torch' 2>&1 | tail -n 1)
[[ -z $torch ]] || echo "no rows of PyTorch: $torch"
for limit in 0 1.15 1.05; do
	headroom $limit
	[[ -z $torch ]] || continue
	peer pytorch $limit
	PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True peer pytorch $limit
done
peer driver 0
"$python" $here/table.py "$work" "$out" || failed+=(table)
echo "all replays: $SECONDS s; failed: ${failed[*]:-none}"
exec >&- 2>&-
wait "$log" # so that allocator.log is whole when this ends
((${#failed[@]} == 0))
