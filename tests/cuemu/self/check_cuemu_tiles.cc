/*
 * check_cuemu_tiles.cc - what stands for inline assembly: asynchronous copies, matrices and
 * products of a warp.
 */
#include "self.h"

#include "cuda_bf16.h"
#include "cuda_fp16.h"

/* ---- copies ---- */

/* y: what the block's memory holds before the wait, after it, and of the group not yet waited
 * for. */
__global__ void copies(const float *x, float *y) {
  EK_DYNAMIC_SHARED(float, tile);
  const unsigned i = 4 * threadIdx.x;
  EK_COPY_ASYNC(tile + i, x + i, 16, i < 64);
  EK_COPY_COMMIT();
  EK_COPY_ASYNC(tile + 128 + threadIdx.x, x + threadIdx.x, 4, true);
  EK_COPY_COMMIT();
  y[threadIdx.x] = tile[i];
  EK_COPY_WAIT(1);
  y[32 + threadIdx.x] = tile[i + 1];
  y[64 + threadIdx.x] = tile[128 + threadIdx.x];
  EK_COPY_WAIT(0);
  __syncthreads();
  y[96 + threadIdx.x] = tile[128 + 31 - threadIdx.x];
}

SELF_LOOP(copies_arrive_when_waited_for, 3) {
  float x[128], y[128];
  for (int i = 0; i < 128; i++) x[i] = (float)i;
  cuemu_set_order(_i);
  float *from = device_copy(x, 128), *to = device_new<float>(128);
  for (int again = 0; again < 2; again++) {
    EK_LAUNCH(copies, 1, 32, 160 * sizeof(float), NULL, from, to);
    CUDA_OK(cudaGetLastError());
    to_host(y, to, 128);
    for (int i = 0; i < 32; i++) {
      ck_assert(isnan(y[i]) && isnan(y[64 + i]));
      ck_assert_float_eq(y[32 + i], i < 16 ? (float)(4 * i + 1) : 0);
      ck_assert_float_eq(y[96 + i], (float)(31 - i));
    }
  }
}

__global__ void unaligned_copy(const float *x) {
  EK_DYNAMIC_SHARED(float, tile);
  EK_COPY_ASYNC(tile, x + 1, 16, true);
}

#ifdef CUEMU_SELF_ASAN
/* The copies themselves are made by code that no sanitizer instruments. */
SELF_EXIT_LOOP(sanitizer_sees_copies_beyond_memory, 2, 1) {
  float *from = device_new<float>(_i == 0 ? 60 : 64), *to = device_new<float>(128);
  EK_LAUNCH(copies, 1, 32, (_i == 1 ? 156 : 160) * sizeof(float), NULL, from, to);
  (void)cudaStreamSynchronize(NULL);
}
#endif

/* ---- products ---- */

__global__ void products(const float *a, const float *b, float *d, bool rounds) {
  const int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
  uint32_t left[4], right[2];
  float sum[4];
  for (int i = 0; i < 4; i++) {
    const float x = a[(g + i % 2 * 8) * 8 + t + i / 2 * 4];
    left[i] = rounds ? EK_ROUND_TF32(x) : __builtin_bit_cast(uint32_t, x);
    sum[i] = d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  }
  for (int i = 0; i < 2; i++) right[i] = EK_ROUND_TF32(b[(t + 4 * i) * 8 + g]);
  EK_MULTIPLY_TF32(sum, left, right);
  for (int i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}

/* What a launch that was just made leaves in `sum`, which is freed. */
static void check_sums(float *sum, const float want[128]) {
  float got[128];
  CUDA_OK(cudaGetLastError());
  to_host(got, sum, 128);
  for (int i = 0; i < 128; i++) ck_assert_float_eq(got[i], want[i]);
}

/* Whole numbers of up to 11 bits are what they are in TF32, and their sums are exact. */
SELF_LOOP(products_of_whole_numbers, 3) {
  float a[128], b[64], d[128], want[128];
  for (int i = 0; i < 128; i++) a[i] = (float)(i * 37 % 2001 - 1000), d[i] = (float)i;
  for (int i = 0; i < 64; i++) b[i] = (float)(i * 91 % 201 - 100);
  for (int i = 0; i < 128; i++) {
    want[i] = d[i];
    for (int k = 0; k < 8; k++) want[i] += a[i / 8 * 8 + k] * b[k * 8 + i % 8];
  }
  cuemu_set_order(_i);
  float *left = device_copy(a, 128), *right = device_copy(b, 64), *sum = device_copy(d, 128);
  EK_LAUNCH(products, 1, 32, 0, NULL, left, right, sum, true);
  check_sums(sum, want);
}

/* A word of two numbers of 16 bits. */
template <class Half> static uint32_t two(const float *x, int step) {
  const Half low = x[0], high = x[step];
  return low.x | (uint32_t)high.x << 16;
}

template <class Half> __global__ void products_of_halves(const float *a, const float *b, float *d) {
  const int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
  uint32_t left[4], right[2];
  float sum[4];
  for (int i = 0; i < 4; i++) {
    left[i] = two<Half>(a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8, 1);
    sum[i] = d[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  }
  for (int i = 0; i < 2; i++) right[i] = two<Half>(b + (2 * t + 8 * i) * 8 + g, 8);
  if constexpr (std::is_same_v<Half, __half>) {
    EK_MULTIPLY_F16(sum, left, right);
  } else {
    EK_MULTIPLY_BF16(sum, left, right);
  }
  for (int i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}

/* Numbers of up to 8 bits, where f16 is tried also those of 11, and 2^-24, its smallest. */
SELF_LOOP(products_of_16_bits, 6) {
  const bool half = _i >= 3;
  float a[256], b[128], d[128], want[128];
  for (int i = 0; i < 256; i++) {
    a[i] = (float)(half ? i * 37 % 2001 - 1000 : i * 37 % 401 / 2 - 100);
  }
  for (int i = 0; i < 128; i++) b[i] = (float)(i * 91 % 201 - 100), d[i] = (float)i;
  if (half) a[0] = 0x1p-24f, b[0] = 1, a[1] = a[2] = 0;
  for (int i = 0; i < 128; i++) {
    want[i] = d[i];
    for (int k = 0; k < 16; k++) want[i] += a[i / 8 * 16 + k] * b[k * 8 + i % 8];
  }
  cuemu_set_order(_i % 3);
  float *left = device_copy(a, 256), *right = device_copy(b, 128), *sum = device_copy(d, 128);
  if (half) {
    EK_LAUNCH(products_of_halves<__half>, 1, 32, 0, NULL, left, right, sum);
  } else {
    EK_LAUNCH(products_of_halves<__nv_bfloat16>, 1, 32, 0, NULL, left, right, sum);
  }
  check_sums(sum, want);
}

/* Four matrices of 8 x 8 numbers of 16 bits, number 64 m + 8 row + column in matrix m. */
__global__ void matrices(uint32_t *y, int off) {
  EK_DYNAMIC_SHARED(uint32_t, tile);
  for (int i = 0; i < 4; i++) {
    const uint32_t first = 8 * threadIdx.x + 2 * i;
    tile[4 * threadIdx.x + i] = first | (first + 1) << 16;
  }
  __syncthreads();
  uint32_t x[8];
  EK_LOAD_MATRICES(x, tile + 4 * threadIdx.x + off);
  EK_LOAD_TRANSPOSED(x + 4, tile + 4 * threadIdx.x);
  for (int i = 0; i < 8; i++) y[8 * threadIdx.x + i] = x[i];
}

SELF_LOOP(matrices_of_a_warp, 3) {
  uint32_t y[256];
  cuemu_set_order(_i);
  uint32_t *to = device_new<uint32_t>(256);
  EK_LAUNCH(matrices, 1, 32, 512, NULL, to, 0);
  CUDA_OK(cudaGetLastError());
  to_host(y, to, 256);
  for (uint32_t lane = 0; lane < 32; lane++) {
    const uint32_t g = lane / 4, t = lane % 4;
    for (uint32_t m = 0; m < 4; m++) {
      const uint32_t straight = 64 * m + 8 * g + 2 * t, across = 64 * m + 16 * t + g;
      ck_assert_uint_eq(y[8 * lane + m], straight | (straight + 1) << 16);
      ck_assert_uint_eq(y[8 * lane + 4 + m], across | (across + 8) << 16);
    }
  }
}

__global__ void round_all(const float *x, uint32_t *y) {
  y[threadIdx.x] = EK_ROUND_TF32(x[threadIdx.x]);
}

/* 2^-11 is half of the last place of 1, which goes away from zero. */
SELF_TEST(rounding) {
  const float x[] = {1,        1 + 0x1p-11f, 1 + 0x1p-12f,  -1 - 0x1p-11f, 1 + 0x1p-11f + 0x1p-23f,
                     INFINITY, -INFINITY,    3.4028235e38f, 0x1p-149f,     -0.0f};
  const float want[] = {1,         1 + 0x1p-10f, 1, -1 - 0x1p-10f, 1 + 0x1p-10f, INFINITY,
                        -INFINITY, INFINITY,     0, -0.0f};
  enum { COUNT = sizeof x / sizeof x[0] };
  float *from = device_copy(x, COUNT), y[COUNT + 1];
  uint32_t *to = device_new<uint32_t>(COUNT);
  EK_LAUNCH(round_all, 1, COUNT, 0, NULL, from, to);
  CUDA_OK(cudaGetLastError());
  to_host(reinterpret_cast<uint32_t *>(y), to, COUNT);
  for (int i = 0; i < COUNT; i++) ck_assert_float_eq(y[i], want[i]);
}

/* A product of operands that were not rounded, one by half a warp, a copy from an odd address, and
 * a matrix with a row beside 16 bytes. */
SELF_LOOP(wrong_kernels_fail, 4) {
  float a[128];
  for (int i = 0; i < 128; i++) a[i] = 1.0f / 3.0f;
  float *left = device_copy(a, 128), *sum = device_copy(a, 128);
  if (_i == 0) EK_LAUNCH(products, 1, 32, 0, NULL, left, left, sum, false);
  if (_i == 1) EK_LAUNCH(products, 1, 16, 0, NULL, left, left, sum, true);
  if (_i == 2) EK_LAUNCH(unaligned_copy, 1, 1, 16, NULL, left);
  if (_i == 3) EK_LAUNCH(matrices, 1, 32, 512, NULL, reinterpret_cast<uint32_t *>(left), 1);
  const cudaError_t launched = cudaGetLastError(); /* the kernel may have failed by now */
  ck_assert(launched == cudaSuccess || launched == cudaErrorLaunchFailure);
  ck_assert_int_eq(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  cuemu_reset();
}
