/*
 * criterion_backward.c - the gradient of the outputs, and with it the model's backward.
 *
 * With one term the totals {s, d} of the micro-batches are added up by the model, and the update
 * divides by the sum of d. Several terms with reduction `mean` have a D each: the loss of a step is
 * sum c[j] S[j] / D[j], with S and D over all its micro-batches, as in one batch. S and D are kept
 * here and put together anew with each micro-batch. The gradient is not so easily mended: that of
 * an earlier micro-batch has gone into one sum over all terms, scaled with the weights known then.
 * That is right in two cases, and everything else is refused:
 *   - the weights of the whole step are given (options.weights): each micro-batch is scaled with
 *     these, and before the update they are compared with what the targets really weighed;
 *   - the weights of the terms have the same ratios in every micro-batch.
 * Both comparisons read a few numbers of device 0, so here the host waits; with one term, or one
 * micro-batch a step, it never does.
 *
 * Invariant: micro_batches is 0 or the number of the model's micro-batches whose totals are in
 * step_totals and weights.
 */
#include <math.h>
#include <string.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/losses.h>

#include "core/error.h"
#include "core/options.h"
#include "criterion_internal.h"

struct criterion_backward_job {
  ek_data_parallel_criterion *self;
  const ek_shards *factors;    /* NULL: all 1 */
  ek_shards *gradients;        /* one per output */
  double scales[EK_MAX_TERMS]; /* if the weights were given: the factors that they make */
};

/* ---- several terms over several micro-batches ---- */

/* Weights are whole numbers, or sums of class weights in an order of their own. */
static bool nearly_equal(double a, double b) { return fabs(a - b) <= 1e-12 * (fabs(a) + fabs(b)); }

static double largest(const double *values, size_t count, size_t *index) {
  *index = 0;
  for (size_t j = 1; j < count; j++) {
    if (values[j] > values[*index]) *index = j;
  }
  return values[*index];
}

static ek_status check_weights(const ek_data_parallel_criterion *self, const double *weights) {
  const size_t terms = self->terms;
  for (size_t j = 0; j < terms; j++) {
    EK__FAIL_IF(!(weights[j] >= 0 && isfinite(weights[j])), EK_ERR_INVALID_ARGUMENT,
                "criterion backward: weight number %zu is %g", j, weights[j]);
  }
  if (self->model->stage == EK__STEP_EMPTY) return EK_OK;
  EK__FAIL_IF(!self->weights_given || memcmp(weights, self->weights, terms * sizeof *weights) != 0,
              EK_ERR_INVALID_ARGUMENT,
              "criterion backward: the weights of a step are given with each of its micro-batches, "
              "and are the same for all of them");
  return EK_OK;
}

/* This micro-batch weighs the terms as the ones before it did, or nothing has come before it. */
static ek_status check_ratios(ek_data_parallel_criterion *self) {
  const size_t terms = self->terms;
  double totals[2 * EK_MAX_TERMS] = {0}, own[EK_MAX_TERMS], sum = 0, weight = 0;
  size_t reference = 0;
  EK_TRY(ek__read_numbers(totals, 2 * (int64_t)terms, &self->devices[0].totals));
  for (size_t j = 0; j < terms; j++) {
    own[j] = totals[2 * j + 1];
    sum += fabs(totals[2 * j]);
    weight += own[j];
  }
  if (sum == 0 && weight == 0) return EK_OK; /* it adds nothing to anything */
  EK__FAIL_IF(weight == 0, EK_ERR_STATE,
              "criterion backward: the targets of this micro-batch have losses and weigh nothing: "
              "how its terms are to be scaled only options.weights can tell");
  const bool first = largest(self->weights, terms, &reference) == 0;
  for (size_t j = 0; j < terms && !first; j++) {
    if (nearly_equal(own[j] * self->weights[reference], own[reference] * self->weights[j]))
      continue;
    return ek_error_set(
        EK_ERR_STATE,
        "criterion backward: terms number %zu and %zu weigh %g and %g in this micro-batch, %g and "
        "%g in the earlier ones of the step: with unequal ratios the gradient is that of one batch "
        "only if options.weights gives the weights of the whole step",
        j, reference, own[j], own[reference], self->weights[j], self->weights[reference]);
  }
  for (size_t j = 0; j < terms; j++) self->weights[j] += own[j];
  return EK_OK;
}

/* Before the update: the weights that were given are what the step's targets weighed. */
static ek_status verify_weights(void *context) {
  ek_data_parallel_criterion *self = context;
  const size_t terms = self->terms;
  double totals[2 * EK_MAX_TERMS] = {0};
  EK_TRY(ek__read_numbers(totals, 2 * (int64_t)terms, &self->devices[0].step_totals));
  for (size_t j = 0; j < terms; j++) {
    if (nearly_equal(totals[2 * j + 1], self->weights[j])) continue;
    return ek_error_set(
        EK_ERR_INVALID_ARGUMENT,
        "the targets of the step weigh %g in term number %zu, and %g was given as its weight",
        totals[2 * j + 1], j, self->weights[j]);
  }
  return EK_OK;
}

/* c[j] L / W[j], L the largest of the weights, times the loss scale; what weighs nothing counts for
 * nothing. */
static void scales_of_weights(double *scales, const ek_data_parallel_criterion *self) {
  size_t index = 0;
  const double most = largest(self->weights, self->terms, &index);
  for (size_t j = 0; j < self->terms; j++) {
    const double coefficient = self->coefficients[j] * self->scaling.factor;
    scales[j] = self->weights[j] > 0 ? coefficient * (most / self->weights[j]) : 0;
  }
}

static ek_status begin_terms(ek_data_parallel_criterion *self, struct criterion_backward_job *job,
                             const ek_criterion_backward_options *options) {
  ek_data_parallel_model *model = self->model;
  if (model->stage == EK__STEP_EMPTY) {
    self->micro_batches = 0;
    self->weights_given = options->weights != NULL;
    for (size_t j = 0; j < self->terms; j++) {
      self->weights[j] = self->weights_given ? options->weights[j] : 0;
    }
  }
  if (self->weights_given) {
    scales_of_weights(job->scales, self);
    model->before_update = verify_weights;
    model->before_update_context = self;
    return EK_OK;
  }
  const bool several = model->stage != EK__STEP_EMPTY || options->accumulate;
  const bool real = !ek_device_counts_only(ek_group_device(model->group, 0));
  return several && real ? check_ratios(self) : EK_OK;
}

/* Adds this micro-batch to the step, on a device's worker. */
static ek_status add_terms(const struct criterion_backward_job *job, ek_stream *stream,
                           size_t index) {
  ek_data_parallel_criterion *self = job->self;
  struct ek__criterion_device *own = &self->devices[index];
  ek_tensor *step = &own->step_totals, *combined = &self->step_combined[index];
  const ek_tensor *totals = &own->totals;
  EK_TRY(self->micro_batches == 0 ? ek_op_copy(stream, step, totals)
                                  : ek_op_add(stream, step, step, totals));
  if (self->weights_given) {
    EK_TRY(ek_op_combine_totals(stream, combined, &own->scales, totals, job->scales, false));
  }
  return ek_op_combine_totals(stream, combined, &own->step_scales, step, self->coefficients, true);
}

/* ---- the gradient of the outputs ---- */

/* The gradient of single losses: the factors, times the coefficient and the loss scale. */
static ek_status make_factors(ek_tensor *made, const struct criterion_backward_job *job,
                              ek_device *device, size_t index) {
  const ek_tensor *losses = &job->self->devices[index].losses;
  const double coefficient = job->self->coefficients[0] * job->self->scaling.factor;
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_tensor given = {0};
  if (job->factors != NULL) {
    const ek_tensor *factors = &job->factors->parts[index];
    EK__FAIL_IF(ek_tensor_count(factors) != ek_tensor_count(losses), EK_ERR_SHAPE,
                "criterion backward: %lld factors for %lld losses",
                (long long)ek_tensor_count(factors), (long long)ek_tensor_count(losses));
    EK_TRY(ek_tensor_reshape(&given, factors, losses->rank, losses->shape));
    if (coefficient == 1) {
      *made = given;
      return EK_OK;
    }
  }
  ek_status status =
      ek_tensor_create(made, device, EK_MEMORY_LOSS, losses->type, losses->rank, losses->shape);
  if (status == EK_OK) {
    status = job->factors == NULL ? ek_op_fill(stream, made, coefficient)
                                  : ek_op_scale(stream, made, &given, coefficient);
  }
  ek_tensor_free(&given);
  return status;
}

static ek_status backward_one(void *context, ek_device *device, size_t index) {
  const struct criterion_backward_job *job = context;
  ek_data_parallel_criterion *self = job->self;
  struct ek__criterion_device *own = &self->devices[index];
  ek_tensor results[EK_MAX_INPUTS] = {{0}}, factors = {0};
  if (ek__criterion_keeps_terms(self)) {
    EK_TRY(add_terms(job, ek_device_stream(device, EK_STREAM_COMPUTE), index));
  }
  if (self->of_model) return ek_tensor_share(&job->gradients[0].parts[index], &own->scales);
  if (!ek__criterion_has_rows(self->seen, index)) return EK_OK;
  ek_status status = EK_OK;
  if (self->reduction == EK_REDUCTION_NONE) {
    EK_TRY_GOTO(status, make_factors(&factors, job, device, index), cleanup);
  }
  const ek_tensor gradients[] = {own->scales, factors};
  if (self->model->options.reproducible > 0) {
    EK_TRY_GOTO(status, ek__criterion_grains_backward(results, self, index, &factors), cleanup);
  } else {
    EK_TRY_GOTO(status, ek_pass_run_backward(results, self->passes[index], gradients), cleanup);
  }
  for (size_t i = 0; i < self->outputs; i++) job->gradients[i].parts[index] = results[i];
cleanup:
  ek_tensor_free(&factors);
  return status;
}

/* Gradients lie where the outputs do; a part without rows is an output's without a holder. */
static ek_status lay_out_gradients(ek_shards *gradients, const ek_data_parallel_criterion *self) {
  for (size_t i = 0; i < self->outputs; i++) {
    ek_shards *gradient = &gradients[i], *output = &self->seen[i];
    EK_TRY(ek_shards_create(gradient, output->group));
    ek__shards_cut_like(gradient, output);
    gradient->forward = output->forward;
    gradient->output = output->output;
    for (size_t k = 0; k < self->count; k++) {
      if (ek__criterion_has_rows(self->seen, k)) continue;
      gradient->parts[k] = output->parts[k];
      gradient->parts[k].memory = NULL;
    }
    if (!self->of_model && !self->options.keep_outputs) output->overwritten = true;
  }
  return EK_OK;
}

/* ---- whether it is this forward's turn ---- */

static ek_status out_of_turn(const char *why) {
  return ek_error_set(EK_ERR_STATE, "criterion backward: %s", why);
}

static ek_status check_turn(const ek_data_parallel_criterion *self,
                            const ek_data_parallel_model *model) {
  if (!self->has_forward) {
    return out_of_turn(self->has_loss ? "the backward of the last criterion forward has run already"
                                      : "no criterion forward has come before it");
  }
  if (self->forward == 0) {
    return out_of_turn("the outputs that criterion forward saw come from no forward of a model");
  }
  if (self->forward != model->last_forward) {
    return out_of_turn(
        "the outputs that criterion forward saw are not of the model's last forward");
  }
  if (model->pending == 0) {
    return out_of_turn(model->last_gradient
                           ? "the backward of the model's last forward has run, or was dropped"
                           : "the model's last forward was without gradient");
  }
  for (size_t i = 0; i < self->outputs; i++) {
    if (self->seen[i].forward != self->forward || self->seen[i].output != i) {
      return out_of_turn("the outputs were freed or replaced after criterion forward");
    }
    EK_TRY(ek__shards_check("criterion backward: an output", &self->seen[i]));
  }
  return EK_OK;
}

static ek_status check_backward(const ek_data_parallel_criterion *self,
                                const ek_data_parallel_model *model,
                                const ek_criterion_backward_options *options) {
  EK_TRY(ek__criterion_unchanged(self));
  EK__FAIL_IF(model != self->model, EK_ERR_INVALID_ARGUMENT,
              "criterion backward: the criterion was opened for another model");
  EK_TRY(ek__model_check(model));
  EK_TRY(check_turn(self, model));
  const bool divided = self->reduction == EK_REDUCTION_MEAN;
  if (model->stage != EK__STEP_EMPTY && model->divided != divided) {
    return out_of_turn("reduction `mean` and others cannot be added up in one step");
  }
  EK__FAIL_IF(options->factors != NULL &&
                  (self->reduction != EK_REDUCTION_NONE || options->factors->group != model->group),
              EK_ERR_INVALID_ARGUMENT,
              "criterion backward: factors go with reduction `none`, in the model's group");
  if (options->factors != NULL) {
    EK_TRY(ek__shards_check("criterion backward: factors", options->factors));
  }
  if (!ek__criterion_keeps_terms(self)) return EK_OK; /* weights would change nothing */
  if (model->stage != EK__STEP_EMPTY && self->micro_batches != model->micro_batches) {
    return out_of_turn("this criterion has several terms, and another loss was in the step's "
                       "earlier micro-batches");
  }
  if (options->weights != NULL) return check_weights(self, options->weights);
  EK__FAIL_IF(
      model->stage != EK__STEP_EMPTY && self->weights_given, EK_ERR_INVALID_ARGUMENT,
      "criterion backward: the step's first micro-batch came with weights, so all others do");
  return EK_OK;
}

ek_status ek_data_parallel_criterion_backward(ek_data_parallel_criterion *parallel,
                                              ek_data_parallel_model *model,
                                              const ek_criterion_backward_options *options) {
  ek_criterion_backward_options o = EK_CRITERION_BACKWARD_OPTIONS_INIT;
  EK__NOT_NULL("criterion backward", parallel, model);
  EK__MODEL_ENTER(parallel->model, "criterion backward");
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_criterion_backward_options"));
  EK_TRY(check_backward(parallel, model, &o));
  const bool keeps_terms = ek__criterion_keeps_terms(parallel);
  ek_shards gradients[EK_MAX_TENSORS] = {{0}};
  struct criterion_backward_job job = {parallel, o.factors, gradients, {0}};
  ek_backward_options backward = EK_BACKWARD_OPTIONS_INIT;
  backward.accumulate = o.accumulate;
  backward.totals = keeps_terms ? parallel->step_combined : parallel->combined;
  backward.running = keeps_terms;
  backward.sum = parallel->reduction != EK_REDUCTION_MEAN;
  backward.loss_scale = parallel->scaling.factor;
  ek_status status = EK_OK;
  if (keeps_terms) EK_TRY_GOTO(status, begin_terms(parallel, &job, &o), cleanup);
  EK_TRY_GOTO(status, lay_out_gradients(gradients, parallel), cleanup);
  EK_TRY_GOTO(status, ek_group_apply(model->group, backward_one, &job), cleanup);
  EK_TRY_GOTO(
      status,
      ek__model_backward(model, gradients, parallel->outputs, &backward, parallel->scaling.unit),
      cleanup);
  parallel->micro_batches = model->micro_batches;
cleanup:
  for (size_t i = 0; i < parallel->outputs; i++) ek_shards_free(&gradients[i]);
  ek__criterion_drop_forward(parallel);
  if (status != EK_OK) ek__model_end_step(model, false);
  return status;
}
