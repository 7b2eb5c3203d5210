# shellcheck shell=bash
# browser.sh - how the tests begin that look at a report in a browser. To be sourced.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cmake/packages.sh
. "$here/../../cmake/packages.sh"
# shellcheck source=tests/support/script.sh
. "$here/../support/script.sh"

# The test is skipped where a tool is missing and cannot be installed.
browser_begin() { # TOOL...
  local tool
  for tool; do
    packages_have "$tool" || packages_install "${packages_debian[$tool]}" || {
      printf '%s: skipped: there is no %s, and it cannot be installed\n' "$test_name" "$tool"
      exit 77
    }
  done
  make_dir
}

browser_end() { exit "$failed"; }
