#!/usr/bin/env bash
# check_slots.sh TREE CC STATIC_LIBRARY [LIBRARY...]: a kernel that a backend has not does not build.
#
# EK__KERNEL_LIST in src/backend/kernels.h makes the slots, the prototypes and the tables. Here it
# gets a row too many, which the CPU backend cannot fill, and loses one, which an operation calls;
# and the CPU backend's table loses a slot that EK__BACKEND_REQUIRED takes. As a control both as they are
# compile and link in the same way.

# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

tree=$1 cc=$2 library=$3
shift 3
make_dir

# build LIST TABLE: the CPU backend's table and an operation over kernels.h, each changed by a script
# for sed, and linked with the library; the compiler's words are in $dir/words.
build() {
  mkdir -p "$dir/backend"
  sed -E "$1" "$tree/src/backend/kernels.h" > "$dir/backend/kernels.h"
  sed -E "$2" "$tree/src/backend/cpu/cpu_backend.c" > "$dir/table.c"
  local flags=(-std=c11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -fPIC -I "$dir" -I "$tree/src"
               -I "$tree/include")
  {
    "$cc" "${flags[@]}" -c "$dir/table.c" -o "$dir/table.o" &&
      "$cc" "${flags[@]}" -c "$tree/src/op/elementwise.c" -o "$dir/op.o" &&
      "$cc" -shared -Wl,-z,defs "$dir/table.o" "$dir/op.o" "$library" "${libraries[@]}" \
        -o "$dir/linked.so"
  } > "$dir/words" 2>&1
}
libraries=("$@" -lpthread -lm -ldl)

if ! build '' ''; then
  cat "$dir/words" >&2
  complain 'the list as it is does not build'
fi

if build 's/^  ROW\(add, /  ROW(forgotten, elementwise, OWN)&/' ''; then
  complain 'a slot that no backend fills builds'
elif ! grep -q 'ek__cpu_forgotten' "$dir/words"; then
  cat "$dir/words" >&2
  complain 'it is not the forgotten kernel that is missed'
fi

if build '/^  ROW\(activation_forward, /d' ''; then
  complain 'an operation without its slot builds'
elif ! grep -q 'activation_forward' "$dir/words"; then
  cat "$dir/words" >&2
  complain 'it is not activation_forward that is missed'
fi

if build '' 's/ek__cpu_memory_release, //'; then
  complain 'a table without a required slot builds'
fi

# No code adds a slot or fills a table beside the list.
if grep -nE '^ *\.(activation_forward|matmul|sgd) = ' -r "$tree/src/backend" >&2; then
  complain 'a table of kernels is written by hand'
fi

finish "a forgotten kernel does not build"
