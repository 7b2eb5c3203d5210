/*
 * fuzz_training.h - a module, a loss and an update rule over a group, and steps that may fail.
 */
#ifndef FUZZ_TRAINING_H
#define FUZZ_TRAINING_H

#include "fuzz_devices.h"

enum { FUZZ_BATCH_TENSORS = EK_MAX_TENSORS };

struct fuzz_training {
  ek_group *group;
  /* Made by the harness, freed by fuzz_training_close(). */
  ek_module *module;
  ek_criterion *criterion;
  ek_optimizer *rule;
  ek_data_parallel_model *model;
  ek_data_parallel_criterion *loss;
  ek_data_parallel_optimizer *optimizer;
};

struct fuzz_setup {
  ek_data_parallel_model_options model;
  ek_data_parallel_criterion_options criterion;
  ek_data_parallel_optimizer_options optimizer;
};

/* A mode, a type, buckets, where gradients go and what is asked of them. */
struct fuzz_setup fuzz_setup(struct fuzz_input *input);

/* One micro-batch in host memory. */
struct fuzz_batch {
  ek_tensor input[FUZZ_BATCH_TENSORS], target[FUZZ_BATCH_TENSORS];
  size_t inputs, targets;
  const ek_scatter_options *scatter;
};

/* Opens model, loss and optimizer for the three parts; a failure frees what was opened. */
ek_status fuzz_training_open(struct fuzz_training *training, const struct fuzz_setup *setup);

/* Frees everything; legal for a training that was never opened. */
void fuzz_training_close(struct fuzz_training *training);

/* One step over `count` micro-batches. Outputs are freed, also on failure. */
ek_status fuzz_training_step(struct fuzz_training *training, const struct fuzz_batch *batch,
                             size_t count, ek_step_result *result);

/* All parameters as they are stored, and after the first step the rule's states: for comparing bit
 * by bit. The caller frees the bytes. */
unsigned char *fuzz_training_state(const struct fuzz_training *training, size_t *size);

#endif /* FUZZ_TRAINING_H */
