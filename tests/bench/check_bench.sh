#!/usr/bin/env bash
# check_bench.sh BENCH READ_JSON GROUP: runs evenkeel-bench in small and looks at what comes out.
# GROUP is one of the functions group_* below; one file, because all of them speak in the same few words.
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

silent() { # on stdout
  [[ ! -s $dir/out ]] || complain "data on standard output although it failed"
}

# find PATH: `found` is the value of the JSON on stdout; nothing, which equals nothing, if it is not there. The
# script reads thousands of values, and $(value PATH) would begin a process for each.
find() {
  found=${values[$1]-}
  [[ -n ${values[$1]+set} ]] || printf 'no %s in the JSON\n' "$1" >&2
}

value() { # PATH
  local found
  find "$1"
  printf '%s\n' "$found"
}

fill() { # TEXT: `filled` is the text with the values of the JSON where it has {PATH}
  local found
  filled=$1
  while [[ $filled =~ \{([^{}]+)\} ]]; do
    find "${BASH_REMATCH[1]}"
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
    find "${pair%%=*}"
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

group_precision() {
  local i types=(f32 bf16 f16)
  expect 0 memory "${small[@]}" --devices cpu:2 --precision f32,bf16,f16 --modes balanced,sharded -o json
  same runs "$(value 'runs#')" 6
  for i in 0 1 2 3 4 5; do
    json "runs.$i.precision=${types[i / 2]}" "runs.$i.mode=$( ((i % 2)) && echo sharded || echo balanced)"
  done
  same 'no loss scale' "$(value runs.0.loss_scale) $(value runs.2.loss_scale)" "1 1"
  same 'the loss scale of f16' "$(value runs.4.loss_scale) $(value runs.5.skipped_steps)" "65536 0"
  same 'no copies in f32' "$(value runs.0.devices.0.categories_at_peak.copies)" 0
  i=devices.1.categories_at_peak
  holds 'half the outputs' "{runs.2.$i.outputs} < 0.52 * {runs.0.$i.outputs}"
  holds 'less of activations' "{runs.3.$i.activations} <= 0.6 * {runs.1.$i.activations}"
  holds 'losses alike' "({runs.2.losses.0} / {runs.0.losses.0} - 1) ^ 2 < 1e-4"
  for i in table md csv; do
    expect 0 memory "${small[@]}" --devices cpu:2 --precision bf16,f16 --modes balanced -o $i
    grep -q f16 "$dir/out" || complain "no precision in $i"
  done
  expect 0 memory "${small[@]}" --devices cpu:2 --precision f32,bf16 --modes balanced -o table
  grep -q 'balanced, f32' "$dir/out" || complain 'f32 has no name beside bf16'
  expect 0 memory "${small[@]}" --devices cpu:2 --modes balanced -o table
  ! grep -q 'balanced, f32' "$dir/out" || complain 'f32 is named where there is nothing else'
  expect 0 step "${small[@]}" --devices cpu:2 --precision f32,bf16 --modes balanced --report "$dir/a.html" -o json
  same precision "$(value runs.1.precision)" bf16
  grep -q 'cpu:2, bf16' "$dir/a.html" || complain 'no precision in the report'
  expect 0 max-batch --layers 1 --width 16 --heads 2 --seq 16 --vocab 300 --devices plan:2@256KiB --precision f32,bf16 --modes balanced -o json
  holds 'a larger batch' "{runs.1.planned_max_batch} > 1.5 * {runs.0.planned_max_batch}"
  expect 0 fit "${small[@]}" --devices plan:2@1GiB --precision bf16 -o json
  same precision "$(value choices.0.precision)" bf16
  expect 0 fit "${small[@]}" --devices plan:2@1GiB --modes sharded --precision f32,bf16 -o json
  same 'both precisions' "$(for i in 0 1 2 3; do value choices.$i.precision; done | sort -u | xargs)" 'bf16 f32'
  expect 0 memory "${small[@]}" --devices cpu:2 --precision f32,bf16 --gradient-type bf16 --bucket-bytes 8000 -o json
  json config.gradient_type=bf16 config.bucket_bytes=8000
  expect 0 fit "${small[@]}" --devices plan:2@1GiB --gradient-type f16 -o json
  for i in '--gradient-type tf32' '--gradient-type f16 --precision f32,bf16' '--bucket-bytes 4MiB'; do
    refuses 2 "${i%% *}" step "${small[@]}" --devices cpu:2 $i
  done
  expect 0 fit "${small[@]}" --devices plan:2@1GiB --modes sharded --precision f32,tf32 -o json
  same 'tf32 beside f32' "$(for i in 0 1 2 3; do value choices.$i.precision; done | sort -u | xargs)" 'f32 tf32'
  for i in bf17 f32,f32 '' ,; do
    refuses 2 '--precision: ' memory "${small[@]}" --devices cpu:2 --precision "$i"
  done
  expect 2 memory "${small[@]}" --devices cpu:2 --precision bf16 --tf32
  expect 2 memory "${small[@]}" --devices cpu:2 --precision f32,tf32
  expect 0 memory "${small[@]}" --devices plan:2 --modes balanced --precision tf32,bf16
}

group_memory() {
  local i k c sum
  expect 0 memory "${small[@]}" --devices cpu:3 -o json
  [[ ! -s $dir/err ]] || complain "something on stderr although it is no terminal"
  json schema=1 command=memory config.vocab=300 "runs#=${#modes[@]}"
  for i in "${!modes[@]}"; do
    json "runs.$i.mode=${modes[i]}" "runs.$i.devices#=3" "runs.$i.losses#=2"
    for k in 0 1 2; do
      json "runs.$i.devices.$k.peak_bytes={runs.$i.devices.$k.planned_peak_bytes}"
      sum=$(value runs.$i.devices.$k.unused_at_peak_bytes)
      for c in "${categories[@]}"; do
        sum=$((sum + $(value runs.$i.devices.$k.categories_at_peak.$c)))
      done
      same "sum of the categories" "$sum" "$(value runs.$i.devices.$k.peak_bytes)"
    done
    holds "evenness" "{runs.$i.max_over_min} >= {runs.$i.max_over_mean} && {runs.$i.max_over_mean} >= 1"
    holds "tokens per second" "{runs.$i.tokens_per_second} > 0"
    k=runs.$i.step_seconds
    holds "step" "{$k.min} <= {$k.median} && {$k.median} <= {$k.max}"
    holds "losses agree" "({runs.$i.losses.1} - {runs.0.losses.1}) ^ 2 < 1e-8"
  done
  # The point of it all.
  expect 0 memory "${small[@]}" --vocab 4000 --devices cpu:3 -o json --modes gather,balanced
  holds "gather is uneven" "{runs.0.devices.0.peak_bytes} > {runs.1.devices.0.peak_bytes}"

  local format
  for format in table md csv; do
    expect 0 memory "${small[@]}" --devices cpu:2 --modes balanced,sharded -o $format
    grep -q sharded "$dir/out" || complain "no mode in format $format"
  done
  same "lines of CSV" "$(wc -l <"$dir/out")" 5
  expect 0 memory "${small[@]}" --devices cpu:2 --modes gather --export-json "$dir/a.json" \
    --export-csv "$dir/a.csv" --timeline "$dir/t.csv"
  same "exported mode" "$("$read_json" "$dir/a.json" runs.0.mode)" gather
  same "exported CSV" "$(wc -l <"$dir/a.csv")" 3
  # A page: what every device held over a step is in the JSON, and every peak is as it was before.
  same "no timeline" "$("$read_json" "$dir/a.json" runs.0.timeline)" null
  expect 0 memory "${small[@]}" --devices cpu:2 -o json --timeline "$dir/t.csv"
  local -a without=()
  for i in 0 1 2 3; do without+=("$(value runs.$i.devices.0.peak_bytes)"); done
  cp "$dir/t.csv" "$dir/without.csv"
  expect 0 memory "${small[@]}" --devices cpu:2 -o json --report "$dir/a.html" --timeline "$dir/t.csv" \
    --micro-batches 2
  expect 0 memory "${small[@]}" --devices cpu:2 -o json --report "$dir/a.html" --timeline "$dir/t.csv"
  same "lines of the other timeline" "$(wc -l <"$dir/t.csv")" "$(wc -l <"$dir/without.csv")"
  for i in 0 1 2 3; do
    json "runs.$i.devices.0.peak_bytes=${without[i]}" "runs.$i.timeline.phases.0.name=forward"
    json "runs.$i.timeline.devices#=2"
    k=runs.$i.timeline.devices.1
    json "$k.bytes#={$k.seconds#}"
    holds "points" "{$k.bytes#} > 10"
  done
  tail -n 1 "$dir/a.html" | grep -q '</html>' || complain "the page has no end"
  (($(wc -l <"$dir/t.csv") > 20)) || complain "no timeline"

  # The same bits on any number of devices, and what they cost.
  local losses=''
  for k in 1 2 3; do
    expect 0 memory "${small[@]}" --devices cpu:$k -o json --reproducible=4
    same grains "$(value config.reproducible)" 4
    for i in 0 1 2 3; do
      [[ -n $losses ]] || losses=$(value runs.0.losses.1)
      same "loss of ${modes[i]} on $k devices" "$(value runs.$i.losses.1)" "$losses"
      holds "its cost" "{runs.$i.without.largest_peak_bytes} > 0 && {runs.$i.without.tokens_per_second} > 0"
    done
  done
  expect 0 memory "${small[@]}" --devices cpu:2 --reproducible
  grep -q 'what that costs' "$dir/out" || complain "no table of what it costs"
  expect 0 memory "${small[@]}" --devices cpu:2
  ! grep -q 'what that costs' "$dir/out" || complain "a cost of nothing"

  # Odd cuts of the batch, more devices than samples, both optimizers, kept outputs, one device.
  expect 0 memory "${small[@]}" --devices cpu:3 --scatter sizes=1,5,0
  expect 0 memory "${small[@]}" --devices cpu:3 --scatter weights=1,2,0.5
  expect 0 memory "${small[@]}" --devices cpu:4 --scatter chunk --batch 9
  expect 0 memory "${small[@]}" --devices cpu:4 --batch 2 --optimizer sgd
  expect 0 memory "${small[@]}" --devices cpu:2 --keep-outputs
  expect 0 memory "${small[@]}" --devices cpu:4 --threads 3 --vocab 4000 --steps 9
  # A fused loss: the same losses, planned to the byte, and nothing to keep.
  expect 0 memory "${small[@]}" --devices cpu:3 -o json --no-keep-outputs
  same "whole loss" "$(value config.loss)" whole
  local whole_loss
  whole_loss=$(value runs.0.losses.1)
  expect 0 memory "${small[@]}" --devices cpu:3 -o json --loss fused
  json config.loss=fused config.keep_outputs=false
  for i in 0 1 2 3; do
    json "runs.$i.devices.0.peak_bytes={runs.$i.devices.0.planned_peak_bytes}"
    holds "a fused loss is the same" "({runs.$i.losses.1} - $whole_loss) ^ 2 < 1e-8"
  done
  expect 0 memory --preset lm-40k --devices plan:4 --loss fused -o json
  for i in 0 1 2 3; do
    for k in 0 3; do
      c=devices.$k.categories_at_peak
      holds "at most 64 MiB of logits" "{runs.$i.$c.outputs} + {runs.$i.$c.loss} <= 64 * 1024 ^ 2"
    done
  done
  refuses 2 "no outputs to keep" memory "${small[@]}" --loss fused --keep-outputs
  refuses 2 "unknown loss \"half\"; expected whole, fused" memory "${small[@]}" --loss half
  expect 0 memory "${small[@]}" --devices cpu --vocab 1 --batch 1 --layers 0
  expect 0 memory --steps 1 --preset quick --vocab 64 --devices cpu:2 -o json
  same "a flag before the preset" "$(value config.steps)" 1

  # Exit code 4: one device is twice the mean of two when the other one has nothing.
  expect 4 memory "${small[@]}" --devices cpu:4 --modes balanced --fail-above 1.0001
  says "mode balanced"
  expect 0 memory "${small[@]}" --devices cpu:4 --modes gather --fail-above 1.0001
  expect 0 memory "${small[@]}" --devices cpu:4 --fail-above 4
  # Exit code 5, with the need beside it.
  expect 5 memory "${small[@]}" --devices cpu:2@64KiB -o json
  says "does not fit"
  same "no peak" "$(value runs.0.devices.0.peak_bytes)" null
  holds "a plan" "{runs.0.devices.0.planned_peak_bytes} > 65536"
  same "no losses" "$(value runs.0.losses)" null
  # The parameters of the models that the presets are named after; the first has fewer positions.
  for i in gpt2-124m=123751680 gpt2-355m=354823168 gpt2-774m=774030080 gpt2-1.5b=1557611200 \
    llama-7b=6583623680; do
    expect 0 memory --preset ${i%=*} --devices plan:8@80GiB --modes sharded -o json
    json "config.preset=${i%=*}" "runs.0.devices.0.categories_at_peak.parameters=$((4 * ${i#*=}))"
  done
  for i in llama-160m=162417408 llama-1b=1235814400 llama-8b=8030261248 llama-70b=70553706496; do
    expect 0 memory --preset ${i%=*} --devices plan:8@9TiB --modes sharded -o json
    same "bytes of ${i%=*}" "$(value runs.0.devices.0.categories_at_peak.parameters)" $((4 * ${i#*=}))
  done
  # A Llama of flags; the plan is right to the byte, or the exit code is 1.
  expect 0 memory "${small[@]}" --hidden 48 --kv-heads 1 --devices cpu:2 --modes balanced,fully-sharded -o json
  json config.kv_heads=1
  holds "a Llama's loss" "{runs.1.losses.0} > 1"
  refuses 2 "expected a divisor of --heads" memory "${small[@]}" --kv-heads 1
  # Images: 11,183,582 and 25,610,205 parameters and running statistics, and what aligns them;
  # 16 x 480 x 480 x 150 numbers of outputs on device 0.
  for i in resnet18=11183936 resnet50=25611072; do
    expect 0 memory --preset ${i%=*} --devices plan:2 --modes sharded -o json
    same "bytes of ${i%=*}" "$(value runs.0.devices.0.categories_at_peak.parameters)" $((4 * ${i#*=}))
  done
  expect 0 memory --preset fcn50 --devices plan:4 --modes gather,balanced -o json
  json runs.0.devices.0.categories_at_peak.outputs=2211840000
  json runs.1.devices.0.categories_at_peak.outputs=552960000
  expect 0 memory --preset resnet18 --image 8 --width 8 --batch 4 --devices cpu:2 --modes gather,sharded -o json
  holds "a ResNet's loss" "{runs.1.losses.0} > 0"
  refuses 2 "pictures have no --seq, --heads or --hidden" memory --preset resnet18 --seq 8
  refuses 2 "only language models have it" memory --preset resnet18 --loss fused
  expect 5 memory --preset gpt3-175b --devices plan:8@80GiB -o json
  holds "GPT-3" "{runs.3.devices.7.planned_peak_bytes} > 80 * 1024 ^ 3"
  # plan: the same peaks and no losses.
  expect 0 memory "${small[@]}" --devices plan:3 -o json
  json runs.0.losses.0=null runs.0.tokens_per_second=null
  local planned
  planned=$(value runs.1.devices.0.peak_bytes)
  expect 0 memory "${small[@]}" --devices cpu:3 -o json
  same "plan" "$(value runs.1.devices.0.peak_bytes)" "$planned"
  # A cap of exactly the peak is enough, and one unit less is not.
  expect 0 memory "${small[@]}" --devices "cpu:3@${planned}B" --modes balanced
  expect 5 memory "${small[@]}" --devices "cpu:3@$((planned - 256))B" --modes balanced
}

# Less memory: the same losses, and the plan is right to the byte (else exit code 1).
group_less() {
  local i what plain
  local -a deep=(--layers 5 --width 16 --heads 2 --seq 16 --vocab 300 --batch 7 --steps 2 --warmup 1)
  local -a losses=() activations=() peaks=()
  expect 0 memory "${deep[@]}" --devices cpu:2 -o json
  for i in 0 1 2 3; do
    losses+=("$(value runs.$i.losses.1)")
    activations+=("$(value runs.$i.devices.1.categories_at_peak.activations)")
    peaks+=("$(value runs.$i.devices.0.peak_bytes)")
  done
  for what in cheap every=2 sqrt all; do
    expect 0 memory "${deep[@]}" --devices cpu:2 --recompute $what -o json
    same config "$(value config.recompute)" $what
    for i in 0 1 2 3; do
      same "loss with $what" "$(value runs.$i.losses.1)" "${losses[i]}"
      holds "activations with $what" "{runs.$i.devices.1.categories_at_peak.activations} < ${activations[i]}"
    done
  done
  for what in 2 3 7 99; do
    expect 0 memory "${deep[@]}" --devices cpu:2 --micro-batches $what -o json
    same config "$(value config.micro_batches)" $what
    for i in 0 1 2 3; do
      holds "loss of $what micro-batches" "({runs.$i.losses.1} - ${losses[i]}) ^ 2 < 1e-10"
      holds "activations of $what micro-batches" "{runs.$i.devices.1.categories_at_peak.activations} < ${activations[i]}"
    done
  done
  expect 0 step "${deep[@]}" --devices cpu:2 --modes sharded --micro-batches 3 --recompute sqrt

  # Below a number of bytes: what is planned is what happens, and what cannot be is said.
  plain=${peaks[3]}
  expect 0 memory "${deep[@]}" --devices cpu:2 --modes sharded --recompute $((plain - 1)) -o json
  holds "a peak below that of plain" "{runs.0.devices.0.peak_bytes} < $plain"
  same loss "$(value runs.0.losses.1)" "${losses[3]}"
  expect 0 memory "${deep[@]}" --devices cpu:2 --modes sharded --recompute "$plain" -o json
  same "plain is enough" "$(value runs.0.devices.0.peak_bytes)" "$plain"
  expect 5 memory "${deep[@]}" --devices cpu:2 --modes sharded --recompute 4KiB -o json
  says 'nothing fits 4.00 KiB'
  for what in '--recompute some' '--recompute every=0' '--recompute 12QiB' '--micro-batches 0' \
    '--micro-batches 2 --scatter sizes=4,3'; do
    expect 2 memory "${deep[@]}" --devices cpu:2 $what
    silent
  done
}

group_techniques() {
  local i
  local -a deep=(--layers 4 --width 16 --heads 2 --seq 16 --vocab 300 --batch 7 --steps 2 --warmup 1)
  expect 0 techniques "${deep[@]}" --devices cpu:2 -o json
  json command=techniques runs#=13 runs.0.technique=plain runs.12.mode=fully-sharded
  json runs.12.technique=fully-sharded
  holds 'state of fully-sharded' "{runs.12.state_bytes} < {runs.0.state_bytes}"
  for i in {0..11}; do
    json "runs.$i.mode=sharded" "runs.$i.peak_bytes=$(value runs.$i.planned_peak_bytes)"
    json "runs.$i.state_bytes=$(value runs.0.state_bytes)"
    holds loss "({runs.$i.loss} - {runs.0.loss}) ^ 2 < 1e-10"
    holds speed "{runs.$i.tokens_per_second} > 0 && {runs.$i.speed_ratio} > 0"
    holds memory "{runs.$i.memory_ratio} <= 1 && {runs.$i.memory_above_state_ratio} <= 1"
  done
  same 'plain to plain' "$(value runs.0.memory_ratio)" 1
  expect 0 techniques "${deep[@]}" --devices plan:2 --modes gather,replicated -o json
  json runs#=26 runs.1.speed_ratio=null runs.1.loss=null runs.13.mode=replicated
  expect 5 techniques "${deep[@]}" --devices cpu:2@300KiB -o json
  same 'no peak' "$(value runs.0.peak_bytes)" null
  for i in table md csv; do expect 0 techniques "${deep[@]}" --devices cpu:2 --steps 1 -o $i; done
  same "lines of CSV" "$(wc -l <"$dir/out")" 14
  for i in '--recompute sqrt' '--micro-batches 2' '--loss fused' '--devices cpu:1 --devices cpu:2'; do
    expect 2 techniques "${deep[@]}" $i
    silent
  done
}

group_fit() {
  local i k
  local -a deep=(--layers 4 --width 16 --heads 2 --seq 16 --vocab 300 --batch 14 --steps 1 --warmup 1)
  expect 0 fit "${deep[@]}" --devices cpu:2@700KiB --measure -o json
  same command "$(value command)" fit
  k=$(value 'choices#')
  holds "choices" "$k >= 2"
  for ((i = 0; i < k; i++)); do
    json "choices.$i.rank=$((i + 1))" "choices.$i.fits=true"
    holds "below the cap" "{choices.$i.planned_peak_bytes} <= 700 * 1024"
    holds "cost" "{choices.$i.predicted_cost} > 0"
    [[ " ${modes[*]} sharded-gradients fully-sharded " == *" $(value choices.$i.mode) "* ]] ||
      complain "a choice of no mode"
  done
  same "measured peak" "$(value choices.0.measured_peak_bytes)" "$(value choices.0.planned_peak_bytes)"
  holds "speed" "{choices.0.tokens_per_second} > 0"
  # What is said is taken by the other subcommands.
  expect 0 memory "${deep[@]}" --devices cpu:2@700KiB --modes "$(value choices.1.mode)" \
    --recompute "$(value choices.1.recompute)" --loss "$(value choices.1.loss)" \
    --micro-batches "$(value choices.1.micro_batches)"

  # A batch of any size takes the same time; here a plan of one micro-batch cannot even be counted.
  expect 0 fit --devices plan:4@8GiB --preset gpt2-124m --modes sharded --batch $((1 << 28)) -o json
  holds "micro-batches" "{choices.0.micro_batches} > 100000"

  expect 5 fit "${deep[@]}" --devices cpu:2@64KiB -o json
  says 'nothing fits; mode'
  says ' KiB'
  same "times that nothing fits" "$(cat "$dir/out" "$dir/err" | grep -c "nothing fits")" 1
  json choices#=1 choices.0.fits=false
  json "choices.0.missing_bytes=$(($(value choices.0.planned_peak_bytes) - 65536))"
  json choices.0.measured_peak_bytes=null
  expect 0 fit "${deep[@]}" --devices plan:8@1GiB --modes sharded,gather --measure -o json
  json choices#=4 choices.0.tokens_per_second=null choices.0.measured_peak_bytes=null
  for i in csv md table; do expect 0 fit "${deep[@]}" --devices plan:2@1GiB -o $i; done
  grep -qE '^rank .* cost ' "$dir/out" || complain "no column cost"
  ! grep -q ' ms' "$dir/out" || complain "a cost is no time"
  expect 0 fit "${deep[@]}" --devices cpu:2@1GiB --measure=1 -o json
  same "one" "$(value choices.1.measured_peak_bytes)" null
  for i in '--recompute sqrt' '--micro-batches 2' '--loss fused' '--scatter chunk' '--keep-outputs' \
    '--measure=0' '--measure=some'; do
    expect 2 fit "${deep[@]}" $i
    silent
  done
}

# Layers of width 16 with vocabulary 300 and 16 positions: 4 * (300 * 16 + 16 * 16 + 2 * 16 + L * (12 * 16 * 16 + 13 * 16))
# bytes of parameters. In 16x8 a process has 8 of 128 samples.
group_plan() {
  local i parameters=$((4 * (5088 + 3280))) k
  local -a deep=("${small[@]}" --batch 130) world=(--world 16x8 --link 25GB/s,5us)
  expect 0 plan "${deep[@]}" "${world[@]}" -o json
  json command=plan config.devices=plan:8 config.processes=16 choices#=7
  for ((i = 0; i < 7; i++)); do
    k=choices.$i
    holds "time" "{$k.predicted_exchange} > 0 && {$k.predicted_exchange} < {$k.predicted_cost}"
    holds "memory" "{$k.planned_peak_bytes} > 0"
  done
  # One device in each process: 2 (P - 1) / P S; parts are cut at 64 bytes.
  expect 0 plan "${small[@]}" --world 4x1 --modes replicated -o json
  holds "bytes" "({choices.0.sent_bytes} - 3 / 2 * $parameters) ^ 2 <= 256 ^ 2"
  # The first process has most samples: 66 of 130 in 2x1, as many as 132.
  expect 0 plan "${deep[@]}" --world 2x1 --modes replicated -o json
  k=$(value choices.0.planned_peak_bytes)
  expect 0 plan "${small[@]}" --batch 65 --world 1x1 --modes replicated -o json
  holds "samples of a process" "$k >= {choices.0.planned_peak_bytes}"
  same "alone" "$(value choices.0.sent_bytes)" 0
  expect 0 plan "${small[@]}" --world 1x2 -o json
  same "all modes in one process" "$(value 'choices#')" 6
  expect 0 plan "${deep[@]}" --world 16x2 --devices plan-cuda:2@1GiB --precision bf16 --recompute all --loss fused \
    --micro-batches 2 -o json
  json choices.0.micro_batches=2 choices.0.recompute=all choices.0.loss=fused
  for i in csv md table; do expect 0 plan "${deep[@]}" "${world[@]}" -o $i; done
  grep -q 'not measured' "$dir/out" || complain "a prediction looks like a measurement"
  expect 5 plan "${deep[@]}" --world 2x2 --devices plan:2@64KiB -o json
  says 'no mode fits'
  same fits "$(value choices.0.fits)" false
  expect 0 fit "${deep[@]}" --world 4x2 --link 1MB/s --devices plan:2@1GiB -o json
  for ((i = 1; i < $(value 'choices#'); i++)); do
    holds "what sends least" "{choices.0.sent_bytes} <= {choices.$i.sent_bytes}"
  done
  same "a number of choices" "$(value choices.0.rank)" 1
  expect 0 fit "${deep[@]}" --world 4x2 --link 1MB/s --devices plan:2@1GiB
  grep -q 'not measured' "$dir/out" || complain "a choice over a world looks like a measurement"
  refuses 2 '--world 16x8' plan "${deep[@]}"
  expect 2 plan "${deep[@]}" --world 4x2 --devices plan:3
  says '2 devices in each process, but plan:3 has 3'
  refuses 1 '3 micro-batches of 2 samples' plan "${deep[@]}" --world 128x1 --micro-batches 3
  while read -r i; do
    expect 2 plan "${deep[@]}" $i
    silent
  done <<'END'
--world 16
--world 0x4
--world 4x2 --link 5us
--world 4x2 --modes gather
--world 4x2 --recompute 1MiB
--world 4x2 --scatter chunk
--world 4x2 --reproducible
--world 4x2 --measure
END
  expect 2 fit "${deep[@]}" --link 1GB/s
  expect 2 fit "${deep[@]}" --world 4x2 --devices cpu:2 --measure
}

group_max_batch() {
  local i one=(--layers 1 --width 16 --heads 2 --seq 16 --vocab 300 --steps 1)
  expect 0 max-batch "${one[@]}" --devices cpu:3@1MiB -o json
  same command "$(value command)" max-batch
  for i in 0 1 2 3; do
    json "runs.$i.mode=${modes[i]}" "runs.$i.max_batch=$(value runs.$i.planned_max_batch)"
    holds "batch" "{runs.$i.max_batch} >= 1"
  done
  holds "balanced trains more" "{runs.1.max_batch} > {runs.0.max_batch}"
  local batch
  batch=$(value runs.1.max_batch)
  expect 0 memory "${one[@]}" --devices cpu:3@1MiB --modes balanced --batch "$batch"
  expect 5 memory "${one[@]}" --devices cpu:3@1MiB --modes balanced --batch "$((batch + 1))"
  expect 0 max-batch "${one[@]}" --devices plan:3@1MiB --modes balanced -o json
  json runs.0.max_batch=null "runs.0.planned_max_batch=$batch"
  expect 0 max-batch "${one[@]}" --devices cpu:2@16KiB --modes gather -o csv
  grep -q '^gather,0,0,' "$dir/out" || complain "a cap that holds nothing: $(cat "$dir/out")"
  refuses 2 "cap" max-batch "${one[@]}" --devices cpu:2
  expect 2 max-batch "${one[@]}" --batch 3
  expect 2 max-batch "${one[@]}" --scatter sizes=1,1,1,1
}

group_step() {
  local part
  expect 0 step "${small[@]}" --devices cpu:1 --devices cpu:2 --modes gather,sharded -o json
  json command=step runs#=4 runs.3.devices=2 runs.3.mode=sharded
  holds "tokens per second" "{runs.3.tokens_per_second} > 0"
  for part in forward loss backward reduce optimizer; do
    holds "$part" "{runs.3.split_seconds.$part} >= 0"
  done
  expect 0 step "${small[@]}" --devices plan:2 --modes balanced -o json
  same "no time" "$(value runs.0.step_seconds.median)" null
  expect 5 step "${small[@]}" --devices cpu:2@64KiB --modes balanced -o table
  says "does not fit"
}

group_devices() {
  expect 0 devices -o json
  json command=devices devices.0.name=cpu
  expect 0 devices
  expect 0 devices -o md
  expect 0 devices -o csv
  grep -q '^cpu,yes,' "$dir/out" || complain "no cpu in the list"
}

# On emulated devices, or real ones: what is measured, planned and said of them.
group_cuda() {
  local i k on=(--devices cuda:0x4@200MiB)
  expect 0 memory "${small[@]}" "${on[@]}" -o json
  for i in 0 1 2 3; do
    for k in 0 1 2 3; do
      json "runs.$i.devices.$k.peak_bytes={runs.$i.devices.$k.planned_peak_bytes}"
    done
    holds "losses agree" "({runs.$i.losses.1} - {runs.0.losses.1}) ^ 2 < 1e-8"
  done
  local peak loss format
  peak=$(value runs.1.devices.0.peak_bytes)
  loss=$(value runs.1.losses.1)
  expect 0 memory "${small[@]}" --devices plan-cuda:4 --modes balanced -o json
  same "plan" "$(value runs.0.devices.0.peak_bytes)" "$peak"
  expect 0 memory "${small[@]}" --devices cpu:4 --modes balanced -o json
  holds "the same training as on cpu" "({runs.0.losses.1} - $loss) ^ 2 < 1e-8"
  for format in table md csv; do
    expect 0 memory "${small[@]}" "${on[@]}" --modes balanced,sharded -o $format
    grep -q sharded "$dir/out" || complain "no mode in format $format"
  done
  expect 5 memory "${small[@]}" --devices "cuda:0x4@$((peak - 256))B" --modes balanced
  says "does not fit"

  expect 0 memory "${small[@]}" "${on[@]}" --modes balanced --tf32 --deterministic -o json
  json config.tf32=true config.deterministic=true
  expect 0 memory "${small[@]}" "${on[@]}" --modes balanced --tf32
  grep -q ', TF32' "$dir/out" || complain "no TF32 in the heading"

  expect 0 step "${small[@]}" --devices cuda:0@200MiB --devices cuda:0x2@200MiB --modes sharded -o json
  same devices "$(value runs.1.devices)" 2
  holds "tokens per second" "{runs.1.tokens_per_second} > 0"
  for format in table md csv; do
    expect 0 step "${small[@]}" --devices cuda:0@200MiB --modes sharded -o $format
  done

  expect 0 max-batch "${small[@]:0:10}" --devices "cuda:0x2@$((peak + 1048576))B" --modes balanced \
    -o json
  same "batch" "$(value runs.0.max_batch)" "$(value runs.0.planned_max_batch)"
  holds "batch" "{runs.0.max_batch} >= 1"
  expect 0 devices -o csv
  grep -q '^cuda:0,yes,' "$dir/out" || complain "no cuda in the list"
}

group_usage() {
  expect 2
  says subcommand
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
  for line in "${bad[@]}"; do
    expect 2 memory --batch 6 --steps 1 $line
    silent
    [[ -s $dir/err ]] || complain "no message for: $line"
  done
  while IFS='|' read -r line word; do
    expect 2 $line
    silent
    says "$word"
  done <<'EOF'
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
  grep -q 'Exit codes' "$dir/out" || complain "no exit codes in the help"
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
    expect 1 "${run[@]}" --export-json "${line% *}" --report "${line#* }"
    says "--export-json and --report name the same file"
    silent
    expect 1 "${run[@]}" --snapshot "${line% *}" --export-csv "${line#* }"
    says "--export-csv and --snapshot name the same file"
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
      expect 1 memory "${small[@]}" --devices cpu:2 --modes gather $option "$line"
      silent
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
  same command "$(value command)" devices
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

# On emulated GPUs, on which the code of a kernel and a communicator take memory.
group_outside() {
  local k run
  export CUEMU_CODE=100000 CUEMU_NCCL=1000000
  for devices in cuda:0x4@100MiB cuda:0-1; do
    expect 0 memory "${small[@]}" --devices $devices -o json --fail-above 1.5
    for k in 0 1; do
      run=runs.1.devices.$k.outside
      holds "outside at the start of $devices" "{$run.at_start_bytes} > 0"
      holds "outside at the end" "{$run.at_end_bytes} >= {$run.at_start_bytes}"
      # All of the GPU that is used: memory outside, and the arena.
      holds "what is explained" "{$run.explained_bytes} == \
        {$run.at_start_bytes} + {$run.gpu_used_bytes} - {$run.at_end_bytes}"
      holds "how far it is off" "{$run.off_percent} < 10"
    done
  done
  holds "a reserve where there is no cap" "{$run.reserve_bytes} >= 2097152"
  # The same peaks, whatever is outside: that is not unevenness.
  same "evenness" "$(value runs.2.max_over_mean)" 1
  for format in table md; do
    expect 0 memory "${small[@]}" --devices cuda:0x2@100MiB -o $format --modes balanced
    same "lines of their own in $format" "$(grep -c 'Outside the ledger' "$dir/out")" 1
    grep -A5 'Outside the ledger' "$dir/out" | grep -q balanced || complain "no line in $format"
  done
  expect 0 memory "${small[@]}" --devices cuda:0x2@100MiB -o csv --modes balanced
  grep -q 'outside_start_bytes,outside_end_bytes' "$dir/out" || complain "no column in CSV"
  expect 0 max-batch --layers 1 --width 16 --heads 2 --seq 16 --vocab 300 --modes balanced \
    --devices cuda:0x2@37MiB -o json
  same "largest batch" "$(value runs.0.max_batch)" "$(value runs.0.planned_max_batch)"
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
  same command "$(value command)" memory
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
  grep -q 'shown by --wide' "$dir/out" || complain "the terminal's width is not asked for"
  ! grep -E '^    .{77}' "$(dirname "${BASH_SOURCE[0]}")/../../docs/benchmark.md" >&2 ||
    complain "an example in docs/benchmark.md has more than 80 columns"
  on_terminal memory "${small[@]}" --devices cpu:2 -o json --quiet
  [[ ! -s $dir/err ]] || complain "--quiet is not quiet"
}

"group_$group"
finish "$group as expected"
