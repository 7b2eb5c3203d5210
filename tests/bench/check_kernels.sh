#!/usr/bin/env bash
# check_kernels.sh KERNELS DEVICES: runs evenkeel-kernels in small and looks at what it says.
set -euo pipefail

kernels=$1
devices=$2

fail() {
  printf 'check_kernels: %s\n' "$*" >&2
  exit 1
}

refused() { # CODE ARGUMENT...
  local code=0
  "$kernels" "${@:2}" >/dev/null 2>&1 || code=$?
  ((code == $1)) || fail "exit code $code and not $1 from: ${*:2}"
}

table=$("$kernels" --devices "$devices" --mib 1 --rounds 3 -o csv)
# Every operation, speeds that follow from bytes and time to rounding, and ordered ratios.
awk -F, '
  NR == 1 { next }
  {
    split($2, shape, " x ")
    speed = shape[1] * shape[2] * $3 / $4 * 1e-3
    if (!(speed > $5 * 0.9 - 0.1 && speed < $5 * 1.1 + 0.1)) { print "wrong speed: " $0; bad = 1 }
    if (!($6 > 0 && $8 <= $7 && $7 <= $9)) { print "wrong ratio: " $0; bad = 1 }
  }
  END { exit bad || NR < 7 }' <<<"$table" || fail "$table"
for name in cross_entropy_forward cross_entropy_backward layer_norm_forward layer_norm_backward; do
  grep -q "^$name," <<<"$table" || fail "no $name"
done
"$kernels" --mib 1 --rounds 1 -o md | grep -q '^| adamw |' || fail "no Markdown"

if [[ -e /dev/full ]]; then
  for line in --help --version '--mib 1 --rounds 1'; do
    code=0
    # shellcheck disable=SC2086 # several words
    "$kernels" $line >/dev/full 2>/dev/null || code=$?
    ((code == 1)) || fail "exit code $code from $line to a full disk"
  done
fi
refused 2 --devices cpu:2
refused 2 --devices plan:1
refused 2 --mib 0
refused 2 --rounds x
refused 2 -o json
refused 1 --devices nonsense
printf 'check_kernels: as expected on %s\n' "$devices"
