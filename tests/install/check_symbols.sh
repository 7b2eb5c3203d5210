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

while IFS= read -r object; do
  [[ -n $object ]] || continue
  # Names that begin with two underscores come from the compiler (sanitizers, coverage).
  for name in $("$nm" -g --defined-only "$object" | awk 'NF >= 3 { print $NF }'); do
    [[ $name == ek_* || $name == __* ]] || complain "$object defines the global name $name"
  done
  for name in $("$nm" -u "$object" | awk '{ print $NF }'); do
    case $name in
      mmap | mmap64 | munmap | mremap | aligned_alloc | posix_memalign | memalign | valloc | pvalloc | sbrk)
        [[ $object == */src/backend/cpu/cpu_memory.c.* ]] || complain "$object calls $name"
        ;;
      malloc | calloc | realloc | reallocarray | free | strdup | strndup | asprintf | vasprintf)
        [[ $object == */src/core/host_memory.c.* ]] || complain "$object calls $name"
        ;;
    esac
  done
done <"$object_list"

((failed == 0)) && printf 'check_symbols: %d exported names, all as they should be\n' "$count"
exit "$failed"
