/*
 * cpu_sgemm_onednn.c - one thread's matrix product in f32 by oneDNN; compiled where that is there.
 */
#include "backend/cpu/cpu_internal.h"

#include <oneapi/dnnl/dnnl.h>

const char *ek__cpu_products_name(void) { return "oneDNN"; }

static ek_status sgemm(const struct ek__gemm *g) {
  const int threads = ek__cpu_openmp_single();
  const dnnl_status_t status =
      dnnl_sgemm(g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', g->m, g->n, g->k,
                 (float)g->alpha, g->a, g->lda, g->b, g->ldb, (float)g->beta, g->c, g->ldc);
  ek__cpu_openmp_restore(threads);
  if (status == dnnl_success) return EK_OK;
  const ek_status kind = status == dnnl_out_of_memory ? EK_ERR_OUT_OF_MEMORY : EK_ERR_INTERNAL;
  return ek_error_set(kind, "matmul %lld x %lld x %lld: oneDNN gave status %d", (long long)g->m,
                      (long long)g->n, (long long)g->k, (int)status);
}

/*
 * Two shapes are cut before oneDNN (2.6, with AVX-512) sees them, because its own blocking is weak
 * there:
 *   - a turned and c narrow, as in the gradient of weights with few inputs: along k, by 128. Up to
 *     1.35 times as fast; with wide rows of a (a power of two) its packing is what costs.
 *   - c very wide and k short, as in the output layer of a small model: along n, by 2048. 1.1
 *     times as fast.
 */
#define NARROW 384
#define SHORT 512
#define DEPTH_BLOCK 128
#define COLUMN_BLOCK 2048

static ek_status sgemm_by_depth(const struct ek__gemm *g) {
  for (int64_t p = 0; p < g->k; p += DEPTH_BLOCK) {
    struct ek__gemm part = *g;
    part.k = g->k - p < DEPTH_BLOCK ? g->k - p : DEPTH_BLOCK;
    part.a = (const float *)g->a + p * g->lda;
    part.b = (const float *)g->b + (g->transpose_b ? p : p * g->ldb);
    part.beta = p == 0 ? g->beta : 1.0;
    EK_TRY(sgemm(&part));
  }
  return EK_OK;
}

static ek_status sgemm_by_columns(const struct ek__gemm *g) {
  for (int64_t j = 0; j < g->n; j += COLUMN_BLOCK) {
    struct ek__gemm part = *g;
    part.n = g->n - j < COLUMN_BLOCK ? g->n - j : COLUMN_BLOCK;
    part.b = (const float *)g->b + (g->transpose_b ? j * g->ldb : j);
    part.c = (float *)g->c + j;
    EK_TRY(sgemm(&part));
  }
  return EK_OK;
}

ek_status ek__cpu_sgemm(const struct ek__gemm *g) {
  if (g->transpose_a && g->n <= NARROW && g->k > 2 * DEPTH_BLOCK) return sgemm_by_depth(g);
  if (!g->transpose_a && g->n >= 2 * COLUMN_BLOCK && g->k <= SHORT) return sgemm_by_columns(g);
  return sgemm(g);
}
