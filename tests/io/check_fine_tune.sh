#!/usr/bin/env bash
# check_fine_tune.sh FINE_TUNE SMALL_MODEL: the example trains a folder of a model on a file of tokens, goes on where it
# was, on other devices, and leaves a folder that it can begin with.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

program=$1
make_dir

"$2" "$dir/base" "$dir/tokens.bin" || exit $?

# Losses of the lines "step 3 of 20, loss 2.3456, ...".
losses() { sed -nE 's/^step [0-9]+ of [0-9]+, loss ([0-9.e+-]+).*/\1/p' "$1"; }

"$program" "$dir/base" "$dir/*.bin" "$dir/whole" cpu:2 16 8 300 >"$dir/whole.out"
losses "$dir/whole.out" >"$dir/whole.losses"
(($(wc -l <"$dir/whole.losses") == 300)) || complain "not a line for each step"
awk 'NR == 1 { first = $1 } END { exit !($1 < 0.7 * first) }' "$dir/whole.losses" || complain "the loss did not fall"
for file in config.json model.safetensors; do
  [[ -s $dir/whole/$file ]] || complain "it left no $file"
done

# The first 120 steps, and the others on another number of devices, are the same run.
"$program" "$dir/base" "$dir/*.bin" "$dir/parts" cpu:1 16 8 120 >"$dir/parts.out"
"$program" "$dir/base" "$dir/*.bin" "$dir/parts" cpu:3 16 8 300 >>"$dir/parts.out"
losses "$dir/parts.out" >"$dir/parts.losses"
paste "$dir/whole.losses" "$dir/parts.losses" |
  awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 2e-4) exit 1 } END { exit NR != 300 }' ||
  complain "a run that goes on is another run"

"$program" "$dir/whole" "$dir/*.bin" "$dir/again" cpu:2 16 8 1 >"$dir/again.out"
awk -v last="$(tail -n 1 "$dir/whole.losses")" '{ exit !($1 < 1.2 * last) }' <(losses "$dir/again.out") ||
  complain "the folder that it left is not the model that it trained"

"$program" "$dir/nowhere" "$dir/*.bin" "$dir/x" cpu:1 16 8 1 2>"$dir/err" && complain "no folder is needed"
"$program" 2>"$dir/usage" && complain "no arguments are needed"
grep -q 'expected FOLDER' "$dir/usage" || complain "it does not say what it expects"
grep -q 'fine_tune: .*nowhere/config.json' "$dir/err" || complain "the message does not name the file: $(cat "$dir/err")"
exit "$failed"
