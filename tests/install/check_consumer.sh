#!/usr/bin/env bash
# check_consumer.sh CMAKE BUILD CONSUMER CC CXX LIBDIR [ONEDNN_INCLUDE_DIR ONEDNN_LIBRARY]
# (the last two if the library was built with oneDNN). Installs the build into a prefix of its own
# inside the build folder, moves that prefix, runs the installed program, and builds and runs the
# consumer in C and C++, shared and static, and the installed examples, through CMake and through
# pkg-config. Every program starts from an empty environment: nothing tells the loader where the
# library is.
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
  env -i "$1"
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

# --- the installed program ---

# PROGRAM FOLDER: asked for a CUDA device, the library finds the CUDA module in FOLDER. Where none was
# built a shared object without code takes its place, and the library refuses it by name.
finds_cuda_module() {
  local program=$1 module=$2/libevenkeel_cuda.so message
  [[ -e $module ]] || printf 'extern int nothing;\n' | "$cc" -x c - -shared -fPIC -o "$module.none"
  [[ ! -e $module.none ]] || mv "$module.none" "$module"
  message=$(env -i "$program" step --devices cuda:0 --steps 1 --warmup 0 2>&1 >/dev/null) && return
  if [[ -z $message || $message == *"not installed"* ]]; then
    printf 'check_consumer: %s does not find %s: %s\n' "$program" "$module" "$message" >&2
    exit 1
  fi
}

bench=$prefix/bin/evenkeel-bench
if [[ -x $bench ]]; then
  cd /
  env -i "$bench" --version
  env -i "$bench" memory --devices plan:2 --steps 1 --warmup 0 >"$work/bench.log"
  finds_cuda_module "$bench" "$lib"
  env -i "$prefix/bin/evenkeel-train" --model gpt2 --devices plan:2 --quiet
  # Once more from another place, by a relative path and through a link.
  mkdir "$work/again"
  mv "$prefix" "$work/again/moved"
  ln -s again/moved/bin/evenkeel-bench "$work/link"
  cd "$work/again"
  env -i moved/bin/evenkeel-bench --version
  env -i "$work/link" --version
  cd "$work"
  mv again/moved "$prefix"
else
  printf 'check_consumer: evenkeel-bench was not built; it is not started\n'
fi

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
run_example() { # PROGRAM [ARGUMENT...]
  env -i "$@" >>"$work/examples.log"
}
run_examples() { # FOLDER CMAKE-OPTION...
  local folder=$work/$1 source name
  shift
  "$cmake" -S "$examples" -B "$folder" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    --no-warn-unused-cli "$@" >>"$work/examples.log"
  "$cmake" --build "$folder" >>"$work/examples.log"
  for source in "$examples"/*.c; do
    name=$(basename "$source" .c)
    case $name in
      train_text) run_example "$folder/$name" "$source" --steps 5 ;;
      train_images) run_example "$folder/$name" --steps 2 ;;
      fine_tune) ;; # needs files: tests/io/check_fine_tune.sh runs it
      *) run_example "$folder/$name" ;;
    esac
    printf '%s/%s: runs\n' "${folder##*/}" "$name"
  done
}
run_examples examples -DCMAKE_DISABLE_FIND_PACKAGE_OneDNN=ON
# Without nvcc: own_cuda links the shared library in both.
run_examples examples_static -DEVENKEEL_LIBRARY=evenkeel::evenkeel_check_static -DCMAKE_CUDA_COMPILER= \
  "${options[@]}"
if readelf -d "$work/examples_static/own_model" | grep -q 'NEEDED.*libevenkeel'; then
  printf 'check_consumer: the static examples are linked to the shared library\n' >&2
  exit 1
fi

# --- pkg-config ---

if ! command -v pkg-config >/dev/null; then
  printf 'check_consumer: no pkg-config; that half is skipped\n'
  exit 0
fi
export PKG_CONFIG_PATH=$lib/pkgconfig
# Debian has no static oneDNN, which those who link with -static alone have to know.
if [[ -n $onednn_library ]] && ! grep -q -e '-static' "$lib/pkgconfig/evenkeel.pc"; then
  printf 'check_consumer: evenkeel.pc does not say what -static needs\n' >&2
  exit 1
fi
read -ra cflags <<<"$(pkg-config --cflags evenkeel_check)"
read -ra shared <<<"$(pkg-config --libs evenkeel_check)"
read -ra static <<<"$(pkg-config --static --libs evenkeel_check)"
# "-levenkeel" means the shared library where both are installed.
static=("${static[@]/%-levenkeel_check/-l:libevenkeel_check.a}")
static=("${static[@]/%-levenkeel/-l:libevenkeel.a}")
# Where a program finds the library when it runs, as README.md has it; and oneDNN's folder, for the
# static library and for what the shared one loads.
libdir_path="-Wl,-rpath,$(pkg-config --variable=libdir evenkeel)"
static_path=() shared_path=("$libdir_path")
if [[ -n $onednn_library ]]; then
  onednn_folder=$(dirname "$onednn_library")
  static_path=("-L$onednn_folder" "-Wl,-rpath,$onednn_folder")
  shared_path+=("-Wl,-rpath-link,$onednn_folder")
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
