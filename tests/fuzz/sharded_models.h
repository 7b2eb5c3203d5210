/*
 * sharded_models.h - random small models over tokens, whose parameters are tied, frozen and
 * recomputed in many ways, with losses outside and within them.
 */
#ifndef SHARDED_MODELS_H
#define SHARDED_MODELS_H

#include "fuzz_training.h"

enum { SHARDED_MOST_ROWS = 6, SHARDED_SEQUENCE = 2, SHARDED_VOCABULARY = 5 };

struct sharded_model {
  bool own_loss; /* targets are inputs, and there is no criterion */
};

/* The same input makes the same model. *criterion is NULL for a model with its own loss. A failure
 * leaves nothing. */
ek_status sharded_model(ek_module **module, ek_criterion **criterion, struct sharded_model *about,
                        struct fuzz_input *input);

struct sharded_memory {
  int32_t tokens[SHARDED_MOST_ROWS * SHARDED_SEQUENCE],
      targets[SHARDED_MOST_ROWS * SHARDED_SEQUENCE];
};

/* Tokens and targets that follow from `number`. */
void sharded_batch(struct fuzz_batch *batch, struct sharded_memory *memory,
                   const struct sharded_model *about, int64_t rows, size_t number);

#endif /* SHARDED_MODELS_H */
