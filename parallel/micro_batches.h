/*
 * micro_batches.h - one micro-batch, for a trainer.
 */
#ifndef EK_MICRO_BATCHES_H
#define EK_MICRO_BATCHES_H

#include <evenkeel/data_parallel_criterion.h>

/* A batch: loans. Bit i of `broadcast`: input i is not cut. */
struct ek__batch {
  const ek_tensor *inputs, *targets;
  size_t input_count, target_count;
  uint64_t broadcast;
};

/* The first module of the model whose results of a sample depend on the others of its micro-batch
 * (`mixes_samples` of its table), or NULL. */
const ek_module *ek__model_mixer(const ek_data_parallel_model *model);

/*
 * Forward and loss of a batch, or of a part of one as `module` takes it; with gradient also their
 * backward, `accumulate` if others of the step follow. norm: the update follows and needs the norm
 * of the gradient. This is one job of the workers unless a rank needs more from another in between
 * than the sum of {s, D}. On failure the step is dropped, unless the arguments were wrong.
 */
ek_status ek__batch_run(ek_data_parallel_model *model, ek_data_parallel_criterion *criterion,
                        const struct ek__batch *batch, const ek_forward_options *options,
                        bool accumulate, bool norm);

#endif /* EK_MICRO_BATCHES_H */
