/*
 * check_cuda_cudnn.c - when attention is cuDNN's, that its graph means attention, and that nothing
 * which fails there is seen.
 *
 * The stand-in computes what the graph describes. What our kernels give is check_attend's matter;
 * here their results are what cuDNN's are held against, and those of our backward, which follows
 * either forward. Whether the real library takes the graph: check_cudnn_graph.c. Runs on
 * tests/cuemu.
 */
#include <evenkeel/attend.h>
#include <stdio.h>
#include <stdlib.h>

#include "ck_emulated.h"

/* One attention. */
struct attention {
  int64_t batch, tokens, heads, width;
  bool apart;    /* q, k and v are tensors of their own */
  bool zero;     /* so is all that is given */
  bool backward; /* after the forward */
  ek_attend_options options;
};

enum { OUT, LSE, GRADIENTS, RESULTS = GRADIENTS + 3 };

struct results {
  int64_t count[RESULTS];
  double *at[RESULTS];
};

/* Random numbers in -1 .. 1, the same for the same seed. */
static ek_tensor *values(struct ck_rig *rig, uint32_t seed, const struct attention *a,
                         int64_t columns) {
  const int64_t count = a->batch * a->tokens * columns;
  double *x = ck_zeros(rig, count);
  for (int64_t i = 0; i < count; i++) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = a->zero ? 0 : (double)(seed >> 8) / 8388608.0 - 1;
  }
  return ck_tensor(rig, x, CK_SHAPE(a->batch, a->tokens, columns));
}

/* dq, dk and dv are one tensor where q is one. */
static struct results attend(struct ck_rig *rig, const struct attention *a, uint32_t seed) {
  const int64_t rows = a->batch * a->tokens, columns = a->heads * a->width;
  const int64_t wide = a->apart ? columns : 3 * columns;
  ek_tensor *given[3], *gradient[3];
  struct results r = {.count = {rows * columns, rows * a->heads}};
  for (int i = 0; i < (a->apart ? 3 : 1); i++) {
    given[i] = values(rig, 4 * seed + (uint32_t)i, a, wide);
    gradient[i] = ck_poisoned(rig, CK_SHAPE(a->batch, a->tokens, wide));
  }
  ek_tensor *dout = values(rig, 4 * seed + 3, a, columns);
  ek_tensor *out = ck_poisoned(rig, CK_SHAPE(a->batch, a->tokens, columns));
  ek_tensor *lse = ck_poisoned_sums(rig, CK_SHAPE(a->batch, a->heads, a->tokens));
  CK_WITH(ek_attend_options, options, a->options, .heads = (int)a->heads);
  if (a->apart) {
    ck_assign(options, .k = given[1], .v = given[2]);
  }
  ck_ok(ek_op_attention_forward(rig->stream, out, lse, given[0], &options));
  ck_assign(r, .at[OUT] = ck_read(rig, out), .at[LSE] = ck_read(rig, lse));
  if (!a->backward) return r;
  if (a->apart) {
    ck_assign(options, .dk = gradient[1], .dv = gradient[2]);
  }
  ck_ok(ek_op_attention_backward(rig->stream, gradient[0], dout, given[0], out, lse, &options));
  for (int i = 0; i < (a->apart ? 3 : 1); i++) {
    r.at[GRADIENTS + i] = ck_read(rig, gradient[i]);
    r.count[GRADIENTS + i] = rows * wide;
  }
  return r;
}

/* Factors of 16 bits are rounded at other places: p and ds to 8 or 11 bits, each once. */
static void same(const struct results *a, const struct results *b) {
  for (int i = 0; i < RESULTS && a->at[i] != NULL; i++) {
    double norm = 0, distance = 0;
    for (int64_t k = 0; k < a->count[i]; k++) {
      const double d = a->at[i][k] - b->at[i][k];
      norm += a->at[i][k] * a->at[i][k];
      distance += d * d;
    }
    ck_assert_msg(distance <= 0x1p-14 * norm, "result %d: %g of %g", i, distance, norm);
  }
}

/* 256 rows of scores: cuDNN is asked for no fewer. */
static const struct attention plain = {
    .batch = 2, .tokens = 32, .heads = 4, .width = 8, .options = EK_ATTEND_OPTIONS_INIT};

/* Calls twice, with other values each time, in a group of this number and beside it in one that is
 * deterministic and so has our kernels; how often cuDNN ran, the second time. */
static unsigned long second(int group, ek_type type, const struct attention *a) {
  static char specs[11][32]; /* the group is found again by its spec, where that was */
  unsigned long before = 0, after = 0;
  (void)snprintf(specs[group], sizeof specs[group], "cuda:0@%dMiB", 65 + group);
  struct ck_rig *theirs = ck_rig_open(specs[group], type, 1);
  ck_deterministic(true);
  struct ck_rig *ours = ck_rig_open("cuda:0@64MiB", type, 1);
  ck_deterministic(false);
  for (uint32_t seed = 0; seed < 2; seed++) {
    before = cuemu_cudnn_executions();
    const struct results found = attend(theirs, a, seed);
    after = cuemu_cudnn_executions();
    const struct results wanted = attend(ours, a, seed);
    ck_assert_uint_eq(cuemu_cudnn_executions(), after);
    same(&wanted, &found);
  }
  ck_rig_close(ours);
  ck_rig_close(theirs);
  return after - before;
}

/* Packed and apart: one execution in a call. Our backward follows. */
CK_LOOP(taken_where_it_is_faster, 2) {
  struct cuemu_cudnn cudnn = CUEMU_CUDNN_FAST;
  const ek_type type = _i == 0 ? EK_BF16 : EK_F16;
  cuemu_set_cudnn(&cudnn);
  CK_WITH(struct attention, a, plain, .apart = _i == 0, .backward = true);
  ck_assert_uint_eq(second(0, type, &a), 1);
  a.apart = !a.apart;
  ck_assign(a, .backward = false, .tokens = 33);
  ck_assert_uint_eq(second(0, type, &a), 1);
  cudnn.time = 100000;
  cuemu_set_cudnn(&cudnn);
  a.tokens = 34;
  ck_assert_uint_eq(second(0, type, &a), 0);
}

/* Nothing is asked of it after the first call. Zeros show nothing. */
CK_TEST(left_where_it_does_not_work) {
  const struct cuemu_cudnn fast = CUEMU_CUDNN_FAST;
  for (int i = 0; i < 11; i++) {
    struct cuemu_cudnn cudnn = fast;
    struct attention a = plain;
    a.tokens += i; /* what was timed holds for all groups */
    switch (i) {
    case 0: cudnn.version = 0; break;
    case 1: cudnn.version = 92003; break;
    case 2: cudnn.version = 100000; break;
    case 3: cudnn.no_handle = true; break;
    case 4: cudnn.no_engine = true; break;
    case 5: cudnn.no_plan = true; break;
    case 6: cudnn.workspace = (32 << 20) + 1; break;
    case 7: cudnn.wrong = CUEMU_WRONG_OUT; break;
    case 8: cudnn.wrong = CUEMU_WRONG_LSE; break;
    case 9: a.zero = true; break;
    default: ck_variable("EVENKEEL_CUDA_CUDNN", "0");
    }
    cuemu_set_cudnn(&cudnn);
    const unsigned long executions = second(i, EK_BF16, &a);
    ck_assert_msg(executions == 0, "case %d: %lu", i, executions);
    ck_assert_msg((cuemu_cudnn_executions() > 0) == (i >= 7 && i <= 9), "case %d", i);
  }
}

/* Each execution fails once, while it is chosen and later, and all after it: our kernels do that
 * call and the next ones. There are three until it is chosen. */
CK_TEST(fails_at_any_time) {
  struct attention a = plain;
  struct cuemu_cudnn cudnn = CUEMU_CUDNN_FAST;
  for (unsigned long i = 1; i <= 4; i++) {
    cudnn.fails_at = i;
    cuemu_set_cudnn(&cudnn);
    a.tokens++;
    ck_assert_uint_eq(second(0, EK_F16, &a), i == 4);
    ck_assert_uint_eq(cuemu_cudnn_executions(), i);
  }
}

/* What it is not asked for: all that has no graph here, and what is too small. */
CK_TEST(never_asked) {
  const struct cuemu_cudnn fast = CUEMU_CUDNN_FAST;
  cuemu_set_cudnn(&fast);
  for (int i = 0; i < 5; i++) {
    struct attention a = plain;
    switch (i) {
    case 0: a.options.causal = false; break;
    case 1: a.options.dropout = 0.5; break;
    case 2: a.width = 12; break;
    case 3: a.width = 136; break;
    default: a.tokens = 31;
    }
    ck_assert_uint_eq(second(0, EK_BF16, &a), 0);
  }
  ck_assert_uint_eq(second(0, EK_F32, &plain), 0);
  ck_assert_uint_eq(cuemu_cudnn_executions(), 0);
}

CK_EMULATED_SUITE("cuda cudnn")
