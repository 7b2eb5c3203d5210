/*
 * criterion_backward.c - the gradient of the outputs, and with it the model's backward.
 *
 * Both are one job, unless the outputs were gathered: then their gradients are cut between two.
 */
#include <string.h>

#include "core/error.h"
#include "core/options.h"
#include "forward.h"

/* ---- whether it is this forward's turn ---- */

static ek_status out_of_turn(const char *why) {
  return ek_error_set(EK_ERR_STATE, "criterion backward: %s", why);
}

static ek_status check_turn(const struct ek__loss *loss, const ek_data_parallel_model *model) {
  if (!loss->has_forward) {
    return out_of_turn(loss->has_loss ? "the backward of the last criterion forward has already run"
                                      : "no criterion forward has run before it");
  }
  if (loss->forward == 0) {
    return out_of_turn("the outputs given to criterion forward do not come from a forward of a "
                       "model");
  }
  if (loss->forward != model->last.number) {
    return out_of_turn(
        "the outputs given to criterion forward are not those of the model's last forward");
  }
  if (model->last.pending == 0) {
    return out_of_turn(model->last.gradient
                           ? "the backward of the model's last forward has already run, or was "
                             "discarded"
                           : "the model's last forward was without gradient");
  }
  for (size_t i = 0; i < loss->outputs; i++) {
    const struct ek__shards_private *origin = &loss->seen[i].private_members;
    if (origin->forward != loss->forward || origin->output != i) {
      return out_of_turn("the outputs were freed or replaced after criterion forward");
    }
    EK_TRY(ek__shards_check("criterion backward: an output", &loss->seen[i]));
  }
  return EK_OK;
}

static ek_status check_backward(const ek_data_parallel_model *model, const struct ek__loss *loss,
                                const ek_criterion_backward_options *options) {
  EK_TRY(ek__loss_unchanged(model, loss));
  if (model->options.outputs != EK_OUTPUTS_GATHER) { /* else ek__model_backward() checks it */
    EK_TRY(ek__layout_check(&model->run.ranks[0].replica->layout));
  }
  EK_TRY(ek__model_check(model));
  EK_TRY(check_turn(loss, model));
  EK_TRY(ek__backward_check(model, loss->reduction == EK_REDUCTION_MEAN, loss->scaling.factor,
                            ek__loss_keeps_terms(loss)));
  EK__FAIL_IF(options->factors != NULL && (loss->reduction != EK_REDUCTION_NONE ||
                                           options->factors->group != model->run.group),
              EK_ERR_INVALID_ARGUMENT,
              "criterion backward: factors need reduction `none` and the model's group");
  if (options->factors != NULL) {
    EK_TRY(ek__shards_check("criterion backward: factors", options->factors));
  }
  return ek__terms_check_weights(model, loss, options);
}

/* ---- the jobs ---- */

struct job {
  struct ek__backward backward;
  struct ek__loss *loss;
  const ek_shards *factors; /* NULL: all 1 */
  ek_shards *gradients;     /* NULL: each rank runs the model back from its own */
};

static const ek_tensor *factors_of(const struct job *job, size_t place) {
  return job->factors == NULL ? NULL : &job->factors->parts[place];
}

ek_status ek__rank_backward_of_loss(const struct ek__backward *job, struct ek__loss *loss,
                                    struct ek__rank *rank, const ek_tensor *factors) {
  ek_tensor gradients[EK_MAX_TENSORS] = {{0}};
  ek_status status = ek__rank_loss_backward(gradients, job->model, loss, rank, factors);
  if (status == EK_OK) {
    const ek_tensor *totals = job->late ? NULL : &ek__loss_totals(loss)[rank->place];
    status = ek__rank_backward(job, rank, gradients, totals);
  }
  for (size_t i = 0; i < loss->outputs; i++) ek_tensor_free(&gradients[i]);
  return status;
}

static ek_status backward_one(void *context, struct ek__rank *rank) {
  const struct job *job = context;
  return ek__rank_backward_of_loss(&job->backward, job->loss, rank, factors_of(job, rank->place));
}

static ek_status outputs_backward(void *context, struct ek__rank *rank) {
  const struct job *job = context;
  ek_tensor gradients[EK_MAX_TENSORS] = {{0}};
  const ek_status status = ek__rank_loss_backward(gradients, job->backward.model, job->loss, rank,
                                                  factors_of(job, rank->place));
  for (size_t i = 0; i < job->loss->outputs; i++) {
    if (ek_tensor_exists(&gradients[i])) job->gradients[i].parts[rank->place] = gradients[i];
  }
  return status;
}

/* A gradient is on the device of its output; a part without rows is that of the output, without a
 * holder. */
static ek_status lay_out_gradients(ek_shards *gradients, const struct ek__loss *loss) {
  for (size_t i = 0; i < loss->outputs; i++) {
    ek_shards *gradient = &gradients[i], *output = &loss->seen[i];
    EK_TRY(ek_shards_create(gradient, output->group));
    ek__shards_cut_like(gradient, output);
    gradient->private_members.forward = output->private_members.forward;
    gradient->private_members.output = output->private_members.output;
    for (size_t k = 0; k < loss->count; k++) {
      if (ek__loss_has_rows(loss->seen, k)) continue;
      gradient->parts[k] = output->parts[k];
      gradient->parts[k].memory = NULL;
    }
  }
  return EK_OK;
}

/* In mode gather: cuts the gradients of the outputs' device where the forward's rows came from. */
static ek_status backward_gathered(struct job *job) {
  ek_data_parallel_model *model = job->backward.model;
  const struct ek__loss *loss = job->loss;
  ek_shards gradients[EK_MAX_TENSORS] = {{0}};
  ek_backward_options options = EK_BACKWARD_OPTIONS_INIT;
  options.accumulate = job->backward.accumulate;
  options.running = job->backward.running;
  options.totals = ek__loss_totals(loss);
  options.sum = loss->reduction != EK_REDUCTION_MEAN;
  options.loss_scale = loss->scaling.factor;
  job->gradients = gradients;
  ek_status status = lay_out_gradients(gradients, loss);
  if (status == EK_OK) status = ek__ranks_apply(&model->run, outputs_backward, job);
  if (status == EK_OK) {
    status = ek__model_backward(model, gradients, loss->outputs, &options, loss->scaling.unit);
  }
  for (size_t i = 0; i < loss->outputs; i++) ek_shards_free(&gradients[i]);
  job->gradients = NULL;
  return status;
}

static ek_status backward(struct job *job, const ek_criterion_backward_options *options) {
  ek_data_parallel_model *model = job->backward.model;
  struct ek__loss *loss = job->loss;
  EK_TRY(ek__terms_begin(model, loss, options));
  for (size_t i = 0; i < loss->outputs && !loss->form->promises; i++) {
    if (!loss->options.keep_outputs) loss->seen[i].private_members.overwritten = true;
  }
  if (model->options.outputs == EK_OUTPUTS_GATHER) return backward_gathered(job);
  EK_TRY(ek__ranks_apply(&model->run, backward_one, job));
  ek__backward_ran(&job->backward, &loss->scaling, loss->reduction == EK_REDUCTION_MEAN);
  ek__model_drop_forward(model);
  return EK_OK;
}

static ek_status run_call(ek_data_parallel_criterion *parallel,
                          const ek_criterion_backward_options *options) {
  ek_criterion_backward_options o = EK_CRITERION_BACKWARD_OPTIONS_INIT;
  ek_data_parallel_model *model = parallel->model;
  EK__MODEL_ENTER(model, "criterion backward");
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_criterion_backward_options"));
  struct ek__loss *loss = &parallel->loss;
  EK_TRY(check_backward(model, loss, &o));
  struct job job = {.backward = {.model = model,
                                 .accumulate = o.accumulate,
                                 .running = ek__loss_keeps_terms(loss)},
                    .loss = loss,
                    .factors = o.factors};
  const ek_status status = backward(&job, &o);
  if (status == EK_OK) loss->micro_batches = model->step.micro_batches;
  ek__loss_drop_forward(loss);
  if (status != EK_OK) ek__model_end_step(model, false);
  return status;
}

ek_status ek_data_parallel_criterion_backward(ek_data_parallel_criterion *parallel,
                                              const ek_criterion_backward_options *options) {
  EK__NOT_NULL("criterion backward", parallel);
  EK__WORLD_CALL(ek__model_world(parallel->model), run_call(parallel, options));
}
