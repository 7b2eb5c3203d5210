/*
 * ck_product.h - a b + beta c + bias by plain loops, in long double where f64 is tried, with the
 * bounds that a result must keep: the derivation is in tests/op/check_products.c.
 */
#ifndef CK_PRODUCT_H
#define CK_PRODUCT_H

#include "ek_check.h"

struct ck_product {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  double beta;
  const double *a, *b, *c, *bias; /* bias may be NULL */
};

/* Sums over the inner dimension, with signs and without; they are the same for every beta. */
struct ck_inner {
  long double sum;
  double size;
};

/* m x n of them; the caller frees them. */
struct ck_inner *ck_product_multiply(const struct ck_rig *rig, const struct ck_product *p);

/* What the m x n results must be, and how far off they may be, from the sums. */
void ck_product_finish(struct ck_rig *rig, double *want, double *bound, const struct ck_product *p,
                       const struct ck_inner *inner);

/* Both. */
void ck_product_reference(struct ck_rig *rig, double *want, double *bound,
                          const struct ck_product *p);

/* Whether oneDNN's matmul primitive multiplies values of this type, by code of its own for the
 * processor (bf16; f32 with AVX-512 and EVENKEEL_PRODUCTS=matmul): the order of a sum may then
 * depend on how long the rows of an operand are stored. */
bool ck_onednn_primitive(ek_type type);

#endif /* CK_PRODUCT_H */
