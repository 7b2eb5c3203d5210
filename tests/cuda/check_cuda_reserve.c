/*
 * check_cuda_reserve.c - memory of a GPU that the ledger cannot see, on emulated GPUs whose
 * contexts, code and communicators cost something: what is left alone for it, that training then
 * never runs out of it, and that what is reported explains what the GPU says, to the byte.
 */
#include "ck_emulated.h"
#include "ck_training.h"
#include "cuda_runtime_api.h"

#define MIB ((uint64_t)1 << 20)
#define GRANULE (2 * MIB)

/* Odd sizes, so that a rounding in the wrong place shows. */
enum { CONTEXT = 5000013, CODE = 300007, NCCL = 700001 };

static void set_costs(void) {
  ck_emulate(devices, 9);
  ck_emulate(memory, 700 * MIB);
  ck_emulate(context_bytes, CONTEXT);
  ck_emulate(code_bytes, CODE);
  ck_emulate(nccl_bytes, NCCL);
  ck_emulated_begin();
}

/* What the GPU says. */
static uint64_t free_bytes(int gpu, uint64_t *total) {
  size_t left = 0, all = 0;
  ck_assert_int_eq(cudaSetDevice(gpu), cudaSuccess);
  ck_assert_int_eq(cudaMemGetInfo(&left, &all), cudaSuccess);
  *total = all;
  return left;
}

/* Code and communicators. */
static uint64_t hidden_bytes(int gpu) {
  struct cuemu_usage usage;
  cuemu_usage(gpu, &usage);
  return usage.hidden_bytes;
}

static const struct {
  const char *spec;
  int gpus;
  size_t each; /* devices of a GPU */
  bool nccl;
} groups[] = {{"cuda:0", 1, 1, false},
              {"cuda:0x3", 1, 3, false},
              {"cuda:0-2", 3, 1, true},
              {"cuda:0x2,1x2", 2, 2, false}};
enum { GROUPS = sizeof groups / sizeof groups[0] };

static uint64_t arenas_of(const ek_group *group, int number, int gpu) {
  uint64_t sum = 0;
  for (size_t k = 0; k < groups[number].each; k++) {
    ek_memory_usage usage;
    ck_ok(ek_memory_stats(&usage, ek_group_device(group, (size_t)gpu * groups[number].each + k)));
    sum += usage.capacity_bytes;
  }
  return sum;
}

/* The parts of a GPU's devices, summed. */
static ek_memory_outside outside_of(const ek_group *group, int number, int gpu) {
  ek_memory_outside sum = {0};
  for (size_t k = 0; k < groups[number].each; k++) {
    const ek_device *device = ek_group_device(group, (size_t)gpu * groups[number].each + k);
    CK_GOT(ek_memory_outside, part, ek_memory_measure_outside(&part, device));
    CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, device));
    ck_assert_uint_eq(part.opening_bytes, usage.outside_bytes);
    sum.opening_bytes += part.opening_bytes;
    sum.now_bytes += part.now_bytes;
    sum.reserve_bytes += part.reserve_bytes;
    sum.free_bytes += part.free_bytes;
    sum.total_bytes += part.total_bytes;
  }
  return sum;
}

CK_PART_LOOP(a_default_capacity_leaves_the_reserve, GROUPS) {
  ek_group *group = ck_open(groups[_i].spec, 0);
  for (int gpu = 0; gpu < groups[_i].gpus; gpu++) {
    const ek_memory_outside outside = outside_of(group, _i, gpu);
    const uint64_t hidden = hidden_bytes(gpu), arenas = arenas_of(group, _i, gpu);
    uint64_t total = 0;
    const uint64_t left = free_bytes(gpu, &total);
    ck_assert_uint_ge(hidden, CODE);
    ck_assert_uint_eq(outside.reserve_bytes,
                      (hidden + GRANULE - 1) / GRANULE * GRANULE + groups[_i].each * GRANULE);
    /* All but the reserve is cut into arenas of whole units; the emulation charges 512 bytes. */
    ck_assert_uint_ge(left, outside.reserve_bytes - 512);
    ck_assert_uint_lt(left, outside.reserve_bytes + groups[_i].each * EK_MEMORY_UNIT);
    ck_assert_uint_eq(outside.free_bytes, left);
    ck_assert_uint_eq(outside.total_bytes, total);
    ck_assert_uint_eq(outside.opening_bytes, total - left - arenas);
    ck_assert_uint_eq(outside.now_bytes, outside.opening_bytes);
    ck_assert_uint_ge(outside.opening_bytes, CONTEXT + hidden);
    ck_assert_uint_lt(outside.opening_bytes, CONTEXT + hidden + 512);
  }
}

/* With a second communicator, as a second model would open. */
CK_PART_LOOP(training_stays_within_the_reserve, GROUPS * 2 * CK_MODES) {
  const struct ck_setup setup = ck_setup_mode(ck_workload(_i / GROUPS % 2 == 0 ? "gpt" : "mlp"),
                                              groups[_i % GROUPS].spec, (ek_mode)(_i / GROUPS / 2));
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, 7, 0.2, 5);
  ek_group *group = ck_open(setup.spec, 0);
  CK_GOT(struct ck_training, training, ck_training_try(&training, &setup, group));
  CK_OPENED(ek_communicator *, second, ek_communicator_open(&second, group));
  for (int step = 0; step < 2; step++) ck_ok(ck_training_step(&training, &batch, NULL));
  ck_ok(ek_group_synchronize(group));
  for (int gpu = 0; gpu < groups[_i % GROUPS].gpus; gpu++) {
    const ek_memory_outside outside = outside_of(group, _i % GROUPS, gpu);
    uint64_t total = 0;
    const uint64_t left = free_bytes(gpu, &total);
    ck_assert_uint_gt(left, 0);
    ck_assert_uint_eq(outside.now_bytes, total - left - arenas_of(group, _i % GROUPS, gpu));
    /* The kernels of the step were loaded at the opening; the forms of them that were not are the
     * least part of what was left alone for them. */
    ck_assert_uint_le(outside.now_bytes - outside.opening_bytes, outside.reserve_bytes / 2);
  }
}

CK_TEST(a_communicator_that_is_open_already_is_taken) {
  ek_group *group = ck_open("cuda:0-1", 0);
  struct cuemu_usage usage;
  cuemu_usage(0, &usage);
  ck_assert_uint_eq(usage.communicators, 1);
  CK_OPENED(ek_communicator *, first, ek_communicator_open(&first, group));
  cuemu_usage(0, &usage);
  ck_assert_uint_eq(usage.communicators, 1);
  CK_OPENED(ek_communicator *, second, ek_communicator_open(&second, group));
  cuemu_usage(0, &usage);
  ck_assert_uint_eq(usage.communicators, 2);
}

/* A cap is not made smaller by a reserve: it may take the last byte. */
CK_TEST(a_cap_may_take_all_there_is) {
  char spec[64];
  uint64_t total = 0;
  ek_group *group = ck_open("cuda:0@64MiB", 0);
  const uint64_t most = 64 * MIB + free_bytes(0, &total) / 512 * 512;
  ck_assert_uint_eq(outside_of(group, 0, 0).reserve_bytes, 0);
  ek_group_free(group);
  (void)snprintf(spec, sizeof spec, "cuda:0@%" PRIu64, most);
  group = ck_open(spec, 0);
  ck_assert_uint_lt(free_bytes(0, &total), 512);
  ek_group_free(group);
  (void)snprintf(spec, sizeof spec, "cuda:0@%" PRIu64, most + 512);
  ck_fails(ek_group_open(&group, spec, NULL), EK_ERR_OUT_OF_MEMORY, "cuda:0");
}

/* What is timed when a group is opened needs more than a device does: on a GPU that is nearly full
 * it is left out. */
CK_TEST(a_small_cap_opens_on_a_full_gpu) {
  ek_group *group = ck_open("cuda:0@64MiB", 0);
  ek_group_free(group);
  ck_emulate(memory, hidden_bytes(0) + CONTEXT + 36 * MIB + 1024);
  group = ck_open("cuda:8@36MiB", 0); /* which has loaded nothing yet */
  ek_group_free(group);
  cuemu_set_settings(&ck_given);
  group = ck_open("cuda:8@64MiB", 0); /* and now it is timed */
}

static void note_refusal(void *context, ek_log_level level, const char *line) {
  if (level == EK_LOG_WARNING && ck_contains(line, "refuses")) ++*(int *)context;
}

/* What is free may change before it is taken. A group without a cap then takes less, and says
 * so. */
CK_LOOP(a_default_capacity_that_is_refused_is_tried_smaller, 5) {
  static const struct {
    unsigned refused, less; /* percent */
  } cases[] = {{0, 0}, {1, 2}, {4, 5}, {9, 10}, {12, 0}};
  int refusals = 0;
  ek_group *group = ck_open("cuda:0", 0);
  const uint64_t whole = arenas_of(group, 0, 0), reserve = outside_of(group, 0, 0).reserve_bytes;
  ek_group_free(group);
  ck_emulate(refused_bytes, cases[_i].refused == 0 ? 0 : reserve + whole / 100 * cases[_i].refused);
  ek_log_set(EK_LOG_WARNING, note_refusal, &refusals);
  if (_i < 4) {
    group = ck_open("cuda:0", 0);
    const uint64_t less = whole - whole / 100 * cases[_i].less;
    ck_assert_uint_eq(arenas_of(group, 0, 0), less / EK_MEMORY_UNIT * EK_MEMORY_UNIT);
    ek_group_free(group);
  } else {
    ck_fails(ek_group_open(&group, "cuda:0", NULL), EK_ERR_OUT_OF_MEMORY, "cuda:0");
  }
  ck_assert_int_eq(refusals, _i < 4 ? _i : 3);
  ek_log_set(EK_LOG_WARNING, NULL, NULL);
  cuemu_set_settings(&ck_given);
}

/* A GPU that has failed is reset, and has lost its code: the next group measures again. */
CK_TEST(a_gpu_that_was_reset_loads_again) {
  ek_group *group = ck_open("cuda:8", 0);
  const uint64_t hidden = hidden_bytes(8);
  ek_memory_outside before, after;
  ck_ok(ek_memory_measure_outside(&before, ek_group_device(group, 0)));
  cuemu_fail(8, CUEMU_KERNEL, 1, 0);
  const double number[] = {1};
  ek_tensor x = ck_upload(ek_group_device(group, 0), EK_F32, number, CK_SHAPE(1));
  const ek_status status =
      ek_op_fill(ek_device_stream(ek_group_device(group, 0), EK_STREAM_COMPUTE), &x, 2);
  ck_assert(status != EK_OK || ek_group_synchronize(group) != EK_OK);
  ck_fails(ek_memory_measure_outside(&after, ek_group_device(group, 0)), EK_ERR_UNAVAILABLE,
           "cuda:8");
  ek_tensor_free(&x);
  ek_group_free(group);
  ck_assert_uint_eq(hidden_bytes(8), 0);
  cuemu_reset();
  group = ck_open("cuda:8", 0);
  ck_assert_uint_eq(hidden_bytes(8), hidden);
  ck_ok(ek_memory_measure_outside(&after, ek_group_device(group, 0)));
  ck_assert_uint_eq(after.reserve_bytes, before.reserve_bytes);
}

/* ---- what can fail while a GPU loads ---- */

static const struct {
  enum cuemu_kind kind;
  const char *spec; /* a GPU that no other test opens: nothing is loaded yet */
  int gpu;
} kinds[] = {{CUEMU_MEMORY, "cuda:3@40MiB", 3}, {CUEMU_COPY, "cuda:4@40MiB", 4},
             {CUEMU_LAUNCH, "cuda:5@40MiB", 5}, {CUEMU_KERNEL, "cuda:6@40MiB", 6},
             {CUEMU_BLAS, "cuda:7@40MiB", 7},   {CUEMU_NCCL, "cuda:0-1@40MiB", 1}};

CK_PART_LOOP(loading_fails, sizeof kinds / sizeof kinds[0]) {
  unsigned long n = 1;
  for (;; n++) {
    ek_group *group = NULL;
    CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .time_limit = 5);
    cuemu_reset();
    cuemu_fail(kinds[_i].gpu, kinds[_i].kind, n, 0);
    ek_error_clear();
    const ek_status status = ek_group_open(&group, kinds[_i].spec, &options);
    if (status == EK_OK) {
      ek_group_free(group);
      break;
    }
    ck_assert_msg(ck_contains(ek_error_message(), "cuda:"), "%s", ek_error_message());
    char text[512] = "";
    ck_assert_msg(cuemu_leaks(text, sizeof text) == 0, "call %lu: %s", n, text);
    ck_assert_uint_lt(n, 2000);
    /* A launch of the warming is like the one before it: the first ones, then one in ten, and
     * fewer. */
    if (n > 10) n += ck_every(10) - 1 + n / 5;
  }
  ck_assert_uint_gt(n, 1);
}

/* Too little for the code, or for the communicator. */
CK_TEST(no_room_to_load) {
  ek_group *group = NULL;
  ck_emulate(memory, hidden_bytes(0) + CONTEXT + 36 * MIB + 1000 * 1000);
  ck_fails(ek_group_open(&group, "cuda:0-1", NULL), EK_ERR_UNAVAILABLE, "NCCL");
  ck_fails(ek_group_open(&group, "cuda:2x2", NULL), EK_ERR_OUT_OF_MEMORY, "cuda:2");
  ck_assert_uint_eq(cuemu_leaks(NULL, 0), 0);
  cuemu_set_settings(&ck_given);
  group = ck_open("cuda:0-2", 0);
}

CK_SUITE_WITH("cuda reserve", set_costs, ck_emulated_end)
