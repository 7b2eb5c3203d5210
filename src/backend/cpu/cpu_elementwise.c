/*
 * cpu_elementwise.c - kernels over elements and rows: each cuts its work into ranges for the team.
 *
 * LEAST_BYTES of work and less is not worth waking a second thread.
 */
#include "backend/cpu/cpu_internal.h"

#include <string.h>

#define LEAST 16384 /* elements per thread: some 10 microseconds from memory */

/* Rows of `columns` elements that together are worth a thread. */
static int64_t least_rows(int64_t columns) { return columns >= LEAST ? 1 : LEAST / (columns + 1) + 1; }

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

ek_status ek__cpu_zero(ek_stream *stream, void *y, size_t bytes) {
  const struct bytes args = {y, NULL};
  ek__cpu_range(stream, zero_range, &args, (int64_t)bytes, 4 * LEAST);
  return EK_OK;
}

ek_status ek__cpu_copy(ek_stream *stream, void *y, const void *x, size_t bytes) {
  const struct bytes args = {y, x};
  ek__cpu_range(stream, copy_range, &args, (int64_t)bytes, 4 * LEAST);
  return EK_OK;
}

ek_status ek__cpu_fill(ek_stream *stream, const struct ek__elementwise_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->fill, args, args->count, LEAST);
  return EK_OK;
}

ek_status ek__cpu_add(ek_stream *stream, const struct ek__elementwise_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->add, args, args->count, LEAST);
  return EK_OK;
}

ek_status ek__cpu_scale(ek_stream *stream, const struct ek__elementwise_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->scale, args, args->count, LEAST);
  return EK_OK;
}

ek_status ek__cpu_relu_forward(ek_stream *stream, const struct ek__elementwise_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->relu_forward, args, args->count, LEAST);
  return EK_OK;
}

ek_status ek__cpu_relu_backward(ek_stream *stream, const struct ek__elementwise_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->relu_backward, args, args->count, LEAST);
  return EK_OK;
}

ek_status ek__cpu_add_bias(ek_stream *stream, const struct ek__matrix_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->add_bias, args, args->rows,
                least_rows(args->columns));
  return EK_OK;
}

ek_status ek__cpu_column_sum(ek_stream *stream, const struct ek__matrix_args *args) {
  const int64_t least = least_rows(args->rows);
  ek__cpu_range(stream, ek__cpu_functions(args->type)->column_sum, args, args->columns,
                least < 64 ? 64 : least);
  return EK_OK;
}

ek_status ek__cpu_gelu_forward(ek_stream *stream, const struct ek__gelu_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->gelu_forward, args, args->rows,
                least_rows(args->columns));
  return EK_OK;
}

ek_status ek__cpu_gelu_backward(ek_stream *stream, const struct ek__gelu_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->gelu_backward, args,
                args->rows * args->columns, LEAST);
  return EK_OK;
}

ek_status ek__cpu_dropout(ek_stream *stream, const struct ek__dropout_args *args) {
  ek__cpu_range(stream, ek__cpu_functions(args->type)->dropout, args,
                args->samples * args->per_sample, LEAST);
  return EK_OK;
}
