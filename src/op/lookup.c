/*
 * lookup.c - checked entry points of include/evenkeel/lookup.h.
 */
#include <evenkeel/lookup.h>

#include <inttypes.h>

#include "op/op_internal.h"

/* `rows` is what the period must divide; operand `table` must hold a row for each of its places. */
static ek_status check_period(const struct ek__op *op, size_t table, size_t width_of,
                              int64_t period, int64_t rows) {
  EK__FAIL_IF(period <= 0, EK_ERR_INVALID_ARGUMENT,
              "%s: period is %" PRId64 " but must be positive", op->name, period);
  EK__FAIL_IF(rows % period != 0, EK_ERR_SHAPE,
              "%s: period %" PRId64 " does not divide %" PRId64 " rows", op->name, period, rows);
  EK__FAIL_IF(op->rows[table] < period || op->columns[table] != op->columns[width_of], EK_ERR_SHAPE,
              "%s: %s is %" PRId64 " x %" PRId64 " but must be at least %" PRId64 " x %" PRId64,
              op->name, op->operand[table].name, op->rows[table], op->columns[table], period,
              op->columns[width_of]);
  return EK_OK;
}

/* The sizes of a lookup. No index is right for a table without entries, also where nothing would
 * be read or added. */
static ek_status index_table(struct ek__lookup_args *args, const struct ek__op *op, size_t index,
                             size_t table) {
  args->first = ek__tensor_first(op->operand[index].tensor);
  args->rows = ek__op_elements(op, index);
  args->width = op->columns[table];
  args->entries = op->rows[table];
  EK__FAIL_IF(args->rows > 0 && args->entries == 0, EK_ERR_SHAPE,
              "%s: %s is 0 x %" PRId64 ", which has no entries", op->name, op->operand[table].name,
              args->width);
  return EK_OK;
}

ek_status ek_op_lookup_forward(ek_stream *stream, ek_tensor *y, const ek_tensor *table,
                               const ek_tensor *index, const ek_tensor *positions, int64_t period) {
  enum { Y, TABLE, INDEX, POSITIONS, COUNT };
  struct ek__op op;
  struct ek__lookup_args args = {.period = positions == NULL ? 1 : period};
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, .to = &args.y),
      [TABLE] = EK__READ(table, VALUE, .to = &args.table, .picked = true),
      [INDEX] = EK__READ(index, I32, .to = &args.index),
      [POSITIONS] = EK__MAY_READ(positions, VALUE, .to = &args.positions)};
  EK_TRY(ek__op_begin(&op, "lookup_forward", stream, operands, COUNT, &args.types));
  EK_TRY(index_table(&args, &op, INDEX, TABLE));
  EK_TRY(ek__op_matrix(&op, Y, args.rows, args.width, "index and table make"));
  if (positions != NULL) EK_TRY(check_period(&op, POSITIONS, TABLE, period, args.rows));
  return op.kernels == NULL ? EK_OK : op.kernels->lookup_forward(stream, &args);
}

ek_status ek_op_lookup_backward(ek_stream *stream, ek_tensor *dtable, const ek_tensor *dy,
                                const ek_tensor *index) {
  enum { DTABLE, DY, INDEX, COUNT };
  struct ek__op op;
  struct ek__lookup_args args = {.period = 1};
  const struct ek__operand operands[] = {[DTABLE] =
                                             EK__WRITE(dtable, SUM, .to = &args.y, .picked = true),
                                         [DY] = EK__READ(dy, VALUE, .to = &args.table),
                                         [INDEX] = EK__READ(index, I32, .to = &args.index)};
  EK_TRY(ek__op_begin(&op, "lookup_backward", stream, operands, COUNT, &args.types));
  EK_TRY(index_table(&args, &op, INDEX, DTABLE));
  EK_TRY(ek__op_matrix(&op, DY, args.rows, args.width, "index and dtable make"));
  return op.kernels == NULL ? EK_OK : op.kernels->lookup_backward(stream, &args);
}

ek_status ek_op_positions_backward(ek_stream *stream, ek_tensor *dpositions, const ek_tensor *dy,
                                   int64_t period, double beta) {
  enum { DPOSITIONS, DY, COUNT };
  struct ek__op op;
  struct ek__lookup_args args = {.period = period, .beta = beta};
  const struct ek__operand operands[] = {[DPOSITIONS] = EK__WRITE(dpositions, SUM, .to = &args.y),
                                         [DY] = EK__READ(dy, VALUE, .to = &args.table)};
  EK_TRY(ek__op_begin(&op, "positions_backward", stream, operands, COUNT, &args.types));
  EK_TRY(check_period(&op, DPOSITIONS, DY, period, op.rows[DY]));
  args.rows = op.rows[DY];
  args.width = op.columns[DY];
  args.entries = op.rows[DPOSITIONS];
  return op.kernels == NULL ? EK_OK : op.kernels->positions_backward(stream, &args);
}
