/*
 * micro_batches.c - a micro-batch as one job. A worker cuts its share of the inputs, runs the model
 * forward, cuts its targets, computes the loss, adds up {s, D} with the other ranks, and runs loss
 * and model back while gradients are summed. A rank waits for another one only for data that it
 * needs from it. Between processes whose devices compute in the memory of the host, the last
 * micro-batch of a step leaves its {s, D} to the agreement on the update (agreement.c).
 *
 * Two cases need all ranks, or the host, in between, and use the calls of model and criterion
 * instead: outputs that are gathered on one device (mode gather), and a loss of several terms over
 * several micro-batches, whose weights the host compares (criterion_backward.c).
 */
#include "forward.h"

const ek_module *ek__model_mixer(const ek_data_parallel_model *model) {
  return model->run.ranks[0].replica->layout.mixer;
}

struct job {
  struct ek__forward forward;
  struct ek__loss_forward loss;
  struct ek__backward backward; /* laid out when the scale of the loss is known */
  bool gradient, norm;
};

static ek_status run_rank(void *context, struct ek__rank *rank) {
  struct job *job = context;
  EK_TRY(ek__rank_forward(&job->forward, rank));
  EK_TRY(ek__rank_loss_forward(&job->loss, rank));
  if (!job->gradient) return EK_OK;
  EK_TRY(ek__rank_backward_of_loss(&job->backward, rank));
  const ek_data_parallel_model *model = job->backward.model;
  return job->norm ? model->run.reduction->norm(model, rank) : EK_OK;
}

/* Checks the arguments; nothing is lost if it fails. */
static ek_status lay(struct job *job, ek_data_parallel_model *model, struct ek__loss *loss,
                     const struct ek__batch *batch, const ek_forward_options *options) {
  EK_TRY(ek__forward_lay(&job->forward, model, batch->inputs, NULL, batch->input_count, options));
  EK_TRY(ek__loss_check_call(model, loss, job->forward.output_count, batch->target_count));
  return ek__loss_lay(&job->loss, model, loss, &job->forward.inputs.shards[job->forward.lead],
                      batch->targets, NULL, batch->target_count);
}

static ek_status begin(struct job *job, ek_shards *outputs, bool accumulate) {
  ek_data_parallel_model *model = job->forward.model;
  struct ek__loss *loss = job->loss.loss;
  EK_TRY(ek__forward_begin(&job->forward, outputs));
  ek__loss_begin(&job->loss, outputs, job->gradient);
  if (!job->gradient) return EK_OK;
  EK_TRY(ek__backward_begin(&job->backward, model, loss, accumulate));
  job->backward.late = job->loss.late;
  return EK_OK;
}

static ek_status run(struct job *job, ek_shards *outputs, bool accumulate) {
  ek_data_parallel_model *model = job->forward.model;
  struct ek__loss *loss = job->loss.loss;
  EK_TRY(begin(job, outputs, accumulate));
  EK_TRY(ek__ranks_apply(&model->run, run_rank, job));
  ek__forward_ran(&job->forward);
  EK_TRY(ek__forward_check(&job->forward));
  loss->has_loss = !job->loss.late;
  if (!job->gradient) return EK_OK;
  ek__backward_ran(&job->backward);
  loss->micro_batches = model->step.micro_batches;
  model->step.norm = job->norm;
  model->step.late = job->loss.late ? loss : NULL;
  return EK_OK;
}

static ek_status run_in_one(ek_data_parallel_model *model, struct ek__loss *loss,
                            const struct ek__batch *batch, const ek_forward_options *options,
                            enum ek__next next) {
  /* The ranks may read the squares of a master's gradient in the memory of rank 0, which need not
   * be there before all have ended the job. */
  const bool norm = next == EK__NEXT_UPDATE_BY_NORM;
  struct job job; /* large: what is laid out writes it once */
  ek_shards outputs[EK_MAX_TENSORS] = {{0}};
  job.gradient = options->gradient;
  job.norm = norm && !ek__placement(model)->master;
  job.loss.targets.sources = NULL;
  ek_status status = lay(&job, model, loss, batch, options);
  if (status == EK_OK) {
    /* The gradient of several terms needs their weights, which are in the totals. */
    job.loss.late = (next == EK__NEXT_UPDATE || norm) && model->run.totals_ride && loss->terms == 1;
    status = run(&job, outputs, next == EK__NEXT_MORE);
    ek__model_drop_forward(model);
    ek__loss_drop_forward(model, loss);
    if (status != EK_OK) ek__model_end_step(model, false);
    for (size_t i = 0; i < job.forward.output_count; i++) ek_shards_free(&outputs[i]);
  }
  ek__given_free(&job.loss.targets);
  ek__given_free(&job.forward.inputs);
  return status;
}

static ek_status run_in_calls(ek_data_parallel_model *model, ek_data_parallel_criterion *criterion,
                              const struct ek__batch *batch, const ek_forward_options *options,
                              bool accumulate) {
  ek_criterion_backward_options backward = EK_CRITERION_BACKWARD_OPTIONS_INIT;
  ek_shards outputs[EK_MAX_TENSORS] = {{0}};
  const size_t count = criterion->loss.outputs;
  backward.accumulate = accumulate;
  ek_status status =
      ek_data_parallel_model_forward(outputs, model, batch->inputs, batch->input_count, options);
  if (status == EK_OK) {
    status = ek_data_parallel_criterion_forward(criterion, outputs, count, batch->targets,
                                                batch->target_count);
  }
  if (status == EK_OK && options->gradient) {
    status = ek_data_parallel_criterion_backward(criterion, &backward);
  }
  ek__loss_drop_forward(model, &criterion->loss); /* it looks at the outputs, which end here */
  for (size_t i = 0; i < count; i++) ek_shards_free(&outputs[i]);
  return status;
}

ek_status ek__batch_run(ek_data_parallel_model *model, ek_data_parallel_criterion *criterion,
                        const struct ek__batch *batch, const ek_forward_options *options,
                        enum ek__next next) {
  EK__MODEL_ENTER(model, "a batch");
  struct ek__loss *loss = &criterion->loss;
  const bool accumulate = next == EK__NEXT_MORE;
  const bool several = accumulate || model->step.stage != EK__STEP_EMPTY;
  const bool compares = options->gradient && several && ek__loss_keeps_terms(loss);
  if (compares || model->options.outputs == EK_OUTPUTS_GATHER) {
    return run_in_calls(model, criterion, batch, options, accumulate);
  }
  return run_in_one(model, loss, batch, options, next);
}
