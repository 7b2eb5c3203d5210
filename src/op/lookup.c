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

/* No index is right for a table without entries, also where nothing would be read or added. */
static ek_status check_entries(const struct ek__op *op, size_t table, int64_t rows) {
  if (rows == 0 || op->rows[table] > 0) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE, "%s: %s is 0 x %" PRId64 ", which has no entries", op->name,
                      op->operand[table].name, op->columns[table]);
}

ek_status ek_op_lookup_forward(ek_stream *stream, ek_tensor *y, const ek_tensor *table,
                               const ek_tensor *index, const ek_tensor *positions, int64_t period) {
  enum { Y, TABLE, INDEX, POSITIONS, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {[Y] = EK__WRITE(y, VALUE, 0),
                                         [TABLE] = EK__READ(table, VALUE),
                                         [INDEX] = EK__READ(index, I32),
                                         [POSITIONS] = EK__MAY_READ(positions, VALUE)};
  EK_TRY(ek__op_begin(&op, "lookup_forward", stream, operands, COUNT));
  const int64_t rows = ek__op_elements(&op, INDEX);
  EK_TRY(ek__op_matrix(&op, Y, rows, op.columns[TABLE], "index and table make"));
  EK_TRY(check_entries(&op, TABLE, rows));
  if (positions != NULL) EK_TRY(check_period(&op, POSITIONS, TABLE, period, rows));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__lookup_args args = {.y = y->data,
                                       .table = table->data,
                                       .index = index->data,
                                       .first = ek__tensor_first(index),
                                       .positions = ek__op_data(positions),
                                       .rows = rows,
                                       .width = op.columns[TABLE],
                                       .entries = op.rows[TABLE],
                                       .period = positions == NULL ? 1 : period,
                                       .types = op.types};
  return op.kernels->lookup_forward(stream, &args);
}

ek_status ek_op_lookup_backward(ek_stream *stream, ek_tensor *dtable, const ek_tensor *dy,
                                const ek_tensor *index) {
  enum { DTABLE, DY, INDEX, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {[DTABLE] = EK__WRITE(dtable, SUM, 0),
                                         [DY] = EK__READ(dy, VALUE),
                                         [INDEX] = EK__READ(index, I32)};
  EK_TRY(ek__op_begin(&op, "lookup_backward", stream, operands, COUNT));
  const int64_t rows = ek__op_elements(&op, INDEX);
  EK_TRY(ek__op_matrix(&op, DY, rows, op.columns[DTABLE], "index and dtable make"));
  EK_TRY(check_entries(&op, DTABLE, rows));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__lookup_args args = {.y = dtable->data,
                                       .table = dy->data,
                                       .index = index->data,
                                       .first = ek__tensor_first(index),
                                       .rows = rows,
                                       .width = op.columns[DTABLE],
                                       .entries = op.rows[DTABLE],
                                       .period = 1,
                                       .types = op.types};
  return op.kernels->lookup_backward(stream, &args);
}

ek_status ek_op_positions_backward(ek_stream *stream, ek_tensor *dpositions, const ek_tensor *dy,
                                   int64_t period, double beta) {
  enum { DPOSITIONS, DY, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [DPOSITIONS] = EK__WRITE(dpositions, SUM, 0), [DY] = EK__READ(dy, VALUE)};
  EK_TRY(ek__op_begin(&op, "positions_backward", stream, operands, COUNT));
  EK_TRY(check_period(&op, DPOSITIONS, DY, period, op.rows[DY]));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__lookup_args args = {.y = dpositions->data,
                                       .table = dy->data,
                                       .rows = op.rows[DY],
                                       .width = op.columns[DY],
                                       .entries = op.rows[DPOSITIONS],
                                       .period = period,
                                       .beta = beta,
                                       .types = op.types};
  return op.kernels->positions_backward(stream, &args);
}
