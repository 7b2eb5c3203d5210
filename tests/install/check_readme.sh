#!/usr/bin/env bash
# check_readme.sh TREE COMPILER: the C program in README.md compiles, and the files it points to exist.
set -euo pipefail

cd "$1"
compiler=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

{
  printf '#include <stdio.h>\n'
  sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d; s/^  \.\.\.$/  return EK_OK;/'
} >"$scratch/readme.c"
grep -q 'ek_group_open' "$scratch/readme.c" || { echo "README.md has no program" >&2; exit 1; }
"$compiler" -std=c11 -Wall -Wextra -Werror -Iinclude -fsyntax-only "$scratch/readme.c"

failed=0
while IFS= read -r target; do
  [[ -e ${target%%#*} ]] || { printf 'README.md points to %s, which does not exist\n' "$target" >&2; failed=1; }
done < <(grep -oE '\]\([^):]+\)' README.md | sed 's/^](//; s/)$//')
exit "$failed"
