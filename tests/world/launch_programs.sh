#!/usr/bin/env bash
# launch_programs.sh BENCH TRAIN_TEXT TEXT [MPIRUN...]: both programs as two processes, started by the command MPIRUN or,
# without one, by the variables of a file; they are one world without a flag. What they compute has the bits of one
# process, one of them prints, and a signal to one stops both after the same step.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

bench=$1 train_text=$2 text=$3
shift 3
make_dir
run=0

# COMMAND...: runs it in two processes; output in $dir/out and $dir/err. Process P's pid is in $dir/pid.P (file).
launcher=("$@")
both() {
  local p code=0
  local -a pids=()
  run=$((run + 1))
  if ((${#launcher[@]} > 0)); then
    "${launcher[@]}" -n 2 "$@" >"$dir/out" 2>"$dir/err" </dev/null || code=$?
    return "$code"
  fi
  for p in 0 1; do
    EVENKEEL_WORLD_FILE="$dir/world.$run" EVENKEEL_WORLD_PROCESS=$p EVENKEEL_WORLD_PROCESSES=2 \
      EVENKEEL_WORLD_ADDRESS=127.0.0.1 "$@" >"$dir/out.$p" 2>"$dir/err.$p" </dev/null &
    pids+=($!)
  done
  if [[ -n ${stop_after-} ]]; then
    while [[ $(wc -l <"$dir/out.0") -lt $stop_after ]]; do sleep 0.05; done
    kill -TERM "${pids[1]}"
  fi
  for p in "${pids[@]}"; do wait "$p" || code=$?; done
  cat "$dir/out.0" "$dir/out.1" >"$dir/out"
  cat "$dir/err.0" "$dir/err.1" >"$dir/err"
  return "$code"
}

if ((${#launcher[@]} > 0)) && ! command -v "${launcher[0]}" >/dev/null; then
  echo "skipped: ${launcher[0]} is not installed"
  exit 77
fi

# On one processor each device has one thread, alone and in a process of its own: oneDNN's products may have
# other bits with another number of threads.
pin=()
if command -v taskset >/dev/null; then
  pin=(taskset -c "$(taskset -pc $$ | sed 's/.*: *//; s/[-,].*//')")
fi
small=(--steps 12 --exact)
${pin[@]+"${pin[@]}"} "$train_text" "$text" --devices cpu:2 "${small[@]}" >"$dir/alone"
both ${pin[@]+"${pin[@]}"} "$train_text" "$text" --devices cpu:1 "${small[@]}" ||
  complain "train_text: $(cat "$dir/err")"
cmp "$dir/alone" "$dir/out" || complain "two processes of train_text are not one"

# Each process has files of its own, and all name the same one as the slowest.
both "$train_text" "$text" --devices cpu:1 --steps 12 --metrics "$dir/run" --trace "$dir/trace.json" || complain "files"
for p in 0 1; do
  (($(grep -c "\"process\": $p, \"busy_seconds\": [0-9]" "$dir/run.$p.jsonl") == 12)) || complain "lines of process $p"
  grep -q "\"devices\": \[{\"rank\": $p, " "$dir/run.$p.jsonl" || complain "no rank in the lines of process $p"
  grep -qx "evenkeel_step{process=\"$p\"} 12" "$dir/run.$p.prom" || complain "Prometheus of process $p"
  grep -qF "\"rank $p, cpu:0\"" "$dir/trace.$p.json" || complain "trace of process $p"
  grep -o '"slowest_process.*, "devices' "$dir/run.$p.jsonl" >"$dir/slowest.$p"
done
cmp "$dir/slowest.0" "$dir/slowest.1" || complain "the processes name another slowest one"
[[ ! -e $dir/run.jsonl && ! -e $dir/trace.json ]] || complain "a file without a number"

small=(--layers 1 --width 16 --heads 2 --seq 16 --vocab 300 --batch 7 --steps 2 --warmup 1 -o csv)
both "$bench" memory "${small[@]}" --devices cpu:2 --modes sharded --snapshot "$dir/now.pickle" || complain "snapshot"
[[ -s $dir/now.0.pickle && -s $dir/now.1.pickle ]] || complain "snapshots: $(ls "$dir")"
both "$bench" memory "${small[@]}" --devices cpu:2 || complain "memory: $(cat "$dir/err")"
[[ $(grep -c '^mode' "$dir/out") == 1 ]] || complain "not one process prints"
[[ $(cut -d, -f1 "$dir/out" | tail -n +2 | sort -u | wc -l) == 4 ]] || complain "not the modes of several processes"

# The results of several processes have what each had and did: 7 samples on four devices are 2, 2, 2 and 1. Those of
# one process have nothing of it.
"$bench" step "${small[@]}" -o json --devices cpu:2 --modes replicated --report "$dir/one.html" >"$dir/one"
! grep -q -e '"processes"' -e slowest "$dir/one" "$dir/one.html" || complain "one process is a world"
for command in step memory; do
  both "$bench" "$command" "${small[@]}" -o json --devices cpu:2 --modes replicated,sharded --report "$dir/page.html" ||
    complain "$command: $(cat "$dir/err")"
  ! command -v python3 >/dev/null || python3 - "$dir/out" "$(hostname)" <<'END' || complain "processes of $command: $(cat "$dir/out")"
import json, sys
for run in json.load(open(sys.argv[1]))["runs"]:
    processes = run["processes"]
    assert [(p["process"], p["host"]) for p in processes] == [(0, sys.argv[2]), (1, sys.argv[2])]
    assert [p["rows"] for p in processes] == [4, 3]
    assert [[d["rank"] for d in p["devices"]] for p in processes] == [[0, 1], [2, 3]]
    assert all(d["name"] == f"cpu:{i}" for p in processes for i, d in enumerate(p["devices"]))
    assert all(p["peak_bytes"] == max(d["peak_bytes"] for d in p["devices"]) > 0 for p in processes)
    assert all(p["busy_seconds"] > 0 for p in processes)
    assert processes[run["slowest_process"]]["busy_seconds"] == max(p["busy_seconds"] for p in processes)
    if isinstance(run["devices"], list):  # of `memory`: those of process 0, as its ledgers have them
        assert [d["peak_bytes"] for d in run["devices"]] == [d["peak_bytes"] for d in processes[0]["devices"]]
END
  (($(grep -o 'data-path="runs.[01].processes.[01].busy_seconds"' "$dir/page.html" | sort -u | wc -l) == 4)) ||
    complain "the page of $command draws no processes"
  (($(grep -o ', the slowest,' "$dir/page.html" | wc -l) >= 2)) || complain "the page of $command names no slowest process"
done

code=0
both "$bench" step "${small[@]}" --devices cpu:1 --scatter sizes=7 || code=$?
((code != 0)) && grep -q -- '--scatter sizes=7 is for the devices of one process' "$dir/err" ||
  complain "--scatter: $code, $(cat "$dir/err")"

if ((${#launcher[@]} == 0)); then
  stop_after=3 both "$train_text" "$text" --devices cpu:1 --steps 100000 --exact || complain "stop: $(cat "$dir/err")"
  said=$(tail -n 1 "$dir/out.0")
  [[ $said == "stopped after step $(grep -c '^step' "$dir/out.0") of 100000" ]] || complain "SIGTERM: $said"
fi
exit "$failed"
