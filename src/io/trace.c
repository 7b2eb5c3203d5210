/*
 * trace.c - starts and stops the tracks of a group and writes them as Trace Event Format (JSON).
 *
 * The spans of one lane are taken in the order in which they begin, and each goes into the first
 * row in which it nests: a row is a stack of the ends of its open spans. So the spans of one thread
 * keep to one row; only spans that overlap without nesting need another.
 */
#include <evenkeel/trace.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/version.h>

#include "core/alloc.h"
#include "core/error.h"
#include "device/device_internal.h"
#include "device/track.h"
#include "io/file.h"
#include "io/text_file.h"

enum { DEFAULT_SPANS = 16384, ROWS = 8, DEPTH = 64 };

/* ---- recording ---- */

static ek_status open_tracks(struct ek__track **tracks, ek_group *group, size_t spans) {
  for (size_t k = 0; k < ek_group_size(group); k++) {
    EK_TRY(ek__track_open(&tracks[k], ek_group_device(group, k), spans));
  }
  return EK_OK;
}

ek_status ek_trace_start(ek_group *group, size_t spans) {
  EK__NOT_NULL("ek_trace_start", group);
  EK_TRY(ek__group_check(group, "ek_trace_start"));
  const size_t devices = ek_group_size(group), wanted = spans == 0 ? DEFAULT_SPANS : spans;
  EK__FAIL_IF(wanted > SIZE_MAX / 1024, EK_ERR_OUT_OF_MEMORY, "out of host memory for a trace");
  struct ek__track **tracks = NULL;
  EK_TRY(ek__new(&tracks, devices, sizeof *tracks, "a trace"));
  ek_status status = open_tracks(tracks, group, wanted);
  for (size_t k = 0; k < devices; k++) {
    if (status == EK_OK) {
      ek__track_start(tracks[k]);
    } else {
      ek__track_free(tracks[k]);
    }
  }
  ek__free((void *)tracks);
  return status;
}

ek_status ek_trace_stop(ek_group *group) {
  EK__NOT_NULL("ek_trace_stop", group);
  EK_TRY(ek__group_check(group, "ek_trace_stop"));
  const ek_status status = ek_group_synchronize(group);
  bool ran = false;
  for (size_t k = 0; k < ek_group_size(group); k++) {
    ran = ek__track_stop(ek_group_device(group, k)) || ran;
  }
  EK_TRY(status);
  EK__FAIL_IF(!ran, EK_ERR_STATE, "ek_trace_stop: no trace is running");
  return EK_OK;
}

ek_trace_span ek_trace_begin(ek_device *device, const char *name) {
  struct ek__track_span *span = ek__track_span_begin(device, EK__LANE_COMPUTE, "program", 0);
  if (span != NULL) ek__track_span_name(span, name == NULL ? "" : name);
  return (ek_trace_span){span};
}

void ek_trace_end(ek_trace_span span) { ek__track_span_end(span.span); }

/* ---- spans in rows ---- */

struct placed {
  const struct ek__track_span *span;
  uint64_t begin, end;
  size_t row;
};

struct row {
  uint64_t ends[DEPTH];
  size_t depth;
};

/* The span that begins first; of several the longest, which contains the others. */
static int by_begin(const void *left, const void *right) {
  const struct placed *a = left, *b = right;
  if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
  return (a->end < b->end) - (a->end > b->end);
}

/* False: it nests in no row. */
static bool find_row(struct row *rows, struct placed *it) {
  for (size_t r = 0; r < ROWS; r++) {
    struct row *row = &rows[r];
    while (row->depth > 0 && row->ends[row->depth - 1] <= it->begin) row->depth--;
    if (row->depth == DEPTH || (row->depth > 0 && row->ends[row->depth - 1] < it->end)) continue;
    row->ends[row->depth++] = it->end;
    it->row = r;
    return true;
  }
  return false;
}

/* The spans of a lane that have ended, each with its row. */
static size_t place_lane(struct placed *placed, struct row *rows, const struct ek__track *track,
                         enum ek__lane lane, uint64_t *dropped) {
  size_t count = 0, kept = 0;
  const size_t begun = atomic_load(&track->begun);
  for (size_t i = 0; i < begun && i < track->capacity; i++) {
    struct placed it = {.span = &track->spans[i]};
    if (it.span->track == NULL || it.span->lane != lane) continue;
    if (ek__track_span_times(&it.begin, &it.end, track, i) && it.end >= it.begin) {
      placed[count++] = it;
    } else {
      ++*dropped;
    }
  }
  qsort(placed, count, sizeof *placed, by_begin);
  memset(rows, 0, ROWS * sizeof *rows);
  for (size_t i = 0; i < count; i++) {
    if (find_row(rows, &placed[i])) {
      placed[kept++] = placed[i];
    } else {
      ++*dropped;
    }
  }
  return kept;
}

/* ---- writing ---- */

struct writing {
  struct ek__text_file *file;
  uint64_t start; /* of all times */
  struct placed *placed;
  struct row *rows;
  ek_trace_summary summary;
};

static const char *const lane_names[EK__LANES] = {"compute stream", "communication stream",
                                                  "transfers"};

/* Microseconds with three digits after the point, exact. */
static void write_time(struct ek__text_file *file, const char *key, uint64_t nanoseconds) {
  ek__text_format(file, ",\"%s\":%" PRIu64 ".%03" PRIu64, key, nanoseconds / 1000,
                  nanoseconds % 1000);
}

static uint64_t since(const struct writing *it, uint64_t time) { return time - it->start; }

static void write_name(const struct writing *it, const char *what, size_t process, size_t thread,
                       const char *name, size_t row) {
  ek__text_format(it->file,
                  ",\n{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%zu,\"tid\":%zu,\"args\":{"
                  "\"name\":",
                  what, process, thread);
  char numbered[64];
  (void)snprintf(numbered, sizeof numbered, row > 0 ? "%s %zu" : "%s", name, row + 1);
  ek__text_json(it->file, numbered);
  ek__text_format(it->file, "}}");
}

static void write_span(const struct writing *it, const struct placed *placed, size_t process,
                       size_t thread) {
  const struct ek__track_span *span = placed->span;
  const uint64_t begin = since(it, placed->begin), end = since(it, placed->end);
  ek__text_format(it->file, ",\n{\"ph\":\"X\",\"name\":");
  ek__text_json(it->file, span->name[0] == '\0' ? "model" : span->name);
  ek__text_format(it->file, ",\"cat\":\"%s\",\"pid\":%zu,\"tid\":%zu", span->category, process,
                  thread);
  write_time(it->file, "ts", begin);
  write_time(it->file, "dur", end - begin);
  if (span->bytes > 0) ek__text_format(it->file, ",\"args\":{\"bytes\":%" PRIu64 "}", span->bytes);
  ek__text_format(it->file, "}");
}

static void write_lane(struct writing *it, const struct ek__track *track, size_t process,
                       enum ek__lane lane) {
  const size_t count = place_lane(it->placed, it->rows, track, lane, &it->summary.spans_dropped);
  size_t rows = 1;
  for (size_t i = 0; i < count; i++) {
    if (it->placed[i].row + 1 > rows) rows = it->placed[i].row + 1;
  }
  for (size_t r = 0; r < rows; r++) {
    write_name(it, "thread_name", process, 1 + (size_t)lane * ROWS + r, lane_names[lane], r);
  }
  for (size_t i = 0; i < count; i++) {
    write_span(it, &it->placed[i], process, 1 + (size_t)lane * ROWS + it->placed[i].row);
  }
  it->summary.spans += count;
}

static void write_counter(const struct writing *it, size_t process, uint64_t time,
                          const uint64_t *held) {
  ek__text_format(it->file, ",\n{\"ph\":\"C\",\"name\":\"memory\",\"pid\":%zu,\"tid\":0", process);
  write_time(it->file, "ts", time);
  ek__text_format(it->file, ",\"args\":{");
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
    ek__text_format(it->file, "%s\"%s\":%" PRIu64, c > 0 ? "," : "",
                    ek_memory_category_name((ek_memory_category)c), held[c]);
  }
  ek__text_format(it->file, "}}");
}

static void write_counters(struct writing *it, const struct ek__track *track, size_t process) {
  uint64_t held[EK_MEMORY_CATEGORIES];
  memcpy(held, track->held, sizeof held);
  write_counter(it, process, since(it, track->start), held);
  const size_t kept =
      track->counted < track->counter_capacity ? track->counted : track->counter_capacity;
  for (size_t i = 0; i < kept; i++) {
    held[track->counters[i].category] = track->counters[i].bytes;
    write_counter(it, process, since(it, track->counters[i].nanoseconds), held);
  }
  it->summary.counters += kept;
  it->summary.counters_dropped += track->counted - kept;
}

/* "cpu:0", and among several processes "rank 3, cpu:0". */
static const char *name_of_device(char *text, size_t size, const ek_device *device) {
  const ek_group *group = ek_device_group(device);
  if (ek__group_world(group) == NULL) return ek_device_name(device);
  (void)snprintf(text, size, "rank %zu, %s",
                 ek__group_first_rank(group) + ek_device_index(device), ek_device_name(device));
  return text;
}

static void write_device(struct writing *it, const struct ek__track *track) {
  const size_t process = ek_device_index(track->device) + 1;
  char name[64];
  write_name(it, "process_name", process, 0, name_of_device(name, sizeof name, track->device), 0);
  for (int lane = 0; lane < EK__LANES; lane++) write_lane(it, track, process, (enum ek__lane)lane);
  write_counters(it, track, process);
  const size_t begun = atomic_load(&track->begun);
  if (begun > track->capacity) it->summary.spans_dropped += begun - track->capacity;
}

static void write_group(struct writing *it, const ek_group *group) {
  ek__text_format(it->file,
                  "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\",\"name\":"
                  "\"evenkeel\",\"pid\":0,\"tid\":0,\"args\":{\"version\":\"%s\"}}",
                  EK_VERSION_STRING);
  for (size_t k = 0; k < ek_group_size(group); k++) {
    bool recording = false;
    write_device(it, ek__track_kept(&recording, ek_group_device(group, k)));
  }
  ek__text_format(it->file,
                  "\n],\"otherData\":{\"spans_dropped\":\"%" PRIu64
                  "\",\"counters_dropped\":\"%" PRIu64 "\"}}\n",
                  it->summary.spans_dropped, it->summary.counters_dropped);
}

/* A stream's clock, brought to the host's, may say that a span began a moment before the start. */
static void look_at_spans(uint64_t *start, const struct ek__track *track) {
  const size_t begun = atomic_load(&track->begun);
  for (size_t i = 0; i < begun && i < track->capacity; i++) {
    uint64_t begin = 0, end = 0;
    if (ek__track_span_times(&begin, &end, track, i) && begin < *start) *start = begin;
  }
}

/* The earliest start of any span, and the largest number of spans of a track. */
static ek_status look(uint64_t *start, size_t *spans, const ek_group *group) {
  *start = UINT64_MAX;
  for (size_t k = 0; k < ek_group_size(group); k++) {
    bool recording = false;
    const struct ek__track *track = ek__track_kept(&recording, ek_group_device(group, k));
    EK__FAIL_IF(track == NULL || recording, EK_ERR_STATE, "ek_trace_write: %s",
                track == NULL ? "no trace was recorded" : "the trace is still running");
    if (track->start < *start) *start = track->start;
    if (track->capacity > *spans) *spans = track->capacity;
    look_at_spans(start, track);
  }
  return EK_OK;
}

ek_status ek_trace_write(ek_trace_summary *summary, const ek_group *group, const char *path) {
  EK__NOT_NULL("ek_trace_write", path, group);
  struct writing it = {0};
  size_t spans = 0;
  char *own = NULL;
  ek_status status = EK_OK;
  EK_TRY(look(&it.start, &spans, group));
  EK_TRY(ek__file_of_process(&own, path, ek__group_world(group)));
  EK_TRY_GOTO(status, ek__new(&it.placed, spans, sizeof *it.placed, "a trace"), cleanup);
  EK_TRY_GOTO(status, ek__new(&it.rows, ROWS, sizeof *it.rows, "a trace"), cleanup);
  EK_TRY_GOTO(status, ek__text_begin(&it.file, own), cleanup);
  write_group(&it, group);
  EK_TRY_GOTO(status, ek__text_end(it.file, false), cleanup);
  if (summary != NULL) *summary = it.summary;
cleanup:
  ek__free(it.rows);
  ek__free(it.placed);
  ek__free(own);
  return status;
}
