/*
 * check_cuemu_faults.cc - injected faults and hangs, counts, the report of leaks.
 */
#include "self.h"

#include <unistd.h>

__global__ void add_one(int *x) { x[threadIdx.x] += 1; }

/* Adds one to n zeroes m times and says what came of it. */
static cudaError_t work(int *memory, int times, int expected) {
  int host[32];
  cudaError_t error = cudaMemset(memory, 0, sizeof(host));
  for (int i = 0; i < times && error == cudaSuccess; i++) {
    EK_LAUNCH(add_one, 1, 32, 0, NULL, memory);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) error = cudaMemcpy(host, memory, sizeof(host), cudaMemcpyDeviceToHost);
  if (error == cudaSuccess) ck_assert_int_eq(host[31], expected);
  return error;
}

SELF_TEST(calls_are_counted) {
  int *memory = device_new<int>(32);
  CUDA_OK(work(memory, 5, 5));
  ck_assert_uint_eq(cuemu_calls(0, CUEMU_MEMORY), 1);
  ck_assert_uint_eq(cuemu_calls(0, CUEMU_COPY), 2);
  ck_assert_uint_eq(cuemu_calls(0, CUEMU_LAUNCH), 5);
  ck_assert_uint_eq(cuemu_calls(0, CUEMU_KERNEL), 5);
  ck_assert_uint_eq(cuemu_calls(1, CUEMU_KERNEL), 0);
  cuemu_reset();
  ck_assert_uint_eq(cuemu_calls(0, CUEMU_KERNEL), 0);
}

SELF_TEST(the_nth_call_fails_once) {
  int *memory = device_new<int>(32), *more = NULL;
  cuemu_fail(0, CUEMU_MEMORY, 2, 0);
  CUDA_OK(cudaMalloc(&more, 4));
  CUDA_OK(cudaFree(more));
  ck_assert_int_eq(cudaMalloc(&more, 4), cudaErrorMemoryAllocation);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorMemoryAllocation);
  CUDA_OK(cudaMalloc(&more, 4));
  CUDA_OK(cudaFree(more));
  cuemu_fail(0, CUEMU_COPY, 2, 0); /* of work() that is the copy at its end */
  ck_assert_int_eq(work(memory, 1, 1), cudaErrorInvalidValue);
  (void)cudaGetLastError();
  cuemu_fail(0, CUEMU_LAUNCH, 3, 0);
  ck_assert_int_eq(work(memory, 3, 3), cudaErrorLaunchOutOfResources);
  cuemu_fail(1, CUEMU_LAUNCH, 1, 0); /* another device's */
  CUDA_OK(work(memory, 3, 3));
}

SELF_TEST(a_kernel_fault_kills_the_device) {
  int *memory, *more;
  cudaStream_t stream;
  cudaEvent_t event;
  CUDA_OK(cudaMalloc(&memory, 32 * sizeof(int)));
  CUDA_OK(cudaStreamCreateWithFlags(&stream, 0));
  CUDA_OK(cudaEventCreate(&event));
  cuemu_fail(0, CUEMU_KERNEL, 2, 0);
  ck_assert_int_eq(work(memory, 3, 3), cudaErrorIllegalAddress);
  ck_assert_int_eq(cudaMalloc(&more, 4), cudaErrorIllegalAddress);
  ck_assert_int_eq(cudaEventRecord(event, stream), cudaErrorIllegalAddress);
  ck_assert_int_eq(cudaStreamQuery(stream), cudaErrorIllegalAddress);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorIllegalAddress);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorIllegalAddress); /* it stays */
  CUDA_OK(cudaSetDevice(1));                                     /* others live on */
  CUDA_OK(cudaMalloc(&more, 32 * sizeof(int)));
  CUDA_OK(work(more, 1, 1));
  CUDA_OK(cudaFree(more));
  ck_assert_int_eq(cudaSetDevice(0), cudaErrorIllegalAddress);
  /* What frees says the error and frees nevertheless. */
  ck_assert_int_eq(cudaFree(memory), cudaErrorIllegalAddress);
  ck_assert_int_eq(cudaStreamDestroy(stream), cudaErrorIllegalAddress);
  ck_assert_int_eq(cudaEventDestroy(event), cudaErrorIllegalAddress);
  check_no_leaks();
  cuemu_reset();
  memory = device_new<int>(32);
  CUDA_OK(work(memory, 3, 3));
}

/* A thread that waits for a device that died goes on. */
SELF_TEST(events_of_a_dead_device_are_reached) {
  int *memory = device_new<int>(32);
  cudaEvent_t event = new_event();
  cuemu_fail(0, CUEMU_KERNEL, 1, cudaErrorLaunchFailure);
  EK_LAUNCH(add_one, 1, 32, 0, NULL, memory);
  (void)cudaEventRecord(event, NULL);
  CUDA_OK(cudaSetDevice(1));
  cudaStream_t other = new_stream();
  CUDA_OK(cudaStreamWaitEvent(other, event, 0));
  CUDA_OK(cudaStreamSynchronize(other));
  cuemu_reset();
}

SELF_TEST(cublas_calls_fail) {
  float *x = device_new<float>(4);
  cuemu_fail(0, CUEMU_BLAS, 2, 0);
  for (int i = 1; i <= 3; i++) {
    cublasStatus_t status = multiply<float>(CUBLAS_COMPUTE_32F, false, false, 1, 1, 1, 1, x, 1,
                                            x + 1, 1, 1, x + 2, 1);
    ck_assert_int_eq(status, i == 2 ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS);
  }
  ck_assert_uint_eq(cuemu_calls(0, CUEMU_BLAS), 3);
}

static void wait_until_hanging(unsigned streams) {
  while (cuemu_hanging() != streams) usleep(100);
}

SELF_LOOP(a_stream_hangs_until_it_is_released, 2) {
  int *memory = device_new<int>(32);
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, 0));
  CUDA_OK(cudaMemset(memory, 0, 128));
  cuemu_hang(0, CUEMU_KERNEL, 2);
  for (int i = 0; i < 3; i++) EK_LAUNCH(add_one, 1, 32, 0, stream, memory);
  wait_until_hanging(1);
  ck_assert_int_eq(cudaStreamQuery(stream), cudaErrorNotReady);
  CUDA_OK(cudaStreamQuery(NULL)); /* other streams do not */
  if (_i) {
    CUDA_OK(cudaStreamDestroy(stream)); /* does not wait */
    cuemu_reset();
  } else {
    cuemu_release();
    CUDA_OK(cudaStreamSynchronize(stream));
    int host[32];
    to_host(host, memory, 32);
    ck_assert_int_eq(host[0], 3);
    CUDA_OK(cudaStreamDestroy(stream));
  }
  wait_until_hanging(0);
}

SELF_TEST(faults_from_the_environment) {
  ck_assert_int_eq(setenv("CUEMU_FAULT", "fail memory 0 2,fail copy 1 1 1", 1), 0);
  int *memory = device_new<int>(1), *more;
  ck_assert_int_eq(cudaMalloc(&more, 4), cudaErrorMemoryAllocation);
  CUDA_OK(cudaMemset(memory, 0, 4));
}

SELF_TEST(leaks_are_told) {
  char text[500];
  (void)device_new<char>(1000);
  (void)new_pinned();
  ck_assert_uint_eq(cuemu_leaks(text, sizeof(text)), 2);
  ck_assert_ptr_nonnull(strstr(text, "1 pinned"));
  ck_assert_ptr_nonnull(strstr(text, "device 0: 1024 bytes in 1 allocations"));
  ck_assert_uint_eq(cuemu_leaks(text, 8), 2);
  ck_assert_uint_eq(cuemu_leaks(NULL, 0), 2);
}
