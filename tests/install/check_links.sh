#!/usr/bin/env bash
# check_links.sh CMAKE BUILD TREE WORK: every link of a page leads to a file or folder that is there and,
# after `#`, to a heading of that page: in the source tree, and in what BUILD installs into the folder
# WORK. Links to other hosts are not followed. A page is Markdown, or HTML of the reference.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

cmake=$1 build=$2 tree=$3 work=$4
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

follow() { # FOLDER: its files are read from standard input, one a line
  local files pages
  files=$(cat)
  mapfile -t pages < <(grep -E '\.(md|html)$' <<<"$files")
  ((${#pages[@]} > 0)) || { printf 'check_links: no page in %s\n' "$1" >&2 && return 1; }
  (cd "$1" && awk -f "$here/links.awk" <(printf '%s\n' "$files") "${pages[@]}")
}

cd "$tree"
find -L . '(' -name .git -o -path ./build ')' -prune -o -print | sed 's,^\./,,' | follow "$tree" || failed=1

rm -rf "$work"
"$cmake" --install "$build" --prefix "$work" >"$work.log"
cd "$work"
find -L . -print | sed 's,^\./,,' | follow "$work" || failed=1
exit "$failed"
