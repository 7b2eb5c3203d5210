#!/usr/bin/env bash
# check_report.sh BENCH: what --report writes, in Chromium: each page in a narrow and a wide frame, and dark in a
# wide one, with check_report.js inside. Without Chromium, and without a way to install it, it is skipped.

# shellcheck source=tests/bench/browser.sh
. "$(dirname "${BASH_SOURCE[0]}")/browser.sh"
browser_begin chromium

bench=$1
# A name of a file is the only text from outside.
data="$dir/<img src=x onerror=\"alert(1)\">&amp;'\$.txt"
printf 'It was the best of times, it was the worst of times.\n%.0s' {1..50} >"$data"
small=(--layers 1 --width 16 --heads 2 --seq 16 --vocab 300 --batch 6 --steps 2 --warmup 1)
make() { # NAME CODE ARGUMENT...
  local page=$1 right=$2 code=0
  shift 2
  "$bench" "$@" --report "$dir/$page.html" >/dev/null 2>"$dir/err" || code=$?
  ((code == right)) || complain "exit code $code of $page: $(cat "$dir/err")"
}
make memory 0 memory "${small[@]}" --devices cpu:3 --data "$data"
make full 5 memory "${small[@]}" --devices cpu:2@64KiB --micro-batches 2
make plan 0 memory --preset gpt2-124m --devices plan:8@80GiB
make step 0 step "${small[@]}" --devices cpu:1 --devices cpu:2
make mixed 0 memory "${small[@]}" --devices cpu:2 --modes gather,sharded --precision f32,bf16
make mixed-step 0 step "${small[@]}" --devices cpu:2 --modes gather,sharded --precision bf16,f16
make techniques 0 techniques "${small[@]}" --steps 1 --devices cpu:2 --precision f32,f16
make counted 0 techniques --preset gpt2-124m --devices plan:2 --modes sharded,gather
make max-batch 0 max-batch --layers 1 --width 16 --heads 2 --seq 16 --vocab 300 --devices cpu:2@200KiB --modes gather,sharded --precision f32,bf16
make devices 0 devices
make fit 0 fit "${small[@]}" --devices cpu:2@2MiB --measure=1 --precision bf16
make too-large 5 fit "${small[@]}" --devices plan:2@64KiB
make world 0 plan "${small[@]}" --world 4x2 --link 1GB/s
make fit-world 0 fit "${small[@]}" --world 4x2 --link 1GB/s --devices plan:2@1GiB
make_processes() { # NAME COMMAND: the page of the first of two processes
  local p code=0
  local -a pids=()
  for p in 0 1; do
    EVENKEEL_WORLD_FILE="$dir/$1.world" EVENKEEL_WORLD_PROCESS=$p EVENKEEL_WORLD_PROCESSES=2 \
      EVENKEEL_WORLD_ADDRESS=127.0.0.1 "$bench" "$2" "${small[@]}" --devices cpu:2 --report "$dir/$1.html" \
      >/dev/null 2>"$dir/err.$p" &
    pids+=($!)
  done
  for p in "${pids[@]}"; do wait "$p" || code=$?; done
  ((code == 0)) || complain "exit code $code of $1: $(cat "$dir/err.0" "$dir/err.1")"
}
make_processes processes-step step
make_processes processes-memory memory
pages=(memory full plan world fit-world processes-step processes-memory step mixed mixed-step techniques counted max-batch devices fit too-large)

# The page again with the check in it: errors are counted from the first line on.
for page in "${pages[@]}"; do
  {
    sed '/<style>/,$d' "$dir/$page.html"
    printf '<script>window.reportErrors = [];\n'
    printf 'onerror = (m, f, l) => { reportErrors.push("error: " + m + " in line " + l); };\n'
    printf 'for (const k of ["error", "warn"]) console[k] = m => reportErrors.push(k + ": " + m);\n'
    printf 'addEventListener("securitypolicyviolation", e => reportErrors.push("fetches " + e.blockedURI));\n'
    printf '</script><script>\n'
    cat "$here/check_report.js"
    printf '</script>\n'
    sed -n '/<style>/,$p' "$dir/$page.html"
  } >"$dir/$page.checked.html"
done
frames_page() { # WIDTH...: all pages in frames
  printf '<!doctype html><title>checks</title><pre id="answers"></pre><script>\n'
  printf 'const answers = [];\n'
  printf 'function take(answer) {\n'
  printf '  answers.push(answer);\n'
  printf '  document.getElementById("answers").textContent = answers.map(a => JSON.stringify(a) + "\\n").join("");\n'
  printf '}\n'
  printf '</script>\n'
  local page width
  for page in "${pages[@]}"; do
    for width; do
      printf '<iframe src="%s.checked.html" style="width:%dpx;height:800px;border:0"></iframe>\n' "$page" "$width"
    done
  done
}

# The page is written out when it has loaded, with all frames, each of which hands over its answer before that: nothing
# here depends on a clock. Files that may look into each other are what lets a frame do so. `answers` gets a line for
# each frame.
run_browser() { # OPTION...
  timeout 60 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
    --disable-background-networking --allow-file-access-from-files --user-data-dir="$dir/profile" \
    --window-size=1700,900 "$@" --dump-dom "file://$dir/all.html" >"$dir/dom" 2>"$dir/browser" || return 1
  sed -n 's/.*\({"page":.*\)/\1/p' "$dir/dom" >"$dir/answers"
}

all_say() { # EXTENDED-EXPRESSION WHAT-IS-WRONG-OTHERWISE
  grep -vE "$1" "$dir/answers" >"$dir/others" || return 0
  complain "$2:"
  cut -c1-600 "$dir/others" >&2
}

look() { # WHETHER-DARK WIDTH...
  local dark=$1 frames=$((($# - 1) * ${#pages[@]})) try
  shift
  frames_page "$@" >"$dir/all.html"
  local -a scheme=()
  [[ $dark == false ]] || scheme=(--blink-settings=preferredColorScheme=0)
  # A browser that hangs, or loses a frame, as one does now and then on a busy machine, is started anew.
  for try in 1 2 3; do
    run_browser ${scheme[@]+"${scheme[@]}"} && (($(wc -l <"$dir/answers") == frames)) && break
    ((try < 3)) || complain "Chromium, three times: $(wc -l <"$dir/answers") answers of $frames frames" \
      "(dark: $dark): $(tail -n 3 "$dir/browser")"
  done
  all_say '"wrong":\[\]' "frames that are not right (dark: $dark)"
  all_say "\"dark\":$dark" "frames that are not dark: $dark"
  local widths="$*"
  all_say "\"width\":(${widths// /|})[,}]" "frames of another width than $widths"
  # That there was something to look at.
  awk -F '[:,}]' '{ for (i = 1; i < NF; i++) n[$i] += $(i + 1) }
    END { exit !(n["\"numbers\""] > 300 && n["\"charts\""] > 40) }' "$dir/answers" ||
    complain "hardly a number in the charts"
}
look false 400 1600
(($(grep -cE '"tables":[1-9]' "$dir/answers") >= 10)) || complain "hardly a table that scrolls"
look true 1600 # colours are what differs
browser_end
