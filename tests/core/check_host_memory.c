/*
 * check_host_memory.c - the switch that makes an allocation of the host fail: it counts, it fires
 * once, it can be taken back, and every call that needs memory comes through it cleanly.
 */
#include "ek_check.h"

/* Makes the 1st, 2nd, ... allocation fail until the call succeeds; returns how many failed. */
static int fail_until_it_works(ek_status (*call)(void *context), void *context) {
  uint64_t n = 0;
  while (ck_host_fails(&n, call(context))) {
  }
  return (int)n - 1;
}

static ek_status open_and_close(void *context) {
  ek_group *group = NULL;
  const ek_status status = ek_group_open(&group, context, NULL);
  if (status != EK_OK && group != NULL) return EK_ERR_INTERNAL; /* left as it was */
  ek_group_free(group);
  return status;
}

CK_LOOP(opening_a_group, 4) {
  static char *const specs[] = {"cpu", "cpu:3", "plan:5", "cpu:2@1MiB"};
  char *spec = specs[_i];
  const int failed = fail_until_it_works(open_and_close, spec);
  ck_assert_int_ge(failed, 4); /* group, spec, device, arena, streams */
  ck_ok(open_and_close(spec));
}

CK_TEST(it_fires_once) {
  char spec[] = "plan:1";
  ek_host_memory_fail_at(1);
  ck_fails(open_and_close(spec), EK_ERR_OUT_OF_MEMORY, "memory");
  ck_ok(open_and_close(spec));
}

CK_TEST(a_program_asks_too) {
  ek_host_memory_fail_at(3);
  for (int i = 1; i <= 5; i++) ck_assert_int_eq(ek_host_memory_fails(), i == 3);
}

CK_TEST(it_can_be_taken_back) {
  char spec[] = "plan:1";
  ek_host_memory_fail_at(2);
  ek_host_memory_fail_at(0);
  for (int i = 0; i < 3; i++) ck_ok(open_and_close(spec));
}

/* ---- what takes host memory on an open group ---- */

static ek_status open_communicator(void *context) {
  ek_communicator *communicator = NULL;
  EK_TRY(ek_communicator_open(&communicator, context));
  ek_communicator_free(communicator);
  return EK_OK;
}

static ek_status create_event(void *context) {
  ek_event *event = NULL;
  EK_TRY(ek_event_create(&event, ek_group_device(context, 0)));
  ek_event_free(event);
  return EK_OK;
}

static ek_status record(void *context) {
  return ek_memory_record_start(ek_group_device(context, 0), 100);
}

CK_LOOP(communicators_events_and_recorders, 2) {
  ek_group *group = ck_open(_i == 0 ? "cpu:2@1MiB" : "plan:2", 1);
  ck_assert_int_eq(fail_until_it_works(open_communicator, group), _i == 0 ? 6 : 1);
  ck_assert_int_eq(fail_until_it_works(create_event, group), 1);
  ck_assert_int_eq(fail_until_it_works(record, group), 2); /* changes, and who made them */
}

CK_TEST(a_failed_restart_keeps_the_recording) {
  ek_device *device = ck_device("plan:1");
  ck_ok(ek_memory_record_start(device, 10));
  ek_host_memory_fail_at(1);
  ck_fails(ek_memory_record_start(device, 10), EK_ERR_OUT_OF_MEMORY, "10 events");
  CK_OPENED(ek_tensor, tensor, ek_tensor_create(&tensor, device, EK_MEMORY_LOSS, EK_F32, 0, NULL));
  const ek_memory_event *events = NULL;
  CK_GOT(size_t, count, ek_memory_record_stop(&events, &count, NULL, device));
  ck_assert_uint_eq(count, 1);
}

static ek_status take(ek_tensor *tensor, ek_device *device) {
  return ek_tensor_create(tensor, device, EK_MEMORY_INPUTS, EK_F32, CK_SHAPE(64));
}

/* Blocks are described by records that come 256 at a time; the failing ones must do no harm. */
CK_TEST(many_tensors) {
  enum { TENSORS = 1200 };
  static ek_tensor tensors[TENSORS];
  ek_device *device = ck_device("plan:1");
  int failed = 0;
  for (int i = 0; i < TENSORS; i++) {
    ek_host_memory_fail_at(1);
    const ek_status status = take(&tensors[i], device);
    ek_host_memory_fail_at(0);
    if (status == EK_OK) continue;
    ck_assert_int_eq(status, EK_ERR_OUT_OF_MEMORY);
    ck_assert(!ek_tensor_exists(&tensors[i]));
    failed++;
    ck_ok(take(&tensors[i], device));
  }
  ck_assert_int_ge(failed, 3);
  ck_assert_int_le(failed, 6);
  CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, device));
  ck_assert_uint_eq(usage.current_bytes, 256u * TENSORS);
  ck_assert_uint_eq(usage.peak_bytes, 256u * TENSORS);
  for (int i = 0; i < TENSORS; i++) ek_tensor_free(&tensors[i]);
  /* Freed records serve again. */
  ek_host_memory_fail_at(1);
  for (int i = 0; i < TENSORS; i++) ck_ok(take(&tensors[i], device));
  ek_host_memory_fail_at(0);
  for (int i = 0; i < TENSORS; i++) ek_tensor_free(&tensors[i]);
}

CK_SUITE("host_memory")
