/*
 * residual_norm.h - sums with a residual connection, alone and in one go with a layer norm.
 */
#ifndef EK_RESIDUAL_NORM_H
#define EK_RESIDUAL_NORM_H

#include <evenkeel/pass.h>

/*
 * sum += x, in place if the caller is the only one who holds `sum`, else into a new tensor that
 * replaces it: it may have been saved, or it may be x itself. In residual.c.
 */
ek_status ek__residual_add(ek_pass *pass, ek_tensor *sum, const ek_tensor *x);

/*
 * As a layer norm, which the caller is or has entered. sum += residual as above, and y = the layer
 * norm of sum. Without a residual (NULL) sum stays as it is. In layer_norm.c.
 */
ek_status ek__layer_norm_forward(ek_pass *pass, double epsilon, ek_tensor *sum,
                                 const ek_tensor *residual, ek_tensor *y);

/* dx, if it is not NULL, becomes a new tensor and includes residual. */
ek_status ek__layer_norm_backward(ek_pass *pass, const ek_tensor *dy, const ek_tensor *residual,
                                  ek_tensor *dx);

#endif /* EK_RESIDUAL_NORM_H */
