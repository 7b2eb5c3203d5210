/*
 * losses.c - checked entry points of include/evenkeel/losses.h.
 */
#include <evenkeel/losses.h>

#include <inttypes.h>

#include "op/op_internal.h"

/* What forward and backward of cross-entropy require of their logits and terms. */
static ek_status check_cross_entropy(const struct ek__op *op, size_t logits, size_t weights,
                                     const ek_cross_entropy_terms *terms) {
  if (op->rows[logits] > 0 && op->columns[logits] == 0) {
    return ek_error_set(EK_ERR_SHAPE, "%s: logits is %" PRId64 " x 0, which has no classes",
                        op->name, op->rows[logits]);
  }
  EK_TRY(ek__op_fits(op, weights, op->columns[logits], logits));
  return ek__op_between(op, "label_smoothing", terms->label_smoothing, 0.0, 1.0);
}

ek_status ek_op_cross_entropy_forward(ek_stream *stream, ek_tensor *losses, ek_tensor *normalizer,
                                      ek_tensor *totals, const ek_tensor *logits,
                                      const ek_tensor *targets,
                                      const ek_cross_entropy_terms *terms) {
  enum { LOSSES, NORMALIZER, TOTALS, LOGITS, TARGETS, WEIGHTS, COUNT };
  struct ek__op op;
  if (terms == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "cross_entropy_forward: terms is NULL");
  }
  const struct ek__operand operands[] = {
      [LOSSES] = {.name = "losses", .tensor = losses, .written = true},
      [NORMALIZER] = {.name = "normalizer", .tensor = normalizer, .written = true},
      [TOTALS] = {.name = "totals", .tensor = totals, .kind = EK__OPERAND_F64, .written = true},
      [LOGITS] = {.name = "logits", .tensor = logits},
      [TARGETS] = {.name = "targets", .tensor = targets, .kind = EK__OPERAND_I32},
      [WEIGHTS] = {.name = "class_weights", .tensor = terms->class_weights, .optional = true}};
  EK_TRY(ek__op_begin(&op, "cross_entropy_forward", stream, operands, COUNT));
  EK_TRY(check_cross_entropy(&op, LOGITS, WEIGHTS, terms));
  EK_TRY(ek__op_fits(&op, TARGETS, op.rows[LOGITS], LOGITS));
  EK_TRY(ek__op_fits(&op, LOSSES, op.rows[LOGITS], LOGITS));
  EK_TRY(ek__op_matrix(&op, NORMALIZER, op.rows[LOGITS], 2, "must be"));
  EK_TRY(ek__op_exactly(&op, TOTALS, 2));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__loss_args args = {.losses = losses->data,
                                     .normalizer = normalizer->data,
                                     .totals = totals->data,
                                     .outputs = logits->data,
                                     .targets = targets->data,
                                     .class_weights = ek__op_data(terms->class_weights),
                                     .rows = op.rows[LOGITS],
                                     .classes = op.columns[LOGITS],
                                     .first_row = ek__tensor_first(targets),
                                     .ignore_index = terms->ignore_index,
                                     .label_smoothing = terms->label_smoothing,
                                     .type = op.type};
  return op.kernels->cross_entropy_forward(stream, &args);
}

ek_status ek_op_cross_entropy_backward(ek_stream *stream, ek_tensor *gradient,
                                       const ek_tensor *logits, const ek_tensor *normalizer,
                                       const ek_tensor *targets,
                                       const ek_cross_entropy_terms *terms, const ek_tensor *scale,
                                       const ek_tensor *row_scale) {
  enum { GRADIENT, LOGITS, NORMALIZER, TARGETS, WEIGHTS, SCALE, ROW_SCALE, COUNT };
  struct ek__op op;
  if (terms == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "cross_entropy_backward: terms is NULL");
  }
  const struct ek__operand operands[] = {
      [GRADIENT] = {.name = "gradient",
                    .tensor = gradient,
                    .written = true,
                    .may_be = EK__OPERAND(LOGITS)},
      [LOGITS] = {.name = "logits", .tensor = logits},
      [NORMALIZER] = {.name = "normalizer", .tensor = normalizer},
      [TARGETS] = {.name = "targets", .tensor = targets, .kind = EK__OPERAND_I32},
      [WEIGHTS] = {.name = "class_weights", .tensor = terms->class_weights, .optional = true},
      [SCALE] = {.name = "scale", .tensor = scale, .kind = EK__OPERAND_F64, .optional = true},
      [ROW_SCALE] = {.name = "row_scale", .tensor = row_scale, .optional = true}};
  EK_TRY(ek__op_begin(&op, "cross_entropy_backward", stream, operands, COUNT));
  EK_TRY(check_cross_entropy(&op, LOGITS, WEIGHTS, terms));
  EK_TRY(ek__op_same(&op, GRADIENT, LOGITS));
  EK_TRY(ek__op_matrix(&op, NORMALIZER, op.rows[LOGITS], 2, "must be"));
  EK_TRY(ek__op_fits(&op, TARGETS, op.rows[LOGITS], LOGITS));
  EK_TRY(ek__op_exactly(&op, SCALE, 1));
  EK_TRY(ek__op_fits(&op, ROW_SCALE, op.rows[LOGITS], LOGITS));
  if (op.kernels == NULL) return EK_OK;
  /* normalizer is not const in the struct because forward writes it: backward only reads it. */
  const struct ek__loss_args args = {.gradient = gradient->data,
                                     .outputs = logits->data,
                                     .normalizer = normalizer->data,
                                     .targets = targets->data,
                                     .class_weights = ek__op_data(terms->class_weights),
                                     .scale = ek__op_data(scale),
                                     .row_scale = ek__op_data(row_scale),
                                     .rows = op.rows[LOGITS],
                                     .classes = op.columns[LOGITS],
                                     .first_row = ek__tensor_first(targets),
                                     .ignore_index = terms->ignore_index,
                                     .label_smoothing = terms->label_smoothing,
                                     .type = op.type};
  return op.kernels->cross_entropy_backward(stream, &args);
}

ek_status ek_op_cross_entropy_gradient(ek_stream *stream, ek_tensor *gradient, ek_tensor *losses,
                                       ek_tensor *normalizer, ek_tensor *totals,
                                       const ek_tensor *logits, const ek_tensor *targets,
                                       const ek_cross_entropy_terms *terms, double scale) {
  enum { GRADIENT, LOSSES, NORMALIZER, TOTALS, LOGITS, TARGETS, WEIGHTS, COUNT };
  struct ek__op op;
  if (terms == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "cross_entropy_gradient: terms is NULL");
  }
  const struct ek__operand operands[] = {
      [GRADIENT] = {.name = "gradient",
                    .tensor = gradient,
                    .written = true,
                    .may_be = EK__OPERAND(LOGITS)},
      [LOSSES] = {.name = "losses", .tensor = losses, .written = true},
      [NORMALIZER] = {.name = "normalizer", .tensor = normalizer, .written = true},
      [TOTALS] = {.name = "totals", .tensor = totals, .kind = EK__OPERAND_F64, .written = true},
      [LOGITS] = {.name = "logits", .tensor = logits},
      [TARGETS] = {.name = "targets", .tensor = targets, .kind = EK__OPERAND_I32},
      [WEIGHTS] = {.name = "class_weights", .tensor = terms->class_weights, .optional = true}};
  EK_TRY(ek__op_begin(&op, "cross_entropy_gradient", stream, operands, COUNT));
  EK_TRY(check_cross_entropy(&op, LOGITS, WEIGHTS, terms));
  EK_TRY(ek__op_same(&op, GRADIENT, LOGITS));
  EK_TRY(ek__op_fits(&op, TARGETS, op.rows[LOGITS], LOGITS));
  EK_TRY(ek__op_fits(&op, LOSSES, op.rows[LOGITS], LOGITS));
  EK_TRY(ek__op_matrix(&op, NORMALIZER, op.rows[LOGITS], 2, "must be"));
  EK_TRY(ek__op_exactly(&op, TOTALS, 2));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__loss_args args = {.losses = losses->data,
                                     .normalizer = normalizer->data,
                                     .totals = totals->data,
                                     .gradient = gradient->data,
                                     .outputs = logits->data,
                                     .targets = targets->data,
                                     .class_weights = ek__op_data(terms->class_weights),
                                     .host_scale = scale,
                                     .rows = op.rows[LOGITS],
                                     .classes = op.columns[LOGITS],
                                     .first_row = ek__tensor_first(targets),
                                     .ignore_index = terms->ignore_index,
                                     .label_smoothing = terms->label_smoothing,
                                     .type = op.type};
  return op.kernels->cross_entropy_gradient(stream, &args);
}

ek_status ek_op_squared_error_forward(ek_stream *stream, ek_tensor *losses, ek_tensor *totals,
                                      const ek_tensor *y, const ek_tensor *target) {
  enum { LOSSES, TOTALS, Y, TARGET, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [LOSSES] = {.name = "losses", .tensor = losses, .written = true, .optional = true},
      [TOTALS] = {.name = "totals", .tensor = totals, .kind = EK__OPERAND_F64, .written = true},
      [Y] = {.name = "y", .tensor = y},
      [TARGET] = {.name = "target", .tensor = target}};
  EK_TRY(ek__op_begin(&op, "squared_error_forward", stream, operands, COUNT));
  EK_TRY(ek__op_same(&op, TARGET, Y));
  if (losses != NULL) EK_TRY(ek__op_same(&op, LOSSES, Y));
  EK_TRY(ek__op_exactly(&op, TOTALS, 2));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__loss_args args = {.losses = ek__op_data(losses),
                                     .totals = totals->data,
                                     .outputs = y->data,
                                     .targets = target->data,
                                     .rows = ek__op_elements(&op, Y),
                                     .classes = 1,
                                     .type = op.type};
  return op.kernels->squared_error_forward(stream, &args);
}

ek_status ek_op_squared_error_backward(ek_stream *stream, ek_tensor *gradient, const ek_tensor *y,
                                       const ek_tensor *target, const ek_tensor *scale,
                                       const ek_tensor *element_scale) {
  enum { GRADIENT, Y, TARGET, SCALE, ELEMENT_SCALE, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [GRADIENT] = {.name = "gradient",
                    .tensor = gradient,
                    .written = true,
                    .may_be = EK__OPERAND(Y)},
      [Y] = {.name = "y", .tensor = y},
      [TARGET] = {.name = "target", .tensor = target},
      [SCALE] = {.name = "scale", .tensor = scale, .kind = EK__OPERAND_F64, .optional = true},
      [ELEMENT_SCALE] = {.name = "element_scale", .tensor = element_scale, .optional = true}};
  EK_TRY(ek__op_begin(&op, "squared_error_backward", stream, operands, COUNT));
  EK_TRY(ek__op_same(&op, TARGET, Y));
  EK_TRY(ek__op_same(&op, GRADIENT, Y));
  EK_TRY(ek__op_exactly(&op, SCALE, 1));
  if (element_scale != NULL) EK_TRY(ek__op_same(&op, ELEMENT_SCALE, Y));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__loss_args args = {.gradient = gradient->data,
                                     .outputs = y->data,
                                     .targets = target->data,
                                     .scale = ek__op_data(scale),
                                     .row_scale = ek__op_data(element_scale),
                                     .rows = ek__op_elements(&op, Y),
                                     .classes = 1,
                                     .type = op.type};
  return op.kernels->squared_error_backward(stream, &args);
}

ek_status ek_op_combine_totals(ek_stream *stream, ek_tensor *combined, ek_tensor *scales,
                               const ek_tensor *totals, const double *coefficients, bool divide) {
  enum { COMBINED, SCALES, TOTALS, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [COMBINED] = {.name = "combined",
                    .tensor = combined,
                    .kind = EK__OPERAND_F64,
                    .written = true},
      [SCALES] = {.name = "scales", .tensor = scales, .kind = EK__OPERAND_F64, .written = true},
      [TOTALS] = {.name = "totals", .tensor = totals, .kind = EK__OPERAND_F64}};
  EK_TRY(ek__op_begin(&op, "combine_totals", stream, operands, COUNT));
  const int64_t terms = op.rows[TOTALS];
  EK_TRY(ek__op_matrix(&op, TOTALS, terms, 2, "must be"));
  EK_TRY(ek__op_fits(&op, SCALES, terms, TOTALS));
  EK_TRY(ek__op_exactly(&op, COMBINED, 2));
  struct ek__combine_args args = {
      .combined = combined->data, .scales = scales->data, .totals = totals->data, .divide = divide};
  const int64_t most = (int64_t)(sizeof args.coefficients / sizeof args.coefficients[0]);
  if (terms > most) {
    return ek_error_set(EK_ERR_SHAPE, "%s: %" PRId64 " terms, at most %" PRId64 " are possible",
                        op.name, terms, most);
  }
  if (coefficients == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: coefficients is NULL", op.name);
  }
  if (op.kernels == NULL) return EK_OK;
  args.terms = (size_t)terms;
  for (int64_t j = 0; j < terms; j++) args.coefficients[j] = coefficients[j];
  return op.kernels->combine_totals(stream, &args);
}
