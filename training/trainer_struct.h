/*
 * trainer_struct.h - what a trainer has; for trainer.c and trainer_predict.c.
 */
#ifndef EK_TRAINER_STRUCT_H
#define EK_TRAINER_STRUCT_H

#include <evenkeel/trainer.h>

#include "core/owner.h"
#include "parallel/forward.h"

struct ek_trainer {
  struct ek__owner owner;
  ek_group *group;
  bool owns_group;
  const ek_module *module; /* the model's */
  size_t output_count;
  int64_t micro_batches;
  size_t grains; /* the model's `reproducible` */
  uint64_t broadcast_inputs;
  ek_data_parallel_model *model;
  ek_data_parallel_criterion *criterion;
  ek_data_parallel_optimizer *optimizer;
  ek_checkpoint_write *write; /* of a state, in the background */
};

/* Checks that the trainer has the parts for a step, or for an evaluation. */
ek_status ek__trainer_check_parts(const char *who, const ek_trainer *trainer, bool updates);
/* Checks that it is open, and that a call was given tensors. */
ek_status ek__trainer_check_call(const char *who, const ek_trainer *trainer,
                                 const ek_tensor *inputs, const ek_tensor *targets,
                                 size_t target_count);

/* The batch of a step or an evaluation; `all` has room for the inputs. */
struct ek__batch ek__trainer_batch(ek_tensor all[EK_MAX_INPUTS], const ek_trainer *self,
                                   const ek_tensor *inputs, size_t input_count,
                                   const ek_tensor *targets, size_t target_count);
/* The number of parts that a batch is cut into; *samples is set if there are several. All processes
 * take the same number of parts, some of them without samples. */
ek_status ek__trainer_count_parts(int64_t *count, int64_t *samples, const ek_trainer *self,
                                  const struct ek__batch *batch);

#endif /* EK_TRAINER_STRUCT_H */
