/*
 * check_file_memory.c - every allocation and thread of the process, whichever library asks for it,
 * is refused once: in saves that remove an older state, in loads, in files of weights, metrics,
 * traces and snapshots. A refusal gives EK_ERR_OUT_OF_MEMORY and loses nothing. EK_OK leaves what
 * an undisturbed run leaves: the same bytes; of texts with times in them, the same text apart from
 * the numbers.
 *
 * EVENKEEL_TEST_EVERY=K takes one call in K; without it every call is taken.
 */
#include "ck_folder.h"
#include "ck_state.h"
#include "ck_training.h"

#include <ctype.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host_calls.h"

enum { SAMPLES = 5, MOST_POINTS = 2000 };

static const char *folder, *first, *second, *other, *another;
static struct ck_training t;
static struct ck_state before;

/* ---- files as they are ---- */

struct image {
  char *bytes;
  size_t size;
};

/* No bytes where there is no such file. */
static struct image image_of(const char *path) {
  struct image image = {0};
  image.bytes = ck_read_file(&image.size, path);
  return image;
}

/* A text without its numbers: what does not depend on the clock. */
static struct image shape_of(const char *path) {
  struct image image = image_of(path);
  size_t kept = 0;
  for (size_t i = 0; i < image.size; i++) {
    if (isdigit((unsigned char)image.bytes[i])) {
      while (i + 1 < image.size && strchr("0123456789.eE+-", image.bytes[i + 1]) != NULL) i++;
      image.bytes[kept++] = '#';
    } else {
      image.bytes[kept++] = image.bytes[i];
    }
  }
  image.size = kept;
  return image;
}

static bool is(struct image got, struct image want) {
  const bool same =
      got.bytes != NULL && got.size == want.size && memcmp(got.bytes, want.bytes, got.size) == 0;
  ck_drop(got.bytes);
  return same;
}

/* ---- what is done, and what it leaves ---- */

static struct image old_state, new_state, good, good_too;

static void go(int steps) {
  CK_HELD(struct ck_batch, batch, ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0.2, 50));
  for (int i = 0; i < steps; i++) ck_ok(ck_training_step(&t, &batch, NULL));
}

static void clear(void) { ck_assert_int_eq(system(ck_text("rm -rf %s/*", folder)), 0); }

/* Of a step that is saved, the one before is removed. */
static void begin_save(void) {
  clear();
  ck_write_file(first, old_state.bytes, old_state.size);
}

static ek_status do_save(void) {
  CK_WITH(ek_checkpoint_options, options, EK_CHECKPOINT_OPTIONS_INIT, .keep = 1);
  return ek_checkpoint_save(t.model, folder, &options);
}

static ek_status do_background(void) {
  ek_checkpoint_write *write = NULL;
  CK_WITH(ek_checkpoint_options, options, EK_CHECKPOINT_OPTIONS_INIT, .keep = 1);
  EK_TRY(ek_checkpoint_begin(&write, t.model, folder, &options));
  return ek_checkpoint_end(write);
}

static bool look_save(bool done) {
  const int count = ck_folder_entries(folder);
  const bool old_stays = is(image_of(first), old_state);
  if (!done) return count == 1 && old_stays;
  /* What cannot be removed for want of memory stays, as it was. */
  return is(image_of(second), new_state) && (count == 1 || (count == 2 && old_stays));
}

/* The last of two states. */
static void begin_load(void) {
  begin_save();
  ck_write_file(second, new_state.bytes, new_state.size);
}

static ek_checkpoint_info loaded;

static ek_status do_load(void) { return ek_checkpoint_load(&loaded, t.model, folder); }
static ek_status do_latest(void) { return ek_checkpoint_latest(&loaded, folder); }

static bool look_load(bool done) {
  float number = 0;
  ek_tensor host = {.data = &number, .type = EK_F32};
  const bool torn = ek_state_read(&host, t.model, "no such entry") == EK_ERR_TORN;
  if (torn && !done) ck_ok(ek_checkpoint_load(NULL, t.model, second));
  ck_state_is("after a load", t.model, &before);
  return !done || (loaded.step == 2 && !torn);
}

static ek_status do_weights(void) {
  EK_TRY(ek_weights_save(t.model, other, NULL));
  return ek_weights_load(t.model, other, NULL);
}

static bool look_weights(bool done) {
  if (done && good.bytes == NULL) good = image_of(other);
  const bool whole = access(other, F_OK) != 0 || is(image_of(other), good);
  return whole && ck_folder_entries(folder) <= 1 && look_load(false);
}

static ek_status metrics_of(ek_metrics *metrics) {
  const ek_step_result result = {.loss = 1.5, .weight = 3};
  EK_TRY(ek_metrics_put(metrics, "epoch", 3));
  EK_TRY(ek_metrics_step(metrics, &result, 10));
  return ek_metrics_step(metrics, &result, 10);
}

static ek_status do_metrics(void) {
  ek_metrics *metrics = NULL;
  EK_TRY(ek_metrics_open(&metrics, t.group, other, another));
  const ek_status status = metrics_of(metrics), freed = ek_metrics_close(metrics);
  return status == EK_OK ? freed : status;
}

/* Of the lines there may be fewer, each of them whole. */
static bool look_metrics(bool done) {
  struct image lines = shape_of(another);
  bool whole = true;
  if (good.bytes == NULL) {
    good = shape_of(other);
    good_too = shape_of(another);
  }
  if (done) {
    whole = is(shape_of(other), good) && is(shape_of(another), good_too);
  } else if (lines.bytes != NULL) {
    whole = lines.size == 0 || lines.size == good_too.size || lines.size == good_too.size / 2;
    whole = whole && memcmp(lines.bytes, good_too.bytes, lines.size) == 0;
  }
  ck_drop(lines.bytes);
  return whole && ck_folder_entries(folder) <= 2;
}

static ek_status do_trace(void) {
  EK_TRY(ek_trace_start(t.group, 1000));
  host_calls_hold(1);
  go(1);
  ck_ok(ck_state_put(t.model, &before));
  host_calls_hold(0);
  EK_TRY(ek_trace_stop(t.group));
  return ek_trace_write(NULL, t.group, other);
}

static ek_status do_snapshot(void) { return ek_memory_snapshot(t.group, other); }

/* Whole or not there. */
static bool look_text(bool done) {
  const bool there = access(other, F_OK) == 0;
  if (done && good.bytes == NULL) good = shape_of(other);
  const ek_status ended = ek_trace_stop(t.group); /* where it was refused before it came to that */
  ck_assert(ended == EK_OK || ended == EK_ERR_STATE);
  return there == done && (!done || is(shape_of(other), good)) &&
         ck_folder_entries(folder) == (done ? 1 : 0);
}

static const struct {
  const char *name;
  void (*begin)(void);
  ek_status (*run)(void);
  bool (*look)(bool done);
  int least; /* calls that are refused, at the least */
} cases[] = {
    {"save", begin_save, do_save, look_save, 30},
    {"background save", begin_save, do_background, look_save, 30},
    {"load", begin_load, do_load, look_load, 10},
    {"latest", begin_load, do_latest, look_load, 8},
    {"weights", clear, do_weights, look_weights, 20},
    {"metrics", clear, do_metrics, look_metrics, 4},
    {"trace", clear, do_trace, look_text, 3},
    {"snapshot", clear, do_snapshot, look_text, 2}};
enum { CASES = sizeof cases / sizeof *cases };
static const enum host_call calls[] = {HOST_MEMORY, HOST_THREAD};
enum { CALLS = sizeof calls / sizeof *calls };

/* ---- the faults ---- */

static void open_all(void) {
  folder = ck_folder();
  first = ck_state_file(folder, 1);
  second = ck_state_file(folder, 2);
  other = ck_file(folder, "other.json");
  another = ck_file(folder, "another");
  t = ck_training_of(ck_setup_mode(ck_workload("mlp"), "cpu:2", EK_MODE_SHARDED));
  go(1);
  (void)do_save();
  old_state = image_of(first);
  go(1);
  (void)do_save();
  new_state = image_of(second);
  before = ck_state_take(t.model);
}

static void close_all(void) {
  old_state = new_state = good = good_too = (struct image){0};
  clear();
  ck_training_close(&t);
}

CK_LOOP(every_call_is_refused_once, CASES * CALLS) {
  const size_t number = (size_t)_i % CASES;
  const enum host_call call = calls[(size_t)_i / CASES];
  const uint64_t every = ck_every(1);
  int refused = 0, points = 0;
  if (old_state.bytes == NULL) {
    puts("built without xxHash: left out");
    return;
  }
  for (int i = 0; i < 3; i++) { /* what is taken once, for good, is there then */
    cases[number].begin();
    ck_ok(cases[number].run());
    ck_assert_msg(cases[number].look(true), "%s: not the same again", cases[number].name);
  }
  for (uint64_t n = 1; n < MOST_POINTS; n += every, points++) {
    cases[number].begin();
    ek_error_clear();
    host_calls_fail_at(call, n);
    const ek_status status = cases[number].run();
    const bool failed = host_calls_failed();
    host_calls_fail_at(call, 0);
    ck_assert_msg(status == EK_OK || (status == EK_ERR_OUT_OF_MEMORY && failed),
                  "%s, %s %d: %s: %s", cases[number].name, host_call_names[call], (int)n,
                  ek_status_name(status), ek_error_message());
    ck_assert_msg(status == EK_OK || ek_error_message()[0] != '\0', "no message");
    ck_assert_msg(cases[number].look(status == EK_OK), "%s, %s %d: %s, and what is left is wrong",
                  cases[number].name, host_call_names[call], (int)n, ek_status_name(status));
    refused += status != EK_OK;
    if (!failed) break;
  }
  ck_assert_int_lt(points, MOST_POINTS);
  if (call == HOST_MEMORY && every == 1) ck_assert_int_ge(refused, cases[number].least);
  printf("%s, %s: %d of %d refused, 0 wrong\n", cases[number].name, host_call_names[call], refused,
         points);
}

CK_SUITE_WITH("file memory", open_all, close_all)
