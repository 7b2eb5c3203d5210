/*
 * elementwise.c - checked entry points of include/evenkeel/elementwise.h.
 */
#include <evenkeel/elementwise.h>

#include <inttypes.h>

#include "op/op_internal.h"

ek_status ek_op_zero(ek_stream *stream, ek_tensor *y) {
  struct ek__op op;
  const struct ek__operand operands[] = {EK__WRITE(y, ANY, 0)};
  EK_TRY(ek__op_begin(&op, "zero", stream, operands, 1));
  if (op.kernels == NULL) return EK_OK;
  return op.kernels->zero(stream, y->data, ek_tensor_bytes(y));
}

ek_status ek_op_fill(ek_stream *stream, ek_tensor *y, double value) {
  struct ek__op op;
  const struct ek__operand operands[] = {EK__WRITE(y, VALUE, 0)};
  EK_TRY(ek__op_begin(&op, "fill", stream, operands, 1));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__elementwise_args args = {
      .y = y->data, .count = ek__op_elements(&op, 0), .value = value, .types = op.types};
  return op.kernels->fill(stream, &args);
}

ek_status ek_op_copy(ek_stream *stream, ek_tensor *y, const ek_tensor *x) {
  enum { Y, X, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, ANY, 0), [X] = EK__READ(x, ANY)};
  EK_TRY(ek__op_begin(&op, "copy", stream, operands, COUNT));
  EK__FAIL_IF(y->type != x->type, EK_ERR_TYPE, "copy: y is %s but x is %s", ek_type_name(y->type),
              ek_type_name(x->type));
  EK_TRY(ek__op_fits(&op, Y, ek__op_elements(&op, X), X));
  if (op.kernels == NULL) return EK_OK;
  return op.kernels->copy(stream, y->data, x->data, ek_tensor_bytes(x));
}

ek_status ek_op_add(ek_stream *stream, ek_tensor *y, const ek_tensor *a, const ek_tensor *b) {
  enum { Y, A, B, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, VALUE, EK__OPERAND(A) | EK__OPERAND(B)),
                                         [A] = EK__READ(a, VALUE),
                                         [B] = EK__READ(b, VALUE)};
  EK_TRY(ek__op_begin(&op, "add", stream, operands, COUNT));
  EK_TRY(ek__op_same(&op, B, A));
  EK_TRY(ek__op_same(&op, Y, A));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__elementwise_args args = {.y = y->data,
                                            .a = a->data,
                                            .b = b->data,
                                            .count = ek__op_elements(&op, Y),
                                            .types = op.types};
  return op.kernels->add(stream, &args);
}

ek_status ek_op_scale(ek_stream *stream, ek_tensor *y, const ek_tensor *x, double factor) {
  enum { Y, X, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, EK__OPERAND(X)), [X] = EK__READ(x, VALUE)};
  EK_TRY(ek__op_begin(&op, "scale", stream, operands, COUNT));
  EK_TRY(ek__op_same(&op, Y, X));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__elementwise_args args = {.y = y->data,
                                            .a = x->data,
                                            .count = ek__op_elements(&op, Y),
                                            .value = factor,
                                            .types = op.types};
  return op.kernels->scale(stream, &args);
}

ek_status ek_op_add_bias(ek_stream *stream, ek_tensor *x, const ek_tensor *bias) {
  enum { X, BIAS, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [X] = EK__WRITE(x, VALUE, 0), [BIAS] = EK__READ(bias, VALUE)};
  EK_TRY(ek__op_begin(&op, "add_bias", stream, operands, COUNT));
  EK_TRY(ek__op_fits(&op, BIAS, op.columns[X], X));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__matrix_args args = {.y = x->data,
                                       .b = bias->data,
                                       .rows = op.rows[X],
                                       .columns = op.columns[X],
                                       .types = op.types};
  return op.kernels->add_bias(stream, &args);
}

ek_status ek_op_column_sum(ek_stream *stream, ek_tensor *y, const ek_tensor *x, double beta) {
  enum { Y, X, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, SUM, 0), [X] = EK__READ(x, VALUE)};
  EK_TRY(ek__op_begin(&op, "column_sum", stream, operands, COUNT));
  EK_TRY(ek__op_fits(&op, Y, op.columns[X], X));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__matrix_args args = {.y = y->data,
                                       .a = x->data,
                                       .rows = op.rows[X],
                                       .columns = op.columns[X],
                                       .value = beta,
                                       .types = op.types};
  return op.kernels->column_sum(stream, &args);
}

/* ---- activations ---- */

static const struct {
  const char *forward, *backward; /* the names of the operations */
  bool keeps_result;
} activations[] = {
#define RESULT true
#define INPUT false
#define ROW(NAME, name, kept) [EK_ACTIVATION_##NAME] = {#name "_forward", #name "_backward", kept},
    EK_ACTIVATION_LIST(ROW)};

static ek_status check_activation(ek_activation kind) {
  if ((size_t)kind < sizeof activations / sizeof activations[0]) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "there is no activation %d", (int)kind);
}

bool ek_activation_keeps_result(ek_activation kind) {
  return (size_t)kind < sizeof activations / sizeof activations[0] &&
         activations[kind].keeps_result;
}

ek_status ek_op_activation_forward(ek_stream *stream, ek_tensor *y, ek_tensor *x,
                                   const ek_tensor *bias, ek_activation kind) {
  enum { Y, X, BIAS, COUNT };
  struct ek__op op;
  EK_TRY(check_activation(kind));
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, VALUE, EK__OPERAND(X)),
                                         [X] = {.name = "x", .tensor = x, .written = bias != NULL},
                                         [BIAS] = EK__MAY_READ(bias, VALUE)};
  EK_TRY(ek__op_begin(&op, activations[kind].forward, stream, operands, COUNT));
  EK_TRY(ek__op_same(&op, Y, X));
  EK_TRY(ek__op_fits(&op, BIAS, op.columns[X], X));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__activation_args args = {.kind = kind,
                                           .y = y->data,
                                           .x = x->data,
                                           .bias = ek__op_data(bias),
                                           .rows = op.rows[X],
                                           .columns = op.columns[X],
                                           .types = op.types};
  return op.kernels->activation_forward(stream, &args);
}

ek_status ek_op_activation_backward(ek_stream *stream, ek_tensor *dx, const ek_tensor *dy,
                                    const ek_tensor *kept, ek_activation kind) {
  enum { DX, DY, KEPT, COUNT };
  struct ek__op op;
  EK_TRY(check_activation(kind));
  const struct ek__operand operands[] = {
      [DX] = EK__WRITE(dx, VALUE, EK__OPERAND(DY)),
      [DY] = EK__READ(dy, VALUE),
      [KEPT] = {.name = activations[kind].keeps_result ? "y" : "x", .tensor = kept}};
  EK_TRY(ek__op_begin(&op, activations[kind].backward, stream, operands, COUNT));
  EK_TRY(ek__op_same(&op, DY, KEPT));
  EK_TRY(ek__op_same(&op, DX, KEPT));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__activation_args args = {.kind = kind,
                                           .y = dx->data,
                                           .x = kept->data,
                                           .dy = dy->data,
                                           .rows = op.rows[KEPT],
                                           .columns = op.columns[KEPT],
                                           .types = op.types};
  return op.kernels->activation_backward(stream, &args);
}

ek_status ek_op_gate_forward(ek_stream *stream, ek_tensor *y, const ek_tensor *x,
                             const ek_tensor *factor, ek_activation kind) {
  enum { Y, X, FACTOR, COUNT };
  struct ek__op op;
  EK_TRY(check_activation(kind));
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, EK__OPERAND(X) | EK__OPERAND(FACTOR)),
      [X] = EK__READ(x, VALUE),
      [FACTOR] = EK__READ(factor, VALUE)};
  EK_TRY(ek__op_begin(&op, "gate_forward", stream, operands, COUNT));
  EK_TRY(ek__op_same(&op, FACTOR, X));
  EK_TRY(ek__op_same(&op, Y, X));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__activation_args args = {.kind = kind,
                                           .y = y->data,
                                           .x = x->data,
                                           .factor = factor->data,
                                           .rows = op.rows[X],
                                           .columns = op.columns[X],
                                           .types = op.types};
  return op.kernels->gate_forward(stream, &args);
}

ek_status ek_op_gate_backward(ek_stream *stream, ek_tensor *dx, ek_tensor *dfactor,
                              const ek_tensor *dy, const ek_tensor *x, const ek_tensor *factor,
                              ek_activation kind) {
  enum { DX, DFACTOR, DY, X, FACTOR, COUNT };
  struct ek__op op;
  EK_TRY(check_activation(kind));
  const struct ek__operand operands[] = {[DX] =
                                             EK__WRITE(dx, VALUE, EK__OPERAND(DY) | EK__OPERAND(X)),
                                         [DFACTOR] = EK__WRITE(dfactor, VALUE, EK__OPERAND(FACTOR)),
                                         [DY] = EK__READ(dy, VALUE),
                                         [X] = EK__READ(x, VALUE),
                                         [FACTOR] = EK__READ(factor, VALUE)};
  EK_TRY(ek__op_begin(&op, "gate_backward", stream, operands, COUNT));
  EK_TRY(ek__op_same(&op, FACTOR, X));
  EK_TRY(ek__op_same(&op, DY, X));
  EK_TRY(ek__op_same(&op, DX, X));
  EK_TRY(ek__op_same(&op, DFACTOR, X));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__activation_args args = {.kind = kind,
                                           .y = dx->data,
                                           .dfactor = dfactor->data,
                                           .dy = dy->data,
                                           .x = x->data,
                                           .factor = factor->data,
                                           .rows = op.rows[X],
                                           .columns = op.columns[X],
                                           .types = op.types};
  return op.kernels->gate_backward(stream, &args);
}

/* Samples and blocks of four elements are 32-bit words of the random key: see random.h. */
static ek_status check_dropout_range(int64_t samples, int64_t per_sample, int64_t first_sample) {
  const int64_t words = INT64_C(1) << 32;
  EK__FAIL_IF(first_sample < 0 || samples > words || first_sample > words - samples,
              EK_ERR_INVALID_ARGUMENT,
              "dropout: first_sample is %" PRId64 " for %" PRId64
              " samples, but sample numbers are 0 .. 2^32 - 1",
              first_sample, samples);
  EK__FAIL_IF(per_sample > 4 * words, EK_ERR_UNSUPPORTED,
              "dropout: a sample of x has %" PRId64 " elements, more than 2^34", per_sample);
  return EK_OK;
}

ek_status ek_op_dropout(ek_stream *stream, ek_tensor *y, const ek_tensor *x, double p,
                        ek_random_key key, int64_t first_sample) {
  enum { Y, X, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, EK__OPERAND(X)), [X] = EK__READ(x, VALUE)};
  EK_TRY(ek__op_begin(&op, "dropout", stream, operands, COUNT));
  EK_TRY(ek__op_same(&op, Y, X));
  EK__FAIL_IF(!(p >= 0.0 && p < 1.0), EK_ERR_INVALID_ARGUMENT,
              "dropout: p is %g, which is outside 0 <= p < 1", p);
  const int64_t elements = ek__op_elements(&op, X);
  const int64_t samples = elements == 0 ? 0 : x->rank == 0 ? 1 : x->shape[0];
  const int64_t per_sample = elements == 0 ? 0 : elements / samples;
  EK_TRY(check_dropout_range(samples, per_sample, first_sample));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__dropout_args args = {.y = y->data,
                                        .x = x->data,
                                        .samples = samples,
                                        .per_sample = per_sample,
                                        .first_sample = first_sample,
                                        .p = p,
                                        .key = key,
                                        .types = op.types};
  return op.kernels->dropout(stream, &args);
}
