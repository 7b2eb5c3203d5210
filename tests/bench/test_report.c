/*
 * test_report.c - a report when the host's memory fails: all of it is written, or the program ends
 * with exit code 1 and nothing is. Every allocation of making and writing fails once.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <report.h>
#include <terminal.h>

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

/* In a process of its own: writes a report to standard output and to a file. */
static void child(size_t fail, enum format format, const char *out, const char *file) {
  if (freopen(out, "w", stdout) == NULL || freopen("/dev/null", "w", stderr) == NULL) _exit(9);
  output_watch_standard();
  report_prepare();
  struct options options = {.format = format, .export_json = output_create(file)};
  if (!output_prepare(options.export_json)) _exit(9);
  calls = 0;
  failing = fail;
  struct report report = make_report();
  const bool good = report_write(&report, &options);
  failing = 0;
  options_free(&options);
  exit(good ? EXIT_GOOD : EXIT_ERROR);
}

static int exit_code(size_t fail, enum format format, const char *out, const char *file) {
  const pid_t process = fork();
  ck_assert(process >= 0);
  if (process == 0) child(fail, format, out, file);
  int status = 0;
  ck_assert(waitpid(process, &status, 0) == process);
  ck_assert_msg(WIFEXITED(status), "allocation %zu: killed", fail);
  return WEXITSTATUS(status);
}

/* The bytes of a file; -1: there is none. */
static long size_of(const char *path) {
  FILE *file = fopen(path, "r");
  if (file == NULL) return -1;
  ck_assert(fseek(file, 0, SEEK_END) == 0);
  const long size = ftell(file);
  (void)fclose(file);
  return size;
}

static bool is_json(const char *path) {
  json_t *json = json_load_file(path, 0, NULL);
  const bool whole = json_array_size(json_object_get(json, "names")) == RECORDS;
  json_decref(json);
  return whole;
}

START_TEST(a_report_is_whole_or_not_there) {
  char folder[] = "/tmp/evenkeel-report.XXXXXX", out[64], file[64];
  ck_assert(mkdtemp(folder) != NULL);
  (void)snprintf(out, sizeof out, "%s/out", folder);
  (void)snprintf(file, sizeof file, "%s/file", folder);
  const enum format format = _i == 0 ? FORMAT_JSON : FORMAT_TABLE;
  int code = EXIT_ERROR;
  size_t failures = 0;
  for (; code != EXIT_GOOD; failures++) {
    code = exit_code(failures + 1, format, out, file);
    const bool written = format == FORMAT_JSON ? is_json(out) : size_of(out) > 0;
    if (code == EXIT_GOOD) {
      ck_assert(written && is_json(file));
    } else {
      ck_assert_msg(code == EXIT_ERROR, "allocation %zu: exit code %d", failures + 1, code);
      ck_assert_msg(size_of(file) < 0, "allocation %zu leaves a file", failures + 1);
      ck_assert_msg(size_of(out) == 0 || written, "allocation %zu: part of it", failures + 1);
    }
  }
  ck_assert_msg(failures > 60, "only %zu allocations failed", failures);
  (void)unlink(file);
  (void)unlink(out);
  ck_assert_msg(rmdir(folder) == 0, "something is left in %s", folder);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("report");
  TCase *tests = tcase_create("memory");
  tcase_add_loop_test(tests, a_report_is_whole_or_not_there, 0, 2);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
