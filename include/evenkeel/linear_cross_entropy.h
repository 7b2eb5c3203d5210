/*
 * linear_cross_entropy.h - a linear layer and the cross-entropy of its result, in one: the logits
 * never exist as a whole.
 *
 * With a large vocabulary the logits are by far the largest tensor of a training. This criterion
 * computes them a block of rows at a time: logits = h W^T + b, their losses, their gradient g over
 * them, dh = g W, dW += g^T h, and then the next block in the same memory. Losses and gradients are
 * those of ek_linear with ek_cross_entropy (losses.h has the formula), to the rounding of a sum in
 * another order; docs/numerics.md, docs/memory.md.
 *
 * Inputs: h [..., in], the target i32, one per row. The criterion has parameters, so it must be one
 * module with the model (with_criterion.h):
 *
 *     EK_TRY_GOTO(status, ek_linear_cross_entropy_create(&head, width, classes, NULL), cleanup);
 *     EK_TRY_GOTO(status, ek_with_criterion_create(&whole, body, head), cleanup);
 *     EK_TRY_GOTO(status, ek_trainer_open(&trainer, "cpu:4", whole, NULL, adamw, NULL), cleanup);
 *     EK_TRY_GOTO(status, ek_trainer_step(&result, trainer, &inputs, 1, &targets, 1), cleanup);
 *     EK_TRY_GOTO(status, ek_trainer_predict(&logits, trainer, &inputs, 1), cleanup);   // whole
 *
 * ek_gpt has it as an option (gpt.h).
 *
 * If the scale of the gradient is known in forward (gradient_in_forward, which a trainer sets),
 * forward computes each block's gradients and keeps only dh, over h if h has no other holder.
 * Otherwise (a term of a weighted sum, single losses, a module that is recomputed) it keeps h, and
 * backward computes the logits again: the same memory, and one more product. Without gradient only
 * losses are computed.
 *
 * Parameters: weight [out, in], and bias [out] if there is one; class weights are the buffer
 * class_weights.
 */
#ifndef EVENKEEL_LINEAR_CROSS_ENTROPY_H
#define EVENKEEL_LINEAR_CROSS_ENTROPY_H

#include <evenkeel/cross_entropy.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_linear_cross_entropy_options {
  size_t size;
  const ek_cross_entropy_options *loss; /* copied; NULL: its defaults */
  uint64_t logits_bytes;        /* > 0: a block of logits is not larger, but a row at least */
  bool bias;                    /* the linear has one */
  const ek_initializer *weight; /* copied, except for values; NULL: as ek_linear_create() has it */
  bool frozen;                  /* weight and bias are (ek_parameter_options) */
  bool no_decay;                /* the weight has no weight decay either; the bias never has */
} ek_linear_cross_entropy_options;
#define EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT                                                       \
  {                                                                                                \
    .size = sizeof(ek_linear_cross_entropy_options), .loss = NULL, .logits_bytes = 64u << 20,      \
    .bias = false, .weight = NULL, .frozen = false, .no_decay = false                              \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status
ek_linear_cross_entropy_options_init(ek_linear_cross_entropy_options *options, size_t size);

/* `options` NULL gives the defaults. EK_ERR_INVALID_ARGUMENT for sizes that are not above 0, more
 * classes than `out`, and what ek_cross_entropy_create() refuses. */
EK_API EK_CHECKED ek_status
ek_linear_cross_entropy_create(ek_criterion **criterion, int64_t in, int64_t out,
                               const ek_linear_cross_entropy_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_LINEAR_CROSS_ENTROPY_H */
