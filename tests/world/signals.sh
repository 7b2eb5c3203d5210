#!/usr/bin/env bash
# signals.sh OBEDIENT TRIALS: starts three processes of a world that train, and sends one of them a
# signal at some moment: SIGKILL (the others name it within five seconds), SIGSTOP (they name it at
# the time limit and a second) and SIGTERM (all stop after the same step and save it). TRIALS of each.
# After a SIGKILL one process alone goes on from what the folder has. Prints the longest times.
set -euo pipefail

program=$1 trials=$2
folder=$(mktemp -d)
started=()
trap 'kill -CONT "${started[@]}" 2>/dev/null || true; kill -KILL "${started[@]}" 2>/dev/null || true; rm -rf "$folder"' EXIT
limit=1
failed=0
RANDOM=20261123

complain() {
  printf 'signals: trial %s of %s: %s\n' "$trial" "$signal" "$1" >&2
  head -n 5 "$folder"/out.* >&2
  failed=1
}

start() {
  rm -rf "$folder"/*
  started=()
  for process in 0 1 2; do
    EVENKEEL_WORLD_FILE=$folder/world EVENKEEL_WORLD_PROCESS=$process EVENKEEL_WORLD_PROCESSES=3 \
      "$program" "$limit" "$folder/run" >"$folder/out.$process" 2>&1 &
    started+=($!)
    disown $! # its end is no news
  done
  for process in 0 1 2; do
    for ((i = 0; i < 600; i++)); do
      grep -qs training "$folder/out.$process" && break
      sleep 0.05
    done
    grep -qs training "$folder/out.$process" || complain "process $process does not train"
  done
  sleep "0.$((RANDOM % 10))$((RANDOM % 10))"
}

# Waits for a process for this many seconds at most; false if it is still there.
ends() {
  for ((i = 0; i < $2 * 20; i++)); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.05
  done
  return 1
}

# Seconds that the survivors took; each must name the victim.
survivors_name() {
  for process in 0 1 2; do
    ((process == victim)) && continue
    ends "${started[process]}" "$1" || complain "process $process is still there"
    grep -q "process $victim on " "$folder/out.$process" || complain "process $process names no victim"
    awk '/ after / { print $3 }' "$folder/out.$process" >>"$folder.$signal"
  done
}

# The folder has whole states alone, and the next run removes what the killed one has begun.
goes_on() {
  local states=() out=$folder/out.alone
  for file in "$folder"/run/step-*.safetensors; do
    [[ -f $file ]] && states+=("$(basename "$file" .safetensors)")
  done
  EVENKEEL_WORLD_FILE=$folder/alone EVENKEEL_WORLD_PROCESS=0 EVENKEEL_WORLD_PROCESSES=1 \
    "$program" "$limit" "$folder/run" >"$out" 2>&1 &
  started+=($!)
  local pid=$!
  disown "$pid"
  for ((i = 0; i < 600; i++)); do
    grep -qs training "$out" && break
    sleep 0.05
  done
  local last=0
  ((${#states[@]})) && last=$((10#${states[-1]#step-}))
  grep -q "training from $last\$" "$out" || complain "no state of step $last: $(cat "$out")"
  kill -TERM "$pid"
  ends "$pid" 10 || complain 'a process alone goes on'
  compgen -G "$folder/run/*.tmp" >/dev/null && complain 'a file of the killed save is left'
  return 0
}

for signal in KILL STOP TERM; do
  : >"$folder.$signal"
  for ((trial = 0; trial < trials && !failed; trial++)); do
    victim=$((RANDOM % 3))
    start
    ((failed)) && break
    kill "-$signal" "${started[victim]}" || complain "process $victim has ended before"
    case $signal in
      KILL)
        survivors_name 5
        goes_on
        ;;
      STOP) survivors_name $((limit + 5)) ;;
      TERM)
        for process in 0 1 2; do
          ends "${started[process]}" 10 || complain "process $process goes on"
        done
        steps=$(sed -n 's/^stopped after //p' "$folder"/out.* | sort -u)
        [[ $steps =~ ^[0-9]+$ ]] || complain "they stopped after ${steps:-no step}"
        [[ -f $folder/run/step-$(printf '%012d' "${steps:-0}").safetensors ]] || complain 'no state'
        ;;
    esac
    kill -CONT "${started[victim]}" 2>/dev/null || true
    kill -KILL "${started[@]}" 2>/dev/null || true
  done
  longest=$(sort -n "$folder.$signal" | tail -n 1)
  rm -f "$folder.$signal"
  ((failed)) || printf 'signals: %s: %d of %d%s\n' "$signal" "$trials" "$trials" \
    "${longest:+, at most $longest s after the last step}"
done
exit "$failed"
