/*
 * holdings.c - the checks of a module's memory: the bytes that it holds, those left after an
 * allocation failed, and those on a device that only counts.
 */
#include <stdio.h>
#include <string.h>

#include <evenkeel/memory.h>

#include "checks.h"

/* Runs in which each allocation fails once; the bed has checked that nothing is left. */
static ek_status check_failures(struct ek__bed *bed) {
  struct ek__trial fails = ek__check_whole;
  for (fails.fail_at = 1;; fails.fail_at++) {
    const ek_status status = ek__bed_run(bed, &fails);
    if (status == EK_OK || status == EK_ERR_MISMATCH) return status;
    if (status == EK_ERR_OUT_OF_MEMORY) continue;
    return ek_error_set(EK_ERR_MISMATCH, "allocation %llu fails, but the module returns %s: %s",
                        (unsigned long long)fails.fail_at, ek_status_name(status),
                        ek_error_message());
  }
}

/* In f32, where the module computes in it: a plan of a training run is in f32 or less. */
static ek_status check_saved(const struct ek__checker *c, struct ek__bed *bed,
                             const struct ek__trial *forward, const struct ek__trial *given_up) {
  if (c->options.saved < 0) return EK_OK;
  EK_TRY(ek__bed_close(bed, EK_OK));
  bed->bare = true;
  EK_TRY(
      ek__bed_open(bed, c->module, c->devices, c->both ? EK_F32 : c->type, c->inputs, &c->options));
  EK_TRY(ek__bed_run(bed, forward));
  EK_TRY(ek__bed_run(bed, &ek__check_whole));
  EK_TRY(ek__bed_run(bed, given_up));
  const uint64_t saved = bed->parts[0].saved;
  if (saved == (uint64_t)c->options.saved) return EK_OK;
  return ek_error_set(EK_ERR_MISMATCH, "forward keeps %llu bytes for backward, expected %lld",
                      (unsigned long long)saved, (long long)c->options.saved);
}

ek_status ek__check_memory(struct ek__checker *c, struct ek__bed *bed, union ek__results *once) {
  struct ek__trial given_up = ek__check_whole, forward = ek__check_whole;
  (void)once;
  given_up.backward = given_up.grad_inputs = false;
  forward.gradient = forward.backward = forward.grad_inputs = false;
  EK_TRY(ek__bed_run(bed, &forward));
  EK_TRY(ek__bed_run(bed, &given_up));
  EK_TRY(check_failures(bed));
  return check_saved(c, bed, &forward, &given_up);
}

/* ---- plan ---- */

enum { MOST_EVENTS = 1 << 16 };

/* The memory that device 0 of a new group takes for one run. */
static ek_status record(struct ek__bed *bed, const ek_memory_event **events, size_t *count,
                        ek_memory_usage *usage, const struct ek__checker *c, const char *devices) {
  EK_TRY(ek__bed_open(bed, c->module, devices, c->type, c->inputs, &c->options));
  ek_device *device = ek_group_device(bed->group, 0);
  EK_TRY(ek_memory_record_start(device, MOST_EVENTS));
  EK_TRY(ek__bed_run(bed, &ek__check_whole));
  EK_TRY(ek_memory_record_stop(events, count, NULL, device));
  return ek_memory_stats(usage, device);
}

static ek_status compare_events(const ek_memory_event *real, size_t real_count,
                                const ek_memory_event *plan, size_t plan_count) {
  for (size_t i = 0; i < real_count || i < plan_count; i++) {
    static const ek_memory_event none = {.category = EK_MEMORY_CATEGORIES};
    const ek_memory_event *r = i < real_count ? &real[i] : &none;
    const ek_memory_event *p = i < plan_count ? &plan[i] : &none;
    if (r->delta_bytes == p->delta_bytes && r->category == p->category) continue;
    return ek_error_set(
        EK_ERR_MISMATCH,
        "step %zu of the ledger is %lld bytes of %s, but on a plan device %lld bytes of %s", i,
        (long long)r->delta_bytes, ek_memory_category_name(r->category), (long long)p->delta_bytes,
        ek_memory_category_name(p->category));
  }
  return EK_OK;
}

ek_status ek__check_plan(struct ek__checker *c, struct ek__bed *bed, union ek__results *once) {
  struct ek__bed real = {0}, plan = {0};
  const ek_memory_event *events[2] = {NULL, NULL};
  size_t counts[2] = {0, 0};
  ek_memory_usage usage[2];
  char devices[32];
  (void)once;
  (void)snprintf(devices, sizeof devices, "%s:%zu",
                 ek_device_planner(ek_group_device(bed->group, 0)), bed->devices);
  ek_status status = ek__bed_close(bed, EK_OK);
  if (status == EK_OK) status = record(&real, &events[0], &counts[0], &usage[0], c, c->devices);
  if (status == EK_OK) status = record(&plan, &events[1], &counts[1], &usage[1], c, devices);
  if (status == EK_OK) status = compare_events(events[0], counts[0], events[1], counts[1]);
  if (status == EK_OK && usage[0].peak_bytes != usage[1].peak_bytes) {
    status = ek_error_set(EK_ERR_MISMATCH, "the peak is %llu bytes, but %llu on a plan device",
                          (unsigned long long)usage[0].peak_bytes,
                          (unsigned long long)usage[1].peak_bytes);
  }
  status = ek__bed_close(&plan, status);
  return ek__bed_close(&real, status);
}
