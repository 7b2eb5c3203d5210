# shellcheck shell=bash
# bench_calls.sh - groups of check_bench.sh about the command line, files and terminals. To be sourced.
# shellcheck disable=SC2154 # variables of check_bench.sh
# shellcheck disable=SC2317 # functions are called by the group's name
# shellcheck disable=SC2086 # loop counters need no quotes

group_usage() {
  refuses 2 subcommand
  expect 2 nonsense
  expect 2 --nonsense
  local -a bad=(
    '--batch 0' '--batch -1' '--batch 1.5' '--batch 99999999999999999999' '--steps 0' '--steps x'
    '--warmup -1' '--layers -1' '--width 0' '--heads 0' '--heads 3 --width 16' '--seq 0'
    '--vocab 0' '--vocab 2147483648' '--seed -1' '--optimizer adam' '--preset large' '--modes x'
    '--modes gather,gather' '--modes ,' '--scatter odd' '--scatter sizes=1,2'
    '--devices cpu:4 --scatter sizes=1,1,1,1' '--devices cpu:0' '--devices cpu:65' '--devices gpu'
    '--devices cpu:2@' '--devices cpu:2@0' '--devices ,' '--devices cpu:1 --devices cpu:2'
    '-o xml' '--fail-above x' '--fail-above -1' '--threads -1' 'stray' '--data' '--no-such-flag')
  local line
  for line in "${bad[@]}"; do refuses 2 '' memory --batch 6 --steps 1 $line; done
  while IFS='|' read -r line word; do refuses 2 "$word" $line; done <<'EOF'
memory --preset gpt5|llama-70b, gpt3-175b, resnet18, resnet50
memory --preset gpt2-1.5|; did you mean gpt2-1.5b?
memory --modes gather,shard|did you mean sharded?
memory --modes gather,gather|"gather" is given twice
step --recompute squrt|did you mean sqrt?
step --recompute every=0|whole number above 0
step --precision f23|did you mean f32?
step --scatter chunks|did you mean chunk?
step --loss fuse|did you mean fused?
step --optimizer adam|did you mean adamw?
step -o cvs|did you mean csv?
tecniques|did you mean techniques?
EOF
  expect 2 devices --batch 3
  refuses 2 "cuda" memory "${small[@]}" --devices cpu:2 --tf32
  expect 0 memory "${small[@]}" --devices plan:2 --modes balanced --tf32
  expect 0 memory "${small[@]}" --devices cpu:2 --modes balanced --deterministic
  local command
  for command in memory max-batch step devices; do
    expect 0 $command --help
    grep -q -- '--export-json' "$dir/out" || complain "no help for $command"
  done
  expect 0 --help
  has 'Exit codes' "(no exit codes in the help)"
  expect 0 --version
  grep -q '^evenkeel-bench [0-9.]* (libevenkeel [0-9.]*)$' "$dir/out" || complain "no versions"
  expect 1 memory "${small[@]}" --devices cuda
  # More than any machine has: refused, not crashed.
  expect 5 memory --layers 1 --width 1048576 --heads 1 --vocab 2147483647 --batch 1 --seq 1 \
    --modes balanced --devices cpu:1@1GiB
  expect 5 memory --layers 1 --width 16 --heads 2 --vocab 300 --batch 2147483647 --seq 16777216 \
    --modes balanced --devices cpu:1@1GiB
}

group_data() {
  printf 'abc' >"$dir/short"
  : >"$dir/empty"
  printf '\xff\xfe\x00\x01binary\x00' >"$dir/binary"
  head -c 100000 /dev/urandom >"$dir/random"
  expect 0 memory "${small[@]}" --devices cpu:2 --data "$dir/short" "$dir/binary" -o json
  json config.data#=2 config.data_bytes=14
  expect 0 memory "${small[@]}" --devices cpu:2 --modes gather --data "$dir/random" --vocab 50000
  refuses 1 "cannot open" memory "${small[@]}" --data "$dir/missing"
  refuses 1 "is empty" memory "${small[@]}" --data "$dir/short" "$dir/empty"
  refuses 1 "directory" memory "${small[@]}" --data "$dir"
  refuses 1 "cannot write" memory "${small[@]}" --export-json "$dir/no/such/folder"
}

# Files are there whole or not at all; nothing waits for a reader that is not there.
group_output() {
  local code=0 line both reader run=(memory "${small[@]}" --devices cpu:2 --modes gather)
  # A pipe without a reader: refused before the run. One with a reader gets all of it.
  mkfifo "$dir/pipe"
  for line in --export-json --export-csv --timeline --report; do
    refuses 1 "no process reads this pipe" "${run[@]}" $line "$dir/pipe"
  done
  expect 1 devices --export-json "$dir/pipe"
  # The reader is there before the program, however late its process begins; its end is that of the last writer.
  exec {both}<>"$dir/pipe"
  exec {reader}<"$dir/pipe"
  cat <&"$reader" >"$dir/read" {both}>&- &
  expect 0 "${run[@]}" --export-json "$dir/pipe"
  exec {both}>&- {reader}<&-
  wait $!
  same "what a pipe's reader gets" "$("$read_json" "$dir/read" runs.0.mode)" gather

  # Ctrl-C: what was there is there, and nothing else.
  mkdir "$dir/folder"
  printf 'old' >"$dir/folder/old"
  chmod 640 "$dir/folder/old"
  timeout --preserve-status -s INT 1 "$bench" memory --steps 1000000 --export-json \
    "$dir/folder/new" --report "$dir/folder/page" --export-csv "$dir/folder/old" >"$dir/out" 2>"$dir/err" || code=$?
  same "exit code of Ctrl-C" "$code" 130
  same "files after Ctrl-C" "$(ls -A "$dir/folder")" old
  same "the old file after Ctrl-C" "$(cat "$dir/folder/old")" old

  # The new file takes the place of the old one, with its rights, behind a link as well.
  ln -s old "$dir/folder/link"
  expect 0 "${run[@]}" --export-csv "$dir/folder/link"
  same "lines behind the link" "$(wc -l <"$dir/folder/old")" 3
  same "rights" "$(stat -c %a "$dir/folder/old")" 640
  same "files" "$(cd "$dir/folder" && printf '%s ' *)" "link old "
  [[ -L $dir/folder/link ]] || complain "the link is a file now"
  (cd "$dir/folder" && "$bench" devices --export-csv here >/dev/null)
  [[ -s $dir/folder/here ]] || complain "no file in the working folder"
  for line in "$dir" "$dir/folder/" "$dir/none/file" "$dir/folder/here/file" ""; do
    refuses 1 "cannot write" "${run[@]}" --export-json "$line"
  done

  # Two outputs in one file: refused before the run, also under another name.
  ln -s "$dir/folder" "$dir/other"
  for line in "$dir/folder/two $dir/folder/two" "$dir/folder/two $dir/other/two" \
    "$dir/folder/here $dir/folder/../folder/here"; do
    refuses 1 "--export-json and --report name the same file" \
      "${run[@]}" --export-json "${line% *}" --report "${line#* }"
    refuses 1 "--export-csv and --snapshot name the same file" \
      "${run[@]}" --snapshot "${line% *}" --export-csv "${line#* }"
  done
  [[ ! -e $dir/folder/two ]] || complain "a file that was refused is there"

  # What a killed run of the same number has left does not stop this one, and stays.
  bash -c 'for i in 0 1; do : >"$1/.evenkeel-bench.$$.$i"; done; exec "$2" devices --export-csv "$1/late"' \
    - "$dir/folder" "$bench" >/dev/null 2>"$dir/err" || complain "a file that was left: $(cat "$dir/err")"
  [[ -s $dir/folder/late ]] || complain "no file beside one that was left"
  rm "$dir"/folder/.evenkeel-bench.*

  # Standard output by its name, as a file and as a pipe.
  "$bench" devices -o csv --export-csv /dev/stdout >"$dir/out"
  same "times that standard output got it" "$(grep -c '^cpu,yes,' "$dir/out")" 2
  same "times that a pipe got it" "$("$bench" devices -o csv --export-csv /dev/stdout | grep -c '^cpu,yes,')" 2

  [[ -e /dev/full ]] || return 0
  for line in devices --help --version "memory --help" --usage; do
    code=0
    "$bench" $line >/dev/full 2>"$dir/err" || code=$?
    same "exit code of $line to a full disk" "$code" 1
    says "cannot write standard output"
    ! grep -q Success "$dir/err" || complain "the reason of a failure: $(cat "$dir/err")"
  done
  expect 1 devices --export-json /dev/full
  says "cannot write /dev/full"
}

# A trace of the measured steps: JSON, with all devices, and no more time in it than there was.
group_trace() {
  local command option trace=$dir/trace.json steps=6
  for command in memory step; do
    expect 0 $command "${small[@]}" --devices cpu:2 --modes sharded --steps $steps -o json --trace "$trace"
    same "an event" "$("$read_json" "$trace" traceEvents.1.args.name)" cpu:0
    same "nothing dropped" "$("$read_json" "$trace" otherData.spans_dropped)" 0
    (($("$read_json" "$trace" 'traceEvents#') > 200)) || complain "hardly an event in the trace of $command"
    same "updates" "$(grep -c '"name":"update"' "$trace")" $((2 * steps))
    # Of device 0 the model, the loss and the update; one after the other, so that times add up.
    holds "time in the trace of $command" "$(sed -nE \
      's/.*"name":"(gpt|cross_entropy|update)".*"pid":1,.*"dur":([0-9.]+).*/\2/p' "$trace" |
      awk '{ sum += $1 } END { print sum * 1e-6 }') <= $steps * {runs.0.step_seconds.max}"
    rm "$trace"
  done
  # Which module holds what, over a step or when memory ran out.
  expect 0 step "${small[@]}" --devices cpu:2 --modes sharded --snapshot "$trace"
  (($("$read_json" "$trace" 'device_traces.1#') > 50)) || complain "hardly an event in the snapshot"
  grep -q '"filename":"blocks.0.attention.qkv","line":0,"name":"forward"' "$trace" || complain "no module in the snapshot"
  ! grep -q '"action":"oom"' "$trace" || complain "memory ran out"
  rm "$trace"
  expect 5 memory "${small[@]}" --devices cpu:2@64KiB --modes sharded --snapshot "$trace"
  says "out of memory"
  grep -q '"action":"oom"' "$trace" || complain "no event of what found no room"
  expect 0 memory "${small[@]}" --devices plan:2 --modes sharded --snapshot "$dir/as.pickle"
  same "a pickle of protocol 2" "$(head -c 2 "$dir/as.pickle" | od -An -tx1)" " 80 02"
  rm "$dir/as.pickle"
  expect 0 memory "${small[@]}" --devices plan:2 --modes sharded --trace "$trace"
  "$read_json" "$trace" traceEvents.0.args.version >/dev/null || complain "no JSON from plan"
  for line in "memory --devices cpu:2" "step --modes gather --devices cpu:1 --devices cpu:2" \
    "techniques --devices cpu:2"; do
    for option in --trace --snapshot; do
      refuses 2 "$option" $line "${small[@]}" $option "$trace"
    done
  done
  for line in /dev/stdout "$dir" "$dir/none/trace"; do
    for option in --trace --snapshot; do
      refuses 1 '' memory "${small[@]}" --devices cpu:2 --modes gather $option "$line"
    done
  done
  [[ $(ls "$dir") != *.new* ]] || complain "a file left behind"
}

# bench/run as in a fresh clone, with a build that does nothing: what it says is not on stdout.
group_run() {
  local source
  source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  mkdir -p "$dir/bench" "$dir/cmake" "$dir/build/release/bench" "$dir/bin"
  cp "$source/bench/run" "$dir/bench"
  cp "$source/cmake/packages.sh" "$dir/cmake"
  ln -s "$bench" "$dir/build/release/bench/evenkeel-bench"
  printf '#!/bin/sh\n' >"$dir/bin/cmake"
  chmod +x "$dir/bin/cmake"
  PATH=$dir/bin:$PATH "$dir/bench/run" devices -o json >"$dir/out" 2>"$dir/err" ||
    complain "bench/run ends with $?"
  load
  says "[setup] building"
  says "[setup] with charts: $dir/build/report.html"
  json command=devices
  grep -q '</html>' "$dir/build/report.html" || complain "no page"
  # Its exit code, another page, and none where nothing was measured.
  local code=0
  rm "$dir/build/report.html"
  PATH=$dir/bin:$PATH "$dir/bench/run" memory --batch x >"$dir/out" 2>"$dir/err" || code=$?
  same "exit code" "$code" 2
  PATH=$dir/bin:$PATH "$dir/bench/run" devices --report "$dir/other.html" >"$dir/out" 2>"$dir/err"
  grep -q '</html>' "$dir/other.html" || complain "no page of another name"
  [[ ! -e $dir/build/report.html ]] || complain "a page that was not asked for"
}

# A run on a terminal: stderr is one, stdout a file.
on_terminal() { # ARGUMENT...
  local words
  words=$(printf '%q ' "$bench" "$@")
  script -qec "$words >$(printf '%q' "$dir/out")" /dev/null </dev/null >"$dir/err" || true
  load
}

group_terminal() {
  local code=0 i
  local -a words
  timeout --preserve-status -s INT 1 "$bench" memory --steps 1000000 >"$dir/out" 2>"$dir/err" ||
    code=$?
  same "exit code of Ctrl-C" "$code" 130
  silent
  if ! command -v script >/dev/null; then
    printf 'check_bench: no script(1); the progress bar is not looked at\n'
    return
  fi
  on_terminal memory "${small[@]}" --devices cpu:2 -o json
  json command=memory
  grep -q 'gather on cpu:2' "$dir/err" || complain "no progress bar on a terminal"
  grep -qF '] 0:0' "$dir/err" || complain "no time in the progress bar"
  grep -qF $'\033[32m' "$dir/err" || complain "no colour on a terminal"
  tail -c 4 "$dir/err" | grep -qF $'\033[K' || complain "the bar is left behind"
  NO_COLOR=1 on_terminal memory "${small[@]}" --devices cpu:2 -o json
  ! grep -qE $'\033\\[[0-9;]*m' "$dir/err" || complain "colour in spite of NO_COLOR"
  for i in 'memory' 'step' 'max-batch' 'techniques' 'fit' 'plan' 'devices'; do
    words=("$i")
    [[ $i == devices ]] || words+=("${small[@]}" --devices plan:2@1GiB --preset gpt2-1.5b)
    [[ $i != max-batch ]] || words=("$i" --devices plan:2@1GiB)
    [[ $i != plan ]] || words=(plan "${small[@]}" --world 16x8 --link 25GB/s,5us)
    COLUMNS=80 expect 0 "${words[@]}"
    ! grep -E '.{81}' "$dir/out" >&2 || complain "$i: a line of more than 80 columns"
    COLUMNS=80 expect 0 "${words[@]}" --wide
    cp "$dir/out" "$dir/wide"
    env -u COLUMNS "$bench" "${words[@]}" -q >"$dir/out" 2>/dev/null
    [[ $i == step ]] || cmp "$dir/wide" "$dir/out" || complain "$i: no terminal, and not all columns"
  done
  script -qec "stty cols 60; $(printf '%q' "$bench") fit --devices plan:2@1GiB -q" /dev/null \
    </dev/null | tr -d '\r' >"$dir/out"
  has 'shown by --wide' "(the terminal's width is not asked for)"
  ! grep -E '^    .{77}' "$(dirname "${BASH_SOURCE[0]}")/../../docs/benchmark.md" >&2 ||
    complain "an example in docs/benchmark.md has more than 80 columns"
  on_terminal memory "${small[@]}" --devices cpu:2 -o json --quiet
  [[ ! -s $dir/err ]] || complain "--quiet is not quiet"
}
