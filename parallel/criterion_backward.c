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

static ek_status check_backward(const struct ek__backward *job,
                                const ek_criterion_backward_options *options) {
  const ek_data_parallel_model *model = job->model;
  const struct ek__loss *loss = job->loss;
  EK_TRY(ek__loss_unchanged(model, loss));
  EK_TRY(ek__layout_check(&model->run.ranks[0].replica->layout));
  EK_TRY(ek__model_check(model));
  EK_TRY(check_turn(loss, model));
  EK_TRY(ek__backward_check(job));
  EK__FAIL_IF(options->factors != NULL && (loss->reduction != EK_REDUCTION_NONE ||
                                           options->factors->group != model->run.group),
              EK_ERR_INVALID_ARGUMENT,
              "criterion backward: factors need reduction `none` and the model's group");
  if (options->factors != NULL) {
    EK_TRY(ek__shards_check("criterion backward: factors", options->factors));
  }
  return ek__terms_check_weights(model, loss, options);
}

/* ---- running it ---- */

struct ek__backward ek__backward_of(ek_data_parallel_model *model, struct ek__loss *loss,
                                    bool accumulate) {
  return (struct ek__backward){.model = model,
                               .accumulate = accumulate,
                               .running = ek__loss_keeps_terms(loss),
                               .divided = loss->reduction == EK_REDUCTION_MEAN,
                               .scaling = loss->scaling,
                               .loss = loss};
}

ek_status ek__rank_backward_of_loss(void *context, struct ek__rank *rank) {
  const struct ek__backward *job = context;
  ek_tensor gradients[EK_MAX_TENSORS] = {{0}};
  ek_status status = ek__rank_loss_backward(gradients, job, rank);
  if (status == EK_OK) {
    const ek_tensor *totals = job->late ? NULL : ek__loss_totals(job->loss, rank);
    status = ek__rank_backward(job, rank, gradients, totals);
  }
  for (size_t i = 0; i < job->loss->outputs; i++) ek_tensor_free(&gradients[i]);
  return status;
}

static ek_status outputs_backward(void *context, struct ek__rank *rank) {
  const struct ek__backward *job = context;
  ek_tensor gradients[EK_MAX_TENSORS] = {{0}};
  const ek_status status = ek__rank_loss_backward(gradients, job, rank);
  for (size_t i = 0; i < job->loss->outputs; i++) {
    job->gradients[i].parts[rank->place] = gradients[i];
  }
  return status;
}

/* In mode gather: one device has the outputs, and so their gradients. */
static ek_status backward_gathered(struct ek__backward job) {
  ek_shards gradients[EK_MAX_TENSORS] = {{0}};
  ek_status status = EK_OK;
  job.gradients = gradients;
  for (size_t i = 0; i < job.loss->outputs && status == EK_OK; i++) {
    status = ek_shards_create(&gradients[i], job.model->run.group);
  }
  if (status == EK_OK) status = ek__ranks_apply(&job.model->run, outputs_backward, &job);
  if (status == EK_OK) status = ek__backward_run(job);
  for (size_t i = 0; i < job.loss->outputs; i++) ek_shards_free(&gradients[i]);
  return status;
}

static ek_status backward(struct ek__backward *job, const ek_criterion_backward_options *options) {
  ek_data_parallel_model *model = job->model;
  struct ek__loss *loss = job->loss;
  EK_TRY(ek__terms_begin(model, loss, options));
  for (size_t i = 0; i < loss->outputs && !loss->form->promises; i++) {
    if (!loss->options.keep_outputs) loss->seen[i].private_members.overwritten = true;
  }
  if (model->options.outputs == EK_OUTPUTS_GATHER) return backward_gathered(*job);
  EK_TRY(ek__ranks_apply(&model->run, ek__rank_backward_of_loss, job));
  ek__backward_ran(job);
  return EK_OK;
}

static ek_status run_call(ek_data_parallel_criterion *parallel,
                          const ek_criterion_backward_options *options) {
  ek_criterion_backward_options o = EK_CRITERION_BACKWARD_OPTIONS_INIT;
  ek_data_parallel_model *model = parallel->model;
  EK__MODEL_ENTER(model, "criterion backward");
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_criterion_backward_options"));
  struct ek__loss *loss = &parallel->loss;
  struct ek__backward job = ek__backward_of(model, loss, o.accumulate);
  job.factors = o.factors;
  EK_TRY(check_backward(&job, &o));
  const ek_status status = backward(&job, &o);
  if (status == EK_OK) loss->micro_batches = model->step.micro_batches;
  ek__model_drop_forward(model);
  ek__loss_drop_forward(model, loss);
  if (status != EK_OK) ek__model_end_step(model, false);
  return status;
}

ek_status ek_data_parallel_criterion_backward(ek_data_parallel_criterion *parallel,
                                              const ek_criterion_backward_options *options) {
  EK__NOT_NULL("criterion backward", parallel);
  EK__WORLD_CALL(ek__model_world(parallel->model), run_call(parallel, options));
}
