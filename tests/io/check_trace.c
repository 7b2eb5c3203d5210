/*
 * check_trace.c - a trace is read back line by line: what is in it, that spans nest and add up,
 * that counters are the ledger's; and what happens where there is no room, no trace, no file.
 */
#include "ck_folder.h"
#include "ck_fork.h"
#include "ck_linears.h"

enum { DEVICES = 2, WIDTH = 8, LINES = 4096 };

static const char *folder, *path;

static void make_folder(void) {
  folder = ck_folder();
  path = ck_file(folder, "trace.json");
}

/* ---- reading back: an event is a line ---- */

/* A name that is given to a track has the category "thread_name". */
struct event {
  char kind, name[96], category[32];
  long process, thread;
  double begin, length; /* microseconds */
  long long bytes[EK_MEMORY_CATEGORIES];
};

static struct event events[LINES];
static size_t event_count;

static bool find_text(char *value, size_t size, const char *line, const char *key) {
  char pattern[64];
  (void)snprintf(pattern, sizeof pattern, "\"%s\":\"", key);
  const char *at = strstr(line, pattern);
  if (at == NULL) return false;
  at += strlen(pattern);
  const size_t length = strcspn(at, "\"");
  ck_assert(length < size);
  memcpy(value, at, length);
  value[length] = '\0';
  return true;
}

static double find_number(const char *line, const char *key) {
  char pattern[64];
  (void)snprintf(pattern, sizeof pattern, "\"%s\":", key);
  const char *at = strstr(line, pattern);
  return at == NULL ? -1 : strtod(at + strlen(pattern), NULL);
}

static void read_trace(void) {
  static char line[4096];
  FILE *file = fopen(path, "r");
  ck_assert_ptr_nonnull(file);
  event_count = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    struct event *event = &events[event_count];
    char kind[8];
    if (strncmp(line, "{\"ph\"", 5) != 0 || !find_text(kind, sizeof kind, line, "ph")) continue;
    ck_assert(event_count + 1 < LINES);
    memset(event, 0, sizeof *event);
    event->kind = kind[0];
    (void)find_text(event->name, sizeof event->name, line, "name");
    (void)find_text(event->category, sizeof event->category, line, "cat");
    if (event->kind == 'M') {
      (void)find_text(event->category, sizeof event->category, line, "name");
      (void)find_text(event->name, sizeof event->name, strstr(line, "\"args\""), "name");
    }
    event->process = (long)find_number(line, "pid");
    event->thread = (long)find_number(line, "tid");
    event->begin = find_number(line, "ts");
    event->length = find_number(line, "dur");
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
      event->bytes[c] =
          (long long)find_number(line, ek_memory_category_name((ek_memory_category)c));
    }
    event_count++;
  }
  ck_assert(fclose(file) == 0);
}

static size_t count_spans(long process, const char *category, const char *name) {
  size_t count = 0;
  for (size_t i = 0; i < event_count; i++) {
    const struct event *e = &events[i];
    count += e->kind == 'X' && e->process == process &&
             (category == NULL || strcmp(e->category, category) == 0) &&
             (name == NULL || strcmp(e->name, name) == 0);
  }
  return count;
}

/* Complete events of one thread nest, and begin in order; the rules of the format. */
static void check_rules(void) {
  for (size_t i = 0; i < event_count; i++) {
    const struct event *e = &events[i];
    if (e->kind == 'M') continue;
    ck_assert_msg(e->begin >= 0 && e->process > 0 && e->name[0] != '\0', "event %zu", i);
    if (e->kind == 'C') continue;
    ck_assert_msg(e->kind == 'X' && e->length >= 0 && e->thread > 0, "event %zu", i);
    for (size_t k = i + 1; k < event_count; k++) {
      const struct event *o = &events[k];
      if (o->kind != 'X' || o->process != e->process || o->thread != e->thread) continue;
      const bool behind = o->begin >= e->begin + e->length - 0.0005;
      const bool within = o->begin + o->length <= e->begin + e->length + 0.0005;
      ck_assert_msg(o->begin >= e->begin && (behind || within), "%s and %s", e->name, o->name);
    }
  }
}

static void take_steps(struct ck_linears *it, int steps) {
  for (int i = 0; i < steps; i++) ck_ok(ck_linears_step(it));
}

/* ---- tests ---- */

/* What every device did in two steps, on the tracks where it did it. */
static void check_steps(bool counts_only) {
  for (long p = 1; p <= DEVICES; p++) {
    for (int child = 0; child < 2; child++) {
      const char *name = child == 0 ? "0 (linear)" : "1 (linear)";
      ck_assert_uint_eq(count_spans(p, "forward", name), 2);
      ck_assert_uint_eq(count_spans(p, "backward", name), 2);
    }
    ck_assert_uint_eq(count_spans(p, "program", "update"), 2);
    ck_assert_uint_eq(count_spans(p, "copy", NULL) >= 4, 1); /* inputs and targets */
    /* At least the gradients of each step and the totals of each loss. */
    if (!counts_only) ck_assert_uint_ge(count_spans(p, "collective", "all_reduce"), 4);
  }
  ck_assert_uint_eq(count_spans(DEVICES + 1, NULL, NULL), 0);
}

/* Each track is there, and has a name that no category of memory has. */
static void check_tracks(void) {
  static const char *const names[] = {"compute stream", "communication stream", "transfers"};
  size_t found = 0;
  for (size_t i = 0; i < event_count; i++) {
    const struct event *e = &events[i];
    if (e->kind != 'M' || strcmp(e->category, "thread_name") != 0) continue;
    for (int n = 0; n < 3; n++) found += strcmp(e->name, names[n]) == 0;
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
      ck_assert_str_ne(e->name, ek_memory_category_name((ek_memory_category)c));
    }
  }
  ck_assert_uint_eq(found, 3 * DEVICES);
}

/* The children's time is within that of the model, and in all of it there is some. */
static void check_sums(bool counts_only) {
  for (long p = 1; p <= DEVICES; p++) {
    double whole = 0, parts = 0;
    for (size_t i = 0; i < event_count; i++) {
      const struct event *e = &events[i];
      if (e->kind != 'X' || e->process != p || strcmp(e->category, "forward") != 0) continue;
      if (strstr(e->name, "(linear)") != NULL) {
        parts += e->length;
      } else {
        whole += e->length;
      }
    }
    ck_assert_msg(parts <= whole + 0.01, "children: %g us, all: %g us", parts, whole);
    ck_assert(counts_only || parts > 0);
  }
}

/* The last counter of a device is what its ledger holds. */
static void check_counters(const ek_group *group) {
  for (long p = 1; p <= DEVICES; p++) {
    const struct event *last = NULL;
    size_t count = 0;
    for (size_t i = 0; i < event_count; i++) {
      if (events[i].kind != 'C' || events[i].process != p) continue;
      ck_assert(last == NULL || events[i].begin >= last->begin);
      last = &events[i];
      count++;
    }
    CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, ek_group_device(group, (size_t)p - 1)));
    ck_assert(count > 8 && last != NULL);
    for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
      ck_assert_int_eq(last->bytes[c], (long long)usage.current[c]);
    }
  }
}

/* On devices that compute and that count, in f32 and in bf16, which has copies beside masters. */
CK_LOOP(a_trace_is_what_was_done, ck_has_halves() ? 4 : 2) {
  const bool counts_only = _i % 2 == 1;
  CK_SET_UP(struct ck_linears, it,
            ck_linears_open_in(&it, counts_only ? "plan:2" : "cpu:2", WIDTH, EK_MODE_REPLICATED,
                               _i < 2 ? EK_PRECISION_F32 : EK_PRECISION_BF16));
  take_steps(&it, 1);
  ck_ok(ek_trace_start(it.group, 0));
  take_steps(&it, 2);
  ck_ok(ek_trace_stop(it.group));
  take_steps(&it, 1); /* in no trace */
  CK_GOT(ek_trace_summary, summary, ek_trace_write(&summary, it.group, path));
  read_trace();
  check_rules();
  check_tracks();
  check_steps(counts_only);
  check_sums(counts_only);
  check_counters(it.group);
  ck_assert_uint_eq(summary.spans_dropped + summary.counters_dropped, 0);
  size_t spans = 0;
  for (long p = 1; p <= DEVICES; p++) spans += count_spans(p, NULL, NULL);
  ck_assert_uint_eq(spans, summary.spans);
}

/* The first are kept, the others counted; a new trace begins anew. */
CK_TEST(without_room_the_first_are_kept) {
  CK_SET_UP(struct ck_linears, it, ck_linears_open(&it, "cpu:2", WIDTH, EK_MODE_SHARDED));
  ck_ok(ek_trace_start(it.group, 3));
  take_steps(&it, 3);
  ck_ok(ek_trace_stop(it.group));
  CK_GOT(ek_trace_summary, summary, ek_trace_write(&summary, it.group, path));
  ck_assert_uint_le(summary.spans, 6);
  ck_assert(summary.spans_dropped > 20 && summary.counters_dropped > 0);
  ck_assert_uint_eq(summary.counters, 2 * 3 * 4);
  read_trace();
  check_rules();
  ck_ok(ek_trace_start(it.group, 1000));
  ck_ok(ek_trace_stop(it.group));
  ck_ok(ek_trace_write(&summary, it.group, path));
  ck_assert_uint_eq(summary.spans + summary.spans_dropped, 0);
  ck_ok(ek_trace_start(it.group, 3));
  for (int i = 0; i < 4; i++) ek_trace_end(ek_trace_begin(ek_group_device(it.group, 0), "span"));
  ck_ok(ek_trace_stop(it.group));
  ck_ok(ek_trace_write(&summary, it.group, path));
  ck_assert(summary.spans == 3 && summary.spans_dropped == 1);
}

/* A program's own spans; names that JSON must write otherwise; ends that come late or not at
 * all. */
CK_TEST(spans_of_a_program) {
  ek_group *group = ck_open("cpu:2", 1);
  ek_device *device = ek_group_device(group, 0);
  char longest[200];
  memset(longest, 'x', sizeof longest);
  longest[198] = 'z';
  longest[199] = '\0';
  ek_trace_end(ek_trace_begin(device, "nobody listens"));
  ek_trace_end(ek_trace_begin(NULL, "nowhere"));
  ck_ok(ek_trace_start(group, 0));
  const ek_trace_span outer = ek_trace_begin(device, "outer");
  ek_trace_end(ek_trace_begin(device, "in\\ner\n\xc3\xa4\xff\x7f"));
  ek_trace_end(ek_trace_begin(device, longest));
  ek_trace_end(outer);
  const ek_trace_span late = ek_trace_begin(device, "late");
  (void)ek_trace_begin(device, "never");
  /* Not nested: it goes to a track of its own. */
  const ek_trace_span a = ek_trace_begin(device, "a"), b = ek_trace_begin(device, "b");
  ek_trace_end(a);
  ek_trace_end(b);
  ck_ok(ek_trace_stop(group));
  ek_trace_end(late);
  ck_ok(ek_group_synchronize(group)); /* on a queue it is not over before */
  CK_GOT(ek_trace_summary, summary, ek_trace_write(&summary, group, path));
  read_trace();
  check_rules();
  ck_assert_uint_eq(summary.spans, 6);
  ck_assert_uint_eq(summary.spans_dropped, 1);
  ck_assert_uint_eq(count_spans(1, "program", "outer"), 1);
  ck_assert_uint_eq(count_spans(1, "program", "in\\\\ner\\u000a\xc3\xa4\\ufffd\\u007f"), 1);
  ck_assert_uint_eq(count_spans(1, "program", longest + 120), 1);
  ck_assert_uint_eq(count_spans(1, "program", "late"), 1);
  ck_assert_uint_eq(count_spans(1, "program", "never"), 0);
}

CK_TEST(misuse_is_refused) {
  ek_group *group = ck_open("cpu:2", 1);
  ck_invalid(ek_trace_start(NULL, 0), "NULL");
  ck_invalid(ek_trace_stop(NULL), "NULL");
  ck_fails(ek_trace_stop(group), EK_ERR_STATE, "no trace is running");
  ck_fails(ek_trace_write(NULL, group, path), EK_ERR_STATE, "no trace was recorded");
  ck_fails(ek_trace_start(group, SIZE_MAX / 2), EK_ERR_OUT_OF_MEMORY, "trace");
  ck_ok(ek_trace_start(group, 16));
  ck_fails(ek_trace_write(NULL, group, path), EK_ERR_STATE, "the trace is still running");
  ck_ok(ek_trace_stop(group));
  ck_fails(ek_trace_stop(group), EK_ERR_STATE, "no trace is running");
  ck_invalid(ek_trace_write(NULL, group, NULL), "NULL");
  ck_fails(ek_trace_write(NULL, group, folder), EK_ERR_IO, "not a regular file");
  ck_fails(ek_trace_write(NULL, group, "/nowhere/at/all"), EK_ERR_NOT_FOUND, "/nowhere");
  ck_ok(ek_trace_write(NULL, group, path));
  ck_ok(ek_trace_write(NULL, group, path)); /* as often as one likes */
}

/* A child of the process has no workers, and a lock may be held for ever. */
CK_TEST(a_child_traces_nothing) {
  ek_group *group = ck_open("cpu:2", 1);
  ck_ok(ek_trace_start(group, 8));
  int code = -1;
  if (ck_forked(&code)) {
    const bool refused =
        ek_trace_start(group, 8) == EK_ERR_STATE && ek_trace_stop(group) == EK_ERR_STATE;
    _exit(refused ? 0 : 1);
  }
  ck_assert_int_eq(code, 0);
  ck_ok(ek_trace_stop(group));
}

/* Each request for the host's memory fails once: nothing is lost but the call. */
CK_TEST(the_host_is_out_of_memory) {
  ek_group *group = ck_open("cpu:2", 1);
  ck_ok(ek_trace_start(group, 8));
  ek_trace_end(ek_trace_begin(ek_group_device(group, 1), "kept"));
  ck_ok(ek_trace_stop(group));
  uint64_t n = 0;
  while (ck_host_fails(&n, ek_trace_write(NULL, group, path))) ck_assert(access(path, F_OK) != 0);
  ck_assert_uint_gt(n, 4);
  read_trace();
  ck_assert_uint_eq(count_spans(2, "program", "kept"), 1);
  n = 0;
  while (ck_host_fails(&n, ek_trace_start(group, 8))) {
    ck_ok(ek_trace_write(NULL, group, path)); /* the old one is there */
  }
  ck_assert_uint_gt(n, 6);
  ck_ok(ek_trace_stop(group));
}

/* A step that runs again allocates nothing on the host, with a trace as without. */
CK_TEST(a_step_allocates_nothing) {
  CK_SET_UP(struct ck_linears, it, ck_linears_open(&it, "cpu:2", WIDTH, EK_MODE_REPLICATED));
  take_steps(&it, 2);
  ck_ok(ek_trace_start(it.group, 0));
  ek_host_memory_fail_at(1);
  take_steps(&it, 1);
  ek_host_memory_fail_at(0);
  ck_ok(ek_trace_stop(it.group));
}

CK_SUITE_WITH("trace", make_folder, NULL)
