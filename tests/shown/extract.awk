# extract.awk -v OUT=FOLDER FILE...: the C code that headers and pages show, one file for each block:
# OUT/<file's name>_<number>.inc, counted from 1; their names go to standard output.
#
# In a page (.md) a block is what stands between ```c and ```. In a header it is what a comment holds
# behind five blanks or more, with labels behind three, if it calls evenkeel: formulas and tables do
# not. A statement `...` becomes SHOWN_REST, for the test to fill in.

function flush_block(    name) {
  if (block != "" && (page || block ~ /(^|[^a-z_])(ek_[a-z_]+\(|EK_TRY)/)) {
    name = stem "_" ++count[stem] ".inc"
    printf "#line %d \"%s\"\n%s", start, FILENAME, block > (OUT "/" name)
    close(OUT "/" name)
    print name
  }
  block = gap = ""
}

function add(line) {
  if (block == "") start = FNR
  sub(/^ *\.\.\.( |$)/, "SHOWN_REST; ", line)
  block = block gap line "\n"
  gap = ""
}

FNR == 1 {
  flush_block()
  stem = FILENAME
  page = stem ~ /\.md$/
  sub(/.*\//, "", stem)
  sub(/\.[a-z]+$/, "", stem)
  gsub(/-/, "_", stem)
  inside = 0
}

page && /^```c$/ { inside = 1; next }
page && /^```$/ { if (inside) flush_block(); inside = 0; next }
page { if (inside) add($0); next }

/^ \*     / { add(substr($0, 8)); next }
/^ \*   [a-z_]+:$/ && block != "" { add(substr($0, 6)); next }
/^ \*$/ && block != "" { gap = gap "\n"; next }
{ flush_block() }

END { flush_block() }
