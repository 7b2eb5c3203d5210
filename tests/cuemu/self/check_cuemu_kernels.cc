/*
 * check_cuemu_kernels.cc - launches: indices, barriers, warp functions, shared memory, faults of
 * kernels.
 */
#include "self.h"

static const unsigned ALL = 0xffffffffu;

/* ---- kernels that are right ---- */

__global__ void write_index(int *out) {
  unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += (int)(block * 1000 + thread);
}

__global__ void reverse(const float *x, float *y) {
  EK_DYNAMIC_SHARED(float, row);
  row[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  y[blockIdx.x * blockDim.x + threadIdx.x] = row[blockDim.x - 1 - threadIdx.x];
}

template <class T, int PARTS> __global__ void block_sum(const T *x, T *y, int count) {
  __shared__ T part[PARTS];
  T sum = 0;
  for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) sum += x[i];
  for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(ALL, sum, lanes);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return; /* later barriers count those who are left */
  for (unsigned w = 1; w < blockDim.x / 32; w++) sum += part[w];
  __syncthreads();
  *y = sum;
}

__global__ void shuffles(int *out) {
  int lane = (int)threadIdx.x;
  out[lane] = __shfl_sync(ALL, lane, 3);
  out[32 + lane] = __shfl_xor_sync(ALL, lane, 5);
  out[64 + lane] = __shfl_down_sync(ALL, lane, 2, 8);
  out[96 + lane] = __shfl_sync(ALL, lane, 1, 4);
  out[128 + lane] = (int)__ballot_sync(ALL, lane % 2);
  if (lane < 16) out[160 + lane] = __shfl_xor_sync(0xffffu, lane, 8);
  __syncwarp();
  out[192 + lane] = __shfl_sync(ALL, (double)lane, 31) == 31.0;
}

/* ---- kernels that are wrong ---- */

__global__ void forgets_barrier(const int *x, int *y) {
  __shared__ int row[128];
  row[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = row[(threadIdx.x + 1) % 128] + row[(threadIdx.x + 127) % 128];
}

/* Each block adds to one number; the second kernel does it as it has to be done. */
__global__ void blocks_share(int *y) {
  if (threadIdx.x == 0) y[0] += 1;
}

__global__ void blocks_share_by_atomics(int *y) {
  __shared__ int part[32];
  part[threadIdx.x] = 1; /* shared memory is each block's own */
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(y, part[31]);
}

__global__ void divergent_barrier(int *y) {
  if (threadIdx.x < 16) {
    __syncthreads();
    y[0] = 1;
  } else {
    __syncthreads();
    y[1] = 1;
  }
}

__global__ void barrier_against_shuffle(int *y) {
  if (threadIdx.x < 16)
    __syncthreads();
  else
    y[0] = __shfl_xor_sync(ALL, 1, 1);
}

__global__ void outside_own_mask(int *y) { y[threadIdx.x] = __shfl_sync(0xffu, 1, 0); }

__global__ void beyond(float *y, int offset) { y[threadIdx.x + (unsigned)offset] = 1.0f; }

__global__ void beyond_shared(float *y, int index) {
  EK_DYNAMIC_SHARED(float, row);
  row[threadIdx.x] = 1.0f;
  if (threadIdx.x == 0) row[index] = 2.0f;
  __syncthreads();
  y[threadIdx.x] = row[0];
}

/* ---- tests ---- */

SELF_LOOP(indices, 3) {
  cuemu_set_order(_i);
  dim3 grid(3, 2, 2), block(5, 3, 2);
  const int count = 12 * 30;
  int *out = device_new<int>(count);
  CUDA_OK(cudaMemset(out, 0, count * sizeof(int)));
  EK_LAUNCH(write_index, grid, block, 0, NULL, out);
  CUDA_OK(cudaGetLastError());
  int host[count];
  to_host(host, out, count);
  for (int i = 0; i < count; i++) ck_assert_int_eq(host[i], i / 30 * 1000 + i % 30);
}

SELF_LOOP(barriers_and_dynamic_shared_memory, 3) {
  cuemu_set_order(_i);
  const int count = 4 * 200;
  float host[count];
  for (int i = 0; i < count; i++) host[i] = (float)i;
  float *x = device_copy(host, count), *y = device_new<float>(count);
  EK_LAUNCH(reverse, 4, 200, 200 * sizeof(float), NULL, x, y);
  to_host(host, y, count);
  for (int i = 0; i < count; i++)
    ck_assert_float_eq(host[i], (float)(i / 200 * 200 + 199 - i % 200));
}

SELF_LOOP(templates_and_reductions, 3) {
  cuemu_set_order(_i);
  double host[1000], sum = 0;
  for (int i = 0; i < 1000; i++) sum += host[i] = i % 17;
  double *x = device_copy(host, 1000), *y = device_new<double>(1);
  EK_LAUNCH((block_sum<double, 8>), 1, 256, 0, NULL, x, y, 1000);
  to_host(host, y, 1);
  ck_assert_double_eq(host[0], sum);
}

SELF_LOOP(warp_functions, 3) {
  cuemu_set_order(_i);
  int *out = device_new<int>(256), host[256];
  EK_LAUNCH(shuffles, 1, 32, 0, NULL, out);
  to_host(host, out, 256);
  for (int lane = 0; lane < 32; lane++) {
    ck_assert_int_eq(host[lane], 3);
    ck_assert_int_eq(host[32 + lane], lane ^ 5);
    ck_assert_int_eq(host[64 + lane], lane % 8 < 6 ? lane + 2 : lane);
    ck_assert_int_eq(host[96 + lane], lane / 4 * 4 + 1);
    ck_assert_int_eq(host[128 + lane], (int)0xaaaaaaaa);
    if (lane < 16) ck_assert_int_eq(host[160 + lane], lane ^ 8);
    ck_assert_int_eq(host[192 + lane], 1);
  }
}

/* In each of the three orders some value is read before it is written, or by luck is not. */
SELF_EXIT_LOOP(orders_show_a_missing_barrier, 3, CUEMU_SELF_TSAN ? 66 : 0) {
  int host[128];
  for (int i = 0; i < 128; i++) host[i] = i + 1;
  int *x = device_copy(host, 128), *y = device_new<int>(128);
  struct cuemu_settings settings;
  cuemu_get_settings(&settings);
  settings.order = _i;
  settings.fiber_per_thread = true;
  cuemu_set_settings(&settings);
  EK_LAUNCH(forgets_barrier, 1, 128, 0, NULL, x, y);
  to_host(host, y, 128);
  int wrong = 0;
  for (int i = 0; i < 128; i++) wrong += host[i] != (i + 1) % 128 + 1 + (i + 127) % 128 + 1;
  ck_assert_int_gt(wrong, 0);
}

static int count_by_blocks(void (*kernel)(int *)) {
  int *y = device_new<int>(1), count = 0;
  CUDA_OK(cudaMemset(y, 0, sizeof(int)));
  struct cuemu_settings settings;
  cuemu_get_settings(&settings);
  settings.block_threads = 2;
  settings.fiber_per_thread = true;
  cuemu_set_settings(&settings);
  EK_LAUNCH(kernel, dim3(5, 7, 2), 32, 0, NULL, y);
  to_host(&count, y, 1);
  return count;
}

SELF_LOOP(blocks_on_two_threads, 3) {
  cuemu_set_order(_i);
  ck_assert_int_eq(count_by_blocks(blocks_share_by_atomics), 70);
}

#if CUEMU_SELF_TSAN
SELF_EXIT_LOOP(sanitizer_sees_a_race_of_blocks, 1, 66) { (void)count_by_blocks(blocks_share); }
#endif

/* No kernel runs with more threads than it says, nor when it is only asked how many that are. */
void launch_bounded(int threads, int *out);
void launch_bounded_by_parameter(int threads, int *out);

SELF_TEST(launch_bounds_are_kept) {
  int *y = device_new<int>(128), host[128];
  CUDA_OK(cudaMemset(y, 0, sizeof host));
  launch_bounded(65, y);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidConfiguration);
  launch_bounded_by_parameter(33, y); /* 33 times 3 */
  ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidConfiguration);
  to_host(host, y, 128);
  for (int i = 0; i < 128; i++) ck_assert_int_eq(host[i], 0);
  launch_bounded(64, y);
  CUDA_OK(cudaGetLastError());
  to_host(host, y, 128);
  for (int i = 0; i < 128; i++) ck_assert_int_eq(host[i], i < 64);
  launch_bounded_by_parameter(32, y);
  to_host(host, y, 128);
  for (int i = 0; i < 128; i++) ck_assert_int_eq(host[i], i < 96 ? 2 : 0);
}

/* A wrong kernel gives 719, which stays; after a reset the worker runs kernels as before. */
SELF_LOOP(wrong_kernels_fail, 9) {
  int *y = device_new<int>(64), host[64];
  cuemu_set_order(_i / 3);
  if (_i % 3 == 0) EK_LAUNCH(divergent_barrier, 1, 64, 0, NULL, y);
  if (_i % 3 == 1) EK_LAUNCH(barrier_against_shuffle, 1, 32, 0, NULL, y);
  if (_i % 3 == 2) EK_LAUNCH(outside_own_mask, 1, 32, 0, NULL, y);
  ck_assert_int_eq(cudaStreamSynchronize(NULL), cudaErrorLaunchFailure);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorLaunchFailure);
  ck_assert_int_eq(cudaMemset(y, 0, 4), cudaErrorLaunchFailure);
  ck_assert_int_eq(cudaPeekAtLastError(), cudaErrorLaunchFailure);
  cuemu_reset();
  CUDA_OK(cudaMemset(y, 0, 64 * sizeof(int)));
  EK_LAUNCH(write_index, 1, 64, 0, NULL, y);
  to_host(host, y, 64);
  for (int i = 0; i < 64; i++) ck_assert_int_eq(host[i], i);
}

SELF_TEST(launches_are_checked) {
  float *y = device_new<float>(64);
  EK_LAUNCH(beyond, 1, 2048, 0, NULL, y, 0);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EK_LAUNCH(beyond, dim3(1, 65536), 1, 0, NULL, y, 0);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidConfiguration);
  ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
  EK_LAUNCH(beyond_shared, 1, 64, 64 << 10, NULL, y, 0);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidValue);
  CUDA_OK(
      cudaFuncSetAttribute(beyond_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
  EK_LAUNCH(beyond_shared, 1, 64, 64 << 10, NULL, y, 0);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaSetDevice(1));
  cudaStream_t elsewhere = new_stream();
  CUDA_OK(cudaSetDevice(0));
  EK_LAUNCH(beyond, 1, 32, 0, elsewhere, y, 0);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidResourceHandle);
}

#ifdef CUEMU_SELF_ASAN
SELF_EXIT_LOOP(sanitizer_sees_beyond_device_memory, 1, 1) {
  float *y = device_new<float>(64);
  EK_LAUNCH(beyond, 1, 64, 0, NULL, y, 1);
  (void)cudaStreamSynchronize(NULL);
}

SELF_EXIT_LOOP(sanitizer_sees_beyond_shared_memory, 1, 1) {
  float *y = device_new<float>(64);
  EK_LAUNCH(beyond_shared, 1, 64, 64 * sizeof(float), NULL, y, 64);
  (void)cudaStreamSynchronize(NULL);
}
#endif
