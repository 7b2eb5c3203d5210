#!/usr/bin/env bash
# man.sh BENCH AWK_FILE VERSION: writes the man page of evenkeel-bench from what the program says of itself.
set -euo pipefail

bench=$1
{
  printf '@\n'
  "$bench" --help
  "$bench" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' | while IFS= read -r command; do
    printf '@ %s\n' "$command"
    "$bench" "$command" --help
  done
} | awk -v NAME=evenkeel-bench -v VERSION="$3" -f "$2"
