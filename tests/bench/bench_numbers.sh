# shellcheck shell=bash
# bench_numbers.sh - groups of check_bench.sh about what is measured, planned and chosen. To be sourced.
# shellcheck disable=SC2154 # variables of check_bench.sh
# shellcheck disable=SC2317 # functions are called by the group's name
# shellcheck disable=SC2086 # loop counters need no quotes

group_precision() {
  local i types=(f32 bf16 f16)
  expect 0 memory "${small[@]}" --devices cpu:2 --precision f32,bf16,f16 --modes balanced,sharded -o json
  json runs#=6
  for i in 0 1 2 3 4 5; do
    json "runs.$i.precision=${types[i / 2]}" "runs.$i.mode=$( ((i % 2)) && echo sharded || echo balanced)"
  done
  same 'no loss scale' "$(value runs.0.loss_scale) $(value runs.2.loss_scale)" "1 1"
  same 'the loss scale of f16' "$(value runs.4.loss_scale) $(value runs.5.skipped_steps)" "65536 0"
  json runs.0.devices.0.categories_at_peak.copies=0
  i=devices.1.categories_at_peak
  holds 'half the outputs' "{runs.2.$i.outputs} < 0.52 * {runs.0.$i.outputs}"
  holds 'less of activations' "{runs.3.$i.activations} <= 0.6 * {runs.1.$i.activations}"
  holds 'losses alike' "({runs.2.losses.0} / {runs.0.losses.0} - 1) ^ 2 < 1e-4"
  has_everywhere f16 memory "${small[@]}" --devices cpu:2 --precision bf16,f16 --modes balanced
  expect 0 memory "${small[@]}" --devices cpu:2 --precision f32,bf16 --modes balanced -o table
  has 'balanced, f32' "(f32 has no name beside bf16)"
  expect 0 memory "${small[@]}" --devices cpu:2 --modes balanced -o table
  has_not 'balanced, f32' "(f32 is named where there is nothing else)"
  expect 0 step "${small[@]}" --devices cpu:2 --precision f32,bf16 --modes balanced --report "$dir/a.html" -o json
  json runs.1.precision=bf16
  grep -q 'cpu:2, bf16' "$dir/a.html" || complain 'no precision in the report'
  expect 0 max-batch --layers 1 --width 16 --heads 2 --seq 16 --vocab 300 --devices plan:2@256KiB --precision f32,bf16 --modes balanced -o json
  holds 'a larger batch' "{runs.1.planned_max_batch} > 1.5 * {runs.0.planned_max_batch}"
  expect 0 fit "${small[@]}" --devices plan:2@1GiB --precision bf16 -o json
  json choices.0.precision=bf16
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

  has_everywhere sharded memory "${small[@]}" --devices cpu:2 --modes balanced,sharded
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
    json config.reproducible=4
    for i in 0 1 2 3; do
      [[ -n $losses ]] || losses=$(value runs.0.losses.1)
      json "runs.$i.losses.1=$losses"
      holds "its cost" "{runs.$i.without.largest_peak_bytes} > 0 && {runs.$i.without.tokens_per_second} > 0"
    done
  done
  expect 0 memory "${small[@]}" --devices cpu:2 --reproducible
  has 'what that costs' "(no table of what it costs)"
  expect 0 memory "${small[@]}" --devices cpu:2
  has_not 'what that costs' "(a cost of nothing)"

  # Odd cuts of the batch, more devices than samples, both optimizers, kept outputs, one device.
  expect 0 memory "${small[@]}" --devices cpu:3 --scatter sizes=1,5,0
  expect 0 memory "${small[@]}" --devices cpu:3 --scatter weights=1,2,0.5
  expect 0 memory "${small[@]}" --devices cpu:4 --scatter chunk --batch 9
  expect 0 memory "${small[@]}" --devices cpu:4 --batch 2 --optimizer sgd
  expect 0 memory "${small[@]}" --devices cpu:2 --keep-outputs
  expect 0 memory "${small[@]}" --devices cpu:4 --threads 3 --vocab 4000 --steps 9
  # A fused loss: the same losses, planned to the byte, and nothing to keep.
  expect 0 memory "${small[@]}" --devices cpu:3 -o json --no-keep-outputs
  json config.loss=whole
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
  json config.steps=1

  # Exit code 4: one device is twice the mean of two when the other one has nothing.
  expect 4 memory "${small[@]}" --devices cpu:4 --modes balanced --fail-above 1.0001
  says "mode balanced"
  expect 0 memory "${small[@]}" --devices cpu:4 --modes gather --fail-above 1.0001
  expect 0 memory "${small[@]}" --devices cpu:4 --fail-above 4
  # Exit code 5, with the need beside it.
  expect 5 memory "${small[@]}" --devices cpu:2@64KiB -o json
  says "does not fit"
  json runs.0.devices.0.peak_bytes=null
  holds "a plan" "{runs.0.devices.0.planned_peak_bytes} > 65536"
  json runs.0.losses=null
  # The parameters of the models that the presets are named after; the first has fewer positions.
  for i in gpt2-124m=123751680 gpt2-355m=354823168 gpt2-774m=774030080 gpt2-1.5b=1557611200 \
    llama-7b=6583623680; do
    expect 0 memory --preset ${i%=*} --devices plan:8@80GiB --modes sharded -o json
    json "config.preset=${i%=*}" "runs.0.devices.0.categories_at_peak.parameters=$((4 * ${i#*=}))"
  done
  for i in llama-160m=162417408 llama-1b=1235814400 llama-8b=8030261248 llama-70b=70553706496; do
    expect 0 memory --preset ${i%=*} --devices plan:8@9TiB --modes sharded -o json
    json "runs.0.devices.0.categories_at_peak.parameters=$((4 * ${i#*=}))"
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
    json "runs.0.devices.0.categories_at_peak.parameters=$((4 * ${i#*=}))"
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
  json "runs.1.devices.0.peak_bytes=$planned"
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
    json "config.recompute=$what"
    for i in 0 1 2 3; do
      json "runs.$i.losses.1=${losses[i]}"
      holds "activations with $what" "{runs.$i.devices.1.categories_at_peak.activations} < ${activations[i]}"
    done
  done
  for what in 2 3 7 99; do
    expect 0 memory "${deep[@]}" --devices cpu:2 --micro-batches $what -o json
    json "config.micro_batches=$what"
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
  json "runs.0.losses.1=${losses[3]}"
  expect 0 memory "${deep[@]}" --devices cpu:2 --modes sharded --recompute "$plain" -o json
  json "runs.0.devices.0.peak_bytes=$plain"
  expect 5 memory "${deep[@]}" --devices cpu:2 --modes sharded --recompute 4KiB -o json
  says 'nothing fits 4.00 KiB'
  for what in '--recompute some' '--recompute every=0' '--recompute 12QiB' '--micro-batches 0' \
    '--micro-batches 2 --scatter sizes=4,3'; do
    refuses 2 '' memory "${deep[@]}" --devices cpu:2 $what
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
  json runs.0.memory_ratio=1
  expect 0 techniques "${deep[@]}" --devices plan:2 --modes gather,replicated -o json
  json runs#=26 runs.1.speed_ratio=null runs.1.loss=null runs.13.mode=replicated
  expect 5 techniques "${deep[@]}" --devices cpu:2@300KiB -o json
  json runs.0.peak_bytes=null
  for i in table md csv; do expect 0 techniques "${deep[@]}" --devices cpu:2 --steps 1 -o $i; done
  same "lines of CSV" "$(wc -l <"$dir/out")" 14
  for i in '--recompute sqrt' '--micro-batches 2' '--loss fused' '--devices cpu:1 --devices cpu:2'; do
    refuses 2 '' techniques "${deep[@]}" $i
  done
}

group_fit() {
  local i k
  local -a deep=(--layers 4 --width 16 --heads 2 --seq 16 --vocab 300 --batch 14 --steps 1 --warmup 1)
  expect 0 fit "${deep[@]}" --devices cpu:2@700KiB --measure -o json
  json command=fit
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
  has_not ' ms' "(a cost is no time)"
  expect 0 fit "${deep[@]}" --devices cpu:2@1GiB --measure=1 -o json
  json choices.1.measured_peak_bytes=null
  for i in '--recompute sqrt' '--micro-batches 2' '--loss fused' '--scatter chunk' '--keep-outputs' \
    '--measure=0' '--measure=some'; do
    refuses 2 '' fit "${deep[@]}" $i
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
  json choices.0.sent_bytes=0
  expect 0 plan "${small[@]}" --world 1x2 -o json
  json choices#=6
  expect 0 plan "${deep[@]}" --world 16x2 --devices plan-cuda:2@1GiB --precision bf16 --recompute all --loss fused \
    --micro-batches 2 -o json
  json choices.0.micro_batches=2 choices.0.recompute=all choices.0.loss=fused
  for i in csv md table; do expect 0 plan "${deep[@]}" "${world[@]}" -o $i; done
  has 'not measured' "(a prediction looks like a measurement)"
  expect 5 plan "${deep[@]}" --world 2x2 --devices plan:2@64KiB -o json
  says 'no mode fits'
  json choices.0.fits=false
  expect 0 fit "${deep[@]}" --world 4x2 --link 1MB/s --devices plan:2@1GiB -o json
  for ((i = 1; i < $(value 'choices#'); i++)); do
    holds "what sends least" "{choices.0.sent_bytes} <= {choices.$i.sent_bytes}"
  done
  json choices.0.rank=1
  expect 0 fit "${deep[@]}" --world 4x2 --link 1MB/s --devices plan:2@1GiB
  has 'not measured' "(a choice over a world looks like a measurement)"
  refuses 2 '--world 16x8' plan "${deep[@]}"
  expect 2 plan "${deep[@]}" --world 4x2 --devices plan:3
  says '2 devices in each process, but plan:3 has 3'
  refuses 1 '3 micro-batches of 2 samples' plan "${deep[@]}" --world 128x1 --micro-batches 3
  while read -r i; do
    refuses 2 '' plan "${deep[@]}" $i
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
  json command=max-batch
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
  json runs.0.step_seconds.median=null
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
  local peak loss
  peak=$(value runs.1.devices.0.peak_bytes)
  loss=$(value runs.1.losses.1)
  expect 0 memory "${small[@]}" --devices plan-cuda:4 --modes balanced -o json
  json "runs.0.devices.0.peak_bytes=$peak"
  expect 0 memory "${small[@]}" --devices cpu:4 --modes balanced -o json
  holds "the same training as on cpu" "({runs.0.losses.1} - $loss) ^ 2 < 1e-8"
  has_everywhere sharded memory "${small[@]}" "${on[@]}" --modes balanced,sharded
  expect 5 memory "${small[@]}" --devices "cuda:0x4@$((peak - 256))B" --modes balanced
  says "does not fit"

  expect 0 memory "${small[@]}" "${on[@]}" --modes balanced --tf32 --deterministic -o json
  json config.tf32=true config.deterministic=true
  expect 0 memory "${small[@]}" "${on[@]}" --modes balanced --tf32
  has ', TF32' "(no TF32 in the heading)"

  expect 0 step "${small[@]}" --devices cuda:0@200MiB --devices cuda:0x2@200MiB --modes sharded -o json
  json runs.1.devices=2
  holds "tokens per second" "{runs.1.tokens_per_second} > 0"
  has_everywhere sharded step "${small[@]}" --devices cuda:0@200MiB --modes sharded

  expect 0 max-batch "${small[@]:0:10}" --devices "cuda:0x2@$((peak + 1048576))B" --modes balanced \
    -o json
  same "batch" "$(value runs.0.max_batch)" "$(value runs.0.planned_max_batch)"
  holds "batch" "{runs.0.max_batch} >= 1"
  expect 0 devices -o csv
  grep -q '^cuda:0,yes,' "$dir/out" || complain "no cuda in the list"
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
  json runs.2.max_over_mean=1
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
