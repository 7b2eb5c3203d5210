/*
 * fuzz_training.h - groups of devices, what must be true of them afterwards, and a training over
 * one, whose steps may fail.
 */
#ifndef FUZZ_TRAINING_H
#define FUZZ_TRAINING_H

#include <evenkeel/evenkeel.h>

#include "fuzz_input.h"

/* A call that must not fail. */
#define FUZZ_OK(call)                                                                              \
  do {                                                                                             \
    const ek_status fuzz_status_ = (call);                                                         \
    FUZZ_EXPECT(fuzz_status_ == EK_OK, "%s: %s: %s", #call, ek_status_name(fuzz_status_),          \
                ek_error_message());                                                               \
  } while (0)

/* The group that `spec` names with `threads` per device. Opened once and kept until the program
 * ends, because threads take longer to start than most inputs to run: hold nothing on it when an
 * input is done. */
ek_group *fuzz_group(const char *spec, int threads);

/* fuzz_group() of `count` devices of a backend, one thread each, whose peaks begin anew. */
ek_group *fuzz_devices(const char *backend, size_t count);

ek_memory_usage fuzz_memory(const ek_group *group, size_t device);

/* Every byte that was taken on the group was given back. */
void fuzz_expect_nothing_held(const ek_group *group);

/* A failure has a status from the list and a message. */
void fuzz_expect_explained(ek_status status);

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
