/*
 * cpu_products.c - matrix products.
 *
 * f32: oneDNN's sgemm, one thread per call; the team cuts the result along its longer side, because
 * two one-thread products beat one two-thread product in most shapes. f64: a blocked loop in plain
 * C, for gradient checks.
 */
#include "backend/cpu/cpu_internal.h"

#include <oneapi/dnnl/dnnl.h>

ek_status ek__cpu_sgemm(const struct ek__gemm *g) {
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
 * Two shapes are cut before oneDNN sees them, because its own blocking is weak there (2.6, with
 * AVX-512):
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
    EK_TRY(ek__cpu_sgemm(&part));
  }
  return EK_OK;
}

static ek_status sgemm_by_columns(const struct ek__gemm *g) {
  for (int64_t j = 0; j < g->n; j += COLUMN_BLOCK) {
    struct ek__gemm part = *g;
    part.n = g->n - j < COLUMN_BLOCK ? g->n - j : COLUMN_BLOCK;
    part.b = (const float *)g->b + (g->transpose_b ? j * g->ldb : j);
    part.c = (float *)g->c + j;
    EK_TRY(ek__cpu_sgemm(&part));
  }
  return EK_OK;
}

static ek_status sgemm_in_blocks(const struct ek__gemm *g) {
  if (g->transpose_a && g->n <= NARROW && g->k > 2 * DEPTH_BLOCK) return sgemm_by_depth(g);
  if (!g->transpose_a && g->n >= 2 * COLUMN_BLOCK && g->k <= SHORT) return sgemm_by_columns(g);
  return ek__cpu_sgemm(g);
}

#define BLOCK 64

/* c[m][n] += a' b' for one block of k. */
static void dgemm_block(const struct ek__gemm *g, int64_t first, int64_t last) {
  const double *a = g->a, *b = g->b;
  for (int64_t i = 0; i < g->m; i++) {
    double *c = (double *)g->c + i * g->ldc;
    for (int64_t p = first; p < last; p++) {
      const double factor = g->alpha * (g->transpose_a ? a[p * g->lda + i] : a[i * g->lda + p]);
      if (g->transpose_b) {
        for (int64_t j = 0; j < g->n; j++) c[j] += factor * b[j * g->ldb + p];
      } else {
        for (int64_t j = 0; j < g->n; j++) c[j] += factor * b[p * g->ldb + j];
      }
    }
  }
}

void ek__cpu_dgemm(const struct ek__gemm *g) {
  for (int64_t i = 0; i < g->m; i++) {
    double *c = (double *)g->c + i * g->ldc;
    for (int64_t j = 0; j < g->n; j++) c[j] = g->beta == 0.0 ? 0.0 : g->beta * c[j];
  }
  for (int64_t p = 0; p < g->k; p += BLOCK) dgemm_block(g, p, p + BLOCK < g->k ? p + BLOCK : g->k);
}

/* ---- the kernel ---- */

struct product {
  const struct ek__matmul_args *args;
  size_t size; /* of an element */
  bool by_rows;
  ek_status status[EK__MAX_TEAM];
};

/* Rows i0 .. i1 - 1 and columns j0 .. j1 - 1 of c. */
static ek_status multiply(const struct product *product, int64_t i0, int64_t i1, int64_t j0,
                          int64_t j1) {
  const struct ek__matmul_args *args = product->args;
  const size_t size = product->size;
  const int64_t lda = args->transpose_a ? args->m : args->k;
  const int64_t ldb = args->transpose_b ? args->k : args->n;
  struct ek__gemm gemm = {.transpose_a = args->transpose_a,
                          .transpose_b = args->transpose_b,
                          .m = i1 - i0,
                          .n = j1 - j0,
                          .k = args->k,
                          .alpha = 1.0,
                          .lda = lda > 0 ? lda : 1,
                          .ldb = ldb > 0 ? ldb : 1,
                          .beta = args->beta,
                          .ldc = args->n};
  gemm.a = (const char *)args->a + (size_t)(args->transpose_a ? i0 : i0 * lda) * size;
  gemm.b = (const char *)args->b + (size_t)(args->transpose_b ? j0 * ldb : j0) * size;
  gemm.c = (char *)args->c + (size_t)(i0 * args->n + j0) * size;
  if (args->type == EK_F32) return sgemm_in_blocks(&gemm);
  ek__cpu_dgemm(&gemm);
  return EK_OK;
}

static void multiply_part(void *raw, int part, int parts) {
  struct product *product = raw;
  const struct ek__matmul_args *args = product->args;
  int64_t begin = 0, end = 0;
  ek__team_piece(product->by_rows ? args->m : args->n, 16, part, parts, &begin, &end);
  if (begin >= end) return;
  product->status[part] = product->by_rows ? multiply(product, begin, end, 0, args->n)
                                           : multiply(product, 0, args->m, begin, end);
}

/* c = beta c where there is nothing to multiply. */
static ek_status scale_only(ek_stream *stream, const struct ek__matmul_args *args) {
  const struct ek__elementwise_args scale = {.y = args->c,
                                             .a = args->c,
                                             .count = args->m * args->n,
                                             .value = args->beta,
                                             .type = args->type};
  return args->beta == 0.0 ? ek__cpu_fill(stream, &scale) : ek__cpu_scale(stream, &scale);
}

static ek_status add_product(ek_stream *stream, const struct ek__matmul_args *args) {
  struct ek__team *team = ek__stream_backend(stream);
  struct product product = {.args = args,
                            .size = args->type == EK_F64 ? sizeof(double) : sizeof(float),
                            .by_rows = args->m >= args->n};
  const double work = (double)args->m * (double)args->n * (double)args->k;
  const int64_t longest = (args->m > args->n ? args->m : args->n) / 16;
  int parts = ek__team_threads(team);
  if (work < 1e6) parts = 1;
  if (parts > longest) parts = longest > 1 ? (int)longest : 1;
  if (parts > EK__MAX_TEAM) parts = EK__MAX_TEAM;
  ek__team_run(team, parts, multiply_part, &product);
  for (int part = 0; part < parts; part++) {
    if (product.status[part] != EK_OK) {
      return ek_error_set(product.status[part], "matmul failed in thread %d of the device", part);
    }
  }
  return EK_OK;
}

ek_status ek__cpu_matmul(ek_stream *stream, const struct ek__matmul_args *args) {
  if (args->m == 0 || args->n == 0) return EK_OK;
  EK_TRY(args->k == 0 ? scale_only(stream, args) : add_product(stream, args));
  if (!args->bias) return EK_OK;
  return ek__cpu_add_bias(
      stream,
      &(struct ek__matrix_args){
          .y = args->c, .b = args->bias, .rows = args->m, .columns = args->n, .type = args->type});
}
