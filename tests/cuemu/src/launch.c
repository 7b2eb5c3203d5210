/*
 * launch.c - checks and queues kernels.
 *
 * The limits are those of the architecture that the devices have (cuemu_settings.arch). Dynamic
 * shared memory above 48 KiB has to be asked for with cudaFuncSetAttribute(), for each kernel on
 * each device, as in CUDA. A block has no more threads than the kernel's __launch_bounds__ allow;
 * which error a GPU gives then CUDA does not say: here it is cudaErrorInvalidConfiguration.
 */
#include "internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define SHARED_DEFAULT ((size_t)48 << 10)

struct kernel {
  const char *name;
  void (*run)(void *);
  void (*release)(void *);
  void *closure;
  dim3 grid, block;
  size_t shared_bytes;
  bool only_loaded;
};

struct shared_limit { /* set by cudaFuncSetAttribute(); never freed, there are few */
  struct shared_limit *next;
  const void *kernel;
  int device;
  size_t bytes;
};

static struct shared_limit *limits;

/* Called with the lock held; NULL if nothing was set. */
static struct shared_limit *find_limit(const void *kernel, int device) {
  struct shared_limit *l = limits;
  while (l && (l->kernel != kernel || l->device != device)) l = l->next;
  return l;
}

static size_t shared_limit(const void *kernel, int device) {
  cuemu_lock();
  const struct shared_limit *limit = find_limit(kernel, device);
  const size_t bytes = limit && limit->bytes > SHARED_DEFAULT ? limit->bytes : SHARED_DEFAULT;
  cuemu_unlock();
  return bytes;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
  cuemu_add(CUEMU_ATTRIBUTE_CALLS);
  CUEMU_TRY(cuemu_enter());
  if (!kernel) return cuemu_result(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      (size_t)value > cuemu_shared_limit()) {
    return cuemu_result(cudaErrorInvalidValue);
  }
  const int device = cuemu_current_device();
  cuemu_lock();
  struct shared_limit *limit = find_limit(kernel, device);
  if (!limit) {
    limit = cuemu_new(sizeof(*limit));
    *limit = (struct shared_limit){limits, kernel, device, 0};
    limits = limit;
  }
  limit->bytes = (size_t)value;
  cuemu_unlock();
  return cudaSuccess;
}

static cudaError_t check(const char *name, const void *kernel, dim3 grid, dim3 block,
                         size_t shared_bytes, cudaStream_t stream) {
  cudaError_t error = cuemu_enter();
  if (error != cudaSuccess) return error;
  int device = cuemu_current_device();
  error = (cudaError_t)cuemu_call(device, CUEMU_LAUNCH);
  if (cuemu_is_sticky_error(error)) cuemu_set_sticky(device, error);
  if (error != cudaSuccess) return error;
  if (cuemu_stream_device(stream) != device) return cudaErrorInvalidResourceHandle;
  uint64_t threads = (uint64_t)block.x * block.y * block.z;
  if (!grid.x || !grid.y || !grid.z || !threads || threads > 1024 || block.z > 64 ||
      grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  if (shared_bytes > shared_limit(kernel, device)) return cudaErrorInvalidValue;
  return cuemu_load(device, kernel, name) ? cudaSuccess : cudaErrorMemoryAllocation;
}

/* A GPU fails when the kernel runs. Found out sooner, it is the caller who is told. */
static cudaError_t check_addresses(const char *name, const void *arguments, size_t bytes) {
  const int device = cuemu_current_device();
  const void *stranger = cuemu_find_stranger(device, arguments, bytes);
  if (!stranger) return cudaSuccess;
  fprintf(stderr, "cuemu: kernel %s on device %d gets %p, of a device without peer access\n", name,
          device, stranger);
  cuemu_set_sticky(device, cudaErrorIllegalAddress);
  return cudaErrorIllegalAddress;
}

/* ---- CUEMU_LAUNCHES ---- */

static FILE *launches;
static pthread_once_t launches_once = PTHREAD_ONCE_INIT;

static void open_launches(void) {
  const char *path = getenv("CUEMU_LAUNCHES");
  if (path && *path) launches = fopen(path, "w");
  if (launches) setlinebuf(launches);
}

void cuemu_note(const void *kernel, const char *other) {
  Dl_info where;
  pthread_once(&launches_once, open_launches);
  if (!launches) return;
  if (!kernel) {
    fprintf(launches, "%s\n", other);
  } else if (dladdr(kernel, &where)) {
    fprintf(launches, "kernel %s %zx\n", where.dli_fname,
            (size_t)((const char *)kernel - (const char *)where.dli_fbase));
  }
}

static cudaError_t run_kernel(cudaStream_t stream, void *argument) {
  struct kernel *k = argument;
  int fault = cuemu_call(stream->device, CUEMU_KERNEL);
  if (fault) return (cudaError_t)fault;
  if (k->only_loaded) return cudaSuccess;
  return cuemu_run_grid(k->name, k->run, k->closure, k->grid, k->block, k->shared_bytes);
}

static void release_kernel(void *argument) {
  struct kernel *k = argument;
  k->release(k->closure);
  free(k);
}

__thread int
    *cuemu_asked_bound; /* where a kernel that is called writes its bound instead of running */

/* The most threads of a block: __launch_bounds__ of the kernel, which says so itself. */
static uint64_t bound_of(void (*run)(void *), void *closure) {
  int most = 0;
  cuemu_asked_bound = &most;
  run(closure);
  cuemu_asked_bound = NULL;
  return (uint64_t)most;
}

cudaError_t cuemu_launch(const char *name, const void *kernel, bool bounded, void (*run)(void *),
                         void (*release)(void *), void *closure, size_t closure_bytes, dim3 grid,
                         dim3 block, size_t shared_bytes, cudaStream_t stream);

cudaError_t cuemu_launch(const char *name, const void *kernel, bool bounded, void (*run)(void *),
                         void (*release)(void *), void *closure, size_t closure_bytes, dim3 grid,
                         dim3 block, size_t shared_bytes, cudaStream_t stream) {
  cudaError_t error = check(name, kernel, grid, block, shared_bytes, stream);
  if (error == cudaSuccess && bounded &&
      (uint64_t)block.x * block.y * block.z > bound_of(run, closure)) {
    error = cudaErrorInvalidConfiguration;
  }
  if (error == cudaSuccess) error = check_addresses(name, closure, closure_bytes);
  if (error != cudaSuccess) {
    release(closure);
    return cuemu_result(error);
  }
  cuemu_note(kernel, NULL);
  if (cuemu_settings.broken_peer) {
    cuemu_break_peers(cuemu_current_device(), closure, closure_bytes);
  }
  struct kernel *k = cuemu_new(sizeof(*k));
  *k = (struct kernel){name, run, release, closure, grid, block, shared_bytes, cuemu_only_loads()};
  cuemu_enqueue(stream, CUEMU_KERNEL, run_kernel, release_kernel, k);
  return cudaSuccess;
}
