/*
 * ck_gpt.h - the forward of gpt.h and llama.h once more, in plain loops over doubles, straight from
 * their formulas; and options and tokens for a GPT.
 */
#ifndef CK_GPT_H
#define CK_GPT_H

#include "ek_check.h"

/* A decoder of GPT-2's shape, or of Llama's, which has rotary positions. */
struct ck_decoder {
  int64_t vocabulary, width, hidden;
  int layers, heads, kv_heads;
  double theta; /* of Llama's positions; 0: GPT-2's shape */
};

/* logits [samples, tokens, vocabulary] of an f64 replica without dropout, which are kept; `index`
 * holds whole numbers. */
double *ck_decoder_logits(const struct ck_decoder *is, const ek_replica *replica,
                          const double *index, int64_t samples, int64_t tokens);

/* The options with these sizes, in the order of the struct, and all else as it is by default. */
ek_gpt_options ck_gpt_sizes(int64_t vocabulary, int64_t sequence, int64_t width, int layers,
                            int heads);

/* Tokens below `vocabulary` and targets below `classes`, drawn from stream `number`; some targets
 * are -1, for a loss that ignores them. The arrays are kept. */
struct ck_gpt_batch {
  int32_t *x, *y;
  ek_tensor input, target; /* [samples, sequence] of them */
};
struct ck_gpt_batch ck_gpt_batch(int64_t samples, int64_t sequence, int64_t vocabulary,
                                 int64_t classes, uint64_t number);

#endif /* CK_GPT_H */
