/*
 * channel_norm.c - checked entry points of include/evenkeel/channel_norm.h.
 */
#include <evenkeel/channel_norm.h>

#include <inttypes.h>
#include <math.h>

#include "op/op_internal.h"

/* Operand `sums` is of whole pieces of two rows, and args gets their number. */
static ek_status read_pieces(struct ek__channel_args *args, const struct ek__op *op, size_t sums) {
  EK__FAIL_IF(op->rows[sums] % 2 != 0, EK_ERR_SHAPE,
              "%s: sums has %" PRId64 " rows, expected two for each piece", op->name,
              op->rows[sums]);
  args->pieces = op->rows[sums] / 2;
  args->channels = op->columns[sums];
  return EK_OK;
}

/* Operand `mean` has statistics of runs of equal length of the rows of x, and args gets both. */
static ek_status read_samples(struct ek__channel_args *args, const struct ek__op *op, size_t x,
                              size_t mean) {
  args->rows = op->rows[x];
  args->channels = op->columns[x];
  args->samples = op->rows[mean];
  const bool fits = args->samples == 0 ? args->rows == 0 : args->rows % args->samples == 0;
  EK__FAIL_IF(!fits, EK_ERR_SHAPE,
              "%s: mean has %" PRId64 " rows, expected a divisor of the %" PRId64 " rows of x",
              op->name, args->samples, args->rows);
  return EK_OK;
}

static ek_status check_groups(struct ek__channel_args *args, const struct ek__op *op, double rows,
                              int64_t groups) {
  EK__FAIL_IF(groups < 1 || args->channels % groups != 0, EK_ERR_INVALID_ARGUMENT,
              "%s: groups is %" PRId64 ", expected a divisor of the %" PRId64 " channels", op->name,
              groups, args->channels);
  args->groups = groups;
  args->host_count = rows;
  return ek__op_between(op->name, "host_rows", rows, 0.0, HUGE_VAL);
}

ek_status ek_op_channel_moments(ek_stream *stream, ek_tensor *sums, const ek_tensor *x) {
  enum { SUMS, X, COUNT };
  struct ek__op op;
  struct ek__channel_args args = {.rows = 0};
  const struct ek__operand operands[] = {
      [SUMS] = EK__WRITE(sums, F64, .to = &args.sums), [X] = EK__READ(x, VALUE, .to = &args.x)};
  EK_TRY(ek__op_begin(&op, "channel_moments", stream, operands, COUNT, &args.types));
  EK_TRY(read_pieces(&args, &op, SUMS));
  args.rows = op.rows[X];
  EK_TRY(ek__op_matrix(&op, SUMS, op.rows[SUMS], op.columns[X], "must be"));
  return op.kernels == NULL ? EK_OK : op.kernels->channel_moments(stream, &args);
}

ek_status ek_op_channel_statistics(ek_stream *stream, ek_tensor *mean, ek_tensor *rstd,
                                   const ek_tensor *sums, const ek_tensor *rows, double host_rows,
                                   int64_t groups, double epsilon) {
  enum { MEAN, RSTD, SUMS, ROWS, COUNT };
  struct ek__op op;
  struct ek__channel_args args = {.epsilon = epsilon};
  const struct ek__operand operands[] = {
      [MEAN] = EK__WRITE(mean, SUM, .to = &args.mean),
      [RSTD] = EK__WRITE(rstd, SUM, EK__IS(SAME, MEAN), .to = &args.rstd),
      [SUMS] = EK__READ(sums, F64, .to = &args.sums),
      [ROWS] = EK__MAY_READ(rows, F64, EK__IS(EXACTLY, 1), .to = &args.count)};
  EK_TRY(ek__op_begin(&op, "channel_statistics", stream, operands, COUNT, &args.types));
  EK_TRY(read_pieces(&args, &op, SUMS));
  args.samples = args.pieces;
  EK_TRY(ek__op_matrix(&op, MEAN, args.samples, args.channels, "must be"));
  EK_TRY(check_groups(&args, &op, host_rows, groups));
  EK_TRY(ek__op_between(op.name, "epsilon", epsilon, 0.0, HUGE_VAL));
  return op.kernels == NULL ? EK_OK : op.kernels->channel_statistics(stream, &args);
}

ek_status ek_op_channel_running(ek_stream *stream, ek_tensor *running_mean,
                                ek_tensor *running_variance, ek_tensor *batches,
                                const ek_tensor *sums, const ek_tensor *rows, double host_rows,
                                double momentum) {
  enum { MEAN, VARIANCE, BATCHES, SUMS, ROWS, COUNT };
  struct ek__op op;
  struct ek__channel_args args = {.momentum = momentum, .host_count = host_rows, .samples = 1};
  const struct ek__operand operands[] = {
      [MEAN] = EK__WRITE(running_mean, SUM, EK__IS(ROW, SUMS), .to = &args.running_mean),
      [VARIANCE] =
          EK__WRITE(running_variance, SUM, EK__IS(ROW, SUMS), .to = &args.running_variance),
      [BATCHES] = EK__WRITE(batches, SUM, EK__IS(EXACTLY, 1), .to = &args.batches),
      [SUMS] = EK__READ(sums, F64, .to = &args.sums),
      [ROWS] = EK__MAY_READ(rows, F64, EK__IS(EXACTLY, 1), .to = &args.count)};
  EK_TRY(ek__op_begin(&op, "channel_running", stream, operands, COUNT, &args.types));
  EK_TRY(ek__op_matrix(&op, SUMS, 2, op.columns[SUMS], "must be"));
  EK_TRY(ek__op_between(op.name, "momentum", momentum, 0.0, 1.0));
  EK_TRY(ek__op_between(op.name, "host_rows", host_rows, 0.0, HUGE_VAL));
  args.channels = op.columns[SUMS];
  return op.kernels == NULL ? EK_OK : op.kernels->channel_running(stream, &args);
}

ek_status ek_op_channel_norm_forward(ek_stream *stream, ek_tensor *y, const ek_tensor *x,
                                     const ek_tensor *mean, const ek_tensor *rstd,
                                     const ek_tensor *weight, const ek_tensor *bias) {
  enum { Y, X, MEAN, RSTD, WEIGHT, BIAS, COUNT };
  struct ek__op op;
  struct ek__channel_args args = {.rows = 0};
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, EK__IS(SAME, X), .to = &args.y, .may_be = EK__OPERAND(X)),
      [X] = EK__READ(x, VALUE, .to = &args.x),
      [MEAN] = EK__READ(mean, SUM, .to = &args.mean),
      [RSTD] = EK__READ(rstd, SUM, EK__IS(SAME, MEAN), .to = &args.rstd),
      [WEIGHT] = EK__MAY_READ(weight, VALUE, EK__IS(ROW, X), .to = &args.weight),
      [BIAS] = EK__MAY_READ(bias, VALUE, EK__IS(ROW, X), .to = &args.bias)};
  EK_TRY(ek__op_begin(&op, "channel_norm_forward", stream, operands, COUNT, &args.types));
  EK_TRY(read_samples(&args, &op, X, MEAN));
  EK_TRY(ek__op_matrix(&op, MEAN, args.samples, args.channels, "must be"));
  return op.kernels == NULL ? EK_OK : op.kernels->channel_norm_forward(stream, &args);
}

ek_status ek_op_channel_slopes(ek_stream *stream, ek_tensor *sums, const ek_tensor *dy,
                               const ek_tensor *x, const ek_tensor *mean, const ek_tensor *rstd) {
  enum { SUMS, DY, X, MEAN, RSTD, COUNT };
  struct ek__op op;
  struct ek__channel_args args = {.rows = 0};
  const struct ek__operand operands[] = {
      [SUMS] = EK__WRITE(sums, F64, .to = &args.sums),
      [DY] = EK__READ(dy, VALUE, EK__IS(SAME, X), .to = &args.dy),
      [X] = EK__READ(x, VALUE, .to = &args.x),
      [MEAN] = EK__READ(mean, SUM, .to = &args.mean),
      [RSTD] = EK__READ(rstd, SUM, EK__IS(SAME, MEAN), .to = &args.rstd)};
  EK_TRY(ek__op_begin(&op, "channel_slopes", stream, operands, COUNT, &args.types));
  EK_TRY(read_samples(&args, &op, X, MEAN));
  EK_TRY(ek__op_matrix(&op, MEAN, args.samples, args.channels, "must be"));
  EK_TRY(ek__op_matrix(&op, SUMS, op.rows[SUMS], args.channels, "must be"));
  EK_TRY(read_pieces(&args, &op, SUMS));
  EK__FAIL_IF(args.samples != 1 && args.samples != args.pieces, EK_ERR_SHAPE,
              "%s: mean has %" PRId64 " rows, expected one, or one for each of the %" PRId64
              " pieces of sums",
              op.name, args.samples, args.pieces);
  return op.kernels == NULL ? EK_OK : op.kernels->channel_slopes(stream, &args);
}

ek_status ek_op_channel_averages(ek_stream *stream, const ek_channel_averages_args *args) {
  enum { AVERAGE_G, AVERAGE_GN, DWEIGHT, DBIAS, SUMS, ROWS, WEIGHT, COUNT };
  EK__NOT_NULL("channel_averages", args);
  struct ek__op op;
  struct ek__channel_args own = {.weight_scale = args->weight_beta, .bias_scale = args->bias_beta};
  const struct ek__operand operands[] = {
      [AVERAGE_G] = EK__MAY_WRITE_OF(args, average_g, SUM, .to = &own.average_g),
      [AVERAGE_GN] = EK__MAY_WRITE_OF(args, average_gn, SUM, .to = &own.average_gn),
      [DWEIGHT] = EK__MAY_WRITE_OF(args, dweight, SUM, EK__IS(ROW, SUMS), .to = &own.dweight),
      [DBIAS] = EK__MAY_WRITE_OF(args, dbias, SUM, EK__IS(ROW, SUMS), .to = &own.dbias),
      [SUMS] = EK__READ_OF(args, sums, F64, .to = &own.sums),
      [ROWS] = EK__MAY_READ_OF(args, rows, F64, EK__IS(EXACTLY, 1), .to = &own.count),
      [WEIGHT] = EK__MAY_READ_OF(args, weight, VALUE, EK__IS(ROW, SUMS), .to = &own.weight)};
  EK_TRY(ek__op_begin(&op, "channel_averages", stream, operands, COUNT, &own.types));
  EK_TRY(read_pieces(&own, &op, SUMS));
  own.samples = own.pieces;
  for (size_t i = AVERAGE_G; i <= AVERAGE_GN; i++) {
    if (operands[i].tensor == NULL) continue;
    EK_TRY(ek__op_matrix(&op, i, own.samples, own.channels, "must be"));
  }
  EK_TRY(check_groups(&own, &op, args->host_rows, args->groups));
  return op.kernels == NULL ? EK_OK : op.kernels->channel_averages(stream, &own);
}

ek_status ek_op_channel_norm_backward(ek_stream *stream,
                                      const ek_channel_norm_backward_args *args) {
  enum { DX, DY, X, MEAN, RSTD, WEIGHT, AVERAGE_G, AVERAGE_GN, COUNT };
  EK__NOT_NULL("channel_norm_backward", args);
  struct ek__op op;
  struct ek__channel_args own = {.rows = 0};
  const struct ek__operand operands[] = {
      [DX] =
          EK__WRITE_OF(args, dx, VALUE, EK__IS(SAME, X), .to = &own.y, .may_be = EK__OPERAND(DY)),
      [DY] = EK__READ_OF(args, dy, VALUE, EK__IS(SAME, X), .to = &own.dy),
      [X] = EK__READ_OF(args, x, VALUE, .to = &own.x),
      [MEAN] = EK__READ_OF(args, mean, SUM, .to = &own.mean),
      [RSTD] = EK__READ_OF(args, rstd, SUM, EK__IS(SAME, MEAN), .to = &own.rstd),
      [WEIGHT] = EK__MAY_READ_OF(args, weight, VALUE, EK__IS(ROW, X), .to = &own.weight),
      [AVERAGE_G] = EK__MAY_READ_OF(args, average_g, SUM, EK__IS(SAME, MEAN), .to = &own.average_g),
      [AVERAGE_GN] =
          EK__MAY_READ_OF(args, average_gn, SUM, EK__IS(SAME, MEAN), .to = &own.average_gn)};
  EK_TRY(ek__op_begin(&op, "channel_norm_backward", stream, operands, COUNT, &own.types));
  EK_TRY(read_samples(&own, &op, X, MEAN));
  EK_TRY(ek__op_matrix(&op, MEAN, own.samples, own.channels, "must be"));
  return op.kernels == NULL ? EK_OK : op.kernels->channel_norm_backward(stream, &own);
}
