#!/usr/bin/env bash
# check_preset.sh CMAKE TREE WORK: README.md's commands install what they say. The preset `install` is
# configured as README.md has it, in the folder WORK, and its steps are looked at; the test "consumer"
# looks at what steps of the same kind install.
#  1. README.md shows the preset's commands, and packages that cmake/packages.sh knows
#  2. no CUDA unless it is asked for, which configuring says; no test, example or other stray program
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

cmake=$1 tree=$2 work=$3

# --- README.md ---

# shellcheck disable=SC2016 # $HOME is the reader's
line='    cmake --preset install --install-prefix "$HOME/evenkeel" && cmake --build --preset install'
grep -qxF -e "$line" "$tree/README.md" || complain "README.md does not show '$line'"

# shellcheck source=cmake/packages.sh
. "$tree/cmake/packages.sh"
# A line that ends with a backslash goes on in the next.
read -ra shown <<<"$(sed -e ':a' -e '/\\$/{N;s/\\\n *//;ba' -e '}' "$tree/README.md" |
  sed -n 's/^    sudo apt-get install //p')"
((${#shown[@]} > 0)) || complain "README.md shows no packages"
for package in ${shown[@]+"${shown[@]}"}; do
  [[ " ${packages_debian[*]} " == *" $package "* ]] || complain "cmake/packages.sh does not know $package"
done

# --- the preset ---

if ! command -v ninja >/dev/null; then
  printf 'check_preset: no ninja; the preset is not configured\n'
  exit "$failed"
fi
rm -rf "$work"
cd "$tree"
"$cmake" --preset install -B "$work" --install-prefix "$work/prefix" >"$work.log"
grep -q 'without the CUDA backend (-DEVENKEEL_CUDA=ON builds it)' "$work.log" ||
  complain "configuring does not say that CUDA is left out, and how to have it"
grep -q "^CMAKE_INSTALL_PREFIX:PATH=$work/prefix$" "$work/CMakeCache.txt" || complain "the prefix is another one"
sources=$(sed -n 's/^ *"file": "\(.*\)".*/\1/p' "$work/compile_commands.json")
if grep -E "^$tree/(tests|examples)/|\.cu$" <<<"$sources"; then
  complain "these sources are of tests, examples or CUDA"
fi
count=$(wc -l <<<"$sources")
# 303 on 26 November 2026: 27 are kernels for three instruction sets. Is all of what is more needed?
((count > 100 && count < 330)) || complain "$count objects are compiled"

finish "$count objects"
