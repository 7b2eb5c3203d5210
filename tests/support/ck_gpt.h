/*
 * ck_gpt.h - the forward of gpt.h once more, in plain loops over doubles, straight from its
 * formulas; and options and tokens for one.
 */
#ifndef CK_GPT_H
#define CK_GPT_H

#include "ek_check.h"

/*
 * logits [samples, tokens, vocabulary] of an f64 replica of a gpt without dropout; `index` holds
 * whole numbers.
 */
void ck_gpt_forward(double *logits, const ek_replica *replica, const ek_gpt_options *options,
                    const double *index, int64_t samples, int64_t tokens);

/* The options with these sizes, in the order of the struct, and all else as it is by default. */
ek_gpt_options ck_gpt_sizes(int64_t vocabulary, int64_t sequence, int64_t width, int layers,
                            int heads);

/* Tokens below `vocabulary` and targets below `classes`, drawn from stream `number`; some targets
 * are -1, for a loss that ignores them. */
void ck_gpt_tokens(int32_t *x, int32_t *y, int64_t count, int64_t vocabulary, int64_t classes,
                   uint64_t number);

#endif /* CK_GPT_H */
