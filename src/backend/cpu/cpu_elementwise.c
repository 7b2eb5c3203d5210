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

/* ek__cpu_<name>: its range functions over `count`, at least `least` for each thread. */
#define RANGE(name, kind, count, least)                                                            \
  ek_status ek__cpu_##name EK__ARGS(kind) {                                                        \
    ek__cpu_range(stream, ek__cpu_functions(args->types)->name, args, count, least);               \
    return EK_OK;                                                                                  \
  }

RANGE(fill, elementwise, args->count, EK__CPU_LEAST)
RANGE(add, elementwise, args->count, EK__CPU_LEAST)
RANGE(scale, elementwise, args->count, EK__CPU_LEAST)
RANGE(add_bias, matrix, args->rows, ek__cpu_least_rows(args->columns))
RANGE(column_sum, matrix, args->columns, ek__cpu_least_columns(args->rows))
RANGE(activation_forward, activation, args->bias ? args->rows : args->rows * args->columns,
      args->bias ? ek__cpu_least_rows(args->columns) : EK__CPU_LEAST)
RANGE(activation_backward, activation, args->rows * args->columns, EK__CPU_LEAST)
RANGE(gate_forward, activation, args->rows * args->columns, EK__CPU_LEAST)
RANGE(gate_backward, activation, args->rows * args->columns, EK__CPU_LEAST)
RANGE(dropout, dropout, args->samples * args->per_sample, EK__CPU_LEAST)
