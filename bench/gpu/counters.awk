# awk -v into=FILE -f counters.awk NOTES COUNTERS: one step by kernel, beside its prediction, as a table in Markdown.
#
# NOTES is docs/notes/cuda.md, whose table of predictions is read by its headings; COUNTERS is what
# `ncu --csv --page raw --print-units base` wrote of a program that makes several steps. A step ends
# with the launches of the update. The first one with as many launches as the one before it is the
# one that is shown: then nothing is chosen or loaded any more. It is an error if there is none, or
# if a kernel has no row.

# Fields of a line of CSV, with commas within quotes, into `field`; their number.
function split_csv(line, n, part) {
  n = 0
  while (length(line) > 0) {
    if (substr(line, 1, 1) == "\"") {
      match(line, /^"([^"]|"")*"/)
      part = substr(line, 2, RLENGTH - 2)
    } else {
      match(line, /^[^,]*/)
      part = substr(line, 1, RLENGTH)
    }
    field[++n] = part
    line = substr(line, RLENGTH + 2)
  }
  return n
}

function fail(text) {
  print "counters.awk: " text > "/dev/stderr"
  failed = 1
  exit 1
}

function number(text) {
  gsub(/,/, "", text)
  return text + 0
}

# The row of a kernel: of the table of predictions, or one more.
function row_of(name) {
  if (name ~ /product|gemm|nvjet|cutlass|xmma|splitK|cublas|multiply_kernel/) return "products"
  if (name ~ /update_kernel/) return "AdamW"
  if (name ~ /keys_kernel|queries_kernel|warp_backward_kernel|delta_kernel/) return "attention backward"
  if (name ~ /warp_forward_kernel|forward_kernel.*attended/) return "attention forward, tiles of 64"
  if (name ~ /[ :]loss<|combine_kernel/) return "cross-entropy with its gradient"
  if (name ~ /norm_gradient/) return "layer norm backward, with residual"
  if (name ~ /[ :]table<|[ :]gradient<|positions_kernel/) return "lookups"
  if (name ~ /[ :]forward</) return "layer norm forward, with residual"
  if (name ~ /[ :]backward</) return "layer norm backward, with residual"
  if (name ~ /column_kernel|finish_kernel/) return "bias gradients"
  if (name ~ /gelu/) return name ~ /backward_of/ ? "GELU backward" : "GELU forward"
  if (name ~ /_kernel/) return "others of the library"
  return ""
}

# ---- the predictions ----

FNR == NR {
  if ($0 !~ /^\|/) next
  n = split($0, cell, "|")
  for (i = 1; i <= n; i++) gsub(/^ +| +$/, "", cell[i])
  if (cell[2] == "kernel") {
    for (i = 3; i < n; i++) if (cell[i] ~ /, bf16$/) column[cell[i]] = i
    in_table = 1
  } else if (in_table && cell[2] !~ /^-/) {
    where = cell[2] ~ /^products/ ? "products" : cell[2]
    if (!(where in known)) order[++rows] = where
    known[where] = 1
    for (c in column) predicted[where, c] += cell[column[c]]
    if (where == "sum") in_table = 0
  }
  next
}

# ---- the counters ----

/^"?ID"?,/ {
  columns = split_csv($0)
  for (i = 1; i <= columns; i++) at[field[i]] = i
  next
}

!columns || /^==/ { next }

{
  split_csv($0)
  if (field[at["ID"]] == "") next # units
  name = field[at["Kernel Name"]]
  if (device == "" && "Device Name" in at) device = field[at["Device Name"]]
  update = name ~ /update_kernel/
  if (before && !update) step++
  before = update
  launches[step]++
  place = row_of(name)
  if (place == "") strange[step, name]++
  count[step, place]++
  nanoseconds[step, place] += number(field[at["gpu__time_duration.sum"]])
  bytes[step, place] += number(field[at["dram__bytes.sum"]])
  tensor[step, place] += number(field[at["sm__inst_executed_pipe_tensor.sum"]])
  busy = number(field[at["sm__warps_active.avg.pct_of_peak_sustained_active"]])
  active[step, place] += busy * number(field[at["gpu__time_duration.sum"]])
}

END {
  if (failed) exit 1
  if (!rows) fail("no table of predictions in the notes")
  if (!columns) fail("no launch in the file of ncu")
  for (chosen = 1; chosen <= step; chosen++) if (launches[chosen] == launches[chosen - 1]) break
  if (chosen > step) fail("no two steps in a row have as many launches: " step + 1 " steps")
  for (key in strange) {
    split(key, of, SUBSEP)
    if (of[1] == chosen) fail("no row for the kernel " of[2])
  }
  order[++rows] = "others of the library"
  printf "Step %d of what ran, %d launches. Predicted: docs/notes/cuda.md, for an H200 in bf16,\n", \
    chosen + 1, launches[chosen] > into
  print "GPT-2 124M and a batch of 8. Products of the layers and of the head are one row.\n" > into
  print "| kernel | launches | ms | predicted | GB | TB/s | tensor instructions, millions | warps active, % |" > into
  print "|---|--:|--:|--:|--:|--:|--:|--:|" > into
  for (i = 1; i <= rows; i++) {
    place = order[i]
    if (place == "sum") continue
    write_row(place, count[chosen, place], nanoseconds[chosen, place], bytes[chosen, place], \
              tensor[chosen, place], active[chosen, place])
    all += count[chosen, place]
    all_nanoseconds += nanoseconds[chosen, place]
    all_bytes += bytes[chosen, place]
    all_tensor += tensor[chosen, place]
    all_active += active[chosen, place]
  }
  if (all != launches[chosen]) fail(launches[chosen] - all " launches are in no row")
  write_row("sum", all, all_nanoseconds, all_bytes, all_tensor, all_active)
}

function write_row(place, launched, time, moved, instructions, warps) {
  printf "| %s | %d | %.3f | %s | %.3f | %s | %.2f | %s |\n", place, launched, time / 1e6, \
    (place in known ? sprintf("%.1f", predicted[place, "H200, bf16"]) : ""), moved / 1e9, \
    (time > 0 ? sprintf("%.2f", moved / time / 1e3) : ""), instructions / 1e6, \
    (time > 0 ? sprintf("%.0f", warps / time) : "") > into
}
