# shellcheck shell=bash
# browser.sh - how the tests begin that look at a report in a browser. To be sourced.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cmake/packages.sh
. "$here/../../cmake/packages.sh"
failed=0

# The test NAME is skipped where a tool is missing and cannot be installed. Makes a folder, `dir`, that is
# gone with the test.
browser_begin() { # NAME TOOL...
  name=$1
  shift
  local tool
  for tool; do
    packages_have "$tool" || packages_install "${packages_debian[$tool]}" || {
      printf '%s: skipped: there is no %s, and it cannot be installed\n' "$name" "$tool"
      exit 77
    }
  done
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
}

complain() {
  printf '%s: %s\n' "$name" "$*" >&2
  failed=1
}

browser_end() { exit "$failed"; }
