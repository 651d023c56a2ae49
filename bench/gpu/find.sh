#!/usr/bin/env bash
# Searches on a real GPU capped at 24 GiB, then finds the true largest
# micro-batch by bisection with real steps, each in a process of its own, and
# trains 200 steps at the size that the search recommends.
#
#   bench/gpu/find.sh HEADROOM OUT
set -uo pipefail
headroom=$1 out=$2
here=$(dirname "$0")
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
settings=(--set output.dir="$runs" --set device.capacity=24GiB)

"$headroom" find "$here/gpt2.yaml" "${settings[@]}" --set batch.effective=512 --set batch.micro=auto --json >"$out/find.json" 2>"$out/find.log"
echo "find: exit $?"
cut -c1-200 "$out/find.log"

fits() { # whether three optimizer steps of one micro-batch of $1 run
  "$headroom" run "$here/gpt2.yaml" "${settings[@]}" -q --fresh --name probe --set train.steps=3 --set schedule.warmup=1 \
    --set batch.effective="$1" --set batch.micro="$1" --set batch.min_micro="$1" --set 'memory.allow=[]' >/dev/null 2>&1
  local status=$?
  [ $status -eq 0 ] || [ $status -eq 120 ] || echo "micro-batch $1: exit $status"
  return $status
}
low=1 high=129
while [ $((high - low)) -gt 1 ]; do
  middle=$(((low + high) / 2))
  if fits $middle; then low=$middle; else high=$middle; fi
done
echo "true largest micro-batch: $low" | tee "$out/find-true.txt"

micro=$(python3 -c "import json,sys; print(json.load(open('$out/find.json'))['recommended']['micro'])" 2>/dev/null || echo "$low")
"$headroom" run "$here/gpt2.yaml" "${settings[@]}" --no-progress --name soak --set train.steps=200 --set batch.effective=$((2 * micro)) --set batch.micro="$micro" 2>&1 | grep -v checkpoint | cut -c1-200
echo "200 steps at $micro: exit ${PIPESTATUS[0]}"
