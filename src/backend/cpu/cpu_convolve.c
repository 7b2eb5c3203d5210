/*
 * cpu_convolve.c - convolutions: the ways to compute one, and kernels that convolutions by matrix
 * products need beside the products.
 */
#include "backend/cpu/cpu_convolve.h"
#include "core/error.h"

EK__CPU_RANGE(unfold, unfold, EK_OK, args->rows,
              ek__cpu_least_rows(args->kernel[0] * args->kernel[1] * args->channels))
EK__CPU_RANGE(permute, permute, EK_OK, args->size[0] * args->size[1],
              ek__cpu_least_rows(args->size[2] * args->size[3]))

ek_status ek__cpu_convolve(bool *done, ek_stream *stream, const struct ek__convolve_args *args) {
  EK_TRY(ek__cpu_convolve_winograd(done, stream, args));
  return *done ? EK_OK : ek__cpu_convolve_primitive(done, stream, args);
}
