/*
 * check_onednn.c - oneDNN fails, throws, or may not write code: the process lives, and no result is
 * wrong.
 *
 * The program has a dnnl_sgemm() of its own in front of oneDNN's, one call of which fails. The
 * library decides once in a process, so each case is a process of its own, begun before this one
 * has used the library. It opens a training twice and says what came of it; the parameters after a
 * few steps are those of an undisturbed process with oneDNN, or with the library's own products.
 */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <oneapi/dnnl/dnnl.h>

#include "ck_fork.h"
#include "ck_training.h"

enum { STEPS = 3, SAMPLES = 5, FIRST_PRODUCTS = 16 };

/* ---- in front of oneDNN ---- */

enum way { RIGHT, NO_MEMORY, BROKEN, THROWS_NO_MEMORY, THROWS };

static struct {
  atomic_int calls, at; /* the call that fails; 0: none */
  enum way way;
} sgemm;

static void throw_from(const char *name, size_t argument) {
  void (*function)(size_t) = NULL;
  void *found = dlsym(RTLD_DEFAULT, name);
  memcpy(&function, &found, sizeof function);
  function(argument);
}

dnnl_status_t dnnl_sgemm(char transa, char transb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k,
                         float alpha, const float *a, dnnl_dim_t lda, const float *b,
                         dnnl_dim_t ldb, float beta, float *c, dnnl_dim_t ldc) {
  dnnl_status_t (*next)(char, char, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t, float, const float *,
                        dnnl_dim_t, const float *, dnnl_dim_t, float, float *, dnnl_dim_t) = NULL;
  void *found = dlsym(RTLD_NEXT, "dnnl_sgemm");
  memcpy(&next, &found, sizeof next);
  if (atomic_fetch_add(&sgemm.calls, 1) + 1 == atomic_load(&sgemm.at)) {
    if (m > 0 && n > 0) c[0] = 12345; /* a part of the result is there */
    if (sgemm.way == NO_MEMORY) return dnnl_out_of_memory;
    if (sgemm.way == BROKEN) return dnnl_runtime_error;
    if (sgemm.way == THROWS_NO_MEMORY) throw_from("_Znwm", SIZE_MAX / 4);
    if (sgemm.way == THROWS) throw_from("_ZSt20__throw_length_errorPKc", (size_t)(uintptr_t) "");
  }
  return next(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

/* ---- a process ---- */

struct outcome {
  ek_status open[2], step[STEPS];
  int calls[2]; /* of dnnl_sgemm() when the first group is open, and in all */
  int lines;    /* of the log, warnings and worse */
  uint64_t bits;
};

struct scene {
  bool own, no_code;
  enum way way;
  int at;        /* the call, from the opening on */
  bool in_steps; /* from the first step on */
};

static void count_line(void *context, ek_log_level level, const char *line) {
  struct outcome *outcome = context;
  (void)line;
  if (level >= EK_LOG_WARNING) outcome->lines++;
}

/* As systemd's MemoryDenyWriteExecute. */
static bool keep_memory_from_becoming_code(void) {
  const unsigned refuse = SECCOMP_RET_ERRNO | EPERM;
  const size_t protection = offsetof(struct seccomp_data, args[2]); /* of a little-endian machine */
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pkey_mprotect, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)protection),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1), BPF_STMT(BPF_RET | BPF_K, refuse),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* All steps go well in the end, as one that fails is done again. */
static ek_status train(struct outcome *outcome, const struct ck_setup *setup,
                       const struct ck_batch *batch, ek_group *group, const struct scene *scene) {
  struct ck_training training;
  EK_TRY(ck_training_try(&training, setup, group));
  if (scene->in_steps) atomic_store(&sgemm.at, atomic_load(&sgemm.calls) + scene->at);
  ek_status status = EK_OK;
  for (int i = 0; i < STEPS && status == EK_OK; i++) {
    outcome->step[i] = status = ck_training_step(&training, batch, NULL);
    if (status != EK_OK) status = ck_training_step(&training, batch, NULL);
  }
  double *values = ck_training_read(&training, CK_VALUES);
  outcome->bits = ck_hash(CK_HASH, values, (size_t)ck_count(values) * sizeof *values);
  ck_training_close(&training);
  return status;
}

static ek_status play(struct outcome *outcome, const struct scene *scene) {
  struct ck_setup setup = ck_setup_mode(ck_workload("gpt"), "cpu:2", EK_MODE_SHARDED);
  setup.optimizer = ck_clipped_adamw;
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.2, 3);
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .threads_per_device = 2);
  ek_status status = EK_OK;
  ek_log_set(EK_LOG_WARNING, count_line, outcome);
  if (scene->own) (void)setenv("EVENKEEL_PRODUCTS", "own", 1);
  if (scene->no_code && !keep_memory_from_becoming_code()) _exit(77);
  sgemm.way = scene->way;
  if (!scene->in_steps) atomic_store(&sgemm.at, scene->at);
  for (int i = 0; i < 2 && status == EK_OK; i++) {
    ek_group *group = NULL;
    outcome->open[i] = ek_group_open(&group, setup.spec, &options);
    if (i == 0) outcome->calls[0] = atomic_load(&sgemm.calls);
    if (outcome->open[i] != EK_OK) continue;
    status = train(outcome, &setup, &batch, group, scene);
    const ek_status closed = ek_group_close(group);
    if (status == EK_OK) status = closed;
  }
  outcome->calls[1] = atomic_load(&sgemm.calls);
  ek_log_set(EK_LOG_WARNING, NULL, NULL);
  return status;
}

/* False where the system has no filters. */
static bool run(struct outcome *result, struct scene scene) {
  int code = -1;
  struct outcome *shared = ck_shared(sizeof *shared);
  if (ck_forked(&code)) _exit(play(shared, &scene) == EK_OK ? 0 : 1);
  *result = *shared;
  if (code == 77) return false;
  ck_assert_msg(code == 0, "way %d at call %d: exit %d", (int)scene.way, scene.at, code);
  return true;
}

static uint64_t bits_of(bool own) {
  struct outcome outcome;
  ck_assert(run(&outcome, (struct scene){.own = own}));
  ck_assert_int_eq(outcome.open[0] | outcome.open[1], EK_OK);
  ck_assert_int_eq(outcome.lines, 0);
  return outcome.bits;
}

/* ---- the cases ---- */

CK_TEST(own_products_never_call_it) {
  struct outcome outcome;
  ck_assert(run(&outcome, (struct scene){.own = true, .way = THROWS, .at = 1}));
  ck_assert_int_eq(outcome.open[0] | outcome.open[1], EK_OK);
  ck_assert_int_eq(outcome.calls[1], 0);
  ck_assert_int_eq(outcome.lines, 0);
}

static const int first_at[] = {1, 7, FIRST_PRODUCTS};

/* Opening fails, and the next one goes well: with the same bits. */
CK_TEST(memory_refused_at_opening_is_a_status) {
  const enum way ways[] = {NO_MEMORY, THROWS_NO_MEMORY};
  const uint64_t want = bits_of(false);
  for (size_t i = 0; i < 6; i++) {
    struct outcome outcome;
    ck_assert(run(&outcome, (struct scene){.way = ways[i / 3], .at = first_at[i % 3]}));
    ck_assert_int_eq(outcome.open[0], EK_ERR_OUT_OF_MEMORY);
    ck_assert_int_eq(outcome.open[1], EK_OK);
    ck_assert_int_eq(outcome.lines, 0);
    ck_assert_uint_eq(outcome.bits, want);
  }
}

/* What fails for another reason is not called again. */
CK_TEST(own_products_take_over_at_opening) {
  const enum way ways[] = {BROKEN, THROWS};
  const uint64_t want = bits_of(true);
  for (size_t i = 0; i < 6; i++) {
    struct outcome outcome;
    ck_assert(run(&outcome, (struct scene){.way = ways[i / 3], .at = first_at[i % 3]}));
    ck_assert_int_eq(outcome.open[0] | outcome.open[1], EK_OK);
    ck_assert_int_eq(outcome.calls[1], first_at[i % 3]);
    ck_assert_int_eq(outcome.lines, 1);
    ck_assert_uint_eq(outcome.bits, want);
  }
}

/* The step fails, changes nothing, and is done again: with the same bits. */
CK_TEST(a_product_that_fails_in_a_step_is_a_status) {
  const enum way ways[] = {NO_MEMORY, THROWS_NO_MEMORY, BROKEN, THROWS};
  const int calls[] = {1, 20, 45};
  const uint64_t want = bits_of(false);
  for (size_t i = 0; i < 12; i++) {
    struct outcome outcome;
    const enum way way = ways[i / 3];
    ck_assert(run(&outcome, (struct scene){.way = way, .at = calls[i % 3], .in_steps = true}));
    const bool memory = way == NO_MEMORY || way == THROWS_NO_MEMORY;
    int failed = 0;
    for (int j = 0; j < STEPS; j++) {
      if (outcome.step[j] == EK_OK) continue;
      failed++;
      ck_assert_int_eq(outcome.step[j], memory ? EK_ERR_OUT_OF_MEMORY : EK_ERR_INTERNAL);
    }
    ck_assert_int_eq(failed, 1);
    ck_assert_uint_eq(outcome.bits, want);
  }
}

CK_TEST(memory_that_may_not_become_code) {
  struct outcome outcome;
  for (int own = 0; own < 2; own++) {
    if (!run(&outcome, (struct scene){.own = own, .no_code = true})) {
      (void)printf("skipped: the system refuses filters of its calls\n");
      return;
    }
    ck_assert_int_eq(outcome.open[0] | outcome.open[1], EK_OK);
    ck_assert_int_eq(outcome.lines, own ? 0 : 1);
    ck_assert_uint_eq(outcome.bits, bits_of(true));
  }
}

CK_SUITE("oneDNN")
