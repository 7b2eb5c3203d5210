/*
 * batches.h - parts of a batch that are taken one after the other, and the outputs of a prediction
 * that arrive part by part. A part is a view of rows, so nothing is copied.
 */
#ifndef EK_BATCHES_H
#define EK_BATCHES_H

#include "parallel/forward.h"

/* The batch as `module` takes it. For a module that computes its loss itself, the targets follow
 * the other inputs: `all` gets both. */
struct ek__batch ek__batch_for(ek_tensor all[EK_MAX_INPUTS], const ek_module *module,
                               const struct ek__batch *batch);

/* Room for a part of one. */
struct ek__batch_part {
  struct ek__batch batch;
  int64_t first, samples; /* its samples among those of the whole batch */
  ek_tensor inputs[EK_MAX_INPUTS], targets[EK_MAX_TENSORS];
};

/*
 * Sets *samples to the rows of the first input that is cut. EK_ERR_SHAPE unless the rows of all
 * others are a multiple, EK_ERR_INVALID_ARGUMENT for more tensors than a module has, or if no input
 * is cut. All other checks are left to the calls that get the batch.
 */
ek_status ek__batch_samples(int64_t *samples, const struct ek__batch *batch);

/*
 * How a batch is cut into `count` parts: evenly, larger ones first. A reproducible model between
 * processes cuts the batch of all of them so, and a part has the process's grains of that
 * (ek_world_rows()).
 */
struct ek__batch_cuts {
  int64_t samples, count;
  const ek_group *group; /* of such a model, else NULL */
  size_t grains;         /* of it */
  int64_t all;           /* samples of all processes */
};

/* Part number `index`. */
void ek__batch_cut(struct ek__batch_part *part, const struct ek__batch *batch,
                   const struct ek__batch_cuts *cuts, int64_t index);

/* Of a batch with samples, into this many parts: asks the other processes for theirs if need be.
 * EK_ERR_SHAPE if the process has other samples than its grains have. */
ek_status ek__batch_cuts_make(struct ek__batch_cuts *cuts, const ek_data_parallel_model *model,
                              int64_t samples, int64_t count);

/*
 * Puts the rows of one output of a part in their place in *whole, the output of the whole batch,
 * which has `samples`. With the first part *whole is a struct of zeros, and all rows get their
 * memory, on the devices where the model leaves those of a whole batch. predicted: the output of a
 * module with targets that ran without them, which no mode gathers. A part's shards stay as they
 * are. On failure *whole keeps what it has; the caller frees it.
 */
ek_status ek__rows_put(ek_shards *whole, const ek_data_parallel_model *model, const ek_shards *rows,
                       const struct ek__batch_part *part, int64_t samples, bool predicted);

/* The same for a tensor in host memory with the same number of rows for each sample. */
ek_status ek__rows_put_host(ek_tensor *whole, const ek_shards *rows,
                            const struct ek__batch_part *part, int64_t samples);

#endif /* EK_BATCHES_H */
