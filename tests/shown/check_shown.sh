#!/usr/bin/env bash
# check_shown.sh BLOCKS FOLDER EXAMPLE: every piece of C that README.md, docs/ and the headers show, one
# file each in the folder BLOCKS, is included by a source in FOLDER or stands, line by line, in EXAMPLE,
# which is included as a whole: so all of it is compiled and run.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

blocks=$1 folder=$2 example=$3

# Without indentation, each line ended by a mark.
squeezed() { sed '/^#line /d; s/^ *//; s/ *$//' "$1" | tr '\n' '\036'; }

count=0
whole=$(squeezed "$example")
for block in "$blocks"/*.inc; do
  count=$((count + 1))
  grep -qF "\"${block##*/}\"" "$folder"/*.[ch] && continue
  [[ $whole == *"$(squeezed "$block")"* ]] && continue
  printf 'check_shown: %s is shown and not tested\n' "$(sed -n '1s/#line //p' "$block")" >&2
  failed=1
done
((count > 0)) || fail "nothing is shown"

finish "$count pieces"
