/*
 * adamw.h - AdamW, and Adam (updates.h has the formula; torch.optim.AdamW and Adam).
 */
#ifndef EVENKEEL_ADAMW_H
#define EVENKEEL_ADAMW_H

#include <evenkeel/optimizer.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_adamw_options {
  size_t size;
  double learning_rate; /* >= 0 */
  double beta1, beta2;  /* 0 <= beta < 1 */
  double epsilon;       /* > 0 */
  double weight_decay;  /* >= 0; not of parameters declared no_decay (module.h): biases, norms */
  bool coupled;         /* true: Adam, the decay is added to the gradient */
  double clip_norm;     /* 0: no clipping */
} ek_adamw_options;
#define EK_ADAMW_OPTIONS_INIT                                                                      \
  {                                                                                                \
    .size = sizeof(ek_adamw_options), .learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999,         \
    .epsilon = 1e-8, .weight_decay = 0.01, .coupled = false, .clip_norm = 0.0                      \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_adamw_options_init(ek_adamw_options *options, size_t size);

/* `options` NULL gives the defaults. EK_ERR_INVALID_ARGUMENT for values outside the ranges. */
EK_API EK_CHECKED ek_status ek_adamw_create(ek_optimizer **optimizer,
                                            const ek_adamw_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_ADAMW_H */
