/*
 * bounded.cu - kernels that say how many threads their blocks have, as the product's do; see
 * check_cuemu_kernels.cc.
 */
#include <cuda_runtime.h>

#include "bounded.cuh"

__global__ void __launch_bounds__(64) bounded_kernel(int *out) { out[threadIdx.x] = 1; }

void launch_bounded(int threads, int *out) { EK_LAUNCH(bounded_kernel, 1, threads, 0, NULL, out); }

void launch_bounded_by_parameter(int threads, int *out) {
  EK_LAUNCH((bounded_by_parameter<int, 32>), 1, dim3(threads, 3), 0, NULL, out);
}
