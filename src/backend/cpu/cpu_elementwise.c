/*
 * cpu_elementwise.c - kernels over elements and rows: each cuts its work into ranges for the team.
 */
#include "backend/cpu/cpu_internal.h"

#include <string.h>

struct bytes {
  char *y;
  const char *x;
};

static void zero_range(const void *raw, int64_t begin, int64_t end) {
  const struct bytes *bytes = raw;
  memset(bytes->y + begin, 0, (size_t)(end - begin));
}

static void copy_range(const void *raw, int64_t begin, int64_t end) {
  const struct bytes *bytes = raw;
  memcpy(bytes->y + begin, bytes->x + begin, (size_t)(end - begin));
}

/* Whole floats are left to fill, which is faster over large ranges. */
ek_status ek__cpu_zero(ek_stream *stream, void *y, size_t bytes) {
  if ((uintptr_t)y % sizeof(float) == 0 && bytes % sizeof(float) == 0) {
    return ek__cpu_fill(
        stream, &(struct ek__elementwise_args){
                    .y = y, .count = (int64_t)(bytes / sizeof(float)), .types = {EK_F32, EK_F32}});
  }
  const struct bytes args = {y, NULL};
  ek__cpu_range(stream, zero_range, &args, (int64_t)bytes, 4 * EK__CPU_LEAST);
  return EK_OK;
}

ek_status ek__cpu_copy(ek_stream *stream, void *y, const void *x, size_t bytes) {
  const struct bytes args = {y, x};
  ek__cpu_range(stream, copy_range, &args, (int64_t)bytes, 4 * EK__CPU_LEAST);
  return EK_OK;
}

EK__CPU_RANGE(fill, elementwise, EK_OK, args->count, EK__CPU_LEAST)
EK__CPU_RANGE(add, elementwise, EK_OK, args->count, EK__CPU_LEAST)
EK__CPU_RANGE(scale, elementwise, EK_OK, args->count, EK__CPU_LEAST)
EK__CPU_RANGE(add_bias, matrix, EK_OK, args->rows, ek__cpu_least_rows(args->columns))
EK__CPU_RANGE(column_sum, matrix, EK_OK, args->columns, ek__cpu_least_columns(args->rows))
EK__CPU_RANGE(activation_forward, activation, EK_OK,
              args->bias ? args->rows : args->rows * args->columns,
              args->bias ? ek__cpu_least_rows(args->columns) : EK__CPU_LEAST)
EK__CPU_RANGE(activation_backward, activation, EK_OK, args->rows * args->columns, EK__CPU_LEAST)
EK__CPU_RANGE(gate_forward, activation, EK_OK, args->rows * args->columns, EK__CPU_LEAST)
EK__CPU_RANGE(gate_backward, activation, EK_OK, args->rows * args->columns, EK__CPU_LEAST)
EK__CPU_RANGE(dropout, dropout, EK_OK, args->samples * args->per_sample, EK__CPU_LEAST)
