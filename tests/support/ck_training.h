/*
 * ck_training.h - a model, its loss and its optimizer over the devices of a group.
 *
 *     struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:3", EK_MODE_SHARDED);
 *     struct ck_training training = ck_training_opened(&setup);
 *     ck_ok(ck_training_step(&training, &batch, &result));
 *
 * All of it is kept (ck_keep.h): freed when the test ends, unless the test closes it before.
 */
#ifndef CK_TRAINING_H
#define CK_TRAINING_H

#include "ck_workload.h"

enum { CK_MODES = 6, CK_PLACEMENTS = 8 };

struct ck_setup {
  const struct ck_workload *workload;
  const char *spec; /* of the group, where one is opened */
  ek_data_parallel_model_options options;
  bool keep_outputs, gradient_in_forward;
  ek_reduction reduction;
  ek_status (*optimizer)(ek_optimizer **optimizer); /* NULL: none is opened */
  const ek_loss_scale *loss_scale;                  /* of it; or NULL */
  bool own_loss; /* the workload's model and criterion are one module, which computes its loss */
  ek_module *module; /* instead of the workload's; with no criterion it has its own loss */
  ek_criterion *criterion;
  ek_group *group; /* of a trainer, or NULL for one of `spec` */
  int64_t micro_batches;
};

struct ck_setup ck_setup_mode(const struct ck_workload *workload, const char *spec, ek_mode mode);
/* The library's defaults for a module of the test's own, which is kept, as is the criterion. */
struct ck_setup ck_setup_own(ek_module *module, ek_criterion *criterion, const char *spec,
                             ek_mode mode);
/* The same of a GPT, and of a cross-entropy with these options unless its loss is fused. */
struct ck_setup ck_setup_gpt(const ek_gpt_options *gpt, const ek_cross_entropy_options *loss,
                             const char *spec, ek_mode mode);

/* Number 0 .. CK_PLACEMENTS - 1 of all pairs of the two placements; the first CK_MODES are the
 * modes. */
void ck_setup_place(struct ck_setup *setup, int placement);
struct ck_setup ck_setup_at(const struct ck_workload *workload, const char *spec, int placement);
const char *ck_placement_name(int placement);

/*
 * EVENKEEL_TEST_PRECISION, or 0. What a test says of a training that is opened from a set-up, or of
 * a trainer to which it gives this, it says again of these in 16 bits: programs that compare bits,
 * memory and errors are run so (tests/CMakeLists.txt). Of set-ups it is that of models in f32
 * alone, and no step is skipped unless the test has a loss scale.
 */
ek_precision ck_precision(void);

/* What opening a training does with it first: for tests that open the same in another way. */
void ck_setup_precision(struct ck_setup *setup);

/* AdamW with decay and clipping: every part of a step takes part. */
ek_status ck_clipped_adamw(ek_optimizer **optimizer);
/* The same for matrices, and AdamW for the rest. */
ek_status ck_clipped_muon(ek_optimizer **optimizer);
/* With the defaults of the library. */
ek_status ck_plain_adamw(ek_optimizer **optimizer);
ek_status ck_plain_sgd(ek_optimizer **optimizer);

struct ck_training {
  struct ck_setup setup;
  ek_group *group;
  bool owns_group;
  ek_module *module;
  ek_criterion *criterion;
  ek_optimizer *rule;
  ek_data_parallel_model *model;
  ek_data_parallel_criterion *loss;
  ek_data_parallel_optimizer *optimizer;
};

/* Opens a group and all the rest. */
struct ck_training ck_training_opened(const struct ck_setup *setup);
struct ck_training ck_training_of(struct ck_setup setup);
void ck_training_open(struct ck_training *training, const struct ck_setup *setup);
/* Declares one of a set-up with these members. */
#define CK_TRAINING(name, of, ...)                                                                 \
  CK_WITH(struct ck_setup, name##_setup, of, __VA_ARGS__);                                         \
  struct ck_training name = ck_training_opened(&name##_setup)
/* The same on a group that stays the caller's; a failure leaves nothing to close. */
ek_status ck_training_try(struct ck_training *training, const struct ck_setup *setup,
                          ek_group *group);
/* Opens the optimizer again, with these options. */
void ck_training_update_with(struct ck_training *training,
                             const ek_data_parallel_optimizer_options *options);
/* A trainer of the same parts, which is kept; the parts are freed. */
ek_trainer *ck_trainer_open(const struct ck_setup *setup);
ek_status ck_trainer_try(ek_trainer **trainer, const struct ck_setup *setup);
/* Frees all of it except the group, on which others may be at work. */
void ck_training_free(struct ck_training *training);
/* Frees all of it and checks that the devices hold nothing. */
void ck_training_close(struct ck_training *training);

/* Forward, loss and backward of a micro-batch; *loss (may be NULL) is that of the micro-batch. */
ek_status ck_training_backward(struct ck_training *training, const struct ck_batch *batch,
                               const ek_scatter_options *scatter, bool accumulate, double *loss);
/* The same, then the optimizer; result may be NULL. */
ek_status ck_training_step(struct ck_training *training, const struct ck_batch *batch,
                           ek_step_result *result);

/* What the devices of a group have taken. */
void ck_usages(ek_memory_usage *usages, const ek_group *group);
/* The same peaks, in total and by category, of as many allocations. */
void ck_same_peaks(const char *what, const ek_memory_usage *planned, const ek_memory_usage *real,
                   size_t devices);
/* What the devices of `spec` have taken after two steps, each of several equal micro-batches. */
void ck_measure(ek_memory_usage *usages, const struct ck_setup *setup, const char *spec,
                const struct ck_batch *batch, int micro_batches);

/* The type and the shape of an entry of the state, as a host tensor without data. */
ek_tensor ck_like(const struct ck_training *training, const char *name);
/* The name of a parameter's state. */
const char *ck_state_name(const struct ck_training *training, const char *parameter, int state);

/* Numbers of all parameters, one after the other; 0 for what frozen ones have not. The array is
 * kept (ck_keep.h), as are those of the functions below. */
enum ck_numbers { CK_VALUES, CK_GRADIENTS, CK_STATE_0, CK_STATE_1, CK_BUFFERS };
double *ck_training_read(const struct ck_training *training, enum ck_numbers numbers);
/* The values of all parameters, and after them those of all buffers. */
double *ck_training_model(const struct ck_training *training);

/* Each parameter's relative L2 error, and how many parameters there are (buffers do not count). */
enum { CK_MOST_PARAMETERS = 64 };
size_t ck_training_errors(double errors[CK_MOST_PARAMETERS], const struct ck_training *training,
                          const double *got, const double *want);

/* Each of them is at most `tolerance`, or its own of `tolerances` where that is not NULL. */
void ck_training_compare(const char *what, const struct ck_training *training, const double *got,
                         const double *want, double tolerance, const double *tolerances);

/* Two runs of the same module have the same numbers: each parameter's within `tolerance`, and with
 * 0 all of them bit for bit. */
void ck_runs_agree(const struct ck_training *got, const struct ck_training *want,
                   enum ck_numbers what, double tolerance);

/* All devices that hold all parameters, or copies of all of them, hold the same ones, bit for
 * bit. */
void ck_training_replicas_agree(const struct ck_training *training);

/* The copies of parameters on a device that modules of 16 bits see. */
double *ck_training_copies(const struct ck_training *training, size_t device);

/*
 * Copies are the masters rounded where a device has both in the same order, what state.h reads
 * rounded where a device has all of them, and the same on all devices that do. Of a master's
 * parameters the other devices get theirs with the next forward.
 */
void ck_training_copies_are_right(const struct ck_training *training);

/* Parameters after some steps of a batch of `samples` samples each. */
double *ck_values_after(const struct ck_setup *setup, ek_group *group, int steps, int64_t samples);
/* Parameters of the workload, or of another module for it, after three steps of two micro-batches,
 * of 7 samples and of 2. */
double *ck_trained(const struct ck_workload *workload, ek_status (*create)(ek_module **module),
                   const char *spec, int placement);
/* Two modules for a workload (NULL: its own) train to the same bits. */
void ck_trains_alike(const struct ck_workload *workload, ek_status (*want)(ek_module **),
                     ek_status (*got)(ek_module **), const char *spec, int placement);

/* A cut of `rows` over `count` devices; the arrays belong to the struct. */
struct ck_scatter {
  ek_scatter_options options;
  int64_t sizes[CK_MAX_DEVICES];
  double weights[CK_MAX_DEVICES];
};
void ck_scatter_random(struct ck_scatter *scatter, ek_scatter_kind kind, int64_t rows, size_t count,
                       struct ck_random *random);

#endif /* CK_TRAINING_H */
