/*
 * layer_internal.h - what every stock layer begins with: the description, and checks of an input.
 *
 * This and what stock layers share besides (product.h, composite.h, residual_norm.h) is written
 * against the public headers alone: a layer of a program's own could do the same.
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

#endif /* EK_LAYER_INTERNAL_H */
