/*
 * cuda_elementwise.cu - fill, add, scale and casts.
 *
 * All are bound by memory: f32 reads and writes 4 bytes each, so add moves 12 bytes an element.
 */
#include "backend/cuda/cuda_map.cuh"

#include <string.h>

using namespace ek__cuda;

namespace {

template <class S> struct fill_with {
  static constexpr int inputs = 0;
  S value;
  __device__ S operator()(S, S) const { return value; }
};

template <class S> struct sum_of {
  static constexpr int inputs = 2;
  __device__ S operator()(S a, S b) const { return a + b; }
};

template <class S> struct times {
  static constexpr int inputs = 1;
  S factor;
  __device__ S operator()(S a, S) const { return a * factor; }
};

template <class T, class S>
cudaError_t fill(const struct ek__cuda_place *at, const struct ek__elementwise_args *args) {
  return map<T, S>(at->stream, args->y, NULL, NULL, args->count, fill_with<S>{(S)args->value});
}

template <class T, class S>
cudaError_t add(const struct ek__cuda_place *at, const struct ek__elementwise_args *args) {
  return map<T, S>(at->stream, args->y, args->a, args->b, args->count, sum_of<S>{});
}

template <class T, class S>
cudaError_t scale(const struct ek__cuda_place *at, const struct ek__elementwise_args *args) {
  return map<T, S>(at->stream, args->y, args->a, NULL, args->count, times<S>{(S)args->value});
}

/* ---- casts: 16-bit types are bits here, so that every compiler gives the same ones ---- */

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

__device__ __forceinline__ uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

__device__ __forceinline__ float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* To f32 with the last bit set if anything was lost: a second rounding then errs by nothing. */
__device__ __forceinline__ float narrow(double value) {
  const float nearest = (float)value;
  if ((double)nearest == value || nearest != nearest) return nearest;
  uint32_t bits = bits_of(nearest);
  if (fabs((double)nearest) > fabs(value)) bits--;
  return float_of(bits | 1);
}

template <class T> __device__ __forceinline__ double widen(T value) { return (double)value; }
template <> __device__ __forceinline__ double widen(bf16 value) {
  return (double)float_of((uint32_t)value.bits << 16);
}
template <> __device__ __forceinline__ double widen(f16 value) {
  const uint32_t sign = (uint32_t)(value.bits & 0x8000u) << 16, rest = value.bits & 0x7FFFu;
  if (rest < 0x0400u) { /* zero and subnormal: a multiple of 2^-24 */
    const float size = (float)rest * 5.9604644775390625e-8f;
    return (double)(sign ? -size : size);
  }
  if (rest >= 0x7C00u) return (double)float_of(sign | 0x7F800000u | ((rest & 0x3FFu) << 13));
  return (double)float_of(sign | ((rest << 13) + (112u << 23)));
}

/* Rounds bits away below `shift`, to nearest and ties to even. */
__device__ __forceinline__ uint32_t round_off(uint32_t bits, int shift) {
  return (bits + ((1u << (shift - 1)) - 1) + ((bits >> shift) & 1u)) >> shift;
}

template <class From> __device__ __forceinline__ void convert(float *to, From from) {
  *to = (float)widen(from);
}
template <class From> __device__ __forceinline__ void convert(double *to, From from) {
  *to = widen(from);
}
template <class From> __device__ __forceinline__ void convert(bf16 *to, From from) {
  const uint32_t bits = bits_of(narrow(widen(from)));
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  to->bits = nan ? (uint16_t)((bits >> 16) | 0x40u) : (uint16_t)round_off(bits, 16);
}
template <class From> __device__ __forceinline__ void convert(f16 *to, From from) {
  const uint32_t bits = bits_of(narrow(widen(from)));
  const uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
  uint32_t half;
  if (size > 0x7F800000u) {
    half = 0x7E00u; /* NaN */
  } else if (size >= 0x477FF000u) {
    half = 0x7C00u;                /* 65520 and more */
  } else if (size < 0x38800000u) { /* below 2^-14: adding 1/2 leaves multiples of 2^-24 */
    half = bits_of(float_of(size) + 0.5f) - 0x3F000000u;
  } else {
    half = round_off(size - (112u << 23), 13);
  }
  to->bits = (uint16_t)(sign | half);
}

template <class To, class From>
__global__ void __launch_bounds__(BLOCK) cast_kernel(To *to, const From *from, int64_t count) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) convert(&to[i], from[i]);
}

template <class To> cudaError_t cast_from(cudaStream_t stream, const ek__cuda_cast_args *args) {
  const auto launch = [&](auto from) {
    using From = decltype(from);
    EK_LAUNCH((cast_kernel<To, From>), blocks_for(args->count), BLOCK, 0, stream, as<To>(args->to),
              as<From>(args->from), args->count);
    return cudaGetLastError();
  };
  switch (args->from_type) {
  case EK_F32: return launch(float());
  case EK_F64: return launch(double());
  case EK_BF16: return launch(bf16());
  case EK_F16: return launch(f16());
  default: return cudaErrorInvalidValue;
  }
}

} // namespace

/* ---- launchers ---- */

EK_CUDA_LAUNCHER(fill, elementwise)
EK_CUDA_LAUNCHER(add, elementwise)
EK_CUDA_LAUNCHER(scale, elementwise)

extern "C" cudaError_t ek__cuda_cast(cudaStream_t stream, const struct ek__cuda_cast_args *args) {
  if (args->count <= 0) return cudaSuccess;
  switch (args->to_type) {
  case EK_F32: return cast_from<float>(stream, args);
  case EK_F64: return cast_from<double>(stream, args);
  case EK_BF16: return cast_from<bf16>(stream, args);
  case EK_F16: return cast_from<f16>(stream, args);
  default: return cudaErrorInvalidValue;
  }
}
