#!/usr/bin/env bash
# check_kernels.sh KERNELS DEVICES: runs evenkeel-kernels in small and looks at what it says; on other
# devices than `cpu`, where the program does the same, only at whether every operation runs.
# shellcheck source=tests/support/script.sh
. "${BASH_SOURCE[0]%/*}/../support/script.sh"

kernels=$1
devices=$2

refused() { # CODE ARGUMENT...
  local code=0
  "$kernels" "${@:2}" >/dev/null 2>&1 || code=$?
  ((code == $1)) || fail "exit code $code and not $1 from: ${*:2}"
}

# Every operation, speeds that follow from bytes or operations and time to rounding, and ordered ratios.
look() { # TYPE TABLE
  awk -F, -v type="$1" '
    NR == 1 { next }
    {
      split($3, shape, " x ")
      bytes = $4
      if (bytes == "-") { # what a product multiplies, or attention of 16 tokens and 12 heads of 64
        width = 768
        flops = $1 ~ /attention/ ? ($1 ~ /forward/ ? 2 : 5) * 16 * 17 * width : 2 * shape[1] * shape[2] * width
        rate = flops / $5 * 1e-3
        if (!(rate > $11 * 0.9 - 0.1 && rate < $11 * 1.1 + 0.1)) { print "wrong GFLOP/s: " $0; bad = 1 }
        bytes = $6 * $5 / shape[1] / shape[2] * 1e3
        products++
      }
      speed = shape[1] * shape[2] * bytes / $5 * 1e-3
      if ($2 != type) { print "wrong type: " $0; bad = 1 }
      if (!(speed > $6 * 0.9 - 0.1 && speed < $6 * 1.1 + 0.1)) { print "wrong speed: " $0; bad = 1 }
      if (!($7 > 0 && $9 <= $8 && $8 <= $10)) { print "wrong ratio: " $0; bad = 1 }
    }
    END { exit bad || NR < 16 || products != 7 }' <<<"$2" || fail "$2"
}
small=(--mib 1 --tokens 16)
# Every operation of the library by its row in bench/kernels/operations.c alone
all=$("$kernels" --devices "$devices" "${small[@]}" --rounds 1 --only all -o csv)
for name in zero dropout sgd lookup_backward linear_gradients cross_entropy_gradient row_reduce; do
  grep -q "^$name,f32," <<<"$all" || fail "no $name with --only all: $all"
done
(($(wc -l <<<"$all") > 50)) || fail "few operations: $all"
if [[ $devices != cpu ]]; then
  printf 'check_kernels: as expected on %s\n' "$devices"
  exit
fi

table=$("$kernels" --devices "$devices" "${small[@]}" --rounds 3 -o csv)
look f32 "$table"
for type in bf16 f16; do
  narrow=$("$kernels" --devices cpu --type "$type" "${small[@]}" --rounds 1 -o csv)
  look "$type" "$narrow"
  # 4 bytes for 8; three sums read and written, one read, and the copy
  grep -q "^layer_norm_forward,$type,[0-9 x]*,4," <<<"$narrow" || fail "bytes of $narrow"
  grep -q "^adamw,$type,[0-9 x]*,30," <<<"$narrow" || fail "bytes of $narrow"
done
for name in cross_entropy_forward cross_entropy_backward layer_norm_forward layer_norm_backward; do
  grep -q "^$name," <<<"$table" || fail "no $name"
done
one=("${small[@]}" --rounds 1 --only adamw,linear)
"$kernels" "${one[@]}" -o md | grep -q '^| adamw | f32 |' || fail "no Markdown"
json=$("$kernels" "${one[@]}" --type bf16 --against f32 --threads 1 --processor-time -o json)
for part in '"command": "kernels"' '"against": "f32", "processor_time": true' '"threads": 1' \
  '"operation": "adamw", "type": "bf16"' '"flops": null' '"flops": 75497472' '"over_f32": {"median": '; do
  grep -qF "$part" <<<"$json" || fail "no $part in $json"
done
if command -v python3 >/dev/null; then
  python3 -m json.tool <<<"$json" >/dev/null || fail "no JSON: $json"
fi
(($(grep -c '"operation"' <<<"$json") == 2)) || fail "--only gave $json"

if [[ -e /dev/full ]]; then
  for line in --help --version '--mib 1 --rounds 1 --only add'; do
    code=0
    # shellcheck disable=SC2086 # several words
    "$kernels" $line >/dev/full 2>/dev/null || code=$?
    ((code == 1)) || fail "exit code $code from $line to a full disk"
  done
fi
refused 2 --devices cpu:2
refused 2 --devices plan:1
refused 2 --mib 0
refused 2 --type f64
refused 2 --rounds x
refused 2 -o html
refused 2 --tokens 0
refused 2 --threads -1
refused 2 --against f16
refused 2 --only add,nothing
refused 2 --only all,nothing
refused 2 --only ''
refused 1 --devices nonsense
printf 'check_kernels: as expected on %s\n' "$devices"
