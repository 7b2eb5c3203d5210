/*
 * cpu_matmul_onednn.c - one thread's matrix product by oneDNN's matmul primitive; compiled only
 * with oneDNN. cpu_matmul_choice.c decides which products use it, cpu_kept_onednn.c keeps the
 * primitives.
 *
 * A product of bf16 has its sums in f32, bias and c fused, and one rounding. oneDNN (2.6) has no
 * product for f16, and none for bf16 without AVX-512.
 *
 * Tested so far: all of this in f32 (oneDNN 2.6 on AVX2); in bf16 with a stand-in for a processor
 * that has instructions for it (tests/faults), and with oneDNN 2.6 itself on processors with
 * AVX512-BF16 and with AMX (docs/results/2026-11-26-onednn.md).
 */
#include "backend/cpu/cpu_kept.h"
#include "backend/cpu/cpu_primitive.h"

#include <stdio.h>

#include "core/error.h"

enum { A = EK__KEPT_A, B = EK__KEPT_B, BIAS = EK__KEPT_BIAS, C = EK__KEPT_C };

struct shape { /* compared as bytes, so it has no gaps */
  int64_t m, n, k, lda, ldb, ldc;
  double beta;
  uint8_t type, transpose_a, transpose_b, c_is_sum, bias, unused[3];
};
_Static_assert(sizeof(struct shape) == 7 * 8 + 8, "a gap");

bool ek__cpu_primitive_for_bf16(void) {
  return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
         dnnl_cpu_isa_avx512_core_bf16;
}

static dnnl_status_t plan(struct ek__filling *f, bool bias) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_matmul_primitive_desc_create(&f->product, ek__kept_engine(), f->what[A], f->what[B],
                                           bias ? f->what[BIAS] : NULL, f->what[C], f->attributes);
#else
  dnnl_matmul_desc_t matmul;
  const dnnl_status_t status = dnnl_matmul_desc_init(&matmul, &f->what[A], &f->what[B],
                                                     bias ? &f->what[BIAS] : NULL, &f->what[C]);
  if (status != dnnl_success) return status;
  return dnnl_primitive_desc_create(&f->product, &matmul, f->attributes, ek__kept_engine(), NULL);
#endif
}

static dnnl_status_t describe(struct ek__filling *f, int i, int64_t rows, int64_t columns,
                              int64_t row_step, int64_t column_step, dnnl_data_type_t type) {
  const dnnl_dims_t sizes = {rows, columns}, steps = {row_step, column_step};
  return ek__kept_describe(f, i, 2, sizes, steps, type);
}

static dnnl_status_t describe_all(struct ek__filling *f, const struct shape *s) {
  const dnnl_data_type_t value = s->type == EK_F32 ? dnnl_f32 : dnnl_bf16;
  const dnnl_data_type_t result = s->c_is_sum ? dnnl_f32 : value;
  const int64_t ta = s->transpose_a, tb = s->transpose_b;
  dnnl_status_t status = describe(f, A, s->m, s->k, ta ? 1 : s->lda, ta ? s->lda : 1, value);
  if (status == dnnl_success) {
    status = describe(f, B, s->k, s->n, tb ? 1 : s->ldb, tb ? s->ldb : 1, value);
  }
  if (status == dnnl_success && s->bias) status = describe(f, BIAS, 1, s->n, s->n, 1, value);
  if (status == dnnl_success) status = describe(f, C, s->m, s->n, s->ldc, 1, result);
  return status;
}

/* Products of this depth end the process on a processor with AMX: oneDNN 2.6.3 runs an instruction
 * for tiles that it has not configured. No other depth up to 400 does. */
static bool is_deadly(const struct shape *shape, const_dnnl_primitive_desc_t product) {
  return shape->k == 63 && ek__kept_is(product, "brg:avx512_core_amx");
}

/* Leaves a place without a primitive where oneDNN has nothing. */
static int fill(void *arg) {
  struct ek__filling *f = arg;
  const struct shape *shape = (const void *)f->place->key;
  const bool bias = shape->bias;
  dnnl_status_t status = describe_all(f, shape);
  if (status == dnnl_success) status = ek__kept_attributes(f, shape->beta);
  if (status == dnnl_success) status = plan(f, bias);
  if (status == dnnl_unimplemented) return dnnl_success;
  if (status == dnnl_success && (ek__kept_is(f->product, "ref") || is_deadly(shape, f->product))) {
    return dnnl_success;
  }
  for (int i = A; i <= C && status == dnnl_success; i++) {
    if (i != BIAS || bias) status = ek__kept_memory(f->place, i, ek__kept_what(f, i));
  }
  if (status == dnnl_success) status = ek__kept_finish(f);
  return status;
}

static void name(char *text, const void *key) {
  const struct shape *s = key;
  (void)snprintf(text, EK__KEPT_TEXT, "matmul %lld x %lld x %lld", (long long)s->m, (long long)s->n,
                 (long long)s->k);
}

static const struct ek__kept_kind matmul = {
    .names = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST},
    .words = sizeof(struct shape) / 8,
    .fill = fill,
    .name = name};

ek_status ek__cpu_primitive_multiply(bool *done, const struct ek__gemm *g, ek_type type) {
  const struct shape shape = {.m = g->m,
                              .n = g->n,
                              .k = g->k,
                              .lda = g->lda,
                              .ldb = g->ldb,
                              .ldc = g->ldc,
                              .beta = g->beta,
                              .type = (uint8_t)type,
                              .transpose_a = g->transpose_a,
                              .transpose_b = g->transpose_b,
                              .c_is_sum = g->c_is_sum,
                              .bias = g->bias != NULL};
  void *const data[EK__KEPT_DATA] = {(void *)(uintptr_t)g->a, (void *)(uintptr_t)g->b,
                                     (void *)(uintptr_t)g->bias, g->c};
  const struct ek__kept *place = NULL;
  EK_TRY(ek__kept_find(&place, &matmul, &shape));
  if (place->primitive == NULL) return EK_OK;
  EK_TRY(ek__kept_run(place, data));
  *done = true;
  return EK_OK;
}
