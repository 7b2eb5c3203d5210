/*
 * loss_scale.h - a factor of the gradient during backward, so that small numbers of a 16-bit type
 * do not become 0.
 *
 * The gradient of the loss is multiplied with the scale where backward begins, and the update
 * divides by it. All scales are powers of two, so the result has the same bits unless a number
 * overflows or underflows on the way. After an overflow the gradient's norm is not finite, and the
 * step is skipped (data_parallel_optimizer.h). A dynamic scale is then made smaller for the next
 * step, and larger again after many good steps (Micikevicius et al. 2018; torch.amp.GradScaler).
 *
 *     ek_loss_scale loss_scale = EK_LOSS_SCALE_INIT;   // dynamic, from 65536 on
 *     loss_scale.scale = 4096;
 *     optimizer_options.loss_scale = &loss_scale;      // ek_data_parallel_optimizer_options
 *
 * A scale refers to the gradient of the mean, as in a program that divides by D first. Backward
 * computes the gradient of the sum of the losses, which the update divides by D
 * (data_parallel_criterion.h), because D is known only after all targets. So backward multiplies by
 * the scale divided by the least power of two that is not below the number of targets (elements,
 * including ignored ones) in the first micro-batch of the step, on all devices together. Every
 * device knows that number, and it rounds nothing. A loss that is not divided (reductions `sum` and
 * `none`), and gradients that a program makes itself, are multiplied by the scale itself.
 */
#ifndef EVENKEEL_LOSS_SCALE_H
#define EVENKEEL_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include <evenkeel/status.h>

EK_BEGIN_DECLARATIONS

typedef enum ek_loss_scale_kind {
  EK_LOSS_SCALE_NONE = 0,   /* nothing is scaled, and no step is skipped */
  EK_LOSS_SCALE_STATIC = 1, /* always the same */
  EK_LOSS_SCALE_DYNAMIC = 2
} ek_loss_scale_kind;

/* A scale is a power of two within these bounds, at which a dynamic one stays. */
#define EK_LOSS_SCALE_LEAST 5.421010862427522e-20 /* 2^-64 */
#define EK_LOSS_SCALE_MOST 18446744073709551616.0 /* 2^64 */

typedef struct ek_loss_scale {
  ek_loss_scale_kind kind;
  double scale; /* static: this one; dynamic: the first */
  /* Of a dynamic one. Powers of two. */
  double growth;    /* at least 1: the factor after `interval` good steps in a row */
  double backoff;   /* at most 1: the factor after a step that overflowed */
  int64_t interval; /* at least 1 */
} ek_loss_scale;
#define EK_LOSS_SCALE_INIT                                                                         \
  { .kind = EK_LOSS_SCALE_DYNAMIC, .scale = 65536, .growth = 2, .backoff = 0.5, .interval = 2000 }
/* The same values, by a function, for languages without the macro. */
EK_API void ek_loss_scale_init(ek_loss_scale *rule);

/* EK_ERR_INVALID_ARGUMENT names the member that is out of range; members that the kind does not use
 * are ignored. */
EK_API EK_CHECKED ek_status ek_loss_scale_check(const ek_loss_scale *rule);

/* The state of a scale in a run: state.h reads and writes it. */
typedef struct ek_loss_scale_state {
  double scale;
  int64_t good_steps; /* in a row, since the scale changed */
} ek_loss_scale_state;

/* The state at the beginning of a run: the scale of the rule (1 for none), no good steps. NULL: as
 * none. */
EK_API ek_loss_scale_state ek_loss_scale_begin(const ek_loss_scale *rule);
/* The state after a step; unchanged unless the rule is dynamic. */
EK_API ek_loss_scale_state ek_loss_scale_next(const ek_loss_scale *rule, ek_loss_scale_state state,
                                              bool overflow);

EK_END_DECLARATIONS

#endif /* EVENKEEL_LOSS_SCALE_H */
