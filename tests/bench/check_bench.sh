#!/usr/bin/env bash
# check_bench.sh BENCH READ_JSON GROUP: runs evenkeel-bench in small and looks at what comes out.
# GROUP is one of the functions group_* of bench_numbers.sh and bench_calls.sh, which speak in the few words
# that are here.
# shellcheck disable=SC2317 # functions are called by the group's name
# shellcheck disable=SC2086 # loop counters need no quotes
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

bench=$1
read_json=$2
group=$3
make_dir
unset NO_COLOR
export TERM=xterm

small=(--layers 1 --width 16 --heads 2 --seq 16 --vocab 300 --batch 6 --steps 2 --warmup 1)
modes=(gather balanced replicated sharded sharded-gradients fully-sharded)
categories=(parameters copies gradients optimizer inputs activations outputs loss communication workspace)

# All values of the JSON in $dir/out, if it is JSON, by their paths: to run a program for each takes longer
# than the runs that are looked at. They go through a file, because bash reads a pipe byte by byte.
declare -A values=()
load() {
  local first='' i
  local -a pairs=()
  values=()
  IFS= read -r -n 1 first <"$dir/out" || true
  [[ $first == '{' ]] || return 0
  "$read_json" "$dir/out" >"$dir/values"
  mapfile -d '' -t pairs <"$dir/values"
  for ((i = 0; i < ${#pairs[@]}; i += 2)); do values[${pairs[i]}]=${pairs[i + 1]}; done
}

# Runs the program; its output is in $dir/out and $dir/err, and no code but CODE is right.
expect() { # CODE ARGUMENT...
  local wanted=$1 code=0
  shift
  "$bench" "$@" >"$dir/out" 2>"$dir/err" </dev/null || code=$?
  load
  ((code == wanted)) && return 0
  complain "exit code $code and not $wanted from: $*"
  sed 's/^/    /' "$dir/err" >&2
}

says() { # TEXT: it stands on stderr
  grep -qF -- "$1" "$dir/err" || {
    complain "stderr does not say \"$1\" but:"
    sed 's/^/    /' "$dir/err" >&2
  }
}

has() { # TEXT [WORDS]: it stands on stdout
  grep -qF -- "$1" "$dir/out" || complain "stdout has no \"$1\" ${*:2}"
}

has_not() { # TEXT [WORDS]
  ! grep -qF -- "$1" "$dir/out" || complain "stdout has \"$1\" ${*:2}"
}

has_everywhere() { # TEXT ARGUMENT...: in each format but JSON; the last is CSV
  local format
  for format in table md csv; do
    expect 0 "${@:2}" -o $format
    has "$1" "in $format"
  done
}

silent() { # nothing is on stdout
  [[ ! -s $dir/out ]] || complain "data on standard output although it failed"
}

# look_up PATH: `found` is the value of the JSON on stdout; nothing, which equals nothing, if it is not there. The
# script reads thousands of values, and $(value PATH) would begin a process for each.
look_up() {
  found=${values[$1]-}
  [[ -n ${values[$1]+set} ]] || printf 'no %s in the JSON\n' "$1" >&2
}

value() { # PATH
  local found
  look_up "$1"
  printf '%s\n' "$found"
}

fill() { # TEXT: `filled` is the text with the values of the JSON where it has {PATH}
  local found
  filled=$1
  while [[ $filled =~ \{([^{}]+)\} ]]; do
    look_up "${BASH_REMATCH[1]}"
    filled=${filled/"${BASH_REMATCH[0]}"/"$found"}
  done
}

same() { # WHAT LEFT RIGHT
  [[ $2 == "$3" ]] || complain "$1: $2 is not $3"
}

json() { # PATH=TEXT...: of the JSON on stdout; see fill
  local filled found pair
  for pair; do
    fill "${pair#*=}"
    look_up "${pair%%=*}"
    same "${pair%%=*}" "$found" "$filled"
  done
}

refuses() { # CODE TEXT ARGUMENT...: TEXT stands on stderr, and nothing on stdout
  expect "$1" "${@:3}"
  says "$2"
  silent
}

holds() { # WHAT EXPRESSION-OF-AWK: see fill
  local filled
  fill "$2"
  awk "BEGIN { exit !($filled) }" </dev/null || complain "$1: $2, which is $filled, does not hold"
}

# shellcheck source=tests/bench/bench_numbers.sh
. "${BASH_SOURCE[0]%/*}/bench_numbers.sh"
# shellcheck source=tests/bench/bench_calls.sh
. "${BASH_SOURCE[0]%/*}/bench_calls.sh"

"group_$group"
finish "$group as expected"
