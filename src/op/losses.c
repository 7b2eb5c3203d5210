/*
 * losses.c - checked entry points of include/evenkeel/losses.h.
 */
#include <evenkeel/losses.h>

#include <inttypes.h>

#include "op/op_internal.h"

/* ---- cross-entropy: forward, backward, or both in one ---- */

enum direction { FORWARD = 1, BACKWARD = 2, BOTH = FORWARD | BACKWARD };

/* The operands of any of them; what a direction has not is NULL. */
struct operands {
  const ek_tensor *gradient, *losses, *normalizer, *totals;
  const ek_tensor *logits, *targets, *scale, *row_scale;
  double host_scale;
};

static ek_status cross_entropy(ek_stream *stream, const char *name, enum direction direction,
                               const struct operands *of, const ek_cross_entropy_terms *terms) {
  enum { GRADIENT, LOSSES, NORMALIZER, TOTALS, LOGITS, TARGETS, WEIGHTS, SCALE, ROW_SCALE, COUNT };
  struct ek__op op;
  EK__FAIL_IF(terms == NULL, EK_ERR_INVALID_ARGUMENT, "%s: terms is NULL", name);
  const bool forward = (direction & FORWARD) != 0, backward = (direction & BACKWARD) != 0;
#define ROW(x, role_, ...)                                                                         \
  { .name = #x, .tensor = of->x, .role = EK__##role_, __VA_ARGS__ }
  const struct ek__operand operands[] = {
      [GRADIENT] = ROW(gradient, VALUE, .written = true, .optional = !backward,
                       .may_be = EK__OPERAND(LOGITS)),
      [LOSSES] = ROW(losses, SUM, .written = true, .optional = !forward),
      [NORMALIZER] = ROW(normalizer, SUM, .written = forward),
      [TOTALS] = ROW(totals, F64, .written = true, .optional = !forward),
      [LOGITS] = ROW(logits, VALUE, .written = false),
      [TARGETS] = ROW(targets, I32, .written = false),
      [WEIGHTS] = {.name = "class_weights",
                   .tensor = terms->class_weights,
                   .role = EK__SUM,
                   .optional = true},
      [SCALE] = ROW(scale, F64, .optional = true),
      [ROW_SCALE] = ROW(row_scale, SUM, .optional = true)};
  EK_TRY(ek__op_begin(&op, name, stream, operands, COUNT));
  const int64_t rows = op.rows[LOGITS], columns = op.columns[LOGITS];
  const int64_t classes = terms->classes == 0 ? columns : terms->classes;
  EK__FAIL_IF(classes < 0 || classes > columns, EK_ERR_SHAPE,
              "%s: classes is %" PRId64 " but logits is %" PRId64 " x %" PRId64, name, classes,
              rows, columns);
  EK__FAIL_IF(rows > 0 && classes == 0, EK_ERR_SHAPE,
              "%s: logits is %" PRId64 " x 0, which has no classes", name, rows);
  EK_TRY(ek__op_fits(&op, WEIGHTS, classes, LOGITS));
  EK_TRY(ek__op_between(&op, "label_smoothing", terms->label_smoothing, 0.0, 1.0));
  if (backward) EK_TRY(ek__op_same(&op, GRADIENT, LOGITS));
  EK_TRY(ek__op_fits(&op, TARGETS, rows, LOGITS));
  EK_TRY(ek__op_fits(&op, LOSSES, rows, LOGITS));
  EK_TRY(ek__op_matrix(&op, NORMALIZER, rows, 2, "must be"));
  EK_TRY(ek__op_exactly(&op, TOTALS, 2));
  EK_TRY(ek__op_exactly(&op, SCALE, 1));
  EK_TRY(ek__op_fits(&op, ROW_SCALE, rows, LOGITS));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__loss_args args = {.losses = ek__op_data(of->losses),
                                     .normalizer = of->normalizer->data,
                                     .totals = ek__op_data(of->totals),
                                     .gradient = ek__op_data(of->gradient),
                                     .outputs = of->logits->data,
                                     .targets = of->targets->data,
                                     .class_weights = ek__op_data(terms->class_weights),
                                     .scale = ek__op_data(of->scale),
                                     .host_scale = of->host_scale,
                                     .row_scale = ek__op_data(of->row_scale),
                                     .rows = rows,
                                     .classes = classes,
                                     .columns = columns,
                                     .first_row = ek__tensor_first(of->targets),
                                     .ignore_index = terms->ignore_index,
                                     .label_smoothing = terms->label_smoothing,
                                     .types = op.types};
  if (direction == BOTH) return op.kernels->cross_entropy_gradient(stream, &args);
  return forward ? op.kernels->cross_entropy_forward(stream, &args)
                 : op.kernels->cross_entropy_backward(stream, &args);
}

ek_status ek_op_cross_entropy_forward(ek_stream *stream, ek_tensor *losses, ek_tensor *normalizer,
                                      ek_tensor *totals, const ek_tensor *logits,
                                      const ek_tensor *targets,
                                      const ek_cross_entropy_terms *terms) {
  const struct operands of = {.losses = losses,
                              .normalizer = normalizer,
                              .totals = totals,
                              .logits = logits,
                              .targets = targets};
  return cross_entropy(stream, "cross_entropy_forward", FORWARD, &of, terms);
}

ek_status ek_op_cross_entropy_backward(ek_stream *stream, ek_tensor *gradient,
                                       const ek_tensor *logits, const ek_tensor *normalizer,
                                       const ek_tensor *targets,
                                       const ek_cross_entropy_terms *terms, const ek_tensor *scale,
                                       const ek_tensor *row_scale) {
  const struct operands of = {.gradient = gradient,
                              .logits = logits,
                              .normalizer = normalizer,
                              .targets = targets,
                              .scale = scale,
                              .row_scale = row_scale};
  return cross_entropy(stream, "cross_entropy_backward", BACKWARD, &of, terms);
}

ek_status ek_op_cross_entropy_gradient(ek_stream *stream, ek_tensor *gradient, ek_tensor *losses,
                                       ek_tensor *normalizer, ek_tensor *totals,
                                       const ek_tensor *logits, const ek_tensor *targets,
                                       const ek_cross_entropy_terms *terms, double scale) {
  const struct operands of = {.gradient = gradient,
                              .losses = losses,
                              .normalizer = normalizer,
                              .totals = totals,
                              .logits = logits,
                              .targets = targets,
                              .host_scale = scale};
  return cross_entropy(stream, "cross_entropy_gradient", BOTH, &of, terms);
}

/* ---- squared error and totals ---- */

ek_status ek_op_squared_error_forward(ek_stream *stream, ek_tensor *losses, ek_tensor *totals,
                                      const ek_tensor *y, const ek_tensor *target) {
  enum { LOSSES, TOTALS, Y, TARGET, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {[LOSSES] = EK__MAY_WRITE(losses, SUM, 0),
                                         [TOTALS] = EK__WRITE(totals, F64, 0),
                                         [Y] = EK__READ(y, VALUE),
                                         [TARGET] = EK__READ(target, VALUE)};
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
                                     .columns = 1,
                                     .types = op.types};
  return op.kernels->squared_error_forward(stream, &args);
}

ek_status ek_op_squared_error_backward(ek_stream *stream, ek_tensor *gradient, const ek_tensor *y,
                                       const ek_tensor *target, const ek_tensor *scale,
                                       const ek_tensor *element_scale) {
  enum { GRADIENT, Y, TARGET, SCALE, ELEMENT_SCALE, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {[GRADIENT] = EK__WRITE(gradient, VALUE, EK__OPERAND(Y)),
                                         [Y] = EK__READ(y, VALUE),
                                         [TARGET] = EK__READ(target, VALUE),
                                         [SCALE] = EK__MAY_READ(scale, F64),
                                         [ELEMENT_SCALE] = EK__MAY_READ(element_scale, SUM)};
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
                                     .columns = 1,
                                     .types = op.types};
  return op.kernels->squared_error_backward(stream, &args);
}

ek_status ek_op_combine_totals(ek_stream *stream, ek_tensor *combined, ek_tensor *scales,
                               const ek_tensor *totals, const double *coefficients, bool divide) {
  enum { COMBINED, SCALES, TOTALS, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {[COMBINED] = EK__WRITE(combined, F64, 0),
                                         [SCALES] = EK__WRITE(scales, F64, 0),
                                         [TOTALS] = EK__READ(totals, F64)};
  EK_TRY(ek__op_begin(&op, "combine_totals", stream, operands, COUNT));
  const int64_t terms = op.rows[TOTALS];
  EK_TRY(ek__op_matrix(&op, TOTALS, terms, 2, "must be"));
  EK_TRY(ek__op_same(&op, SCALES, TOTALS));
  EK_TRY(ek__op_exactly(&op, COMBINED, 2));
  struct ek__combine_args args = {
      .combined = combined->data, .scales = scales->data, .totals = totals->data, .divide = divide};
  const int64_t most = (int64_t)(sizeof args.coefficients / sizeof args.coefficients[0]);
  EK__FAIL_IF(terms > most, EK_ERR_SHAPE, "%s: %" PRId64 " terms, at most %" PRId64 " are possible",
              op.name, terms, most);
  EK__FAIL_IF(coefficients == NULL, EK_ERR_INVALID_ARGUMENT, "%s: coefficients is NULL", op.name);
  if (op.kernels == NULL) return EK_OK;
  args.terms = (size_t)terms;
  for (int64_t j = 0; j < terms; j++) args.coefficients[j] = coefficients[j];
  return op.kernels->combine_totals(stream, &args);
}
