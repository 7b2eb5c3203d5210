# shellcheck shell=bash
# script.sh - how the tests begin and end that are scripts. To be sourced.

set -euo pipefail
test_name=${0##*/}
test_name=${test_name%.sh}
failed=0

complain() { # WORDS...: the test goes on, and fails
  printf '%s: %s\n' "$test_name" "$*" >&2
  failed=1
}

fail() { # WORDS...: the test ends
  complain "$@"
  exit 1
}

make_dir() { # a folder, `dir`, that is gone with the test
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
}

finish() { # WORDS...: said if nothing has failed
  ((failed > 0)) || printf '%s: %s\n' "$test_name" "$*"
  exit "$failed"
}
