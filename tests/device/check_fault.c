/*
 * check_fault.c - the switch that makes the n-th piece of work on a device fail: which pieces are
 * counted, that each device has a count of its own, and that a failure comes once.
 */
#include "ek_check.h"

CK_TEST(bad_arguments) {
  ek_group *group = ck_open("cpu:1@1MiB", 1);
  ck_invalid(ek_fault_at(NULL, 1, EK_ERR_UNAVAILABLE), "device");
  ck_invalid(ek_fault_at(ek_group_device(group, 0), 1, EK_OK), "EK_OK");
  ck_ok(ek_fault_at(ek_group_device(group, 0), 0, EK_OK));
}

/* Each piece fails when it is the next one, says which it is, and works when it is tried again. */
CK_TEST(each_kind) {
  ek_device *device = ck_device("cpu:1@1MiB");
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  const double values[] = {1, 2, 3, 4};
  ek_tensor x = ck_upload(device, EK_F32, values, CK_SHAPE(4));
  float host[4] = {0};
  CK_GOT(ek_tensor, to, ek_tensor_host(&to, host, EK_F32, CK_SHAPE(4)));
  CK_OPENED(ek_event *, event, ek_event_create(&event, device));
#define FAILS_ONCE(call, text)                                                                     \
  do {                                                                                             \
    ck_ok(ek_fault_at(device, 1, EK_ERR_UNSUPPORTED));                                             \
    ck_fails(call, EK_ERR_UNSUPPORTED, text);                                                      \
    ck_assert(ck_contains(ek_error_message(), ek_device_name(device)));                            \
    ck_ok(call);                                                                                   \
  } while (0)
  FAILS_ONCE(ek_op_scale(stream, &x, &x, 2.0), "scale");
  FAILS_ONCE(ek_tensor_copy(&to, &x), "copy");
  FAILS_ONCE(ek_stream_synchronize(stream), "waiting");
  FAILS_ONCE(ek_event_record(event, stream), "event");
#undef FAILS_ONCE
  ck_ok(ek_event_synchronize(event));
}

/* The third of five, on one device of two; taken back, none. */
CK_TEST(counts) {
  ek_group *group = ck_open("cpu:2@1MiB", 1);
  ek_tensor x[2];
  ek_stream *streams[2];
  for (size_t k = 0; k < 2; k++) {
    const double zero = 0;
    x[k] = ck_upload(ek_group_device(group, k), EK_F32, &zero, CK_SHAPE(1));
    streams[k] = ek_device_stream(ek_group_device(group, k), EK_STREAM_COMPUTE);
  }
  ck_ok(ek_fault_at(ek_group_device(group, 1), 3, EK_ERR_UNAVAILABLE));
  for (int i = 1; i <= 5; i++) {
    ck_ok(ek_op_zero(streams[0], &x[0]));
    const ek_status status = ek_op_zero(streams[1], &x[1]);
    ck_assert_int_eq(status, i == 3 ? EK_ERR_UNAVAILABLE : EK_OK);
  }
  ck_ok(ek_fault_at(ek_group_device(group, 1), 1, EK_ERR_UNAVAILABLE));
  ck_ok(ek_fault_at(ek_group_device(group, 1), 0, EK_OK));
  ck_ok(ek_op_zero(streams[1], &x[1]));
  for (size_t k = 0; k < 2; k++) ek_tensor_free(&x[k]);
}

struct sum_job {
  ek_communicator *communicator;
  ek_tensor *tensors;
};

CK_JOB(sum) {
  const struct sum_job *job = context;
  EK_TRY(ek_communicator_all_reduce(job->communicator, device, &job->tensors[index]));
  return ek_communicator_wait(job->communicator, device);
}

/* A collective that fails on one device lets no other wait. */
CK_TEST(collectives) {
  ek_group *group = ck_open("cpu:2@1MiB", 1);
  ek_tensor x[2];
  struct sum_job job = {NULL, x};
  ck_ok(ek_communicator_open(&job.communicator, group));
  for (size_t k = 0; k < 2; k++) {
    const double one = 1;
    x[k] = ck_upload(ek_group_device(group, k), EK_F32, &one, CK_SHAPE(1));
  }
  for (uint64_t n = 1; n <= 2; n++) {
    ck_ok(ek_fault_at(ek_group_device(group, 1), n, EK_ERR_UNAVAILABLE));
    ck_fails(ek_group_apply(group, sum, &job), EK_ERR_UNAVAILABLE,
             n == 1 ? "all_reduce" : "requested by a test"); /* cuda has an event before the wait */
    ck_ok(ek_group_apply(group, sum, &job));
  }
  for (size_t k = 0; k < 2; k++) ek_tensor_free(&x[k]);
  ek_communicator_free(job.communicator);
}

CK_SUITE("fault")
