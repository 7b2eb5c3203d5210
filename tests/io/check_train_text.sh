#!/usr/bin/env bash
# check_train_text.sh TRAIN_TEXT TEXT: the example's files beside the text (a line for each step, the file for
# Prometheus, a trace), and on a terminal, where script(1) can make one, its line of progress.
set -euo pipefail

program=$1 text=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

complain() {
  printf 'check_train_text: %s\n' "$*" >&2
  failed=1
}

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
  "$program" "$text" --steps 40 --exact $more | grep '^step' >"$dir/losses${more// /}" || complain "$more: it fails"
done
cmp -s "$dir/losses" "$dir/losses--seed7--rate4e-3" || complain "the defaults are others than said"
(($(md5sum "$dir"/losses* | cut -d' ' -f1 | sort -u | wc -l) == 3)) || complain "--seed or --rate changes nothing"
"$program" "$text" --steps 1 --rate -1 2>"$dir/err" && complain "a negative rate is taken"
grep -q 'peak -1' "$dir/err" || complain "the message does not name the rate: $(cat "$dir/err")"

if command -v script >/dev/null; then
  script -qec "$(printf '%q ' "$program" "$text" --steps 20)" /dev/null </dev/null >"$dir/terminal"
  grep -q 'step [0-9]* of 20, loss [0-9.]*, [0-9]* bytes/s' "$dir/terminal" ||
    complain "no progress on a terminal"
fi
exit "$failed"
