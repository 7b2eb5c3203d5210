/*
 * model_backward.c - the backward of a data-parallel model, in the model's thread.
 *
 * Checks the gradients, and cuts those of gathered outputs as the forward's rows were cut. The
 * workers run the passes of the last forward back (rank.c) and meanwhile sum gradients over the
 * ranks.
 */
#include <evenkeel/loss_scale.h>

#include "core/error.h"
#include "core/options.h"
#include "forward.h"

/* Rows of output number `index`: of the ranks before number `count`. */
static int64_t rows_before(const ek_data_parallel_model *model, size_t index, size_t count) {
  int64_t rows = 0;
  for (size_t k = 0; k < count; k++) {
    const struct ek__rank *rank = &model->run.ranks[k];
    if (rank->pieces.samples > 0) rows += ek__part_rows(&rank->outputs[index]);
  }
  return rows;
}

/* Whether each part is like the forward's and on its device; of gathered outputs, where a row of
 * scalars is a scalar, whether one device has all rows. */
static bool is_laid_out(const ek_data_parallel_model *model, const ek_shards *gradient,
                        size_t index) {
  const bool gathered = model->options.outputs == EK_OUTPUTS_GATHER;
  const struct ek__rank *target = &model->run.ranks[model->options.output_device];
  const ek_tensor *whole = &gradient->parts[target->place];
  const int64_t rows = rows_before(model, index, model->run.count);
  bool same = !gathered || (ek_tensor_exists(whole) && whole->rank > 0 && whole->shape[0] == rows);
  EK__EACH_RANK(rank, &model->run) {
    const struct ek__rank *at = gathered ? target : rank;
    const ek_tensor *part = &gradient->parts[at->place];
    ek_tensor like = rank->outputs[index];
    if (gathered && like.rank == 0) like.rank = 1;
    if (gathered) like.shape[0] = rows;
    if (rank->pieces.samples == 0) continue;
    same = same && part->device == at->device && ek_tensor_same_shape(part, &like);
  }
  return same;
}

static ek_status check_gradients(const ek_data_parallel_model *model, const ek_shards *gradients,
                                 size_t count) {
  EK__FAIL_IF(count != ek_module_outputs(model->module), EK_ERR_INVALID_ARGUMENT,
              "backward: %s has %zu outputs, not %zu", ek_module_kind(model->module),
              ek_module_outputs(model->module), count);
  for (size_t i = 0; i < count; i++) {
    const ek_shards *gradient = &gradients[i];
    const struct ek__shards_private *origin = &gradient->private_members;
    EK__FAIL_IF(
        origin->forward != 0 && (origin->forward != model->last.pending || origin->output != i),
        EK_ERR_STATE,
        "backward: gradient number %zu is not of output number %zu of the model's last forward", i,
        i);
    if (gradient->group == model->run.group) EK_TRY(ek__shards_check("backward", gradient));
    EK__FAIL_IF(gradient->group != model->run.group || !is_laid_out(model, gradient, i),
                EK_ERR_SHAPE,
                "backward: gradient number %zu is not laid out like the forward's "
                "output",
                i);
  }
  return EK_OK;
}

ek_status ek__backward_check(const struct ek__backward *job) {
  const struct ek__step *step = &job->model->step;
  if (step->stage == EK__STEP_EMPTY) return EK_OK;
  EK__FAIL_IF(
      step->divided != job->divided, EK_ERR_STATE,
      "backward: gradients to be divided by a weight (reduction `mean`) and gradients not to "
      "be divided cannot be accumulated in one step");
  EK__FAIL_IF(step->scaling.factor != job->scaling.factor, EK_ERR_STATE,
              "backward: gradients with loss scales %g and %g cannot be accumulated in one step",
              step->scaling.factor, job->scaling.factor);
  EK__FAIL_IF(
      step->running != job->running, EK_ERR_STATE,
      "backward: totals of the step so far and totals of one micro-batch cannot be combined");
  return EK_OK;
}

static ek_status check_backward(const struct ek__backward *job, size_t count) {
  const ek_data_parallel_model *model = job->model;
  EK_TRY(ek__layout_check(&model->run.ranks[0].replica->layout)); /* its counts size arrays */
  EK__FAIL_IF(model->last.pending == 0, EK_ERR_STATE,
              "backward: no forward with gradient has run before it");
  EK__FAIL_IF(model->last.scale != 0, EK_ERR_STATE,
              "backward: the forward computed gradients for a criterion's scale "
              "(gradient_in_forward); call that criterion's backward");
  EK__FAIL_IF(job->running && job->totals == NULL, EK_ERR_INVALID_ARGUMENT,
              "backward: options.running without options.totals");
  EK_TRY(ek__backward_check(job));
  for (size_t k = 0; k < model->run.count && job->totals != NULL; k++) {
    const ek_tensor *totals = &job->totals[k];
    EK__FAIL_IF(totals->type != EK_F64 || ek_tensor_count(totals) != 2 ||
                    totals->device != model->run.ranks[k].device,
                EK_ERR_INVALID_ARGUMENT, "backward: totals number %zu is not two f64 on its device",
                k);
  }
  return check_gradients(model, job->gradients, count);
}

/* Cuts gathered gradients where the forward's rows came from; views on the device that has them. */
static ek_status scatter_gradients(ek_shards *parts, const ek_data_parallel_model *model,
                                   const ek_shards *gradients, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const ek_tensor *whole = &gradients[i].parts[model->options.output_device];
    EK_TRY(ek_shards_create(&parts[i], model->run.group));
    for (size_t k = 0; k <= model->run.count; k++) parts[i].offsets[k] = rows_before(model, i, k);
    EK_TRY(ek__scatter_fill(&parts[i], whole, EK_MEMORY_LOSS, NULL));
    for (size_t k = 0; k < model->run.count; k++) {
      /* Scalars were gathered to a vector: each is a scalar again. */
      const struct ek__rank *rank = &model->run.ranks[k];
      if (rank->pieces.samples > 0) parts[i].parts[k].rank = rank->outputs[i].rank;
    }
  }
  return EK_OK;
}

void ek__backward_ran(const struct ek__backward *job) {
  struct ek__step *step = &job->model->step;
  step->divided = job->divided;
  step->scaling = job->scaling;
  step->stage = job->accumulate ? EK__STEP_ACCUMULATED : EK__STEP_REDUCED;
  step->running = job->running;
  step->micro_batches++;
  step->samples += job->model->last.batch_samples;
}

static ek_status backward_one(void *context, struct ek__rank *rank) {
  const struct ek__backward *job = context;
  const ek_tensor *totals = job->loss != NULL     ? ek__loss_totals(job->loss, rank)
                            : job->totals == NULL ? NULL
                                                  : &job->totals[rank->place];
  ek_tensor gradients[EK_MAX_TENSORS];
  for (size_t i = 0; i < ek_module_outputs(job->model->module); i++) {
    gradients[i] = job->gradients[i].parts[rank->place];
  }
  return ek__rank_backward(job, rank, gradients, totals);
}

ek_status ek__backward_run(struct ek__backward job) {
  const ek_data_parallel_model *model = job.model;
  const size_t count = ek_module_outputs(model->module);
  ek_status status = EK_OK;
  ek_shards parts[EK_MAX_TENSORS] = {{0}}; /* of gathered gradients */
  if (model->options.outputs == EK_OUTPUTS_GATHER && model->last.samples > 0) {
    EK_TRY_GOTO(status, scatter_gradients(parts, model, job.gradients, count), cleanup);
    job.gradients = parts;
  }
  EK_TRY_GOTO(status, ek__ranks_apply(&job.model->run, backward_one, &job), cleanup);
  ek__backward_ran(&job);
cleanup:
  for (size_t i = 0; i < count; i++) ek_shards_free(&parts[i]);
  return status;
}

static ek_status backward(ek_data_parallel_model *model, const ek_shards *gradients, size_t count,
                          const ek_backward_options *options) {
  ek_backward_options o = EK_BACKWARD_OPTIONS_INIT;
  EK__NOT_NULL("backward", model, gradients);
  EK__MODEL_ENTER(model, "backward");
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_backward_options"));
  if (o.loss_scale == 0) o.loss_scale = 1;
  const ek_loss_scale given = {.kind = EK_LOSS_SCALE_STATIC, .scale = o.loss_scale};
  EK_TRY(ek_loss_scale_check(&given));
  EK_TRY(ek__model_check_step(model));
  struct ek__backward job = {.model = model,
                             .accumulate = o.accumulate,
                             .running = o.running,
                             .divided = o.totals != NULL && !o.sum,
                             .scaling = {o.loss_scale, 1},
                             .gradients = gradients,
                             .totals = o.totals};
  EK_TRY(check_backward(&job, count));
  const ek_status status = ek__backward_run(job);
  ek__model_drop_forward(model);
  if (status != EK_OK) ek__model_end_step(model, false);
  return status;
}

ek_status ek_data_parallel_model_backward(ek_data_parallel_model *model, const ek_shards *gradients,
                                          size_t count, const ek_backward_options *options) {
  EK__WORLD_CALL(ek__model_world(model), backward(model, gradients, count, options));
}
