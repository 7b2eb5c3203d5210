/*
 * ck_product.c - products by their formula, with bounds: see ck_product.h.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "ck_product.h"

#include <dlfcn.h>

/* In double, which is exact for whole numbers and far finer than f32, or finer than that. */
CK_UNWATCHED static void multiply_one(struct ck_inner *inner, const double *a, int64_t a_step,
                                      const double *b, int64_t b_step, int64_t k, bool fine) {
  double sum = 0, size = 0;
  for (int64_t l = 0; !fine && l < k; l++) {
    const double term = a[l * a_step] * b[l * b_step];
    sum += term;
    size += fabs(term);
  }
  *inner = (struct ck_inner){sum, size};
  for (int64_t l = 0; fine && l < k; l++) {
    const long double term = (long double)a[l * a_step] * b[l * b_step];
    inner->sum += term;
    inner->size += fabsl(term);
  }
}

CK_UNWATCHED struct ck_inner *ck_product_multiply(const struct ck_rig *rig,
                                                  const struct ck_product *p) {
  struct ck_inner *inner = calloc((size_t)(p->m * p->n) + 1, sizeof *inner);
  ck_assert_ptr_nonnull(inner);
  const int64_t a_row = p->transpose_a ? 1 : p->k, a_step = p->transpose_a ? p->m : 1;
  const int64_t b_column = p->transpose_b ? p->k : 1, b_step = p->transpose_b ? 1 : p->n;
  for (int64_t i = 0; i < p->m; i++) {
    for (int64_t j = 0; j < p->n; j++) {
      multiply_one(&inner[i * p->n + j], p->a + i * a_row, a_step, p->b + j * b_column, b_step,
                   p->k, rig->type == EK_F64);
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
  const int avx512 = 0x27, bf16 = 0xE7; /* dnnl_cpu_isa_avx512_core, dnnl_cpu_isa_avx512_core_bf16 */
  const char *products = getenv("EVENKEEL_PRODUCTS");
  const bool f32 = products != NULL && strcmp(products, "matmul") == 0;
  const int needed = type == EK_BF16 ? bf16 : avx512;
  int (*isa)(void) = NULL;
  void *found = dlsym(RTLD_DEFAULT, "dnnl_get_effective_cpu_isa");
  if (found == NULL || (type != EK_BF16 && !(type == EK_F32 && f32))) return false;
  memcpy(&isa, &found, sizeof isa);
  return (isa() & needed) == needed;
}
