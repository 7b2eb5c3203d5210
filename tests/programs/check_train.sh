#!/usr/bin/env bash
# check_train.sh TRAIN GROUP: runs evenkeel-train on small models and files of tokens that it makes, and looks at what
# comes out. GROUP is one of the functions group_* below.
# shellcheck disable=SC2317 # functions are called by the group's name
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

train=$(realpath "$1") group=$2
make_dir
cd "$dir"

# Runs the program; its output is in out and err, and no code but CODE is right.
expect() { # CODE ARGUMENT...
  local wanted=$1 code=0
  shift
  "$train" "$@" >out 2>err </dev/null || code=$?
  ((code == wanted)) && return 0
  complain "exit code $code and not $wanted from: $*"
  sed 's/^/    /' err >&2
}

says() { # TEXT: it is on stderr
  grep -qF -- "$1" err || complain "stderr does not say \"$1\" but: $(cat err)"
}

prints() { # TEXT: it is on stdout
  grep -qF -- "$1" out || complain "stdout does not say \"$1\" but: $(cat out)"
}

steps_so_far() { # lines of a run in the background, whose output may not be there yet
  local count
  count=$(grep -cs '^step' out || true)
  printf '%d' "${count:-0}"
}

refused() { # CODE TEXT ARGUMENT...
  local code=$1 text=$2
  shift 2
  expect "$code" "$@"
  says "$text"
}

# Tokens below 32 with a rhythm, as u16: COUNT of them.
tokens() { # FILE COUNT
  awk -v count="$2" 'BEGIN { for (i = 0; i < count; i++) printf "\\x%02x\\x00", (i * i) % 32 }' >bytes
  printf '%b' "$(cat bytes)" >"$1"
}

# Losses of each step, from the lines of --metrics.
losses() { # PREFIX
  grep -o '"loss": [^,]*' "$1.jsonl" | cut -d' ' -f2
}

# Two columns of losses agree to LIMIT, relative, and there are COUNT.
agree() { # LIMIT COUNT LEFT RIGHT
  paste <(losses "$3") <(losses "$4") | awk -v limit="$1" -v count="$2" '
    NF < 2 { exit 1 }
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > limit) exit 1 }
    END { exit NR != count }'
}

small=(--model gpt2 --layers 2 --width 16 --heads 2 --vocab 32 --sequence 16 --batch 6)
llama=(--model llama --layers 2 --width 16 --heads 4 --kv-heads 2 --hidden 24 --vocab 32 --sequence 16 --batch 6)
tokens tokens.bin 3001

# What needs files of tensors is left out where the library has none.
need_files() {
  "$train" "${small[@]}" --data tokens.bin --steps 1 --save probe --quiet 2>err && return
  grep -q 'built without' err && echo "built without files: left out" && exit 77
  complain "no state can be saved: $(cat err)"
}

# Every mode is the same training, and so are recomputation, micro-batches, the fused loss and other devices.
group_modes() {
  local mode more
  expect 0 "${small[@]}" --data tokens.bin --steps 6 --devices cpu:1 --mode replicated --metrics base
  for mode in gather balanced replicated sharded sharded-gradients fully-sharded; do
    expect 0 "${small[@]}" --data tokens.bin --steps 6 --devices cpu:3 --mode "$mode" --metrics "$mode"
    prints "mode $mode, f32"
    agree 2e-5 6 base "$mode" || complain "mode $mode is another training"
  done
  for more in "--recompute every=1" "--loss fused" "--mode sharded --micro-batches 4" "--reproducible 3" "--threads 1"; do
    rm -f more.*
    # shellcheck disable=SC2086
    expect 0 "${small[@]}" --data tokens.bin --steps 6 --devices cpu:2 --metrics more $more
    agree 2e-5 6 base more || complain "$more is another training"
  done
  prints "chosen by fit"
  for more in "--precision bf16" "--precision f16" "--precision bf16 --gradient-type bf16"; do
    rm -f more.*
    # shellcheck disable=SC2086
    expect 0 "${small[@]}" --data tokens.bin --steps 6 --devices cpu:2 --metrics more $more
    agree 2e-2 6 base more || complain "$more is far from f32"
  done
  # What is planned is what is used.
  expect 0 "${llama[@]}" --data tokens.bin --steps 2 --devices cpu:2 --metrics planned
  local planned used
  planned=$(sed -nE 's/^planned peak.*\(([0-9]+) bytes\)$/\1/p' out)
  used=$(grep -o '"peak_bytes": [0-9]*' planned.jsonl | cut -d' ' -f2 | sort -n | tail -n 1)
  [[ $planned == "$used" ]] || complain "planned $planned bytes, used $used"
}

# Two documents of 8 tokens in a row of 16 train as two rows do, and what follows an end is not predicted.
group_documents() {
  local kind
  awk 'BEGIN { for (i = 0; i < 16 * 24 + 1; i++) printf "\\x%02x\\x00", i % 8 == 7 ? 31 : (i * i + int(i / 8)) % 31 }' >bytes
  printf '%b' "$(cat bytes)" >packed.bin
  for kind in small llama; do
    local -n shape=$kind
    # Every step has all rows, so that their order is no difference.
    local run=("${shape[@]}" --data packed.bin --steps 6 --devices cpu:2 --schedule constant --document-end 31)
    expect 0 "${run[@]}" --sequence 16 --batch 24 --metrics "$kind.packed"
    [[ $kind != llama ]] || expect 0 "${run[@]}" --sequence 8 --batch 48 --metrics "$kind.apart"
    expect 0 "${shape[@]}" --data packed.bin --steps 6 --devices cpu:2 --schedule constant --sequence 16 --batch 24 --metrics "$kind.mixed"
    ! agree 1e-4 6 "$kind.packed" "$kind.mixed" || complain "$kind: --document-end changes nothing"
    expect 0 "${run[@]}" --sequence 16 --batch 24 --micro-batches 2 --mode fully-sharded --loss fused --validation packed.bin --metrics "$kind.fused"
    agree 2e-5 6 "$kind.packed" "$kind.fused" || complain "$kind: the mode changes the training"
  done
  # GPT-2's table of positions has other initial values where it has other rows.
  agree 2e-5 6 llama.packed llama.apart || complain "packed rows are another training"
  need_files
  expect 0 "${small[@]}" --data packed.bin --steps 3 --out model
  expect 0 --model model --data packed.bin --steps 3 --document-end 31 --metrics folder
  expect 0 --model model --data packed.bin --steps 3 --metrics whole
  ! agree 1e-4 3 folder whole || complain "a folder's model does not keep documents apart"
  refused 2 "--document-end 32: the tokens of model are 0 to 31" --model model --data packed.bin --document-end 32
}

rates() { grep -o '"learning_rate": [^,]*' "$1.jsonl" | cut -d' ' -f2; }

group_rules() {
  local name
  for name in cosine stable linear steps one-cycle constant; do
    expect 0 "${small[@]}" --data tokens.bin --steps 20 --schedule "$name" --rate 0.01 --metrics "$name"
    prints "adamw, $name, rate 0.01"
    (($(rates "$name" | wc -l) == 20)) || complain "$name: not 20 rates"
  done
  (($(for name in cosine stable linear steps one-cycle constant; do rates "$name" | md5sum; done | sort -u | wc -l) == 6)) ||
    complain "two schedules are the same"
  [[ $(rates constant | sort -u) == 0.01 ]] || complain "constant: $(rates constant)"
  # Steps of 4, a tenth each: 0.01, 0.001, ...
  expect 0 "${small[@]}" --data tokens.bin --steps 9 --schedule steps --rate 0.01 --period 4 --factor 0.5 --metrics period
  [[ $(rates period | awk '{ printf "%g ", $1 }') == "0.01 0.01 0.01 0.01 0.005 0.005 0.005 0.005 0.0025 " ]] ||
    complain "steps: $(rates period)"
  expect 0 "${small[@]}" --data tokens.bin --steps 6 --schedule stable --rate 0.4 --warmup 2 --decay 2 --floor 0.2 --metrics wsd
  [[ $(rates wsd | awk '{ printf "%g ", $1 }') == "0.2 0.4 0.4 0.4 0.4 0.3 " ]] || complain "stable: $(rates wsd)"
  # Each of these is a training of its own.
  local more count=0
  for more in "" "--optimizer sgd" "--optimizer sgd --nesterov" "--optimizer sgd --momentum 0.5" "--optimizer muon" "--optimizer muon --momentum 0.8" "--beta1 0.8" "--beta2 0.9" \
    "--weight-decay 0.5" "--clip 0.01" "--seed 3" "--dropout 0.2" "--epsilon 1e-3"; do
    # shellcheck disable=SC2086
    expect 0 "${small[@]}" --data tokens.bin --steps 8 --warmup 0 --metrics "rule$count" $more
    count=$((count + 1))
  done
  (($(for ((i = 0; i < count; i++)); do losses "rule$i" | md5sum; done | sort -u | wc -l) == count)) ||
    complain "an option changes nothing"
  expect 0 "${llama[@]}" --data tokens.bin --epochs 3 --rate 0.01 --metrics llama
  losses llama | awk 'NR == 1 { first = $1 } END { exit !($1 < 0.8 * first && NR == 94) }' || complain "the loss did not fall"
}

# A run in parts, on other devices, in other modes and with other micro-batches, is the run.
group_resume() {
  need_files
  local run=("${small[@]}" --data tokens.bin --validation-split 0.2 --validation-every 4 --steps 24)
  expect 0 "${run[@]}" --devices cpu:2 --reproducible 6 --metrics whole --mode replicated
  local leg=0 steps
  for more in "--devices cpu:1 --mode gather" "--devices cpu:3 --mode fully-sharded" "--devices cpu:2 --mode sharded"; do
    leg=$((leg + 1))
    steps=$((leg * 8))
    # The schedule is the whole run's; a signal would end a leg anywhere: see group_signals.
    # shellcheck disable=SC2086
    expect 0 "${run[@]}" --steps "$steps" --schedule constant --reproducible 6 --save state --best best --metrics parts $more
  done
  expect 0 "${run[@]}" --schedule constant --reproducible 6 --metrics straight --mode replicated
  cmp <(losses straight) <(losses parts) || complain "a run in parts is another run"
  [[ $(ls state) == $'step-000000000022.safetensors\nstep-000000000024.safetensors' ]] || complain "states: $(ls state)"
  (($(find best -type f | wc -l) == 1)) || complain "best: $(ls best)"
  prints "steps in"
  expect 0 "${run[@]}" --schedule constant --reproducible 6 --save state --best best --mode sharded
  prints "state has all 24 steps already"
  refused 2 "--seed 5: the run in state began with seed 0; expected --seed 0" "${run[@]}" --save state --seed 5 --mode sharded
  refused 1 "has a state" "${run[@]}" --save state --fresh --mode sharded
  grep -q validation_loss parts.jsonl || complain "no validation loss in the metrics"
  [[ $(grep -o '"tokens": [0-9]*' parts.jsonl | tail -n 1) == "\"tokens\": $((24 * 6 * 16))" ]] || complain "tokens"
  # A validation that does not fall ends the run.
  expect 0 "${small[@]}" --data tokens.bin --validation tokens.bin --validation-every 1 --validation-rows 8 --patience 2 \
    --steps 200 --rate 30 --clip 0 --schedule constant --metrics patience
  prints "no better for 2 evaluations"
  (($(losses patience | wc -l) < 200)) || complain "patience does nothing"
}

# Out in Hugging Face's layout, in again, and on.
group_folders() {
  need_files
  local kind file
  for kind in small llama; do
    local -n shape=$kind
    expect 0 "${shape[@]}" --data tokens.bin --epochs 4 --rate 0.01 --devices cpu:2 --out "$kind" --metrics "$kind"
    for file in config.json model.safetensors; do [[ -s $kind/$file ]] || complain "$kind has no $file"; done
    printf 'a tokenizer' >"$kind/tokenizer.json"
    expect 0 --model "./$kind" --data tokens.bin --steps 3 --batch 6 --rate 1e-9 --devices cpu:3 --out "$kind.tuned" --metrics "$kind.on"
    prints "samples of 16 tokens"
    awk -v last="$(losses "$kind" | tail -n 1)" '{ exit !($1 < 1.1 * last) }' <(losses "$kind.on") ||
      complain "$kind: it does not go on from the weights"
    cmp "$kind/config.json" "$kind.tuned/config.json" || complain "$kind: another configuration"
    cmp "$kind/tokenizer.json" "$kind.tuned/tokenizer.json" || complain "$kind: no tokenizer"
  done
  refused 2 "expected ./llama for the folder, or a size such as llama:160m" --model llama --data tokens.bin
  # The averages, and the best weights, are others than the last.
  local run=("${small[@]}" --data tokens.bin --validation-split 0.2 --validation-every 5 --steps 30 --rate 0.02)
  expect 0 "${run[@]}" --out last
  expect 0 "${run[@]}" --out average --ema 0.9
  expect 0 "${run[@]}" --out first --best best --validation-rows 6
  ! cmp -s last/model.safetensors average/model.safetensors || complain "the averages are the weights"
  expect 0 --model first --data tokens.bin --steps 1 --quiet
  [[ ! -s out ]] || complain "--quiet prints $(cat out)"
  refused 2 "--sequence 17: small takes at most 16" --model small --data tokens.bin --sequence 17
  refused 2 "does not overwrite" --model small --data tokens.bin --out small
  mkdir x
  refused 2 "same folder" --model small --data tokens.bin --validation-split 0.1 --save x --best ./x/../x --steps 1
  : >last/model.safetensors.index.json
  refused 2 "in several files" "${small[@]}" --data tokens.bin --out last
  refused 1 "nowhere: No such file" "${small[@]}" --data tokens.bin --out nowhere/x
  refused 2 "is a file, expected a folder" "${small[@]}" --data tokens.bin --save tokens.bin
  mkdir empty half
  refused 2 "is no folder with config.json" --model empty --data tokens.bin
  cp small/config.json half
  refused 1 "half: it has neither model.safetensors nor" --model half --data tokens.bin
  head -c 3000 small/model.safetensors >half/model.safetensors
  refused 1 "half/model.safetensors" --model half --data tokens.bin
  sed 's/"n_embd": 16/"n_embd": 32/' small/config.json >half/config.json
  cp small/model.safetensors half
  refused 2 "half/config.json: n_inner is 64" --model half --data tokens.bin
  sed 's/gpt2/bert/' small/config.json >half/config.json
  refused 1 "bert" --model half --data tokens.bin
}

# On devices that only count, the answer is whether it fits, and nothing is written.
group_plan() {
  expect 0 "${small[@]}" --devices plan:4@1GiB --out nothing --save nothing
  prints "it fits"
  prints "chosen by fit"
  [[ ! -e nothing ]] || complain "a plan writes"
  expect 0 --model gpt2:1.5b --devices plan:8@80GiB --batch 64
  prints "it fits"
  expect 0 --model llama:8b --devices plan:8@80GiB --mode fully-sharded --recompute every=1 --loss fused --precision bf16
  prints "recompute every=1, fused loss"
  expect 0 "${llama[@]}" --devices plan:2@1GiB --document-end 0 --mode sharded --loss fused
  prints "it fits"
  expect 5 --model llama:70b --devices plan:2@80GiB
  says "nothing fits"
  expect 5 "${small[@]}" --devices plan:2@100KiB --mode replicated
  says "it does not fit: the fullest device needs"
  refused 5 "cpu:0" "${small[@]}" --data tokens.bin --devices cpu:2@100KiB --mode replicated
}

# COMMAND...: as two processes; output in out.0, out.1, err.0, err.1.
both() {
  local p code=0
  local -a pids=()
  world=$((${world:-0} + 1))
  for p in 0 1; do
    EVENKEEL_WORLD_FILE=$dir/world.$world EVENKEEL_WORLD_PROCESS=$p EVENKEEL_WORLD_PROCESSES=2 \
      EVENKEEL_WORLD_ADDRESS=127.0.0.1 "$train" "$@" >"out.$p" 2>"err.$p" </dev/null &
    pids+=($!)
  done
  if [[ -n ${stop_after-} ]]; then
    while [[ ! -e out.0 || $(wc -l <out.0) -lt $stop_after ]]; do sleep 0.05; done
    kill -TERM "${pids[1]}"
  fi
  for p in "${pids[@]}"; do wait "$p" || code=$?; done
  return "$code"
}

group_processes() {
  need_files
  expect 0 "${small[@]}" --data tokens.bin --steps 8 --devices cpu:2 --mode sharded --reproducible 4 --metrics alone --out alone
  both "${small[@]}" --data tokens.bin --steps 8 --devices cpu:1 --mode sharded --reproducible 4 --metrics two --out two ||
    complain "two processes: $(cat err.0 err.1)"
  cmp <(losses alone) <(losses two.0) || complain "two processes are another training"
  cmp alone/model.safetensors two/model.safetensors || complain "two processes write another model"
  [[ ! -s out.1 ]] || complain "the second process prints"
  both "${small[@]}" --data tokens.bin --steps 4 --devices cpu:1 || complain "no mode: $(cat err.0)"
  grep -q 'chosen by fit: mode \(replicated\|sharded\|fully\)' out.0 || complain "no mode is chosen: $(cat out.0)"
  local code=0
  both "${small[@]}" --data tokens.bin --steps 4 --mode gather || code=$?
  ((code == 1)) || complain "gather between processes: $code"
  grep -q 'within one process' err.0 err.1 || complain "gather between processes: $(cat err.0)"
  # A signal to one stops both after the same step, and one process goes on.
  code=0
  stop_after=6 both "${small[@]}" --data tokens.bin --steps 5000 --devices cpu:1 --mode sharded --save on --log-every 1 || code=$?
  ((code == 3)) || complain "SIGTERM: $code, $(cat err.0 err.1)"
  local last
  last=$(sed -nE 's/^stopped after step ([0-9]+) of 5000.*/\1/p' out.0)
  [[ -n $last ]] || complain "no step: $(tail -n 3 out.0)"
  expect 0 "${small[@]}" --data tokens.bin --steps "$((last + 1))" --devices cpu:3 --mode fully-sharded --save on --schedule constant
  prints "step $((last + 1)) of $((last + 1))"
}

group_signals() {
  need_files
  local signal code last child
  for signal in TERM INT; do
    # A shell that is not interactive has SIGINT ignored in the background; env gives it back.
    env --default-signal=INT "$train" "${small[@]}" --data tokens.bin --steps 100000 --save "state.$signal" --log-every 1 \
      --schedule constant --metrics "cut.$signal" --out never >out 2>err </dev/null &
    child=$!
    for _ in {1..600}; do
      (($(steps_so_far) > 4)) && break
      sleep 0.05
    done
    kill -"$signal" "$child"
    code=0
    wait "$child" || code=$?
    ((code == 3)) || complain "SIG$signal: exit code $code, $(cat err)"
    last=$(sed -nE 's/^stopped after step ([0-9]+) of 100000; the same command goes on$/\1/p' out)
    [[ -e state.$signal/step-$(printf %012d "${last:-0}").safetensors ]] || complain "SIG$signal: no state of step $last"
    [[ ! -e never ]] || complain "a run that goes on has written --out"
    expect 0 "${small[@]}" --data tokens.bin --steps "$((last + 3))" --save "state.$signal" --schedule constant --metrics "cut.$signal"
    expect 0 "${small[@]}" --data tokens.bin --steps "$((last + 3))" --schedule constant --metrics "straight.$signal"
    cmp <(losses "cut.$signal") <(losses "straight.$signal") || complain "SIG$signal: it goes on elsewhere"
  done
  if command -v script >/dev/null; then
    TERM=xterm script -qec "$(printf '%q ' "$train" "${small[@]}" --data tokens.bin --steps 400 --log-every 400)" /dev/null </dev/null >terminal
    grep -q 'loss [0-9.]*, [0-9]* tokens/s' terminal || complain "no progress on a terminal"
  fi
}

# Each line: the exit code, what is said, and arguments.
group_usage() {
  local line code text
  while IFS='|' read -r code text line; do
    # shellcheck disable=SC2086
    refused "$code" "$text" $line
  done <<'END'
2|--model is needed|--data tokens.bin
2|unknown size "9b"; expected 160m, 1b, 8b, 70b|--model llama:9b --data tokens.bin
2|unknown size "7b"|--model llama:7b --data tokens.bin
2|"gtp2" is no folder with config.json|--model gtp2 --data tokens.bin
2|--data is needed|--model gpt2 --layers 1 --width 8 --heads 1 --vocab 32
2|--document-end must be a whole number from 0 to 4294967295|--model gpt2 --document-end -1
2|unexpected argument "tokens.bin"|--model gpt2 tokens.bin
2|--hidden needs --model llama|--model gpt2 --hidden 8
2|not a multiple of 3 heads|--model gpt2 --layers 1 --width 16 --heads 3 --vocab 32 --sequence 8 --data tokens.bin
2|--layers must be a whole number|--model gpt2 --layers two
2|--rate must be a number|--model gpt2 --rate fast
2|--optimizer: unknown name "adam"; expected adamw, sgd, muon; did you mean adamw?|--model gpt2 --optimizer adam
2|--schedule: unknown name "cosin"|--model gpt2 --schedule cosin
2|--mode: unknown name "shard"|--model gpt2 --mode shard
2|--precision: unknown name "fp16"|--model gpt2 --precision fp16
2|--momentum is of --optimizer sgd|--model gpt2 --momentum 0.9
2|--beta1 is of --optimizer adamw|--model gpt2 --optimizer sgd --beta1 0.9
2|--decay is of --schedule stable|--model gpt2 --decay 5
2|--warmup is of --schedule cosine|--model gpt2 --schedule constant --warmup 5
2|--steps cannot be combined with --epochs|--model gpt2 --steps 3 --epochs 1
2|--validation cannot be combined with --validation-split|--model gpt2 --validation tokens.bin --validation-split 0.1
2|leaves no samples to train on|--model gpt2 --validation-split 1
2|leaves no samples to evaluate on|--model gpt2 --validation-split 0
2|--patience needs --validation|--model gpt2 --patience 3
2|--best needs --validation|--model gpt2 --best x
2|--save-every needs --save|--model gpt2 --save-every 3
2|--fresh needs --save|--model gpt2 --fresh
2|--save and --best name the same folder|--model gpt2 --validation-split 0.1 --save x --best x
2|--micro-batches needs --mode|--model gpt2 --micro-batches 2
2|--recompute: |--model gpt2 --recompute sometimes
2|expected none, every=K|--model gpt2 --recompute 64MiB
2|--epochs 0 takes no step|--model gpt2 --epochs 0
2|--out is empty|--model gpt2 --out=
2|unrecognized option|--model gpt2 --learning-rate 3
1|nothing.bin: no such file|--model gpt2 --layers 1 --width 8 --heads 1 --vocab 32 --data nothing.bin
1|cuda:|--model gpt2 --layers 1 --width 8 --heads 1 --vocab 32 --data tokens.bin --devices cuda:7
2|--devices|--model gpt2 --layers 1 --width 8 --heads 1 --vocab 32 --data tokens.bin --devices gpu
END
  expect 0 --help
  prints "Exit codes: 0 done"
  expect 0 --version
  grep -qx 'evenkeel-train [0-9.]* (libevenkeel [0-9.]*)' out || complain "versions: $(cat out)"
}

# Data that is damaged, disks that are full, readers that go away.
group_damage() {
  head -c 1001 tokens.bin >odd.bin
  refused 1 "odd.bin: 1001 bytes are" "${small[@]}" --data odd.bin
  refused 1 "outside of 0..7" "${small[@]}" --vocab 8 --data tokens.bin --steps 3
  head -c 20 tokens.bin >short.bin
  refused 2 "short.bin: no file has the 17 tokens" "${small[@]}" --data short.bin
  { printf '\x88\xd8\x34\x01\x01\x00\x00\x00\xff\x00\x00\x00' && head -c 2000 tokens.bin; } >cut.bin
  refused 1 "its header says 255 tokens" "${small[@]}" --data cut.bin
  tokens one.bin 17
  refused 2 "none is left" "${small[@]}" --data one.bin --validation-split 0.5
  # Several files, by pattern and by name, and the words of a shell that has replaced a pattern itself.
  tokens a1.bin 161
  tokens a2.bin 321
  expect 0 "${small[@]}" --data 'a?.bin' --steps 1 --mode sharded
  prints "30 samples of 16 tokens"
  expect 0 "${small[@]}" --data a1.bin a2.bin tokens.bin --validation a1.bin a2.bin --steps 1 --mode sharded
  prints "217 samples of 16 tokens, 30 to evaluate on"
  [[ ! -e /dev/full ]] || {
    local code=0
    "$train" "${small[@]}" --data tokens.bin --steps 2 >/dev/full 2>err || code=$?
    ((code == 1)) || complain "a full disk for standard output: $code"
    says "standard output"
    # A file of metrics that fails costs no run.
    ln -s /dev/full full.jsonl
    expect 1 "${small[@]}" --data tokens.bin --steps 3 --metrics full
    says "--metrics: "
    prints "step 3 of 3"
  }
  code=0
  "$train" "${small[@]}" --data tokens.bin --steps 300 --log-every 1 2>err | head -n 3 >out || code=$?
  (($(wc -l <out) == 3)) || complain "a reader that goes away"
  # A file that becomes shorter while it is read is an error that names it.
  tokens shrinks.bin 3001
  "$train" "${small[@]}" --data shrinks.bin --steps 100000 --log-every 1 >out 2>err &
  local child=$!
  for _ in {1..600}; do
    (($(steps_so_far) > 2)) && break
    sleep 0.05
  done
  truncate -s 100 shrinks.bin
  code=0
  wait "$child" || code=$?
  ((code == 1)) || complain "a file that shrinks: $code"
  says "shrinks.bin"
  # A full disk, where this system lets a user have a small one.
  if [[ $(id -u) == 0 ]] && mkdir disk && mount -t tmpfs -o size=64k none disk 2>/dev/null; then
    refused 1 "No space left" "${small[@]}" --width 64 --data tokens.bin --steps 3 --save disk/state --mode replicated
    [[ -z $(ls disk/state 2>/dev/null) ]] || complain "a full disk keeps $(ls disk/state)"
    umount disk
  fi
}

"group_$group"
exit "$failed"
