/*
 * updates.h - optimizer updates over flat ranges, and the sums they need.
 *
 * The gradient in memory is the plain sum over everything since the last step. Its factor is on the
 * device too, so that the host does not wait in the middle of a step:
 *     g = gradient * (totals ? (d == 0 ? 0 : 1 / d) : 1) * clip
 *     clip = 1 if clip_norm is 0, else min(1, clip_norm / (norm + 1e-6)),
 *     norm = sqrt(square_norm) * (totals ? 1 / |d| : 1)           (torch.nn.utils.clip_grad_norm_)
 *
 * See op.h for the rules that hold for all operations.
 */
#ifndef EVENKEEL_UPDATES_H
#define EVENKEEL_UPDATES_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_update_scale {
  const ek_tensor *totals;      /* f64 {s, d} on the device; NULL: do not divide. d is the weight of
                                 * the losses, a loss scale, or the product of both */
  const ek_tensor *square_norm; /* f64, the sum of squares of the whole gradient; NULL if no clip */
  double clip_norm;             /* 0: no clipping */
  ek_tensor *copy;              /* gets the new parameters in its type; NULL: no copy */
} ek_update_scale;

typedef struct ek_sgd_terms {
  double learning_rate, momentum, dampening, weight_decay;
  bool nesterov;
  bool first; /* the first step: the momentum buffer becomes g and is not read */
} ek_sgd_terms;

/*
 * g += weight_decay * p;  b = first ? g : momentum * b + (1 - dampening) * g;
 * p -= learning_rate * (nesterov ? g + momentum * b : b)            (torch.optim.SGD)
 * momentum_buffer NULL or momentum 0: p -= learning_rate * g. All tensors have equal counts.
 */
EK_API EK_CHECKED ek_status ek_op_sgd(ek_stream *stream, ek_tensor *parameters,
                                      ek_tensor *momentum_buffer, const ek_tensor *gradients,
                                      const ek_sgd_terms *terms, const ek_update_scale *scale);

typedef struct ek_adamw_terms {
  double learning_rate, beta1, beta2, epsilon, weight_decay;
  bool decoupled; /* true: AdamW, p -= lr * wd * p; false: Adam, g += wd * p */
  int64_t step;   /* 1 for the first step, for the bias corrections */
} ek_adamw_terms;

/*
 * m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
 * p -= learning_rate / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)
 * (Kingma and Ba 2015; Loshchilov and Hutter 2019; torch.optim.AdamW). At step 1 m and v are taken
 * as zero and are not read.
 */
EK_API EK_CHECKED ek_status ek_op_adamw(ek_stream *stream, ek_tensor *parameters, ek_tensor *m,
                                        ek_tensor *v, const ek_tensor *gradients,
                                        const ek_adamw_terms *terms, const ek_update_scale *scale);

/* result[0] = beta * result[0] + sum of x^2, in f64; result is one f64. */
EK_API EK_CHECKED ek_status ek_op_square_norm(ek_stream *stream, ek_tensor *result,
                                              const ek_tensor *x, double beta);

EK_END_DECLARATIONS

#endif /* EVENKEEL_UPDATES_H */
