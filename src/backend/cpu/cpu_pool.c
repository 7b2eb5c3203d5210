/*
 * cpu_pool.c - kernels of windows over pictures.
 */
#include "backend/cpu/cpu_internal.h"
#include "core/error.h"

/* Elements that a pixel of the result is made of. */
static int64_t cost(const struct ek__window_args *args, int64_t results, int64_t sources) {
  return args->channels * (sources / (results + 1) + 1);
}

static int64_t windows(const struct ek__window_args *args) {
  return args->side[0].windows * args->side[1].windows;
}

static int64_t pixels(const struct ek__window_args *args) {
  return args->side[0].pixels * args->side[1].pixels;
}

EK__CPU_RANGE(window_forward, window, EK_OK, args->images *windows(args),
              ek__cpu_least_rows(cost(args, windows(args), pixels(args))))
EK__CPU_RANGE(window_backward, window, EK_OK, args->images *pixels(args),
              ek__cpu_least_rows(cost(args, pixels(args), windows(args))))
