#!/usr/bin/env bash
# check_train_text.sh TRAIN_TEXT TEXT: the example's files beside the text (a line for each step, the file for
# Prometheus, a trace), and on a terminal, where script(1) can make one, its line of progress.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

program=$1 text=$2
make_dir

"$program" "$text" --steps 40 --trace "$dir/trace" --metrics "$dir/run" >/dev/null 2>"$dir/err" ||
  complain "it ends with $?"
[[ ! -s $dir/err ]] || complain "something on stderr although it is no terminal"
(($(wc -l <"$dir/run.jsonl") == 40)) || complain "not a line for each step"
grep -qx 'evenkeel_step 40' "$dir/run.prom" || complain "the file for Prometheus is not of step 40"
(($(grep -c '"name":"update"' "$dir/trace") == 2 * 10)) || complain "the trace is not of ten steps"
(($(find "$dir" -type f | wc -l) == 4)) || complain "a file was left behind: $(ls "$dir")"

# Another seed is another run, another rate another one again; 7 and 4e-3 are what it takes by itself.
for more in "" "--seed 7 --rate 4e-3" "--seed 8" "--rate 1e-3"; do
  # shellcheck disable=SC2086
  "$program" "$text" --steps 12 --exact $more | grep '^step' >"$dir/losses${more// /}" || complain "$more: it fails"
done
cmp -s "$dir/losses" "$dir/losses--seed7--rate4e-3" || complain "the defaults are others than said"
(($(md5sum "$dir"/losses* | cut -d' ' -f1 | sort -u | wc -l) == 3)) || complain "--seed or --rate changes nothing"
"$program" "$text" --steps 1 --rate -1 2>"$dir/err" && complain "a negative rate is taken"
grep -q 'peak -1' "$dir/err" || complain "the message does not name the rate: $(cat "$dir/err")"

# A run that goes on counts its tokens on, has the seed that it began with, and says so.
"$program" "$text" --steps 20 --seed 8 --stop-at 6 --save "$dir/state" --metrics "$dir/on" >/dev/null
"$program" "$text" --steps 20 --seed 9 --save "$dir/state" >/dev/null 2>"$dir/err" &&
  complain "a run goes on with another seed"
grep -q 'began with seed 8' "$dir/err" || complain "the message does not name the seed: $(cat "$dir/err")"
"$program" "$text" --steps 20 --exact --save "$dir/state" --metrics "$dir/on" >"$dir/on.out"
grep -q 'step-000000000006.safetensors, seed 8$' "$dir/on.out" || complain "it does not say its seed"
"$program" "$text" --steps 20 --exact --seed 8 | grep '^step' | tail -n 14 |
  diff - <(grep '^step' "$dir/on.out") || complain "a run that goes on has other windows"
[[ $(grep -o '"tokens": [0-9]*' "$dir/on.jsonl" | tail -n 1) == "\"tokens\": $((20 * 16 * 64))" ]] ||
  complain "tokens do not go on: $(tail -n 1 "$dir/on.jsonl")"

# A trace that cannot be written is seen before the first step; one that fails later costs no state.
"$program" "$text" --steps 5 --exact --trace "$dir/nowhere/trace" >"$dir/out" 2>"$dir/err" &&
  complain "a trace without a folder is taken"
grep -q '^step' "$dir/out" && complain "a trace without a folder is seen after the training"
grep -q "$dir/nowhere" "$dir/err" || complain "the message does not name the trace: $(cat "$dir/err")"
# It writes into a full pipe, and so cannot end before the folder is gone.
mkdir "$dir/goes"
mkfifo "$dir/pipe"
exec 3<>"$dir/pipe"
dd if=/dev/zero of="$dir/pipe" bs=1024 count=2048 oflag=nonblock 2>/dev/null || true
"$program" "$text" --steps 30 --exact --trace "$dir/goes/trace" --save "$dir/kept" \
  >"$dir/pipe" 2>"$dir/err" 3>&- &
child=$!
for _ in {1..600}; do
  [[ -e $dir/goes/trace ]] && break
  sleep 0.1
done
rm -r "$dir/goes"
exec 4<"$dir/pipe" 3>&-
cat <&4 >/dev/null
exec 4<&-
wait "$child" && complain "a trace that could not be written is no failure"
grep -q -- '--trace: ' "$dir/err" || complain "the message does not name --trace: $(cat "$dir/err")"
[[ -s $dir/kept/step-000000000030.safetensors ]] || complain "a failed trace cost the state"

# Devices that only count compute no text.
"$program" "$text" --steps 2 --devices plan:2 >"$dir/out" 2>"$dir/err" && complain "a plan continues the text"
grep -q 'cannot continue the text' "$dir/err" || complain "the message does not say why: $(cat "$dir/err")"

if command -v script >/dev/null; then
  script -qec "$(printf '%q ' "$program" "$text" --steps 20)" /dev/null </dev/null >"$dir/terminal"
  grep -q 'step [0-9]* of 20, loss [0-9.]*, [0-9]* rows/s' "$dir/terminal" ||
    complain "no progress on a terminal"
fi
exit "$failed"
