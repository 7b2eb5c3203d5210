#!/usr/bin/env bash
# check_man.sh BENCH TRAIN OVERVIEW COMPLETION: the man pages beside the programs have every command, option and public
# header, and groff has nothing to say of them; completion offers what there is.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

bench=$1 train=$2 overview=$3 completion=$4
page=$bench.1

for command in memory max-batch step techniques fit plan devices; do
  grep -qx ".SH \"${command^^}\"" "$page" || complain "no section $command"
  while IFS= read -r option; do
    # Without -q: grep would end before sed has written all, and sed would fail.
    sed -n "/^.SH \"${command^^}\"/,/^.SH /p" "$page" | sed 's,\\,,g' | grep -- "^\.B .*$option" >/dev/null ||
      complain "no $option in $command"
  done < <("$bench" $command --help | grep -oE -- '^ +(-[a-zA-Z?], )?--[a-z0-9-]+' | grep -oE -- '--.*')
done
while IFS= read -r option; do
  sed 's,\\,,g' "$train.1" | grep -- "^\.B .*$option" >/dev/null || complain "no $option in the page of evenkeel-train"
done < <("$train" --help | grep -oE -- '^ +(-[a-zA-Z?], )?--[a-z0-9-]+' | grep -oE -- '--.*')
(($(grep -c '^\.SS' "$train.1") == 5)) || complain "the page of evenkeel-train has not one heading for each group"
grep -q 'trainer.h' "$overview" || complain "no header in the overview"
if command -v man >/dev/null; then
  for file in "$page" "$train.1" "$overview"; do
    said=$(LC_ALL=C.UTF-8 man -l --warnings -E UTF-8 "$file" 2>&1 >/dev/null)
    [[ -z $said ]] || complain "man: $said"
  done
fi
if command -v groff >/dev/null; then
  for file in "$page" "$train.1" "$overview"; do
    said=$(groff -man -Tutf8 -ww "$file" 2>&1 >/dev/null)
    [[ -z $said ]] || complain "groff: $said"
  done
fi

# shellcheck disable=SC1090
. "$completion"
offers() { # WANTED WORD...: the last word is completed
  local wanted=$1
  shift
  COMP_WORDS=("$@")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _evenkeel
  [[ " ${COMPREPLY[*]} " == *" $wanted "* ]] || complain "\"${COMP_WORDS[*]}\" is not completed to $wanted"
}
offers techniques "$bench" te
offers max-batch "$bench" ""
offers --micro-batches "$bench" step --mi
offers --export-json "$bench" devices --
offers gpt2-355m "$bench" memory --preset gpt
offers quick "$bench" memory --preset = q
offers sharded-gradients "$bench" step --modes sh
offers gather,fully-sharded "$bench" step --modes gather,fu
offers csv "$bench" step -o c
offers "$bench" "$bench" memory --data "${bench%?}"
offers --micro-batches "$train" --mi
offers --schedule "$train" --model gpt2 --sch
offers one-cycle "$train" --schedule o
offers sgd "$train" --optimizer ""
offers sharded-gradients "$train" --mode = sh
offers bf16 "$train" --model gpt2 --precision b
offers u32 "$train" --raw u
offers "$train" "$train" --out "${train%?}"
# The values that stand in the completion itself are those of --help.
help=$("$bench" memory --help | tr -s ' \n' ' ')
while read -r option words; do
  [[ $option != --devices ]] || continue # its help has examples
  for word in $words; do
    [[ $(sed "s/.*$option=//; s/ --.*//" <<<"$help") == *"$word"* ]] || complain "completion offers $option $word"
  done
done < <(sed -nE 's/^ *(-o \| )?(--[a-z]+)\) words="([^$"]*)" ;;$/\2 \3/p' "$completion")
exit "$failed"
