#!/usr/bin/env bash
# check_saving.sh SAVING: runs evenkeel-saving in small and looks at what it says and leaves.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

saving=$1
make_dir

refused() { # CODE WORDS ARGUMENT...
  local code=0
  "$saving" "${@:3}" >/dev/null 2>"$dir/err" || code=$?
  ((code == $1)) || fail "exit code $code and not $1 from: ${*:3}"
  grep -q "$2" "$dir/err" || fail "no \"$2\" from: ${*:3}"
}

text=$("$saving" "$dir/states" cpu:2 quick 2) || fail "it failed"
states=("$dir"/states/*)
((${#states[@]} == 1)) || fail "the folder holds ${states[*]}"
bytes=$(stat -c %s "${states[0]}")
awk -v bytes="$bytes" '
  NR == 1 && ($4 * 1e9 - bytes > 1e6 || bytes - $4 * 1e9 > 1e6) { bad = 1 }
  NR > 1 && !/ [0-9]+\.[0-9]+ \([0-9.]+ \.\. [0-9.]+\)/ && !/- \(this file system has none\)/ { bad = 1 }
  END { exit bad || NR != 18 }' <<<"$text" || fail "$text"
[[ $text == *', 2 rounds'* ]] || fail "$text"

# No second round begins when there is no time for it.
text=$("$saving" "$dir/short" cpu:1 quick 50 0.01) || fail "it failed"
[[ $text == *', 1 rounds'* ]] || fail "$text"

: >"$dir/file"
refused 1 'file' "$dir/file" cpu:1 quick 1
refused 2 usage
refused 2 usage "$dir/states" cpu:1 large
refused 2 usage "$dir/states" cpu:1 quick 0
refused 2 usage "$dir/states" cpu:1 quick 1 0
refused 1 'already contains saved states' "$dir/states" cpu:1 quick 1
