/*
 * cuda_total.cuh - the sum of a function over 0 .. count - 1, in double precision, in two stages
 * and in an order that depends on the count alone.
 *
 * Floor: the bytes that F reads. The second stage is one block and takes some microseconds.
 */
#ifndef EK_CUDA_TOTAL_CUH
#define EK_CUDA_TOTAL_CUH

#include "backend/cuda/cuda_portable.cuh"

namespace ek__cuda {

constexpr int64_t MOST_PARTIALS = 1024; /* of each sum */

/* F::sums sums; f.add(sum, i) adds what i gives, f.finish(sum) puts the totals where they belong.
 */
template <class F>
__global__ void __launch_bounds__(BLOCK) partial_kernel(double *partial, F f, int64_t count) {
  __shared__ double scratch[WARP];
  double sum[F::sums] = {};
  EK_UNROLL_BY(8)
  for (int64_t i = thread_index(); i < count; i += thread_count()) f.add(sum, i);
  for (int s = 0; s < F::sums; s++) {
    const double total = block_sum(sum[s], scratch);
    if (threadIdx.x == 0) partial[blockIdx.x * F::sums + s] = total;
  }
}

template <class F>
__global__ void __launch_bounds__(BLOCK) total_kernel(const double *partial, int partials, F f) {
  __shared__ double scratch[WARP];
  double total[F::sums];
  for (int s = 0; s < F::sums; s++) {
    double sum = 0.0;
    for (int i = (int)threadIdx.x; i < partials; i += BLOCK) sum += partial[i * F::sums + s];
    total[s] = block_sum(sum, scratch);
  }
  if (threadIdx.x == 0) f.finish(total);
}

/* A sum over nothing is 0, and is put there too. */
template <class F>
inline cudaError_t sum_up(cudaStream_t stream, int64_t count, F f, void *workspace) {
  const int64_t wanted = (count + 4 * BLOCK - 1) / (4 * BLOCK);
  const int64_t partials = wanted < 1 ? 1 : wanted < MOST_PARTIALS ? wanted : MOST_PARTIALS;
  double *partial = static_cast<double *>(workspace);
  const cudaError_t status =
      launch(partial_kernel<F>, (unsigned)partials, BLOCK, stream, partial, f, count);
  if (status != cudaSuccess) return status;
  return launch(total_kernel<F>, 1, BLOCK, stream, partial, (int)partials, f);
}

} // namespace ek__cuda

#endif /* EK_CUDA_TOTAL_CUH */
