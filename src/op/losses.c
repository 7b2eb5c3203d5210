/*
 * losses.c - checked entry points of include/evenkeel/losses.h.
 */
#include <evenkeel/losses.h>

#include <inttypes.h>
#include <math.h>

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
  const bool soft = of->logits != NULL && of->logits->rank >= 0 &&
                    of->logits->rank <= EK_MAX_RANK && /* else a struct that is damaged */
                    ek_tensor_same_shape(of->targets, of->logits);
  struct ek__loss_args args = {.host_scale = of->host_scale,
                               .soft = soft,
                               .ignore_index = terms->ignore_index,
                               .label_smoothing = terms->label_smoothing};
#define ROW(x, role_, to_, ...)                                                                    \
  { .name = #x, .tensor = of->x, .role = EK__##role_, .to = &args.to_, __VA_ARGS__ }
  const struct ek__operand operands[] = {
      [GRADIENT] = ROW(gradient, VALUE, gradient, EK__IS(SAME, LOGITS), .written = true,
                       .optional = !backward, .may_be = EK__OPERAND(LOGITS)),
      [LOSSES] =
          ROW(losses, SUM, losses, EK__IS(COLUMN, LOGITS), .written = true, .optional = !forward),
      [NORMALIZER] = ROW(normalizer, SUM, normalizer, .written = forward),
      [TOTALS] =
          ROW(totals, F64, totals, EK__IS(EXACTLY, 2), .written = true, .optional = !forward),
      [LOGITS] = ROW(logits, VALUE, outputs, .written = false),
      [TARGETS] = {.name = "targets",
                   .tensor = of->targets,
                   .role = soft ? EK__VALUE : EK__I32,
                   .size = soft ? EK__SIZE_SAME : EK__SIZE_COLUMN,
                   .of = LOGITS,
                   .to = &args.targets},
      [WEIGHTS] = {.name = "class_weights",
                   .tensor = terms->class_weights,
                   .role = EK__SUM,
                   .to = &args.class_weights,
                   .optional = true},
      [SCALE] = ROW(scale, F64, scale, EK__IS(EXACTLY, 1), .optional = true),
      [ROW_SCALE] = ROW(row_scale, SUM, row_scale, EK__IS(COLUMN, LOGITS), .optional = true)};
  EK_TRY(ek__op_begin(&op, name, stream, operands, COUNT, &args.types));
  args.rows = op.rows[LOGITS];
  args.columns = op.columns[LOGITS];
  args.classes = terms->classes == 0 ? args.columns : terms->classes;
  args.first_row = ek__tensor_first(of->targets);
  EK__FAIL_IF(args.classes < 0 || args.classes > args.columns, EK_ERR_SHAPE,
              "%s: classes is %" PRId64 " but logits is %" PRId64 " x %" PRId64, name, args.classes,
              args.rows, args.columns);
  EK__FAIL_IF(args.rows > 0 && args.classes == 0, EK_ERR_SHAPE,
              "%s: logits is %" PRId64 " x 0, which has no classes", name, args.rows);
  EK_TRY(ek__op_fits(&op, WEIGHTS, args.classes, LOGITS));
  EK_TRY(ek__op_between(name, "label_smoothing", terms->label_smoothing, 0.0, 1.0));
  EK_TRY(ek__op_matrix(&op, NORMALIZER, args.rows, soft ? 3 : 2, "must be"));
  if (op.kernels == NULL) return EK_OK;
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
                                       const ek_tensor *targets, const ek_tensor *scale,
                                       const ek_tensor *row_scale,
                                       const ek_cross_entropy_terms *terms) {
  const struct operands of = {.gradient = gradient,
                              .logits = logits,
                              .normalizer = normalizer,
                              .targets = targets,
                              .scale = scale,
                              .row_scale = row_scale};
  return cross_entropy(stream, "cross_entropy_backward", BACKWARD, &of, terms);
}

ek_status ek_op_cross_entropy_gradient(ek_stream *stream,
                                       const ek_cross_entropy_gradient_args *args) {
  EK__NOT_NULL("cross_entropy_gradient", args);
  const struct operands of = {.gradient = args->gradient,
                              .losses = args->losses,
                              .normalizer = args->normalizer,
                              .totals = args->totals,
                              .logits = args->logits,
                              .targets = args->targets,
                              .host_scale = args->scale};
  return cross_entropy(stream, "cross_entropy_gradient", BOTH, &of, args->terms);
}

/* ---- losses of elements, and totals ---- */

static ek_status read_loss(struct ek__loss_args *args, const char *name,
                           const ek_element_loss *loss) {
  static const ek_element_loss squared = {EK_ELEMENT_LOSS_SQUARED, 0, 0};
  if (loss == NULL) loss = &squared;
  EK__FAIL_IF((unsigned)loss->kind > EK_ELEMENT_LOSS_LOG_DIVERGENCE, EK_ERR_INVALID_ARGUMENT,
              "%s: unknown loss %d", name, (int)loss->kind);
  EK_TRY(ek__op_between(name, "width", loss->width, 0.0, HUGE_VAL));
  EK_TRY(ek__op_between(name, "steepness", loss->steepness, 0.0, HUGE_VAL));
  args->kind = (enum ek__element_loss)loss->kind;
  args->width = loss->width;
  args->steepness = loss->steepness;
  return EK_OK;
}

static ek_status element_forward(ek_stream *stream, const char *name, ek_tensor *losses,
                                 ek_tensor *totals, const ek_tensor *y, const ek_tensor *target,
                                 const ek_tensor *weights, const ek_element_loss *loss,
                                 int64_t unit) {
  enum { LOSSES, TOTALS, Y, TARGET, WEIGHTS, COUNT };
  struct ek__op op;
  struct ek__loss_args args = {.classes = 1, .columns = unit};
  const struct ek__operand operands[] = {
      [LOSSES] = EK__MAY_WRITE(losses, SUM, EK__IS(SAME, Y), .to = &args.losses),
      [TOTALS] = EK__WRITE(totals, F64, EK__IS(EXACTLY, 2), .to = &args.totals),
      [Y] = EK__READ(y, VALUE, .to = &args.outputs),
      [TARGET] = EK__READ(target, VALUE, EK__IS(SAME, Y), .to = &args.targets),
      [WEIGHTS] = EK__MAY_READ(weights, VALUE, EK__IS(SAME, Y), .to = &args.weights)};
  EK_TRY(ek__op_begin(&op, name, stream, operands, COUNT, &args.types));
  EK_TRY(read_loss(&args, name, loss));
  EK__FAIL_IF(unit < 1, EK_ERR_INVALID_ARGUMENT, "%s: unit is %" PRId64 ", expected 1 or more",
              name, unit);
  args.rows = ek__op_elements(&op, Y);
  return op.kernels == NULL ? EK_OK : op.kernels->element_loss_forward(stream, &args);
}

static ek_status element_backward(ek_stream *stream, const char *name, ek_tensor *gradient,
                                  const ek_tensor *y, const ek_tensor *target,
                                  const ek_tensor *weights, const ek_tensor *scale,
                                  const ek_tensor *element_scale, const ek_element_loss *loss) {
  enum { GRADIENT, Y, TARGET, WEIGHTS, SCALE, ELEMENT_SCALE, COUNT };
  struct ek__op op;
  struct ek__loss_args args = {.classes = 1, .columns = 1};
  const struct ek__operand operands[] = {
      [GRADIENT] = EK__WRITE(gradient, VALUE, EK__IS(SAME, Y), .to = &args.gradient,
                             .may_be = EK__OPERAND(Y)),
      [Y] = EK__READ(y, VALUE, .to = &args.outputs),
      [TARGET] = EK__READ(target, VALUE, EK__IS(SAME, Y), .to = &args.targets),
      [WEIGHTS] = EK__MAY_READ(weights, VALUE, EK__IS(SAME, Y), .to = &args.weights),
      [SCALE] = EK__MAY_READ(scale, F64, EK__IS(EXACTLY, 1), .to = &args.scale),
      [ELEMENT_SCALE] = EK__MAY_READ(element_scale, SUM, EK__IS(SAME, Y), .to = &args.row_scale)};
  EK_TRY(ek__op_begin(&op, name, stream, operands, COUNT, &args.types));
  EK_TRY(read_loss(&args, name, loss));
  args.rows = ek__op_elements(&op, Y);
  return op.kernels == NULL ? EK_OK : op.kernels->element_loss_backward(stream, &args);
}

ek_status ek_op_element_loss_forward(ek_stream *stream, ek_tensor *losses, ek_tensor *totals,
                                     const ek_tensor *y, const ek_tensor *target,
                                     const ek_tensor *weights, const ek_element_loss *loss,
                                     int64_t unit) {
  return element_forward(stream, "element_loss_forward", losses, totals, y, target, weights, loss,
                         unit);
}

ek_status ek_op_element_loss_backward(ek_stream *stream, ek_tensor *gradient, const ek_tensor *y,
                                      const ek_tensor *target, const ek_tensor *weights,
                                      const ek_tensor *scale, const ek_tensor *element_scale,
                                      const ek_element_loss *loss) {
  return element_backward(stream, "element_loss_backward", gradient, y, target, weights, scale,
                          element_scale, loss);
}

ek_status ek_op_squared_error_forward(ek_stream *stream, ek_tensor *losses, ek_tensor *totals,
                                      const ek_tensor *y, const ek_tensor *target) {
  return element_forward(stream, "squared_error_forward", losses, totals, y, target, NULL, NULL, 1);
}

ek_status ek_op_squared_error_backward(ek_stream *stream, ek_tensor *gradient, const ek_tensor *y,
                                       const ek_tensor *target, const ek_tensor *scale,
                                       const ek_tensor *element_scale) {
  return element_backward(stream, "squared_error_backward", gradient, y, target, NULL, scale,
                          element_scale, NULL);
}

ek_status ek_op_combine_totals(ek_stream *stream, ek_tensor *combined, ek_tensor *scales,
                               const ek_tensor *totals, const double *coefficients, bool divide) {
  enum { COMBINED, SCALES, TOTALS, COUNT };
  struct ek__op op;
  struct ek__combine_args args = {.divide = divide};
  const struct ek__operand operands[] = {
      [COMBINED] = EK__WRITE(combined, F64, EK__IS(EXACTLY, 2), .to = &args.combined),
      [SCALES] = EK__WRITE(scales, F64, EK__IS(SAME, TOTALS), .to = &args.scales),
      [TOTALS] = EK__READ(totals, F64, .to = &args.totals)};
  EK_TRY(ek__op_begin(&op, "combine_totals", stream, operands, COUNT, NULL));
  const int64_t terms = op.rows[TOTALS];
  const int64_t most = (int64_t)(sizeof args.coefficients / sizeof args.coefficients[0]);
  EK_TRY(ek__op_matrix(&op, TOTALS, terms, 2, "must be"));
  EK__FAIL_IF(terms > most, EK_ERR_SHAPE, "%s: %" PRId64 " terms, at most %" PRId64 " are possible",
              op.name, terms, most);
  EK__FAIL_IF(coefficients == NULL, EK_ERR_INVALID_ARGUMENT, "%s: coefficients is NULL", op.name);
  if (op.kernels == NULL) return EK_OK;
  args.terms = (size_t)terms;
  for (int64_t j = 0; j < terms; j++) args.coefficients[j] = coefficients[j];
  return op.kernels->combine_totals(stream, &args);
}
