# man.awk -v NAME=PROGRAM -v VERSION=X -v WHAT=LINE: a man page from the --help of a program that uses argp, and of its commands: on
# standard input, each behind a line "@ COMMAND" ("@" alone: the program's own).
#
# Options become tagged paragraphs, headings (" Training:") subsections, everything else text.

function clean(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); sub(/^[.']/, "\\\\\\&&", text); return text }
function text_line(line) { sub(/^ +/, "", line); sub(/ +$/, "", line); if (line != "") print clean(line) }

BEGIN {
  printf ".TH %s 1 \"\" \"evenkeel %s\" \"User Commands\"\n", toupper(NAME), VERSION
  printf ".SH NAME\n%s \\- %s\n", clean(NAME), clean(WHAT)
}

/^@/ { command = $2; begun = 0; option = 0; list = 0; next }

/^Usage: / {
  print command == "" ? ".SH SYNOPSIS" : ".SH \"" toupper(command) "\""
  sub(/^Usage: /, "")
  sub(/ +$/, "")
  printf ".B %s\n", clean($0)
  print command == "" ? ".SH DESCRIPTION" : ".PP"
  begun = 1
  next
}

/^ [A-Z][a-z]+:$/ { sub(/:$/, ""); printf ".SS \"%s\"\n", clean(substr($0, 2)); option = 0; next }
/^[A-Z][a-z]+:$/ { sub(/:$/, ""); printf ".SS \"%s\"\n", clean($0); list = 1; option = 0; next }

# An option, and what stands behind it on its line or on those below.
/^ +(-[a-zA-Z?], +)?--?[a-z?]/ && !list {
  line = $0
  sub(/^ +/, "", line)
  at = match(line, /  +/)
  words = at ? substr(line, at + RLENGTH) : ""
  if (at) line = substr(line, 1, at - 1)
  printf ".TP\n.B %s\n", clean(line)
  text_line(words)
  option = 1
  next
}
/^                 / && option { text_line($0); next }

# A command of the list.
list && /^  [a-z]/ {
  name = $1
  $1 = ""
  printf ".TP\n.B %s\n", clean(name)
  text_line($0)
  next
}
/^ *$/ { if (begun && !option) print ".PP"; list = 0; next }
/^Mandatory or optional/ { getline; next }
{ if (option) print ".PP"; option = 0; text_line($0) }
