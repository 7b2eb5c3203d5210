/*
 * cuda_multiply.cu - for products without an algorithm of cuBLASLt: a matrix product of our own,
 * and a bias written to the rows of a matrix, to which a product is then added.
 *
 * A tile of c is the sum of products of tiles of a and b in shared memory, in f32 (f64 for f64), in
 * one order of k. It is simple and not fast: shapes of usual training do not come here.
 */
#include "backend/cuda/cuda_portable.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

using namespace ek__cuda;

namespace {

constexpr int SIDE = 16; /* of a tile; SIDE x SIDE threads */

template <class V, class C, class S> struct factors {
  const V *a, *b;
  C *c;
  int64_t m, n, k;
  int64_t a_row, a_step, b_step, b_column, ldc; /* elements: a' (i, l) is at i a_row + l a_step */
  int64_t tiles;                                /* of a row of c */
  S beta;
};

template <class V, class C, class S>
__global__ void __launch_bounds__(SIDE *SIDE) multiply_kernel(factors<V, C, S> f) {
  __shared__ S left[SIDE][SIDE + 1], right[SIDE][SIDE + 1];
  const int x = (int)threadIdx.x, y = (int)threadIdx.y;
  const int64_t i = blockIdx.x / f.tiles * SIDE + y, j = blockIdx.x % f.tiles * SIDE + x;
  S sum = S(0);
  for (int64_t l = 0; l < f.k; l += SIDE) {
    left[y][x] = i < f.m && l + x < f.k ? S(f.a[i * f.a_row + (l + x) * f.a_step]) : S(0);
    right[y][x] = j < f.n && l + y < f.k ? S(f.b[(l + y) * f.b_step + j * f.b_column]) : S(0);
    __syncthreads();
    for (int e = 0; e < SIDE; e++) sum += left[y][e] * right[e][x];
    __syncthreads();
  }
  if (i >= f.m || j >= f.n) return;
  C *const c = f.c + i * f.ldc + j;
  *c = C(f.beta == S(0) ? sum : sum + f.beta * S(*c));
}

template <class V, class C>
cudaError_t multiply(cudaStream_t stream, const struct ek__matmul_args *args) {
  using S = std::conditional_t<sizeof(V) == 8, double, float>;
  const bool ta = args->transpose_a, tb = args->transpose_b;
  const int64_t rows = (args->m + SIDE - 1) / SIDE, columns = (args->n + SIDE - 1) / SIDE;
  const factors<V, C, S> f = {.a = as<V>(args->a),
                              .b = as<V>(args->b),
                              .c = as<C>(args->c),
                              .m = args->m,
                              .n = args->n,
                              .k = args->k,
                              .a_row = ta ? 1 : args->lda,
                              .a_step = ta ? args->lda : 1,
                              .b_step = tb ? 1 : args->ldb,
                              .b_column = tb ? args->ldb : 1,
                              .ldc = args->ldc,
                              .tiles = columns,
                              .beta = (S)args->beta};
  if (rows > 0x7FFFFFFF / columns) return cudaErrorInvalidValue;
  return launch(multiply_kernel<V, C, S>, (unsigned)(rows * columns), dim3(SIDE, SIDE), stream, f);
}

template <class T>
__global__ void __launch_bounds__(BLOCK) spread_kernel(T *y, const T *bias, int64_t count,
                                                       int64_t columns, int64_t pitch) {
  walk at(columns);
  for (int64_t i = thread_index(); i < count; i += thread_count(), at.next()) {
    y[at.row * pitch + at.column] = bias[at.column];
  }
}

template <class T>
cudaError_t spread(cudaStream_t stream, const struct ek__matrix_args *args) {
  const int64_t count = args->rows * args->columns;
  return launch(spread_kernel<T>, blocks_for(count), BLOCK, stream, as<T>(args->y), as<T>(args->b),
                count, args->columns, args->pitch);
}

template <class Half>
cudaError_t of_halves(cudaStream_t stream, const struct ek__matmul_args *args) {
  return args->gradient ? multiply<Half, float>(stream, args) : multiply<Half, Half>(stream, args);
}

} // namespace

extern "C" cudaError_t ek__cuda_multiply_plainly(const struct ek__cuda_place *at,
                                                 const struct ek__matmul_args *args) {
  switch (args->types.value) {
  case EK_F32: return multiply<float, float>(at->stream, args);
  case EK_F64: return multiply<double, double>(at->stream, args);
  case EK_BF16: return of_halves<__nv_bfloat16>(at->stream, args);
  case EK_F16: return of_halves<__half>(at->stream, args);
  default: return cudaErrorInvalidValue;
  }
}

extern "C" cudaError_t ek__cuda_spread_bias(const struct ek__cuda_place *at,
                                            const struct ek__matrix_args *args) {
  switch (ek__type_size(args->types.value)) {
  case 2: return spread<uint16_t>(at->stream, args);
  case 4: return spread<uint32_t>(at->stream, args);
  default: return spread<uint64_t>(at->stream, args);
  }
}
