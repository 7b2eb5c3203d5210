#!/usr/bin/env bash
# check_code.sh NVCC SOURCES BOUNDS [OBJECT...]: holds what nvcc makes of the kernels to the bounds of a table, without
# a GPU.
#
# Loads and stores are counted in the PTX, which the instructions of the GPU follow where they are
# written in it as 16 bytes; registers and spills are what ptxas says for sm_80 and sm_90. The PTX is the
# module's own where its objects have it for sm_80 and as text (CUDAARCHS=80-virtual, CUDAFLAGS=-no-compress, as tests/run
# builds); else nvcc makes it again.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

nvcc=$1
sources=$2
bounds=$3
shift 3
objects=("$@")

if [[ -z $nvcc || ! -x $nvcc ]]; then
  printf 'check_code: skipped: there is no nvcc\n'
  exit 77
fi
ptxas=$(dirname "$nvcc")/ptxas
[[ -x $ptxas ]] || ptxas=ptxas
make_dir

# The PTX of a source, from its object or from nvcc.
make_ptx() { # SOURCE PTX
  local object
  for object in ${objects[@]+"${objects[@]}"}; do
    [[ $object == */"cuda_$1.cu.o" ]] || continue
    # The text ends with a zero.
    LC_ALL=C tr '\000' '\001' <"$object" |
      LC_ALL=C awk '/^\.version/ { on = !seen++ } /\001/ { on = 0 } on { print }' >"$2"
    ! grep -q '^\.target sm_80$' "$2" || return 0
  done
  "$nvcc" -std=c++17 -arch=sm_80 -ptx -I"$sources" -I"$sources/../include" \
    "$sources/backend/cuda/cuda_$1.cu" -o "$2"
}

# entry loads stores single products matrices, a line for each kernel of a PTX file
count() {
  awk '
    /\.entry/ { name = $0; sub(/.*\.entry /, "", name); sub(/[^A-Za-z0-9_].*/, "", name); seen[name] = 1 }
    /ld\.global[a-z.]*\.v4\.[fbu]32/ || /ld\.global[a-z.]*\.v2\.[fbu]64/ { loads[name]++ }
    /st\.global\.v4\.[fbu]32/ || /st\.global\.v2\.[fbu]64/ { stores[name]++ }
    /st\.global\.[fbu][0-9]/ { single[name]++ }
    /mma\.sync/ { products[name]++ }
    /ldmatrix\.sync/ { matrices[name]++ }
    END {
      for (n in seen) print n, loads[n] + 0, stores[n] + 0, single[n] + 0, products[n] + 0, matrices[n] + 0
    }' "$1"
}

# What ptxas says of PTX whose first line has its options, as a program that ccache takes for a compiler:
# ask [OPTION...] -c PTX -o ANSWER
cat >"$dir/ask" <<'END'
#!/usr/bin/env bash
set -euo pipefail
while (($# > 0)); do
  case $1 in
    -o) answer=$2 && shift ;;
    *.i) ptx=$1 ;;
  esac
  shift
done
read -ra options < <(sed -n '1s/^[^ ]* //p' "$ptx")
"$PTXAS" -v "${options[@]}" "$ptx" -o "$answer.code" >"$answer" 2>&1 || { cat "$answer" >&2; exit 1; }
END
chmod +x "$dir/ask"
PTXAS=$(command -v "$ptxas") || { complain "there is no ptxas"; exit 1; }
export PTXAS
ask=(./ask)
# The same ptxas says the same of the same PTX: 25 s for all of it, where ccache does not know.
if [[ ${EVENKEEL_CODE_CACHE-} == *ccache ]] && command -v "$EVENKEEL_CODE_CACHE" >/dev/null; then
  ask=(env -u CCACHE_DEPEND CCACHE_COMPILERTYPE=gcc CCACHE_COMPILERCHECK=content "CCACHE_EXTRAFILES=$PTXAS"
    CCACHE_NOHASHDIR=1 "$EVENKEEL_CODE_CACHE" ./ask)
fi

# entry registers spilled, of the entries named in a file
measure() { # PTX ARCHITECTURE ENTRIES
  { sed -e 's/^/-e /' "$3" | tr '\n' ' ' | sed -e "s|^|// -arch $2 |" && echo && cat "$1"; } >"$dir/code.i"
  (cd "$dir" && "${ask[@]}" -c code.i -o answer)
  awk '
    match($0, /Compiling entry function .[A-Za-z0-9_]+/) { name = substr($0, RSTART + 26, RLENGTH - 26) }
    / bytes spill stores/ { sub(/ bytes spill stores.*/, ""); sub(/.* /, ""); spilled = $0 }
    /Used [0-9]+ registers/ { sub(/.*Used /, ""); sub(/ .*/, ""); print name, $0, spilled }' "$dir/answer"
}

while read -r source; do
  ptx=$dir/$source.ptx
  make_ptx "$source" "$ptx"
  count "$ptx" >"$dir/counted"
  : >"$dir/entries"
  while read -r _ entry loads stores single _ _ products matrices; do
    lines=$(grep -E "$entry" "$dir/counted") || { complain "$source: no kernel $entry"; continue; }
    while read -r name has_loads has_stores has_single has_products has_matrices; do
      printf '%s\n' "$name" >>"$dir/entries"
      ((has_loads >= loads)) || complain "$source: $entry: $has_loads loads of 16 bytes, not $loads"
      ((has_stores >= stores)) || complain "$source: $entry: $has_stores stores of 16 bytes, not $stores"
      ((has_single <= single)) || complain "$source: $entry: $has_single stores of one element, more than $single"
      ((has_products >= ${products:-0})) || complain "$source: $entry: $has_products products, not $products"
      ((has_matrices <= ${matrices:-0})) || complain "$source: $entry: $has_matrices loads of matrices, more than $matrices"
    done <<<"$lines"
  done < <(grep "^$source " "$bounds")
  for architecture in sm_80 sm_90; do
    measure "$ptx" "$architecture" "$dir/entries" >"$dir/measured"
    while read -r _ entry _ _ _ registers spilled _; do
      lines=$(grep -E "$entry" "$dir/measured") || { complain "$source: ptxas tells nothing of $entry"; continue; }
      while read -r _ has_registers has_spilled; do
        ((has_registers <= registers)) ||
          complain "$source: $entry: $has_registers registers on $architecture, more than $registers"
        ((has_spilled <= spilled)) ||
          complain "$source: $entry: $has_spilled bytes spilled on $architecture, more than $spilled"
      done <<<"$lines"
    done < <(grep "^$source " "$bounds")
  done
done < <(grep -vE '^(#|$)' "$bounds" | cut -d ' ' -f 1 | sort -u)
# What the host runs of a function that is for the device alone is a stub of nvcc's, which ends the program without a
# word. Nothing else in these objects calls exit().
for object in ${objects[@]+"${objects[@]}"}; do
  ! nm -u "$object" | grep -qw exit ||
    complain "$(basename "$object"): the host calls a function that is __device__ alone"
done
((failed == 0)) || exit 1
printf 'check_code: %d kernels as written\n' "$(grep -cvE '^(#|$)' "$bounds")"
