#!/usr/bin/env bash
# check_man.sh CMAKE BUILD WORK: groff warns of nothing in the man pages that BUILD installs into the
# folder WORK, and no line of them is wider than a terminal of 80 columns. 77: there is no groff.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

cmake=$1 build=$2 work=$3
count=0

command -v groff >/dev/null || { printf 'skipped: no groff (Debian: groff-base)\n' && exit 77; }
rm -rf "$work"
"$cmake" --install "$build" --prefix "$work" >"$work.log"
while IFS= read -r page; do
  count=$((count + 1))
  text=$(groff -man -Tascii -P-cbou -rLL=80n -ww "$page" 2>&1) || true
  wide=$(awk 'length > 80' <<<"$text")
  if [[ -n $wide ]]; then
    complain "$page has lines over 80 columns: $wide"
  fi
  if grep -F "${page##*/}:" <<<"$text" >&2; then
    complain "groff warns of $page"
  fi
done < <(find "$work" -name '*.[13]' -type f | sort)
((count > 0)) || fail "no page in $work"
finish "$count pages"
