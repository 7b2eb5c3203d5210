/*
 * check_cuda_faults.c - every fault at every call of a training step, on each GPU in turn: an error
 * that names a device comes soon, the group can be closed, nothing is left behind, and a fresh
 * group works. What is still usable is not silently wrong: the model is torn and says so until its
 * state is written, or parameters, states and replicas are what they were, bit for bit; and the
 * step that is tried again equals an undisturbed one.
 *
 * A step makes some hundred calls of each kind. Of each mode on each group one in twelve fails, and
 * one in fifty hangs, which costs the group's time limit; fewer where a sanitizer runs. The first
 * one moves with the seed and with the mode and the group: what they have in common, forward and
 * backward, fails at every call in one of them, and their updates at calls of all kinds.
 * EVENKEEL_TEST_EVERY=1: each of them.
 */

#include "ck_emulated.h"
#include "ck_snapshot.h"
#include "ck_state.h"

static const struct {
  const char *spec;
  int gpus;
} groups[] = {{"cuda:0x2@48MiB", 1},
             {"cuda:0-1@48MiB", 2},
             {"cuda:0x2,1@48MiB", 2},
             {"cuda:0@48MiB", 1}};
static const char *const kind_names[] = {"memory", "copy", "launch", "kernel", "cublas", "nccl"};
enum { GROUPS = sizeof groups / sizeof groups[0] };

#if CK_TSAN
enum { EVERY = 97, EVERY_HANG = 197 };
#elif CK_ASAN
enum { EVERY = 23, EVERY_HANG = 101 };
#else
enum { EVERY = 12, EVERY_HANG = 50 };
#endif

/* What an undisturbed step took last. A busy machine stretches its milliseconds, and a time limit
 * that such a step reaches would be a failure of the test. */
static double step_seconds;

static double limit_for(bool hang) { return hang ? fmax(0.2, 10 * step_seconds) : 60; }

/* In two calls, the result is read while the GPU goes on, on several devices too. */
static bool two_calls;

/* One step to the end of all its work. */
static ek_status whole_step(struct ck_training *training, const struct ck_batch *batch) {
  ek_step_result result;
  if (two_calls) {
    EK_TRY(ck_training_backward(training, batch, NULL, false, NULL));
    EK_TRY(ek_data_parallel_optimizer_step_begin(training->optimizer));
    EK_TRY(ek_data_parallel_optimizer_step_end(&result, training->optimizer));
  } else {
    EK_TRY(ck_training_step(training, batch, &result));
  }
  return ek_group_synchronize(training->group);
}

static void no_leaks(const char *when) {
  char text[512] = "";
  if (cuemu_leaks(text, sizeof text) != 0) ck_abort_msg("%s: %s", when, text);
}

/* Calls of the kind that a second step makes on a GPU; *next is what it leaves. */
static unsigned long calls_of_step(struct ck_snapshot *next, const struct ck_setup *setup,
                                   const char *spec, int gpu, enum cuemu_kind kind,
                                   const struct ck_batch *batch) {
  ek_group *group = ck_open_limited(spec, limit_for(false));
  CK_GOT(struct ck_training, training, ck_training_try(&training, setup, group));
  ck_ok(whole_step(&training, batch));
  const unsigned long before = cuemu_calls(gpu, kind);
  const double since = ck_now();
  ck_ok(whole_step(&training, batch));
  step_seconds = ck_now() - since;
  const unsigned long calls = cuemu_calls(gpu, kind) - before;
  *next = ck_snapshot_take(&training);
  ck_training_close(&training);
  ek_group_free(group);
  no_leaks("a step without faults");
  return calls;
}

/* After a failure that is over. A device whose kernel died refuses everything, which is fine. */
static void never_silent(const char *what, struct ck_training *training,
                         const struct ck_snapshot *before, const struct ck_state *state,
                         const struct ck_snapshot *next, const struct ck_batch *batch) {
  if (ek_group_synchronize(training->group) != EK_OK) return;
  const bool torn = ck_training_is_torn(training);
  if (torn && ck_state_put(training->model, state) != EK_OK) {
    ck_abort_msg("%s, mended: %s", what, ek_error_message());
  }
  ck_snapshot_is(what, training, before);
  if (whole_step(training, batch) != EK_OK) {
    /* What state cannot mend. */
    if (torn && ck_contains(ek_error_message(), "close the group")) return;
    ck_abort_msg("%s, tried again: %s", what, ek_error_message());
  }
  ck_snapshot_is(what, training, next);
}

static void one_fault(const struct ck_setup *setup, const char *spec, int gpu, enum cuemu_kind kind,
                      unsigned long n, bool hang, const struct ck_snapshot *next,
                      const struct ck_batch *batch) {
  const char *what = ck_text("%s: %s number %lu of %s on GPU %d", spec, hang ? "hang" : "failure",
                             n, kind_names[kind], gpu);
  /* After the fault before this one: a fresh group works. */
  ek_group *group = ck_open_limited(spec, limit_for(hang));
  CK_GOT(struct ck_training, training, ck_training_try(&training, setup, group));
  ck_ok(whole_step(&training, batch));
  CK_HELD(struct ck_snapshot, before, ck_snapshot_take(&training));
  CK_HELD(struct ck_state, state, ck_state_take(training.model));
  hang ? cuemu_hang(gpu, kind, n) : cuemu_fail(gpu, kind, n, 0);
  const double since = ck_now();
  ek_error_clear();
  const ek_status status = whole_step(&training, batch);
  const double took = ck_now() - since;
  char device[32] = "cuda:"; /* of what hangs, just this one: others wait for it */
  if (hang) (void)snprintf(device, sizeof device, "cuda:%d", gpu);
  /* What fails is seen long before the time limit; what hangs, not long after it. */
  const double most = hang ? limit_for(true) + 30 : limit_for(false) / 2;
  if (status == EK_OK || took > most || !ck_contains(ek_error_message(), device)) {
    ck_abort_msg("%s: %s after %.2f s: %s", what, ek_status_name(status), took, ek_error_message());
  }
  /* A GPU forgets nothing: whoever asks it next is told again. */
  if (kind == CUEMU_KERNEL && !hang) ck_assert_int_ne(whole_step(&training, batch), EK_OK);
  if (hang) cuemu_release(); /* so that the memory can go */
  cuemu_reset();
  /* A group that once gave up waiting refuses whatever has to wait: it can only be closed. */
  if (!hang) never_silent(what, &training, &before, &state, next, batch);
  ck_training_close(&training);
  ek_group_free(group);
  no_leaks(what);
}

/* In f32 every mode on every group; in bf16, which has copies of the parameters and other products,
 * each kind of call on each group, in a mode that is another one for each of them. */
enum { CASES = GROUPS * CK_MODES, ALL_CASES = CASES + GROUPS };

static void every_fault(enum cuemu_kind kind, bool hang, int number) {
  if (!ck_part(number)) return;
  const char *spec = groups[number % GROUPS].spec;
  const int mode = number < CASES ? number / GROUPS : number + (int)kind + 3 * hang;
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), spec, (ek_mode)(mode % CK_MODES));
  if (number >= CASES) setup.options.precision = EK_PRECISION_BF16;
  two_calls = (mode + number % GROUPS + (int)kind) % 2 == 1;
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, 5, 0, 3);
  for (int gpu = 0; gpu < groups[number % GROUPS].gpus; gpu++) {
    struct ck_snapshot next;
    const unsigned long calls = calls_of_step(&next, &setup, spec, gpu, kind, &batch);
    const uint64_t every = ck_every(hang ? EVERY_HANG : EVERY);
    /* 7 is prime to `every`: modes and groups begin at different places. */
    for (uint64_t n = 1 + (ck_seed() + 7 * (uint64_t)number) % every; n <= calls; n += every) {
      one_fault(&setup, spec, gpu, kind, n, hang, &next, &batch);
    }
    /* After the last fault. */
    if (calls_of_step(&next, &setup, spec, gpu, kind, &batch) != calls) {
      ck_abort_msg("%s: a step of a fresh group makes other calls", spec);
    }
  }
}

CK_LOOP(copies_fail, ALL_CASES) { every_fault(CUEMU_COPY, false, _i); }
CK_LOOP(launches_fail, ALL_CASES) { every_fault(CUEMU_LAUNCH, false, _i); }
CK_LOOP(kernels_fail, ALL_CASES) { every_fault(CUEMU_KERNEL, false, _i); }
CK_LOOP(products_fail, ALL_CASES) { every_fault(CUEMU_BLAS, false, _i); }
CK_LOOP(copies_hang, ALL_CASES) { every_fault(CUEMU_COPY, true, _i); }
CK_LOOP(kernels_hang, ALL_CASES) { every_fault(CUEMU_KERNEL, true, _i); }
CK_LOOP(nccl_fails, ALL_CASES) { every_fault(CUEMU_NCCL, false, _i); }
CK_LOOP(nccl_hangs, ALL_CASES) { every_fault(CUEMU_NCCL, true, _i); }

/* Opening a group takes memory of several kinds: each allocation fails once. */
CK_LOOP(opening_fails, GROUPS) {
  const char *spec = groups[_i].spec;
  for (unsigned long n = 1;; n++) {
    ek_group *group = NULL;
    cuemu_reset();
    cuemu_fail(0, CUEMU_MEMORY, n, 0);
    const ek_status status = ek_group_open(&group, spec, NULL);
    if (status == EK_OK) {
      ek_group_free(group);
      break;
    }
    ck_assert_int_eq(status, EK_ERR_OUT_OF_MEMORY);
    ck_assert(ck_contains(ek_error_message(), "cuda:"));
    no_leaks("an opening that failed");
    ck_assert_uint_lt(n, 1000);
  }
}

CK_EMULATED_SUITE("cuda faults")
