/*
 * cpu_convolve.c - kernels that convolutions by matrix products need beside the products.
 */
#include "backend/cpu/cpu_internal.h"
#include "core/error.h"

EK__CPU_RANGE(unfold, unfold, EK_OK, args->rows,
              ek__cpu_least_rows(args->kernel[0] * args->kernel[1] * args->channels))
EK__CPU_RANGE(permute, permute, EK_OK, args->size[0] * args->size[1],
              ek__cpu_least_rows(args->size[2] * args->size[3]))
