# overview.awk -v VERSION=X HEADER: the man page evenkeel(3) from the comment at the head of evenkeel.h. What is indented there
# is a list and keeps its lines.

function clean(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); sub(/^[.']/, "\\\\&&", text); return text }

NR == 1 { next }
/^ \*\// { exit }
NR == 2 {
  sub(/^ \* evenkeel\.h - /, "")
  sub(/\.$/, "")
  printf ".TH EVENKEEL 3 \"\" \"evenkeel %s\" \"Library Functions\"\n", VERSION
  printf ".SH NAME\nevenkeel \\- %s\n", clean($0)
  print ".SH SYNOPSIS\n.nf\n.B #include <evenkeel/evenkeel.h>\n.PP\ncc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs evenkeel)\n.fi"
  print ".SH DESCRIPTION"
  next
}
{
  sub(/^ \* ?/, "")
  list = /^    /
  if (list && !within) print ".PP\n.nf"
  if (!list && within && $0 != "") { print ".fi\n.PP"; within = 0 }
  if (list) within = 1
  if ($0 == "") { if (!within) print ".PP" } else print clean($0)
}
END { if (within) print ".fi"; print ".SH \"SEE ALSO\"\n.BR evenkeel\\-bench (1)" }
