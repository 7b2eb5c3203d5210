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
    return ek__cpu_fill(stream,
                        &(struct ek__elementwise_args){
                            .y = y, .count = (int64_t)(bytes / sizeof(float)), .type = EK_F32});
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

ek_status ek__cpu_fill(ek_stream *stream, const struct ek__elementwise_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->fill, args, args->count, EK__CPU_LEAST);
  return EK_OK;
}

ek_status ek__cpu_add(ek_stream *stream, const struct ek__elementwise_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->add, args, args->count, EK__CPU_LEAST);
  return EK_OK;
}

ek_status ek__cpu_scale(ek_stream *stream, const struct ek__elementwise_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->scale, args, args->count, EK__CPU_LEAST);
  return EK_OK;
}

ek_status ek__cpu_relu_forward(ek_stream *stream, const struct ek__elementwise_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->relu_forward, args, args->count,
                EK__CPU_LEAST);
  return EK_OK;
}

ek_status ek__cpu_relu_backward(ek_stream *stream, const struct ek__elementwise_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->relu_backward, args, args->count,
                EK__CPU_LEAST);
  return EK_OK;
}

ek_status ek__cpu_add_bias(ek_stream *stream, const struct ek__matrix_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->add_bias, args, args->rows,
                ek__cpu_least_rows(args->columns));
  return EK_OK;
}

ek_status ek__cpu_column_sum(ek_stream *stream, const struct ek__matrix_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->column_sum, args, args->columns,
                ek__cpu_least_columns(args->rows));
  return EK_OK;
}

ek_status ek__cpu_gelu_forward(ek_stream *stream, const struct ek__gelu_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->gelu_forward, args, args->rows,
                ek__cpu_least_rows(args->columns));
  return EK_OK;
}

ek_status ek__cpu_gelu_backward(ek_stream *stream, const struct ek__gelu_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->gelu_backward, args,
                args->rows * args->columns, EK__CPU_LEAST);
  return EK_OK;
}

ek_status ek__cpu_dropout(ek_stream *stream, const struct ek__dropout_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->dropout, args,
                args->samples * args->per_sample, EK__CPU_LEAST);
  return EK_OK;
}
