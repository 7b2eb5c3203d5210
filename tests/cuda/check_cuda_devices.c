/*
 * check_cuda_devices.c - CUDA devices on emulated GPUs: strings, names, what there is and why not,
 * memory, copies, streams and events.
 */
#include <sys/prctl.h>

#include "ck_emulated.h"
#include "cuda_runtime_api.h"

#define MIB ((uint64_t)1 << 20)

/* ---- strings ---- */

static const struct {
  const char *spec;
  size_t count;
  const char *first, *last;
} good[] = {{"cuda", 4, "cuda:0", "cuda:3"},
            {"cuda:2", 1, "cuda:2", "cuda:2"},
            {"cuda:0-3", 4, "cuda:0", "cuda:3"},
            {"cuda:3,0", 2, "cuda:3", "cuda:0"},
            {"cuda:0x4@64MiB", 4, "cuda:0#0", "cuda:0#3"},
            {"cuda:0x2,1x2", 4, "cuda:0#0", "cuda:1#1"},
            {"cuda:0-1x2,3", 5, "cuda:0#0", "cuda:3"}};

CK_LOOP(a_string_names_devices, sizeof good / sizeof good[0]) {
  if (CK_TSAN && !ck_part(_i)) return; /* seconds each, to clear what it knows of gigabytes */
  ek_group *group = ck_open(good[_i].spec, 0);
  const size_t count = ek_group_size(group);
  ck_assert_uint_eq(count, good[_i].count);
  ck_assert_str_eq(ek_device_name(ek_group_device(group, 0)), good[_i].first);
  ck_assert_str_eq(ek_device_name(ek_group_device(group, count - 1)), good[_i].last);
  ck_assert_str_eq(ek_device_backend(ek_group_device(group, 0)), "cuda");
  ck_assert_ptr_nonnull(
      ek_stream_native(ek_device_stream(ek_group_device(group, 0), EK_STREAM_COMPUTE)));
}

static const struct {
  const char *spec, *text;
  int place;
} bad[] = {{"cuda:", "the number of a GPU", 5},
           {"cuda:a", "the number of a GPU", 5},
           {"cuda:0,", "the number of a GPU", 7},
           {"cuda:0,0", "each GPU once", 7},
           {"cuda:0x2,0", "each GPU once", 9},
           {"cuda:3-1", "below the first", 7},
           {"cuda:0x0", "at least one device", 7},
           {"cuda:0x65", "at most 64", 7},
           {"cuda:0-99", "at most 64", 5},
           {"cuda:0 ", "the end", 6},
           {"cuda:0@1", "at least 256 bytes", 7},
           {"cuda:12345", "the number of a GPU", 5},
           {"plan-cuda:0", "at least one device", 10},
           {"plan-cpu", "a backend", 0}};

CK_LOOP(a_bad_string_is_shown, sizeof bad / sizeof bad[0]) {
  ek_group *group = NULL;
  ck_invalid(ek_group_open(&group, bad[_i].spec, NULL), bad[_i].text);
  const char *mark = ck_text("\n  %s\n  %*s^", bad[_i].spec, bad[_i].place, "");
  ck_assert_msg(ck_contains(ek_error_message(), mark), "%s", ek_error_message());
}

/* ---- what there is not ---- */

CK_TEST(why_cuda_cannot_be_used) {
  ek_group *group = NULL;
  ck_emulate(driver, 0);
  ck_fails(ek_group_open(&group, "cuda", NULL), EK_ERR_UNAVAILABLE, "no NVIDIA driver");
  ck_emulate(driver, 12000);
  ck_fails(ek_group_open(&group, "cuda", NULL), EK_ERR_UNAVAILABLE, "too old");
  cuemu_set_settings(&ck_given);
  ck_emulate(devices, 0);
  ck_fails(ek_group_open(&group, "cuda", NULL), EK_ERR_UNAVAILABLE, "no GPU is visible");
  ek_device_description list[8];
  CK_GOT(size_t, count, ek_device_list(list, &count, 8));
  ck_assert_uint_eq(count, 3);
  ck_assert(!list[2].available);
  ck_assert(ck_contains(list[2].text, "no GPU is visible"));
  cuemu_set_settings(&ck_given);
  ck_fails(ek_group_open(&group, "cuda:0,17", NULL), EK_ERR_UNAVAILABLE, "no GPU number 17");
  ck_ok(ek_device_list(list, &count, 8));
  ck_assert_uint_eq(count, 2 + (size_t)ck_given.devices);
  ck_assert(list[2].available && list[2].memory_bytes > 0);
}

/* There are no kernels for GPUs older than Ampere, and the list says so. */
CK_TEST(an_old_gpu_is_not_available) {
  ek_device_description list[3];
  size_t count = 0;
  for (int arch = 75; arch <= 80; arch += 5) {
    ck_emulate(arch, arch);
    ck_ok(ek_device_list(list, &count, 3));
    ck_assert_int_eq(list[2].available, arch == 80);
    ck_assert_int_eq(ck_contains(list[2].text, "7.5; the kernels need 8.0 or newer"), arch == 75);
  }
}

/* ---- memory ---- */

CK_TEST(memory_is_cut_exactly) {
  /* Not much more than what a GPU keeps for itself: all of the rest is written. */
  enum { CAPACITY = 40 };
  ek_group *group = ck_open("cuda:0x4@40MiB", 0);
  for (size_t k = 0; k < 4; k++) {
    ek_device *device = ek_group_device(group, k);
    CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, device));
    ck_assert_uint_eq(usage.capacity_bytes, CAPACITY * MIB);
    ck_assert_uint_eq(usage.fixed_bytes, usage.current_bytes);
    ck_assert_uint_eq(usage.fixed_bytes, usage.current[EK_MEMORY_WORKSPACE]);
    ek_tensor none = {0};
    const int64_t left = (int64_t)(usage.capacity_bytes - usage.current_bytes) / 4;
    CK_SCOPED(ek_tensor, rest, ek_tensor_create(&rest, device, EK_MEMORY_INPUTS, EK_F32, 1, &left));
    ck_fails(ek_tensor_create(&none, device, EK_MEMORY_INPUTS, EK_F32, 1, (int64_t[]){1}),
             EK_ERR_OUT_OF_MEMORY, ek_device_name(device));
    if (!CK_TSAN) ck_ok(ek_op_fill(ek_device_stream(device, EK_STREAM_COMPUTE), &rest, (double)k));
  }
  ck_ok(ek_group_synchronize(group));
}

CK_TEST(a_cap_that_does_not_fit) {
  ek_group *group = NULL;
  ck_fails(ek_group_open(&group, "cuda:0x4@8GiB", NULL), EK_ERR_OUT_OF_MEMORY, "cuda:0");
  ck_fails(ek_group_open(&group, "cuda:0@1MiB", NULL), EK_ERR_OUT_OF_MEMORY, "workspace");
  ck_assert_uint_eq(cuemu_leaks(NULL, 0), 0);
  group = ck_open("cuda:0x4@64MiB", 0);
  (void)ck_open("cuda:0x2@64MiB", 0); /* with caps there is room for two */
}

/* ---- copies ---- */

static void fill_numbers(float *numbers, int64_t count, int salt) {
  for (int64_t i = 0; i < count; i++) numbers[i] = (float)((i * 7 + salt) % 8191);
}

CK_TEST(copies_of_any_size) {
  static const int64_t sizes[] = {1000, 1, 1100001, 524289, 524288};
  ek_group *group = ck_open("cuda:0x2,1", 0);
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    const int64_t count = sizes[s];
    if (CK_TSAN && s % 3 != 0) continue;
    CK_HELD(float *, numbers, ck_array((size_t)count, sizeof *numbers));
    CK_HELD(float *, back, ck_array((size_t)count, sizeof *back));
    ek_tensor host, result, on[3] = {{0}};
    ck_ok(ek_tensor_host(&host, numbers, EK_F32, 1, &count));
    ck_ok(ek_tensor_host(&result, back, EK_F32, 1, &count));
    for (size_t k = 0; k < 3; k++) {
      ck_ok(
          ek_tensor_create(&on[k], ek_group_device(group, k), EK_MEMORY_INPUTS, EK_F32, 1, &count));
    }
    fill_numbers(numbers, count, (int)s);
    ck_ok(ek_tensor_copy(&on[0], &host));
    memset(numbers, 0xFF, (size_t)count * sizeof *numbers); /* the copy has what it needs */
    ck_ok(ek_tensor_copy(&on[1], &on[0]));
    ck_ok(ek_op_fill(ek_device_stream(ek_group_device(group, 0), EK_STREAM_COMPUTE), &on[0], -1));
    ck_ok(ek_tensor_copy(&on[2], &on[1]));
    ck_ok(ek_op_fill(ek_device_stream(ek_group_device(group, 1), EK_STREAM_COMPUTE), &on[1], -2));
    ck_ok(ek_tensor_copy(&result, &on[2]));
    fill_numbers(numbers, count, (int)s);
    ck_assert_mem_eq(back, numbers, (size_t)count * sizeof *back);
    for (size_t k = 0; k < 3; k++) ek_tensor_free(&on[k]);
  }
}

/* ---- streams ---- */

CK_TEST(events_order_streams) {
  ek_device *device = ek_group_device(ck_open("cuda:0", 0), 0);
  ek_stream *compute = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_stream *other = ek_device_stream(device, EK_STREAM_COMMUNICATION);
  const int64_t count = 100000;
  CK_OPENED(ek_tensor, x, ek_tensor_create(&x, device, EK_MEMORY_INPUTS, EK_F32, 1, &count));
  CK_OPENED(ek_tensor, y, ek_tensor_create(&y, device, EK_MEMORY_INPUTS, EK_F32, 1, &count));
  CK_OPENED(ek_event *, event, ek_event_create(&event, device));
  ck_ok(ek_stream_wait(other, event)); /* not recorded: waits for nothing */
  for (int round = 0; round < 20; round++) {
    ck_ok(ek_op_fill(compute, &x, round));
    ck_ok(ek_event_record(event, compute));
    ck_ok(ek_stream_wait(other, event));
    ck_ok(ek_op_copy(other, &y, &x));
    ck_ok(ek_event_record(event, other));
    ck_ok(ek_stream_wait(compute, event));
    CK_HELD(double *, values, ck_got(&y));
    ck_assert_double_eq(values[0], round);
    ck_assert_double_eq(values[count - 1], round);
  }
  ck_ok(ek_stream_synchronize(other));
}

CK_TEST(a_bad_index_is_told_by_who_waits) {
  ek_device *device = ek_group_device(ck_open("cuda:0x2", 0), 1);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  const double numbers[] = {0, 1, 5}, table[] = {1, 2, 3, 4};
  ek_tensor index = ck_upload(device, EK_I32, numbers, CK_SHAPE(3));
  ek_tensor rows = ck_upload(device, EK_F32, table, CK_SHAPE(2, 2));
  ek_tensor y = ck_upload(device, EK_F32, NULL, CK_SHAPE(3, 2));
  ck_ok(ek_op_lookup_forward(stream, &y, &rows, &index, NULL, 0));
  ck_invalid(ek_stream_synchronize(stream),
             "cuda:0#1: lookup: index 5 at position 2 of the batch is outside");
  ck_ok(ek_stream_synchronize(stream)); /* told once */
}

CK_JOB(fill_after_an_error) {
  void *memory = NULL;
  if (cudaMalloc(&memory, (size_t)1 << 50) == cudaSuccess) return EK_ERR_INTERNAL;
  return ek_op_fill(ek_device_stream(device, EK_STREAM_COMPUTE), context, 1);
}

/* What the program's own calls leave on a thread is not taken for an error of a kernel. */
CK_TEST(an_error_that_a_program_left_is_named) {
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .debug_memory = true);
  CK_OPENED(ek_group *, group, ek_group_open(&group, "cuda:0@48MiB", &options));
  ek_tensor x = ck_upload(ek_group_device(group, 0), EK_F32, NULL, CK_SHAPE(3));
  ck_fails(ek_group_apply(group, fill_after_an_error, &x), EK_ERR_UNAVAILABLE,
           "an earlier CUDA call by the program in this thread left the error "
           "cudaErrorMemoryAllocation");
  ck_ok(ek_op_fill(ek_device_stream(ek_group_device(group, 0), EK_STREAM_COMPUTE), &x, 2));
}

CK_JOB(note_slack) {
  ((int *)context)[index] = prctl(PR_GET_TIMERSLACK);
  return EK_OK;
}

/* A worker that polls a GPU sleeps as long as it says; the program's threads keep theirs. */
CK_TEST(workers_sleep_no_longer_than_they_ask) {
  ek_group *group = ck_open("cuda:0x2", 0);
  int slack[2] = {0};
  const int own = prctl(PR_GET_TIMERSLACK);
  ck_ok(ek_group_apply(group, note_slack, slack));
  ck_assert_int_eq(slack[0], 1);
  ck_assert_int_eq(slack[1], 1);
  ck_assert_int_eq(prctl(PR_GET_TIMERSLACK), own);
}

/* ---- the calling thread's current GPU ---- */

static int current(void) {
  int gpu = -1;
  cuda_ok(cudaGetDevice(&gpu));
  return gpu;
}

struct worker_gpus {
  ek_tensor *tensor;
  int first[2], last[2];
};

CK_JOB(note_gpu) {
  struct worker_gpus *gpus = context;
  (void)cudaGetDevice(&gpus->first[index]);
  EK_TRY(ek_op_fill(ek_device_stream(device, EK_STREAM_COMPUTE), &gpus->tensor[index], 1));
  EK_TRY(ek_stream_synchronize(ek_device_stream(device, EK_STREAM_COMPUTE)));
  (void)cudaGetDevice(&gpus->last[index]);
  return EK_OK;
}

/* A thread of the program keeps its own; on a worker it is that of the worker's device. */
CK_LOOP(the_current_gpu_stays, 2) {
  enum { OWN = 3 };
  const double numbers[] = {1, 2, 3};
  cuda_ok(cudaSetDevice(OWN));
  ek_group *group = ck_open(_i == 0 ? "cuda:1-2@48MiB" : "cuda:1x2@48MiB", 0);
  ck_assert_int_eq(current(), OWN);
  ek_device *device = ek_group_device(group, 0), *other = ek_group_device(group, 1);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  CK_GOT(ek_communicator *, communicator, ek_communicator_open(&communicator, group));
  ck_assert_int_eq(current(), OWN);
  ek_tensor tensor[] = {ck_upload(device, EK_F32, numbers, CK_SHAPE(3)),
                        ck_upload(other, EK_F32, NULL, CK_SHAPE(3))};
  ck_assert_int_eq(current(), OWN);
  ck_ok(ek_tensor_copy(&tensor[1], &tensor[0]));
  ck_assert_int_eq(current(), OWN);
  ck_ok(ek_op_scale(stream, &tensor[0], &tensor[0], 2));
  ck_assert_int_eq(current(), OWN);
  ck_ok(ek_op_zero(stream, &tensor[0]));
  CK_GOT(ek_event *, event, ek_event_create(&event, device));
  ck_ok(ek_event_record(event, stream));
  ck_ok(ek_stream_wait(ek_device_stream(device, EK_STREAM_COMMUNICATION), event));
  ck_assert_int_eq(current(), OWN);
  struct worker_gpus gpus = {.tensor = tensor};
  ck_ok(ek_group_apply(group, note_gpu, &gpus));
  for (int k = 0; k < 2; k++) {
    ck_assert_int_eq(gpus.first[k], _i == 0 ? 1 + k : 1);
    ck_assert_int_eq(gpus.last[k], gpus.first[k]);
  }
  ck_ok(ek_group_synchronize(group));
  CK_GOT(ek_memory_outside, outside, ek_memory_measure_outside(&outside, device));
  ck_assert_int_eq(current(), OWN);
  ek_event_free(event);
  ek_tensor_free(&tensor[0]);
  ek_tensor_free(&tensor[1]);
  ek_communicator_free(communicator);
  ck_ok(ek_group_close(group));
  ck_assert_int_eq(current(), OWN);
  cuda_ok(cudaSetDevice(0));
}

/* ---- GPUs and each other's memory ---- */

/* Between GPUs that reach each other nothing goes through the host, whoever sums. */
CK_LOOP(copies_between_gpus, 3) {
  static const struct {
    const char *spec, *communicator;
    bool peer;
  } cases[] = {{"cuda:0-1@48MiB", "nccl", true},
               {"cuda:0x2,1@48MiB", "peer", true},
               {"cuda:0-1@48MiB", "nccl", false}};
  cuemu_reset();
  for (int gpu = 0; gpu < 2; gpu++) { /* as in a process that has opened no group before */
    cuda_ok(cudaSetDevice(gpu));
    (void)cudaDeviceDisablePeerAccess(1 - gpu);
    (void)cudaGetLastError();
  }
  ck_emulate(peer, cases[_i].peer);
  const double numbers[] = {1, 2, 3};
  double back[3];
  ek_group *group = ck_open(cases[_i].spec, 0);
  CK_OPENED(ek_communicator *, communicator, ek_communicator_open(&communicator, group));
  ck_assert_str_eq(ek_communicator_name(communicator), cases[_i].communicator);
  ek_device *last = ek_group_device(group, ek_group_size(group) - 1);
  ek_tensor x = ck_upload(ek_group_device(group, 0), EK_F32, numbers, CK_SHAPE(3));
  ek_tensor y = ck_upload(last, EK_F32, NULL, CK_SHAPE(3));
  ck_ok(ek_tensor_copy(&y, &x));
  ck_get(back, &y);
  ck_assert_double_eq(back[2], 3);
  ck_assert_uint_eq(cuemu_counted(CUEMU_STAGED_COPIES), cases[_i].peer ? 0 : 1);
}

static void count_warnings(void *context, ek_log_level level, const char *line) {
  if (level == EK_LOG_WARNING && ck_contains(line, "peer access")) ++*(int *)context;
}

/* Some platforms report peer access, and what is then read directly is wrong. */
CK_TEST(broken_peer_access_is_not_used) {
  int warnings = 0;
  ck_emulate(broken_peer, true);
  ek_log_set(EK_LOG_WARNING, count_warnings, &warnings);
  const double numbers[] = {1, 2, 3};
  double back[3];
  CK_GOT(ek_group *, group, ek_group_open(&group, "cuda:0-2@48MiB", NULL));
  ck_assert_int_eq(warnings, 3); /* for each pair */
  for (size_t k = 1; k < 3; k++) {
    CK_HELD(ek_tensor, x, ck_upload(ek_group_device(group, k - 1), EK_F32, numbers, CK_SHAPE(3)));
    CK_HELD(ek_tensor, y, ck_upload(ek_group_device(group, k), EK_F32, NULL, CK_SHAPE(3)));
    ck_ok(ek_tensor_copy(&y, &x));
    ck_get(back, &y);
    ck_assert_double_eq(back[2], 3);
    ck_assert_uint_eq(cuemu_counted(CUEMU_STAGED_COPIES), k);
  }
  ck_ok(ek_group_close(group));
  ck_fails(ek_group_open(&group, "cuda:0x2,1@48MiB", NULL), EK_ERR_UNAVAILABLE, "no peer access");
  ek_log_set(EK_LOG_WARNING, NULL, NULL);
}

/* The environment of the program holds NCCL to one algorithm; the library sets none. */
CK_TEST(deterministic_without_peers) {
  ek_group *group = NULL;
  ck_emulate(peer, false);
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .deterministic = true);
  ck_fails(ek_group_open(&group, "cuda:0-1@48MiB", &options), EK_ERR_UNSUPPORTED, "NCCL_ALGO=Ring");
  ck_assert_ptr_null(getenv("NCCL_ALGO"));
  cuemu_set_settings(&ck_given);
  ck_ok(ek_group_open(&group, "cuda:0-1@48MiB", &options));
  ck_ok(ek_group_close(group));
}

/* A machine without NCCL, or with one that is too old, has the rest of CUDA. */
CK_TEST(without_nccl) {
  ck_emulate(nccl_version, 22203);
  CK_GOT(ek_group *, group, ek_group_open(&group, "cuda:0-1@48MiB", NULL));
  CK_GOT(ek_communicator *, communicator, ek_communicator_open(&communicator, group));
  ck_assert_str_eq(ek_communicator_name(communicator), "peer");
  ek_communicator_free(communicator);
  ck_ok(ek_group_close(group));
  ck_emulate(peer, false);
  ck_fails(ek_group_open(&group, "cuda:0-1@48MiB", NULL), EK_ERR_UNAVAILABLE, "NCCL 2.22.3");
}

/* 226 is what a data-centre GPU reports of a memory fault that it has contained. */
static const struct {
  int error;
  bool final;
} deaths[] = {{cudaErrorIllegalAddress, true},      {cudaErrorContained, true},
              {cudaErrorTensorMemoryLeak, true},    {cudaErrorMpsClientTerminated, true},
              {cudaErrorExternalDevice, true},      {cudaErrorECCUncorrectable, true},
              {cudaErrorLaunchOutOfResources, false}};

/* After a final error trying again is of no use, and the error says so. */
CK_LOOP(a_dead_gpu_says_that_the_process_must_end, sizeof deaths / sizeof deaths[0]) {
  ek_group *group = ck_open("cuda:0@48MiB", 0);
  ek_stream *stream = ek_device_stream(ek_group_device(group, 0), EK_STREAM_COMPUTE);
  ek_tensor x = ck_upload(ek_group_device(group, 0), EK_F32, NULL, CK_SHAPE(3));
  cuemu_fail(0, CUEMU_KERNEL, 1, deaths[_i].error);
  ck_ok(ek_op_fill(stream, &x, 1));
  ck_fails(ek_stream_synchronize(stream), EK_ERR_UNAVAILABLE,
           cudaGetErrorName((cudaError_t)deaths[_i].error));
  ck_assert_msg(ck_contains(ek_error_message(), "restart the program") == deaths[_i].final, "%s",
                ek_error_message());
}

CK_EMULATED_SUITE("cuda devices")
