#!/usr/bin/env bash
# Runs a real GPU out of memory in the ways that occur in practice, and compares
# every loss with that of a run that had enough memory:
#   capped   8 and 24 GiB, with a micro-batch that does not fit
#   foreign  the whole device, of which another process holds all but 6 GiB for a while
#   whole    no limit, and a micro-batch that needs more than the device has
#
#   bench/gpu/exhaustion.sh HEADROOM OUT
#
# RUNS, a regular expression, selects runs by name; foreign needs foreign-reference.
set -uo pipefail
headroom=$1 out=$2 python=${PYTHON:-python3} broken=0
mkdir -p "$out" || exit 1
here=$(dirname "$0")
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
run() { # name, settings
  local name=$1
  shift
  [[ $name =~ ${RUNS:-.} ]] || return 0
  echo "== $name"
  "$headroom" run "$here/gpt2.yaml" --name "$name" --set output.dir="$runs" --no-progress "$@" >"$out/exhaustion-$name.log" 2>&1
  local status=$?
  echo "exit $status"
  [ $status -eq 0 ] || broken=1
  grep -vE 'checkpoint|probe' "$out/exhaustion-$name.log" | cut -c1-260
}
run reference
run foreign-reference --set train.steps=200
run capped-24-reference --set batch.micro=64 --set batch.effective=256 --set train.steps=12
run capped-8 --set device.capacity=8GiB
run capped-24 --set device.capacity=24GiB --set batch.micro=256 --set batch.effective=256 --set train.steps=12
if [[ foreign =~ ${RUNS:-.} ]]; then
  "$python" "$here/hold.py" 6 12 >"$out/exhaustion-holder.log" 2>&1 &
  holder=$!
  while ! grep -q holding "$out/exhaustion-holder.log"; do kill -0 $holder || break; sleep 0.2; done
  run foreign --set train.steps=200
  wait $holder || broken=1
fi
run whole-reference --set batch.effective=1024 --set batch.micro=64 --set train.steps=4 --set schedule.warmup=1
run whole --set batch.effective=1024 --set batch.micro=1024 --set train.steps=4 --set schedule.warmup=1
"$python" "$here/losses.py" "$runs" | tee "$out/exhaustion.md"
[ "${PIPESTATUS[0]}" -eq 0 ] && [ $broken -eq 0 ]
