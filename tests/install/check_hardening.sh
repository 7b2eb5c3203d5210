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
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

readelf=$1 nm=$2 cmake=$3 build=$4 fortify=$5
shift 5
flags=("$@")
count=0

commands() {
  local flag line
  for flag in "${flags[@]}"; do
    while IFS= read -r line; do
      complain "compiled without $flag: $line"
    done < <(grep '"command":' "$build/compile_commands.json" | grep -vF -e "$flag" | sed 's/.* -c //')
  done
}

# Two files or more: what is wrong with their segments, and where they look for libraries, as lines "SAYS FILE WHAT" and
# "PATH FILE ENTRY" with tabs, and last how many they are. A colon at the end of a path, or two in a row, is an empty
# entry.
headers() {
  "$readelf" -hldW "$@" | awk '
    function finish() {
      if (file == "") return
      if (!dyn) say("is not position independent")
      if (!relro) say("has no GNU_RELRO")
      if (!now) say("is not bound at start")
      if (!stack) say("has an executable stack")
      if (rwe) say("has memory that is written and run")
      if (first) say("has headers that can be run")
    }
    function say(what) { print "SAYS\t" file "\t" what }
    /^File: / { finish(); files++; file = substr($0, 7); dyn = relro = now = stack = rwe = first = 0 }
    /^ +Type: +DYN/ { dyn = 1 }
    /GNU_RELRO/ { relro = 1 }
    /BIND_NOW|FLAGS_1.*NOW/ { now = 1 }
    /^ +GNU_STACK / && / RW +0/ { stack = 1 }
    /^ +LOAD / && / RWE / { rwe = 1 }
    /^ +LOAD +0x0+ / && / R E / { first = 1 } # code has pages of its own
    /\((RPATH|RUNPATH)\).*\[.*\]$/ {
      sub(/.*\[/, ""); sub(/\]$/, "")
      n = split($0, entry, ":")
      if (n == 0) print "PATH\t" file "\t"
      for (i = 1; i <= n; i++) print "PATH\t" file "\t" entry[i]
    }
    END { finish(); print "SEEN\t" files }'
}

# shellcheck disable=SC2016 # $ORIGIN is the loader's
path() { # FILE INSTALLED ENTRY
  local file=$1 installed=$2 entry=$3
  case $entry in
    '$ORIGIN') [[ ${file##*/} == libevenkeel_check.so* ]] ||
      complain "$file looks for libraries in its own folder" ;;
    /*) ((!installed)) || [[ $entry != "$build"* ]] ||
      complain "$file is installed and looks for libraries in '$entry'" ;;
    '$ORIGIN/../'*) [[ ${file##*/} == evenkeel-@(bench|train) ]] || complain "$file looks for libraries in '$entry'" ;;
    *) complain "$file looks for libraries in '$entry'" ;;
  esac
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
  local installed=$1 file kind what magic
  local -a files=()
  shift
  while IFS= read -r file; do
    LC_ALL=C IFS= read -r -n 4 -d '' magic <"$file" || true
    [[ $magic == $'\x7fELF' ]] || continue
    files+=("$file")
    case ${file##*/} in
      libevenkeel*.so* | evenkeel-*) symbols "$file" ;;
    esac
  done < <(find "$@" -type f '(' -perm -u+x -o -name '*.so*' ')' -print | sort)
  count=$((count + ${#files[@]}))
  ((${#files[@]} > 0)) || return 0
  while IFS=$'\t' read -r kind file what; do
    case $kind in
      PATH) path "$file" "$installed" "$what" ;;
      SAYS) complain "$file $what" ;;
      SEEN) ((file == ${#files[@]})) || complain "readelf reads $file of ${#files[@]} files" ;;
    esac
  done < <(headers "${files[@]}" || printf 'SEEN\t0\n')
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

finish "$built built and $((count - built)) installed files"
