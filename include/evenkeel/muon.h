/*
 * muon.h - Muon: momentum whose direction is made orthogonal, for hidden matrices (Jordan et al.
 * 2024; torch.optim.Muon). Its state is half of AdamW's.
 *
 *     status = ek_adamw_create(&adamw, &adamw_options);     // embeddings, head, norms, biases
 *     if (status == EK_OK) status = ek_muon_create(&rule, adamw, NULL);
 *     ek_optimizer_free(adamw);                             // `rule` keeps a reference
 *
 * For a matrix p [rows, columns] with gradient g (divided and clipped as updates.h says)
 *     m = m + (1 - momentum) (g - m)                        m = 0 before the first step
 *     u = nesterov ? g + momentum (m - g) : m
 *     x = u / max(|u|, epsilon)                             |u|: the root of the sum of squares
 *     x = a x + (b s + c s s) x,  s = x x^T                 `iterations` times (Newton-Schulz)
 *     p = p - rate * weight_decay * p - rate * factor * x
 *     factor = sqrt(max(1, rows / columns))                 EK_MUON_ORIGINAL
 *            = 0.2 sqrt(max(rows, columns))                 EK_MUON_MATCH_RMS_ADAMW
 * The second factor gives updates the size of AdamW's, so that its rate and decay can be taken over
 * (Liu et al. 2025). Of a matrix with more rows than columns the transpose is iterated, with the
 * same result. All of it is computed in the type of the parameters, in every precision of a model:
 * torch.optim.Muon iterates in bf16.
 *
 * Muon is for parameters with two dimensions that modules have not declared `elementwise`
 * (ek_parameter_options): the stock embeddings, heads of the stock models and
 * ek_linear_cross_entropy are so declared, any other parameter by a pattern (ek_parameter_pattern,
 * `.elementwise = true`), such as the last layer of a classifier. The other rule updates all the
 * rest. A schedule is that of Muon's rate; the rate of the other rule follows it in the proportion
 * of the two rules' own rates. A fused matrix is one matrix, as it is for torch: query, key and
 * value of ek_attention are made orthogonal together; the three linears of ek_swiglu are matrices
 * of their own.
 *
 * One device updates the whole of a matrix (optimizer.h). The modes that shard cut between
 * matrices: the largest matrix bounds what one device can have more than another, and a model with
 * fewer matrices than devices leaves some without any. In mode replicated every device makes all
 * matrices orthogonal.
 *
 * States: "muon/momentum/NAME" for matrices, "muon/STATE/NAME" for the other rule's states. Each
 * device has a workspace for the largest matrix that it updates: 2 rows columns +
 * 2 min(rows, columns)^2 elements, and a few.
 */
#ifndef EVENKEEL_MUON_H
#define EVENKEEL_MUON_H

#include <evenkeel/optimizer.h>

EK_BEGIN_DECLARATIONS

typedef enum ek_muon_factor {
  EK_MUON_ORIGINAL = 0,
  EK_MUON_MATCH_RMS_ADAMW = 1
} ek_muon_factor;

typedef struct ek_muon_options {
  size_t size;
  double learning_rate; /* > 0 */
  double momentum;      /* 0 <= momentum < 1 */
  bool nesterov;
  double weight_decay;    /* >= 0, decoupled */
  double coefficients[3]; /* a, b, c; finite */
  int iterations;         /* 1 to 99 */
  double epsilon;         /* > 0 */
  ek_muon_factor factor;
  double clip_norm; /* of the whole gradient, that of the other rule's parameters included; 0: no
                     * clipping */
} ek_muon_options;
#define EK_MUON_OPTIONS_INIT                                                                       \
  {                                                                                                \
    .size = sizeof(ek_muon_options), .learning_rate = 1e-3, .momentum = 0.95, .nesterov = true,    \
    .weight_decay = 0.1, .coefficients = {3.4445, -4.7750, 2.0315}, .iterations = 5,               \
    .epsilon = 1e-7, .factor = EK_MUON_ORIGINAL, .clip_norm = 0.0                                  \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_muon_options_init(ek_muon_options *options, size_t size);

/*
 * `elementwise`: the rule for the rest, which is shared; `options` NULL gives the defaults.
 * EK_ERR_INVALID_ARGUMENT for values outside the ranges, and for another rule that clips, that
 * takes parameters whole itself, or that has EK_MAX_OPTIMIZER_STATES states. To average the
 * weights, put ek_averaged_create() around Muon, not around the other rule.
 */
EK_API EK_CHECKED ek_status ek_muon_create(ek_optimizer **optimizer, ek_optimizer *elementwise,
                                           const ek_muon_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_MUON_H */
