/*
 * check_metrics.c - what a run tells of itself: lines of JSON, a file for Prometheus, and what goes
 * wrong with both.
 */
#include "ek_check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ck_folder.h"
#include "ck_locale.h"

static const char *folder, *prometheus, *lines;

static void make_folder(void) {
  folder = ck_folder();
  prometheus = ck_file(folder, "run.prom");
  lines = ck_file(folder, "run.jsonl");
}

static void says(const char *path, const char *part) {
  const char *all = ck_read_file(NULL, path);
  ck_assert_msg(all != NULL && strstr(all, part) != NULL, "%s does not say %s but %s", path, part,
                all == NULL ? "nothing" : all);
}

static size_t count_lines(const char *path) {
  size_t count = 0;
  const char *at = ck_read_file(NULL, path);
  for (; at != NULL && *at != '\0'; at++) count += *at == '\n';
  return count;
}

static const ek_step_result good = {.loss = 2.5,
                                    .gradient_norm = 0.125,
                                    .learning_rate = 0.5,
                                    .step = 3,
                                    .finite = true,
                                    .loss_scale = 1024};

CK_TEST(a_step_is_told) {
  ek_group *group = ck_open("cpu:2", 1);
  CK_GOT(ek_metrics *, metrics, ek_metrics_open(&metrics, group, prometheus, lines));
  ck_assert(access(prometheus, F_OK) != 0); /* nothing is known yet */
  struct timespec before, after;
  ck_assert(clock_gettime(CLOCK_MONOTONIC, &before) == 0);
  ck_ok(ek_metrics_step(metrics, &good, 1000));
  CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, ek_group_device(group, 1)));
  const char *name = ek_device_name(ek_group_device(group, 1));
  says(prometheus, ck_text("evenkeel_device_peak_bytes{device=\"%s\"} %llu\n", name,
                           (unsigned long long)usage.peak_bytes));
  says(prometheus, "# TYPE evenkeel_loss gauge\nevenkeel_loss 2.5\n");
  says(prometheus, "evenkeel_step 3\n");
  says(prometheus, "evenkeel_tokens_total 1000\n");
  says(prometheus, "evenkeel_gradient_norm 0.125\n");
  says(lines, "\"step\": 3, \"loss\": 2.5, \"gradient_norm\": 0.125, \"learning_rate\": 0.5, "
              "\"tokens\": 1000, \"seconds\": ");
  says(prometheus, "evenkeel_loss_scale 1024\n");
  says(lines, "\"loss_scale\": 1024, \"skipped_steps\": 0, \"devices\": [{\"name\": \"");
  says(lines,
       ck_text("{\"name\": \"%s\", \"held_bytes\": %llu, \"peak_bytes\": %llu}]}\n", name,
               (unsigned long long)usage.current_bytes, (unsigned long long)usage.peak_bytes));
  /* Within a second only the line; the end tells the rest. */
  CK_WITH(ek_step_result, next, good, .step = 4, .loss = (double)INFINITY, .gradient_norm = -1);
  ck_ok(ek_metrics_step(metrics, &next, 24));
  ck_assert(clock_gettime(CLOCK_MONOTONIC, &after) == 0);
  if (after.tv_sec == before.tv_sec) says(prometheus, "evenkeel_step 3\n");
  says(lines, "\"step\": 4, \"loss\": null, \"gradient_norm\": null");
  says(lines, "\"tokens\": 1024, ");
  next.empty = true;
  ck_ok(ek_metrics_step(metrics, &next, 0));
  ck_assign(next, .empty = false, .skipped = true, .loss_scale = 512);
  ck_ok(ek_metrics_step(metrics, &next, 0));
  says(lines, "\"loss_scale\": 512, \"skipped_steps\": 2, ");
  ck_ok(ek_metrics_step(metrics, NULL, 0));
  ck_ok(ek_metrics_close(metrics));
  says(prometheus, "evenkeel_step 4\n");
  says(prometheus, "evenkeel_loss +Inf\n");
  says(prometheus, "evenkeel_gradient_norm NaN\n");
  says(prometheus, "evenkeel_skipped_steps_total 3\n");
  ck_assert_uint_eq(count_lines(lines), 5);
  /* A run that goes on appends. */
  ck_ok(ek_metrics_open(&metrics, group, NULL, lines));
  ck_ok(ek_metrics_step(metrics, &good, 1));
  ck_ok(ek_metrics_close(metrics));
  ck_assert_uint_eq(count_lines(lines), 6);
}

/* Each line of the file is a comment, or a name, perhaps a label, and a number. */
CK_TEST(the_file_follows_the_format) {
  ek_group *group = ck_open("cpu:2", 1);
  CK_GOT(ek_metrics *, metrics, ek_metrics_open(&metrics, group, prometheus, NULL));
  ck_ok(ek_metrics_step(metrics, NULL, 5)); /* nothing but a refused step */
  ck_ok(ek_metrics_close(metrics));
  char *text = ck_read_file(NULL, prometheus);
  ck_assert_ptr_nonnull(text);
  size_t count = 0;
  for (char *save = NULL, *line = strtok_r(text, "\n", &save); line != NULL;
       line = strtok_r(NULL, "\n", &save)) {
    if (strncmp(line, "# HELP evenkeel_", 16) == 0 || strncmp(line, "# TYPE evenkeel_", 16) == 0) {
      continue;
    }
    const size_t name = strspn(line, "abcdefghijklmnopqrstuvwxyz_");
    const char *rest = line + name;
    if (*rest == '{') rest = strchr(rest, '}') + 1;
    char *end = NULL;
    ck_assert_msg(name > 9 && *rest == ' ', "%s", line);
    (void)strtod(rest + 1, &end);
    ck_assert_msg(end > rest + 1 && *end == '\0', "%s", line);
    count++;
  }
  ck_assert_uint_eq(count, 9 + 2 * 2);
}

/* ---- numbers of the program's own ---- */

CK_TEST(numbers_of_the_program) {
  ek_group *group = ck_open("cpu:2", 1);
  CK_GOT(ek_metrics *, metrics, ek_metrics_open(&metrics, group, prometheus, lines));
  for (int i = 0; i < EK_METRICS_NUMBERS; i++) {
    const char *name = ck_text("number_%032d", i); /* the longest that there may be */
    ck_ok(ek_metrics_put(metrics, name, -1e-300));
  }
  ck_invalid(ek_metrics_put(metrics, "accuracy", 1), "at most 16");
  ck_ok(ek_metrics_put(metrics, "number_00000000000000000000000000000003", 0.5));
  ck_ok(ek_metrics_put(metrics, "number_00000000000000000000000000000004", (double)NAN));
  ck_ok(ek_metrics_put(metrics, "number_00000000000000000000000000000005", (double)INFINITY));
  ck_ok(ek_metrics_step(metrics, &good, 1));
  says(lines, "\"skipped_steps\": 0, \"number_00000000000000000000000000000000\": -1");
  says(lines, "\"number_00000000000000000000000000000003\": 0.5, "
              "\"number_00000000000000000000000000000004\": null, "
              "\"number_00000000000000000000000000000005\": null, ");
  says(lines, "\"devices\": [{\"name\": ");
  says(prometheus, "gauge\nevenkeel_number_00000000000000000000000000000003 0.5\n");
  says(prometheus, "evenkeel_number_00000000000000000000000000000004 NaN\n");
  ck_ok(ek_metrics_close(metrics));
  static const char *const wrong[] = {
      "", "1st", "_a", "Loss", "a-b", "a b", "a\"", "number_of_forty_characters_is_too_long__"};
  static const char *const taken[] = {"loss", "tokens_total", "devices", "device_held_bytes"};
  ck_ok(ek_metrics_open(&metrics, group, NULL, NULL));
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    ck_invalid(ek_metrics_put(metrics, wrong[i], 1), "not a valid name");
  }
  for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
    ck_invalid(ek_metrics_put(metrics, taken[i], 1), "the library uses");
  }
  ck_invalid(ek_metrics_put(metrics, NULL, 1), "name is NULL");
  ck_ok(ek_metrics_close(metrics));
}

CK_TEST(a_resumed_run_counts_on) {
  ek_group *group = ck_open("cpu:1", 1);
  CK_GOT(ek_metrics *, metrics, ek_metrics_open(&metrics, group, prometheus, lines));
  ck_invalid(ek_metrics_resume(metrics, -1), "-1 tokens");
  ck_invalid(ek_metrics_resume(metrics, (double)NAN), "tokens");
  ck_ok(ek_metrics_resume(metrics, 7000));
  ck_ok(ek_metrics_step(metrics, &good, 1000));
  says(lines, "\"tokens\": 8000, ");
  says(prometheus, "evenkeel_tokens_total 8000\n");
  ck_fails(ek_metrics_resume(metrics, 1), EK_ERR_STATE, "before the first one");
  ck_ok(ek_metrics_close(metrics));
}

/* ---- what the system does ---- */

/* The numbers of a file have a point, whatever the program has set. */
CK_TEST(a_locale_with_a_comma) {
  if (!ck_locale_comma()) return;
  ek_group *group = ck_open("cpu:1", 1);
  CK_GOT(ek_metrics *, metrics, ek_metrics_open(&metrics, group, prometheus, lines));
  ck_ok(ek_metrics_put(metrics, "accuracy", 0.75));
  ck_ok(ek_metrics_step(metrics, &good, 1.5));
  ck_assert_str_eq(ck_text("%.1f", 0.5), "0,5"); /* still the program's */
  says(lines, "\"learning_rate\": 0.5, \"tokens\": 1.5, ");
  says(lines, "\"accuracy\": 0.75, ");
  says(prometheus, "evenkeel_loss 2.5\n");
  ck_ok(ek_metrics_close(metrics));
  says(prometheus, "evenkeel_accuracy 0.75\n");
  ek_group_free(group);
  ck_locale_end();
}

/* Without a reader opening fails and does not wait; a reader that goes away is an error and no
 * signal; one that does not read holds nothing up. */
CK_TEST(lines_to_a_pipe) {
  ek_group *group = ck_open("cpu:1", 1);
  ek_metrics *metrics = NULL;
  ck_assert(mkfifo(lines, 0600) == 0);
  ck_fails(ek_metrics_open(&metrics, group, NULL, lines), EK_ERR_IO, "no process reads this pipe");
  int reader = open(lines, O_RDONLY | O_NONBLOCK);
  ck_assert_int_ge(reader, 0);
  ck_ok(ek_metrics_open(&metrics, group, NULL, lines));
  ck_ok(ek_metrics_step(metrics, &good, 1000));
  static char text[65536];
  const ssize_t length = read(reader, text, sizeof text - 1);
  ck_assert(length > 2 && text[0] == '{' && text[length - 1] == '\n');
  ek_status status = EK_OK;
  for (int i = 0; i < 100000 && status == EK_OK; i++) status = ek_metrics_step(metrics, &good, 1);
  ck_assert_int_eq(status, EK_ERR_IO); /* the pipe is full */
  ck_assert(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
  ck_assert(close(reader) == 0);
  for (int i = 0; i < 3; i++) {
    ck_fails(ek_metrics_step(metrics, &good, 1), EK_ERR_IO, "cannot be written");
  }
  ck_ok(ek_metrics_close(metrics));
}

/* What a full disk left of a line does not spoil the next one. */
CK_TEST(a_line_that_was_cut) {
  ek_group *group = ck_open("cpu:1", 1);
  ek_metrics *metrics = NULL;
  ck_write_file(lines, "{\"time\": 1, \"st", 15);
  for (int i = 0; i < 2; i++) {
    ck_ok(ek_metrics_open(&metrics, group, NULL, lines));
    ck_ok(ek_metrics_step(metrics, &good, 1000));
    ck_ok(ek_metrics_close(metrics));
  }
  ck_assert_uint_eq(count_lines(lines), 3);
  says(lines, "\"st\n{\"time\": ");
  says(lines, "]}\n{\"time\": ");
}

/* The disk is full in the middle of a line: the same metrics end that line before the next one. */
CK_TEST(a_line_that_is_cut) {
  enum { FITS = 20 };
  ek_group *group = ck_open("cpu:1", 1);
  struct rlimit limit;
  CK_GOT(ek_metrics *, metrics, ek_metrics_open(&metrics, group, NULL, lines));
  ck_ok(ek_metrics_step(metrics, &good, 1000));
  ck_assert(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const struct rlimit before = limit;
  limit.rlim_cur = strlen(ck_read_file(NULL, lines)) + FITS;
  ck_assert(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  ck_fails(ek_metrics_step(metrics, &good, 1000), EK_ERR_IO, "only part of a line was written");
  ck_fails(ek_metrics_step(metrics, &good, 1000), EK_ERR_IO, "cannot be written"); /* nothing is */
  ck_assert(setrlimit(RLIMIT_FSIZE, &before) == 0);
  for (int i = 0; i < 2; i++) ck_ok(ek_metrics_step(metrics, &good, 1000));
  ck_ok(ek_metrics_close(metrics));
  ck_assert_uint_eq(count_lines(lines), 4);
  size_t whole = 0;
  const char *text = ck_read_file(NULL, lines);
  for (const char *at = text; (at = strstr(at, "]}\n")) != NULL; at++) whole++;
  ck_assert_uint_eq(whole, 3);
  says(lines, "]}\n{\"time\": ");
  ck_assert_ptr_null(strstr(text, "\n\n"));
}

CK_TEST(misuse_and_failures) {
  ek_group *group = ck_open("cpu:2", 1);
  ek_metrics *metrics = NULL;
  ck_invalid(ek_metrics_open(NULL, group, NULL, NULL), "NULL");
  ck_invalid(ek_metrics_open(&metrics, NULL, NULL, NULL), "NULL");
  ck_fails(ek_metrics_open(&metrics, group, "/nowhere/at/all", NULL), EK_ERR_NOT_FOUND, "/nowhere");
  ck_fails(ek_metrics_open(&metrics, group, NULL, "/nowhere/at/all"), EK_ERR_NOT_FOUND, "/nowhere");
  ck_fails(ek_metrics_open(&metrics, group, folder, NULL), EK_ERR_IO, "not a regular file");
  ck_fails(ek_metrics_open(&metrics, group, NULL, folder), EK_ERR_IO, folder);
  ck_assert_ptr_null(metrics);
  ck_ok(ek_metrics_close(NULL));
  ck_invalid(ek_metrics_step(NULL, &good, 1), "NULL");
  ck_ok(ek_metrics_open(&metrics, group, NULL, NULL)); /* without a listener */
  ck_invalid(ek_metrics_step(metrics, &good, -1), "-1 tokens");
  ck_invalid(ek_metrics_step(metrics, &good, (double)NAN), "tokens");
  ck_ok(ek_metrics_step(metrics, &good, 1));
  ck_ok(ek_metrics_close(metrics));
  /* The old file stays where the new one cannot be made; what was told then comes later. */
  ck_ok(ek_metrics_open(&metrics, group, prometheus, NULL));
  ck_ok(ek_metrics_step(metrics, &good, 1));
  ck_assert(unlink(prometheus) == 0 && mkdir(prometheus, 0700) == 0);
  ck_fails(ek_metrics_close(metrics), EK_ERR_IO, "not a regular file");
  ck_assert(rmdir(prometheus) == 0);
  ck_ok(ek_metrics_open(&metrics, group, prometheus, NULL));
  ck_ok(ek_metrics_step(metrics, &good, 1));
  ck_assert(unlink(prometheus) == 0 && mkdir(prometheus, 0700) == 0);
  ek_error_set(EK_ERR_SHAPE, "before");
  ek_metrics_free(metrics); /* the same failure, and no trace of it here */
  ck_assert_str_eq(ek_error_message(), "before");
  ck_assert(rmdir(prometheus) == 0);
  ck_ok(ek_metrics_open(&metrics, group, prometheus, lines));
  uint64_t n = 0;
  while (ck_host_fails(&n, ek_metrics_step(metrics, &good, 1))) {
  }
  ck_assert_uint_ge(n, 3);
  says(prometheus, "evenkeel_step 3\n");
  ck_ok(ek_metrics_close(metrics));
}

CK_SUITE_WITH("metrics", make_folder, NULL)
