/*
 * elementwise.c - checked entry points of include/evenkeel/elementwise.h.
 */
#include <evenkeel/elementwise.h>

#include <inttypes.h>

#include "op/op_internal.h"

ek_status ek_op_zero(ek_stream *stream, ek_tensor *y) {
  struct ek__op op;
  const struct ek__operand operands[] = {EK__WRITE(y, ANY)};
  EK_TRY(ek__op_begin(&op, "zero", stream, operands, 1, NULL));
  return op.kernels == NULL ? EK_OK : op.kernels->zero(stream, y->data, ek_tensor_bytes(y));
}

ek_status ek_op_fill(ek_stream *stream, ek_tensor *y, double value) {
  struct ek__op op;
  struct ek__elementwise_args args = {.value = value};
  const struct ek__operand operands[] = {EK__WRITE(y, VALUE, .to = &args.y)};
  EK_TRY(ek__op_begin(&op, "fill", stream, operands, 1, &args.types));
  args.count = ek__op_elements(&op, 0);
  return op.kernels == NULL ? EK_OK : op.kernels->fill(stream, &args);
}

ek_status ek_op_copy(ek_stream *stream, ek_tensor *y, const ek_tensor *x) {
  enum { Y, X, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, ANY, EK__IS(ALL, X)), [X] = EK__READ(x, ANY)};
  EK_TRY(ek__op_begin(&op, "copy", stream, operands, COUNT, NULL));
  EK__FAIL_IF(y->type != x->type, EK_ERR_TYPE, "copy: y is %s but x is %s", ek_type_name(y->type),
              ek_type_name(x->type));
  if (op.kernels == NULL) return EK_OK;
  return op.kernels->copy(stream, y->data, x->data, ek_tensor_bytes(x));
}

ek_status ek_op_add(ek_stream *stream, ek_tensor *y, const ek_tensor *a, const ek_tensor *b) {
  enum { Y, A, B, COUNT };
  struct ek__op op;
  struct ek__elementwise_args args = {0};
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, VALUE, EK__IS(SAME, A), .to = &args.y,
                                                         .may_be = EK__OPERAND(A) | EK__OPERAND(B)),
                                         [A] = EK__READ(a, VALUE, .to = &args.a),
                                         [B] = EK__READ(b, VALUE, EK__IS(SAME, A), .to = &args.b)};
  EK_TRY(ek__op_begin(&op, "add", stream, operands, COUNT, &args.types));
  args.count = ek__op_elements(&op, Y);
  return op.kernels == NULL ? EK_OK : op.kernels->add(stream, &args);
}

ek_status ek_op_scale(ek_stream *stream, ek_tensor *y, const ek_tensor *x, double factor) {
  enum { Y, X, COUNT };
  struct ek__op op;
  struct ek__elementwise_args args = {.value = factor};
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, EK__IS(SAME, X), .to = &args.y, .may_be = EK__OPERAND(X)),
      [X] = EK__READ(x, VALUE, .to = &args.a)};
  EK_TRY(ek__op_begin(&op, "scale", stream, operands, COUNT, &args.types));
  args.count = ek__op_elements(&op, Y);
  return op.kernels == NULL ? EK_OK : op.kernels->scale(stream, &args);
}

ek_status ek_op_lerp(ek_stream *stream, ek_tensor *y, const ek_tensor *a, const ek_tensor *b,
                     double weight) {
  enum { Y, A, B, COUNT };
  struct ek__op op;
  struct ek__elementwise_args args = {.value = weight};
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, VALUE, EK__IS(SAME, A), .to = &args.y,
                                                         .may_be = EK__OPERAND(A) | EK__OPERAND(B)),
                                         [A] = EK__READ(a, VALUE, .to = &args.a),
                                         [B] = EK__READ(b, VALUE, EK__IS(SAME, A), .to = &args.b)};
  EK_TRY(ek__op_begin(&op, "lerp", stream, operands, COUNT, &args.types));
  args.count = ek__op_elements(&op, Y);
  return op.kernels == NULL ? EK_OK : op.kernels->lerp(stream, &args);
}

/* ---- two operands, and one ---- */

_Static_assert(EK__ADD == (int)EK_BINARY_ADD && EK__SUBTRACT == (int)EK_BINARY_SUBTRACT &&
                   EK__MULTIPLY == (int)EK_BINARY_MULTIPLY && EK__DIVIDE == (int)EK_BINARY_DIVIDE &&
                   EK__SPREAD_NONE == (int)EK_SPREAD_NONE &&
                   EK__SPREAD_ROWS == (int)EK_SPREAD_ROWS &&
                   EK__SPREAD_COLUMNS == (int)EK_SPREAD_COLUMNS &&
                   EK__RSQRT == (int)EK_UNARY_RSQRT && EK__EXP == (int)EK_UNARY_EXP,
               "the backends have the same numbers");

ek_status ek_op_binary(ek_stream *stream, ek_tensor *y, const ek_tensor *a, const ek_tensor *b,
                       ek_binary kind, ek_spread spread) {
  enum { Y, A, B, COUNT };
  static const char *const names[] = {"binary_add", "binary_subtract", "binary_multiply",
                                      "binary_divide"};
  static const enum ek__operand_size sizes[] = {EK__SIZE_SAME, EK__SIZE_COLUMN, EK__SIZE_ROW};
  struct ek__op op;
  EK__FAIL_IF((unsigned)kind > EK_BINARY_DIVIDE || (unsigned)spread > EK_SPREAD_COLUMNS,
              EK_ERR_INVALID_ARGUMENT, "binary: unknown operation %d or spread %d",
              (int)kind, (int)spread);
  struct ek__binary_args args = {.kind = (enum ek__binary)kind, .spread = (enum ek__spread)spread};
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, EK__IS(SAME, A), .to = &args.y,
                      .may_be = EK__OPERAND(A) | (spread == EK_SPREAD_NONE ? EK__OPERAND(B) : 0)),
      [A] = EK__READ(a, VALUE, .to = &args.a),
      [B] = {.name = "b",
             .tensor = b,
             .role = spread == EK_SPREAD_ROWS ? EK__SUM : EK__VALUE,
             .size = sizes[spread],
             .of = A,
             .to = &args.b}};
  EK_TRY(ek__op_begin(&op, names[kind], stream, operands, COUNT, &args.types));
  args.rows = op.rows[A];
  args.columns = op.columns[A];
  return op.kernels == NULL ? EK_OK : op.kernels->binary(stream, &args);
}

ek_status ek_op_unary(ek_stream *stream, ek_tensor *y, const ek_tensor *x, ek_unary kind,
                      double offset) {
  enum { Y, X, COUNT };
  static const char *const names[] = {"unary_rsqrt", "unary_exp"};
  struct ek__op op;
  EK__FAIL_IF((unsigned)kind > EK_UNARY_EXP, EK_ERR_INVALID_ARGUMENT,
              "unary: unknown function %d", (int)kind);
  struct ek__unary_args args = {.kind = (enum ek__unary)kind, .offset = offset};
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, EK__IS(SAME, X), .to = &args.y, .may_be = EK__OPERAND(X)),
      [X] = EK__READ(x, VALUE, .to = &args.x)};
  EK_TRY(ek__op_begin(&op, names[kind], stream, operands, COUNT, &args.types));
  args.count = ek__op_elements(&op, Y);
  return op.kernels == NULL ? EK_OK : op.kernels->unary(stream, &args);
}

ek_status ek_op_add_bias(ek_stream *stream, ek_tensor *x, const ek_tensor *bias) {
  enum { X, BIAS, COUNT };
  struct ek__op op;
  struct ek__matrix_args args = {0};
  const struct ek__operand operands[] = {[X] = EK__WRITE(x, VALUE, .to = &args.y),
                                         [BIAS] =
                                             EK__READ(bias, VALUE, EK__IS(ROW, X), .to = &args.b)};
  EK_TRY(ek__op_begin(&op, "add_bias", stream, operands, COUNT, &args.types));
  args.rows = op.rows[X];
  args.columns = args.pitch = op.columns[X];
  return op.kernels == NULL ? EK_OK : op.kernels->add_bias(stream, &args);
}

ek_status ek_op_column_sum(ek_stream *stream, ek_tensor *y, const ek_tensor *x, double beta) {
  enum { Y, X, COUNT };
  struct ek__op op;
  struct ek__matrix_args args = {.value = beta};
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, SUM, EK__IS(ROW, X), .to = &args.y),
                                         [X] = EK__READ(x, VALUE, .to = &args.a)};
  EK_TRY(ek__op_begin(&op, "column_sum", stream, operands, COUNT, &args.types));
  args.rows = op.rows[X];
  args.columns = args.pitch = op.columns[X];
  return op.kernels == NULL ? EK_OK : op.kernels->column_sum(stream, &args);
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
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "unknown activation %d", (int)kind);
}

bool ek_activation_keeps_result(ek_activation kind) {
  return (size_t)kind < sizeof activations / sizeof activations[0] &&
         activations[kind].keeps_result;
}

ek_status ek_op_activation_forward(ek_stream *stream, ek_tensor *y, ek_tensor *x,
                                   const ek_tensor *bias, ek_activation kind) {
  enum { Y, X, BIAS, COUNT };
  struct ek__op op;
  struct ek__activation_args args = {.kind = kind};
  EK_TRY(check_activation(kind));
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, EK__IS(SAME, X), .to = &args.y, .may_be = EK__OPERAND(X)),
      [X] = EK__READ(x, VALUE, .to = &args.x, .written = bias != NULL),
      [BIAS] = EK__MAY_READ(bias, VALUE, EK__IS(ROW, X), .to = &args.bias)};
  EK_TRY(ek__op_begin(&op, activations[kind].forward, stream, operands, COUNT, &args.types));
  args.rows = op.rows[X];
  args.columns = op.columns[X];
  return op.kernels == NULL ? EK_OK : op.kernels->activation_forward(stream, &args);
}

ek_status ek_op_activation_backward(ek_stream *stream, ek_tensor *dx, const ek_tensor *dy,
                                    const ek_tensor *kept, ek_activation kind) {
  enum { DX, DY, KEPT, COUNT };
  struct ek__op op;
  struct ek__activation_args args = {.kind = kind};
  EK_TRY(check_activation(kind));
  const struct ek__operand operands[] = {
      [DX] = EK__WRITE(dx, VALUE, EK__IS(SAME, KEPT), .to = &args.y, .may_be = EK__OPERAND(DY)),
      [DY] = EK__READ(dy, VALUE, EK__IS(SAME, KEPT), .to = &args.dy),
      [KEPT] = {.name = activations[kind].keeps_result ? "y" : "x", .tensor = kept, .to = &args.x}};
  EK_TRY(ek__op_begin(&op, activations[kind].backward, stream, operands, COUNT, &args.types));
  args.rows = op.rows[KEPT];
  args.columns = op.columns[KEPT];
  return op.kernels == NULL ? EK_OK : op.kernels->activation_backward(stream, &args);
}

ek_status ek_op_gate_forward(ek_stream *stream, ek_tensor *y, const ek_tensor *x,
                             const ek_tensor *factor, ek_activation kind) {
  enum { Y, X, FACTOR, COUNT };
  struct ek__op op;
  struct ek__activation_args args = {.kind = kind};
  EK_TRY(check_activation(kind));
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, EK__IS(SAME, X), .to = &args.y,
                      .may_be = EK__OPERAND(X) | EK__OPERAND(FACTOR)),
      [X] = EK__READ(x, VALUE, .to = &args.x),
      [FACTOR] = EK__READ(factor, VALUE, EK__IS(SAME, X), .to = &args.factor)};
  EK_TRY(ek__op_begin(&op, "gate_forward", stream, operands, COUNT, &args.types));
  args.rows = op.rows[X];
  args.columns = op.columns[X];
  return op.kernels == NULL ? EK_OK : op.kernels->gate_forward(stream, &args);
}

ek_status ek_op_gate_backward(ek_stream *stream, ek_tensor *dx, ek_tensor *dfactor,
                              const ek_tensor *dy, const ek_tensor *x, const ek_tensor *factor,
                              ek_activation kind) {
  enum { DX, DFACTOR, DY, X, FACTOR, COUNT };
  struct ek__op op;
  struct ek__activation_args args = {.kind = kind};
  EK_TRY(check_activation(kind));
  const struct ek__operand operands[] = {
      [DX] = EK__WRITE(dx, VALUE, EK__IS(SAME, X), .to = &args.y,
                       .may_be = EK__OPERAND(DY) | EK__OPERAND(X)),
      [DFACTOR] = EK__WRITE(dfactor, VALUE, EK__IS(SAME, X), .to = &args.dfactor,
                            .may_be = EK__OPERAND(FACTOR)),
      [DY] = EK__READ(dy, VALUE, EK__IS(SAME, X), .to = &args.dy),
      [X] = EK__READ(x, VALUE, .to = &args.x),
      [FACTOR] = EK__READ(factor, VALUE, EK__IS(SAME, X), .to = &args.factor)};
  EK_TRY(ek__op_begin(&op, "gate_backward", stream, operands, COUNT, &args.types));
  args.rows = op.rows[X];
  args.columns = op.columns[X];
  return op.kernels == NULL ? EK_OK : op.kernels->gate_backward(stream, &args);
}

/* Samples and blocks of four elements are 32-bit words of the random key: see random.h. */
static ek_status check_dropout_range(const struct ek__dropout_args *args) {
  const int64_t words = INT64_C(1) << 32, first = args->first_sample;
  EK__FAIL_IF(first < 0 || args->samples > words || first > words - args->samples,
              EK_ERR_INVALID_ARGUMENT,
              "dropout: first_sample is %" PRId64 " for %" PRId64
              " samples, but sample numbers are 0 .. 2^32 - 1",
              first, args->samples);
  EK__FAIL_IF(args->per_sample > 4 * words, EK_ERR_UNSUPPORTED,
              "dropout: a sample of x has %" PRId64 " elements, more than 2^34", args->per_sample);
  return EK_OK;
}

ek_status ek_op_dropout(ek_stream *stream, ek_tensor *y, const ek_tensor *x, double p,
                        ek_random_key key, int64_t first_sample) {
  enum { Y, X, COUNT };
  struct ek__op op;
  struct ek__dropout_args args = {.first_sample = first_sample, .p = p, .key = key};
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, EK__IS(SAME, X), .to = &args.y, .may_be = EK__OPERAND(X)),
      [X] = EK__READ(x, VALUE, .to = &args.x)};
  EK_TRY(ek__op_begin(&op, "dropout", stream, operands, COUNT, &args.types));
  EK__FAIL_IF(!(p >= 0.0 && p < 1.0), EK_ERR_INVALID_ARGUMENT,
              "dropout: p is %g, which is outside 0 <= p < 1", p);
  const int64_t elements = ek__op_elements(&op, X);
  args.samples = elements == 0 ? 0 : x->rank == 0 ? 1 : x->shape[0];
  args.per_sample = elements == 0 ? 0 : elements / args.samples;
  EK_TRY(check_dropout_range(&args));
  return op.kernels == NULL ? EK_OK : op.kernels->dropout(stream, &args);
}
