# overview.awk -v VERSION=X HEADER: the man page evenkeel(3) from the comment at the head of evenkeel.h.
# What is indented there is a list: names of headers, two blanks or more, and what they are about; once
# or twice in a line, or the second alone in the next line. Here each header is a paragraph, which man
# fills to the width of the terminal.

function clean(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); sub(/^[.']/, "\\\\&&", text); return text }
function described(text) { printf ".RS\n%s\n.RE\n", clean(text) }

function entry(line,    part, n, i) {
  if (line ~ /^     /) {
    sub(/^ +/, "", line)
    described(line)
    return
  }
  sub(/^ +/, "", line)
  n = split(line, part, /  +/)
  for (i = 1; i <= n; i += 2) {
    printf ".PP\n.B %s\n", clean(part[i])
    if (i < n) described(part[i + 1])
  }
}

NR == 1 { next }
/^ \*\// { exit }
NR == 2 {
  sub(/^ \* evenkeel\.h - /, "")
  sub(/\.$/, "")
  printf ".TH EVENKEEL 3 \"\" \"evenkeel %s\" \"Library Functions\"\n", VERSION
  printf ".SH NAME\nevenkeel \\- %s\n", clean($0)
  print ".SH SYNOPSIS\n.nf\n.B #include <evenkeel/evenkeel.h>\n.PP\ncc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs evenkeel)\n.fi"
  print ".SH DESCRIPTION\n.nh"
  next
}
{
  sub(/^ \* ?/, "")
  list = /^    /
  if (list && !within) print ".PD 0"
  if (!list && within && $0 != "") { print ".PD\n.PP"; within = 0 }
  if (list) within = 1
  if (list) entry($0)
  else if ($0 == "") { if (!within) print ".PP" }
  else print clean($0)
}
END {
  if (within) print ".PD"
  print ".SH FILES\nPages that begin with docs/, and the examples, are in\n.I share/doc/evenkeel\nunder the prefix."
  print ".SH \"SEE ALSO\"\n.BR evenkeel\\-bench (1)"
}
