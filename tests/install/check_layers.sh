#!/usr/bin/env bash
# check_layers.sh TREE: includes go down the layers only (docs/architecture.md).
#
# A public header <evenkeel/X.h> belongs to the layer of X.c, by the rule "one name, three
# paths", so an include of it counts as a use of that layer. Standard and third-party headers are
# not looked at. programs/, bench/, examples/ and tests/ see <evenkeel/...> and their own headers only (bench/ also those
# of programs/); tests/cuda
# and tests/cuemu stand in for what is below the library and see its inside, and so do tests/mpi/wire.c,
# programs of tests/world and tests/fuzz/fuzz_world.c.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

cd "$1"

# What a layer may use beside itself.
declare -A uses=(
  [core]=""
  [world]="core"
  [backend]="core device:types"
  [device]="core world backend"
  [op]="core device backend"
  [module]="core device op"
  [optim]="core device op"
  [io]="core world device op module optim"
  [criterion]="core device op module"
  [model]="core device op module criterion"
  [parallel]="core world device backend op module optim io criterion"
  [training]="core world device op module optim io criterion model parallel"
  [check]="core device module" # a library of its own: of core and device only what headers hold
)

# Sets `layer` to that of a path in the tree; "" when it has none.
layer_of() {
  layer=
  case $1 in
    src/*/*)
      layer=${1#src/}
      layer=${layer%%/*}
      ;;
    criterion/* | parallel/* | training/* | check/*) layer=${1%%/*} ;;
  esac
}

# The layer of the public header <evenkeel/NAME.h>; "" for those that have no source.
declare -A public_layer=()
while IFS= read -r source; do
  name=${source##*/}
  layer_of "$source"
  public_layer[${name%.c}]=$layer
done < <(find src parallel criterion training check -name '*.c' 2>/dev/null)

allowed() { # FROM TO KIND
  local from=$1 to=$2 kind=$3 item
  [[ -z $to || $to == "$from" ]] && return 0
  for item in ${uses[$from]-}; do
    [[ $item == "$to" ]] && return 0
    # A backend knows the types of a device, through public headers, but none of its inside.
    [[ $item == "$to:types" && $kind == public ]] && return 0
  done
  return 1
}

# Includes of the files on stdin, one a line: FILE, a tab, and "<path" or "\"path".
# shellcheck disable=SC2016 # $0 is a field of awk
includes() {
  xargs awk '
    match($0, /^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"][^>"]+[>"]/) {
      include = substr($0, RSTART, RLENGTH - 1)
      sub(/^[^<"]*/, "", include)
      print FILENAME "\t" include
    }'
}

# The library.
while IFS=$'\t' read -r file include; do
  case $file in
    include/*)
      name=${file##*/}
      from=${public_layer[${name%.h}]-}
      ;;
    *)
      layer_of "$file"
      from=$layer
      ;;
  esac
  [[ -n $from ]] || continue
  [[ -v uses[$from] ]] || {
    complain "$file is in a layer that check_layers.sh does not know"
    continue
  }
  path=${include:1}
  case $include in
    '<evenkeel/'*)
      name=${path##*/}
      to=${public_layer[${name%.h}]-}
      kind=public
      ;;
    '"'*)
      kind=private
      if [[ -e ${file%/*}/$path ]]; then
        target=${file%/*}/$path
        [[ $path != *../* ]] || target=$(realpath --relative-to=. "$target")
      elif [[ -e src/$path ]]; then
        target=src/$path
      elif [[ -e $path ]]; then
        target=$path
      else
        complain "$file includes \"$path\", which is neither beside it nor under src/ or the root"
        continue
      fi
      layer_of "$target"
      to=$layer
      ;;
    *) continue ;;
  esac
  allowed "$from" "$to" "$kind" || complain "$file ($from) includes $path ($to)"
done < <(find include/evenkeel src parallel criterion training check -name '*.[ch]' 2>/dev/null | sort | includes)

# Programs: <evenkeel/...>, their own folder, and for tests the helpers of tests/support.
while IFS=$'\t' read -r file include; do
  top=${file%%/*}
  path=${include:1}
  case $include in
    '<evenkeel/'*) [[ -e include/$path ]] || complain "$file includes <$path>, which is not there" ;;
    '"'*)
      # The list of operations is the benchmark's and the tests'.
      [[ $file == tests/* && $path == operations.h && -e bench/kernels/$path ]] && continue
      # What is shown: the build extracts it; an example is a part of it.
      [[ $file == tests/shown/* && ($path == *.inc || -e examples/$path) ]] && continue
      [[ $top == bench && -e programs/$path ]] && continue # what the programs share
      [[ -e ${file%/*}/$path || -e $top/$path || ($top == tests && -e tests/support/$path) ]] ||
        complain "$file includes \"$path\", which is not its own"
      [[ $path != ../../* && $path != *src/* ]] || complain "$file includes $path"
      ;;
  esac
done < <(find programs bench examples tests -name '*.[ch]' -not -path 'tests/cu*' -not -path tests/mpi/wire.c -not -path 'tests/world/*' \
  -not -path tests/fuzz/fuzz_world.c 2>/dev/null | sort | includes)

# Stock layers, criteria and models use what a program's own have: public headers, and helpers that
# are written so themselves. What they have besides gives nothing that a program lacks: messages of
# errors, reading of options, and host memory.
while IFS=$'\t' read -r file include; do
  case $include in
    '<'* | '"core/error.h' | '"core/options.h' | '"core/alloc.h' | '"core/sizes.h') ;;
    '"module/layer_internal.h' | '"module/composite.h' | '"module/product.h') ;;
    '"model/'*_internal.h | '"model/decoder.h' | '"entropy_terms.h') ;;
    *) complain "$file, a stock layer, includes ${include:1}" ;;
  esac
done < <({
  grep -rlF 'EK__LAYER(' src criterion --include='*.c'
  printf '%s\n' src/model/*.[ch] criterion/entropy_terms.h src/module/mlp.c \
    src/module/layer_internal.[ch] src/module/composite.[ch] src/module/product.[ch]
} | sort -u | includes)

# The members of a module, a criterion, an optimizer and a source are for the file that fills them in,
# and for tests of misuse; those of shards are for parallel/.
while IFS= read -r file; do
  case $file in
    src/module/module.c | criterion/criterion.c | src/optim/optimizer.c | src/io/source.c) ;;
    parallel/*.c) ;;
    *) complain "$file uses private_members, expected the functions that return them" ;;
  esac
done < <(grep -rlF private_members src parallel training criterion check programs bench examples docs/*.md \
  README.md --include='*.[ch]' --include='*.md' 2>/dev/null || true)

finish "includes go down only"
