# overview.awk -v VERSION=X HEADER: the man page evenkeel(3) from the comment at the head of evenkeel.h.
# What is indented there is code, or a list: a header's name, two blanks or more, and what it is about.
# Each header is a paragraph, which man fills to the width of the terminal.

function clean(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); sub(/^[.']/, "\\\\&&", text); return text }
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
  list = /^    [a-z0-9_]+\.h  +/
  code = /^    / && !list
  if ($0 == "" && in_code) { print ""; next }
  if (in_code && !code) { print ".fi\n.in\n.PP"; in_code = 0 }
  if (list && !in_list) { print ".PD 0"; in_list = 1 }
  if (!list && in_list && $0 != "") { print ".PD\n.PP"; in_list = 0 }
  if (code && !in_code) { print ".in 0\n.nf"; in_code = 1 }
  if (list) {
    sub(/^ +/, "")
    printf ".PP\n.B %s\n.RS\n", clean($1)
    sub(/^[^ ]+ +/, "")
    printf "%s\n.RE\n", clean($0)
  } else if (code) print clean(substr($0, 5))
  else if ($0 != "") print clean($0)
  else if (!in_list) print ".PP"
}
END {
  if (in_list) print ".PD"
  print ".SH FILES\nPages that begin with docs/, and the examples, are in\n.I share/doc/evenkeel\nunder the prefix."
  print ".SH \"SEE ALSO\"\n.BR evenkeel\\-bench (1)"
}
