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
                        &(struct ek__elementwise_args){.y = y,
                                                       .count = (int64_t)(bytes / sizeof(float)),
                                                       .types = ek__types_in(EK_F32)});
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

/* ---- other types ---- */

/* A range function of the type of `values` between it and f32, which is in `other`. */
static struct ek__elementwise_args conversion(void *y, const void *x, ek_type values) {
  return (struct ek__elementwise_args){.y = y, .a = x, .types = ek__types_in(values)};
}

/* Between two types of 16 bits by way of f32, which rounds nothing that the second does not. */
static void convert_range(const void *raw, int64_t begin, int64_t end) {
  const struct ek__convert_args *args = raw;
  float between[1024];
  const int64_t most = sizeof between / sizeof between[0];
  const size_t to = ek__type_size(args->to), from = ek__type_size(args->from);
  for (int64_t i = begin; i < end; i += most) {
    const int64_t n = end - i < most ? end - i : most;
    void *y = (char *)args->y + (size_t)i * to;
    const void *x = (const char *)args->x + (size_t)i * from;
    const struct ek__elementwise_args in = conversion(between, x, args->from);
    const struct ek__elementwise_args out = conversion(y, between, args->to);
    ek__cpu_functions(in.types)->widen(&in, 0, n);
    ek__cpu_functions(out.types)->narrow(&out, 0, n);
  }
}

ek_status ek__cpu_convert(ek_stream *stream, const struct ek__convert_args *args) {
  const ek_type values = args->to == EK_F32 ? args->from : args->to;
  const struct ek__elementwise_args direct = conversion(args->y, args->x, values);
  const struct ek__cpu_functions *functions = ek__cpu_functions(direct.types);
  if (args->to == EK_F32 || args->from == EK_F32) {
    ek__cpu_range(stream, args->to == EK_F32 ? functions->widen : functions->narrow, &direct,
                  args->count, EK__CPU_LEAST);
  } else {
    ek__cpu_range(stream, convert_range, args, args->count, EK__CPU_LEAST);
  }
  return EK_OK;
}

/* ---- elements and rows ---- */

/* The kernels whose row in kernels.h says how they are cut. */
#define CUT_COUNT(name, kind) EK__CPU_RANGE(name, kind, EK_OK, args->count, EK__CPU_LEAST)
#define CUT_ELEMENTS(name, kind)                                                                   \
  EK__CPU_RANGE(name, kind, EK_OK, args->rows *args->columns, EK__CPU_LEAST)
#define CUT_ROWS(name, kind)                                                                       \
  EK__CPU_RANGE(name, kind, EK_OK, args->rows, ek__cpu_least_rows(args->columns))
#define CUT_OWN(name, kind)
#define CUT(name, kind, cut) CUT_##cut(name, kind)
EK__RANGE_LIST(CUT)

EK__CPU_RANGE(binary, binary, EK_OK,
              args->spread == EK__SPREAD_NONE ? args->rows * args->columns : args->rows,
              args->spread == EK__SPREAD_NONE ? EK__CPU_LEAST : ek__cpu_least_rows(args->columns))
EK__CPU_RANGE(column_sum, matrix, EK_OK, args->columns, ek__cpu_least_columns(args->rows))
EK__CPU_RANGE(activation_forward, activation, EK_OK,
              args->bias ? args->rows : args->rows * args->columns,
              args->bias ? ek__cpu_least_rows(args->columns) : EK__CPU_LEAST)
EK__CPU_RANGE(dropout, dropout, EK_OK, args->samples * args->per_sample, EK__CPU_LEAST)
