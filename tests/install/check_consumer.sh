#!/usr/bin/env bash
# check_consumer.sh CMAKE BUILD CONSUMER CC CXX LIBDIR [ONEDNN_INCLUDE_DIR ONEDNN_LIBRARY]
# (the last two if the library was built with oneDNN). Installs the build into a prefix of its own inside the build folder, moves that prefix, and builds
# and runs the consumer in C and C++, shared and static, and the installed examples, through CMake and
# through pkg-config.
set -euo pipefail

cmake=$1
build=$2
consumer=$3
cc=$4
cxx=$5 # empty: no C++ compiler
libdir=$6
onednn_include=${7-}
onednn_library=${8-} # empty: built without

work=$build/tests/install/installed
prefix=$work/prefix
rm -rf "$work"
mkdir -p "$work"

# The tree is moved after it was installed: nothing in it may hold the path it was installed to.
"$cmake" --install "$build" --prefix "$work/elsewhere" >"$work/install.log"
mv "$work/elsewhere" "$prefix"
if grep -rIl -e "$work/elsewhere" "$prefix"; then
  printf 'check_consumer: the files above hold the path they were installed to\n' >&2
  exit 1
fi
case $libdir in
  /*) printf 'check_consumer: an absolute library folder cannot be moved; skipped\n' && exit 0 ;;
esac
lib=$prefix/$libdir

run() { # PROGRAM: runs it and says how it is linked
  printf '%s: ' "${1#"$work/"}"
  LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$1"
  case $1 in
    *shared*)
      # oneDNN is the library's own business.
      if readelf -d "$1" | grep -q 'NEEDED.*libdnnl'; then
        printf 'check_consumer: %s is linked to oneDNN\n' "$1" >&2
        exit 1
      fi
      ;;
    *static*)
      if readelf -d "$1" | grep -q 'NEEDED.*libevenkeel'; then
        printf 'check_consumer: %s is linked to the shared library\n' "$1" >&2
        exit 1
      fi
      ;;
  esac
}

# --- find_package ---

options=(-DCMAKE_BUILD_TYPE=Release "-DCMAKE_PREFIX_PATH=$prefix" "-DCMAKE_C_COMPILER=$cc")
if [[ -n $onednn_library ]]; then
  options+=("-DOneDNN_INCLUDE_DIR=$onednn_include" "-DOneDNN_LIBRARY=$onednn_library")
else
  # Then nothing of what is installed may ask for it.
  options+=(-DCMAKE_DISABLE_FIND_PACKAGE_OneDNN=ON)
fi
programs=(shared_c static_c)
if [[ -n $cxx ]]; then
  options+=(-DWITH_CXX=ON "-DCMAKE_CXX_COMPILER=$cxx")
  programs+=(shared_cc static_cc)
fi
"$cmake" -S "$consumer" -B "$work/cmake" "${options[@]}" >"$work/cmake.log"
"$cmake" --build "$work/cmake" >>"$work/cmake.log"
for program in "${programs[@]}"; do
  run "$work/cmake/$program"
done

# The shared library asks for nothing else: it is found where the static one's oneDNN is not.
if [[ -n $onednn_library ]]; then
  "$cmake" -S "$consumer" -B "$work/without" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    -DWITHOUT_ONEDNN=ON -DCMAKE_DISABLE_FIND_PACKAGE_OneDNN=ON >"$work/without.log"
  "$cmake" --build "$work/without" >>"$work/without.log"
fi

# --- the installed examples, and the pages beside them ---

examples=$(dirname "$(find "$prefix" -path '*/examples/CMakeLists.txt')")
for page in README.md docs/own-model.md docs/architecture.md examples/own_model.c; do
  [[ -s $examples/../$page ]] || { printf 'check_consumer: %s is not installed\n' "$page" >&2; exit 1; }
done
"$cmake" -S "$examples" -B "$work/examples" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
  -DCMAKE_DISABLE_FIND_PACKAGE_OneDNN=ON >"$work/examples.log"
"$cmake" --build "$work/examples" >>"$work/examples.log"
run_example() { # PROGRAM [ARGUMENT...]
  LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@" >>"$work/examples.log"
}
for source in "$examples"/*.c; do
  name=$(basename "$source" .c)
  case $name in
    train_text) run_example "$work/examples/$name" "$source" --steps 5 ;;
    *) run_example "$work/examples/$name" ;;
  esac
  printf 'examples/%s: runs\n' "$name"
done

# --- pkg-config ---

if ! command -v pkg-config >/dev/null; then
  printf 'check_consumer: no pkg-config; that half is skipped\n'
  exit 0
fi
export PKG_CONFIG_PATH=$lib/pkgconfig
read -ra cflags <<<"$(pkg-config --cflags evenkeel)"
read -ra shared <<<"$(pkg-config --libs evenkeel)"
read -ra static <<<"$(pkg-config --static --libs evenkeel)"
# "-levenkeel" means the shared library where both are installed.
static=("${static[@]/#-levenkeel/-l:libevenkeel.a}")
# Where oneDNN lies, for the static library and for what the shared one loads.
static_path=() shared_path=()
if [[ -n $onednn_library ]]; then
  static_path=("-L$(dirname "$onednn_library")")
  shared_path=("-Wl,-rpath-link,$(dirname "$onednn_library")")
elif [[ " ${static[*]} " == *" -ldnnl "* ]]; then
  printf 'check_consumer: evenkeel.pc asks for oneDNN, which the library does not use\n' >&2
  exit 1
fi

mkdir -p "$work/pkgconfig"
cd "$work/pkgconfig"
"$cc" -std=c11 -Wall -Wextra -Werror "${cflags[@]}" "$consumer/main.c" -o shared_c "${shared[@]}" \
  "${shared_path[@]}"
"$cc" -std=c11 "${cflags[@]}" "$consumer/main.c" -o static_c "${static[@]}" "${static_path[@]}"
run "$work/pkgconfig/shared_c"
run "$work/pkgconfig/static_c"
"$cc" -std=c11 "${cflags[@]}" "$examples/own_model.c" -o own_model "${shared[@]}" -lm "${shared_path[@]}"
run_example ./own_model
if [[ -n $cxx ]]; then
  "$cxx" -std=c++17 -Wall -Wextra -Werror "${cflags[@]}" "$consumer/main.cc" -o shared_cc "${shared[@]}" \
    "${shared_path[@]}"
  "$cxx" -std=c++17 "${cflags[@]}" "$consumer/main.cc" -o static_cc "${static[@]}" "${static_path[@]}"
  run "$work/pkgconfig/shared_cc"
  run "$work/pkgconfig/static_cc"
fi
