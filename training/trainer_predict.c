/*
 * trainer_predict.c - losses and outputs without gradients, of a batch that is cut as a step's is.
 *
 * The loss of a batch in parts is that of the sums of all parts, which are divided once. Outputs of
 * parts are put together by rows. Where one has no rows, the batch runs once more and whole, or is
 * refused if the outputs are to be on the host: a result does not depend on how a batch is cut.
 */
#include <evenkeel/trainer.h>

#include "batches.h"
#include "core/error.h"
#include "device/device_internal.h"
#include "trainer_struct.h"

/* part: NULL for a whole batch. */
static ek_forward_options without_gradient(const struct ek__batch_part *part, int64_t samples) {
  ek_forward_options options = EK_FORWARD_OPTIONS_INIT;
  options.gradient = false;
  options.training = false;
  options.batch_samples = samples;
  options.first_sample = part == NULL ? 0 : part->first;
  return options;
}

static ek_status forward_only(ek_shards *outputs, ek_trainer *self, const struct ek__batch *batch,
                              const struct ek__batch_part *part, int64_t samples) {
  const ek_forward_options options = without_gradient(part, samples);
  if (part != NULL) batch = &part->batch;
  return ek_data_parallel_model_forward(outputs, self->model, batch->inputs, batch->input_count,
                                        &options);
}

/* ---- evaluations ---- */

static ek_status evaluate(ek_trainer *self, const struct ek__batch *batch,
                          const struct ek__batch_part *part, int64_t samples) {
  const ek_forward_options options = without_gradient(part, samples);
  return ek__batch_run(self->model, self->criterion, part == NULL ? batch : &part->batch, &options,
                       EK__NEXT_NOTHING);
}

/* The sums of all parts, divided once. */
static ek_status evaluate_batch(double *loss, double *weight, ek_trainer *self,
                                const struct ek__batch *batch) {
  int64_t samples = 0, count = 0;
  double totals[2 * EK_MAX_TERMS] = {0};
  struct ek__batch_cuts cuts;
  EK_TRY(ek__trainer_count_parts(&count, &samples, self, batch));
  if (count < 2) {
    EK_TRY(evaluate(self, batch, NULL, 0));
    return ek_data_parallel_criterion_loss(loss, weight, self->criterion);
  }
  EK_TRY(ek__batch_cuts_make(&cuts, self->model, samples, count));
  for (int64_t i = 0; i < count; i++) {
    struct ek__batch_part part;
    ek__batch_cut(&part, batch, &cuts, i);
    EK_TRY(evaluate(self, batch, &part, samples));
    EK_TRY(ek__criterion_add_totals(totals, self->criterion));
  }
  *loss = ek__criterion_loss_of(weight, self->criterion, totals);
  return EK_OK;
}

static ek_status run_evaluate(double *loss, double *weight, ek_trainer *trainer,
                              const ek_tensor *inputs, size_t input_count, const ek_tensor *targets,
                              size_t target_count) {
  EK__NOT_NULL("ek_trainer_evaluate", loss);
  EK_TRY(ek__trainer_check_parts("ek_trainer_evaluate", trainer, false));
  EK_TRY(ek__trainer_check_call("ek_trainer_evaluate", trainer, inputs, targets, target_count));
  EK__OWNER_ENTER(&trainer->owner, "ek_trainer_evaluate", "the trainer");
  ek_tensor all[EK_MAX_INPUTS];
  const struct ek__batch batch =
      ek__trainer_batch(all, trainer, inputs, input_count, targets, target_count);
  EK__FAIL_IF(ek_module_is_criterion(trainer->module) &&
                  batch.input_count != ek_module_inputs(trainer->module),
              EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_evaluate: %s takes %zu inputs and targets, not %zu and %zu",
              ek_module_kind(trainer->module), ek_module_inputs(trainer->module), input_count,
              target_count);
  return evaluate_batch(loss, weight, trainer, &batch);
}

ek_status ek_trainer_evaluate(double *loss, double *weight, ek_trainer *trainer,
                              const ek_tensor *inputs, size_t input_count, const ek_tensor *targets,
                              size_t target_count) {
  EK__NOT_NULL("ek_trainer_evaluate", trainer);
  ek_world *world = ek__group_world(trainer->group);
  const uint64_t began = ek__world_begin(world);
  return ek__world_end(
      world, began,
      run_evaluate(loss, weight, trainer, inputs, input_count, targets, target_count));
}

/* ---- predictions ---- */

/* The batch of a prediction. */
static struct ek__batch inputs_alone(const ek_trainer *self, const ek_tensor *inputs,
                                     size_t input_count) {
  return (struct ek__batch){
      .inputs = inputs, .input_count = input_count, .broadcast = self->broadcast_inputs};
}

/* A module with targets may predict without them. */
static bool predicts(const ek_trainer *self, const struct ek__batch *batch) {
  const ek_module *module = self->module;
  return ek_module_predictions(module) > 0 &&
         batch->input_count + ek_module_targets(module) == ek_module_inputs(module);
}

static bool have_rows(const ek_shards *outputs, size_t count) {
  for (size_t i = 0; i < count; i++) {
    for (size_t k = 0; k < outputs[i].count; k++) {
      if (outputs[i].parts[k].rank == 0) return false;
    }
  }
  return true;
}

/* The destination of the outputs of a prediction: one of the two. */
struct destination {
  ek_shards *shards;
  ek_tensor *host;
};

/* *whole: the outputs have no rows that could be joined, and the batch must not be cut. */
static ek_status predict_part(const struct destination *to, bool *whole, ek_trainer *self,
                              const struct ek__batch_part *part, int64_t samples) {
  const bool predicted = predicts(self, &part->batch);
  const size_t count = predicted ? ek_module_predictions(self->module) : self->output_count;
  ek_shards made[EK_MAX_TENSORS] = {{0}};
  ek_status status = forward_only(made, self, NULL, part, samples);
  *whole = status == EK_OK && !have_rows(made, count);
  for (size_t i = 0; i < count && status == EK_OK && !*whole; i++) {
    status = to->host != NULL
                 ? ek__rows_put_host(&to->host[i], &made[i], part, samples)
                 : ek__rows_put(&to->shards[i], self->model, &made[i], part, samples, predicted);
    ek_shards_free(&made[i]);
  }
  for (size_t i = 0; i < count; i++) ek_shards_free(&made[i]);
  return status;
}

static ek_status predict_parts(const struct destination *to, bool *whole, ek_trainer *self,
                               const struct ek__batch *batch, int64_t samples, int64_t count) {
  struct ek__batch_cuts cuts;
  if (*whole) return EK_OK;
  EK_TRY(ek__batch_cuts_make(&cuts, self->model, samples, count));
  for (int64_t i = 0; i < count && !*whole; i++) {
    struct ek__batch_part part;
    ek__batch_cut(&part, batch, &cuts, i);
    EK_TRY(predict_part(to, whole, self, &part, samples));
  }
  return EK_OK;
}

static ek_status run_predict(ek_shards *outputs, ek_trainer *trainer, const ek_tensor *inputs,
                             size_t input_count) {
  EK__NOT_NULL("ek_trainer_predict", outputs);
  EK_TRY(ek__trainer_check_call("ek_trainer_predict", trainer, inputs, NULL, 0));
  EK__OWNER_ENTER(&trainer->owner, "ek_trainer_predict", "the trainer");
  const struct ek__batch batch = inputs_alone(trainer, inputs, input_count);
  ek_shards made[EK_MAX_TENSORS] = {{0}};
  int64_t samples = 0, count = 0;
  const bool predicted = predicts(trainer, &batch);
  bool whole = ek_module_is_criterion(trainer->module) && !predicted; /* totals */
  EK_TRY(ek__trainer_count_parts(&count, &samples, trainer, &batch));
  if (count < 2) whole = true;
  const ek_status status =
      predict_parts(&(struct destination){.shards = made}, &whole, trainer, &batch, samples, count);
  const size_t made_count =
      predicted ? ek_module_predictions(trainer->module) : trainer->output_count;
  for (size_t i = 0; i < made_count; i++) {
    if (status == EK_OK && !whole) {
      outputs[i] = made[i];
    } else { /* with `whole`, parts before the one without rows may have made some */
      ek_shards_free(&made[i]);
    }
  }
  return status == EK_OK && whole ? forward_only(outputs, trainer, &batch, NULL, 0) : status;
}

ek_status ek_trainer_predict(ek_shards *outputs, ek_trainer *trainer, const ek_tensor *inputs,
                             size_t input_count) {
  EK__NOT_NULL("ek_trainer_predict", trainer);
  EK__WORLD_CALL(ek__group_world(trainer->group),
                 run_predict(outputs, trainer, inputs, input_count));
}

static ek_status run_predict_host(ek_tensor *outputs, ek_trainer *trainer, const ek_tensor *inputs,
                                  size_t input_count) {
  EK__NOT_NULL("ek_trainer_predict_host", outputs);
  EK_TRY(ek__trainer_check_call("ek_trainer_predict_host", trainer, inputs, NULL, 0));
  EK__OWNER_ENTER(&trainer->owner, "ek_trainer_predict_host", "the trainer");
  const struct ek__batch batch = inputs_alone(trainer, inputs, input_count);
  int64_t samples = 0, count = 0;
  bool whole = false;
  EK_TRY(ek__trainer_count_parts(&count, &samples, trainer, &batch));
  EK_TRY(ek__batch_samples(&samples, &batch));
  EK__FAIL_IF(samples == 0, EK_ERR_SHAPE, "ek_trainer_predict_host: the batch has no rows");
  EK_TRY(predict_parts(&(struct destination){.host = outputs}, &whole, trainer, &batch, samples,
                       count));
  EK__FAIL_IF(whole, EK_ERR_SHAPE,
              "ek_trainer_predict_host: %s gives an output without rows; ek_trainer_predict() "
              "gives one for each device",
              ek_module_kind(trainer->module));
  return ek_group_synchronize(trainer->group);
}

ek_status ek_trainer_predict_host(ek_tensor *outputs, ek_trainer *trainer, const ek_tensor *inputs,
                                  size_t input_count) {
  EK__NOT_NULL("ek_trainer_predict_host", trainer);
  EK__WORLD_CALL(ek__group_world(trainer->group),
                 run_predict_host(outputs, trainer, inputs, input_count));
}
