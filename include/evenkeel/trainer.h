/*
 * trainer.h - a model, its loss and its optimizer over the devices of a group, as one object.
 *
 *     ek_module *gpt = NULL;
 *     ek_criterion *loss = NULL;
 *     ek_optimizer *adamw = NULL;
 *     ek_trainer *trainer = NULL;
 *     ek_schedule schedule;
 *     ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
 *     ek_data_parallel_model_options model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
 *     ek_data_parallel_optimizer_options update = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
 *     ek_status status;
 *     EK_TRY_GOTO(status, ek_gpt_create(&gpt, NULL), cleanup);              // what is computed
 *     EK_TRY_GOTO(status, ek_cross_entropy_create(&loss, NULL), cleanup);   // what is wanted
 *     EK_TRY_GOTO(status, ek_adamw_create(&adamw, NULL), cleanup);          // how to get there
 *     EK_TRY_GOTO(status, ek_schedule_warmup_cosine(&schedule, 6e-4, 6e-5, 1, steps), cleanup);
 *     model.state = EK_STATE_SHARDED;
 *     update.schedule = &schedule;
 *     options.model = &model;
 *     options.optimizer = &update;
 *     EK_TRY_GOTO(status, ek_trainer_open(&trainer, "cpu:4", gpt, loss, adamw, &options), cleanup);
 *     for (int i = 0; i < steps; i++) {
 *       ek_step_result result;
 *       EK_TRY_GOTO(status, ek_trainer_step(&result, trainer, &tokens[i], 1, &targets[i], 1),
 *                   cleanup);
 *       printf("step %lld: loss %.4f\n", (long long)result.step, result.loss);
 *     }
 *     EK_TRY_GOTO(status, ek_trainer_evaluate(&validation, NULL, trainer, tokens, 1, targets, 1),
 *                 cleanup);
 *     printf("validation: %.4f\n", validation);
 *   cleanup:
 *     ek_trainer_free(trainer);
 *     ek_optimizer_free(adamw);
 *     ek_criterion_free(loss);
 *     ek_module_free(gpt);
 *     return status;
 *
 * Batches are tensors in host memory (or on a device of the group), rows first; they are cut over
 * the devices evenly, or nearly so. Tokens and classes in host memory are integers of any type, u8,
 * u16, u32, i32 or i64, and images may be u8, with a scaling in the options: they are converted on
 * their way to the devices (scatter.h). The devices string names what to train on: "cpu:4", "cuda",
 * "cuda:0-3", "plan:8@80GiB" (device.h).
 *
 * A trainer is made of public objects: an ek_data_parallel_model, an ek_data_parallel_criterion and
 * an ek_data_parallel_optimizer. A program that needs more control opens these itself, or takes
 * them from a trainer: to copy batches while a step computes, to look at the outputs before
 * backward, or to take micro-batches one by one (data_parallel_criterion.h, data_parallel_model.h).
 * State is read and written by name with ek_trainer_model() (state.h), and saved in files
 * (checkpoint.h).
 *
 * A trainer and its parts belong to one thread at a time: another thread gets EK_ERR_STATE.
 */
#ifndef EVENKEEL_TRAINER_H
#define EVENKEEL_TRAINER_H

#include <evenkeel/checkpoint.h>
#include <evenkeel/data_parallel_criterion.h>
#include <evenkeel/data_parallel_model.h>
#include <evenkeel/data_parallel_optimizer.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_trainer ek_trainer;

typedef struct ek_trainer_options {
  size_t size;
  /*
   * The options of the three objects, read when the trainer opens; NULL gives the defaults. The
   * mode, the seed, precisions, the bucket size, patterns of parameters and scalings of inputs are
   * the model's; the schedule and the loss scale are the optimizer's. With model->reproducible a
   * group that the trainer opens is deterministic. The trainer sets criterion->gradient_in_forward
   * itself, unless keep_outputs or the reduction `none` forbids it. For a model that computes its
   * loss itself, criterion->target_scaling has the scalings of the targets. Options for a criterion
   * or an optimizer that the trainer does not have are EK_ERR_INVALID_ARGUMENT.
   */
  const ek_data_parallel_model_options *model;
  const ek_data_parallel_criterion_options *criterion;
  const ek_data_parallel_optimizer_options *optimizer;
  ek_group *group; /* the program's, which must outlive the trainer; `devices` is NULL then */
  const ek_group_options *group_options; /* to open `devices` with (threads); NULL: the defaults */
  int64_t micro_batches; /* of a batch, computed one after the other; 0 and 1: one */
  ek_world *world; /* to open `devices` in all its processes (world.h); NULL: in this one alone */
} ek_trainer_options;
#define EK_TRAINER_OPTIONS_INIT                                                                    \
  {                                                                                                \
    .size = sizeof(ek_trainer_options), .model = NULL, .criterion = NULL, .optimizer = NULL,       \
    .group = NULL, .group_options = NULL, .micro_batches = 0, .world = NULL                        \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_trainer_options_init(ek_trainer_options *options, size_t size);

/*
 * Opens the group and the three objects on it. Module, criterion and optimizer stay the program's;
 * it may free them at once. The gradient is computed in the criterion's forward and overwrites the
 * outputs, unless the reduction is `none`. `criterion` is NULL for a model that computes its loss
 * itself (with_criterion.h, the fused loss of gpt.h); steps of such a model take inputs and targets
 * as usual, or all of them as inputs. `options` NULL gives the defaults (mode replicated).
 *
 * With `optimizer` NULL the trainer evaluates and predicts, and cannot take a step: all parameters
 * are frozen, and devices hold no gradients and no state of an optimizer. `criterion` may then be
 * NULL too; such a trainer only predicts. It loads saved states without that of an optimizer. A
 * call that needs a missing object returns EK_ERR_STATE.
 */
EK_API EK_CHECKED ek_status ek_trainer_open(ek_trainer **trainer, const char *devices,
                                            ek_module *module, ek_criterion *criterion,
                                            ek_optimizer *optimizer,
                                            const ek_trainer_options *options);

/*
 * Frees the three objects, and the group if the trainer opened it. NULL is legal.
 * EK_ERR_STATE  the group is still needed (ek_group_close()): outputs of ek_trainer_predict() were
 *               not freed, for one. The objects are gone; free what is left and call it again
 */
EK_API EK_CHECKED ek_status ek_trainer_close(ek_trainer *trainer);
EK_API void ek_trainer_free(ek_trainer *trainer); /* the same, as a free: status.h */

/*
 * One step: forward, loss, backward, update. With `result` NULL the call does not wait for the
 * devices. A step that fails leaves parameters, the optimizer's state and masks as they were, holds
 * no memory, and may be tried again; gradients that a program had accumulated with
 * ek_trainer_model() are dropped. Buffers that modules write in a training forward, such as the
 * running statistics of a batch normalisation, may have been written.
 * After EK_ERR_TORN see state.h. With a loss scale, a step that overflows is skipped, and its
 * result says so.
 *
 * With micro_batches = K a step cuts its batch into K micro-batches of whole samples, whose sizes
 * differ by at most one, and cuts each over the devices; it holds the activations of one at a time.
 * A batch of fewer than K samples has a micro-batch for each sample. Loss, gradient and random
 * masks are those of the whole batch (docs/numerics.md): the caller divides nothing. A module that
 * computes something of all the samples that it sees, such as the statistics of a batch
 * normalisation, sees one micro-batch; if its table says so (`mixes_samples`), ek_trainer_open()
 * logs a warning. A criterion of several `mean` terms needs micro-batches that weigh its terms in
 * the same ratios, else EK_ERR_STATE (data_parallel_criterion.h).
 */
EK_API EK_CHECKED ek_status ek_trainer_step(ek_step_result *result, ek_trainer *trainer,
                                            const ek_tensor *inputs, size_t input_count,
                                            const ek_tensor *targets, size_t target_count);

/*
 * The same step in two calls, as ek_data_parallel_optimizer_step_begin() describes: the devices
 * compute step n + 1 while the program reads the result of step n.
 *
 *     for (int i = 0; i < steps; i++) {
 *       EK_TRY(ek_trainer_step_begin(trainer, &tokens[i], 1, &targets[i], 1));
 *       if (i > 0) EK_TRY(ek_trainer_step_end(&result, trainer));   // of step i - 1
 *     }
 *     EK_TRY(ek_trainer_step_end(&result, trainer));
 *
 * Losses and parameters are those of ek_trainer_step(), bit for bit. The batch may be overwritten
 * when begin returns.
 */
EK_API EK_CHECKED ek_status ek_trainer_step_begin(ek_trainer *trainer, const ek_tensor *inputs,
                                                  size_t input_count, const ek_tensor *targets,
                                                  size_t target_count);
EK_API EK_CHECKED ek_status ek_trainer_step_end(ek_step_result *result, ek_trainer *trainer);

/*
 * Does ahead of time what the first step of a batch size does once: a GPU loads code and times the
 * algorithms of each product (docs/notes/cuda.md), a processor compiles code for its products and
 * touches memory. The call is optional, since a step with a new size prepares itself; call it once
 * for each size, with any numbers that a step would take. It runs forward, loss and backward of the
 * batch with training off, and drops the gradient. Parameters, buffers, masks, the loss scale and
 * the number of the step stay as they were, and later steps have the same bits as without this
 * call, if the same algorithms are chosen. Waits for the devices; fails as a step does, and drops
 * gradients that were accumulated with ek_trainer_model().
 */
EK_API EK_CHECKED ek_status ek_trainer_prepare(ek_trainer *trainer, const ek_tensor *inputs,
                                               size_t input_count, const ek_tensor *targets,
                                               size_t target_count);

/*
 * The loss of a batch, without gradient and with training off (no dropout); nothing is updated.
 * With micro_batches the batch is cut as a step cuts it, and the loss is that of the whole batch:
 * for each term, the sum of all losses over the sum of all weights. *weight (`weight` may be NULL)
 * is the weight that the loss was divided by (data_parallel_criterion.h): over several batches the
 * loss is sum(loss * weight) / sum(weight). Waits for the devices.
 */
EK_API EK_CHECKED ek_status ek_trainer_evaluate(double *loss, double *weight, ek_trainer *trainer,
                                                const ek_tensor *inputs, size_t input_count,
                                                const ek_tensor *targets, size_t target_count);

/*
 * The outputs of a batch, without gradient and with training off: one ek_shards per output of the
 * module, or per prediction of a model that computes its loss itself (module.h). The caller owns
 * them, as after ek_data_parallel_model_forward(); ek_gather_host() (gather.h) copies the rows of
 * one into host memory. With micro_batches the batch is cut as a step cuts it, and the rows of all
 * micro-batches are put together, in order, on the devices that hold those of a whole batch. A
 * batch whose outputs have no rows (scalars, totals) is not cut.
 */
EK_API EK_CHECKED ek_status ek_trainer_predict(ek_shards *outputs, ek_trainer *trainer,
                                               const ek_tensor *inputs, size_t input_count);

/*
 * The same into tensors in host memory, one per output, in the order of the batch. Each has the
 * number of elements of the output, and its type or, if that is floating, any floating type
 * (ek_gather_host()). With micro_batches the devices hold the outputs of one at a time, so a batch
 * that fits a step can be predicted too. Waits for the devices; after a failure the tensors
 * may hold some of the outputs. EK_ERR_SHAPE for an output without rows.
 */
EK_API EK_CHECKED ek_status ek_trainer_predict_host(ek_tensor *outputs, ek_trainer *trainer,
                                                    const ek_tensor *inputs, size_t input_count);

/*
 * Save the state of the run in a folder, and load it (checkpoint.h). ek_trainer_save_begin() copies
 * the state and returns while a thread writes it. ek_trainer_save_begin() and ek_trainer_save()
 * first wait for the save before; if that failed, they return its error and save nothing.
 * ek_trainer_load() waits for it too, then loads in any case, and leaves its error to the next of
 * these calls. ek_trainer_save_end() waits for the last save and returns its error; without a save
 * it returns EK_OK. ek_trainer_close() and ek_trainer_free() wait for the last save. A child of
 * fork() gets EK_ERR_STATE for the parent's save, which goes on.
 */
EK_API EK_CHECKED ek_status ek_trainer_save(ek_trainer *trainer, const char *folder,
                                            const ek_checkpoint_options *options);
EK_API EK_CHECKED ek_status ek_trainer_save_begin(ek_trainer *trainer, const char *folder,
                                                  const ek_checkpoint_options *options);
EK_API EK_CHECKED ek_status ek_trainer_save_end(ek_trainer *trainer);
EK_API EK_CHECKED ek_status ek_trainer_load(ek_checkpoint_info *info, ek_trainer *trainer,
                                            const char *path);

/* What a trainer is made of, as loans. NULL for NULL. */
EK_API ek_group *ek_trainer_group(const ek_trainer *trainer);
EK_API ek_data_parallel_model *ek_trainer_model(const ek_trainer *trainer);
EK_API ek_data_parallel_criterion *ek_trainer_criterion(const ek_trainer *trainer);
EK_API ek_data_parallel_optimizer *ek_trainer_optimizer(const ek_trainer *trainer);

EK_END_DECLARATIONS

#endif /* EVENKEEL_TRAINER_H */
