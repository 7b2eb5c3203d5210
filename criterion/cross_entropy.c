/*
 * cross_entropy.c - cross-entropy of logits against class indices or probabilities.
 *
 * Forward keeps two numbers per row: the largest logit and the sum of exponentials relative to it,
 * and of soft targets their sum.
 * Backward computes the probabilities again from these and the logits and writes the gradient over
 * the logits, so the loss needs no second array of the logits' size. If forward may write the
 * gradient already, it does both in one operation.
 */
#include <evenkeel/cross_entropy.h>

#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "module/layer_internal.h"
#include "entropy_terms.h"

struct cross_entropy {
  ek_criterion base;
  struct ek__entropy entropy;
  bool soft; /* targets */
};

static ek_status declare(const ek_module *self, ek_declaration *declaration) {
  return ek__entropy_declare(&((const struct cross_entropy *)self)->entropy, declaration);
}

/* Fills what the operations want; *weights is where the tensor of the weights is kept meanwhile. */
static ek_status get_terms(ek_cross_entropy_terms *terms, ek_tensor *weights,
                           const struct cross_entropy *c, ek_pass *pass, const ek_tensor *logits) {
  EK__FAIL_IF(logits->rank < 1, EK_ERR_SHAPE,
              "the logits have rank 0, expected classes as the last dimension");
  return ek__entropy_terms(terms, weights, &c->entropy, pass, 0, logits->shape[logits->rank - 1]);
}

/* The loss, and the gradient over the logits if this is the time for it: *written. */
static ek_status compute(ek_pass *pass, const ek_tensor *logits, const ek_tensor *targets,
                         const ek_cross_entropy_terms *terms, ek_tensor *losses,
                         ek_tensor *normalizer, ek_tensor *totals, bool *written) {
  ek_stream *stream = ek_pass_stream(pass);
  double scale = 1.0;
  *written = ek_pass_gradient_now(&scale, pass);
  if (!*written) {
    return ek_op_cross_entropy_forward(stream, losses, normalizer, totals, logits, targets, terms);
  }
  ek_tensor gradient = *logits;
  return ek_op_cross_entropy_gradient(stream,
                                      &(ek_cross_entropy_gradient_args){.gradient = &gradient,
                                                                        .losses = losses,
                                                                        .normalizer = normalizer,
                                                                        .totals = totals,
                                                                        .logits = logits,
                                                                        .targets = targets,
                                                                        .scale = scale,
                                                                        .terms = terms});
}

static ek_status forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                         ek_tensor *outputs) {
  const ek_tensor *logits = &inputs[0], *targets = &inputs[1];
  const bool soft = ((const struct cross_entropy *)self)->soft;
  ek_cross_entropy_terms terms;
  ek_tensor weights = {0}, losses = {0}, normalizer = {0};
  EK_TRY(get_terms(&terms, &weights, (const struct cross_entropy *)self, pass, logits));
  const ek_type expected = soft ? logits->type : EK_I32;
  EK__FAIL_IF(targets->type != expected, EK_ERR_TYPE,
              "the targets are %s, expected %s%s", ek_type_name(targets->type),
              ek_type_name(expected), soft ? "" : "; probabilities need option soft_targets");
  EK__FAIL_IF(soft && !ek_tensor_same_shape(targets, logits), EK_ERR_SHAPE,
              "the soft targets' shape differs from the logits' (ranks %d and %d)", targets->rank,
              logits->rank);
  EK_TRY(ek_pass_totals(&outputs[0], pass));

  bool written = false;
  ek_status status = EK_OK;
  const ek_type sums = ek_type_of_sums(logits->type);
  int64_t kept[EK_MAX_RANK];
  memcpy(kept, logits->shape, sizeof kept);
  kept[logits->rank - 1] = soft ? 3 : 2;
  EK_TRY_GOTO(status, ek_pass_output(&normalizer, pass, sums, logits->rank, kept), cleanup);
  EK_TRY_GOTO(status, ek_pass_output(&losses, pass, sums, logits->rank - 1, logits->shape),
              cleanup);
  EK_TRY_GOTO(status,
              compute(pass, logits, targets, &terms, &losses, &normalizer, &outputs[0], &written),
              cleanup);
  if (ek_module_outputs(self) == 2)
    EK_TRY_GOTO(status, ek_tensor_share(&outputs[1], &losses), cleanup);
  if (written) goto cleanup;
  EK_TRY_GOTO(status, ek_pass_save(pass, logits), cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, targets), cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, &normalizer), cleanup);

cleanup:
  ek_tensor_free(&losses);
  ek_tensor_free(&normalizer);
  return status;
}

enum { LOGITS, TARGETS, NORMALIZER, SAVED };

static ek_status backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                          ek_tensor *grad_inputs) {
  const ek_tensor scale = ek_criterion_scale(&grad_outputs[0], 0);
  const bool single = ek_module_outputs(self) == 2; /* with a factor for each loss */
  ek_cross_entropy_terms terms;
  ek_tensor saved[SAVED], weights = {0};
  ek_status status = EK_OK;
  EK_TRY(ek__layer_take(saved, pass, SAVED));
  if (grad_inputs == NULL) goto cleanup;
  EK_TRY_GOTO(status,
              get_terms(&terms, &weights, (const struct cross_entropy *)self, pass, &saved[LOGITS]),
              cleanup);
  EK_TRY_GOTO(status, ek_pass_input_gradient(&grad_inputs[0], pass, &saved[LOGITS]), cleanup);
  status = ek_op_cross_entropy_backward(ek_pass_stream(pass), &grad_inputs[0], &saved[LOGITS],
                                        &saved[NORMALIZER], &saved[TARGETS], single ? NULL : &scale,
                                        single ? &grad_outputs[1] : NULL, &terms);
cleanup:
  ek__free_all(saved, SAVED);
  return status;
}

static void release(ek_module *self) {
  ek__entropy_close(&((struct cross_entropy *)self)->entropy);
  ek__free(self);
}

/* Of the targets. */
static ek_type input_type(const ek_module *self, size_t input) {
  if (((const struct cross_entropy *)self)->soft) return (ek_type)0;
  return input + ek_module_targets(self) >= ek_module_inputs(self) ? EK_I32 : (ek_type)0;
}

static const ek_module_ops ops = {EK__LAYER("cross_entropy", forward, backward, release),
                                  .parameters = declare, .input_type = input_type};

ek_status ek_cross_entropy_create(ek_criterion **criterion,
                                  const ek_cross_entropy_options *options) {
  struct cross_entropy made = {0};
  ek_reduction reduction = EK_REDUCTION_MEAN;
  EK__NOT_NULL("cross_entropy", criterion);
  EK_TRY(ek__entropy_open(&made.entropy, &reduction, &made.soft, ops.kind, options));
  ek_status status = ek_criterion_init(&made.base, &ops, 1, 1, reduction);
  if (status == EK_OK) status = ek__new_copy(criterion, &made, sizeof made, "cross_entropy");
  if (status != EK_OK) ek__entropy_close(&made.entropy);
  return status;
}

EK__OPTIONS_INIT(ek_cross_entropy_options, EK_CROSS_ENTROPY_OPTIONS_INIT)
