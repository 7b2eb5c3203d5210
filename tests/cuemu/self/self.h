/*
 * self.h - what the checks of cuemu itself share: checked calls, memory, streams and events that
 * are freed when the test ends, tests that are registered by their names, the main program.
 */
#ifndef CUEMU_SELF_H
#define CUEMU_SELF_H

#include <check.h>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <mutex>
#include <stdlib.h>
#include <vector>

#include "../cuemu.h"

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define CUEMU_SELF_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define CUEMU_SELF_TSAN 1
#else
#define CUEMU_SELF_TSAN 0
#endif

#define CUDA_OK(call) ck_assert_str_eq(cudaGetErrorName(call), "cudaSuccess")

/* What the running test has made, which its end frees; a test may not free it itself. */
struct self_kept {
  void *thing;
  cudaError_t (*release)(void *thing);
};
static std::vector<self_kept> self_list;
static std::mutex self_mutex;

template <class T> static inline T *keep(T *thing, cudaError_t (*release)(T *thing)) {
  const std::lock_guard<std::mutex> locked(self_mutex);
  self_list.push_back({thing, reinterpret_cast<cudaError_t (*)(void *)>(release)});
  return thing;
}

template <class T> static inline T *device_new(size_t count) {
  T *memory = NULL;
  CUDA_OK(cudaMalloc(&memory, count * sizeof(T)));
  (void)keep<void>(memory, cudaFree);
  return memory;
}

static inline int *new_pinned() {
  void *memory = NULL;
  CUDA_OK(cudaHostAlloc(&memory, sizeof(int), 0));
  return static_cast<int *>(keep<void>(memory, cudaFreeHost));
}

static inline cudaStream_t new_stream() {
  cudaStream_t stream = NULL;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return keep(stream, cudaStreamDestroy);
}

static inline cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = NULL;
  CUDA_OK(cudaEventCreateWithFlags(&event, flags));
  return keep(event, cudaEventDestroy);
}

template <class T> static inline T *device_copy(const T *host, size_t count) {
  T *memory = device_new<T>(count);
  CUDA_OK(cudaMemcpy(memory, host, count * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

template <class T> static inline void to_host(T *host, const T *device, size_t count) {
  CUDA_OK(cudaMemcpy(host, device, count * sizeof(T), cudaMemcpyDeviceToHost));
}

/* c = alpha op(a) op(b) + beta c by cuBLASLt, column by column: op(a) is m x k. */
template <class T>
static inline cublasStatus_t multiply(cublasComputeType_t compute, bool ta, bool tb, int m, int n,
                                      int k, T alpha, const T *a, int lda, const T *b, int ldb,
                                      T beta, T *c, int ldc) {
  const cudaDataType type = sizeof(T) == 8 ? CUDA_R_64F : CUDA_R_32F;
  const cublasOperation_t operations[] = {ta ? CUBLAS_OP_T : CUBLAS_OP_N,
                                          tb ? CUBLAS_OP_T : CUBLAS_OP_N};
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t layouts[3];
  ck_assert_int_eq(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  (void)cublasLtMatmulDescCreate(&desc, compute, type);
  (void)cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &operations[0],
                                       sizeof operations[0]);
  (void)cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &operations[1],
                                       sizeof operations[1]);
  (void)cublasLtMatrixLayoutCreate(&layouts[0], type, ta ? k : m, ta ? m : k, lda);
  (void)cublasLtMatrixLayoutCreate(&layouts[1], type, tb ? n : k, tb ? k : n, ldb);
  (void)cublasLtMatrixLayoutCreate(&layouts[2], type, m, n, ldc);
  const cublasStatus_t status =
      cublasLtMatmul(handle, desc, &alpha, a, layouts[0], b, layouts[1], &beta, c, layouts[2], c,
                     layouts[2], NULL, NULL, 0, NULL);
  for (cublasLtMatrixLayout_t layout : layouts) (void)cublasLtMatrixLayoutDestroy(layout);
  (void)cublasLtMatmulDescDestroy(desc);
  ck_assert_int_eq(cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);
  return status;
}

static inline void check_no_leaks() {
  char text[1000];
  ck_assert_msg(cuemu_leaks(text, sizeof(text)) == 0, "%s", text);
}

static inline void end_of_test() {
  for (; !self_list.empty(); self_list.pop_back()) {
    CUDA_OK(self_list.back().release(self_list.back().thing));
  }
  check_no_leaks();
}

/* A test, for _i = 0 .. end - 1; `status`: of the process that it ends with. */
#define SELF_TEST(name) SELF_LOOP(name, 1)
#define SELF_LOOP(name, end) SELF_EXIT_LOOP(name, end, 0)
#define SELF_EXIT_LOOP(name, end, status)                                                          \
  static void name##_fn(int);                                                                      \
  static const TTest name##_test = {#name, name##_fn, __FILE__, __LINE__};                         \
  static const bool name##_added = self_add(&name##_test, end, status);                            \
  static void name##_fn([[maybe_unused]] int _i)

static TCase *self_tests;

static inline bool self_add(const TTest *test, int end, int status) {
  if (!self_tests) {
    self_tests = tcase_create("cuemu");
    tcase_add_checked_fixture(self_tests, NULL, end_of_test);
  }
  _tcase_add_test(self_tests, test, 0, status, 0, end);
  return true;
}

int main(void) {
  Suite *suite = suite_create("cuemu");
  suite_add_tcase(suite, self_tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
