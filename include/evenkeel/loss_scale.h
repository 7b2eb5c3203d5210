/*
 * loss_scale.h - what a gradient is multiplied with on its way back, so that small numbers of a
 * 16-bit type do not become 0.
 *
 * The gradient of the loss is multiplied with the scale where backward begins, and the update
 * divides by it. All scales are powers of two: unless something over- or underflows on the way,
 * that changes no bit of a training. Where it overflows, the gradient's norm is not finite, and the
 * step is skipped (data_parallel_optimizer.h): with a dynamic scale a smaller one is tried in the
 * next step, and a larger one after many good steps (Micikevicius et al. 2018;
 * torch.amp.GradScaler).
 *
 *     ek_loss_scale loss_scale = EK_LOSS_SCALE_INIT;   // dynamic, from 65536 on
 *     loss_scale.scale = 4096;
 *     optimizer_options.loss_scale = &loss_scale;      // ek_data_parallel_optimizer_options
 *
 * A scale counts from the gradient of the mean, as in a program that divides by D first. The
 * gradient on its way is that of the sum of the losses, which the update divides by D
 * (data_parallel_criterion.h), and D is not known before all targets are. So what the gradient is
 * multiplied with is the scale over the least power of two that is not below the number of targets
 * (elements, ignored ones too) in the first micro-batch of the step, on all devices together: a
 * number that every device knows, and that rounds nothing. Of a loss that is not divided
 * (reductions `sum` and `none`) it is the scale itself, as for gradients that a program makes
 * itself.
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

/* EK_ERR_INVALID_ARGUMENT with the member that is not as above; others than its kind needs are not
 * looked at. */
EK_API EK_CHECKED ek_status ek_loss_scale_check(const ek_loss_scale *rule);

/* What a run has made of a rule: state.h reads and writes it. */
typedef struct ek_loss_scale_state {
  double scale;
  int64_t good_steps; /* in a row, since the scale changed */
} ek_loss_scale_state;

/* With which a run begins: the scale of the rule (1 for none), no good steps. NULL as none. */
EK_API ek_loss_scale_state ek_loss_scale_begin(const ek_loss_scale *rule);
/* What follows a step; the same again unless the rule is dynamic. */
EK_API ek_loss_scale_state ek_loss_scale_next(const ek_loss_scale *rule, ek_loss_scale_state state,
                                              bool overflow);

EK_END_DECLARATIONS

#endif /* EVENKEEL_LOSS_SCALE_H */
