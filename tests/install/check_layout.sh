#!/usr/bin/env bash
# check_layout.sh TREE: one name, three paths. A public header include/evenkeel/X.h has exactly one
# source X.c under src/, parallel/, training/, criterion/ or check/, and one check tests/<folder>/check_X.c; evenkeel.h
# leads to every public header and names it once; a check checks a header that exists.
#
# It also holds check_options.c to the list of structs that state their size, and
# check_frozen_structs.c to the list of those that do not; device.h to the environment variables that
# the library reads; and all C to 100 columns.
#
# Exceptions follow from what is in a header: one without EK_API and without inline functions (it
# holds macros, or includes others, as evenkeel.h) has neither source nor check; one with inline
# functions alone needs no source.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

cd "$1"

# Every header that evenkeel.h includes, itself or through others.
declare -A reached=()
reach() {
  local name
  while IFS= read -r name; do
    [[ -z ${reached[$name]-} && -e include/evenkeel/$name.h ]] || continue
    reached[$name]=1
    reach "$name"
  done < <(sed -nE 's/^#include <evenkeel\/([a-z0-9_]+)\.h>.*/\1/p' "include/evenkeel/$1.h")
}
if [[ -e include/evenkeel/evenkeel.h ]]; then
  reached[evenkeel]=1
  reach evenkeel
fi

# The tutorial at its head has a line for each.
while IFS= read -r name; do
  complain "the head of evenkeel.h has no line, or a needless one, for $name"
done < <(comm -3 <(sed -nE '/\*\//q; s/^ \*     ([a-z0-9_]+\.h)  +[^ ].*/\1/p' include/evenkeel/evenkeel.h | sort) \
  <(find include/evenkeel -name '*.h' ! -name evenkeel.h -printf '%f\n' | sort) | tr -d '\t')

grep '^#include <evenkeel/' include/evenkeel/evenkeel.h | LC_ALL=C sort -c 2>/dev/null ||
  complain "the includes of evenkeel.h are not in the order of their names"

for header in include/evenkeel/*.h; do
  name=$(basename "$header" .h)
  # The only one that needs another library's header.
  [[ -n ${reached[$name]-} || $name == mpi ]] || complain "include/evenkeel/evenkeel.h does not lead to $name.h"

  declares=0 inlines=0
  ! grep -q '^EK_API ' "$header" || declares=1
  ! grep -qE '^(static inline|EK_INLINE) ' "$header" || inlines=1
  ((declares || inlines)) || continue

  mapfile -t sources < <(find src parallel criterion training check -name "$name.c" 2>/dev/null | sort)
  case ${#sources[@]} in
    0) ((!declares)) || complain "$header has no source $name.c in src/, parallel/, training/, criterion/ or check/" ;;
    1) ;;
    *) complain "$header has more than one source: ${sources[*]}" ;;
  esac

  mapfile -t checks < <(find tests -name "check_$name.c" | sort)
  case ${#checks[@]} in
    0) complain "$header has no check tests/<folder>/check_$name.c" ;;
    1) ;;
    *) complain "$header has more than one check: ${checks[*]}" ;;
  esac
done

# The other way round, for names that went out of date. A check of a whole (a training run, an
# example) belongs to no header and lives in tests/whole, or in tests/faults where the system's calls
# fail; one of the CUDA backend in tests/cuda, and one of the inside of src/world in tests/world.
while IFS= read -r check; do
  name=$(basename "$check" .c)
  name=${name#check_}
  [[ $check == tests/whole/* || $check == tests/faults/* || $check == tests/cuda/* || $check == tests/world/* || -e include/evenkeel/$name.h ]] ||
    complain "$check has no header include/evenkeel/$name.h"
done < <(find tests -name 'check_*.c' | sort)

# Every struct whose first member is its size is in the list of the program that checks the rule for it.
while IFS= read -r name; do
  grep -q "^  X($name," tests/whole/check_options.c ||
    complain "tests/whole/check_options.c does not list $name"
done < <(awk '/^typedef struct [a-z0-9_]+ \{$/ { name = $3; next }
              /^  size_t size;/ && name != "" { print name }
              { if ($0 !~ /^ *\/?\*/) name = "" }' include/evenkeel/*.h | sort)

# Every other struct that a program reads is in the list of those that are frozen; ek_criterion is a base.
while IFS= read -r name; do
  [[ $name == ek_criterion ]] || grep -q "^  { S($name," tests/whole/check_frozen_structs.c ||
    complain "tests/whole/check_frozen_structs.c does not list $name, which states no size"
done < <(awk '/^typedef struct [a-z0-9_]+ \{$/ { name = $3; next }
              /^  size_t size;/ { name = "" }
              name != "" && $0 !~ /^ *\/?\*/ { print name; name = "" }' include/evenkeel/*.h | sort)

# The environment variables that the library reads are those that device.h explains, as literals; those
# of the programs are in docs/benchmark.md.
variables() { # FOLDER...: what is read there, one a line
  grep -rhoE --include='*.c' --include='*.h' --include='*.cu' '\bgetenv\([^)]*\)' "$@" |
    sed -E 's/.*getenv\("?([^")]*)"?\)/\1/' | sort -u
}
read_there=$(variables src parallel criterion training check)
explained=$(sed -nE '/^ \* These are all environment variables/,/^ \* Libraries/ s/^ \*     ([A-Z][A-Z0-9_, ]*[A-Z0-9])(  .*)?$/\1/p' \
  include/evenkeel/device.h | tr -s ', ' '\n' | sort -u)
while IFS= read -r name; do
  complain "of the environment, $name is either read by the library or explained in device.h, and not both"
done < <(comm -3 <(printf '%s\n' "$read_there") <(printf '%s\n' "$explained") | tr -d '\t')
while IFS= read -r name; do
  grep -q "\`$name\`" docs/benchmark.md || complain "docs/benchmark.md does not explain $name, which a program reads"
done < <(variables programs bench)

# A free returns nothing (status.h).
while IFS= read -r line; do
  complain "a free that returns something: $line"
done < <(grep -hE '^EK_API .*_free\(' include/evenkeel/*.h | grep -vE '^EK_API void ')

# The order of arguments (status.h), as far as types show it: a handle that is made comes first, options
# come last, and an operation has its stream, results, inputs and then numbers.
declarations() { # each on a line, without comments
  sed -E 's,/\*[^*]*\*/,,g; /^ *\/?\*/d; /^#/d' include/evenkeel/*.h | tr '\n' ' ' | sed -E 's/EK_API/\n&/g' |
    sed -nE 's/^EK_API ([^;{]*)\);.*/\1/p' | tr -s ' '
}
while IFS= read -r line; do
  complain "the order of the arguments: $line"
done < <(declarations | awk '{
  arguments = $0; sub(/^[^(]*\( ?/, "", arguments)
  name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name)
  count = split(arguments, argument, ", ")
  wrong = kind = 0
  for (i = 1; i <= count; i++) {
    this = argument[i]
    if (this ~ /\*\*/ && i > 1) wrong = 1
    if (this ~ /^const ek_[a-z_]*_options \*/ && i < count) wrong = 1
    if (this ~ /^void \*context$/ && i < count && argument[count] !~ /_options \*/) wrong = 1
    if (name !~ /^ek_op_/) continue
    if (this ~ /^bool transpose/) continue # belongs to the matrix before it
    last = kind
    kind = this ~ /^ek_stream/ ? 1 : this ~ /^ek_tensor/ ? 2 : this ~ /^const ek_tensor/ ? 3 : 4
    if (kind < last || (i == 1 && kind != 1)) wrong = 1
  }
  if (wrong || count > 8) print name "(" arguments ")"
  seen++
} END { if (seen < 250) print "only " seen " functions were found" }')

while IFS= read -r line; do
  complain "wider than 100 columns: $line"
done < <(LC_ALL=C.UTF-8 grep -rnE --include='*.c' --include='*.cc' --include='*.h' --include='*.cu' --include='*.cuh' \
  '^.{101}' src include parallel criterion training check bench programs examples tests 2>/dev/null | cut -c1-120)

# Two sources of one name would make the name say nothing.
while IFS= read -r name; do
  complain "more than one source is called $name"
done < <(find src parallel criterion training check -name '*.c' -printf '%f\n' 2>/dev/null | sort | uniq -d)

finish "every header has its source and its check"
