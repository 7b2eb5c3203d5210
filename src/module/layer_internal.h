/*
 * layer_internal.h - what every stock layer begins with: the description, and checks of an input.
 *
 * This and what stock layers share besides (product.h, composite.h) is written
 * against the public headers alone: a layer of a program's own could do the same.
 */
#ifndef EK_LAYER_INTERNAL_H
#define EK_LAYER_INTERNAL_H

#include <evenkeel/activation_list.h>
#include <evenkeel/module.h>
#include <evenkeel/pass.h>

/*
 * *module becomes a copy of a description of `size` bytes, whose first member is a base that this
 * call fills, with one reference.
 */
ek_status ek__layer_create(ek_module **module, const void *description, size_t size,
                           const ek_module_ops *ops, size_t inputs, size_t outputs);

/* The slots of every layer's table; the others follow it. */
#define EK__LAYER(kind_, forward_, backward_, free_)                                               \
  .size = sizeof(ek_module_ops), .kind = (kind_), .forward = (forward_), .backward = (backward_),  \
  .free = (free_), .types = EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 | EK_TYPES_F16

/* The `free` slot of a layer without children. */
void ek__layer_free(ek_module *self);

/*
 * EK_ERR_TYPE unless `input` is of the pass's type, EK_ERR_SHAPE unless its last dimension is
 * `columns` (< 0: any) and there is a dimension at all.
 */
ek_status ek__layer_check(const ek_pass *pass, const ek_tensor *input, int64_t columns);

/* EK_ERR_TYPE unless `segments` are i32, EK_ERR_SHAPE unless they have the samples and tokens of x,
 * its first two dimensions. */
ek_status ek__layer_check_segments(const ek_tensor *segments, const ek_tensor *x);

/* Takes the tensors that forward saved, the last first; the array is in the order of saving. The
 * caller frees all of them. A failure leaves none. */
ek_status ek__layer_take(ek_tensor *tensors, ek_pass *pass, size_t count);
void ek__free_all(ek_tensor *tensors, size_t count);
/* Moves references: `from` becomes zeros. */
void ek__move_all(ek_tensor *to, ek_tensor *from, size_t count);

/* An activation, which saves one tensor if `save` is true, and the way back through it, where dx
 * may be NULL. In activation.c. */
ek_status ek__activation_forward(ek_pass *pass, ek_activation kind, const ek_tensor *x,
                                 ek_tensor *y, bool save);
ek_status ek__activation_backward(ek_pass *pass, ek_activation kind, const ek_tensor *dy,
                                  ek_tensor *dx);
/* x becomes its activation: in place if the caller alone holds it, else a new tensor. */
ek_status ek__activate(ek_pass *pass, ek_activation kind, ek_tensor *x);

/*
 * As a layer norm of this formula, which the caller is or has entered. With a residual (not NULL)
 * sum += residual first: in place if the caller is the only holder of `sum`, else into a new
 * tensor that replaces it. y = the layer norm of sum. In layer_norm.c.
 */
ek_status ek__norm_forward(const ek_formula *norm, ek_pass *pass, ek_tensor *sum,
                           const ek_tensor *residual, ek_tensor *y);

/* The same with a residual, and the sum always over x, which is a loan. */
ek_status ek__norm_forward_over(const ek_formula *norm, ek_pass *pass, ek_tensor *x,
                                const ek_tensor *residual, ek_tensor *y);

/* dx, if it is not NULL, becomes a new tensor and includes residual, if that is not NULL. */
ek_status ek__norm_backward(const ek_formula *norm, ek_pass *pass, const ek_tensor *dy,
                            const ek_tensor *residual, ek_tensor *dx);

/* Charges the result of a model to `outputs`, unless it is only an input under another name. */
ek_status ek__charge_outputs(ek_tensor *outputs, size_t count, const ek_tensor *inputs,
                             size_t input_count);

/* A new tensor of the shape of `like` and of the pass's type. */
ek_status ek__layer_result(ek_tensor *tensor, ek_pass *pass, const ek_tensor *like);

#endif /* EK_LAYER_INTERNAL_H */
