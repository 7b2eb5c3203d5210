#!/usr/bin/env bash
# check_hardening.sh READELF NM CMAKE BUILD FORTIFY FLAG...
#  1. every command of BUILD/compile_commands.json has each FLAG (cmake/EvenkeelHardening.cmake)
#  2. every program and shared object in BUILD, and of what is installed from it: position
#     independent, bound at start, read-only after relocation, no memory that can be written and run
#  3. where they look for libraries: a full path or, in a program as it is installed, a path
#     relative to the program's own folder; libevenkeel_check looks beside itself. What is installed names no folder of the build. An empty
#     or relative entry is the working directory.
#  4. the library and the programs that users run call the checks that the flags bring
#  5. libevenkeel and libevenkeel_check export ek_name alone, the modules for CUDA and MPI one entry
set -euo pipefail

readelf=$1 nm=$2 cmake=$3 build=$4 fortify=$5
shift 5
flags=("$@")
failed=0
count=0

complain() {
  printf 'check_hardening: %s\n' "$*" >&2
  failed=1
}

commands() {
  local flag line
  for flag in "${flags[@]}"; do
    while IFS= read -r line; do
      complain "compiled without $flag: $line"
    done < <(grep '"command":' "$build/compile_commands.json" | grep -vF -e "$flag" | sed 's/.* -c //')
  done
}

# The entries of RPATH and RUNPATH, one a line. A colon at the end, or two in a row, is an empty one.
search_path() { # FILE
  "$readelf" -dW "$1" | sed -nE 's/.*\((RPATH|RUNPATH)\).*\[(.*)\]$/\2/p' |
    awk '{ n = split($0, entry, ":"); if (n == 0) print ""; for (i = 1; i <= n; i++) print entry[i] }'
}

segments() { # FILE
  local file=$1 headers
  headers=$("$readelf" -hldW "$file")
  grep -qE '^ +Type: +DYN' <<<"$headers" || complain "$file is not position independent"
  grep -q 'GNU_RELRO' <<<"$headers" || complain "$file: no GNU_RELRO"
  grep -qE 'BIND_NOW|FLAGS_1.*NOW' <<<"$headers" || complain "$file is not bound at start"
  grep -E '^ +GNU_STACK ' <<<"$headers" | grep -qE ' RW +0' || complain "$file: the stack is executable"
  ! grep -E '^ +LOAD ' <<<"$headers" | grep -qE ' RWE ' || complain "$file has memory that is written and run"
  # Code in pages of its own: what begins the file, its headers, cannot be run.
  ! grep -E '^ +LOAD +0x0+ ' <<<"$headers" | grep -qE ' R E ' || complain "$file: headers can be run"
}

# shellcheck disable=SC2016 # $ORIGIN is the loader's
paths() { # FILE INSTALLED
  local file=$1 installed=$2 entry
  while IFS= read -r entry; do
    case $entry in
      '$ORIGIN') [[ ${file##*/} == libevenkeel_check.so* ]] ||
        complain "$file looks for libraries in its own folder" ;;
      /*) ((!installed)) || [[ $entry != "$build"* ]] ||
        complain "$file is installed and looks for libraries in '$entry'" ;;
      '$ORIGIN/../'*) [[ ${file##*/} == evenkeel-@(bench|train) ]] || complain "$file looks for libraries in '$entry'" ;;
      *) complain "$file looks for libraries in '$entry'" ;;
    esac
  done < <(search_path "$file")
}

# What our own code calls, and what it exports.
symbols() { # FILE
  local file=$1 calls exports
  calls=$("$nm" -D --undefined-only "$file")
  grep -q '__stack_chk_fail' <<<"$calls" || complain "$file: no stack protector"
  # The modules for MPI call nothing that is checked.
  [[ $fortify != TRUE || ${file##*/} == libevenkeel_mpi_*.so ]] || grep -E '__[a-z]+_chk' <<<"$calls" | grep -qv stack_chk ||
    complain "$file: no checked calls of the C library"
  exports=$("$nm" -D --defined-only "$file" | awk '{ print $NF }' | sed 's/@.*//')
  case ${file##*/} in
    libevenkeel_cuda.so | libevenkeel_mpi_*.so)
      [[ $exports == ek_cuda_module || $exports == ek_mpi_module ]] ||
        complain "$file exports ${exports//$'\n'/ }"
      ;;
    libevenkeel.so* | libevenkeel_check.so*)
      ! grep -vE '^ek_[^_]' <<<"$exports" || complain "$file exports what does not begin with ek_"
      ;;
  esac
}

look_at() { # INSTALLED FOLDER FIND-OPTION...
  local installed=$1 file
  shift
  while IFS= read -r file; do
    [[ $(head -c 4 "$file") == $'\x7fELF' ]] || continue
    count=$((count + 1))
    segments "$file"
    paths "$file" "$installed"
    case ${file##*/} in
      libevenkeel*.so* | evenkeel-*) symbols "$file" ;;
    esac
  done < <(find "$@" -type f '(' -perm -u+x -o -name '*.so*' ')' -print | sort)
}

[[ ! -e $build/compile_commands.json ]] || commands

# Not what CMake tries out, nor what tests/install builds as a user would.
look_at 0 "$build" -name CMakeFiles -prune -o -path "$build/tests/install/installed" -prune -o \
  -path "$build/tests/install/hardening" -prune -o

scratch=$build/tests/install/hardening
rm -rf "$scratch"
mkdir -p "$scratch"
"$cmake" --install "$build" --prefix "$scratch" >"$scratch/install.log"
built=$count
look_at 1 "$scratch"
((count > built)) || complain "nothing is installed"

((failed == 0)) && printf 'check_hardening: %d built and %d installed files\n' "$built" "$((count - built))"
exit "$failed"
