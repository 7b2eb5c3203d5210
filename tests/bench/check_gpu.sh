#!/usr/bin/env bash
# check_gpu.sh BENCH_GPU BUILD READ_JSON: rehearses bench/gpu/run on emulated devices, in small, with what may go wrong.
#
# Programs are the real ones. ncu, compute-sanitizer and PyTorch are stand-ins that run them over the
# emulation and report what it saw: launches by kernel, regions of memory, the time of a step.
set -euo pipefail

gpu=$1
build=$2
read_json=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  printf 'check_gpu: %s\n' "$*" >&2
  tail -n 40 "$folder/printed" "$folder"/*/verdicts >&2 || true
  exit 1
}

# ---- a machine: only what is here is found there ----

hidden=$folder/bin
mkdir "$hidden"
for tool in awk basename bash cat cksum cmake cut date dirname env git grep gzip head ln mkdir mktemp nm nproc \
  readlink rm sed sleep tail tar timeout touch tr wc; do
  path=$(command -v "$tool") || fail "no $tool here"
  ln -s "$path" "$hidden/$tool"
done

stand_in() { # NAME: its script is read
  { printf '#!%s/bash\nset -euo pipefail\n' "$hidden" && cat; } >"$hidden/$1"
  chmod +x "$hidden/$1"
}

# The launches of a program, named by the symbols of its file: a microsecond and a megabyte each.
stand_in ncu <<'END'
while [[ $1 == --* ]]; do
  case $1 in
    --csv) shift && continue ;;
    --log-file) csv=$2 ;;
  esac
  shift 2
done
CUEMU_LAUNCHES=$csv.launches "$@"
module=$(awk '$1 == "kernel" && !file { file = $2 } END { print file }' "$csv.launches")
nm -C "$module" | awk -v out="$csv" '
  BEGIN {
    m = "gpu__time_duration.sum\",\"dram__bytes.sum\",\"sm__inst_executed_pipe_tensor.sum"
    m = m "\",\"sm__warps_active.avg.pct_of_peak_sustained_active"
    print "==PROF== Connected" >out
    print "\"ID\",\"Kernel Name\",\"" m "\"" >out
    print "\"\",\"\",\"ns\",\"byte\",\"inst\",\"%\"" >out
  }
  FILENAME == "-" { place = $1; sub(/^0+/, "", place); sub(/^[^ ]+ . /, ""); name[place] = $0; next }
  $1 == "region" { next }
  {
    what = $1 == "product" ? "nvjet_stand_in" : name[$3]
    print "\"" id++ "\",\"" what "\",\"1,000\",\"1,000,000\",\"" ($1 == "product" ? 64 : 0) "\",\"50\"" >out
  }' - "$csv.launches"
END

# Refuses a program that says nothing of its tensors; what it says wrongly ends the program.
stand_in compute-sanitizer <<'END'
[[ $1 == --tool && $3 == --error-exitcode && $CUDA_LAUNCH_BLOCKING == 1 ]]
case $2 in memcheck | initcheck | synccheck | racecheck) ;; *) exit 9 ;; esac
shift 4
told=$(mktemp)
CUEMU_NVTX=1 CUEMU_LAUNCHES=$told "$@"
regions=$(grep -c '^region$' "$told") || true
rm "$told"
printf '%s regions\n' "$regions"
((regions > 100)) || exit 9
END

# A PyTorch that is no faster than evenkeel.
stand_in python3 <<END
case "\$*" in
  *'import torch'*) echo '2.0.0 True' ;;
  *sysconfig*) echo "$folder/site" ;;
  *torch_step.py*)
    while [[ \$1 != --json ]]; do shift; done
    exec "$build/bench/evenkeel-bench" step --layers 1 --width 32 --heads 2 --seq 16 --vocab 64 --batch 4 \
      --warmup 1 --steps 2 --modes balanced --devices cuda:0 -q --export-json "\$2"
    ;;
esac
END

code=0
call() { # OPTION...: what it prints goes to `printed`
  code=0
  PATH=$hidden EVENKEEL_JOBS=2 "$gpu" --small "$@" >"$folder/printed" 2>&1 || code=$?
}
has() { # NAME STEP WORD [TEXT]: the last verdict of a step
  awk -F '\t' -v step="$2" -v word="$3" -v text="${4-}" \
    '$1 == step { right = $2 == word && index($3, text) } END { exit !right }' "$folder/$1/verdicts" ||
    fail "$1: $2 is not $3 ${4-}"
}

# ---- all of it, interrupted at the second step and taken up again ----

set -m
PATH=$hidden EVENKEEL_JOBS=2 "$gpu" --small --build "$build" -o "$folder/try" smoke step >"$folder/printed" 2>&1 &
for ((i = 0; i < 600; i++)); do
  ! grep -q '^smoke	ran' "$folder/try/verdicts" 2>/dev/null || break
  sleep 0.1
done
kill -TERM $! && wait $! && fail 'an interruption: exit code 0'
set +m
has try smoke ran
[[ -s $folder/try.tar.gz && -s $folder/try/report.md ]] || fail 'an interruption leaves no archive'

call --build "$build" -o "$folder/try"
((code == 0)) || fail "exit code $code"
[[ $(grep -c '^smoke	' "$folder/try/verdicts") == 1 ]] || fail 'smoke ran twice'
for step in smoke 'checks check_convert' 'checks check_rows' nccl 'step '{bf16:4,f32:4} \
  'peers bf16:4 '{stock,compiled} counters 'counters by kernel' products 'kernels f32' 'core check_scatter' \
  'memory '{cuda,plan-cuda} timeline 'memory over time' 'sanitizer '{memcheck:operations,racecheck:training}; do
  has try "$step" ran
done
grep -q '^training f16 .*: ok$' "$folder/try/logs/smoke.log" || fail 'smoke says nothing of f16'
grep -q 'product 16 x 98 x 768.*: algorithm [1-4] of [1-4]' "$folder/try/logs/products.log" || fail 'no choice of a product'
for json in step-bf16-4 memory-cuda memory-plan-cuda peers-bf16-4-compiled; do
  [[ $("$read_json" "$folder/try/$json.json" schema) == 1 ]] || fail "no JSON of $json"
done
[[ $("$read_json" "$folder/try/step-bf16-4.json" runs.0.precision) == bf16 ]] || fail 'step in another precision'
grep -Eq '^\| bf16, batch 4( \| [0-9.]+){4} \|$' "$folder/try/report.md" || fail 'no figures'
for row in products 'attention forward, tiles of 64' 'attention backward' 'cross-entropy with its gradient' \
  'layer norm forward, with residual' 'layer norm backward, with residual' \
  'bias gradients' AdamW lookups; do
  grep -Eq "^\| $row \| [1-9]" "$folder/try/counters.md" || fail "no launch of $row"
done
tar -tzf "$folder/try.tar.gz" | grep '^try/step-trace.json$' >/dev/null || fail 'the archive lacks a trace'
grep -q '| nvidia-smi | missing |' "$folder/try/report.md" || fail 'nvidia-smi is not named'

# Nothing is left to do, and what is named runs again.
call --build "$build" -o "$folder/try" 3
((code == 0)) || fail "a second time: exit code $code"
[[ $(grep -c '^sanitizer memcheck:operations' "$folder/try/verdicts") == 1 ]] || fail 'a part with a verdict ran again'
call --build "$build" -o "$folder/try" kernels
[[ $(grep -c '^kernels f32	ran' "$folder/try/verdicts") == 2 ]] || fail 'what is named did not run again'

# ---- what goes wrong ----

# Wrong results: the differences are not 0.
if "$build/bench/evenkeel-smoke" cuda:0 0 training >"$folder/printed" 2>&1; then fail 'differences within 0'; fi
[[ $(grep -c ': WRONG' "$folder/printed") -ge 3 ]] || fail 'differences are not named'

# A machine without a GPU, ncu, compute-sanitizer and PyTorch.
mv "$hidden"/{ncu,compute-sanitizer,python3} "$folder"
CUEMU_DRIVER=0 call --build "$build" -o "$folder/none" smoke counters sanitizer peers memory
((code == 1)) || fail "without a GPU: exit code $code"
has none smoke failed 'exit code 1'
has none 'memory plan-cuda' ran
for step in counters sanitizer peers; do has none "$step" skipped 'no '; done
grep -q 'no NVIDIA driver' "$folder/none/logs/smoke.log" || fail 'no driver is not named'

# A test that hangs, one that is killed, one that fails and one that was not built: all have failed.
mkdir -p "$folder/build/tests" "$folder/build/bench"
ln -s "$build/bench/evenkeel-smoke" "$folder/build/bench/"
ln -s "$build/tests/check_convert" "$folder/build/tests/"
printf '#!%s/bash\nkill -9 $$\n' "$hidden" >"$folder/build/tests/check_rows"
# shellcheck disable=SC2016
printf '#!%s/bash\nexit ${CUDA_LAUNCH_BLOCKING-5}\n' "$hidden" >"$folder/build/tests/check_scatter"
chmod +x "$folder/build/tests"/check_{rows,scatter}
CUEMU_FAULT='hang kernel 0 1' call --limit 2 --build "$folder/build" -o "$folder/stuck" checks core
((code == 1)) || fail "tests that fail: exit code $code"
has stuck 'checks check_convert' failed 'stopped at its limit of 2 s'
has stuck 'checks check_rows' failed 'killed by signal 9'
has stuck 'core check_scatter' failed 'exit code 5'
[[ -e $folder/stuck/logs/core-check_scatter.blocking.log ]] || fail 'what failed did not run with blocking launches'
rm "$folder/build/tests/check_scatter"
call --build "$folder/build" -o "$folder/stuck" core
has stuck 'core check_scatter' failed 'it was not built'

# The end of the time is no failure, and the next call goes on.
printf '#!%s/bash\nsleep 60\n' "$hidden" >"$folder/build/tests/check_rows"
call --seconds 2 --build "$folder/build" -o "$folder/late" smoke nccl checks core
((code == 3 || code == 1)) || fail "the end of the time: exit code $code"
grep -q '	stopped	' "$folder/late/verdicts" || fail 'nothing was stopped'
! grep -q '^checks check_rows	failed' "$folder/late/verdicts" || fail 'the end of the time is a failure'

# ---- the build: cmake and nvcc are stand-ins ----

tree=$folder/tree
mkdir -p "$tree/bench/gpu" "$tree/build" "$tree/docs/notes" "$tree/carried/include" "$folder/cuda/bin"
cp "${gpu%/run}"/* "$tree/bench/gpu/"
cp -r "${gpu%/bench/gpu/run}/cmake" "$tree/"
call_tree() {
  code=0
  PATH=$hidden EVENKEEL_JOBS=2 "$tree/bench/gpu/run" --small "$@" >"$folder/printed" 2>&1 || code=$?
}
CUDACXX=$folder/none call_tree build smoke
((code == 1)) || fail "without nvcc: exit code $code"
grep -q '^smoke: skipped: nothing is built' "$folder/printed" || fail 'nothing is built, and smoke does not say so'
grep -q '^build: failed: no nvcc$' "$folder/printed" || fail 'no nvcc is not named'
grep -q '| check | missing | .*CONTRIBUTING' "$folder/printed" || fail 'no Check is not named'

rm "$hidden/cmake"
stand_in cmake <<END
printf '%s %s %s\n' "\${CMAKE_PREFIX_PATH-}" "\${CPATH-}" "\$*" >>"$folder/cmake.log"
[[ \$1 != --build ]]
END
stand_in gcc <<<'exit 1'
printf '#!%s/bash\necho release\n' "$hidden" >"$folder/cuda/bin/nvcc" && chmod +x "$folder/cuda/bin/nvcc"
ln -s "$build" "$tree/build/gpu"
export CUDACXX=$folder/cuda/bin/nvcc
call_tree build
grep -q '^build: failed: no cublasLt$' "$folder/printed" || fail 'no cublasLt is not named'

# From pip's folder, with carried copies of Check and jansson. After a build that fails, what was built runs.
mv "$folder/python3" "$hidden"
mkdir -p "$folder/site/nvidia/cu13"/{include,lib}
touch "$folder/site/nvidia/cu13"/{include/cublasLt.h,lib/libcublasLt.so.13} "$tree/carried/include"/{check,jansson}.h
call_tree build kernels
((code == 1)) || fail "a build that fails: exit code $code"
grep -q '^build: failed: exit code' "$folder/printed" || fail 'a build that fails is not named'
grep -q '^kernels f32: ran' "$folder/printed" || fail 'a build that fails ends the run'
grep -q "| cublasLt | there | $folder/site/nvidia/cu13, of pip |" "$folder/printed" || fail 'not from pip'
[[ -e $tree/build/gpu-toolkit/lib/libcublasLt.so ]] || fail 'the linker finds no cublasLt of pip'
case $(sed -n 's/^CMAKE_GENERATOR:[^=]*=//p' "$build/CMakeCache.txt") in
  Ninja) keep_going='-- -k 0' ;;
  *) keep_going='-- -k' ;;
esac
grep -q -e "^$tree/build/gpu-toolkit:$tree/carried $tree/build/gpu-toolkit/include --build .* $keep_going\$" \
  "$folder/cmake.log" || fail 'how the build was called'
printf 'check_gpu: as expected\n'
