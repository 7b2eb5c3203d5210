/*
 * ck_assign.h - a value that is another one apart from some members, and functions that make a
 * module, a rule or a criterion with such options: half_sgd(ek_optimizer **optimizer), and so on.
 *
 *     CK_WITH(ek_gpt_options, options, EK_GPT_OPTIONS_INIT, .width = 8, .layers = 2);
 *     ck_assign(setup.options, .precision = EK_PRECISION_BF16, .seed = 5);
 *     CK_SGD(half_sgd, .learning_rate = 0.5)
 *     CK_ENTROPY(smoothed, .label_smoothing = 0.2)
 *     CK_GPT(small_gpt, ck_gpt_sizes(50, 6, 16, 3, 2), .dropout = 0.1)
 *
 * Twelve members at the most, and no value with a comma outside of parentheses.
 */
#ifndef CK_ASSIGN_H
#define CK_ASSIGN_H

/* Declares a variable: what `start` is, with these members. */
#define CK_WITH(type, name, start, ...)                                                            \
  type name = start;                                                                               \
  ck_assign(name, __VA_ARGS__)

/* Sets members of a struct, from left to right. */
#define ck_assign(thing, ...)                                                                      \
  do {                                                                                             \
    CK_ASSIGN_N(__VA_ARGS__, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)(thing, __VA_ARGS__)         \
  } while (0)

#define CK_ASSIGN_N(a, b, c, d, e, f, g, h, i, j, k, l, count, ...) CK_ASSIGN_##count
#define CK_ASSIGN_1(thing, member) thing member;
#define CK_ASSIGN_2(thing, member, ...) thing member; CK_ASSIGN_1(thing, __VA_ARGS__)
#define CK_ASSIGN_3(thing, member, ...) thing member; CK_ASSIGN_2(thing, __VA_ARGS__)
#define CK_ASSIGN_4(thing, member, ...) thing member; CK_ASSIGN_3(thing, __VA_ARGS__)
#define CK_ASSIGN_5(thing, member, ...) thing member; CK_ASSIGN_4(thing, __VA_ARGS__)
#define CK_ASSIGN_6(thing, member, ...) thing member; CK_ASSIGN_5(thing, __VA_ARGS__)
#define CK_ASSIGN_7(thing, member, ...) thing member; CK_ASSIGN_6(thing, __VA_ARGS__)
#define CK_ASSIGN_8(thing, member, ...) thing member; CK_ASSIGN_7(thing, __VA_ARGS__)
#define CK_ASSIGN_9(thing, member, ...) thing member; CK_ASSIGN_8(thing, __VA_ARGS__)
#define CK_ASSIGN_10(thing, member, ...) thing member; CK_ASSIGN_9(thing, __VA_ARGS__)
#define CK_ASSIGN_11(thing, member, ...) thing member; CK_ASSIGN_10(thing, __VA_ARGS__)
#define CK_ASSIGN_12(thing, member, ...) thing member; CK_ASSIGN_11(thing, __VA_ARGS__)

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

#endif /* CK_ASSIGN_H */
