# reference.awk HEADER: a public header as Doxygen reads it, on standard output. The headers' comments are
# plain: here each that stands before a declaration, or behind one on its line, is marked as its
# description, and what its lines mean by their place is said in Doxygen's words:
#
#   file.h - what it is        the first line of a header: its brief description
#   EK_ERR_X  when             an error that a function returns
#   - text                     an item of a list; numbers and "a." are no lists
#   two blanks or more         code, a table or a formula: as it stands
#
# Declarations in one paragraph share the comment above the first. A type without a comment gets a reference
# to its header, which describes it. All that Doxygen could take for a command of its own is escaped.
# -v CHECK=1: prints nothing but the functions that have no description, and ends with 1 if there are any.

function escaped(text) {
  gsub(/[\\@&<>#%]/, "\\\\&", text)
  gsub(/::/, ":\\:", text)
  return text
}

function leave() { # what an indented line has begun
  if (verbatim) body = body "@endverbatim\n"
  verbatim = 0
  body = body gap
  gap = ""
}

# A line of a comment, without the star.
function comment_line(text,    words) {
  sub(/ +$/, "", text)
  if (name == "evenkeel.h" && match(text, /^    [a-z0-9_]+\.h  +/)) { # a header, and what it is about
    leave()
    body = body "- " substr(text, 5, index(text, ".h") - 3) ": " escaped(substr(text, RLENGTH + 1)) "\n"
    return
  }
  if (text == "") {
    gap = gap "\n"
    item = 0
    return
  }
  if (match(text, /^ ? ?- /)) { # an item
    leave()
    item = 1
    body = body "- " escaped(substr(text, RLENGTH + 1)) "\n"
  } else if (match(text, /^EK_ERR_[A-Z_]+(, EK_ERR_[A-Z_]+)*  +/)) {
    leave()
    item = 1
    words = substr(text, 1, RLENGTH)
    text = substr(text, RLENGTH + 1)
    sub(/ +$/, "", words)
    gsub(/, /, ",", words)
    body = body "@retval " words " " escaped(text) "\n"
  } else if (text ~ /^  / && !item) {
    if (!verbatim) { body = body gap "@verbatim\n"; gap = ""; verbatim = 1 }
    body = body gap text "\n"
    gap = ""
  } else {
    if (text !~ /^ /) {
      if (item && gap == "" ) body = body "\n"
      item = 0
    }
    leave()
    sub(/^ +/, "", text)
    body = body escaped(text) "\n"
  }
}

# The comment that was read, `opening` before it.
function description(opening,    text) {
  leave()
  text = opening " " body "*/"
  body = ""
  item = 0
  return text
}

# A comment that begins in the line, at the place AT: all of it, in as many lines as it has.
function read_comment(text,    end) {
  body = gap = ""
  item = verbatim = 0
  sub(/^\/\*/, "", text)
  sub(/^ /, "", text)
  while (1) {
    end = index(text, "*/")
    if (end) {
      rest = substr(text, end + 2)
      if (substr(text, 1, end - 1) !~ /^ *$/) comment_line(substr(text, 1, end - 1))
      return
    }
    if (text != "" || body != "") comment_line(text)
    if ((getline text) <= 0) return
    sub(/^ *\* ?/, "", text)
    if (text ~ /^\/$/) text = "*/"
  }
}

function say(text) { if (!CHECK) print text }

# What stands before the declaration of WORD: its own comment, or that of the first in its paragraph.
function describe(word) {
  if (pending != "") {
    say(pending)
    shared = word == "" ? "" : pending
    owner = word
  } else if (shared != "" && word != "") {
    text = shared
    sub(/^\/\*\* /, "", text)
    say(word ~ /_free\(\)$/ ? "/** Frees what " owner " made. */" : "/** With " owner ": " text)
  }
  pending = ""
}

FNR == 1 {
  getline
  sub(/^ \* /, "")
  name = $1
  text = $0
  sub(/^[^ ]+ - /, "", text)
  body = gap = ""
  item = verbatim = 0
  brief = escaped(text)
  while ((getline text) > 0 && text !~ /\*\/$/) {
    sub(/^ \* ?/, "", text)
    if (text == "" && brief !~ /\n$/) brief = brief "\n"
    if (brief !~ /\n$/) brief = brief " " escaped(text)
    else comment_line(text)
  }
  leave()
  if (name == "evenkeel.h") say("/** @mainpage evenkeel\n" "This library " brief body "*/")
  say("/** @file\n@brief " brief body "*/")
  body = ""
  next
}

# Preprocessor lines as they are, without comments; a macro may go on.
continued || /^ *#/ {
  if (!continued && /^#define EK_/) {
    if (pending == "" && shared == "" && $2 ~ /_INIT$/) pending = "/** Initial values: the size, and the defaults. */"
    describe($2)
  }
  continued = /\\$/
  sub(/ *\/\*.*\*\/$/, "")
  say($0)
  next
}

/^ *\/\* (----|clang-format)/ { next }

/^ *\/\*/ { # before a declaration
  text = $0
  sub(/^ */, "", text)
  read_comment(text)
  pending = description("/**")
  shared = ""
  next
}

/^ *$/ { pending = shared = ""; say($0); next }

/^EK_API [^(;]*$/ { # the name is in the next line
  text = $0
  getline
  $0 = text "\n" $0
}

{
  word = $0
  if (/^EK_API / && match(word, /ek_[a-z0-9_]+\(/)) word = substr(word, RSTART, RLENGTH - 1) "()"
  if (/^EK_API /) open = pending == "" && shared == "" ? word : ""
  if (/^(EK_API|EK_INLINE) /) describe(word)
  else {
    if (/^typedef / && pending == "") pending = "/** See " name ". */"
    describe(/^typedef struct [a-z_]+ [a-z_]+;/ ? name : "")
  }
  at = index($0, "/*")
  if (at) open = ""
  if (open != "" && /;/) {
    printf "%s: %s has no description\n", FILENAME, open > "/dev/stderr"
    missing = 1
    open = ""
  }
  if (!at) { say($0); next }
  code = substr($0, 1, at - 1)
  read_comment(substr($0, at))
  say(code description("/**<") rest)
}

END { exit missing }
