#!/usr/bin/env bash
# Searches for the largest micro-batch of GPT-2 124M on a real GPU capped at 24 GiB,
# then finds the true one by bisection with real steps, each size in a process of
# its own, and trains 200 steps at the size that the search found and at the size
# that it recommends.
#
#   bench/gpu/find.sh HEADROOM OUT [PRECISION]
set -uo pipefail
headroom=$1 out=$2 precision=${3:-tf32} python=${PYTHON:-python3}
mkdir -p "$out" || exit 1
config=$(dirname "$0")/../gpt2/find.yaml
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
settings=(--set output.dir="$runs" --set device.capacity=24GiB --set device.precision="$precision")
echo "== $precision"

"$headroom" find "$config" "${settings[@]}" --set batch.effective=512 --set batch.micro=auto --json >"$out/find.json" 2>"$out/find.log"
found=$?
echo "find: exit $found"
cut -c1-200 "$out/find.log"

fits() { # whether three optimizer steps of one micro-batch of $1 rows succeed
  "$headroom" run "$config" "${settings[@]}" -q --fresh --name probe --set train.steps=3 --set schedule.warmup=1 \
    --set batch.effective="$1" --set batch.micro="$1" --set batch.min_micro="$1" --set 'memory.allow=[]' >/dev/null 2>&1
  local status=$?
  [ $status -eq 0 ] || [ $status -eq 120 ] || echo "micro-batch $1: exit $status"
  return $status
}
low=1 high=257
while [ $((high - low)) -gt 1 ]; do
  middle=$(((low + high) / 2))
  if fits $middle; then low=$middle; else high=$middle; fi
done
echo "true largest micro-batch: $low" | tee "$out/find-true.txt"

soaked=0
for size in largest recommended; do
  micro=$("$python" -c "import json; print(json.load(open('$out/find.json'))['$size']['micro'])") || { soaked=1; continue; }
  "$headroom" run "$config" "${settings[@]}" --no-progress --name "soak-$size" --set train.steps=200 --set train.checkpoint_every=0 \
    --set batch.effective="$micro" --set batch.micro="$micro" 2>&1 | grep -v checkpoint | cut -c1-200
  status=${PIPESTATUS[0]}
  echo "200 steps at $micro, $size: exit $status"
  [ "$status" -eq 0 ] || soaked=1
done
[ $found -eq 0 ] && [ $soaked -eq 0 ]
