# links.awk FILES PAGE...: follows the links of pages, Markdown or HTML. FILES names every file and folder
# that is there, one a line, as the pages' own names do: relative to the same folder. Prints where a dead
# link stands, and ends with 1 if there is one.

# GitHub's rule for the name of a heading: lower case, no punctuation, hyphens for blanks.
function anchor(heading,    name) {
  name = tolower(heading)
  gsub(/\]\([^)]*\)/, "", name)
  gsub(/[^a-z0-9 _-]/, "", name)
  gsub(/ /, "-", name)
  return name
}

# FOLDER/PATH without `.` and `..`; empty if it leaves the root.
function normal(folder, path,    part, n, i, kept, depth, result) {
  n = split((folder == "" ? "" : folder "/") path, part, "/")
  depth = 0
  for (i = 1; i <= n; i++) {
    if (part[i] == "" || part[i] == ".") continue
    if (part[i] != "..") kept[++depth] = part[i]
    else if (depth-- == 0) return ""
  }
  result = kept[1]
  for (i = 2; i <= depth; i++) result = result "/" kept[i]
  return depth == 0 ? "." : result
}

function link(target) {
  if (target ~ /^(https?|mailto|javascript):/ || target == "") return
  links++
  at[links] = FILENAME
  line[links] = FNR
  to[links] = target
}

FNR == 1 { file_number++; fenced = 0 }
file_number == 1 { there[$0] = 1; next }

FILENAME ~ /\.md$/ {
  if (/^```/) { fenced = !fenced; next }
  if (fenced) next
  text = $0
  if (text ~ /^#+ /) {
    sub(/^#+ /, "", text)
    name = anchor(text)
    if (seen[FILENAME, name]++) name = name "-" (seen[FILENAME, name] - 1)
    anchors[FILENAME "#" name] = 1
  }
  gsub(/`[^`]*`/, "`", text) # code is no link
  while (match(text, /\]\([^() ]+\)/)) {
    link(substr(text, RSTART + 2, RLENGTH - 3))
    text = substr(text, RSTART + RLENGTH)
  }
  next
}

{
  text = $0
  while (match(text, /(id|name|href|src)="[^"]*"/)) {
    word = substr(text, RSTART, RLENGTH)
    text = substr(text, RSTART + RLENGTH)
    value = word
    sub(/^[a-z]+="/, "", value)
    sub(/"$/, "", value)
    if (word ~ /^(id|name)/) anchors[FILENAME "#" value] = 1
    else link(value)
  }
}

END {
  for (i = 1; i <= links; i++) {
    path = to[i]
    sub(/#.*/, "", path)
    place = to[i] ~ /#/ ? substr(to[i], index(to[i], "#")) : ""
    folder = at[i]
    if (!sub(/\/[^\/]*$/, "", folder)) folder = ""
    target = path == "" ? at[i] : normal(folder, path)
    if (!(target in there)) problem = "which is not there"
    else if (place != "" && !((target place) in anchors)) problem = "which has no such heading"
    else continue
    printf "check_links: %s:%d points to %s, %s\n", at[i], line[i], to[i], problem > "/dev/stderr"
    dead++
  }
  printf "check_links: %d links of %d pages\n", links, file_number - 1
  if (dead || links == 0) exit 1
}
