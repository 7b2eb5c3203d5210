#!/usr/bin/env bash
# man.sh PROGRAM AWK_FILE VERSION WHAT: writes the man page of a program from what it says of itself and, where it has
# commands, of each. WHAT is its one line.
set -euo pipefail

program=$1
{
  printf '@\n'
  "$program" --help
  "$program" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' | while IFS= read -r command; do
    printf '@ %s\n' "$command"
    "$program" "$command" --help
  done
} | awk -v NAME="${program##*/}" -v VERSION="$3" -v WHAT="$4" -f "$2"
