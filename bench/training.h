/*
 * training.h - one training run: a model on a group of devices in one mode, step by step.
 *
 * Every figure of the benchmark comes out of the same step, which is the one that a user would
 * write: forward, criterion, backward, outputs freed, optimizer.
 */
#ifndef BENCH_TRAINING_H
#define BENCH_TRAINING_H

#include "options.h"
#include "text.h"

/* What is trained, where. Loans. */
struct task {
  const struct options *options;
  const struct shape *shape;
  const struct text *text; /* NULL: zeros everywhere (devices that only count read nothing) */
  const char *spec;
  int threads; /* of each device; 0: the library divides the cores */
  ek_mode mode;
  enum precision precision;
};

struct training {
  const struct task *task;
  ek_group *group;
  ek_module *module;
  ek_data_parallel_model *model;
  ek_criterion *loss;
  ek_data_parallel_criterion *criterion;
  ek_optimizer *rule;
  ek_data_parallel_optimizer *optimizer;
  void *inputs;     /* the batch of the next step, in host memory: tokens, or floats of pictures */
  int32_t *targets;
  int64_t next_step;
  int64_t rows;          /* of the last step, in this process */
  int64_t skipped_steps; /* of them, by the loss scale */
  double loss_scale;     /* of the last one */
  struct phases *phases; /* where laps are marked; NULL: nowhere */
};

/* When the parts of a step were at work. With micro-batches some come several times; what finds no
   room is left out. */
enum { TRAINING_PHASES = 64 };
struct phase {
  const char *name;
  double begin, end; /* clock_seconds() */
};
struct phases {
  struct phase list[TRAINING_PHASES];
  size_t count;
};

/* Seconds of one step's parts, each measured to the end of the devices' work. */
struct split {
  double forward, loss, backward, reduce, optimizer;
};

/*
 * The devices first, then what lives on them. `training` must be zero at first; on failure it holds
 * what was made, and training_close() frees it.
 */
ek_status training_open_group(struct training *training, const struct task *task);
ek_status training_open_model(struct training *training);
void training_close(struct training *training);

/* The model of a task, which goes with a loss unless it has one; its whole logits have rows of 16
 * bytes. All, and the rule of its updates, are the caller's. */
ek_status training_model(ek_module **module, ek_criterion **loss, const struct shape *shape,
                         bool fused_loss, enum precision precision);
/* Samples first .. first + samples - 1 of a batch, as tensors of the host over its memory. */
ek_status training_batch(ek_tensor *inputs, ek_tensor *targets, const struct shape *shape,
                         void *input_values, int32_t *target_values, int64_t first,
                         int64_t samples);
ek_type training_type(enum precision precision); /* of its tensors, or of gradients kept in it */
ek_status training_rule(ek_optimizer **rule, const struct options *options);

/* Puts the next step's batch into host memory; not part of a step's time. */
void training_prepare(struct training *training);

/* One step on the prepared batch. Waits until the devices are done. loss: NaN where none is known.
 */
ek_status training_step(struct training *training, double *loss, double *seconds);

/* One step or more on the prepared batch, each begun before the result of the one before is read;
 * waits at the end. *seconds: of one of them, the mean. */
ek_status training_steps_begun(struct training *training, int64_t steps, double *seconds);

/*
 * One step with a wait after each part, and before it a forward and backward without reduction,
 * whose gradients are dropped: `backward` is the time of that one, and `reduce` is what the full
 * backward took longer (at least 0), which is the part of the reduction that is not hidden.
 */
ek_status training_step_split(struct training *training, struct split *split);

/*
 * The same, and `before` is called between the two. What the second half of it did when goes to
 * *phases. The reduction that is not hidden is marked at the end of backward.
 */
ek_status training_step_phases(struct training *training, struct phases *phases,
                               ek_status (*before)(void *context), void *context);

#endif
