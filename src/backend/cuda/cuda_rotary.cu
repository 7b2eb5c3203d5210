/*
 * cuda_rotary.cu - rotary position embedding.
 *
 * A thread turns one pair of each head of a token, with one sine and one cosine for all of them.
 * Floor in f32: 8 bytes an element. The place within a turn is computed in double, three
 * operations for all heads, the rest in the type of sums, whose sinpi() and cospi() need no
 * reduction.
 */
#include "backend/cuda/cuda_portable.cuh"

using namespace ek__cuda;

namespace {

struct turns {
  double at[EK__MOST_PAIRS];
};

__device__ __forceinline__ void sine_of(float half_turns, float *sine, float *cosine) {
  sincospif(half_turns, sine, cosine);
}
__device__ __forceinline__ void sine_of(double half_turns, double *sine, double *cosine) {
  sincospi(half_turns, sine, cosine);
}

template <class T, class S>
__global__ void __launch_bounds__(BLOCK)
    rotary_kernel(T *x, int64_t rows, int64_t tokens, int64_t columns, int64_t heads, int64_t pairs,
                  turns turns) {
  for (walk at(pairs); at.row < rows; at.next()) {
    const double place = double(at.row % tokens) * turns.at[at.column];
    S sine, cosine;
    sine_of(S(2.0 * (place - rint(place))), &sine, &cosine);
    T *pair = x + at.row * columns + at.column;
    for (int64_t head = 0; head < heads; head++, pair += 2 * pairs) {
      const S a = S(pair[0]), b = S(pair[pairs]);
      pair[0] = T(a * cosine - b * sine);
      pair[pairs] = T(a * sine + b * cosine);
    }
  }
}

template <class T, class S>
cudaError_t rotary(const struct ek__cuda_place *at, const struct ek__rotary_args *args) {
  const int64_t rows = args->samples * args->tokens, pairs = args->head_width / 2;
  if (rows <= 0 || pairs <= 0) return cudaSuccess;
  turns turns;
  memcpy(turns.at, args->turns, sizeof turns.at);
  return launch(rotary_kernel<T, S>, blocks_for(rows * pairs), BLOCK, at->stream, as<T>(args->x),
                rows, args->tokens, args->columns, args->heads, pairs, turns);
}

} // namespace

EK_CUDA_LAUNCHER(rotary, rotary)
