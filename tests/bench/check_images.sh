#!/usr/bin/env bash
# check_images.sh TRAIN_IMAGES: the page that --report writes, in Chromium: each picture has its pixels, the matrix has
# a row for each class, and nothing is fetched.

# shellcheck source=tests/bench/browser.sh
. "$(dirname "${BASH_SOURCE[0]}")/browser.sh"
browser_begin chromium

look() { # NAME PICTURES CELLS ARGUMENT...
  local page=$1 pictures=$2 cells=$3
  shift 3
  "$train" --steps 2 --report "$dir/$page.html" "$@" >"$dir/out" 2>"$dir/err" || complain "$page: $(cat "$dir/err")"
  {
    printf '<script>onerror = m => { document.title += " error " + m; };\n'
    printf 'addEventListener("load", () => {\n'
    printf '  const all = [...document.images].filter(i => i.naturalWidth === 32 && i.naturalHeight === 32);\n'
    printf '  const pen = document.createElement("canvas").getContext("2d");\n'
    printf '  const lit = all.filter(i => { pen.drawImage(i, 0, 0);\n'
    printf '    return new Set(pen.getImageData(0, 0, 32, 32).data).size > 2; });\n'
    printf '  document.title += ` ${all.length} pictures, ${lit.length} drawn, '
    printf '${document.querySelectorAll("td").length} cells`;\n'
    printf '});</script>\n'
  } >>"$dir/$page.html"
  timeout 60 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
    --disable-background-networking --user-data-dir="$dir/profile" --dump-dom "file://$dir/$page.html" \
    >"$dir/dom" 2>"$dir/browser" || complain "Chromium: $(tail -n 3 "$dir/browser")"
  grep -q "<title>train_images $pictures pictures, $pictures drawn, $cells cells</title>" "$dir/dom" ||
    complain "$page: expected $pictures pictures and $cells cells: $(grep -o '<title>.*</title>' "$dir/dom")"
}

train=$1
look classes 8 9
look segments 24 16 --segment
browser_end
