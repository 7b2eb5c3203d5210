/*
 * ck_assign.h - a value that is another one apart from some members.
 *
 *     CK_WITH(ek_gpt_options, options, EK_GPT_OPTIONS_INIT, .width = 8, .layers = 2);
 *     ck_assign(setup.options, .precision = EK_PRECISION_BF16, .seed = 5);
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

#endif /* CK_ASSIGN_H */
