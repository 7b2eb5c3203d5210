/*
 * criterion_backward.c - the gradient of the outputs, and with it the model's backward.
 *
 * Both are one job, unless the outputs were gathered: then their gradients are cut between two.
 *
 * With one term the totals {s, d} of the micro-batches are added up by the model, and the update
 * divides by the sum of d. Several terms with reduction `mean` have a D each: the loss of a step is
 * sum c[j] S[j] / D[j], with S and D over all its micro-batches, as in one batch. S and D are kept
 * here and combined again with each micro-batch. The gradient cannot be corrected afterwards: that
 * of an earlier micro-batch is part of one sum over all terms, scaled with the weights known then.
 * It is right in two cases, and everything else is refused:
 *   - the program gives the weights of the whole step (options.weights): each micro-batch is scaled
 *     with these, and before the update they are compared with the weights of the targets;
 *   - the weights of the terms have the same ratios in every micro-batch.
 * Both comparisons read a few numbers of rank 0, so the host waits for them; with one term, or one
 * micro-batch a step, it never waits.
 *
 * Invariant: micro_batches is 0 or the number of the model's micro-batches whose totals are in
 * step_totals and weights.
 */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/options.h"
#include "forward.h"

/* ---- several terms ---- */

/* Weights are whole numbers, or sums of class weights in an order of their own. */
static bool nearly_equal(double a, double b) { return fabs(a - b) <= 1e-12 * (fabs(a) + fabs(b)); }

static double largest(const double *values, size_t count, size_t *index) {
  *index = 0;
  for (size_t j = 1; j < count; j++) {
    if (values[j] > values[*index]) *index = j;
  }
  return values[*index];
}

static ek_status check_weights(const ek_data_parallel_model *model, const struct ek__loss *loss,
                               const double *weights) {
  const size_t terms = loss->terms;
  for (size_t j = 0; j < terms; j++) {
    EK__FAIL_IF(!(weights[j] >= 0 && isfinite(weights[j])), EK_ERR_INVALID_ARGUMENT,
                "criterion backward: weight number %zu is %g, expected a finite number >= "
                "0",
                j, weights[j]);
  }
  if (model->step.stage == EK__STEP_EMPTY) return EK_OK;
  EK__FAIL_IF(!loss->weights_given || memcmp(weights, loss->weights, terms * sizeof *weights) != 0,
              EK_ERR_INVALID_ARGUMENT,
              "criterion backward: options.weights must be given with every micro-batch of a step, "
              "each time with the same values");
  return EK_OK;
}

/* This micro-batch weighs the terms as the ones before it did, or nothing has come before it. */
static ek_status check_ratios(const ek_data_parallel_model *model, struct ek__loss *loss) {
  const size_t terms = loss->terms;
  double totals[2 * EK_MAX_TERMS] = {0}, own[EK_MAX_TERMS], sum = 0, weight = 0;
  size_t reference = 0;
  EK_TRY(ek__read_numbers(totals, 2 * (int64_t)terms,
                          &ek__loss_of(&model->run.ranks[0], loss)->totals.sum));
  for (size_t j = 0; j < terms; j++) {
    own[j] = totals[2 * j + 1];
    sum += fabs(totals[2 * j]);
    weight += own[j];
  }
  if (sum == 0 && weight == 0) return EK_OK; /* it adds nothing to anything */
  EK__FAIL_IF(weight == 0, EK_ERR_STATE,
              "criterion backward: the targets of this micro-batch have losses but a weight of 0; "
              "options.weights must say how to scale its terms");
  const bool first = largest(loss->weights, terms, &reference) == 0;
  for (size_t j = 0; j < terms && !first; j++) {
    if (nearly_equal(own[j] * loss->weights[reference], own[reference] * loss->weights[j]))
      continue;
    return ek_error_set(
        EK_ERR_STATE,
        "criterion backward: terms number %zu and %zu weigh %g and %g in this micro-batch, but %g "
        "and %g in the step's earlier ones: with unequal ratios, options.weights must give the "
        "weights of the whole step",
        j, reference, own[j], own[reference], loss->weights[j], loss->weights[reference]);
  }
  for (size_t j = 0; j < terms; j++) loss->weights[j] += own[j];
  return EK_OK;
}

static ek_status verify(const ek_data_parallel_model *model, const struct ek__loss *loss) {
  const size_t terms = loss->terms;
  double totals[2 * EK_MAX_TERMS] = {0};
  EK_TRY(ek__read_numbers(totals, 2 * (int64_t)terms,
                          &ek__loss_of(&model->run.ranks[0], loss)->step_totals));
  for (size_t j = 0; j < terms; j++) {
    if (nearly_equal(totals[2 * j + 1], loss->weights[j])) continue;
    return ek_error_set(
        EK_ERR_INVALID_ARGUMENT,
        "the targets of the step weigh %g in term number %zu, but options.weights says %g",
        totals[2 * j + 1], j, loss->weights[j]);
  }
  return EK_OK;
}

/* c[j] L / W[j], L the largest of the weights, times the loss scale; 0 for a term without
 * weight. */
static void scales_of_weights(double *scales, const struct ek__loss *loss) {
  size_t index = 0;
  const double most = largest(loss->weights, loss->terms, &index);
  for (size_t j = 0; j < loss->terms; j++) {
    const double coefficient = loss->coefficients[j] * loss->scaling.factor;
    scales[j] = loss->weights[j] > 0 ? coefficient * (most / loss->weights[j]) : 0;
  }
}

ek_status ek__terms_verify(const ek_data_parallel_model *model) {
  for (const struct ek__loss *loss = model->losses; loss != NULL; loss = loss->next) {
    if (loss->verify) EK_TRY(verify(model, loss));
  }
  return EK_OK;
}

/* Whether the weights of a micro-batch go with those of the step. */
static ek_status check_terms(const ek_data_parallel_model *model, const struct ek__loss *loss,
                             const ek_criterion_backward_options *options) {
  const bool begun = model->step.stage != EK__STEP_EMPTY;
  if (!ek__loss_keeps_terms(loss)) return EK_OK; /* weights would change nothing */
  EK__FAIL_IF(begun && loss->micro_batches != model->step.micro_batches, EK_ERR_STATE,
              "criterion backward: this criterion has several terms, but the step's earlier "
              "micro-batches used another loss");
  if (options->weights != NULL) return check_weights(model, loss, options->weights);
  EK__FAIL_IF(
      begun && loss->weights_given, EK_ERR_INVALID_ARGUMENT,
      "criterion backward: the step's first micro-batch had weights, so all others must have them");
  return EK_OK;
}

/* A micro-batch is about to be added. */
static ek_status begin_terms(const ek_data_parallel_model *model, struct ek__loss *loss,
                             const ek_criterion_backward_options *options) {
  const bool begun = model->step.stage != EK__STEP_EMPTY;
  if (!ek__loss_keeps_terms(loss)) return EK_OK;
  if (!begun) {
    loss->micro_batches = 0;
    loss->weights_given = options->weights != NULL;
    for (size_t j = 0; j < loss->terms; j++) {
      loss->weights[j] = loss->weights_given ? options->weights[j] : 0;
    }
  }
  if (loss->weights_given) {
    scales_of_weights(loss->given_scales, loss);
    loss->verify = true;
    return EK_OK;
  }
  const bool several = begun || options->accumulate;
  const bool real = !ek_device_counts_only(model->run.ranks[0].device);
  return several && real ? check_ratios(model, loss) : EK_OK;
}

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
  EK_TRY(ek__model_check_step(job->model));
  EK_TRY(check_turn(loss, model));
  EK_TRY(ek__backward_check(job));
  EK__FAIL_IF(options->factors != NULL && (loss->reduction != EK_REDUCTION_NONE ||
                                           options->factors->group != model->run.group),
              EK_ERR_INVALID_ARGUMENT,
              "criterion backward: factors need reduction `none` and the model's group");
  if (options->factors != NULL) {
    EK_TRY(ek__shards_check("criterion backward: factors", options->factors));
  }
  return check_terms(model, loss, options);
}

/* ---- running it ---- */

static struct ek__backward backward_of(ek_data_parallel_model *model, struct ek__loss *loss,
                                       bool accumulate) {
  return (struct ek__backward){.model = model,
                               .accumulate = accumulate,
                               .running = ek__loss_keeps_terms(loss),
                               .divided = loss->reduction == EK_REDUCTION_MEAN,
                               .scaling = loss->scaling,
                               .loss = loss};
}

ek_status ek__backward_begin(struct ek__backward *job, ek_data_parallel_model *model,
                             struct ek__loss *loss, bool accumulate) {
  ek_criterion_backward_options options = EK_CRITERION_BACKWARD_OPTIONS_INIT;
  options.accumulate = accumulate;
  *job = backward_of(model, loss, accumulate);
  EK_TRY(ek__backward_check(job));
  EK_TRY(check_terms(model, loss, &options));
  return begin_terms(model, loss, &options);
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
  EK_TRY(begin_terms(model, loss, options));
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
  struct ek__backward job = backward_of(model, loss, o.accumulate);
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
