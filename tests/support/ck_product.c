/*
 * ck_product.c - products by their formula, with bounds: see ck_product.h.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "ck_product.h"

#include <dlfcn.h>

/* Of a row of a and of four columns of b, side by side: the processor then does not wait for each
 * addition. Sums in double are exact for whole numbers and far finer than f32. */
#define MULTIPLY(name, number)                                                                     \
  CK_UNWATCHED static void name(struct ck_inner *const *to, const double *a, int64_t a_step,       \
                                const double *const *b, int64_t b_step, int64_t k) {               \
    const double *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3];                                   \
    number sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;                                                 \
    double size0 = 0, size1 = 0, size2 = 0, size3 = 0;                                             \
    for (int64_t l = 0; l < k; l++) {                                                              \
      const double x = a[l * a_step];                                                              \
      const int64_t at = l * b_step;                                                               \
      sum0 += (number)x * b0[at], size0 += fabs(x * b0[at]);                                       \
      sum1 += (number)x * b1[at], size1 += fabs(x * b1[at]);                                       \
      sum2 += (number)x * b2[at], size2 += fabs(x * b2[at]);                                       \
      sum3 += (number)x * b3[at], size3 += fabs(x * b3[at]);                                       \
    }                                                                                              \
    *to[3] = (struct ck_inner){sum3, size3}, *to[2] = (struct ck_inner){sum2, size2};              \
    *to[1] = (struct ck_inner){sum1, size1}, *to[0] = (struct ck_inner){sum0, size0};              \
  }
MULTIPLY(multiply, double)
MULTIPLY(multiply_fine, long double)

struct ck_inner *ck_product_multiply(const struct ck_rig *rig, const struct ck_product *p) {
  struct ck_inner *inner = calloc((size_t)(p->m * p->n) + 1, sizeof *inner);
  ck_assert_ptr_nonnull(inner);
  const int64_t a_row = p->transpose_a ? 1 : p->k, a_step = p->transpose_a ? p->m : 1;
  const int64_t b_column = p->transpose_b ? p->k : 1, b_step = p->transpose_b ? 1 : p->n;
  const bool fine = rig->type == EK_F64;
  for (int64_t i = 0; i < p->m; i++) {
    for (int64_t first = 0; first < p->n; first += 4) {
      const double *b[4];
      struct ck_inner *to[4];
      for (int64_t c = 0; c < 4; c++) { /* the last column stands for those that are not there */
        const int64_t j = first + c < p->n ? first + c : p->n - 1;
        b[c] = p->b + j * b_column;
        to[c] = &inner[i * p->n + j];
      }
      (fine ? multiply_fine : multiply)(to, p->a + i * a_row, a_step, b, b_step, p->k);
    }
  }
  return inner;
}

CK_UNWATCHED void ck_product_finish(struct ck_rig *rig, double *want, double *bound,
                                    const struct ck_product *p, const struct ck_inner *inner) {
  for (int64_t i = 0; i < p->m * p->n; i++) {
    const long double old = p->beta == 0 ? 0 : (long double)p->beta * p->c[i];
    const double bias = p->bias != NULL ? p->bias[i % p->n] : 0;
    want[i] = (double)(old + bias + inner[i].sum);
    bound[i] = (double)(p->k + 3) * rig->unit * (double)(fabsl(old) + fabs(bias) + inner[i].size);
  }
}

void ck_product_reference(struct ck_rig *rig, double *want, double *bound,
                          const struct ck_product *p) {
  struct ck_inner *inner = ck_product_multiply(rig, p);
  ck_product_finish(rig, want, bound, p, inner);
  free(inner);
}

bool ck_onednn_primitive(ek_type type) {
  const int avx512 = 0x27,
            bf16 = 0xE7; /* dnnl_cpu_isa_avx512_core, dnnl_cpu_isa_avx512_core_bf16 */
  const char *products = getenv("EVENKEEL_PRODUCTS");
  const bool f32 = products != NULL && strcmp(products, "matmul") == 0;
  const int needed = type == EK_BF16 ? bf16 : avx512;
  int (*isa)(void) = NULL;
  void *found = dlsym(RTLD_DEFAULT, "dnnl_get_effective_cpu_isa");
  if (found == NULL || (type != EK_BF16 && !(type == EK_F32 && f32))) return false;
  memcpy(&isa, &found, sizeof isa);
  return (isa() & needed) == needed;
}
