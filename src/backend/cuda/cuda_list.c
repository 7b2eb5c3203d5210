/*
 * cuda_list.c - the GPUs of the machine, or why none can be used.
 */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"

enum { LEAST_MAJOR = 8 }; /* the oldest architecture that cmake/EvenkeelCuda.cmake compiles for */

/* What cudaGetDeviceCount() said, in words of what a person can do about it. */
static ek_status no_gpu(cudaError_t error) {
  int driver = 0, runtime = 0;
  (void)cudaGetLastError();
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = CUDART_VERSION;
  (void)cudaGetLastError();
  if (driver == 0) {
    return ek__cuda_host->error_set(EK_ERR_UNAVAILABLE, "cuda: no NVIDIA driver is installed (%s)",
                                    cudaGetErrorName(error));
  }
  if (error == cudaErrorInsufficientDriver) {
    return ek__cuda_host->error_set(
        EK_ERR_UNAVAILABLE,
        "cuda: the NVIDIA driver is too old: it supports CUDA %d.%d, this build needs %d.%d",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  }
  if (error == cudaErrorNoDevice || error == cudaSuccess) {
    return ek__cuda_host->error_set(EK_ERR_UNAVAILABLE,
                                    "cuda: the NVIDIA driver is installed, but no GPU is visible");
  }
  return ek__cuda_host->error_set(EK_ERR_UNAVAILABLE, "cuda: no GPU can be used: %s (%s)",
                                  cudaGetErrorString(error), cudaGetErrorName(error));
}

ek_status ek__cuda_count(int *count) {
  int found = 0; /* some failures leave it as it was */
  const cudaError_t error = cudaGetDeviceCount(&found);
  if (error != cudaSuccess || found <= 0) return no_gpu(error);
  *count = found;
  return EK_OK;
}

static void describe_one(ek_device_description *it, int number) {
  struct cudaDeviceProp properties;
  *it = (ek_device_description){.available = true};
  (void)snprintf(it->name, sizeof it->name, "cuda:%d", number);
  const cudaError_t error = cudaGetDeviceProperties(&properties, number);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    it->available = false;
    (void)snprintf(it->text, sizeof it->text, "%s", cudaGetErrorString(error));
    return;
  }
  it->memory_bytes = properties.totalGlobalMem;
  (void)snprintf(it->text, sizeof it->text,
                 "%.120s, %d multiprocessors, compute capability %d.%d, communicators: peer%s",
                 properties.name, properties.multiProcessorCount, properties.major,
                 properties.minor, ek__cuda_nccl_missing() != NULL ? "" : ", nccl");
  if (properties.major >= LEAST_MAJOR) return;
  it->available = false;
  (void)snprintf(it->text, sizeof it->text,
                 "%.120s has compute capability %d.%d; the kernels need %d.0 or newer",
                 properties.name, properties.major, properties.minor, LEAST_MAJOR);
}

ek_status ek__cuda_describe(ek_device_description *descriptions, size_t capacity, size_t *count) {
  int found = 0;
  if (ek__cuda_count(&found) != EK_OK) {
    *count = 1;
    if (capacity == 0) return EK_OK;
    descriptions[0] = (ek_device_description){.name = "cuda"};
    const char *why = ek__cuda_host->error_message();
    (void)snprintf(descriptions[0].text, sizeof descriptions[0].text, "%s",
                   strncmp(why, "cuda: ", 6) == 0 ? why + 6 : why);
    return EK_OK;
  }
  for (int i = 0; i < found && (size_t)i < capacity; i++) describe_one(&descriptions[i], i);
  *count = (size_t)found;
  return EK_OK;
}

ek_status ek__cuda_resolve(struct ek__device_spec *spec) {
  int found = 0;
  EK_TRY(ek__cuda_count(&found));
  if (spec->count == 0) {
    for (int i = 0; i < found && (size_t)i < spec->room; i++) {
      spec->places[spec->count++] = (struct ek__device_place){.physical = i, .parts = 1};
    }
  }
  for (size_t i = 0; i < spec->count; i++) {
    if (spec->places[i].physical < found) continue;
    return ek__cuda_host->error_set(EK_ERR_UNAVAILABLE,
                                    "cuda: no GPU number %d: this machine has %d GPUs, numbered "
                                    "from 0",
                                    spec->places[i].physical, found);
  }
  return EK_OK;
}
