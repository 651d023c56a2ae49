#!/usr/bin/env bash
# Runs everything that needs a GPU, from test binaries that make gpu-bundle has
# built, and ends with a count. Needs no Go. A test that is skipped is a failure.
# Arguments go to the test binaries.
#
#   cuda/gpu-test.sh DIST [-test.short ...]
set -uo pipefail
dist=$(cd "${1:?the folder that make gpu-bundle wrote}" && pwd)
shift
cd "$(dirname "$0")/.."
export HEADROOM_REQUIRE_GPU=1
passed=0 failed=0 skipped=0 broken=0

suite() { # name, package folder, environment...
  local name=$1 folder=$2 log="$dist/$1.log"
  shift 2
  (cd "$folder" && env "${settings[@]}" "$dist/$name" -test.v "$@" >"$log" 2>&1) || broken=1
  local p f s
  p=$(grep -cE '^ *--- PASS:' "$log") f=$(grep -cE '^ *--- FAIL:' "$log") s=$(grep -cE '^ *--- SKIP:' "$log")
  echo "$name (${settings[*]}): $p passed, $f failed, $s skipped"
  grep -E '^ *--- FAIL:|^panic:' "$log" | head -20
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

settings=(GPU=1)
suite driver.test cuda/driver "$@"
suite nvml.test nvml "$@"
suite cuda.test cuda -test.skip WithoutGPU "$@" # what a GPU runs need not be emulated
settings=(HEADROOM_TEST_DEVICE=cuda)
suite model.test model "$@"
suite headroom.test cmd/headroom -test.run IllegalAddress "$@"
echo "$passed passed, $failed failed, $skipped skipped"
[ $broken -eq 0 ] && [ $failed -eq 0 ] && [ $skipped -eq 0 ] && [ $passed -gt 0 ]
