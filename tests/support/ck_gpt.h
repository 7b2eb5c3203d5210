/*
 * ck_gpt.h - the forward of gpt.h once more, in plain loops over doubles, straight from its
 * formulas.
 */
#ifndef CK_GPT_H
#define CK_GPT_H

#include <evenkeel/gpt.h>
#include <evenkeel/replica.h>

/*
 * logits [samples, tokens, vocabulary] of an f64 replica of a gpt without dropout; `index` holds
 * whole numbers.
 */
void ck_gpt_forward(double *logits, const ek_replica *replica, const ek_gpt_options *options,
                    const double *index, int64_t samples, int64_t tokens);

#endif /* CK_GPT_H */
