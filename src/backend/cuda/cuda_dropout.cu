/*
 * cuda_dropout.cu - dropout with the random bits of evenkeel/random.h.
 *
 * A thread draws the four words of one Philox block for its four elements, or of two blocks for its
 * eight of 16 bits. Floor in f32: 8 bytes an element, and half of that in 16 bits;
 * the ten rounds for four elements are some 80 integer instructions, which is about half of what a
 * multiprocessor can do in the time of their 32 bytes.
 */
#include "backend/cuda/cuda_portable.cuh"

using namespace ek__cuda;

namespace {

template <class S> struct mask {
  ek_random_key key;
  uint32_t first_sample;
  uint32_t threshold; /* unit(bits) >= p is bits >> 8 >= ceil(2^24 p), exactly */
  S factor;           /* 1 / (1 - p) */
};

constexpr int DRAWN = 4; /* words of a block of Philox */

/* Elements of a thread, with the words of one block or two. */
template <int N> constexpr int ELEMENTS = N > DRAWN ? N : DRAWN;

/* N > 1: samples are whole packs of ELEMENTS<N>, which N divides. y may be x. */
template <class T, class S, int N>
__global__ void __launch_bounds__(BLOCK)
    dropout_kernel(T *y, const T *x, int64_t samples, int64_t per_sample, mask<S> mask) {
  constexpr int C = ELEMENTS<N>;
  for (walk at((per_sample + C - 1) / C); at.row < samples; at.next()) {
    uint32_t bits[C];
    EK_UNROLL
    for (int k = 0; k < C; k += DRAWN) {
      ek_random_bits(mask.key, mask.first_sample + (uint32_t)at.row,
                     (uint32_t)((at.column * C + k) / DRAWN), bits + k);
    }
    const int64_t first = at.row * per_sample + at.column * C;
    const int64_t left = per_sample - at.column * C;
    EK_UNROLL
    for (int j = 0; j < C; j += N) {
      if (j >= left) break;
      pack<T, N> value = load<N>(x + first + j);
      EK_UNROLL
      for (int i = 0; i < N; i++) {
        value.at[i] = T(S(value.at[i]) * (bits[j + i] >> 8 >= mask.threshold ? mask.factor : S(0)));
      }
      store<N>(y + first + j, value);
    }
  }
}

template <class T, class S>
cudaError_t dropout(const struct ek__cuda_place *at, const struct ek__dropout_args *args) {
  if (args->samples <= 0 || args->per_sample <= 0) return cudaSuccess;
  const mask<S> mask = {args->key, (uint32_t)args->first_sample,
                        (uint32_t)ceil(args->p * 16777216.0), (S)(1.0 / (1.0 - args->p))};
  constexpr int C = ELEMENTS<PACK<T>>;
  const bool wide = args->per_sample % C == 0 && aligned(args->y, args->x);
  const int64_t columns = wide ? args->per_sample / C : (args->per_sample + DRAWN - 1) / DRAWN;
  return launch(wide ? dropout_kernel<T, S, PACK<T>> : dropout_kernel<T, S, 1>,
                blocks_for(args->samples * columns), BLOCK, at->stream, as<T>(args->y),
                as<T>(args->x), args->samples, args->per_sample, mask);
}

} // namespace

EK_CUDA_LAUNCHER(dropout, dropout)
