/*
 * html.h - the frame of a report: one page that needs nothing but itself.
 *
 * Style and script are in the page (bench/page/), and a policy in its head forbids the browser to
 * fetch anything. Without the script everything can be read; it sorts tables, moves the focus
 * within charts and hands out the JSON.
 */
#ifndef BENCH_HTML_H
#define BENCH_HTML_H

#include <jansson.h>
#include <stdio.h>

#include "grid.h"

/* Text between tags or in an attribute with double quotes. What is not UTF-8, and control
   characters, which HTML does not have, become U+FFFD. */
void html_text(FILE *file, const char *text);
/* printf(), then html_text(). */
void html_format(FILE *file, const char *format, ...) BENCH_PRINTF(2, 3);

/* From <!doctype> to the beginning of <main>. */
void html_begin(FILE *file, const char *title);
/* Embeds the text of json_dumps(), as a download called `name`, and ends the page. */
void html_end(FILE *file, const char *json, const char *name);

/* A cell that is empty in the first column repeats the one above: rows can be sorted. */
void html_table(FILE *file, const struct grid *grid);

#endif
