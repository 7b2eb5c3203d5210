/*
 * criterion_terms.c - a loss of several terms over the micro-batches of a step.
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

#include <evenkeel/elementwise.h>
#include <evenkeel/losses.h>

#include "core/error.h"
#include "criterion_internal.h"

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

ek_status ek__terms_verify(const ek_data_parallel_model *model) {
  for (const struct ek__loss *loss = model->losses; loss != NULL; loss = loss->next) {
    if (loss->verify) EK_TRY(verify(model, loss));
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

ek_status ek__terms_check_weights(const ek_data_parallel_model *model, const struct ek__loss *loss,
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

ek_status ek__terms_begin(const ek_data_parallel_model *model, struct ek__loss *loss,
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

ek_status ek__terms_add(const struct ek__loss *loss, const struct ek__rank *rank) {
  struct ek__loss_rank *own = ek__loss_of(rank, loss);
  ek_stream *stream = ek__rank_stream(rank);
  ek_tensor *step = &own->step_totals, *combined = &own->step_combined;
  const ek_tensor *totals = &own->totals.sum;
  EK_TRY(loss->micro_batches == 0 ? ek_op_copy(stream, step, totals)
                                  : ek_op_add(stream, step, step, totals));
  if (loss->weights_given) {
    EK_TRY(ek_op_combine_totals(stream, combined, &own->scales, totals, loss->given_scales, false));
  }
  return ek_op_combine_totals(stream, combined, &own->step_scales, step, loss->coefficients, true);
}
