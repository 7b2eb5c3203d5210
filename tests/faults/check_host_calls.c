/*
 * check_host_calls.c - every call of the system fails once, wherever it is made.
 *
 * Opening a group, a training and a step, and closing all of it, in each mode: memory, maps and
 * threads, asked for by the library, by oneDNN or by anything else in the process. Of the
 * allocations, of which the modes share most, one in three fails in each mode, and each of them in
 * two modes (EVENKEEL_TEST_EVERY=1: each in all). What comes back
 * is a status; nothing is left behind; and the next try gives the bits of an undisturbed one. And
 * the same with an address space that ends somewhere, from the first product of the process on.
 */
#include <sys/resource.h>

#include "ck_fork.h"
#include "ck_training.h"
#include "host_calls.h"

enum { SAMPLES = 5, THREADS = 2 };

struct run {
  const struct ck_setup *setup;
  const struct ck_batch *batch;
  double *values;
};

/* All of it once; `values` stay NULL after a failure. */
static ek_status open_step_close(struct run *run) {
  ek_group *group = NULL;
  struct ck_training training;
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .threads_per_device = THREADS);
  EK_TRY(ek_group_open(&group, run->setup->spec, &options));
  ek_status status = ck_training_try(&training, run->setup, group);
  if (status == EK_OK) {
    status = ck_training_step(&training, run->batch, NULL);
    host_calls_hold(1);
    if (status == EK_OK) run->values = ck_training_read(&training, CK_VALUES);
    ck_training_close(&training);
    host_calls_hold(0);
  }
  const ek_status closed = ek_group_close(group);
  return status == EK_OK ? closed : status;
}

static void compare_and_free(const char *what, struct run *run, const struct run *want) {
  ck_assert_msg(run->values != NULL, "%s: no values", what);
  ck_arrays_same(what, run->values, want->values);
  ck_drop(run->values);
  run->values = NULL;
}

/* Of closing and of advice nothing depends on; the rest is asked for. */
static bool may_be_refused(enum host_call call) {
  return call != HOST_ADVISE && call != HOST_UNMAP;
}

/* The n-th call fails; false if there are fewer calls. */
static bool fails_at(struct run *run, const struct run *want, enum host_call call, uint64_t n) {
  char what[64]; /* nothing is kept: blocks are counted */
  (void)snprintf(what, sizeof what, "%s number %d", host_call_names[call], (int)n);
  ek_error_clear();
  host_calls_fail_at(call, n);
  const ek_status status = open_step_close(run);
  const bool failed = host_calls_failed();
  host_calls_fail_at(call, 0);
  if (status == EK_OK) {
    compare_and_free(what, run, want);
  } else {
    ck_drop(run->values);
    run->values = NULL;
    ck_assert_msg(failed && may_be_refused(call), "%s gave %s: %s", what, ek_status_name(status),
                  ek_error_message());
    ck_assert_msg(status == EK_ERR_OUT_OF_MEMORY && ek_error_message()[0] != '\0', "%s gave %s: %s",
                  what, ek_status_name(status), ek_error_message());
  }
  ck_ok(open_step_close(run));
  compare_and_free(what, run, want);
  return failed;
}

static struct ck_setup setup_of(int mode) {
  struct ck_setup setup = ck_setup_mode(ck_workload("gpt"), "cpu:2", (ek_mode)mode);
  setup.optimizer = ck_clipped_adamw;
  return setup;
}

/* ---- an address space that ends ---- */

enum { CHILDREN = 64, MOST_CHILDREN = 4 * CHILDREN, ENOUGH = 11, STEP_MIB = 5 };

static uint64_t address_space(void) {
  unsigned long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%lu", &pages) != 1) pages = 0;
  if (file != NULL) (void)fclose(file);
  return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* 0: it went well, 1: out of memory; in both cases all is well when there is room again. */
static int live_with(struct run *run, uint64_t room) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0) return 10;
  const struct rlimit tight = {.rlim_cur = address_space() + room, .rlim_max = limit.rlim_max};
  if (setrlimit(RLIMIT_AS, &tight) != 0) return 11;
  const ek_status status = open_step_close(run);
  if (setrlimit(RLIMIT_AS, &limit) != 0) return 12;
  if (status != EK_OK && status != EK_ERR_OUT_OF_MEMORY) return 13;
  ck_drop(run->values);
  run->values = NULL;
  if (open_step_close(run) != EK_OK) return 14;
  return status == EK_OK ? 0 : 1;
}

/* In a process that has made no product yet. */
static int child_with(struct run *run, uint64_t room) {
  int code = -1;
  if (ck_forked(&code)) _exit(live_with(run, room));
  return code;
}

/* The first case of this program. More room is not always enough where less was: for each thread
 * the C library reserves a heap of 64 MiB, out of 128 MiB, if the room allows it, and does without
 * if it does not. Where maps begin, which is random, decides too. So the room grows until enough
 * children had enough. */
CK_TEST(an_address_space_that_ends) {
  struct ck_setup setup = setup_of(EK_MODE_SHARDED);
  setup.spec = "cpu:2@16MiB"; /* the arenas reserve their whole capacity as address space */
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.2, 3);
  struct run run = {.setup = &setup, .batch = &batch};
  int seen[2] = {0, 0};
  for (int i = 0; i < MOST_CHILDREN && (i < CHILDREN || seen[0] < ENOUGH); i++) {
    const int result = child_with(&run, (uint64_t)i * STEP_MIB << 20);
    ck_assert_msg(result == 0 || result == 1, "%d MiB: %d", STEP_MIB * i, result);
    seen[result]++;
  }
  ck_assert_msg(seen[0] >= ENOUGH && seen[1] >= ENOUGH, "%d and %d", seen[0], seen[1]);
}

/* ---- every call ---- */

/* After the test of address space, which wants a process that has mapped little. */
CK_LOOP(every_call_fails_once, HOST_CALLS * CK_MODES) {
  const enum host_call call = (enum host_call)(_i / CK_MODES);
  const struct ck_setup setup = setup_of(_i % CK_MODES);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.2, 3);
  struct run run = {.setup = &setup, .batch = &batch}, want = run;
  for (int i = 0; i < 3; i++) { /* what is kept for good is there after some */
    ck_ok(open_step_close(&run));
    if (i == 0) {
      want = run;
      run.values = NULL;
    } else {
      compare_and_free("undisturbed", &run, &want);
    }
  }
  host_calls_spare_onednn(ck_precision() ==
                          EK_PRECISION_BF16); /* where the processor multiplies it */
  const int64_t blocks = host_calls_blocks(), maps = host_calls_maps();
  const uint64_t every = ck_every(call == HOST_MEMORY ? 3 : 1);
  uint64_t points = (uint64_t)(_i % CK_MODES) % every;
  while (fails_at(&run, &want, call, points + 1)) points += every;
  /* None was seen; but what the system keeps for threads that ended is its own business. */
  const int64_t more = host_calls_blocks() - blocks;
  ck_assert_msg(more < 8, "%d points, %d blocks more", (int)points, (int)more);
  if (call != HOST_UNMAP) ck_assert_int_eq(host_calls_maps(), maps);
  const uint64_t least[HOST_CALLS] = {
      [HOST_MEMORY] = 100, [HOST_MAP] = 2, [HOST_PROTECT] = 2, [HOST_THREAD] = 4};
  ck_assert_uint_ge(points, least[call]);
  ck_drop(want.values);
}

CK_SUITE("host calls")
