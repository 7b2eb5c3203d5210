/*
 * data_parallel_optimizer.h - an optimizer over all devices of a model.
 *
 * Its state is where the model's mode puts it: on device 0 in gather and balanced, on every device
 * in replicated, and 1/N on each in the sharded modes, which gather the parameters after an update.
 */
#ifndef EVENKEEL_DATA_PARALLEL_OPTIMIZER_H
#define EVENKEEL_DATA_PARALLEL_OPTIMIZER_H

#include <evenkeel/data_parallel_model.h>
#include <evenkeel/loss_scale.h>
#include <evenkeel/optimizer.h>
#include <evenkeel/schedule.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_data_parallel_optimizer ek_data_parallel_optimizer;

typedef struct ek_data_parallel_optimizer_options {
  size_t size;
  const ek_schedule *schedule; /* copied; NULL: the optimizer's own learning rate */
  /*
   * Each result has the norm of the gradient, and its `finite` covers the gradient too. This costs
   * one more read of the gradient. With false the norm is left out unless something else needs it,
   * such as clipping.
   */
  bool gradient_norm;
  /*
   * A step whose loss or gradient is not finite is refused before anything is written:
   * EK_ERR_NOT_FINITE, and parameters and the optimizer's state are as before the step; buffers
   * that modules write in a training forward have been written. The host then waits for the
   * gradient in each step, also without a result. With a loss scale, a step with a finite loss
   * whose gradient overflows is not refused but skipped.
   */
  bool refuse_not_finite;
  /*
   * Copied; NULL: EK_LOSS_SCALE_INIT for a model whose precision or gradient_type is f16, and none
   * for others. With any kind except EK_LOSS_SCALE_NONE the criteria of the model scale gradients,
   * the update undoes it, and a step whose gradient is not finite on any device is skipped on all
   * of them: EK_OK with `skipped` in its result. Parameters, states and the number of steps are
   * then as before the step, bit for bit; the next step has the bias corrections, the schedule and
   * the random masks that the skipped one had. The program's own position in the data moves on, and
   * buffers that modules write in a training forward have been written.
   *
   * The norm of the gradient is then computed in each step, and the host waits for it before the
   * update, also without a result, because the next step depends on it.
   */
  const ek_loss_scale *loss_scale;
} ek_data_parallel_optimizer_options;
#define EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT                                                    \
  {                                                                                                \
    .size = sizeof(ek_data_parallel_optimizer_options), .schedule = NULL, .gradient_norm = true,   \
    .refuse_not_finite = false, .loss_scale = NULL                                                 \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status
ek_data_parallel_optimizer_options_init(ek_data_parallel_optimizer_options *options, size_t size);

/*
 * Makes the state (state.h) and takes all memory that a step needs. The model must outlive the
 * optimizer, and has one at a time: else EK_ERR_STATE. Freeing the optimizer ends the run: the
 * model's count of steps, which schedule and random masks follow, is 0 again.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_optimizer_open(
    ek_data_parallel_optimizer **parallel, ek_data_parallel_model *model, ek_optimizer *optimizer,
    const ek_data_parallel_optimizer_options *options);
EK_API void ek_data_parallel_optimizer_free(ek_data_parallel_optimizer *parallel);

typedef struct ek_step_result {
  double loss;   /* of the step: sum s / D, over all devices and micro-batches */
  double weight; /* D; 0 if nothing was divided */
  /* Before clipping, after the division, without frozen parameters; -1 if it was not computed. */
  double gradient_norm;
  double learning_rate;
  int64_t step; /* 1 after the first */
  bool empty;   /* every target was ignored: loss and gradient were taken as 0 */
  /*
   * The loss and, if it was computed, the norm of the gradient are neither NaN nor infinite. If
   * false, the update was made nevertheless, unless refuse_not_finite is set or `skipped` is true.
   */
  bool finite;
  /* The gradient overflowed: nothing was updated, and `step` is what it was (loss_scale.h). */
  bool skipped;
  double loss_scale; /* of the step (loss_scale.h); loss and norm are without */
} ek_step_result;

/*
 * Updates the parameters from the gradients of the step and starts the next. EK_ERR_STATE if no
 * backward has come since the last step. *result may be NULL, then nothing waits for the devices.
 * Of several processes all want a result or none does: else EK_ERR_SHAPE in all, if it has a norm.
 * EK_ERR_TORN: an earlier update failed halfway (data_parallel_model.h). A failure of this call may
 * tear the model; the next call then returns EK_ERR_TORN.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_optimizer_step(ek_step_result *result,
                                                            ek_data_parallel_optimizer *parallel);

/* The most steps that are begun and not ended. */
#define EK_MAX_STEPS_BEGUN 16

/*
 * The same step in two calls, so that the host need not wait for one step before it queues the next
 * on a GPU:
 *
 *     begin step 1; begin step 2, end step 1; begin step 3, end step 2; ...
 *
 * ek_data_parallel_optimizer_step_begin() queues the update and returns while the devices compute.
 * It waits until they have ended the forwards of the step, so that what these find (an index
 * outside of its table) is its error, before anything is written, and so that the host is never
 * ahead by more than a step. With a loss scale or `refuse_not_finite` the update depends on the
 * gradient, and the call waits for that.
 *
 * ek_data_parallel_optimizer_step_end() gives the results in the order of the steps, each once; on
 * a GPU it waits for the gradient of that step and for nothing queued later. It is EK_ERR_STATE if
 * no result is left to take. ek_data_parallel_optimizer_step_begin() is EK_ERR_STATE while the
 * results of EK_MAX_STEPS_BEGUN steps are not taken. All other calls are legal in between; a plain
 * step gives its own result and leaves the others.
 *
 * ek_data_parallel_optimizer_step() with a result on one device likewise reads the norm after it
 * has queued the update. On several devices it waits for the sum of the gradients first: if a GPU
 * or a collective fails then, nothing was written. With begin and end such a failure is found after
 * the update was queued: the model is then torn (EK_ERR_TORN), and its state has to be loaded.
 */
EK_API EK_CHECKED ek_status
ek_data_parallel_optimizer_step_begin(ek_data_parallel_optimizer *parallel);
EK_API EK_CHECKED ek_status ek_data_parallel_optimizer_step_end(
    ek_step_result *result, ek_data_parallel_optimizer *parallel);

/*
 * Sets the rate of every step from the next one on, until a schedule is set. The schedule is kept
 * meanwhile, also in saved states (checkpoint.h), which do not have this rate. Without a schedule,
 * or with a constant one, the rate becomes that constant.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_optimizer_set_learning_rate(
    ek_data_parallel_optimizer *parallel, double learning_rate);

/*
 * Sets the schedule from the next step on, at the number of steps that the run has taken; it is
 * copied, and ends a rate that was set. NULL goes back to the optimizer's schedule, as if no rate
 * had been set. EK_ERR_INVALID_ARGUMENT for a schedule that no function of schedule.h makes.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_optimizer_set_schedule(
    ek_data_parallel_optimizer *parallel, const ek_schedule *schedule);

/* The loss scale of the next step; 1 without one, and for NULL. */
EK_API double ek_data_parallel_optimizer_loss_scale(const ek_data_parallel_optimizer *parallel);

/* Steps taken so far, "run/step" of state.h. */
EK_API int64_t ek_data_parallel_optimizer_steps(const ek_data_parallel_optimizer *parallel);

EK_END_DECLARATIONS

#endif /* EVENKEEL_DATA_PARALLEL_OPTIMIZER_H */
