/*
 * sgd.h - stochastic gradient descent with momentum (updates.h has the formula; torch.optim.SGD).
 */
#ifndef EVENKEEL_SGD_H
#define EVENKEEL_SGD_H

#include <evenkeel/optimizer.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_sgd_options {
  size_t size;
  double learning_rate; /* >= 0 */
  double momentum;      /* >= 0; 0: no state */
  double dampening;
  double weight_decay; /* >= 0; not of parameters declared no_decay (module.h): biases, norms */
  bool nesterov;       /* needs momentum > 0 and dampening 0 */
  double clip_norm;    /* 0: no clipping */
} ek_sgd_options;
#define EK_SGD_OPTIONS_INIT                                                                        \
  {                                                                                                \
    .size = sizeof(ek_sgd_options), .learning_rate = 0.01, .momentum = 0.0, .dampening = 0.0,      \
    .weight_decay = 0.0, .nesterov = false, .clip_norm = 0.0                                       \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_sgd_options_init(ek_sgd_options *options, size_t size);

/* `options` NULL gives the defaults. EK_ERR_INVALID_ARGUMENT for values outside the ranges. */
EK_API EK_CHECKED ek_status ek_sgd_create(ek_optimizer **optimizer, const ek_sgd_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_SGD_H */
