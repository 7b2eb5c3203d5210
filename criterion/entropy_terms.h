/*
 * entropy_terms.h - the options shared by the two criteria of cross-entropy.
 *
 * Written against the public headers alone: a criterion of a program's own could do the same.
 */
#ifndef EK_ENTROPY_TERMS_H
#define EK_ENTROPY_TERMS_H

#include <evenkeel/cross_entropy.h>
#include <evenkeel/losses.h>

/* The options with a copy of the class weights. */
struct ek__entropy {
  int32_t ignore_index;
  double label_smoothing;
  double *weights; /* NULL: all 1 */
  int64_t classes; /* of them, and the columns that count; 0: all columns */
};

/*
 * Reads and checks `options` (NULL: defaults) and copies the weights. On failure nothing is held.
 * `kind` begins messages. `soft` NULL: soft targets are refused.
 */
ek_status ek__entropy_open(struct ek__entropy *entropy, ek_reduction *reduction, bool *soft,
                           const char *kind, const ek_cross_entropy_options *options);
void ek__entropy_close(struct ek__entropy *entropy);

/* Declares the class weights, if there are any, as the module's next buffer. */
ek_status ek__entropy_declare(const struct ek__entropy *entropy, ek_declaration *declaration);

/*
 * Fills what the operations want for logits of `columns` columns. The weights are the module's
 * parameter number `index`, whose tensor is kept in *weights meanwhile.
 */
ek_status ek__entropy_terms(ek_cross_entropy_terms *terms, ek_tensor *weights,
                            const struct ek__entropy *entropy, ek_pass *pass, size_t index,
                            int64_t columns);

#endif /* EK_ENTROPY_TERMS_H */
