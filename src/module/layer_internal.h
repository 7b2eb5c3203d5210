/*
 * layer_internal.h - what the stock layers share: allocation of the description, checks of an
 * input, and running children one after the other. It is written against the public headers alone,
 * so that a layer of a program's own could do the same.
 */
#ifndef EK_LAYER_INTERNAL_H
#define EK_LAYER_INTERNAL_H

#include <evenkeel/module.h>
#include <evenkeel/pass.h>

/*
 * A description of `size` bytes, zeroed but for its base, with one reference; or NULL and why in
 * *status. `module` is where the caller will put it: NULL is EK_ERR_INVALID_ARGUMENT.
 */
void *ek__layer_create(ek_status *status, ek_module *const *module, size_t size,
                       const ek_module_ops *ops, size_t inputs, size_t outputs);

/* The `free` slot of a layer without children. */
void ek__layer_free(ek_module *self);

/*
 * EK_ERR_TYPE unless `input` is of the pass's type, EK_ERR_SHAPE unless its last dimension is
 * `columns` (< 0: any) and there is a dimension at all.
 */
ek_status ek__layer_check(const ek_pass *pass, const ek_tensor *input, int64_t columns);

/* A new tensor of the shape of `like` and of the pass's type. */
ek_status ek__layer_result(ek_tensor *tensor, ek_pass *pass, const ek_tensor *like);

/* ---- chain.c ---- */

/*
 * Runs children first .. first + count - 1, which are `modules`, each with the outputs of the one
 * before; count > 0. A result between two of them is freed as soon as the second has run.
 */
ek_status ek__chain_forward(ek_pass *pass, size_t first, ek_module *const *modules, size_t count,
                            const ek_tensor *inputs, ek_tensor *outputs);

/* The backward of the above; grad_inputs as in the module table. */
ek_status ek__chain_backward(ek_pass *pass, size_t first, ek_module *const *modules, size_t count,
                             const ek_tensor *grad_outputs, ek_tensor *grad_inputs);

/* ---- linear.c, activation.c: what a chain does in one go ---- */

bool ek__is_gelu(const ek_module *module);
bool ek__is_linear(const ek_module *module);
bool ek__linear_has_bias(const ek_module *module);
enum { EK__LINEAR_WEIGHT, EK__LINEAR_BIAS }; /* its parameters */

/* These run as the linear `self`, which the caller has entered. */

/* y = GELU(x W^T + b). Saves what the linear would, and then what GELU would. */
ek_status ek__linear_gelu_forward(const ek_module *self, ek_pass *pass, const ek_tensor *x,
                                  ek_tensor *y);

/* Takes x, adds to the gradients and says that they are complete. bias_done: the bias has its. */
ek_status ek__linear_gradients(const ek_module *self, ek_pass *pass, const ek_tensor *dy,
                               bool bias_done);

/* The same, and then dx, if it is not NULL. */
ek_status ek__linear_backward(const ek_module *self, ek_pass *pass, const ek_tensor *dy,
                              ek_tensor *dx, bool bias_done);

/*
 * sum += x, in place if the caller is the only one who holds `sum`, else into a new tensor that
 * replaces it: somebody may have saved it, or it may be x itself.
 */
ek_status ek__residual_add(ek_pass *pass, ek_tensor *sum, const ek_tensor *x);

/* ---- layer_norm.c: these run as the layer norm `self`, which the caller has entered ---- */

/*
 * sum += residual as ek__residual_add() does, and y = the layer norm of sum. Without a residual
 * (NULL) sum stays as it is. Saves what the module's forward would.
 */
ek_status ek__layer_norm_forward(const ek_module *self, ek_pass *pass, ek_tensor *sum,
                                 const ek_tensor *residual, ek_tensor *y);

/* The module's backward; dx, if it is not NULL, becomes a new tensor and includes residual. */
ek_status ek__layer_norm_backward(const ek_module *self, ek_pass *pass, const ek_tensor *dy,
                                  const ek_tensor *residual, ek_tensor *dx);

#endif /* EK_LAYER_INTERNAL_H */
