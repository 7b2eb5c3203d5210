/*
 * test_report.c - a report when the host's memory fails: all of it is written, or the program ends
 * with exit code 1 and nothing is. Every allocation of making and writing fails once. And the text
 * of a page: what is in it from outside stays text.
 */
#include <unistd.h>

#include <chart.h>
#include <html.h>
#include <report.h>
#include <terminal.h>

#include "ck_folder.h"
#include "ck_fork.h"

enum { RECORDS = 12 }; /* of a report: enough for arrays and objects to grow */

/* realloc() by --wrap of the linker: call number `failing` gives nothing; 0: none fails. */
static size_t failing, calls;
void *__real_realloc(void *old, size_t bytes); /* NOLINT: the linker's names */
void *__wrap_realloc(void *old, size_t bytes); /* NOLINT */

void *__wrap_realloc(void *old, size_t bytes) {
  return ++calls == failing ? NULL : __real_realloc(old, bytes);
}

static struct report make_report(void) {
  struct report report = {.json = json_object(), .csv = grid_create(NULL)};
  grid_column(report.csv, "name", true);
  report.tables[0] = grid_create("Names");
  grid_column(report.tables[0], "name", true);
  json_t *names = json_array();
  for (int i = 0; i < RECORDS; i++) {
    json_t *object = json_object();
    put(object, "name", json_string("cpu"));
    put(object, "value", number_or_null(0.1 * i));
    append(names, object);
    grid_cell(report.csv, "%d", i);
    grid_cell(report.tables[0], "%d", i);
  }
  put(report.json, "names", names);
  return report;
}

/* The same as a page needs it: charts of every kind. */
static struct report make_page(void) {
  struct report report = make_report();
  put(report.json, "command", json_string("techniques"));
  json_t *runs = json_array();
  for (int i = 0; i < RECORDS; i++) {
    json_t *object = json_object(), *held = json_object();
    put(object, "technique", json_string("</script><b>"));
    put(object, "memory_ratio", number_or_null(0.1 * i));
    put(object, "speed_ratio", number_or_null(1));
    put(object, "planned_peak_bytes", whole(1000));
    put(held, "parameters", whole(700));
    put(object, "categories_at_peak", held);
    append(runs, object);
  }
  put(report.json, "runs", runs);
  return report;
}

/* In a process of its own: writes a report to standard output and to a file. */
static void child(size_t fail, enum format format, bool page, const char *out, const char *file) {
  if (freopen(out, "w", stdout) == NULL || freopen("/dev/null", "w", stderr) == NULL) _exit(9);
  output_watch_standard();
  report_prepare();
  struct output *output = output_create(file);
  struct options options = {.format = format};
  *(page ? &options.page : &options.export_json) = output;
  if (!output_prepare(output)) _exit(9);
  calls = 0;
  failing = fail;
  struct report report = page ? make_page() : make_report();
  const bool good = report_write(&report, &options);
  failing = 0;
  options_free(&options);
  exit(good ? EXIT_GOOD : EXIT_ERROR);
}

static int exit_code(size_t fail, enum format format, bool page, const char *out,
                     const char *file) {
  int code = -1;
  if (ck_forked(&code)) child(fail, format, page, out, file);
  return code;
}

/* The bytes of a file; -1: there is none. */
static long size_of(const char *path) {
  size_t size = 0;
  return ck_read_file(&size, path) == NULL ? -1 : (long)size;
}

static bool is_json(const char *path) {
  json_t *json = json_load_file(path, 0, NULL);
  const bool whole = json_array_size(json_object_get(json, "names")) == RECORDS;
  json_decref(json);
  return whole;
}

/* A page that has its end and all of its points, and in which nothing ends a script early. */
static bool is_page(const char *path) {
  const char *text = ck_read_file(NULL, path);
  if (text == NULL) return false;
  const char *end = strstr(text, "</html>\n");
  size_t points = 0;
  for (const char *p = text; (p = strstr(p, "<g class=\"point")) != NULL; p++) points++;
  return end != NULL && end[8] == '\0' && points == RECORDS &&
         strstr(text, "</script><b>") == NULL && strstr(text, "\\u003c/script>\\u003cb>") != NULL;
}

CK_LOOP(a_report_is_whole_or_not_there, 3) {
  const char *folder = ck_folder(), *out = ck_file(folder, "out"), *file = ck_file(folder, "file");
  const enum format format = _i == 0 ? FORMAT_JSON : FORMAT_TABLE;
  const bool page = _i == 2;
  int code = EXIT_ERROR;
  size_t failures = 0;
  for (; code != EXIT_GOOD; failures++) {
    code = exit_code(failures + 1, format, page, out, file);
    const bool written = format == FORMAT_JSON ? is_json(out) : size_of(out) > 0;
    if (code == EXIT_GOOD) {
      ck_assert(written && (page ? is_page(file) : is_json(file)));
    } else {
      ck_assert_msg(code == EXIT_ERROR, "allocation %zu: exit code %d", failures + 1, code);
      ck_assert_msg(size_of(file) < 0, "allocation %zu leaves a file", failures + 1);
      ck_assert_msg(size_of(out) == 0 || written, "allocation %zu: part of it", failures + 1);
    }
  }
  ck_assert_msg(failures > 60, "only %zu allocations failed", failures);
}

/* What html_text() makes of it. */
static void check_text(const char *text, const char *wanted) {
  char *made = NULL;
  size_t size = 0;
  FILE *file = open_memstream(&made, &size);
  ck_assert(file != NULL);
  html_text(file, text);
  ck_assert(fclose(file) == 0);
  ck_assert_str_eq(made, wanted);
  free(made);
}

CK_TEST(text_from_outside_is_text) {
#define NO "\xef\xbf\xbd"
  check_text("", "");
  check_text("cpu:4@512MiB", "cpu:4@512MiB");
  check_text("<script>\"&'</script>", "&lt;script&gt;&quot;&amp;&#39;&lt;/script&gt;");
  check_text("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\n\t",
             "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\n\t");
  /* Controls, lone continuation, overlong, surrogate, above the last character, cut off. */
  check_text("a\x01\x7f\xc2\x85z", "a" NO NO NO NO "z");
  check_text("\x80\xc0\xbc", NO NO NO);
  check_text("\xed\xa0\x80", NO NO NO);
  check_text("\xf4\x90\x80\x80", NO NO NO NO);
  check_text("\xe2\x82<", NO NO "&lt;");
  check_text("\xf0\x9f\x98", NO NO NO);
#undef NO
}

CK_TEST(sizes_as_text) {
  static const struct {
    enum chart_unit unit;
    double value;
    const char *text;
  } cases[] = {{CHART_BYTES, 0, "0 B"},
               {CHART_BYTES, 1023, "1023 B"},
               {CHART_BYTES, 1024, "1.00 KiB"},
               {CHART_BYTES, 42.0 * 1048576, "42.00 MiB"},
               {CHART_SECONDS, 1.25e-5, "12.5 \xc2\xb5s"},
               {CHART_SECONDS, 0.00125, "1.25 ms"},
               {CHART_SECONDS, 90, "90.00 s"},
               {CHART_SAMPLES, 1, "1 sample"},
               {CHART_SAMPLES, 1048576, "1,048,576 samples"},
               {CHART_TIMES, 2.7618, "2.762 \xc3\x97"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[CHART_TEXT];
    ck_assert_str_eq(chart_text(text, cases[i].unit, cases[i].value), cases[i].text);
  }
}

/* A page has a colour for each category that the library has. */
CK_TEST(every_category_has_a_colour) {
  char *text = NULL;
  size_t size = 0;
  FILE *file = open_memstream(&text, &size);
  ck_assert(file != NULL);
  html_begin(file, "colours");
  ck_assert_int_eq(fclose(file), 0);
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
    const char *rule = ck_text(".c-%s", ek_memory_category_name((ek_memory_category)c));
    ck_assert_msg(strstr(text, rule) != NULL, "no colour: %s", rule);
  }
  free(text);
}

/* Numbers of points do not overlap, however narrow the plot is and wherever the points are: as on
 * a busy machine, where one technique is much slower than all others, which are in one place. */
CK_LOOP(numbers_do_not_overlap, 2) {
  enum { POINTS = 24 };
  struct chart_point points[POINTS];
  for (size_t i = 0; i < POINTS; i++) {
    points[i] = (struct chart_point){.name = "p"};
    points[i].x.value = _i == 0 ? 1 : 0.5 + 0.001 * (double)((i * 7) % POINTS);
    points[i].y.value = i == 5 ? 40 : 1 + 0.01 * (double)i;
  }
  const struct chart chart = {"t", "d", CHART_TIMES, false};
  char *text = NULL;
  size_t size = 0;
  FILE *file = open_memstream(&text, &size);
  chart_points(file, &chart, "x", "y", points, POINTS);
  ck_assert_int_eq(fclose(file), 0);
  double x[POINTS], y[POINTS], dx[POINTS], dy[POINTS];
  size_t count = 0;
  const char *next = text;
  while ((next = strstr(next, "<text class=\"middle\" ")) != NULL) {
    ck_assert_uint_lt(count, POINTS);
    const int read = sscanf(
        next, "<text class=\"middle\" x=\"%lf%%\" y=\"%lf\" dx=\"%lf\" dy=\"%lf", &x[count],
        &y[count], &dx[count], &dy[count]);
    ck_assert_int_eq(read, 4);
    count++;
    next++;
  }
  ck_assert_uint_eq(count, POINTS);
  for (int width = 330; width <= 1320; width += 10) {
    for (size_t i = 0; i < POINTS; i++) {
      for (size_t k = 0; k < i; k++) {
        const double apart = width * (x[i] - x[k]) / 100 + dx[i] - dx[k];
        ck_assert_msg(fabs(apart) > 14 || fabs(y[i] + dy[i] - y[k] - dy[k]) > 11.4,
                      "numbers %zu and %zu in a plot of %d pixels", i + 1, k + 1, width);
      }
    }
  }
  free(text);
}

CK_SUITE("report")
