/*
 * product.h - y = x W^T + b and its way back, as the module whose formula this is, which the caller
 * is or has entered.
 */
#ifndef EK_PRODUCT_H
#define EK_PRODUCT_H

#include <evenkeel/pass.h>

/* Saves x. */
ek_status ek__product_forward(const ek_formula *linear, ek_pass *pass, const ek_tensor *x,
                              ek_tensor *y);

/* y = GELU(x W^T + b). Saves x, and then what went into GELU; *pre becomes that, the caller's, or
 * stays as it was where nobody needs it. */
ek_status ek__product_gelu_forward(const ek_formula *linear, ek_pass *pass, const ek_tensor *x,
                                   ek_tensor *pre, ek_tensor *y);

/* Takes x, adds to the gradients and says that they are complete. bias_done: the bias has its. */
ek_status ek__product_gradients(const ek_formula *linear, ek_pass *pass, const ek_tensor *dy,
                                bool bias_done);

/* The same, and then dx, if it is not NULL. */
ek_status ek__product_backward(const ek_formula *linear, ek_pass *pass, const ek_tensor *dy,
                               ek_tensor *dx, bool bias_done);

#endif /* EK_PRODUCT_H */
