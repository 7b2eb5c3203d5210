/*
 * ck_makes.h - functions that make a module, a rule or a criterion with some options.
 *
 *     CK_SGD(half_sgd, .learning_rate = 0.5)
 *     CK_ENTROPY(smoothed, .label_smoothing = 0.2)
 *     CK_GPT(small_gpt, ck_gpt_sizes(50, 6, 16, 3, 2), .dropout = 0.1)
 *
 * The first is half_sgd(ek_optimizer **optimizer), and so on. Members are as in ck_assign().
 */
#ifndef CK_MAKES_H
#define CK_MAKES_H

#include "ck_assign.h"

/* Makes the module of the call, with options `o`, which are `init` with these members. */
#define CK_CREATE_WITH(create, type, init, call, ...)                                              \
  static ek_status create(ek_module **module) {                                                    \
    type o = init;                                                                                 \
    ck_assign(o, __VA_ARGS__);                                                                     \
    return call;                                                                                   \
  }
#define CK_GPT(create, init, ...)                                                                  \
  CK_CREATE_WITH(create, ek_gpt_options, init, ek_gpt_create(module, &o), __VA_ARGS__)

/* A rule with the defaults apart from these members. */
#define CK_SGD(create, ...)                                                                        \
  static ek_status create(ek_optimizer **optimizer) {                                              \
    CK_WITH(ek_sgd_options, o, EK_SGD_OPTIONS_INIT, __VA_ARGS__);                                  \
    return ek_sgd_create(optimizer, &o);                                                           \
  }
#define CK_ADAMW(create, ...)                                                                      \
  static ek_status create(ek_optimizer **optimizer) {                                              \
    CK_WITH(ek_adamw_options, o, EK_ADAMW_OPTIONS_INIT, __VA_ARGS__);                              \
    return ek_adamw_create(optimizer, &o);                                                         \
  }

/* A cross-entropy of a workload, whose reduction is the function's argument. */
#define CK_ENTROPY(create, ...)                                                                    \
  static ek_status create(ek_criterion **criterion, ek_reduction reduction) {                      \
    CK_WITH(ek_cross_entropy_options, o, EK_CROSS_ENTROPY_OPTIONS_INIT, .reduction = reduction);   \
    ck_assign(o, __VA_ARGS__);                                                                     \
    return ek_cross_entropy_create(criterion, &o);                                                 \
  }

#endif /* CK_MAKES_H */
