#!/usr/bin/env bash
# check_circles.sh NM OBJECT_LIST: no two object files, and no two folders of them, need each other,
# neither directly nor by way of others. An object needs another one if it uses a name that the other
# defines. The folder isa is a part of cpu that is compiled once per instruction set, several files as
# one object. The list has the library's objects, those of the CUDA module as the emulation compiles
# them, and the programs'. tsort finds an order of them all, or names those that stand in its way.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

nm=$1
object_list=$2

mapfile -t objects < <(grep . "$object_list")
((${#objects[@]} > 50)) || fail "where are the objects?"

# One line for each use: the object and the one that it needs, by their paths in the tree.
edges=$("$nm" -A -P -g "${objects[@]}" | awk '
  {
    sub(/:$/, "", $1)
    sub(/\.o(bj)?$/, "", $1)
    sub(/\.cpp$/, ".cu", $1) # the emulation copies each .cu to a .cpp
    sub(/.*\/bench\/CMakeFiles\/[^\/]*\.dir\//, "bench/", $1)
    sub(/.*\/programs\/CMakeFiles\/[^\/]*\.dir\//, "programs/", $1)
    sub(/.*\.dir\/(\.\/)?isa\//, "src/backend/cpu/isa/", $1)
    sub(/.*\.dir\/(\.\/)?(__\/__\/|cuda_kernels_cuemu_cuemu\/)?/, "", $1)
    sub(/^backend\//, "src/backend/", $1)
  }
  $3 == "U" { user[++uses] = $1; used[uses] = $2; next }
  { home[$2] = $1 }
  END {
    for (i = 1; i <= uses; i++) {
      if (used[i] in home && home[used[i]] != user[i]) print user[i], home[used[i]]
    }
  }' | sort -u)

check() { # WHAT, and the edges on the standard input
  local loops
  if ! loops=$(tsort 2>&1 >/dev/null) || [[ -n $loops ]]; then
    complain "$1 need each other: $loops"
  fi
}

check 'object files' <<<"$edges"
check 'folders' < <(awk '{
    sub(/\/[^\/]*$/, "", $1); sub(/\/[^\/]*$/, "", $2)
    sub(/\/isa$/, "", $1); sub(/\/isa$/, "", $2)
    if ($1 != $2) print
  }' <<<"$edges" | sort -u)

((failed)) || printf 'check_circles: %d uses, no circle\n' "$(wc -l <<<"$edges")"
exit "$failed"
