#!/usr/bin/env bash
# check_figures.sh BENCH_FOLDER: bench/figures and bench/order with a program instead of the benchmark whose
# times are known: what they count, what is met and what is missed.
set -euo pipefail

folder=$1
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

# A step takes SLOW seconds with a flag that saves memory, else 1. Of three choices the first is the fastest and
# was predicted to be; the third's prediction and speed are THIRD and LAST.
cat >"$place/bench" <<'END'
#!/usr/bin/env bash
if [[ $1 == fit ]]; then
  printf '%s\n' rank,mode,predicted_cost,measured_peak_bytes,tokens_per_second 1,m,1,1,1000 2,m,2,1,800 \
    "3,m,$THIRD,1,$LAST"
  exit
fi
time=1
[[ $* == *--recompute* || $* == *fused* || $* == *fully* || $* == *micro* ]] && time=$SLOW
printf 'head\nsharded,2,cpu:2,1,100,%s,1\n' "$time"
END
chmod +x "$place/bench"

fail() {
  printf '%s\n' "$1"
  cat "$place/out"
  exit 1
}

expect() { # STATUS TEXT...: of bench/figures
  local wanted=$1 status=0
  shift
  bash "$folder/figures" "$place/bench" >"$place/out" || status=$?
  [[ $status == "$wanted" ]] || fail "exit status $status, expected $wanted"
  for text; do grep -q -- "$text" "$place/out" || fail "not there: $text"; done
}

export SLOW=1.00 THIRD=3 LAST=790
expect 0 '^cheap.* 0.97 .* 1.00  met' '^0 missed' 'order .* 1.00  met    12 of 12$' # not the pair 2, 3
SLOW=1.10 expect 1 '^cheap.* 0.97 .* 0.91  missed' '^sqrt.* 1.35 .* 1.10  met' 'fully.* 0.90 .* 0.91  met' \
  'every=1 .* 0.80 .* 0.91  met' '^4 missed'
LAST=900 expect 1 'order .* 0.67  missed 12 of 18$' '^1 missed'
LAST=600 THIRD=2 expect 1 'order .* 0.67  missed 12 of 18$' # predicted alike, and not alike
