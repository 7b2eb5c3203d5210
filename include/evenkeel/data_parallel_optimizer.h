/*
 * data_parallel_optimizer.h - an optimizer whose state lives where the model's mode puts it.
 *
 * Mode gather and balanced: on device 0. Replicated: on every device. Sharded: 1/N on each, after
 * which the parameters are all-gathered.
 */
#ifndef EVENKEEL_DATA_PARALLEL_OPTIMIZER_H
#define EVENKEEL_DATA_PARALLEL_OPTIMIZER_H

#include <evenkeel/data_parallel_model.h>
#include <evenkeel/optimizer.h>
#include <evenkeel/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_data_parallel_optimizer ek_data_parallel_optimizer;

typedef struct ek_data_parallel_optimizer_options {
  size_t size;
  const ek_schedule *schedule; /* copied; NULL: the optimizer's own learning rate */
} ek_data_parallel_optimizer_options;
#define EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT                                                    \
  { sizeof(ek_data_parallel_optimizer_options), NULL }

/* Makes the state. All memory that a step needs is taken here. The model must outlive it. */
EK_API EK_CHECKED ek_status ek_data_parallel_optimizer_open(
    ek_data_parallel_optimizer **parallel, ek_data_parallel_model *model, ek_optimizer *optimizer,
    const ek_data_parallel_optimizer_options *options);
EK_API void ek_data_parallel_optimizer_free(ek_data_parallel_optimizer *parallel);

typedef struct ek_step_result {
  double loss;          /* of the step: sum s / D, over all devices and micro-batches */
  double weight;        /* D; 0 if nothing was divided */
  double gradient_norm; /* before clipping, after the division; NaN if nothing clips */
  double learning_rate;
  int64_t step; /* 1 after the first */
  bool empty;   /* every target was ignored: loss and gradient were taken as 0 */
} ek_step_result;

/*
 * Updates the parameters from the gradients of the step and starts the next. EK_ERR_STATE if no
 * backward has come since the last step. *result may be NULL, then nothing waits for the devices.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_optimizer_step(ek_data_parallel_optimizer *parallel,
                                                            ek_step_result *result);

/* Replaces the rate (and the schedule) from the next step on. */
EK_API EK_CHECKED ek_status ek_data_parallel_optimizer_set_learning_rate(
    ek_data_parallel_optimizer *parallel, double learning_rate);

/* Steps taken so far. */
EK_API int64_t ek_data_parallel_optimizer_steps(const ek_data_parallel_optimizer *parallel);

/*
 * State buffer `state` of the parameter `name`, whole, into host memory of its type and size: for
 * files and for comparisons. EK_ERR_STATE before the first step.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_optimizer_state(
    const ek_data_parallel_optimizer *parallel, const char *name, size_t state, ek_tensor *host);

#ifdef __cplusplus
}
#endif

#endif /* EVENKEEL_DATA_PARALLEL_OPTIMIZER_H */
