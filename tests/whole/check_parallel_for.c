/*
 * check_parallel_for.c - ek_device_parallel_for(): the cut, failures, callers that meet.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "ek_check.h"

enum { MOST_RANGES = 8 };

struct range {
  int64_t begin, end;
};

struct loop {
  ek_device *device;
  atomic_int calls;
  struct range ranges[MOST_RANGES];
  int64_t failing[3]; /* iterations that fail; 0: none. The third says nothing */
  atomic_bool wrong;
};

static ek_status note_range(void *context, int64_t begin, int64_t end) {
  struct loop *loop = context;
  const int call = atomic_fetch_add(&loop->calls, 1);
  if (call < MOST_RANGES) loop->ranges[call] = (struct range){begin, end};
  for (int i = 0; i < 3; i++) {
    if (loop->failing[i] == 0 || loop->failing[i] < begin || loop->failing[i] >= end) continue;
    return i == 2 ? EK_ERR_IO
                  : ek_error_set(EK_ERR_SHAPE, "iteration %lld", (long long)loop->failing[i]);
  }
  return EK_OK;
}

static int by_begin(const void *a, const void *b) {
  const int64_t x = ((const struct range *)a)->begin, y = ((const struct range *)b)->begin;
  return (x > y) - (x < y);
}

/* The ranges in order. */
static struct loop run_loop(ek_device *device, int64_t count) {
  struct loop loop = {.device = device};
  ck_ok(ek_device_parallel_for(device, count, note_range, &loop));
  const int calls = atomic_load(&loop.calls), threads = ek_device_threads(device);
  ck_assert_int_eq(calls, count < threads ? (int)count : threads);
  qsort(loop.ranges, (size_t)calls, sizeof loop.ranges[0], by_begin);
  return loop;
}

CK_LOOP(each_iteration_runs_once_in_the_same_cut, 4) {
  static const int64_t counts[] = {0, 1, 2, 3, 4, 1001, ((int64_t)1 << 40) + 5, INT64_MAX};
  ek_group *group = ck_open_exactly("cpu:2", _i + 1);
  ek_device *device = ek_group_device(group, 1);
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
    const struct loop first = run_loop(device, counts[c]), again = run_loop(device, counts[c]);
    int64_t next = 0;
    for (int i = 0; i < atomic_load(&first.calls); i++) {
      const struct range *range = &first.ranges[i];
      ck_assert_int_eq(range->begin, next);
      next = range->end;
      ck_assert_int_ge(range->end - range->begin, counts[c] / (_i + 1));
      ck_assert_int_le(range->end - range->begin - 1, counts[c] / (_i + 1));
    }
    ck_assert_int_eq(next, counts[c]);
    ck_assert_mem_eq(first.ranges, again.ranges, sizeof first.ranges);
  }
}

CK_TEST(the_first_range_that_fails_speaks) {
  static const struct {
    int64_t failing[3];
    ek_status status;
    const char *words;
  } cases[] = {{{3500, 1500, 2500}, EK_ERR_SHAPE, "iteration 1500"},
               {{3500, 500, 0}, EK_ERR_SHAPE, "iteration 500"},
               {{3500, 0, 0}, EK_ERR_SHAPE, "iteration 3500"},
               {{2500, 3500, 500}, EK_ERR_IO, "refused to read or write"}};
  ek_group *group = ck_open_exactly("cpu:1", 4);
  ek_device *device = ek_group_device(group, 0);
  for (int round = 0; round < 40; round++) {
    struct loop loop = {.device = device};
    memcpy(loop.failing, cases[round % 4].failing, sizeof loop.failing);
    const ek_status status = ek_device_parallel_for(device, 4000, note_range, &loop);
    ck_assert_int_eq(status, cases[round % 4].status);
    ck_assert_msg(ck_contains(ek_error_message(), cases[round % 4].words), "%s",
                  ek_error_message());
    ck_assert_int_eq(atomic_load(&loop.calls), 4); /* the others run to their end */
    run_loop(device, 4000);
  }
}

/* ---- callers that meet ---- */

/* Every range runs another loop: the threads are busy, so it does all of that itself. */
static ek_status run_inside(void *context, int64_t begin, int64_t end) {
  struct loop *outer = context;
  struct loop inner = {.failing = {1}};
  (void)begin, (void)end;
  const ek_status status = ek_device_parallel_for(outer->device, 3, note_range, &inner);
  if (status != EK_ERR_SHAPE || strcmp(ek_error_message(), "iteration 1") != 0) {
    atomic_store(&outer->wrong, true);
  }
  atomic_fetch_add(&outer->calls, atomic_load(&inner.calls));
  return EK_OK;
}

enum { ROUNDS = 100 };

static void *run_often(void *context) {
  struct loop *loop = context;
  for (int i = 0; i < ROUNDS; i++) {
    if (ek_device_parallel_for(loop->device, 3, run_inside, loop) != EK_OK) {
      atomic_store(&loop->wrong, true);
    }
  }
  return NULL;
}

CK_JOB(run_on_worker) {
  run_often(context);
  return EK_OK;
}

CK_TEST(loops_nest_and_callers_meet) {
  ek_group *group = ck_open_exactly("cpu:1", 3);
  struct loop loop = {.device = ek_group_device(group, 0)};
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(pthread_create(&threads[i], NULL, run_often, &loop), 0);
  }
  const ek_status status = ek_group_apply(group, run_on_worker, &loop);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  ck_ok(status);
  ck_assert(!atomic_load(&loop.wrong));
  ck_assert_int_eq(atomic_load(&loop.calls), 3 * ROUNDS * 3 * 3);
}

/* ---- where nothing runs ---- */

CK_TEST(where_nothing_runs) {
  ek_group *plan = ck_open_exactly("plan:1", 1), *group = ck_open("cpu:1", 1);
  ek_device *device = ek_group_device(group, 0);
  CK_GOT(struct loop, loop, ek_device_parallel_for(ek_group_device(plan, 0), 5, note_range, &loop));
  ck_invalid(ek_device_parallel_for(NULL, 1, note_range, &loop), "device");
  ck_invalid(ek_device_parallel_for(device, 1, NULL, &loop), "function");
  ck_invalid(ek_device_parallel_for(device, -1, note_range, &loop), "-1");
  ck_ok(ek_fault_at(device, 1, EK_ERR_UNAVAILABLE));
  ck_fails(ek_device_parallel_for(device, 1, note_range, &loop), EK_ERR_UNAVAILABLE, "cpu:0");
  if (strcmp(ek_device_backend(device), "cuda") == 0) {
    ck_fails(ek_device_parallel_for(device, 1, note_range, &loop), EK_ERR_UNSUPPORTED, "cpu:0");
  }
  ck_assert_int_eq(atomic_load(&loop.calls), 0);
}

CK_SUITE("parallel for")
