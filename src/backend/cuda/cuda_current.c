/*
 * cuda_current.c - restores the calling thread's current GPU when a call of ours returns.
 *
 * CUDA has one current GPU for each thread, and our calls need it to be the device's. A worker
 * thread always keeps the GPU of its device, also while it runs code of the program. On any other
 * thread the earlier GPU is restored.
 *
 * A GPU on which CUDA has no context yet is not made current again: since CUDA 12 that would create
 * one, a few hundred MiB of a GPU that the program may not use at all. A thread that has never
 * chosen a GPU counts as on number 0.
 */
#include <dlfcn.h>
#include <string.h>
#include <sys/prctl.h>

#include "backend/cuda/cuda_internal.h"

/* Of a worker its own; -1 on other threads. And what ek__cuda_enter() has made current last. */
static _Thread_local int home = -1, entered = -1;

/* ---- is there a context: a question to the driver alone ---- */

typedef int get_device(int *device, int number);
typedef int get_state(int device, unsigned *flags, int *active);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static get_device *driver_device;
static get_state *driver_state;

static void find_driver(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* the runtime holds it anyway */
  if (driver == NULL) return;
  void *device = dlsym(driver, "cuDeviceGet"), *state = dlsym(driver, "cuDevicePrimaryCtxGetState");
  memcpy(&driver_device, &device, sizeof device); /* as POSIX has it */
  memcpy(&driver_state, &state, sizeof state);
}

static bool has_context(int physical) {
  int device = 0, active = 1;
  unsigned flags = 0;
  pthread_once(&once, find_driver);
  if (driver_device == NULL || driver_state == NULL) return true;
  if (driver_device(&device, physical) != 0) return true;
  return driver_state(device, &flags, &active) != 0 || active != 0;
}

/* ---- calls ---- */

ek_status ek__cuda_enter(const struct ek__cuda_device *device) {
  entered = device->gpu->physical;
  return EK__CUDA(device, cudaSetDevice, device->gpu->physical);
}

void ek__cuda_worker_begins(ek_device *device) {
  home = ek__cuda_device_of(device)->gpu->physical;
  entered = home;
  /* Else each of the short sleeps of a wait takes twice as long. */
  (void)prctl(PR_SET_TIMERSLACK, 1UL);
  if (cudaSetDevice(home) != cudaSuccess) (void)cudaGetLastError(); /* the first call says it */
}

int ek__cuda_current(void) {
  int current = -1;
  if (home >= 0) return home;
  if (cudaGetDevice(&current) == cudaSuccess) return current;
  (void)cudaGetLastError();
  return -1;
}

ek_status ek__cuda_leave(int before, ek_status status) {
  const bool still = home >= 0 && entered == home;
  if (before < 0 || still || !has_context(before)) return status;
  entered = before;
  if (cudaSetDevice(before) != cudaSuccess) (void)cudaGetLastError();
  return status;
}
