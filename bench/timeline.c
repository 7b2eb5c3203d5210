/*
 * timeline.c - see timeline.h. The events are those of the library's recorder, thinned for a curve.
 */
#include "timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "terminal.h"

/* Of one device and one step: room for a model of some 10,000 tensors; and points of a curve. */
enum { STEP_EVENTS = 200000, SLOTS = 300 };

struct recording {
  ek_group *group;
  double starts[BENCH_MAX_DEVICES];
  ek_memory_usage held[BENCH_MAX_DEVICES]; /* when it started */
};

static ek_status start(void *context) {
  struct recording *recording = context;
  for (size_t k = 0; k < ek_group_size(recording->group); k++) {
    ek_device *device = ek_group_device(recording->group, k);
    EK_TRY(ek_memory_stats(&recording->held[k], device));
    recording->starts[k] = clock_seconds();
    EK_TRY(ek_memory_record_start(device, STEP_EVENTS));
  }
  return EK_OK;
}

/* What is held after an event, by category. */
struct held {
  double seconds;
  uint64_t bytes, categories[EK_MEMORY_CATEGORIES];
};

static void apply(struct held *held, const ek_memory_event *event, double offset) {
  held->seconds = fmax(0, offset + (double)event->nanoseconds * 1e-9);
  held->bytes = event->current_bytes;
  if (event->before != event->category) {
    held->categories[event->before] -= event->block_bytes;
    held->categories[event->category] += event->block_bytes;
  } else {
    held->categories[event->category] += (uint64_t)event->delta_bytes; /* which may be negative */
  }
}

static void add_point(struct device_timeline *curve, const struct held *held) {
  curve->seconds[curve->count] = held->seconds;
  curve->bytes[curve->count] = held->bytes;
  memcpy(curve->categories[curve->count++], held->categories, sizeof held->categories);
}

/* All events; of many those within a slot of time that are the largest and the last, so that the
   height of a peak stays. */
static void thin(struct device_timeline *curve, const ek_memory_event *events, size_t count,
                 double offset, const ek_memory_usage *usage, double length) {
  struct held held = {.bytes = usage->current_bytes};
  curve->seconds = need_memory(2 * SLOTS + 2, sizeof *curve->seconds);
  curve->bytes = need_memory(2 * SLOTS + 2, sizeof *curve->bytes);
  curve->categories = need_memory(2 * SLOTS + 2, sizeof *curve->categories);
  memcpy(held.categories, usage->current, sizeof held.categories);
  add_point(curve, &held);
  size_t i = 0;
  for (; count <= 2 * SLOTS && i < count; i++) {
    apply(&held, &events[i], offset);
    add_point(curve, &held);
  }
  for (int slot = 0; slot < SLOTS && i < count; slot++) {
    const double end = slot + 1 == SLOTS ? (double)INFINITY : length * (slot + 1) / SLOTS;
    const size_t first = i;
    size_t most_at = i;
    struct held most = held;
    for (; i < count && offset + (double)events[i].nanoseconds * 1e-9 < end; i++) {
      apply(&held, &events[i], offset);
      if (i > first && held.bytes <= most.bytes) continue;
      most = held;
      most_at = i;
    }
    if (i == first) continue;
    add_point(curve, &most);
    if (most_at + 1 < i) add_point(curve, &held);
  }
}

static ek_status collect(struct step_timeline *timeline, const struct recording *recording) {
  struct phases *phases = &timeline->phases;
  const double begin = phases->count > 0 ? phases->list[0].begin : 0;
  const double length = phases->count > 0 ? phases->list[phases->count - 1].end - begin : 0;
  for (size_t i = 0; i < phases->count; i++) {
    phases->list[i].begin -= begin;
    phases->list[i].end -= begin;
  }
  for (size_t k = 0; k < ek_group_size(recording->group); k++) {
    const ek_memory_event *events = NULL;
    size_t count = 0, dropped = 0;
    EK_TRY(ek_memory_record_stop(&events, &count, &dropped, ek_group_device(recording->group, k)));
    thin(&timeline->devices[k], events, count, recording->starts[k] - begin, &recording->held[k],
         length);
    timeline->dropped += dropped;
  }
  return EK_OK;
}

ek_status timeline_take(struct step_timeline **timeline, struct training *training) {
  struct recording recording = {.group = training->group};
  struct step_timeline *result = need_memory(1, sizeof *result);
  *timeline = NULL;
  training_prepare(training);
  ek_status status = training_step_phases(training, &result->phases, start, &recording);
  if (status == EK_OK) status = collect(result, &recording);
  if (status == EK_OK) {
    *timeline = result;
    return EK_OK;
  }
  timeline_free(result, ek_group_size(training->group));
  return status == EK_ERR_OUT_OF_MEMORY ? EK_OK : status;
}

void timeline_free(struct step_timeline *timeline, size_t devices) {
  if (timeline == NULL) return;
  for (size_t k = 0; k < devices; k++) {
    free(timeline->devices[k].seconds);
    free(timeline->devices[k].bytes);
    free(timeline->devices[k].categories);
  }
  free(timeline);
}
