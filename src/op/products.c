/*
 * products.c - checked entry points of include/evenkeel/products.h.
 */
#include <evenkeel/products.h>

#include <inttypes.h>

#include "op/op_internal.h"

/* Stored rows follow each other without gaps: they are as long as the tensors say. A device that
 * only counts has seen the product then. */
static void complete(struct ek__matmul_args *args, const struct ek__op *op, size_t c, size_t a,
                     size_t b) {
  args->lda = op->columns[a];
  args->ldb = op->columns[b];
  args->ldc = op->columns[c];
  if (op->work != NULL) {
    ek__work_in(op->work, &op->types)->products +=
        2 * (double)args->m * (double)args->n * (double)args->k;
  }
}

/* c = beta c, where there is nothing to multiply. */
static ek_status scale(const struct ek__kernels *kernels, ek_stream *stream,
                       const struct ek__matmul_args *args) {
  const ek_type sum = args->types.sum;
  const struct ek__types types = args->gradient ? ek__types_in(sum) : args->types;
  const int64_t rows = args->ldc == args->n ? 1 : args->m; /* in one go where they are dense */
  for (int64_t i = 0; i < rows; i++) {
    void *row = (char *)args->c + (size_t)(i * args->ldc) * ek__type_size(types.value);
    const struct ek__elementwise_args one = {
        .y = row, .a = row, .count = args->m / rows * args->n, .value = args->beta, .types = types};
    EK_TRY(args->beta == 0.0 ? kernels->fill(stream, &one) : kernels->scale(stream, &one));
  }
  return EK_OK;
}

static bool has_terms(const struct ek__matmul_args *args) {
  return args->m > 0 && args->n > 0 && args->k > 0;
}

/* Kernels multiply: what has no terms is no product for them. */
static ek_status multiply_plain(const struct ek__kernels *kernels, ek_stream *stream,
                                const struct ek__matmul_args *args) {
  if (has_terms(args)) return kernels->matmul(stream, args);
  if (args->m == 0 || args->n == 0) return EK_OK;
  EK_TRY(scale(kernels, stream, args));
  if (args->bias == NULL) return EK_OK;
  return kernels->add_bias(stream, &(struct ek__matrix_args){.y = args->c,
                                                             .b = args->bias,
                                                             .rows = args->m,
                                                             .columns = args->n,
                                                             .pitch = args->ldc,
                                                             .types = args->types});
}

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
  struct ek__matmul_args args = {
      .transpose_a = transpose_a, .transpose_b = transpose_b, .beta = beta};
  const struct ek__operand operands[] = {[C] = EK__WRITE(c, VALUE, .to = &args.c),
                                         [A] = EK__READ(a, VALUE, .to = &args.a),
                                         [B] = EK__READ(b, VALUE, .to = &args.b)};
  EK_TRY(ek__op_begin(&op, "matmul", stream, operands, COUNT, &args.types));
  args.m = transpose_a ? op.columns[A] : op.rows[A];
  args.k = transpose_a ? op.rows[A] : op.columns[A];
  args.n = transpose_b ? op.rows[B] : op.columns[B];
  const int64_t b_rows = transpose_b ? op.columns[B] : op.rows[B];
  EK__FAIL_IF(b_rows != args.k, EK_ERR_SHAPE,
              "matmul: a' is %" PRId64 " x %" PRId64 " but b' is %" PRId64 " x %" PRId64, args.m,
              args.k, b_rows, args.n);
  EK_TRY(ek__op_matrix(&op, C, args.m, args.n, "a' b' is"));
  complete(&args, &op, C, A, B);
  return op.kernels == NULL ? EK_OK : multiply_plain(op.kernels, stream, &args);
}

/* ---- products and what is fused with them ---- */

static ek_status sum_columns(const struct ek__kernels *kernels, ek_stream *stream,
                             const struct ek__fused_args *args, const void *matrix, int64_t rows,
                             int64_t columns, int64_t pitch) {
  const struct ek__matrix_args sum = {.y = args->sums,
                                      .a = matrix,
                                      .rows = rows,
                                      .columns = columns,
                                      .pitch = pitch,
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
  case EK__EPILOGUE_GELU:
    if (args->pre != NULL) product.c = args->pre;
    gelu.x = product.c;
    if (ek__type_size(product.types.value) > 2) { /* GELU adds the bias as it reads */
      gelu.bias = product.bias;
      product.bias = NULL;
    } /* else what is of 16 bits would be rounded before the bias, and after it again */
    EK_TRY(multiply_plain(kernels, stream, &product));
    return kernels->activation_forward(stream, &gelu);
  case EK__EPILOGUE_GELU_BACKWARD:
    gelu.dy = product.c;
    gelu.x = args->pre;
    EK_TRY(multiply_plain(kernels, stream, &product));
    EK_TRY(kernels->activation_backward(stream, &gelu));
    return sum_columns(kernels, stream, args, product.c, product.m, product.n, product.ldc);
  case EK__EPILOGUE_SUMS: break;
  }
  EK_TRY(multiply_plain(kernels, stream, &product));
  return sum_columns(kernels, stream, args, product.a, product.k, product.m, product.lda);
}

static ek_status multiply(const struct ek__kernels *kernels, ek_stream *stream,
                          const struct ek__fused_args *args) {
  bool done = false;
  if (kernels->matmul_fused != NULL && has_terms(&args->product)) {
    EK_TRY(kernels->matmul_fused(&done, stream, args));
  }
  return done ? EK_OK : unfused(kernels, stream, args);
}

/* y = x w^T + bias, and GELU of it if asked for, which may leave what it came from in pre. Rows
 * with GELU are as long as w has rows, others may be longer. */
static ek_status linear(ek_stream *stream, const char *name, ek_tensor *y, ek_tensor *pre,
                        const ek_tensor *x, const ek_tensor *w, const ek_tensor *bias, bool gelu) {
  enum { Y, PRE, X, W, BIAS, COUNT };
  struct ek__op op;
  struct ek__fused_args args = {.product.transpose_b = true, .epilogue = EK__EPILOGUE_GELU};
  struct ek__matmul_args *product = &args.product;
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, .to = &product->c),
      [PRE] = EK__MAY_WRITE(pre, VALUE, EK__IS(SAME, Y), .to = &args.pre),
      [X] = EK__READ(x, VALUE, .to = &product->a),
      [W] = EK__READ(w, VALUE, .to = &product->b),
      [BIAS] = EK__MAY_READ(bias, VALUE, EK__IS(COLUMN, W), .to = &product->bias)};
  EK_TRY(ek__op_begin(&op, name, stream, operands, COUNT, &product->types));
  if (op.columns[W] != op.columns[X]) return unlike(&op, X, W);
  product->m = op.rows[X];
  product->n = op.rows[W];
  product->k = op.columns[X];
  const bool holds = gelu ? op.columns[Y] == product->n : op.columns[Y] >= product->n;
  if (op.rows[Y] != product->m || !holds) {
    return ek__op_matrix(&op, Y, product->m, product->n, "x w^T is");
  }
  complete(product, &op, Y, X, W);
  if (op.kernels == NULL) return EK_OK;
  return gelu ? multiply(op.kernels, stream, &args) : multiply_plain(op.kernels, stream, product);
}

ek_status ek_op_linear(ek_stream *stream, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                       const ek_tensor *bias) {
  return linear(stream, "linear", y, NULL, x, w, bias, false);
}

ek_status ek_op_linear_backward(ek_stream *stream, ek_tensor *dx, const ek_tensor *dy,
                                const ek_tensor *w) {
  enum { DX, DY, W, COUNT };
  struct ek__op op;
  struct ek__matmul_args args = {.beta = 0};
  const struct ek__operand operands[] = {[DX] = EK__WRITE(dx, VALUE, .to = &args.c),
                                         [DY] = EK__READ(dy, VALUE, .to = &args.a),
                                         [W] = EK__READ(w, VALUE, .to = &args.b)};
  EK_TRY(ek__op_begin(&op, "linear_backward", stream, operands, COUNT, &args.types));
  args.m = op.rows[DY];
  args.n = op.columns[W];
  args.k = op.rows[W];
  if (op.columns[DY] < args.k) return unlike(&op, DY, W);
  EK_TRY(ek__op_matrix(&op, DX, args.m, args.n, "dy w is"));
  complete(&args, &op, DX, DY, W);
  return op.kernels == NULL ? EK_OK : multiply_plain(op.kernels, stream, &args);
}

ek_status ek_op_linear_gelu(ek_stream *stream, ek_tensor *y, ek_tensor *pre, const ek_tensor *x,
                            const ek_tensor *w, const ek_tensor *bias) {
  return linear(stream, "linear_gelu", y, pre, x, w, bias, true);
}

ek_status ek_op_gelu_linear_backward(ek_stream *stream, ek_tensor *dpre, ek_tensor *dbias,
                                     const ek_tensor *dy, const ek_tensor *w, const ek_tensor *pre,
                                     double beta) {
  enum { DPRE, DBIAS, DY, W, PRE, COUNT };
  struct ek__op op;
  struct ek__fused_args args = {.epilogue = EK__EPILOGUE_GELU_BACKWARD, .sums_beta = beta};
  struct ek__matmul_args *product = &args.product;
  const struct ek__operand operands[] = {
      [DPRE] = EK__WRITE(dpre, VALUE, EK__IS(SAME, PRE), .to = &product->c),
      [DBIAS] = EK__MAY_WRITE(dbias, SUM, EK__IS(ROW, W), .to = &args.sums),
      [DY] = EK__READ(dy, VALUE, .to = &product->a),
      [W] = EK__READ(w, VALUE, .to = &product->b),
      [PRE] = EK__READ(pre, VALUE, .to = &args.pre)};
  EK_TRY(ek__op_begin(&op, "gelu_linear_backward", stream, operands, COUNT, &product->types));
  if (op.columns[DY] != op.rows[W]) return unlike(&op, DY, W);
  product->m = op.rows[DY];
  product->n = op.columns[W];
  product->k = op.columns[DY];
  EK_TRY(ek__op_matrix(&op, PRE, product->m, product->n, "dy w is"));
  complete(product, &op, DPRE, DY, W);
  return op.kernels == NULL ? EK_OK : multiply(op.kernels, stream, &args);
}

/* dbias alone. */
static ek_status bias_gradient(ek_stream *stream, ek_tensor *dbias, double beta,
                               const ek_tensor *dy) {
  enum { DBIAS, DY, COUNT };
  struct ek__op op;
  struct ek__matrix_args args = {.value = beta};
  const struct ek__operand operands[] = {[DBIAS] = EK__WRITE(dbias, SUM, .to = &args.y),
                                         [DY] = EK__READ(dy, VALUE, .to = &args.a)};
  EK_TRY(ek__op_begin(&op, "linear_gradients", stream, operands, COUNT, &args.types));
  args.rows = op.rows[DY];
  args.columns = ek__op_elements(&op, DBIAS);
  args.pitch = op.columns[DY];
  if (args.columns > args.pitch) return ek__op_fits(&op, DBIAS, args.pitch, DY);
  return op.kernels == NULL ? EK_OK : op.kernels->column_sum(stream, &args);
}

ek_status ek_op_linear_gradients(ek_stream *stream, ek_tensor *dw, ek_tensor *dbias,
                                 const ek_tensor *dy, const ek_tensor *x, double weight_beta,
                                 double bias_beta) {
  enum { DW, DBIAS, DY, X, COUNT };
  if (dw == NULL) return bias_gradient(stream, dbias, bias_beta, dy);
  struct ek__op op;
  struct ek__fused_args args = {
      .product = {.transpose_a = true, .beta = weight_beta, .gradient = true},
      .epilogue = EK__EPILOGUE_SUMS,
      .sums_beta = bias_beta};
  struct ek__matmul_args *product = &args.product;
  const struct ek__operand operands[] = {
      [DW] = EK__WRITE(dw, SUM, .to = &product->c),
      [DBIAS] = EK__MAY_WRITE(dbias, SUM, EK__IS(COLUMN, DW), .to = &args.sums),
      [DY] = EK__READ(dy, VALUE, .to = &product->a),
      [X] = EK__READ(x, VALUE, .to = &product->b)};
  EK_TRY(ek__op_begin(&op, "linear_gradients", stream, operands, COUNT, &product->types));
  if (op.rows[DY] != op.rows[X]) return unlike(&op, DY, X);
  product->m = op.rows[DW];
  product->n = op.columns[X];
  product->k = op.rows[DY];
  if (op.columns[DW] != product->n || op.columns[DY] < product->m) {
    return ek__op_matrix(&op, DW, op.columns[DY], product->n, "dy^T x is");
  }
  complete(product, &op, DW, DY, X);
  if (op.kernels == NULL) return EK_OK;
  return dbias == NULL ? multiply_plain(op.kernels, stream, product)
                       : multiply(op.kernels, stream, &args);
}
