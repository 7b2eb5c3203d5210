#!/usr/bin/env bash
# check_symbols.sh NM SHARED_LIBRARY OBJECT_LIST
#  1. the shared library exports ek_name and nothing else, and not ek__name
#  2. every global name in the objects begins with ek_ (or ek__), so that the static library does not
#     take names from the programs that link it
#  3. only src/backend/cpu/cpu_memory.c maps memory, for the arenas, and only src/core/host_memory.c
#     calls malloc and its relatives: every byte of a device is on its ledger
set -euo pipefail

nm=$1
library=$2
object_list=$3
failed=0

complain() {
  printf 'check_symbols: %s\n' "$*" >&2
  failed=1
}

exported=$("$nm" -D --defined-only "$library" | awk '{ print $NF }' | sed 's/@.*//')
count=0
for name in $exported; do
  count=$((count + 1))
  [[ $name == ek_[!_]* ]] || complain "the shared library exports $name"
done
((count > 0)) || complain "the shared library exports nothing"

# Names that begin with two underscores come from the compiler (sanitizers, coverage), and so do those
# that begin with DW.ref., which hidden pointers for the unwinding of exceptions have. One nm for all:
# lines "OBJECT:[address] TYPE NAME".
mapfile -t objects < <(grep . "$object_list")
listed=$("$nm" -A -g "${objects[@]}")
[[ -n $listed ]] || complain "there are no objects"
while IFS= read -r complaint; do
  complain "$complaint"
done < <(awk '
  BEGIN {
    split("mmap mmap64 munmap mremap aligned_alloc posix_memalign memalign valloc pvalloc sbrk", maps)
    split("malloc calloc realloc reallocarray free strdup strndup asprintf vasprintf", allocates)
    for (i in maps) home[maps[i]] = "/src/backend/cpu/cpu_memory\\.c\\."
    for (i in allocates) home[allocates[i]] = "/src/core/host_memory\\.c\\."
  }
  { object = $0; sub(/:[^:]*$/, "", object); name = $NF; undefined = $(NF - 1) ~ /(^|:)[Uwv]$/ }
  undefined && name in home && object !~ home[name] { print object " calls " name }
  !undefined && name !~ /^(ek_|__|DW\.ref\.)/ { print object " defines the global name " name }' <<<"$listed")

((failed == 0)) && printf 'check_symbols: %d exported names, all as they should be\n' "$count"
exit "$failed"
