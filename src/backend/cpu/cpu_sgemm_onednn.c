/*
 * cpu_sgemm_onednn.c - one thread's matrix product in f32 by oneDNN, or by our own product if that
 * is faster; compiled only with oneDNN.
 *
 * oneDNN generates its machine code at the first product of a process, all of it for any shape, and
 * does not report every failed allocation meanwhile (2.6: it writes to a null pointer). So the
 * library makes the first product itself, when the first device is opened and before a program
 * relies on it, and only if the system has just granted several times the memory needed. From then
 * on a product allocates scratch memory alone.
 *
 * If oneDNN fails:
 *   - a failed allocation, in the first product or later, fails the call with EK_ERR_OUT_OF_MEMORY,
 *     and the next call may succeed. Our own product would round differently, and the bits of a run
 *     would depend on the memory that other processes use.
 *   - if the first products fail for another reason, such as a system that does not allow
 *     executable memory, our own are used for the life of the process, and the log says so.
 *   - a later product that fails for another reason is EK_ERR_INTERNAL.
 */
#include "backend/cpu/cpu_isa.h"
#include "backend/cpu/cpu_onednn.h"
#include "backend/cpu/cpu_primitive.h"

#include <pthread.h>
#include <stdatomic.h>

#include <oneapi/dnnl/dnnl.h>

#include "core/error.h"
#include "core/log_internal.h"

const char *ek__cpu_products_name(void) {
  return ek__cpu_products_are_own() ? "own matrix products" : "oneDNN";
}

static int call_sgemm(void *arg) {
  const struct ek__gemm *g = arg;
  return dnnl_sgemm(g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', g->m, g->n, g->k,
                    (float)g->alpha, g->a, g->lda, g->b, g->ldb, (float)g->beta, g->c, g->ldc);
}

static ek_status sgemm(const struct ek__gemm *g) {
  int status = dnnl_success;
  EK_TRY(ek__cpu_onednn(&status, call_sgemm, (void *)(uintptr_t)g));
  if (status == dnnl_success) return EK_OK;
  const ek_status kind = status == dnnl_out_of_memory ? EK_ERR_OUT_OF_MEMORY : EK_ERR_INTERNAL;
  return ek_error_set(kind, "matmul %lld x %lld x %lld: oneDNN failed with status "
                            "%d", (long long)g->m,
                      (long long)g->n, (long long)g->k, status);
}

/*
 * Two shapes are cut before oneDNN (2.6, with AVX-512) sees them, because its own blocking is weak
 * there:
 *   - a turned and c narrow, as in the gradient of weights with few inputs: along k, by 128. Up to
 *     1.35 times as fast; with wide rows of a (a power of two) its packing is what costs.
 *   - c very wide and k short, as in the output layer of a small model: along n, by 2048. 1.1
 *     times as fast.
 */
#define NARROW 512
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

/*
 * On AVX2 our own product, which copies b, and a where it is turned, is faster where every copy is
 * used often enough: it reaches 0.86 to 0.93 of the processor's peak, whatever is turned; oneDNN
 * (2.6) 0.80 to 0.92, but 0.39 to 0.69 where a is turned (docs/results/2026-11-22-torch-f32.md).
 *
 * Where c is narrow or low (1/m + 1/n >= 0.0038) oneDNN reads operands where they are. Down a
 * column of rows that are multiples of 2 KiB apart all it reads falls into the same few places of
 * the caches, and few uses of a copy are enough (docs/results/2026-11-22-products.md). With AVX-512
 * nothing was measured.
 */
#define OFTEN 128
#define SELDOM 32
static bool is_own(const struct ek__gemm *g) {
  if (ek__cpu_products_are_own()) return true;
  const int64_t uses = g->m < g->n ? g->m : g->n;
  return (uses >= OFTEN || (g->collides && uses >= SELDOM && g->k >= SELDOM)) &&
         ek__cpu_isa() == EK__ISA_AVX2;
}

ek_status ek__cpu_sgemm(const struct ek__gemm *g) {
  if (is_own(g)) {
    ek__cpu_functions(ek__types_in(EK_F32))->product(g, 0, g->m);
    return EK_OK;
  }
  if (g->transpose_a && g->n <= NARROW && g->k > 2 * DEPTH_BLOCK) return sgemm_by_depth(g);
  if (!g->transpose_a && g->n >= 2 * COLUMN_BLOCK && g->k <= SHORT) return sgemm_by_columns(g);
  return sgemm(g);
}

/* Each form of the product, so that the code of all is written. */
static int call_first_products(void *arg) {
  static const float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8};
  float c[4] = {0};
  (void)arg;
  for (int i = 0; i < 16; i++) {
    struct ek__gemm gemm = {.transpose_a = (i & 1) != 0,
                            .transpose_b = (i & 2) != 0,
                            .m = (i & 4) != 0 ? 1 : 2,
                            .n = (i & 8) != 0 ? 1 : 2,
                            .k = 2,
                            .alpha = 1,
                            .a = a,
                            .lda = 2,
                            .b = b,
                            .ldb = 2,
                            .c = c,
                            .ldc = 2};
    const int status = call_sgemm(&gemm);
    if (status != dnnl_success) return status;
  }
  return dnnl_success;
}

static ek_status first_products(void) {
  int status = dnnl_success;
  EK_TRY(ek__cpu_memory_probe(EK__CPU_CUSHION));
  EK_TRY(ek__cpu_onednn(&status, call_first_products, NULL));
  EK__FAIL_IF(status == dnnl_out_of_memory, EK_ERR_OUT_OF_MEMORY,
              "oneDNN could not allocate memory for its first product");
  if (status != dnnl_success) {
    ek__cpu_products_give_up_onednn();
    ek__log(EK_LOG_WARNING,
            "oneDNN cannot multiply matrices in this process (status %d; a possible reason is a "
            "system that forbids executable memory): using the library's own routine",
            status);
  }
  return EK_OK;
}

ek_status ek__cpu_products_prepare(void) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static atomic_bool prepared;
  if (ek__cpu_products_are_own() || atomic_load(&prepared)) return EK_OK;
  pthread_mutex_lock(&mutex);
  ek_status status = EK_OK;
  if (!ek__cpu_products_are_own() && !atomic_load(&prepared)) {
    status = first_products();
    atomic_store(&prepared, status == EK_OK);
  }
  pthread_mutex_unlock(&mutex);
  return status;
}
