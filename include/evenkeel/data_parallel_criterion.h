/*
 * data_parallel_criterion.h - the loss, computed on the devices that have the outputs.
 *
 * Cuts the targets at the sample boundaries of the outputs, runs the criterion on every device that
 * has rows, and sums {s, d} over the devices in their order. With the outputs of mode gather it
 * runs on the one device that has them.
 *
 * A step, as ek_trainer_step() (trainer.h) makes it with gradient_in_forward:
 *
 *     ek_shards outputs = {0};
 *     ek_step_result result;
 *     ek_status status;
 *     EK_TRY_GOTO(status, ek_data_parallel_model_forward(&outputs, model, &tokens, 1, NULL),
 *                 cleanup);
 *     EK_TRY_GOTO(status, ek_data_parallel_criterion_forward(criterion, &outputs, 1, &targets, 1),
 *                 cleanup);
 *     EK_TRY_GOTO(status, ek_data_parallel_criterion_backward(criterion, NULL), cleanup);
 *     EK_TRY_GOTO(status, ek_data_parallel_optimizer_step(&result, optimizer), cleanup);
 *     *loss = result.loss;
 *   cleanup:
 *     ek_shards_free(&outputs);   // also after a failure, or the next step has less memory
 *     return status;
 */
#ifndef EVENKEEL_DATA_PARALLEL_CRITERION_H
#define EVENKEEL_DATA_PARALLEL_CRITERION_H

#include <evenkeel/criterion.h>
#include <evenkeel/data_parallel_model.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_data_parallel_criterion ek_data_parallel_criterion;

typedef struct ek_data_parallel_criterion_options {
  size_t size;
  bool keep_outputs; /* the outputs survive backward; the gradient has memory of its own */
  /*
   * The program does not read the outputs between the criterion's forward and backward. After a
   * model's forward with gradient, a criterion that is able to then writes the gradient over the
   * outputs in its own forward, which saves a pass over memory (pass.h, ek_pass_gradient_now()). If
   * such a forward fails, the outputs may hold anything, and the step is dropped as always. Losses
   * and gradients are the same to rounding. Not together with keep_outputs:
   * EK_ERR_INVALID_ARGUMENT.
   *
   * A model that computes its loss itself does so in its forwards with gradient, for each gradient
   * that is cheaper there, including those of parameters (pass.h, ek_pass_known_scale()). The
   * backward of such a forward must come from a criterion opened for the model, without gradients
   * of the program's own; and in a step with micro-batches no other forward may come before it:
   * else EK_ERR_STATE, and nothing is lost.
   */
  bool gradient_in_forward;
  /* How targets of u8 and u16 in host memory become numbers of the model's `type`: as input_scaling
   * of data_parallel_model.h. The others' integers become what the criterion declares. */
  const ek_input_scaling *target_scaling;
  size_t target_scaling_count;
} ek_data_parallel_criterion_options;
#define EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT                                                    \
  {                                                                                                \
    .size = sizeof(ek_data_parallel_criterion_options), .keep_outputs = false,                     \
    .gradient_in_forward = false, .target_scaling = NULL, .target_scaling_count = 0                \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status
ek_data_parallel_criterion_options_init(ek_data_parallel_criterion_options *options, size_t size);

/*
 * For the outputs of `model`, which must outlive it. Keeps a reference to the criterion and makes a
 * replica of it on every device, whose buffers are constants. EK_ERR_UNSUPPORTED for a criterion
 * with parameters or with collectives of its own; make one module of it and the model instead
 * (with_criterion.h).
 *
 * `criterion` is NULL if, and only if, the model computes its loss itself. The forward of such a
 * model gives one output, the totals. Give that to the functions below, without targets: these were
 * inputs of the model.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_criterion_open(
    ek_data_parallel_criterion **parallel, ek_data_parallel_model *model, ek_criterion *criterion,
    const ek_data_parallel_criterion_options *options);
EK_API void ek_data_parallel_criterion_free(ek_data_parallel_criterion *parallel);

/*
 * model_outputs: the outputs of the model's forward, in order; they stay the caller's and must live
 * until backward is done. targets: tensors of the host or of a device of the group, which are cut
 * like the outputs. EK_ERR_STATE for outputs that already hold their gradient. Outputs of an
 * earlier forward, or tensors of the program's own, give a loss, but have no backward.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_criterion_forward(ek_data_parallel_criterion *parallel,
                                                               ek_shards *model_outputs,
                                                               size_t output_count,
                                                               const ek_tensor *targets,
                                                               size_t target_count);

/*
 * The same with targets that are on their devices already: ek_scatter_like() of the inputs' shards,
 * or in mode gather, where the outputs are on one device, ek_scatter() with all rows for that one.
 * They must be cut at the samples of the outputs: else EK_ERR_SHAPE. They stay the caller's, who
 * may free them when this returns.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_criterion_forward_shards(
    ek_data_parallel_criterion *parallel, ek_shards *model_outputs, size_t output_count,
    const ek_shards *targets, size_t target_count);

/*
 * The loss of the last forward over all devices: s / D for `mean` (0 if D is 0), s otherwise.
 * *weight (may be NULL) becomes D, 0 if every target was ignored. Waits for the devices. NaN on
 * `plan`. The loss of a step with several micro-batches is that of
 * ek_data_parallel_optimizer_step().
 */
EK_API EK_CHECKED ek_status ek_data_parallel_criterion_loss(double *loss, double *weight,
                                                            ek_data_parallel_criterion *parallel);

/* Every single loss of the last forward of a `none` criterion; the caller frees the shards. */
EK_API EK_CHECKED ek_status ek_data_parallel_criterion_losses(ek_shards *losses,
                                                              ek_data_parallel_criterion *parallel);

/* f64 {s, D} over all devices, one tensor per device: loans until the next forward. */
EK_API const ek_tensor *ek_data_parallel_criterion_totals(
    const ek_data_parallel_criterion *parallel);

typedef struct ek_criterion_backward_options {
  size_t size;
  bool accumulate;          /* as in ek_backward_options */
  const ek_shards *factors; /* for `none`: one factor per loss, laid out as these; NULL: all 1 */
  /*
   * For a criterion of several terms with reduction `mean` (weighted_sum.h) in a step of several
   * micro-batches: the weight D of each term over all of them, the same numbers with each
   * micro-batch. For cross-entropy that is the number of targets that are not ignored, or the sum
   * of their class weights; for mean squared error the number of elements. The update compares
   * them with what the targets weighed: EK_ERR_INVALID_ARGUMENT, and nothing is updated.
   *
   * NULL is right if each micro-batch weighs the terms in the same ratios. If one does not, the
   * gradients of the earlier micro-batches can no longer be corrected: EK_ERR_STATE. Criteria of
   * one term need no weights.
   */
  const double *weights;
} ek_criterion_backward_options;
#define EK_CRITERION_BACKWARD_OPTIONS_INIT                                                         \
  {                                                                                                \
    .size = sizeof(ek_criterion_backward_options), .accumulate = false, .factors = NULL,           \
    .weights = NULL                                                                                \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status
ek_criterion_backward_options_init(ek_criterion_backward_options *options, size_t size);

/*
 * The gradient of the outputs and the model's backward. Without keep_outputs the outputs hold the
 * gradient afterwards, times the loss scale if there is one. Once per forward. EK_ERR_STATE, with
 * the reason, if the outputs that criterion forward saw are not those of the model's last forward
 * with gradient.
 */
EK_API EK_CHECKED ek_status ek_data_parallel_criterion_backward(
    ek_data_parallel_criterion *parallel, const ek_criterion_backward_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_DATA_PARALLEL_CRITERION_H */
