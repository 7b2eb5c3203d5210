/*
 * html.c - see html.h.
 */
#include "html.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <page_script.h> /* made of bench/page/ by the build */
#include <page_style.h>

/* Nothing is fetched, whatever stands in the page. */
static const char policy[] =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'";

/* The length of the UTF-8 character at `text`; 0: it is none. */
static size_t character(const unsigned char *text) {
  static const struct {
    unsigned char first, last, second_first, second_last;
    size_t length;
  } forms[] = {
      {0x20, 0x7e, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
      {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
      {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
    if (text[0] < forms[i].first || text[0] > forms[i].last) continue;
    const size_t length = forms[i].length;
    if (length > 1 && (text[1] < forms[i].second_first || text[1] > forms[i].second_last)) return 0;
    for (size_t k = 2; k < length; k++) {
      if ((text[k] & 0xc0u) != 0x80u) return 0;
    }
    return length == 2 && text[0] == 0xc2 && text[1] < 0xa0 ? 0 : length; /* C1 controls */
  }
  return text[0] == '\n' || text[0] == '\t' ? 1 : 0;
}

void html_text(FILE *file, const char *text) {
  while (*text != '\0') {
    const size_t length = character((const unsigned char *)text);
    switch (*text) {
    case '<': fputs("&lt;", file); break;
    case '>': fputs("&gt;", file); break;
    case '&': fputs("&amp;", file); break;
    case '"': fputs("&quot;", file); break;
    case '\'': fputs("&#39;", file); break;
    default:
      if (length == 0) {
        fputs("\xef\xbf\xbd", file);
      } else {
        (void)fwrite(text, 1, length, file);
      }
    }
    text += length > 0 ? length : 1;
  }
}

void html_format(FILE *file, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char *text = need_format(format, arguments);
  va_end(arguments);
  html_text(file, text);
  free(text);
}

void html_begin(FILE *file, const char *title) {
  fprintf(file,
          "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"%s\">\n<title>",
          policy);
  html_text(file, title);
  fprintf(file, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n", page_style);
}

/* In a script element the only dangerous character of JSON is "<", and it stands in strings
 * only. */
static void embed(FILE *file, const char *json) {
  for (const char *next; (next = strchr(json, '<')) != NULL; json = next + 1) {
    (void)fwrite(json, 1, (size_t)(next - json), file);
    fputs("\\u003c", file);
  }
  fputs(json, file);
}

void html_end(FILE *file, const char *json, const char *name) {
  fputs("</main>\n<script type=\"application/json\" id=\"result\" data-name=\"", file);
  html_text(file, name);
  fputs("\">\n", file);
  embed(file, json);
  fprintf(file, "\n</script>\n<script>\n%s</script>\n</body>\n</html>\n", page_script);
}

static void table_head(FILE *file, const struct grid *grid) {
  fputs("<thead><tr>", file);
  for (size_t c = 0; c < grid_columns(grid); c++) {
    fprintf(file, "<th scope=\"col\"%s>", grid_is_left(grid, c) ? " class=\"words\"" : "");
    html_text(file, grid_heading(grid, c));
    fputs("</th>", file);
  }
  fputs("</tr></thead>\n", file);
}

void html_table(FILE *file, const struct grid *grid) {
  fputs("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"", file);
  html_text(file, grid_title(grid));
  fputs("\"><table>\n<caption>", file);
  html_text(file, grid_title(grid));
  fputs("</caption>\n", file);
  table_head(file, grid);
  fputs("<tbody>\n", file);
  const char *first = "";
  for (size_t r = 0; r < grid_rows(grid); r++) {
    fputs("<tr>", file);
    for (size_t c = 0; c < grid_columns(grid); c++) {
      const char *text = grid_text(grid, r, c);
      if (c == 0 && *text != '\0') first = text;
      fputs(grid_is_left(grid, c) ? "<td class=\"words\">" : "<td>", file);
      html_text(file, c == 0 ? first : text);
      fputs("</td>", file);
    }
    fputs("</tr>\n", file);
  }
  fputs("</tbody></table></div>\n", file);
}
