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

static void set_environment(const char *name, const char *value) {
  ck_assert_int_eq(setenv(name, value, 1), 0); /* before the first call in this process */
}

/* ---- devices ---- */

SELF_TEST(devices_from_the_environment) {
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
  CUDA_OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 2));
  ck_assert_int_eq(value, properties.multiProcessorCount);
}

SELF_LOOP(no_driver_and_no_device, 2) {
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

SELF_TEST(peers) {
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

/* ---- memory ---- */

SELF_TEST(memory_has_a_cap) {
  set_environment("CUEMU_MEMORY", "16MiB");
  size_t free_bytes, total, rest;
  CUDA_OK(cudaMemGetInfo(&free_bytes, &total));
  ck_assert_uint_eq(total, 16u << 20);
  (void)device_new<char>(free_bytes); /* freed when device 1 is current */
  char *more = NULL;
  ck_assert_int_eq(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
  ck_assert_ptr_null(more);
  ck_assert_int_eq(cudaGetLastError(), cudaErrorMemoryAllocation);
  CUDA_OK(cudaMemGetInfo(&rest, &total));
  ck_assert_uint_eq(rest, 0);
  CUDA_OK(cudaSetDevice(1)); /* has memory of its own */
  (void)device_new<char>(1);
  struct cuemu_usage usage;
  cuemu_usage(1, &usage);
  ck_assert_uint_eq(usage.bytes, 512);
  cuemu_usage(0, &usage);
  ck_assert_uint_eq(usage.peak_bytes, free_bytes);
  ck_assert_int_eq(cudaFree(&usage), cudaErrorInvalidValue);
  CUDA_OK(cudaFree(NULL));
}

SELF_TEST(new_memory_is_not_zero) {
  unsigned host[100], *memory = device_new<unsigned>(100);
  to_host(host, memory, 100);
  for (unsigned value : host) ck_assert_uint_eq(value, 0xffffffffu);
}

SELF_TEST(copies_are_checked) {
  char host[64] = {0}, *memory = device_new<char>(64);
  ck_assert_int_eq(cudaMemcpy(memory, host, 65, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  ck_assert_int_eq(cudaMemcpy(host, memory, 64, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  ck_assert_int_eq(cudaMemset(memory + 60, 0, 5), cudaErrorInvalidValue);
  ck_assert_int_eq(cudaMemset(host, 0, 5), cudaErrorInvalidValue);
  ck_assert_int_eq(cudaMemcpyPeerAsync(memory, 1, memory, 0, 4, NULL), cudaErrorInvalidValue);
  CUDA_OK(cudaMemset(memory, 7, 64));
  CUDA_OK(cudaMemcpy(host, memory, 64, cudaMemcpyDefault));
  ck_assert_int_eq(host[63], 7);
}

SELF_TEST(copies_between_devices) {
  int host[12], got[12] = {0};
  for (int i = 0; i < 12; i++) host[i] = i;
  int *here = device_copy(host, 12);
  CUDA_OK(cudaSetDevice(1));
  int *there = device_new<int>(12);
  CUDA_OK(cudaMemcpyPeerAsync(there, 1, here, 0, sizeof(host), NULL));
  to_host(got, there, 12);
  for (int i = 0; i < 12; i++) ck_assert_int_eq(got[i], i);
}

/* Pageable source: the bytes of the time of the call; pinned: those of the time of the copy. */
SELF_TEST(pinned_memory_is_asynchronous) {
  gate g;
  cudaStream_t stream = new_stream();
  int pageable = 1, *pinned = new_pinned(), *memory = device_new<int>(2), host[2];
  *pinned = 1;
  CUDA_OK(cudaLaunchHostFunc(stream, wait_at, &g));
  CUDA_OK(cudaMemcpyAsync(memory, &pageable, sizeof(int), cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaMemcpyAsync(memory + 1, pinned, sizeof(int), cudaMemcpyHostToDevice, stream));
  pageable = *pinned = 2;
  g.open = true;
  CUDA_OK(cudaMemcpyAsync(host, memory, sizeof(host), cudaMemcpyDeviceToHost, stream)); /* waits */
  ck_assert_int_eq(host[0], 1);
  ck_assert_int_eq(host[1], 2);
}

/* ---- streams and events ---- */

SELF_TEST(streams_run_at_the_same_time) {
  gate g;
  cudaStream_t waits = new_stream(), goes = new_stream();
  CUDA_OK(cudaLaunchHostFunc(waits, wait_at, &g));
  CUDA_OK(cudaLaunchHostFunc(
      goes, [](void *open) { *static_cast<std::atomic<bool> *>(open) = true; }, &g.open));
  CUDA_OK(cudaStreamSynchronize(waits)); /* opened by the other stream */
  CUDA_OK(cudaStreamQuery(waits));
}

static void without_jitter() { /* with it, nothing waits to be asked for */
  struct cuemu_settings settings;
  cuemu_get_settings(&settings);
  settings.jitter_us = 0;
  cuemu_set_settings(&settings);
}

__global__ void count(int *ran) { atomicAdd(ran, 1); }

/* A stream begins by itself or as late as a wait for it, so that code that forgets to wait meets
 * both. */
SELF_TEST(streams_begin_early_or_late) {
  enum { TIMES = 100, LAUNCHES = 16 };
  without_jitter();
  int *ran = new_pinned(), early = 0;
  *ran = 0;
  cudaStream_t stream = new_stream();
  for (int i = 1; i <= TIMES; i++) {
    for (int j = 0; j < LAUNCHES; j++) EK_LAUNCH(count, 1, 1, 0, stream, ran);
    usleep(500); /* time enough, but no thread waits */
    early += __atomic_load_n(ran, __ATOMIC_ACQUIRE) > (i - 1) * LAUNCHES;
    CUDA_OK(cudaStreamSynchronize(stream));
    ck_assert_int_eq(*ran, i * LAUNCHES);
  }
  ck_assert_int_gt(early, 0);
  ck_assert_int_lt(early, TIMES / 2); /* a quarter, but a machine may be busy */
}

/* Whatever waits for a stream, or asks, makes it run. */
SELF_LOOP(late_streams_run_when_asked, 5) {
  without_jitter();
  int *pinned = new_pinned(), *memory = device_new<int>(1);
  CUDA_OK(cudaMemset(memory, 1, sizeof(int)));
  cudaStream_t stream = new_stream(), other = new_stream();
  cudaEvent_t event = new_event();
  for (int i = 0; i < 64; i++) {
    *pinned = 0;
    CUDA_OK(cudaMemcpyAsync(pinned, memory, sizeof(int), cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaEventRecord(event, stream));
    switch (_i) {
    case 0: CUDA_OK(cudaStreamSynchronize(stream)); break;
    case 1: CUDA_OK(cudaDeviceSynchronize()); break;
    case 2:
      while (cudaStreamQuery(stream) == cudaErrorNotReady) usleep(50);
      break;
    case 3:
      while (cudaEventQuery(event) == cudaErrorNotReady) usleep(50);
      break;
    default: /* another stream that waits for it, and for which a thread waits */
      CUDA_OK(cudaStreamWaitEvent(other, event, 0));
      CUDA_OK(cudaStreamSynchronize(other));
    }
    (void)cudaGetLastError(); /* of a query */
    ck_assert_int_eq(*pinned, 0x01010101);
  }
}

SELF_TEST(events_order_streams_of_devices) {
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
  int *pinned = new_pinned();
  CUDA_OK(cudaMemcpyAsync(pinned, memory, sizeof(int), cudaMemcpyDeviceToHost, second));
  usleep(20000);
  ck_assert_int_eq(cudaStreamQuery(second), cudaErrorNotReady);
  g.open = true;
  CUDA_OK(cudaStreamSynchronize(second));
  ck_assert_int_eq(*pinned, 0x01010101);
}

SELF_TEST(wait_before_record_does_nothing) {
  gate g;
  cudaStream_t late = new_stream(), early = new_stream();
  cudaEvent_t event = new_event();
  CUDA_OK(cudaStreamWaitEvent(early, event, 0));
  CUDA_OK(cudaLaunchHostFunc(late, wait_at, &g));
  CUDA_OK(cudaEventRecord(event, late));
  CUDA_OK(cudaStreamSynchronize(early)); /* would wait for ever */
  g.open = true;
  CUDA_OK(cudaStreamSynchronize(late));
}

SELF_TEST(events_keep_time) {
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
  CUDA_OK(cudaStreamSynchronize(stream));
  CUDA_OK(cudaEventElapsedTime(&ms, start, end));
  ck_assert_float_ge(ms, 19.0f);
  ck_assert_int_eq(cudaEventElapsedTime(&ms, timeless, end), cudaErrorInvalidResourceHandle);
}

/* A stream that is destroyed while busy ends what it has; the call does not wait for it. */
SELF_TEST(busy_streams_are_destroyed_at_once) {
  static gate g;
  static std::atomic<int> ran{0};
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaLaunchHostFunc(stream, wait_at, &g));
  CUDA_OK(cudaLaunchHostFunc(
      stream, [](void *) { ran = 1; }, NULL));
  CUDA_OK(cudaStreamDestroy(stream));
  check_no_leaks();
  ck_assert_int_eq(ran, 0);
  g.open = true;
  while (!ran) usleep(100);
}

static void *use_a_device(void *argument) {
  int device = (int)(intptr_t)argument;
  CUDA_OK(cudaSetDevice(device));
  cudaStream_t stream = new_stream();
  for (int i = 0; i < 50; i++) {
    int *memory, host[100];
    CUDA_OK(cudaMalloc(&memory, sizeof(host)));
    CUDA_OK(cudaMemsetAsync(memory, device + 1, sizeof(host), stream));
    CUDA_OK(cudaMemcpyAsync(host, memory, sizeof(host), cudaMemcpyDeviceToHost, stream));
    for (int value : host) ck_assert_int_eq(value, (device + 1) * 0x01010101);
    CUDA_OK(cudaFree(memory));
  }
  return NULL;
}

SELF_TEST(threads_have_their_own_device) {
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    pthread_create(&threads[i], NULL, use_a_device, (void *)(intptr_t)i);
  }
  for (pthread_t thread : threads) pthread_join(thread, NULL);
}
