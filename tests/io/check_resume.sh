#!/usr/bin/env bash
# check_resume.sh PROGRAM TEXT: a run of train_text that was stopped, at a step or by a signal, and
# resumed prints the losses of one that was not, to the last digit. A reproducible one may be resumed
# on another number of devices and in another mode.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

program=$1 text=$2
make_dir

run() { # NAME ARGUMENT...
  local name=$1
  shift
  "$program" "$text" --exact "$@" >"$dir/$name" 2>"$dir/errors" ||
    { cat "$dir/errors" >&2 && fail "$name ended with an error"; }
}

losses() { grep -h '^step ' "$@"; }

if ! "$program" "$text" --steps 1 --save "$dir/probe" >/dev/null 2>"$dir/errors"; then
  grep -q 'built without' "$dir/errors" && { echo "built without files: left out" && exit 77; }
fi

run whole --steps 20
# A loss scale, which is saved with the rest, changes nothing.
run begun --steps 20 --loss-scale 65536 --save "$dir/run" --stop-at 10
run resumed --steps 20 --loss-scale 1 --save "$dir/run"
diff <(losses "$dir/whole") <(losses "$dir/begun" "$dir/resumed") ||
  fail "a run that was stopped after step 10 differs"
[[ $(find "$dir/run" -type f | wc -l) == 2 ]] || fail "not two states are kept"

# A signal, whenever it comes: the state is that of the last step that was printed.
"$program" "$text" --exact --steps 4000 --save "$dir/signal" >"$dir/killed" &
child=$!
for _ in {1..600}; do
  [[ $(find "$dir/killed" -size +0) ]] && break
  sleep 0.1
done
sleep 0.1
kill -TERM "$child"
wait "$child" || fail "a run that was asked to stop ended with an error"
stopped=$(losses "$dir/killed" | tail -n 1 | cut -d' ' -f2)
grep -q "stopped after step $stopped of 4000" "$dir/killed" || fail "it did not say where it stopped"
run further --steps 4000 --save "$dir/signal" --stop-at "$((stopped + 3))"
run straight --steps 4000 --stop-at "$((stopped + 3))"
diff <(losses "$dir/straight") <(losses "$dir/killed" "$dir/further") ||
  fail "a run that a signal stopped differs"

# The same bits on any number of devices, in every mode: each leg of the run has others.
moving=(--steps 40 --reproducible 6)
run alone "${moving[@]}" --devices cpu:1 --stop-at 8
run leg0 "${moving[@]}" --devices cpu:6 --mode fully-sharded --save "$dir/moving" --stop-at 2
run leg1 "${moving[@]}" --devices cpu:3 --mode sharded-gradients --save "$dir/moving" --stop-at 4
run leg2 "${moving[@]}" --devices cpu:5 --mode gather --save "$dir/moving" --stop-at 6
run leg3 "${moving[@]}" --devices cpu:4 --mode fully-sharded --save "$dir/moving" --stop-at 8
diff <(losses "$dir/alone") <(losses "$dir"/leg[0-3]) ||
  fail "a reproducible run that was moved to other devices and modes differs"

if "$program" "$text" --steps 5 --save "$dir/run" >/dev/null 2>"$dir/errors"; then
  fail "a state past the last step was taken"
fi
grep -q 'past the last step' "$dir/errors" || fail "a state past the last step is not named"
printf 'check_resume: 20 and %d steps are the same, stopped or not\n' "$((stopped + 3))"
