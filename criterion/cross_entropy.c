/*
 * cross_entropy.c - cross-entropy of logits against class indices.
 *
 * Forward leaves two numbers per row behind, the largest logit and the sum of exponentials below
 * it. Backward computes the probabilities again from them and the logits and writes the gradient
 * over the logits, so that the loss takes no second array of the logits' size. Where forward may do
 * that already, it does both in one operation.
 */
#include <evenkeel/cross_entropy.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <evenkeel/losses.h>

#include "core/alloc.h"
#include "core/options.h"

struct cross_entropy {
  ek_criterion base;
  int32_t ignore_index;
  double label_smoothing;
  ek_tensor weights; /* the only constant, if there is one */
  double *weight_values;
};

/* Fills what the operations want; *weights is where the constant's tensor is kept meanwhile. */
static ek_status get_terms(ek_cross_entropy_terms *terms, ek_tensor *weights,
                           const struct cross_entropy *c, ek_criterion_pass *pass,
                           const ek_tensor *logits) {
  if (logits->rank < 1) {
    return ek_error_set(EK_ERR_SHAPE, "cross_entropy: the logits have rank 0, expected classes as "
                                      "the last dimension");
  }
  *terms = (ek_cross_entropy_terms){.ignore_index = c->ignore_index,
                                    .label_smoothing = c->label_smoothing};
  if (c->weight_values == NULL) return EK_OK;
  EK_TRY(ek_criterion_pass_constant(weights, pass, 0));
  const int64_t classes = logits->shape[logits->rank - 1];
  if (weights->shape[0] != classes) {
    return ek_error_set(EK_ERR_SHAPE,
                        "cross_entropy: the logits have %" PRId64 " classes, but there "
                        "are %" PRId64 " class weights",
                        classes, weights->shape[0]);
  }
  terms->class_weights = weights;
  return EK_OK;
}

/* The loss, and the gradient over the logits if this is the time for it: *written. */
static ek_status compute(ek_criterion_pass *pass, const ek_tensor *logits, const ek_tensor *targets,
                         const ek_cross_entropy_terms *terms, ek_tensor *losses,
                         ek_tensor *normalizer, ek_tensor *totals, bool *written) {
  ek_stream *stream = ek_criterion_pass_stream(pass);
  double scale = 1.0;
  *written = ek_criterion_pass_gradient_now(&scale, pass);
  if (!*written) {
    return ek_op_cross_entropy_forward(stream, losses, normalizer, totals, logits, targets, terms);
  }
  ek_tensor gradient = *logits;
  return ek_op_cross_entropy_gradient(stream, &gradient, losses, normalizer, totals, logits,
                                      targets, terms, scale);
}

static ek_status forward(const ek_criterion *self, ek_criterion_pass *pass,
                         const ek_tensor *outputs, const ek_tensor *targets, ek_tensor *totals) {
  const struct cross_entropy *c = (const struct cross_entropy *)self;
  const ek_tensor *logits = &outputs[0];
  ek_cross_entropy_terms terms;
  ek_tensor weights = {0}, losses = {0}, normalizer = {0};
  EK_TRY(get_terms(&terms, &weights, c, pass, logits));

  bool written = false;
  ek_status status = EK_OK;
  int64_t pairs[EK_MAX_RANK];
  memcpy(pairs, logits->shape, sizeof pairs);
  pairs[logits->rank - 1] = 2;
  EK_TRY_GOTO(status,
              ek_criterion_pass_create(&normalizer, pass, logits->type, logits->rank, pairs),
              cleanup);
  EK_TRY_GOTO(
      status,
      ek_criterion_pass_create(&losses, pass, logits->type, logits->rank - 1, logits->shape),
      cleanup);
  EK_TRY_GOTO(status,
              compute(pass, logits, &targets[0], &terms, &losses, &normalizer, totals, &written),
              cleanup);
  if (self->reduction == EK_REDUCTION_NONE) {
    EK_TRY_GOTO(status, ek_criterion_pass_losses(pass, &losses), cleanup);
  }
  if (!written) EK_TRY_GOTO(status, ek_criterion_pass_save(pass, &normalizer), cleanup);

cleanup:
  ek_tensor_free(&losses);
  ek_tensor_free(&normalizer);
  return status;
}

static ek_status backward(const ek_criterion *self, ek_criterion_pass *pass,
                          const ek_tensor *outputs, const ek_tensor *targets,
                          const ek_tensor *scales, ek_tensor *gradients) {
  const ek_tensor *logits = &outputs[0];
  ek_cross_entropy_terms terms;
  ek_tensor weights = {0}, normalizer = {0}, factors = {0};
  EK_TRY(get_terms(&terms, &weights, (const struct cross_entropy *)self, pass, logits));
  const bool with_factors = ek_criterion_pass_loss_factors(&factors, pass);

  EK_TRY(ek_criterion_pass_take(&normalizer, pass));
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek_criterion_pass_gradient(&gradients[0], pass, logits), cleanup);
  status = ek_op_cross_entropy_backward(ek_criterion_pass_stream(pass), &gradients[0], logits,
                                        &normalizer, &targets[0], &terms, scales,
                                        with_factors ? &factors : NULL);

cleanup:
  ek_tensor_free(&normalizer);
  return status;
}

static void release(ek_criterion *self) {
  struct cross_entropy *c = (struct cross_entropy *)self;
  ek__free(c->weight_values);
  ek__free(c);
}

static const ek_criterion_ops ops = {.size = sizeof(ek_criterion_ops),
                                     .kind = "cross_entropy",
                                     .forward = forward,
                                     .backward = backward,
                                     .free = release,
                                     .types = EK_TYPES_F32 | EK_TYPES_F64};

/* ---- creation ---- */

static ek_status check_weights(const ek_cross_entropy_options *o) {
  if (o->class_weights == NULL) return EK_OK;
  if (o->classes <= 0) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "cross_entropy: class_weights is given, but classes is %" PRId64,
                        o->classes);
  }
  for (int64_t i = 0; i < o->classes; i++) {
    if (!(o->class_weights[i] >= 0.0 && isfinite(o->class_weights[i]))) {
      return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                          "cross_entropy: class_weights[%" PRId64 "] is %g, expected a number >= 0",
                          i, o->class_weights[i]);
    }
  }
  return EK_OK;
}

static ek_status read_options(ek_cross_entropy_options *o,
                              const ek_cross_entropy_options *options) {
  EK_TRY(ek__options_read(o, sizeof *o, options, "ek_cross_entropy_options"));
  if (!(o->label_smoothing >= 0.0 && o->label_smoothing <= 1.0)) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "cross_entropy: label_smoothing is %g, expected 0 <= e <= 1",
                        o->label_smoothing);
  }
  return check_weights(o);
}

static ek_status keep_weights(struct cross_entropy *c, const ek_cross_entropy_options *o) {
  const size_t classes = (size_t)o->classes;
  c->weight_values = ek__calloc(classes, sizeof(double));
  if (c->weight_values == NULL) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY,
                        "cross_entropy: the host has no memory for %zu class "
                        "weights",
                        classes);
  }
  memcpy(c->weight_values, o->class_weights, classes * sizeof(double));
  EK_TRY(ek_tensor_host(&c->weights, c->weight_values, EK_F64, 1, &o->classes));
  c->base.constants = &c->weights;
  c->base.constant_count = 1;
  return EK_OK;
}

ek_status ek_cross_entropy_create(ek_criterion **criterion,
                                  const ek_cross_entropy_options *options) {
  ek_cross_entropy_options o = EK_CROSS_ENTROPY_OPTIONS_INIT;
  if (criterion == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "cross_entropy: criterion is NULL");
  }
  EK_TRY(read_options(&o, options));
  struct cross_entropy *c = ek__calloc(1, sizeof *c);
  if (c == NULL) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "cross_entropy: the host has no memory");
  }
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek_criterion_init(&c->base, &ops, 1, 1, o.reduction), cleanup);
  if (o.class_weights != NULL) EK_TRY_GOTO(status, keep_weights(c, &o), cleanup);
  c->ignore_index = o.ignore_index;
  c->label_smoothing = o.label_smoothing;
  *criterion = &c->base;
  return EK_OK;

cleanup:
  release(&c->base);
  return status;
}
