/*
 * products.c - checked entry points of include/evenkeel/products.h.
 */
#include <evenkeel/products.h>

#include <inttypes.h>

#include "op/op_internal.h"

/* The message for two matrices that share a size, but do not. */
static ek_status unlike(const struct ek__op *op, size_t i, size_t j) {
  return ek_error_set(EK_ERR_SHAPE,
                      "%s: %s is %" PRId64 " x %" PRId64 " but %s is %" PRId64 " x %" PRId64,
                      op->name, op->operand[i].name, op->rows[i], op->columns[i],
                      op->operand[j].name, op->rows[j], op->columns[j]);
}

ek_status ek_op_matmul(ek_stream *stream, ek_tensor *c, const ek_tensor *a, bool transpose_a,
                       const ek_tensor *b, bool transpose_b, double beta) {
  enum { C, A, B, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [C] = EK__WRITE(c, VALUE, 0), [A] = EK__READ(a, VALUE), [B] = EK__READ(b, VALUE)};
  EK_TRY(ek__op_begin(&op, "matmul", stream, operands, COUNT));
  const int64_t m = transpose_a ? op.columns[A] : op.rows[A];
  const int64_t k = transpose_a ? op.rows[A] : op.columns[A];
  const int64_t b_rows = transpose_b ? op.columns[B] : op.rows[B];
  const int64_t n = transpose_b ? op.rows[B] : op.columns[B];
  EK__FAIL_IF(b_rows != k, EK_ERR_SHAPE,
              "matmul: a' is %" PRId64 " x %" PRId64 " but b' is %" PRId64 " x %" PRId64, m, k,
              b_rows, n);
  EK_TRY(ek__op_matrix(&op, C, m, n, "a' b' is"));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__matmul_args args = {.c = c->data,
                                       .a = a->data,
                                       .b = b->data,
                                       .m = m,
                                       .n = n,
                                       .k = k,
                                       .transpose_a = transpose_a,
                                       .transpose_b = transpose_b,
                                       .beta = beta,
                                       .types = op.types};
  return op.kernels->matmul(stream, &args);
}

/* ---- products and what is fused with them ---- */

static ek_status sum_columns(const struct ek__kernels *kernels, ek_stream *stream,
                             const struct ek__fused_args *args, const void *matrix, int64_t rows,
                             int64_t columns) {
  const struct ek__matrix_args sum = {.y = args->sums,
                                      .a = matrix,
                                      .rows = rows,
                                      .columns = columns,
                                      .value = args->sums_beta,
                                      .types = args->product.types};
  return args->sums == NULL ? EK_OK : kernels->column_sum(stream, &sum);
}

/* One kernel after the other. */
static ek_status unfused(const struct ek__kernels *kernels, ek_stream *stream,
                         const struct ek__fused_args *args) {
  struct ek__matmul_args product = args->product;
  struct ek__activation_args gelu = {.kind = EK_ACTIVATION_GELU,
                                     .y = product.c,
                                     .rows = product.m,
                                     .columns = product.n,
                                     .types = product.types};
  switch (args->epilogue) {
  case EK__EPILOGUE_GELU: /* GELU adds the bias as it reads */
    if (args->pre != NULL) product.c = args->pre;
    product.bias = NULL;
    gelu.x = product.c;
    gelu.bias = args->product.bias;
    EK_TRY(kernels->matmul(stream, &product));
    return kernels->activation_forward(stream, &gelu);
  case EK__EPILOGUE_GELU_BACKWARD:
    gelu.dy = product.c;
    gelu.x = args->pre;
    EK_TRY(kernels->matmul(stream, &product));
    EK_TRY(kernels->activation_backward(stream, &gelu));
    return sum_columns(kernels, stream, args, product.c, product.m, product.n);
  case EK__EPILOGUE_SUMS: break;
  }
  EK_TRY(kernels->matmul(stream, &product));
  return sum_columns(kernels, stream, args, product.a, product.k, product.m);
}

static ek_status multiply(const struct ek__kernels *kernels, ek_stream *stream,
                          const struct ek__fused_args *args) {
  bool done = false;
  if (kernels->matmul_fused != NULL) EK_TRY(kernels->matmul_fused(&done, stream, args));
  return done ? EK_OK : unfused(kernels, stream, args);
}

/* y = x w^T + bias, and GELU of it if asked for, which may leave what it came from in pre. */
static ek_status linear(ek_stream *stream, const char *name, ek_tensor *y, ek_tensor *pre,
                        const ek_tensor *x, const ek_tensor *w, const ek_tensor *bias, bool gelu) {
  enum { Y, PRE, X, W, BIAS, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, VALUE, 0),
                                         [PRE] = EK__MAY_WRITE(pre, VALUE, 0),
                                         [X] = EK__READ(x, VALUE),
                                         [W] = EK__READ(w, VALUE),
                                         [BIAS] = EK__MAY_READ(bias, VALUE)};
  EK_TRY(ek__op_begin(&op, name, stream, operands, COUNT));
  if (op.columns[W] != op.columns[X]) return unlike(&op, X, W);
  EK_TRY(ek__op_matrix(&op, Y, op.rows[X], op.rows[W], "x w^T is"));
  if (pre != NULL) EK_TRY(ek__op_matrix(&op, PRE, op.rows[X], op.rows[W], "x w^T is"));
  EK_TRY(ek__op_fits(&op, BIAS, op.rows[W], W));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__fused_args args = {.product = {.c = y->data,
                                                  .a = x->data,
                                                  .b = w->data,
                                                  .m = op.rows[X],
                                                  .n = op.rows[W],
                                                  .k = op.columns[X],
                                                  .transpose_b = true,
                                                  .bias = ek__op_data(bias),
                                                  .types = op.types},
                                      .epilogue = EK__EPILOGUE_GELU,
                                      .pre = ek__op_data(pre)};
  return gelu ? multiply(op.kernels, stream, &args) : op.kernels->matmul(stream, &args.product);
}

ek_status ek_op_linear(ek_stream *stream, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                       const ek_tensor *bias) {
  return linear(stream, "linear", y, NULL, x, w, bias, false);
}

ek_status ek_op_linear_gelu(ek_stream *stream, ek_tensor *y, ek_tensor *pre, const ek_tensor *x,
                            const ek_tensor *w, const ek_tensor *bias) {
  return linear(stream, "linear_gelu", y, pre, x, w, bias, true);
}

ek_status ek_op_gelu_linear_backward(ek_stream *stream, ek_tensor *dpre, ek_tensor *dbias,
                                     double beta, const ek_tensor *dy, const ek_tensor *w,
                                     const ek_tensor *pre) {
  enum { DPRE, DBIAS, DY, W, PRE, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {[DPRE] = EK__WRITE(dpre, VALUE, 0),
                                         [DBIAS] = EK__MAY_WRITE(dbias, SUM, 0),
                                         [DY] = EK__READ(dy, VALUE),
                                         [W] = EK__READ(w, VALUE),
                                         [PRE] = EK__READ(pre, VALUE)};
  EK_TRY(ek__op_begin(&op, "gelu_linear_backward", stream, operands, COUNT));
  if (op.columns[DY] != op.rows[W]) return unlike(&op, DY, W);
  EK_TRY(ek__op_matrix(&op, PRE, op.rows[DY], op.columns[W], "dy w is"));
  EK_TRY(ek__op_same(&op, DPRE, PRE));
  EK_TRY(ek__op_fits(&op, DBIAS, op.columns[W], W));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__fused_args args = {.product = {.c = dpre->data,
                                                  .a = dy->data,
                                                  .b = w->data,
                                                  .m = op.rows[DY],
                                                  .n = op.columns[W],
                                                  .k = op.columns[DY],
                                                  .types = op.types},
                                      .epilogue = EK__EPILOGUE_GELU_BACKWARD,
                                      .pre = pre->data,
                                      .sums = ek__op_data(dbias),
                                      .sums_beta = beta};
  return multiply(op.kernels, stream, &args);
}

ek_status ek_op_linear_gradients(ek_stream *stream, ek_tensor *dw, double weight_beta,
                                 ek_tensor *dbias, double bias_beta, const ek_tensor *dy,
                                 const ek_tensor *x) {
  enum { DW, DBIAS, DY, X, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {[DW] = EK__WRITE(dw, SUM, 0),
                                         [DBIAS] = EK__MAY_WRITE(dbias, SUM, 0),
                                         [DY] = EK__READ(dy, VALUE),
                                         [X] = EK__READ(x, VALUE)};
  EK_TRY(ek__op_begin(&op, "linear_gradients", stream, operands, COUNT));
  if (op.rows[DY] != op.rows[X]) return unlike(&op, DY, X);
  EK_TRY(ek__op_matrix(&op, DW, op.columns[DY], op.columns[X], "dy^T x is"));
  EK_TRY(ek__op_fits(&op, DBIAS, op.columns[DY], DY));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__fused_args args = {.product = {.c = dw->data,
                                                  .a = dy->data,
                                                  .b = x->data,
                                                  .m = op.columns[DY],
                                                  .n = op.columns[X],
                                                  .k = op.rows[DY],
                                                  .transpose_a = true,
                                                  .beta = weight_beta,
                                                  .types = op.types,
                                                  .gradient = true},
                                      .epilogue = EK__EPILOGUE_SUMS,
                                      .sums = ek__op_data(dbias),
                                      .sums_beta = bias_beta};
  return dbias == NULL ? op.kernels->matmul(stream, &args.product)
                       : multiply(op.kernels, stream, &args);
}
