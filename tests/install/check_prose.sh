#!/usr/bin/env bash
# check_prose.sh TREE [--count]: words that this project does not use for devices, order and place.
#
# Each pattern has a limit: how often product code, headers and documents (except results) still
# have it. Limits may only go down. In Markdown, except results, lines have at most 100 columns,
# except code and rows of tables. --count prints the numbers.
set -euo pipefail
cd "$1"
count=${2:-}
failed=0

lines() { # PATTERN: of product code, headers and documents
  local -a kinds=(--include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' --include='*.md')
  { grep -rhoiE "${kinds[@]}" --exclude-dir=results -- "$1" \
    README.md CONTRIBUTING.md docs include src parallel training criterion check || true; } | wc -l
}
at_most() { # LIMIT NAME PATTERN
  local found
  found=$(lines "$3")
  if [[ $count == --count ]]; then printf '%-32s %5d\n' "$2" "$found"; return; fi
  if ((found > $1)); then
    printf 'check_prose: %s: %d, at most %d; find the new one and say it plainly\n' \
      "$2" "$found" "$1" >&2
    failed=1
  fi
}
at_most 1 'nobody, everybody and the like' '\b(no|any|every|some)body\b'
at_most 60 'behind' '\bbehind\b'
at_most 0 'lie, lies' '\blies?\b'
at_most 12 'so many' '\bso many\b'
at_most 0 'but for' '\bbut for\b'
at_most 0 'in the place of' '\bin the place of\b'
at_most 18 'who without a noun' '(^|[.;:] |/\* |\* )who [a-z]+'

if [[ $count != --count ]]; then
  while IFS=: read -r page line; do
    printf 'check_prose: %s:%s: more than 100 columns\n' "$page" "$line" >&2
    failed=1
  done < <(awk 'FNR == 1 { code = 0 } /^```/ { code = !code }
    length > 100 && !code && !/^\|/ && !/^ *\[?[^ ]*$/ { print FILENAME ":" FNR }' \
    ./*.md docs/*.md docs/notes/*.md bench/*/*.md tests/*/*.md)
fi
exit $failed
