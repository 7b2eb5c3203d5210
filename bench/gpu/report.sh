# shellcheck shell=bash
# Sourced by run: the report and the archive.
# shellcheck disable=SC2154 # name, steps, logs, verdicts, revision are run's

milliseconds() { # JSON: the median of a step, of evenkeel-bench or torch_step.py
  [[ -s $1 ]] || { printf -- '-' && return; }
  tr -d ' \n' <"$1" | sed -n 's/.*"step_seconds":{[^}]*"median":\([0-9.e+-]*\).*/\1/p' |
    awk '{ printf "%.2f", $1 * 1000 }'
}

begun() { # JSON: the same of steps that are begun one after the other
  [[ -s $1 ]] || { printf -- '-' && return; }
  tr -d ' \n' <"$1" | sed -n 's/.*"begun_step_seconds":\([0-9.e+-]*\).*/\1/p' |
    awk '{ printf "%.2f", $1 * 1000 }'
}

write_report() {
  local of log
  printf '# On a GPU, %s\n\nSource: %s.\n\n' "$(date '+%-d %B %Y, %H:%M')" "$revision"
  cat "$name/probe.md"
  printf '\n## Verdicts\n\n| step | | |\n|---|---|---|\n'
  awk -F '\t' '!($1 in word) { order[++n] = $1 } { word[$1] = $2; text[$1] = $3 }
    END { for (i = 1; i <= n; i++) { w = word[order[i]]
      print "| " order[i] " | " (w == "failed" ? "**failed**" : w) " | " text[order[i]] " |" } }' "$verdicts"
  printf '\n## Milliseconds of a step\n\n| | evenkeel | without a wait | PyTorch, eager | PyTorch, compiled |\n|---|--:|--:|--:|--:|\n'
  for of in "${steps[@]}"; do
    printf '| %s, batch %s | %s | %s | %s | %s |\n' "${of%:*}" "${of#*:}" "$(milliseconds "$name/step-${of/:/-}.json")" \
      "$(begun "$name/step-${of/:/-}.json")" \
      "$(milliseconds "$name/peers-${of/:/-}-stock.json")" "$(milliseconds "$name/peers-${of/:/-}-compiled.json")"
  done
  [[ ! -s $name/counters.md ]] || { printf '\n## One step by kernel\n\n' && cat "$name/counters.md"; }
  for log in "$logs"/*.log; do
    case $log in
      */smoke.log | */nccl.log | */products.log | */kernels-*.log | */memory-*.log | */sanitizer-*.log) ;;
      *) continue ;;
    esac
    # shellcheck disable=SC2016
    printf '\n## %s\n\n```\n%s\n```\n' "$(basename "$log" .log)" "$(tail -n 60 "$log")"
  done
}

finish() {
  local code=$? failed=0 left=0
  trap - EXIT
  local -a running
  mapfile -t running < <(jobs -p)
  ((${#running[@]} == 0)) || kill "${running[@]}" 2>/dev/null || true
  wait || true
  write_report >"$name/report.md"
  tar -czf "$name.tar.gz" -C "$(dirname "$name")" "$(basename "$name")"
  ! grep -q '| \*\*failed\*\* |' "$name/report.md" || failed=1
  ! grep -q '| stopped |' "$name/report.md" || left=1
  printf '\n%s/report.md, all in %s.tar.gz\n' "$name" "$name"
  if ((code != 0)); then
    exit "$code"
  elif ((failed)); then
    printf 'failed: %s\n' "$(grep -c '| \*\*failed\*\* |' "$name/report.md")"
    exit 1
  elif ((left)); then
    printf 'not all is done: call bench/gpu/run again\n'
    exit 3
  fi
  exit 0
}
