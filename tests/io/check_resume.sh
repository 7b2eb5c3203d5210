#!/usr/bin/env bash
# check_resume.sh PROGRAM TEXT: a run of train_text that was stopped, at a step or by a signal, and
# resumed prints the losses of one that was not, to the last digit. A reproducible one may be resumed
# on another number of devices and in another mode.
set -euo pipefail

program=$1 text=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  printf 'check_resume: %s\n' "$*" >&2
  exit 1
}

run() { # NAME ARGUMENT...
  local name=$1
  shift
  "$program" "$text" --exact "$@" >"$folder/$name" 2>"$folder/errors" ||
    { cat "$folder/errors" >&2 && fail "$name ended with an error"; }
}

losses() { grep -h '^step ' "$@"; }

if ! "$program" "$text" --steps 1 --save "$folder/probe" >/dev/null 2>"$folder/errors"; then
  grep -q 'built without' "$folder/errors" && { echo "built without files: left out" && exit 77; }
fi

run whole --steps 20
# A loss scale, which is saved with the rest, changes nothing.
run begun --steps 20 --loss-scale 65536 --save "$folder/run" --stop-at 10
run resumed --steps 20 --loss-scale 1 --save "$folder/run"
diff <(losses "$folder/whole") <(losses "$folder/begun" "$folder/resumed") ||
  fail "a run that was stopped after step 10 differs"
[[ $(find "$folder/run" -type f | wc -l) == 2 ]] || fail "not two states are kept"

# A signal, whenever it comes: the state is that of the last step that was printed.
"$program" "$text" --exact --steps 4000 --save "$folder/signal" >"$folder/killed" &
child=$!
for _ in {1..600}; do
  [[ $(find "$folder/killed" -size +0) ]] && break
  sleep 0.1
done
sleep 0.1
kill -TERM "$child"
wait "$child" || fail "a run that was asked to stop ended with an error"
stopped=$(losses "$folder/killed" | tail -n 1 | cut -d' ' -f2)
grep -q "stopped after step $stopped of 4000" "$folder/killed" || fail "it did not say where it stopped"
run further --steps 4000 --save "$folder/signal" --stop-at "$((stopped + 3))"
run straight --steps 4000 --stop-at "$((stopped + 3))"
diff <(losses "$folder/straight") <(losses "$folder/killed" "$folder/further") ||
  fail "a run that a signal stopped differs"

# The same bits on any number of devices, in every mode: each leg of the run has others.
moving=(--steps 40 --reproducible 6)
run alone "${moving[@]}" --devices cpu:1 --stop-at 8
run leg0 "${moving[@]}" --devices cpu:6 --mode fully-sharded --save "$folder/moving" --stop-at 2
run leg1 "${moving[@]}" --devices cpu:3 --mode sharded-gradients --save "$folder/moving" --stop-at 4
run leg2 "${moving[@]}" --devices cpu:5 --mode gather --save "$folder/moving" --stop-at 6
run leg3 "${moving[@]}" --devices cpu:4 --mode fully-sharded --save "$folder/moving" --stop-at 8
diff <(losses "$folder/alone") <(losses "$folder"/leg[0-3]) ||
  fail "a reproducible run that was moved to other devices and modes differs"

if "$program" "$text" --steps 5 --save "$folder/run" >/dev/null 2>"$folder/errors"; then
  fail "a state past the last step was taken"
fi
grep -q 'past the last step' "$folder/errors" || fail "a state past the last step is not named"
printf 'check_resume: 20 and %d steps are the same, stopped or not\n' "$((stopped + 3))"
