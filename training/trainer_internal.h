/*
 * trainer_internal.h - how a trainer cuts a batch, for what reads batches for it (data_loader.c).
 */
#ifndef EK_TRAINER_INTERNAL_H
#define EK_TRAINER_INTERNAL_H

#include <evenkeel/trainer.h>

/* The rows of a batch that belong to this process: those of every micro-batch in turn. */
struct ek__trainer_cut {
  const ek_group *group; /* NULL: all rows belong to it */
  int64_t micro_batches; /* at least 1 */
  size_t grains;         /* of a reproducible model, or 0 */
};

struct ek__trainer_cut ek__trainer_cut(const ek_trainer *trainer);

#endif /* EK_TRAINER_INTERNAL_H */
