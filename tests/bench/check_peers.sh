#!/usr/bin/env bash
# check_peers.sh BENCH READ_JSON LOSSES|-: evenkeel-losses, and `bench/peers/run --torch 2` without PyTorch. A script speaks instead of its processes, a
# second one in that of the Python that makes the environment.
set -euo pipefail

bench=$1
read_json=$2
losses=$3
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=$(command -v python3) || exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# None of the caller's.
unset PEERS_VENV PEERS_BUILD PYTHON PIP_INDEX_URL

fail() {
  printf 'check_peers: %s\n' "$*" >&2
  tail -n 20 "$dir/out" "$dir/err" >&2
  exit 1
}

expect() { # CODE COMMAND...
  local code=0
  "${@:2}" >"$dir/out" 2>"$dir/err" || code=$?
  ((code == $1)) || fail "exit code $code and not $1 from: ${*:2}"
}

says() { # FILE WORDS...
  local words
  for words in "${@:2}"; do grep -qe "$words" "$dir/$1" || fail "no \"$words\" in std$1"; done
}

# A tree with the scripts, and packages that are all there.
mkdir -p "$dir/tree/bench/peers" "$dir/tree/cmake" "$dir/build/bench" "$dir/bin"
cp "$source"/bench/peers/run "$source"/bench/peers/*.py "$dir/tree/bench/peers"
printf 'packages_need() { :; }\npackages_build() { echo "BUILT $*"; }\n' >"$dir/tree/cmake/packages.sh"
ln -s "$bench" "$dir/build/bench/evenkeel-bench"
run=$dir/tree/bench/peers/run

# Wrong arguments, before anything is installed.
while IFS='|' read -r words said; do
  # shellcheck disable=SC2086
  expect 2 "$run" $words
  says err "$said"
done <<'END'
--torch|wants 1 or 2
--torch=3 S|wants 1 or 2
--torch 2 Q|no shape Q
--torch=2 --precision f64|f32 and bf16
--torch 2 --forms quick|--forms is
--torch 2 --rounds 0|at least 1
--torch 2 --losses --shape 2,64|five whole numbers
--torch 2 --losses --steps 10|--window
--torch 2 --losses --seed -1|0 or more
--torch 2 --losses --recipe --seeds 1|at least 2
END
expect 0 "$run" --torch 2 --help
says out '--prepare'
expect 0 "$run" --torch 2 --losses --help
says out '--window'
expect 1 env PYTHON="$dir/none" "$run" --torch 2
says err 'there is no'
expect 1 env PEERS_VENV="$dir/none" "$run" --torch 2
says err 'has no bin/python with PyTorch 2'
[[ ! -e $dir/tree/build ]] || fail "something was made"

# A Python whose environments have no PyTorch until pip, which needs a network, has been there.
cat >"$dir/bin/python" <<END
#!/bin/sh
case "\$*" in
  "-m venv "*) mkdir -p "\$3/bin" && cp "\$0" "\$3/bin/python" ;;
  "-m pip install "*) [ -e "$dir/network" ] || { echo "ERROR: no network"; exit 1; }; echo pip >>"$dir/pip" ;;
  "-") cat >/dev/null; [ -e "$dir/pip" ] ;;
  *) exec "$python" "\$@" ;;
esac
END
chmod +x "$dir/bin/python"
expect 1 env PYTHON="$dir/bin/python" "$run" --torch 2 tiny
says err 'ERROR: no network' 'PyTorch 2 cannot be installed'

# What a process of PyTorch would answer.
cat >"$dir/peer" <<'END'
import json, sys, time
form, precision = (sys.argv[sys.argv.index(word) + 1] for word in ("--form", "--precision"))
if form == "lean":
    time.sleep(60)
if (form, precision) == ("eager", "bf16"):
    sys.exit("eager bf16 does not run here")
seconds = {"compiled": 2.0, "eager": 1.0, "replicas": 3.0}[form]
print(json.dumps({"ready": True, "seconds": [seconds] * 3, "loss": 1.0, "peak_bytes": 1 << 30}), flush=True)
for number, line in enumerate(sys.stdin):
    if precision == "bf16" and number == 1:
        sys.exit("lost in the second round")
    print(json.dumps({"seconds": [seconds] * int(line), "steps_peak_bytes": 1 << 29}), flush=True)
END
touch "$dir/network"
compiled=$dir/tree/build/peers/inductor
mkdir -p "$compiled/tiny-compiled-f32/half" # of a compiler that was ended on its way
turns=(env PYTHON="$dir/bin/python" PEERS_BUILD="$dir/build" "$run" --torch 2 --peer "$dir/peer" tiny)
expect 0 "${turns[@]}" --forms compiled,eager,replicas --rounds 3 --export-json "$dir/json"
says out '^| PyTorch eager f32 | 1000 ms' '^| evenkeel bf16 |' '^evenkeel f32 / torch f32: time 0\.' \
  '^| PyTorch compiled bf16 | 2000 ms .* | 1.00 GiB | 0.50 GiB |' \
  '^Forms of PyTorch, each alone: compiled f32 2000 ms, 1.00 GiB, eager f32 1000 ms' \
  '^Left out: eager bf16: exit status 1: eager bf16 does not run here' \
  '^Left out: torch bf16, in turns: exit status 1: lost in the second round'
[[ $("$read_json" "$dir/json" results.0.rounds.2.'torch f32'.form) == 'eager f32' ]] || fail "not the fastest form"
[[ $("$read_json" "$dir/json" results.0.figures.'evenkeel bf16'.peak_bytes) -gt 0 ]] || fail "no peak"
[[ $(wc -l <"$dir/pip") == 1 ]] || fail "pip ran more than once"
[[ -e $compiled/tiny-compiled-f32/whole ]] || fail "what was compiled is not kept"
[[ ! -e $compiled/tiny-compiled-f32/half ]] || fail "half of what was compiled is kept"

# A form that takes too long is no slow form; the environment is kept.
expect 1 "${turns[@]}" --forms lean --form-seconds 1 --precision f32
says out '^Left out: lean f32: no answer within 1 s'
says err 'nothing to compare'
[[ ! -e $compiled/tiny-lean-f32 ]] || fail "half of what was compiled is kept"
[[ $(wc -l <"$dir/pip") == 1 ]] || fail "pip ran more than once"
# evenkeel-losses: begins with the weights of the file, over the batches of the other.
if [[ $losses != - ]]; then
  "$python" -c 'import array, sys; array.array("i", [i * i % 251 for i in range(60 * 4 * 9)]).tofile(sys.stdout.buffer)' >"$dir/tokens"
  expect 0 "$losses" 1,16,2,8,4 "$dir/weights"
  for precision in f32 f32 bf16 f16; do
    expect 0 "$losses" 1,16,2,8,4 "$dir/weights" "$dir/tokens" $precision cpu:2 1e-2
    cp "$dir/out" "$dir/losses-$precision"
    awk '$1 != "step" || $2 != NR || $3 != "loss" { exit 2 }
         NR == 1 { first = $4 }
         END { exit !(NR == 60 && first > 5.4 && first < 5.7 && $4 < 0.8 * first) }' "$dir/out" ||
      fail "losses in $precision"
    [[ $precision != f32 || ! -e $dir/first ]] || cmp -s "$dir/first" "$dir/out" || fail "two runs differ"
    cp "$dir/losses-f32" "$dir/first"
  done
  # A warm-up makes it the recipe of llm.c: its first step is smaller, its last one next to nothing.
  expect 0 "$losses" 1,16,2,8,4 "$dir/weights" "$dir/tokens" f32 cpu:2 1e-2 6
  ! cmp -s "$dir/out" "$dir/first" || fail "a warm-up changes nothing"
  [[ $(head -n 1 "$dir/out") == $(head -n 1 "$dir/first") ]] || fail "the recipe begins elsewhere"
  expect 2 "$losses" 1,16,2,8,4 "$dir/weights" "$dir/tokens" f32 cpu:2 1e-2 -1
  ! cmp -s "$dir/first" "$dir/losses-bf16" || fail "bf16 is f32"
  expect 1 "$losses" 1,32,2,8,4 "$dir/weights" "$dir/tokens" f32
  says err 'shape'
  expect 1 "$losses" 1,16,2,8,7 "$dir/weights" "$dir/tokens" f32
  says err 'not a multiple of 63 tokens, one step'
  expect 1 "$losses" 1,16,2,8,4 "$dir/weights" "$dir/none" f32
  expect 2 "$losses" 1,16,2,8 "$dir/weights"
  expect 2 "$losses" 1,16,2,8,4 "$dir/weights" "$dir/tokens"
  expect 2 "$losses" 1,16,2,8,4 "$dir/weights" "$dir/tokens" f64
fi
printf 'check_peers: as expected\n'
