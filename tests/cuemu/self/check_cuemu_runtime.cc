/*
 * check_cuemu_runtime.cc - devices, memory, copies, streams and events.
 */
#include "self.h"

#include <atomic>
#include <pthread.h>
#include <unistd.h>

/* A gate that a stream waits at, through a host function. */
struct gate {
  std::atomic<bool> open{false}, reached{false};
};

static void wait_at(void *argument) {
  auto *g = static_cast<gate *>(argument);
  g->reached = true;
  while (!g->open) usleep(100);
}

static cudaStream_t new_stream() {
  cudaStream_t stream = NULL;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

static cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = NULL;
  CUDA_OK(cudaEventCreateWithFlags(&event, flags));
  return event;
}

static void set_environment(const char *name, const char *value) {
  ck_assert_int_eq(setenv(name, value, 1), 0); /* before the first call in this process */
}

/* ---- devices ---- */

START_TEST(devices_from_the_environment) {
  set_environment("CUEMU_DEVICES", "3");
  set_environment("CUEMU_MEMORY", "64MiB");
  int count = 0, device = -1, value = 0;
  CUDA_OK(cudaGetDeviceCount(&count));
  ck_assert_int_eq(count, 3);
  ck_assert_int_eq(cudaSetDevice(3), cudaErrorInvalidDevice);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidDevice);
  CUDA_OK(cudaSetDevice(2));
  CUDA_OK(cudaGetDevice(&device));
  ck_assert_int_eq(device, 2);
  cudaDeviceProp properties;
  CUDA_OK(cudaGetDeviceProperties(&properties, 2));
  ck_assert_uint_eq(properties.totalGlobalMem, 64u << 20);
  CUDA_OK(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 2));
  ck_assert_int_eq(value, 32);
}
END_TEST

START_TEST(no_driver_and_no_device) {
  set_environment(_i ? "CUEMU_DEVICES" : "CUEMU_DRIVER", "0");
  cudaError_t expected = _i ? cudaErrorNoDevice : cudaErrorInsufficientDriver;
  int count = 77;
  void *memory;
  ck_assert_int_eq(cudaGetDeviceCount(&count), expected);
  ck_assert_int_eq(count, _i ? 0 : 77);
  ck_assert_int_eq(cudaMalloc(&memory, 1), expected);
  ck_assert_int_eq(cudaSetDevice(0), expected);
  CUDA_OK(cudaDriverGetVersion(&count));
  ck_assert_int_eq(count, _i ? 13000 : 0);
}
END_TEST

START_TEST(peers) {
  int can = 0;
  CUDA_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  ck_assert_int_eq(can, 1);
  CUDA_OK(cudaDeviceEnablePeerAccess(1, 0));
  ck_assert_int_eq(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  CUDA_OK(cudaDeviceDisablePeerAccess(1));
  ck_assert_int_eq(cudaDeviceDisablePeerAccess(1), cudaErrorPeerAccessNotEnabled);
  struct cuemu_settings settings;
  cuemu_get_settings(&settings);
  settings.peer = false;
  cuemu_set_settings(&settings);
  CUDA_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  ck_assert_int_eq(can, 0);
  ck_assert_int_eq(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessUnsupported);
}
END_TEST

/* ---- memory ---- */

START_TEST(memory_has_a_cap) {
  set_environment("CUEMU_MEMORY", "16MiB");
  size_t free_bytes, total, rest;
  CUDA_OK(cudaMemGetInfo(&free_bytes, &total));
  ck_assert_uint_eq(total, 16u << 20);
  char *all = device_new<char>(free_bytes), *more = NULL;
  ck_assert_int_eq(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
  ck_assert_ptr_null(more);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorMemoryAllocation);
  CUDA_OK(cudaMemGetInfo(&rest, &total));
  ck_assert_uint_eq(rest, 0);
  CUDA_OK(cudaSetDevice(1)); /* has memory of its own */
  more = device_new<char>(1);
  struct cuemu_usage usage;
  cuemu_usage(1, &usage);
  ck_assert_uint_eq(usage.bytes, 512);
  cuemu_usage(0, &usage);
  ck_assert_uint_eq(usage.peak_bytes, free_bytes);
  CUDA_OK(cudaFree(all)); /* a device need not be current */
  CUDA_OK(cudaFree(more));
  ck_assert_int_eq(cudaFree(&usage), cudaErrorInvalidValue);
  CUDA_OK(cudaFree(NULL));
  check_no_leaks();
}
END_TEST

START_TEST(new_memory_is_not_zero) {
  unsigned host[100], *memory = device_new<unsigned>(100);
  to_host(host, memory, 100);
  for (unsigned value : host) ck_assert_uint_eq(value, 0xffffffffu);
  CUDA_OK(cudaFree(memory));
}
END_TEST

START_TEST(copies_are_checked) {
  char host[64] = {0}, *memory = device_new<char>(64);
  ck_assert_int_eq(cudaMemcpy(memory, host, 65, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  ck_assert_int_eq(cudaMemcpy(host, memory, 64, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  ck_assert_int_eq(cudaMemset(memory + 60, 0, 5), cudaErrorInvalidValue);
  ck_assert_int_eq(cudaMemset(host, 0, 5), cudaErrorInvalidValue);
  ck_assert_int_eq(cudaMemcpyPeer(memory, 1, memory, 0, 4), cudaErrorInvalidValue);
  CUDA_OK(cudaMemset(memory, 7, 64));
  CUDA_OK(cudaMemcpy(host, memory, 64, cudaMemcpyDefault));
  ck_assert_int_eq(host[63], 7);
  CUDA_OK(cudaFree(memory));
}
END_TEST

START_TEST(copies_between_devices_and_by_rows) {
  int host[12], rows[6] = {0}, *there;
  for (int i = 0; i < 12; i++) host[i] = i;
  int *here = device_copy(host, 12);
  CUDA_OK(cudaSetDevice(1));
  there = device_new<int>(12);
  CUDA_OK(cudaMemcpyPeer(there, 1, here, 0, sizeof(host)));
  CUDA_OK(cudaMemcpy2DAsync(rows, 2 * sizeof(int), there + 1, 4 * sizeof(int), 2 * sizeof(int), 3,
                            cudaMemcpyDeviceToHost, NULL));
  for (int i = 0; i < 6; i++) ck_assert_int_eq(rows[i], i / 2 * 4 + 1 + i % 2);
  CUDA_OK(cudaFree(here));
  CUDA_OK(cudaFree(there));
}
END_TEST

/* Pageable source: the bytes of the time of the call; pinned: those of the time of the copy. */
START_TEST(pinned_memory_is_asynchronous) {
  gate g;
  cudaStream_t stream = new_stream();
  int pageable = 1, *pinned, *memory = device_new<int>(2), host[2];
  CUDA_OK(cudaMallocHost(&pinned, sizeof(int)));
  *pinned = 1;
  CUDA_OK(cudaLaunchHostFunc(stream, wait_at, &g));
  CUDA_OK(cudaMemcpyAsync(memory, &pageable, sizeof(int), cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaMemcpyAsync(memory + 1, pinned, sizeof(int), cudaMemcpyHostToDevice, stream));
  pageable = *pinned = 2;
  g.open = true;
  CUDA_OK(cudaMemcpyAsync(host, memory, sizeof(host), cudaMemcpyDeviceToHost, stream)); /* waits */
  ck_assert_int_eq(host[0], 1);
  ck_assert_int_eq(host[1], 2);
  CUDA_OK(cudaFreeHost(pinned));
  CUDA_OK(cudaFree(memory));
  CUDA_OK(cudaStreamDestroy(stream));
  check_no_leaks();
}
END_TEST

/* ---- streams and events ---- */

START_TEST(streams_run_at_the_same_time) {
  gate g;
  cudaStream_t waits = new_stream(), goes = new_stream();
  CUDA_OK(cudaLaunchHostFunc(waits, wait_at, &g));
  CUDA_OK(cudaLaunchHostFunc(
      goes, [](void *open) { *static_cast<std::atomic<bool> *>(open) = true; }, &g.open));
  CUDA_OK(cudaStreamSynchronize(waits)); /* opened by the other stream */
  CUDA_OK(cudaStreamQuery(waits));
  CUDA_OK(cudaStreamDestroy(waits));
  CUDA_OK(cudaStreamDestroy(goes));
  check_no_leaks();
}
END_TEST

static void without_jitter() { /* with it, nothing waits to be asked for */
  struct cuemu_settings settings;
  cuemu_get_settings(&settings);
  settings.jitter_us = 0;
  cuemu_set_settings(&settings);
}

__global__ void count(int *ran) { atomicAdd(ran, 1); }

/* A stream begins by itself or as late as somebody waits, so that who forgets to wait meets
 * both. */
START_TEST(streams_begin_early_or_late) {
  enum { TIMES = 100, LAUNCHES = 16 };
  without_jitter();
  int *ran, early = 0;
  CUDA_OK(cudaMallocHost(&ran, sizeof(int)));
  *ran = 0;
  cudaStream_t stream = new_stream();
  for (int i = 1; i <= TIMES; i++) {
    for (int j = 0; j < LAUNCHES; j++) EK_LAUNCH(count, 1, 1, 0, stream, ran);
    usleep(500); /* time enough, but nobody waits */
    early += __atomic_load_n(ran, __ATOMIC_ACQUIRE) > (i - 1) * LAUNCHES;
    CUDA_OK(cudaStreamSynchronize(stream));
    ck_assert_int_eq(*ran, i * LAUNCHES);
  }
  ck_assert_int_gt(early, 0);
  ck_assert_int_lt(early, TIMES / 2); /* a quarter, but a machine may be busy */
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaFreeHost(ran));
}
END_TEST

/* Whatever waits for a stream, or asks, makes it run. */
START_TEST(late_streams_run_when_asked) {
  without_jitter();
  int *pinned, *memory = device_new<int>(1);
  CUDA_OK(cudaMallocHost(&pinned, sizeof(int)));
  CUDA_OK(cudaMemset(memory, 1, sizeof(int)));
  cudaStream_t stream = new_stream(), other = new_stream();
  cudaEvent_t event = new_event();
  for (int i = 0; i < 64; i++) {
    *pinned = 0;
    CUDA_OK(cudaMemcpyAsync(pinned, memory, sizeof(int), cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaEventRecord(event, stream));
    switch (_i) {
    case 0: CUDA_OK(cudaStreamSynchronize(stream)); break;
    case 1: CUDA_OK(cudaEventSynchronize(event)); break;
    case 2: CUDA_OK(cudaDeviceSynchronize()); break;
    case 3:
      while (cudaStreamQuery(stream) == cudaErrorNotReady) usleep(50);
      break;
    case 4:
      while (cudaEventQuery(event) == cudaErrorNotReady) usleep(50);
      break;
    default: /* another stream that waits for it, and for which somebody waits */
      CUDA_OK(cudaStreamWaitEvent(other, event, 0));
      CUDA_OK(cudaStreamSynchronize(other));
    }
    (void)cudaGetLastError(); /* of a query */
    ck_assert_int_eq(*pinned, 0x01010101);
  }
  CUDA_OK(cudaEventDestroy(event));
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaStreamDestroy(other));
  CUDA_OK(cudaFreeHost(pinned));
  CUDA_OK(cudaFree(memory));
}
END_TEST

START_TEST(events_order_streams_of_devices) {
  gate g;
  int *memory = device_new<int>(1);
  CUDA_OK(cudaMemset(memory, 0, sizeof(int)));
  cudaStream_t first = new_stream();
  cudaEvent_t done = new_event();
  CUDA_OK(cudaEventQuery(done)); /* never recorded: nothing is pending */
  CUDA_OK(cudaLaunchHostFunc(first, wait_at, &g));
  CUDA_OK(cudaMemsetAsync(memory, 1, sizeof(int), first));
  CUDA_OK(cudaEventRecord(done, first));
  ck_assert_int_eq(cudaEventQuery(done), cudaErrorNotReady);
  CUDA_OK(cudaSetDevice(1));
  cudaStream_t second = new_stream();
  ck_assert_int_eq(cudaEventRecord(done, second), cudaErrorInvalidResourceHandle);
  CUDA_OK(cudaStreamWaitEvent(second, done, 0));
  int *pinned;
  CUDA_OK(cudaMallocHost(&pinned, sizeof(int)));
  CUDA_OK(cudaMemcpyAsync(pinned, memory, sizeof(int), cudaMemcpyDeviceToHost, second));
  usleep(20000);
  ck_assert_int_eq(cudaStreamQuery(second), cudaErrorNotReady);
  g.open = true;
  CUDA_OK(cudaEventSynchronize(done));
  CUDA_OK(cudaStreamSynchronize(second));
  ck_assert_int_eq(*pinned, 0x01010101);
  CUDA_OK(cudaEventDestroy(done));
  CUDA_OK(cudaStreamDestroy(first));
  CUDA_OK(cudaStreamDestroy(second));
  CUDA_OK(cudaFree(memory));
  CUDA_OK(cudaFreeHost(pinned));
  check_no_leaks();
}
END_TEST

START_TEST(wait_before_record_does_nothing) {
  gate g;
  cudaStream_t late = new_stream(), early = new_stream();
  cudaEvent_t event = new_event();
  CUDA_OK(cudaStreamWaitEvent(early, event, 0));
  CUDA_OK(cudaLaunchHostFunc(late, wait_at, &g));
  CUDA_OK(cudaEventRecord(event, late));
  CUDA_OK(cudaStreamSynchronize(early)); /* would wait for ever */
  g.open = true;
  CUDA_OK(cudaStreamSynchronize(late));
  CUDA_OK(cudaEventDestroy(event));
  CUDA_OK(cudaStreamDestroy(late));
  CUDA_OK(cudaStreamDestroy(early));
}
END_TEST

START_TEST(events_keep_time) {
  cudaStream_t stream = new_stream();
  cudaEvent_t start = new_event(cudaEventDefault), end = new_event(cudaEventDefault);
  cudaEvent_t timeless = new_event();
  float ms = -1;
  ck_assert_int_eq(cudaEventElapsedTime(&ms, start, end), cudaErrorInvalidResourceHandle);
  CUDA_OK(cudaEventRecord(start, stream));
  CUDA_OK(cudaLaunchHostFunc(
      stream, [](void *) { usleep(20000); }, NULL));
  CUDA_OK(cudaEventRecord(end, stream));
  ck_assert_int_eq(cudaEventElapsedTime(&ms, start, end), cudaErrorNotReady);
  CUDA_OK(cudaEventSynchronize(end));
  CUDA_OK(cudaEventElapsedTime(&ms, start, end));
  ck_assert_float_ge(ms, 19.0f);
  ck_assert_int_eq(cudaEventElapsedTime(&ms, timeless, end), cudaErrorInvalidResourceHandle);
  CUDA_OK(cudaEventDestroy(start));
  CUDA_OK(cudaEventDestroy(end));
  CUDA_OK(cudaEventDestroy(timeless));
  CUDA_OK(cudaStreamDestroy(stream));
}
END_TEST

/* A stream that is destroyed while busy ends what it has; the call does not wait for it. */
START_TEST(busy_streams_are_destroyed_at_once) {
  static gate g;
  static std::atomic<int> ran{0};
  cudaStream_t stream = new_stream();
  CUDA_OK(cudaLaunchHostFunc(stream, wait_at, &g));
  CUDA_OK(cudaLaunchHostFunc(
      stream, [](void *) { ran = 1; }, NULL));
  CUDA_OK(cudaStreamDestroy(stream));
  check_no_leaks();
  ck_assert_int_eq(ran, 0);
  g.open = true;
  while (!ran) usleep(100);
}
END_TEST

static void *use_a_device(void *argument) {
  int device = (int)(intptr_t)argument;
  CUDA_OK(cudaSetDevice(device));
  cudaStream_t stream = new_stream();
  for (int i = 0; i < 50; i++) {
    int *memory = device_new<int>(100), host[100];
    CUDA_OK(cudaMemsetAsync(memory, device + 1, sizeof(host), stream));
    CUDA_OK(cudaMemcpyAsync(host, memory, sizeof(host), cudaMemcpyDeviceToHost, stream));
    for (int value : host) ck_assert_int_eq(value, (device + 1) * 0x01010101);
    CUDA_OK(cudaFree(memory));
  }
  CUDA_OK(cudaStreamDestroy(stream));
  return NULL;
}

START_TEST(threads_have_their_own_device) {
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    pthread_create(&threads[i], NULL, use_a_device, (void *)(intptr_t)i);
  }
  for (pthread_t thread : threads) pthread_join(thread, NULL);
  check_no_leaks();
}
END_TEST

static void add_tests(TCase *tests) {
  tcase_add_test(tests, devices_from_the_environment);
  tcase_add_loop_test(tests, no_driver_and_no_device, 0, 2);
  tcase_add_test(tests, peers);
  tcase_add_test(tests, memory_has_a_cap);
  tcase_add_test(tests, new_memory_is_not_zero);
  tcase_add_test(tests, copies_are_checked);
  tcase_add_test(tests, copies_between_devices_and_by_rows);
  tcase_add_test(tests, pinned_memory_is_asynchronous);
  tcase_add_test(tests, streams_run_at_the_same_time);
  tcase_add_test(tests, streams_begin_early_or_late);
  tcase_add_loop_test(tests, late_streams_run_when_asked, 0, 6);
  tcase_add_test(tests, events_order_streams_of_devices);
  tcase_add_test(tests, wait_before_record_does_nothing);
  tcase_add_test(tests, events_keep_time);
  tcase_add_test(tests, busy_streams_are_destroyed_at_once);
  tcase_add_test(tests, threads_have_their_own_device);
}

SELF_MAIN("cuemu_runtime", add_tests)
