#!/usr/bin/env bash
# check_print.sh BENCH: pages of --report as a dark browser prints them: on a few pages, light, in colour,
# with every number of the tables, and nothing beside the paper. Skipped where there is no Chromium or no
# reader of PDF, and they cannot be installed.

# shellcheck source=tests/bench/browser.sh
. "$(dirname "${BASH_SOURCE[0]}")/browser.sh"
browser_begin chromium poppler

bench=$1

print_page() { # NAME: a browser that hangs is started anew
  for _ in 1 2; do
    timeout 60 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
      --disable-background-networking --user-data-dir="$dir/profile" --blink-settings=preferredColorScheme=0 \
      --no-pdf-header-footer --print-to-pdf="$dir/$1.pdf" "file://$dir/$1.html" >/dev/null 2>"$dir/browser" && return
  done
  complain "Chromium: $(tail -n 3 "$dir/browser")"
  exit 1
}

check_page() { # NAME MOST-PAGES LEAST-COLOURED-PIXELS
  local pages wide cell
  print_page "$1"
  pages=$(pdfinfo "$dir/$1.pdf" | sed -n 's/^Pages: *//p')
  ((pages >= 1 && pages <= $2)) || complain "$1 takes $pages pages"
  # Text is on the paper.
  wide=$(pdftotext -bbox "$dir/$1.pdf" - | awk '
    function value(name) { match($0, name "=\"[-0-9.]+\""); return substr($0, RSTART + length(name) + 2, RLENGTH - length(name) - 3) + 0 }
    /<page / { width = value("width"); height = value("height") }
    /<word / { words++; if (value("xMin") < 0 || value("xMax") > width || value("yMax") > height) out++ }
    END { print out + 0, words }')
  [[ $wide == '0 '* ]] || complain "$1: words beside the paper, and words: $wide"
  # Every heading and every cell is there, and what only a screen needs is not.
  pdftotext -raw "$dir/$1.pdf" - | tr -s '[:space:]' ' ' >"$dir/text"
  while IFS= read -r cell; do
    grep -qF -- "$cell" "$dir/text" || complain "$1: \"$cell\" is not printed"
  done < <(grep -oE '<(h1|h2|h3|td|th|dt)[^>]*>(<button[^>]*>)?[^<]+' "$dir/$1.html" | sed 's/.*>//; s/&amp;/\&/g; s/&#39;/\x27/g' | sort -u)
  (($(grep -c '<td' "$dir/$1.html") > 5)) || complain "$1 has no table"
  ! grep -q Download "$dir/text" || complain "$1: a button is printed"
  # Light paper, with colours on it.
  pdftoppm -r 20 -f 1 -l 1 "$dir/$1.pdf" "$dir/$1"
  local -a pictures=("$dir/$1"-*.ppm)
  tail -c +16 "${pictures[0]}" | od -An -v -tu1 -w3 | awk '
    { light += $1 + $2 + $3; n++; d = $1 > $3 ? $1 - $3 : $3 - $1; if (d > 60) colours++ }
    END { exit !(light / (3 * n) > 200 && colours >= least) }' least="$3" || complain "$1: dark paper, or no colours"
}

small=(--layers 1 --width 16 --heads 2 --seq 16 --vocab 300 --batch 6 --steps 2 --warmup 1)
"$bench" memory "${small[@]}" --devices cpu:2 --precision f32,bf16 --modes gather,sharded --report "$dir/memory.html" >/dev/null
"$bench" step "${small[@]}" --devices plan:2 --report "$dir/step.html" >/dev/null
"$bench" fit "${small[@]}" --devices plan:2@2MiB --report "$dir/fit.html" >/dev/null
check_page memory 8 10
check_page step 3 0
check_page fit 3 0
browser_end
