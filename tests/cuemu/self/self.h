/*
 * self.h - what the checks of cuemu itself share: checked calls, device memory, the main program.
 */
#ifndef CUEMU_SELF_H
#define CUEMU_SELF_H

#include <check.h>
#include <cuda_runtime.h>
#include <stdlib.h>

#include "../cuemu.h"

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define CUEMU_SELF_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define CUEMU_SELF_TSAN 1
#endif

#define CUDA_OK(call) ck_assert_str_eq(cudaGetErrorName(call), "cudaSuccess")

template <class T> static inline T *device_new(size_t count) {
  T *memory = NULL;
  CUDA_OK(cudaMalloc(&memory, count * sizeof(T)));
  return memory;
}

template <class T> static inline T *device_copy(const T *host, size_t count) {
  T *memory = device_new<T>(count);
  CUDA_OK(cudaMemcpy(memory, host, count * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

template <class T> static inline void to_host(T *host, const T *device, size_t count) {
  CUDA_OK(cudaMemcpy(host, device, count * sizeof(T), cudaMemcpyDeviceToHost));
}

static inline void check_no_leaks() {
  char text[1000];
  ck_assert_msg(cuemu_leaks(text, sizeof(text)) == 0, "%s", text);
}

static inline int self_main(const char *name, void (*add_tests)(TCase *)) {
  Suite *suite = suite_create(name);
  TCase *tests = tcase_create(name);
  add_tests(tests);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#define SELF_MAIN(name, add_tests)                                                                 \
  int main(void) { return self_main(name, add_tests); }

#endif
