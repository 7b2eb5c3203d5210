/*
 * check_jobs.c - how often a trainer's step wakes the workers: once for each micro-batch and once
 * for the update, and once more for the norm of a gradient that one device has.
 *
 * Counted from outside: a job of a group wakes each worker with one sem_post(), which is this
 * program's own. Sanitizers bring a sem_post() of theirs, so nothing is counted with them.
 */
#include <dlfcn.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "ck_training.h"

#define COUNTS (!CK_ASAN && !CK_TSAN)

enum { SAMPLES = 12 };

static atomic_ulong posts;

#if COUNTS
int sem_post(sem_t *semaphore) {
  static int (*real)(sem_t *);
  if (real == NULL) *(void **)(&real) = dlsym(RTLD_NEXT, "sem_post");
  atomic_fetch_add(&posts, 1);
  return real(semaphore);
}
#endif

/* Since the last call. */
static unsigned long jobs(const ek_trainer *trainer) {
  return atomic_exchange(&posts, 0) / ek_group_size(ek_trainer_group(trainer));
}

struct bench {
  ek_trainer *trainer;
  struct ck_batch batch;
};

static void open_bench(struct bench *b, const char *name, ek_mode mode, int64_t micro_batches,
                       size_t reproducible) {
  CK_WITH(struct ck_setup, setup, ck_setup_mode(ck_workload(name), "cpu:3", mode),
          .options.reproducible = reproducible, .optimizer = ck_plain_adamw,
          .micro_batches = micro_batches);
  b->trainer = ck_trainer_open(&setup);
  b->batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 1);
}

static unsigned long jobs_of_step(struct bench *b, ek_step_result *result) {
  (void)jobs(b->trainer);
  ck_ok(ek_trainer_step(result, b->trainer, b->batch.input, b->batch.inputs, b->batch.target,
                        b->batch.targets));
  return jobs(b->trainer);
}

CK_LOOP(one_job_for_each_micro_batch_and_one_for_the_update, 8 * CK_MODES) {
  const ek_mode mode = (ek_mode)(_i % CK_MODES);
  const int64_t micro_batches = 1 + _i / CK_MODES % 4;
  const size_t reproducible = _i / CK_MODES < 4 ? 0 : 6;
  ek_step_result result;
  if (!COUNTS || mode == EK_MODE_GATHER) return;
  CK_SET_UP(struct bench, b, open_bench(&b, "gpt", mode, micro_batches, reproducible));
  for (int i = 0; i < 3; i++) {
    ck_assert_uint_eq(jobs_of_step(&b, NULL), (unsigned long)micro_batches + 1);
  }
  ck_assert_uint_eq(jobs_of_step(&b, &result),
                    (unsigned long)micro_batches + (mode == EK_MODE_BALANCED ? 2 : 1));
  CK_GOT(double, loss,
         ek_trainer_evaluate(&loss, NULL, b.trainer, b.batch.input, b.batch.inputs, b.batch.target,
                             b.batch.targets));
  ck_assert_uint_eq(jobs(b.trainer), (unsigned long)micro_batches);
}

/* Rows that go to one device and back need all ranks in between. */
CK_TEST(gathered_outputs_take_more) {
  if (!COUNTS) return;
  CK_SET_UP(struct bench, b, open_bench(&b, "gpt", EK_MODE_GATHER, 2, 0));
  ck_assert_uint_gt(jobs_of_step(&b, NULL), 3);
}

CK_SUITE("jobs")
