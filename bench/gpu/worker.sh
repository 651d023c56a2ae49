#!/usr/bin/env bash
# Really runs PyTorch trainings out of memory: uncapped, then capped at a fraction of the memory
# that the uncapped run took, bare and under headroom, and prints a table of the two:
#   gpt2 later late lightning accelerate resnet scaler compiled optimizer evaluation   one training each
#   leak     what headroom says about a training that keeps more and more memory
#   restart  a training that leaks and saves: bare, restarted when memory has run out, and
#            restarted just after a checkpoint before that
#   peers    what Transformers, Accelerate, Lightning and guarftrain offer instead
#   cost     steps while nothing fails, bare and with the worker armed, in turn;
#            cost-CASE is only one case (large, small, small-compiled, large-compiled)
#   inside   the same in one process, step by step: recorded, resting, and bypassing the worker
#   pieces   steps in pieces and the same pieces made by hand, in one process and in turn
#   memory   1000 injected failures in a row: what stays allocated, and how they were survived;
#            the environment variables FAILS and FAILURES say which operation of a step fails,
#            and how many times
#
#   bench/gpu/worker.sh HEADROOM OUT [PART…]
#
# Needs one GPU, PyTorch, Transformers, Accelerate and Lightning. OUT/tables.md keeps what is
# printed. BENCH_TINY=1 makes everything small enough to try on a CPU, where BENCH_LIMIT (MiB
# of data) replaces the fractions.
set -uo pipefail
headroom=$(realpath "$1") python=${PYTHON:-python3} broken=0
mkdir -p "$2" && out=$(realpath "$2") || exit 1
shift 2
here=$(realpath "$(dirname "$0")")/worker
export BENCH_TINY=${BENCH_TINY:-}
case=("$python" "$here/case.py" "$headroom" "$out")

injected() {
  mkdir -p "$out/memory" && cd "$out" && "$headroom" run --name memory -- \
    "$python" "$here/constant.py" "$out/memory" "${FAILURES:-1000}" >"$out/memory/output.log" 2>&1
  local status=$?
  grep -o 'survived in place: [^,;:(]*' "$out/memory/output.log" | sort | uniq -c | sort -rn | head -5
  grep ' failures in ' "$out/memory/output.log" || tail -n 15 "$out/memory/output.log"
  return $status
}
inside() {
  echo "| steps | by the worker, ms | resting, ms | recorded, ms | by/resting | by/recorded |"
  echo "|---|---|---|---|---|---|"
  local steps
  for steps in "2 2 64 0" "2 2 64 1" "12 8 512 0"; do
    # shellcheck disable=SC2086
    (cd "$out" && "$headroom" run --name "inside-${steps// /-}" --hang 0 -- "$python" "$here/inside.py" $steps 2>"$out/inside.log" | grep '^|') || return 1
  done
}
pieces() {
  echo "| of the peak | steps × pieces | headroom, ms | by hand, ms | by hand/headroom | in five parts |"
  echo "|---|---|---|---|---|---|"
  local fraction
  for fraction in 0.5 0.5 0.3; do
    (cd "$out" && "$headroom" run --name "pieces-$fraction-$RANDOM" --hang 0 -- "$python" "$here/pieces.py" "$fraction" 2>"$out/pieces.log" | grep '^|') || return 1
  done
}
restart() {
  local how status begun
  for how in bare after before; do
    mkdir -p "$out/restart-$how" && begun=$SECONDS
    (
      cd "$out/restart-$how" || exit 1
      local run=("$headroom" run --name restart --trust --knob micro=--batch-size --knob accumulation=--accum --knob resume=--resume --knob 'checkpoints=step-*.pt')
      case $how in
        bare) "$python" "$here/leaking.py" ;;
        after) "${run[@]}" -- "$python" "$here/leaking.py" ;;
        before) "${run[@]}" --restart-leaking -- "$python" "$here/leaking.py" ;;
      esac
    ) >"$out/restart-$how/output.log" 2>&1
    status=$?
    echo "$how: status $status after $((SECONDS - begun)) s"
    grep -E '^headroom: (> )?(relaunch|continue|attempt)|^made' "$out/restart-$how/output.log" || true
    [[ $how = bare || $status -eq 0 ]] || return 1
  done
}
part() {
  case $1 in
    gpt2) "${case[@]}" gpt2 raw.py gpt2 0.8 0.5 0.3 ;;
    later) "${case[@]}" later raw.py later 0.65 ;;
    late) "${case[@]}" late trainers.py late 0.65 ;;
    lightning) "${case[@]}" lightning trainers.py lightning 0.5 ;;
    accelerate) "${case[@]}" accelerate raw.py accelerate 0.5 ;;
    resnet) "${case[@]}" resnet raw.py resnet 0.6 ;;
    scaler) "${case[@]}" scaler raw.py scaler 0.5 ;;
    compiled) "${case[@]}" compiled raw.py compiled 0.6 ;;
    optimizer) "${case[@]}" optimizer raw.py optimizer 0.9 ;;
    evaluation) "${case[@]}" evaluation raw.py evaluation 0.6 ;;
    restart) restart ;;
    leak) "${case[@]}" leak "${SHARE:-0.4}" ;;
    peers) "${case[@]}" peers 0.5 ;;
    cost) "$python" "$here/cost.py" "$headroom" "$out" ;;
    cost-*) "$python" "$here/cost.py" "$headroom" "$out" "${1#cost-}" ;;
    inside) inside ;;
    pieces) pieces ;;
    memory) (injected) ;;
    *) echo "no part is called $1" && return 2 ;;
  esac
}

(($# > 0)) || set -- gpt2 later late lightning accelerate resnet scaler compiled optimizer evaluation leak restart peers cost inside pieces memory
{
  for name in "$@"; do
    begun=$SECONDS
    echo "== $name"
    part "$name" 2>&1 || broken=1
    echo "== $name took $((SECONDS - begun)) s"
  done
  exit $broken
} | tee -a "$out/tables.md"
