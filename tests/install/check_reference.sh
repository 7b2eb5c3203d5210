#!/usr/bin/env bash
# check_reference.sh TREE EXPORTS [REFERENCE]: every function of the headers has a description, and the
# reference in the folder REFERENCE, in which Doxygen found nothing to warn of, has each of them. EXPORTS is
# the program of list_exports.sh, which names them all. Without a third argument Doxygen is not there.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

tree=$1 exports=$2 reference=${3-}

for header in "$tree"/include/evenkeel/*.h; do
  awk -v CHECK=1 -f "$tree/cmake/reference.awk" "$header" || failed=1
done
mapfile -t functions < <(sed -n 's/^ *(any_function)\(ek_[a-z0-9_]*\),$/\1/p' "$exports")
((${#functions[@]} > 100)) || fail "no functions in $exports"
if [[ -z $reference ]]; then
  printf 'check_reference: no Doxygen (Debian: doxygen); only the headers were looked at\n'
  exit "$failed"
fi

if [[ -s $reference.log ]]; then
  printf 'check_reference: Doxygen warns:\n' >&2
  cat "$reference.log" >&2
  failed=1
fi
# The index of functions points to each one's description.
index=$(cat "$reference"/globals_func*.html)
for function in "${functions[@]}"; do
  [[ $index == *">$function()"* ]] || {
    complain "$function is not in the reference"
  }
done
finish "${#functions[@]} functions"
