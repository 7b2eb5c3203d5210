/*
 * product.h - y = x W^T + b: the parameters, and the way there and back as the module whose formula
 * this is, which the caller is or has entered.
 */
#ifndef EK_PRODUCT_H
#define EK_PRODUCT_H

#include <evenkeel/module.h>
#include <evenkeel/pass.h>

/* Sizes and first values of W [out, in] and b [out], the first two parameters of their module. */
struct ek__affine {
  int64_t in, out;
  bool bias, frozen;
  bool no_decay, elementwise; /* of W; b has no decay */
  ek_initializer weight_start, bias_start;
};

enum { EK__WEIGHT, EK__BIAS };

/* Both begin uniform in +-1/sqrt(in), unless `weight` (not NULL) gives the initial values of W;
 * then b begins as zeros. EK_ERR_INVALID_ARGUMENT: a size is not above 0; `kind` is that of their
 * module. */
ek_status ek__affine_fill(struct ek__affine *affine, const char *kind, int64_t in, int64_t out,
                          bool bias, const ek_initializer *weight);
ek_status ek__affine_declare(const struct ek__affine *affine, ek_declaration *declaration);
ek_formula ek__affine_formula(const struct ek__affine *affine);

/* Saves x. Rows of y have `columns` elements, of which the first are the result; 0: as many as W
 * has rows. */
ek_status ek__product_forward(const ek_formula *linear, ek_pass *pass, const ek_tensor *x,
                              ek_tensor *y, int64_t columns);

/* y = GELU(x W^T + b). Saves x, and then the input of GELU; *pre becomes that input, owned by the
 * caller, or stays unchanged if it is not needed. again: y may be made again from pre, with the
 * same bits, which a product that is joined with GELU need not have. */
ek_status ek__product_gelu_forward(const ek_formula *linear, ek_pass *pass, const ek_tensor *x,
                                   ek_tensor *pre, ek_tensor *y, bool again);

/* Takes x, adds to the gradients and reports them as complete. bias_done: that of the bias has been
 * computed. */
ek_status ek__product_gradients(const ek_formula *linear, ek_pass *pass, const ek_tensor *dy,
                                bool bias_done);

/* The same, and then dx, if it is not NULL. */
ek_status ek__product_backward(const ek_formula *linear, ek_pass *pass, const ek_tensor *dy,
                               ek_tensor *dx, bool bias_done);

#endif /* EK_PRODUCT_H */
