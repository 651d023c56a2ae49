#!/usr/bin/env bash
# Runs everything that is measured on a GPU, from binaries that make gpu-bundle
# has built. It needs no Go.
#
#   bench/gpu-bench.sh DIST OUT [PART…]
#
#   operations   every operation of the device, and its allocator
#   model        a step, and the recovery from a failed one
#   allocator    a trace of allocations, compared with PyTorch's and the driver's
#   find         the search, against the true largest micro-batch
#   exhaustion   memory that runs out for real; needs PyTorch
#   gpt2         GPT-2 and the search, compared with PyTorch and its tools; needs PyTorch
#   wrapped      other people's training scripts, out of memory; needs PyTorch, Transformers and Lightning
#   search       only the search of gpt2; runs only if it is named
#
# Each part writes to OUT/PART, where log.txt begins with what ran where. A part
# that fails does not keep the others from running; the exit status is then 1.
set -uo pipefail
(($# >= 2)) || { echo "usage: $0 DIST OUT [PART…]" >&2; exit 2; }
command="bench/gpu-bench.sh $*"
dist=$(cd "$1" && pwd) && mkdir -p "$2" && out=$(cd "$2" && pwd) || exit 1
shift 2
cd "$(dirname "$0")/.." || exit 1
export PYTHON=${PYTHON:-python3} HEADROOM=$dist/headroom GPT2BENCH=$dist/gpt2bench
root=$PWD failed=() benchmarks=(-test.run '^$' -test.bench . -test.benchmem)

operations() { cd cuda && "$dist/cuda.test" "${benchmarks[@]}"; }
model() {
  cd model && export HEADROOM_TEST_DEVICE=cuda
  "$dist/model.test" -test.run '^$' -test.bench Step -test.benchmem && "$dist/model.test" -test.run '^$' -test.bench Recovery -test.benchtime 100x
}
allocator() { bench/allocator/run.sh "$dist/allocbench" "$1"; }
find() {
  local status=0
  for precision in tf32 bf16; do bench/gpu/find.sh "$HEADROOM" "$1/$precision" $precision || status=1; done
  return $status
}
exhaustion() { bench/gpu/exhaustion.sh "$HEADROOM" "$1"; }
wrapped() { bench/gpu/wrapped.sh "$HEADROOM" "$1"; }
gpt2() { bench/gpt2/run.sh "$1"; }
search() { bench/gpt2/run.sh "$1" search; }

about() {
  echo "Date: $(date -u +%F)  "
  echo "GPU, driver: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo none)  "
  echo "Version: $("$HEADROOM" version | head -n 1)  "
  echo "Command: $command  "
  echo
}

part() {
  local folder=$out/$1 start=$SECONDS
  if [[ $1 =~ ^(exhaustion|gpt2|wrapped|search)$ && -n $no_torch ]]; then
    echo "== $1: skipped, it needs PyTorch: $no_torch"
    return
  fi
  mkdir -p "$folder"
  echo "== $1"
  (
    cd "$root" || exit 1
    about
    "$1" "$folder"
  ) 2>&1 | tee "$folder/log.txt"
  if ((PIPESTATUS[0] == 0)); then
    echo "== $1: $((SECONDS - start)) s"
  else
    echo "== $1: FAILED after $((SECONDS - start)) s"
    failed+=("$1")
  fi
}

(($# > 0)) || set -- operations model allocator find exhaustion gpt2 wrapped
for name in "$@"; do
  [[ $name =~ ^(operations|model|allocator|find|exhaustion|gpt2|wrapped|search)$ ]] || { echo "unknown part $name: must be operations, model, allocator, find, exhaustion, gpt2, wrapped or search" >&2; exit 2; }
done
no_torch=$("$PYTHON" -c 'import torch' 2>&1 | tail -n 1)
for name in "$@"; do part "$name"; done
echo "all parts: $SECONDS s; failed: ${failed[*]:-none}"
((${#failed[@]} == 0))
