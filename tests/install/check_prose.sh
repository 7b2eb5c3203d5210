#!/usr/bin/env bash
# check_prose.sh TREE: words that this project does not use for devices, order and place.
#
# Looks line by line at comments of C (and strings, except in tests) and at whole documents, except
# results, and names each place. In Markdown, except results, lines have at most
# 100 columns, except code and rows of tables.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"
cd "$1"

# The text of C, one line for each that has any: "FILE:LINE: text".
texts=$(mktemp)
trap 'rm -f "$texts"' EXIT
# shellcheck disable=SC2016 # $0 and the others are fields of awk
grep -rlE --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' -- . \
  include src parallel training criterion check programs bench examples tests | sort | xargs awk '
  FNR == 1 { comment = 0 }
  {
    rest = $0
    text = ""
    while (rest != "") {
      if (comment) {
        end = index(rest, "*/")
        text = text " " (end ? substr(rest, 1, end - 1) : rest)
        rest = end ? substr(rest, end + 2) : ""
        comment = !end
      } else if (match(rest, /"([^"\\]|\\.)*"|\/\*|'\''\\?.'\''/)) {
        token = substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH)
        if (token == "/*") comment = 1
        else if (token ~ /^"/ && FILENAME !~ /^tests/) text = text " " token
      } else {
        rest = ""
      }
    }
    if (text != "") print FILENAME ":" FNR ":" text
  }' > "$texts"
awk '{ print FILENAME ":" FNR ": " $0 }' README.md CONTRIBUTING.md docs/*.md docs/notes/*.md >> "$texts"

never() { # NAME PATTERN [BETTER]
  local place
  while IFS= read -r place; do
    complain "$1 ($3): $place"
  done < <(grep -iE -- "^[^:]*:[0-9]*:.*($2)" "$texts" || true)
}
never '"nobody" and the like' '\b(no|any|every|some)body\b' 'name the device, thread or caller'
never '"behind" of an order' '\bbehind (the|a|an|it|its|that|them|this|each|all|another|every)\b' 'after'
never '"lie" of a place' '\blies?\b' 'is'
never '"so many" of a number' '\bso many\b' 'name the number'
never '"but for"' '\bbut for\b' 'except'
never '"in the place of"' '\bin the place of\b' 'instead of'
never '"who" without a noun' '(:|[.;:(*]|/\*) ?who [a-z]+|\b(for|by|of|from|so|than|where|first|those) who\b' \
  'name the device, thread or caller'
never '"told of"' '\b(is|are|was|were|be) (told|said) of\b' 'gets, is called with'
never 'a pronoun of a person' '\b(himself|herself)\b' 'itself'

while IFS=: read -r page line; do
  complain "$page:$line: more than 100 columns"
done < <(awk 'FNR == 1 { code = 0 } /^```/ { code = !code }
  length > 100 && !code && !/^\|/ && !/^ *\[?[^ ]*$/ { print FILENAME ":" FNR }' \
  ./*.md docs/*.md docs/notes/*.md bench/*/*.md tests/*/*.md)
exit $failed
