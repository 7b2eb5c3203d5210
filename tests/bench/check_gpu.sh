#!/usr/bin/env bash
# check_gpu.sh BENCH_GPU BUILD READ_JSON: tries bench/gpu on emulated devices, in small, and looks at what it leaves.
set -euo pipefail

gpu=$1
build=$2
read_json=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  printf 'check_gpu: %s\n' "$*" >&2
  tail -n 80 "$folder"/*.md >&2 || true
  exit 1
}

# What it finds on the machine must not matter: no nsys, no sanitizer, no PyTorch.
hidden=$folder/bin
mkdir "$hidden"
for tool in bash env ctest cmake timeout tail tee date git dirname mkdir rm cat nproc sed grep awk; do
  path=$(command -v "$tool") && ln -s "$path" "$hidden/$tool"
done
code=0
PATH=$hidden "$gpu" --small --build "$build" -o "$folder/try" >"$folder/printed" 2>&1 || code=$?
((code == 0)) || fail "exit code $code"
for step in tests kernels 'step f32' 'step tf32' 'memory cuda' 'memory plan-cuda' timeline \
  'memory over time' 'tests of several devices'; do
  grep -q "^| $step | ran [0-9]* s |" "$folder/try.md" || fail "no step $step"
done
for step in machine peers 'time by kernel' sanitizer; do
  grep -q "^| $step | skipped: no " "$folder/try.md" || fail "$step was not skipped by name"
done
for json in step-f32 step-tf32 memory-cuda memory-plan-cuda; do
  [[ $("$read_json" "$folder/try/$json.json" schema) == 1 ]] || fail "no JSON of $json"
done
[[ -s $folder/try/step-trace.json ]] || fail "no timeline"
[[ $("$read_json" "$folder/try/step-tf32.json" config.tf32) == true ]] || fail "step-tf32 is not in TF32"

# No time: everything is named, nothing runs.
PATH=$hidden "$gpu" --small --seconds 3 --build "$build" -o "$folder/late" >/dev/null || fail "late: exit code $?"
[[ $(grep -c 'skipped: the time is up |$' "$folder/late.md") -ge 7 ]] || fail "late: steps ran"

# What fails is said, and the rest runs.
code=0
PATH=$hidden CUEMU_DRIVER=0 "$gpu" --small --build "$build" -o "$folder/none" kernels memory \
  >/dev/null 2>&1 || code=$?
((code == 1)) || fail "without a GPU: exit code $code"
grep -q '^| kernels | \*\*failed\*\* with exit code 1' "$folder/none.md" || fail "a failure is not named"
grep -q '^| memory plan-cuda | ran' "$folder/none.md" || fail "a failure ends the run"
printf 'check_gpu: as expected\n'
