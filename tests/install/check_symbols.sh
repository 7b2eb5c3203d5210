#!/usr/bin/env bash
# check_symbols.sh NM OBJECT_LIST SHARED_LIBRARY...
#  1. the shared libraries export ek_name and nothing else, not ek__name, and no name twice
#  2. every global name in the objects begins with ek_ (or ek__), so that the static library does not
#     take names from the programs that link it
#  3. only src/backend/cpu/cpu_memory.c maps memory, for the arenas, and only src/core/host_memory.c
#     calls malloc and its relatives: every byte of a device is on its ledger. evenkeel_check is no
#     part of what it checks: its own memory is not counted
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

nm=$1
object_list=$2
shift 2

count=0
declare -A exporter=()
for library in "$@"; do
  before=$count
  for name in $("$nm" -D --defined-only "$library" | awk '{ print $NF }' | sed 's/@.*//'); do
    count=$((count + 1))
    [[ $name == ek_[!_]* ]] || complain "$library exports $name"
    [[ ! -v exporter[$name] ]] || complain "$library exports $name, and so does ${exporter[$name]}"
    exporter[$name]=$library
  done
  ((count > before)) || complain "$library exports nothing"
done

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
  undefined && name in home && object !~ home[name] && object !~ /evenkeel_check_objects/ { print object " calls " name }
  !undefined && name !~ /^(ek_|__|DW\.ref\.)/ { print object " defines the global name " name }' <<<"$listed")

finish "$count exported names, all as they should be"
