/*
 * device.c - settings, the devices and what can be asked about them.
 *
 * A device is a counter of memory, a list of streams and perhaps a sticky error. The settings come
 * from the environment (../cuemu.h) once, before the first use of anything.
 */
#include "internal.h"
#include "nccl.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cuemu_settings cuemu_settings;
struct cuemu_device cuemu_devices[CUEMU_MAX_DEVICES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic cudaError_t sticky[CUEMU_MAX_DEVICES];
static __thread int current_device;

void cuemu_lock(void) { pthread_mutex_lock(&lock); }
void cuemu_unlock(void) { pthread_mutex_unlock(&lock); }

void *cuemu_new(size_t bytes) {
  void *memory = calloc(1, bytes ? bytes : 1);
  if (!memory) {
    fprintf(stderr, "cuemu: out of host memory (%zu bytes)\n", bytes);
    abort();
  }
  return memory;
}

void cuemu_count(unsigned long *counter, int change) {
  cuemu_lock();
  *counter += (unsigned long)(long)change;
  cuemu_unlock();
}

/* ---- settings ---- */

static unsigned long number(const char *name, unsigned long otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoul(text, NULL, 0) : otherwise;
}

static size_t bytes(const char *name, size_t otherwise) {
  const char *text = getenv(name);
  if (!text || !*text) return otherwise;
  char *unit;
  size_t value = strtoul(text, &unit, 0);
  switch (*unit) {
  case 'K': return value << 10;
  case 'M': return value << 20;
  case 'G': return value << 30;
  default: return value;
  }
}

static void read_environment(void) {
  unsigned long devices = number("CUEMU_DEVICES", 4);
  cuemu_settings = (struct cuemu_settings){
      .devices = devices > CUEMU_MAX_DEVICES ? CUEMU_MAX_DEVICES : (int)devices,
      .memory = bytes("CUEMU_MEMORY", (size_t)1 << 30),
      .context_bytes = bytes("CUEMU_CONTEXT", (size_t)2 << 20),
      .code_bytes = bytes("CUEMU_CODE", 0),
      .nccl_bytes = bytes("CUEMU_NCCL", 0),
      .refused_bytes = bytes("CUEMU_REFUSED", 0),
      .driver = (int)number("CUEMU_DRIVER", 13000),
      .arch = (int)number("CUEMU_ARCH", 90),
      .peer = number("CUEMU_PEER", 1) != 0,
      .broken_peer = number("CUEMU_BROKEN_PEER", 0) != 0,
      .order = (int)number("CUEMU_ORDER", 0),
      .fiber_per_thread = number("CUEMU_FIBER_PER_THREAD", 0) != 0,
      .block_threads = (int)number("CUEMU_BLOCK_THREADS", 1),
      .jitter_us = (unsigned)number("CUEMU_JITTER_US", 0),
      .nccl_version = (int)number("CUEMU_NCCL_VERSION", NCCL_VERSION_CODE),
      .nccl_polls = (unsigned)number("CUEMU_NCCL_POLLS", 1),
      .nccl_call_us = (unsigned)number("CUEMU_NCCL_CALL_US", 0),
      .load_drains = number("CUEMU_LOAD_DRAINS", 0) != 0,
      .free_blocks = number("CUEMU_FREE_BLOCKS", 0) != 0,
      .warm = number("CUEMU_WARM", 1) != 0,
      .algorithms = (int)number("CUEMU_ALGORITHMS", 1),
      .late_bytes = bytes("CUEMU_LATE", 0),
  };
  cuemu_faults_from_environment();
}

void cuemu_initialise(void) { pthread_once(&once, read_environment); }

void cuemu_get_settings(struct cuemu_settings *settings) {
  cuemu_initialise();
  *settings = cuemu_settings;
}

void cuemu_set_settings(const struct cuemu_settings *settings) {
  cuemu_initialise();
  cuemu_settings = *settings;
}

void cuemu_set_order(int order) {
  cuemu_initialise();
  __atomic_store_n(&cuemu_settings.order, order, __ATOMIC_RELAXED);
}

/* ---- errors of devices ---- */

static cudaError_t driver_error(void) {
  cuemu_initialise();
  if (cuemu_settings.driver < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver;
  return cuemu_settings.devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cuemu_enter(void) {
  cudaError_t error = driver_error();
  return error != cudaSuccess ? error : cuemu_sticky(current_device);
}

cudaError_t cuemu_sticky(int device) { return atomic_load(&sticky[device]); }

void cuemu_set_sticky(int device, cudaError_t error) {
  cudaError_t none = cudaSuccess; /* the first one stays */
  (void)atomic_compare_exchange_strong(&sticky[device], &none, error);
}

void cuemu_clear_sticky(void) {
  for (int d = 0; d < CUEMU_MAX_DEVICES; d++) atomic_store(&sticky[d], cudaSuccess);
}

/* ---- questions ---- */

int cuemu_current_device(void) { return current_device; }

cudaError_t cudaGetDeviceCount(int *count) { /* untouched when there is no driver, as in CUDA */
  cudaError_t error = driver_error();
  if (error == cudaErrorNoDevice) *count = 0;
  if (error != cudaSuccess) return cuemu_result(error);
  *count = cuemu_settings.devices;
  return cudaSuccess;
}

static cudaError_t check_device(int device) {
  cudaError_t error = driver_error();
  if (error != cudaSuccess) return error;
  return device < 0 || device >= cuemu_settings.devices ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  CUEMU_TRY(check_device(device));
  current_device = device;
  return cuemu_result(cuemu_sticky(device));
}

cudaError_t cudaGetDevice(int *device) {
  cudaError_t error = driver_error();
  if (error == cudaSuccess) *device = current_device;
  return cuemu_result(error);
}

cudaError_t cudaDriverGetVersion(int *version) {
  cuemu_initialise();
  *version = cuemu_settings.driver;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  CUEMU_TRY(cuemu_enter());
  size_t total = cuemu_settings.memory;
  cuemu_lock();
  const struct cuemu_device *d = &cuemu_devices[current_device];
  size_t used = d->used + d->hidden + cuemu_settings.context_bytes;
  cuemu_unlock();
  *total_bytes = total;
  *free_bytes = used < total ? total - used : 0;
  return cudaSuccess;
}

/* CUDA C++ Programming Guide, table of technical specifications by compute capability. */
size_t cuemu_shared_limit(void) {
  switch (cuemu_settings.arch) {
  case 75: return (size_t)64 << 10;
  case 80:
  case 87: return (size_t)163 << 10;
  case 86:
  case 89:
  case 120: return (size_t)99 << 10;
  default: return (size_t)227 << 10;
  }
}

enum { PROCESSORS = 2 }; /* few: kernels that fill the device make few blocks */

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
  CUEMU_TRY(check_device(device));
  *p = (cudaDeviceProp){.totalGlobalMem = cuemu_settings.memory,
                        .major = cuemu_settings.arch / 10,
                        .minor = cuemu_settings.arch % 10,
                        .multiProcessorCount = PROCESSORS};
  (void)snprintf(p->name, sizeof(p->name), "cuemu device %d", device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  cuemu_add(CUEMU_ATTRIBUTE_CALLS);
  CUEMU_TRY(check_device(device));
  switch (attribute) {
  case cudaDevAttrMultiProcessorCount: *value = PROCESSORS; return cudaSuccess;
  case cudaDevAttrComputeCapabilityMajor: *value = cuemu_settings.arch / 10; return cudaSuccess;
  case cudaDevAttrComputeCapabilityMinor: *value = cuemu_settings.arch % 10; return cudaSuccess;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    *value = (int)cuemu_shared_limit();
    return cudaSuccess;
  }
  return cuemu_result(cudaErrorInvalidValue);
}

/* ---- peers ---- */

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  cudaError_t error = check_device(device);
  if (error == cudaSuccess) error = check_device(peer);
  if (error == cudaSuccess) *can = device != peer && cuemu_settings.peer;
  return cuemu_result(error);
}

static cudaError_t change_peer(int peer, bool enable) {
  cudaError_t error = cuemu_enter();
  if (error == cudaSuccess) error = check_device(peer);
  if (error != cudaSuccess) return error;
  if (peer == current_device) return cudaErrorInvalidDevice;
  if (!cuemu_settings.peer) return cudaErrorPeerAccessUnsupported;
  unsigned bit = 1u << peer;
  unsigned *peers = &cuemu_devices[current_device].peers;
  cuemu_lock();
  bool enabled = *peers & bit;
  *peers = enable ? *peers | bit : *peers & ~bit;
  cuemu_unlock();
  if (enable) return enabled ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess;
  return enabled ? cudaSuccess : cudaErrorPeerAccessNotEnabled;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  return cuemu_result(flags ? cudaErrorInvalidValue : change_peer(peer, true));
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) { return cuemu_result(change_peer(peer, false)); }

/* ---- the whole device ---- */

cudaError_t cudaDeviceSynchronize(void) {
  CUEMU_TRY(cuemu_enter());
  cuemu_drain_device(current_device);
  return cuemu_result(cuemu_sticky(current_device));
}

cudaError_t cudaDeviceReset(void) { /* streams and events of the caller stay his to destroy */
  CUEMU_TRY(driver_error());
  cuemu_drain_device(current_device);
  cuemu_close_default_stream(current_device);
  cuemu_free_device_memory(current_device);
  cuemu_unload(current_device);
  atomic_store(&sticky[current_device], cudaSuccess);
  (void)cudaGetLastError();
  return cudaSuccess;
}
