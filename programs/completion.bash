# shellcheck shell=bash
# Completion of evenkeel-bench and evenkeel-train for bash: commands, options and most of their values are asked of the
# program, as --help has them.
_evenkeel() {
  local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local words="" command=()
  if [[ ${program##*/} == evenkeel-bench ]]; then command=("${COMP_WORDS[1]-}"); fi
  if [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD - 2]}; fi
  if [[ $current == = ]]; then current=""; fi
  _evenkeel_help() { "$program" ${command[@]+"${command[@]}"} --help 2>/dev/null | tr -s ' \n' ' '; } # in one line
  # Of an option of evenkeel-train whose text ends with ": a (default), b, c".
  _evenkeel_values() {
    _evenkeel_help | sed -nE "s/.* $previous=NAME (.*)/\\1/p" |
      sed -E 's/ (-., )?--[a-z].*//; s/ [A-Z][a-z]+:$//; s/.*: //; s/\(default\)//; s/,/ /g'
  }
  COMPREPLY=()
  if ((COMP_CWORD == 1 && ${#command[@]} > 0)); then
    words=$("$program" --help 2>/dev/null | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p')
    words+=" --help --version"
  elif ((${#command[@]} == 0)) && [[ $previous == --* ]] && words=$(_evenkeel_values) && [[ $words ]]; then
    : # one of these
  else
    case $previous in
      --preset)
        words=$(_evenkeel_help | sed -n 's/.*Model and batch to start from: \([^;]*\);.*/\1/p' |
          sed 's/(default)//; s/,/ /g')
        ;;
      --modes) words="all $(_evenkeel_help | sed -n 's/.*--modes=LIST Any of \([^;]*\);.*/\1/p' | tr , ' ')" ;;
      -o | --output) words="table md csv json" ;;
      --optimizer) words="adamw sgd" ;;
      --loss) words="whole fused" ;;
      --precision) words="f32 tf32 bf16 f16" ;;
      --gradient-type) words="f32 bf16 f16" ;;
      --recompute) words="none every= sqrt all cheap" ;;
      --scatter) words="even chunk sizes= weights=" ;;
      --devices) words="cpu: cuda: plan:" ;;
      --data | --report | --trace | --timeline | --export-json | --export-csv | --validation | --save | --best | --out | \
        --metrics | --model)
        compopt -o filenames 2>/dev/null || true # fails outside a completion, as in a test
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return
        ;;
      *) words=$("$program" ${command[@]+"${command[@]}"} --help 2>/dev/null | grep -oE -- '^ +(-[a-z], )?--[a-z0-9-]+' |
        grep -oE -- '--[a-z0-9-]+') ;;
    esac
  fi
  local before="" # of a list: what stands before the last comma
  if [[ $previous == --@(modes|precision) && $current == *,* ]]; then before=${current%,*},; fi
  mapfile -t COMPREPLY < <(compgen -P "$before" -W "$words" -- "${current#"$before"}")
}
complete -o default -F _evenkeel evenkeel-bench evenkeel-train
