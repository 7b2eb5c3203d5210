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
for tool in bash env ctest cmake timeout tail tee date git dirname mkdir rm cat nproc sed grep awk sleep; do
  path=$(command -v "$tool") && ln -s "$path" "$hidden/$tool"
done
code=0
PATH=$hidden "$gpu" --small --build "$build" -o "$folder/try" >"$folder/printed" 2>&1 || code=$?
((code == 0)) || fail "exit code $code"
for step in tests 'kernels '{f32,bf16,f16} 'step '{f32,tf32,bf16,f16} 'memory '{cuda,plan-cuda} 'timeline '{tf32,bf16} \
  'memory over time' 'tests of several devices'; do
  grep -q "^| $step | ran [0-9]* s |" "$folder/try.md" || fail "no step $step"
done
for step in machine peers 'time by kernel '{tf32,bf16} sanitizer; do
  grep -q "^| $step | skipped: no " "$folder/try.md" || fail "$step was not skipped by name"
done
for json in step-{f32,tf32,bf16,f16} memory-{cuda,plan-cuda}; do
  [[ $("$read_json" "$folder/try/$json.json" schema) == 1 ]] || fail "no JSON of $json"
done
for precision in tf32 bf16; do
  [[ -s $folder/try/step-$precision-trace.json ]] || fail "no timeline in $precision"
done
for precision in f32 tf32 bf16 f16; do
  [[ $("$read_json" "$folder/try/step-$precision.json" runs.0.precision) == "$precision" ]] ||
    fail "step-$precision is in another precision"
done
[[ $("$read_json" "$folder/try/memory-cuda.json" runs.3.precision) == bf16 ]] || fail "no memory in bf16"

# No time: everything is named, nothing runs.
PATH=$hidden "$gpu" --small --seconds 3 --build "$build" -o "$folder/late" >/dev/null || fail "late: exit code $?"
[[ $(grep -c 'skipped: the time is up |$' "$folder/late.md") -ge 7 ]] || fail "late: steps ran"

# What fails is said, and the rest runs.
code=0
PATH=$hidden CUEMU_DRIVER=0 "$gpu" --small --build "$build" -o "$folder/none" kernels memory \
  >/dev/null 2>&1 || code=$?
((code == 1)) || fail "without a GPU: exit code $code"
grep -q '^| kernels f32 | \*\*failed\*\* with exit code 1' "$folder/none.md" || fail "a failure is not named"
grep -q '^| memory plan-cuda | ran' "$folder/none.md" || fail "a failure ends the run"
# A test program that hangs is stopped, counts as failed, and the next one runs.
code=0
PATH=$hidden CUEMU_FAULT='hang kernel 0 1' "$gpu" --small --limit 3 --build "$build" -o "$folder/stuck" tests logical \
  >/dev/null 2>&1 || code=$?
((code == 1)) || fail "programs that hang: exit code $code"
grep -q 'check_cuda_kernels_order0 .*\*\*\*Timeout *3\.' "$folder/stuck.md" || fail "a program that hangs has no limit"
for step in tests 'tests of several devices'; do
  grep -q "^| $step | \*\*failed\*\* with exit code 8" "$folder/stuck.md" || fail "a stop of $step did not count"
done

# A command that reaches its limit has failed, one that the end of all time stops has not.
printf '#!/bin/sh\nexec sleep 60\n' >"$folder/nvidia-smi" && chmod +x "$folder/nvidia-smi"
mv "$folder/nvidia-smi" "$hidden/nvidia-smi"
code=0
PATH=$hidden "$gpu" --small --seconds 6 --build "$build" -o "$folder/end" kernels >/dev/null 2>&1 || code=$?
((code == 0)) || fail "the end of the time: exit code $code"
grep -q '^| machine | stopped after [5-9] s: the time is up |$' "$folder/end.md" || fail "machine was not stopped"
rm "$hidden/nvidia-smi"

# After a build that fails, what was built runs. The compiler and the build are stand-ins.
mkdir -p "$folder/tree/bench" "$folder/tree/cmake" "$folder/tree/build"
cp "$gpu" "$folder/tree/bench/gpu"
cp "${gpu%/bench/gpu}/cmake/packages.sh" "$folder/tree/cmake/"
ln -s "$build" "$folder/tree/build/gpu"
rm "$hidden/cmake"
cat >"$hidden/cmake" <<END
#!$hidden/bash
printf '%s\n' "\$*" >>"$folder/cmake.log"
[[ \$1 != --build ]]
END
printf '#!%s/bash\necho release\n' "$hidden" >"$hidden/nvcc"
chmod +x "$hidden/cmake" "$hidden/nvcc"
code=0
PATH=$hidden CUDACXX=$hidden/nvcc "$folder/tree/bench/gpu" --small -o "$folder/rest" kernels \
  >"$folder/printed" 2>&1 || code=$?
((code == 1)) || fail "a build that fails: exit code $code"
grep -q '^| build | \*\*failed\*\*' "$folder/rest.md" || fail "a build that fails is not named"
grep -q '^| kernels f32 | ran' "$folder/rest.md" || fail "a build that fails ends the run"
case $(sed -n 's/^CMAKE_GENERATOR:[^=]*=//p' "$build/CMakeCache.txt") in
  Ninja) keep_going='-- -k 0' ;;
  *) keep_going='-- -k' ;;
esac
grep -q -e "^--build .* $keep_going\$" "$folder/cmake.log" || fail "the build stops at its first failure"
printf 'check_gpu: as expected\n'
