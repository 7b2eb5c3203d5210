/*
 * cuda_errors.c - errors of CUDA and cuBLAS in words, with device and call.
 *
 * EK_ERR_OUT_OF_MEMORY for an error of memory, EK_ERR_INTERNAL for a wrong call of ours, and
 * otherwise EK_ERR_UNAVAILABLE: the device cannot go on.
 */
#include <stdio.h>

#include "backend/cuda/cuda_internal.h"

const struct ek__module_host *ek__cuda_host;

static ek_status kind_of(cudaError_t error) {
  switch (error) {
  case cudaErrorMemoryAllocation: return EK_ERR_OUT_OF_MEMORY;
  case cudaErrorInvalidValue:
  case cudaErrorInvalidConfiguration:
  case cudaErrorInvalidResourceHandle: return EK_ERR_INTERNAL;
  default: return EK_ERR_UNAVAILABLE;
  }
}

/* driver_types.h, "the process must be terminated and relaunched". A driver may report an error
 * that is younger than the toolkit, so those that not every supported toolkit names are numbers. */
bool ek__cuda_is_final(cudaError_t error) {
  enum { CONTAINED = 226, TENSOR_MEMORY_LEAK = 721, MPS_CLIENT_TERMINATED = 810 };
  static const int finals[] = {cudaErrorECCUncorrectable,
                               CONTAINED, /* a memory fault that a data-centre GPU has contained */
                               cudaErrorIllegalAddress,
                               cudaErrorLaunchTimeout,
                               cudaErrorAssert,
                               cudaErrorHardwareStackError,
                               cudaErrorIllegalInstruction,
                               cudaErrorMisalignedAddress,
                               cudaErrorInvalidAddressSpace,
                               cudaErrorInvalidPc,
                               cudaErrorLaunchFailure,
                               TENSOR_MEMORY_LEAK,
                               MPS_CLIENT_TERMINATED,
                               cudaErrorExternalDevice};
  for (size_t i = 0; i < sizeof finals / sizeof finals[0]; i++) {
    if ((int)error == finals[i]) return true;
  }
  return false;
}

static ek_status report(const char *name, cudaError_t error, const char *call) {
  (void)cudaGetLastError(); /* CUDA keeps it otherwise for a later call to find */
  return ek__cuda_host->error_set(
      kind_of(error), "%s: %s: %s (%s)%s", name, call, cudaGetErrorString(error),
      cudaGetErrorName(error),
      ek__cuda_is_final(error)
          ? "; CUDA cannot be used in this process any more: restart the program"
          : "");
}

ek_status ek__cuda_check(const struct ek__cuda_device *device, cudaError_t error,
                         const char *call) {
  return error == cudaSuccess ? EK_OK : report(device->name, error, call);
}

ek_status ek__cuda_check_gpu(int physical, cudaError_t error, const char *call) {
  if (error == cudaSuccess) return EK_OK;
  char name[32];
  (void)snprintf(name, sizeof name, "cuda:%d", physical);
  return report(name, error, call);
}

ek_status ek__cuda_given_up(void) {
  return ek__cuda_host->error_set(EK_ERR_ABORTED, "abandoned because another device failed");
}

void *ek__cuda_new(size_t size, const char *what) {
  void *memory = ek__cuda_host->calloc(1, size);
  if (memory == NULL) {
    (void)ek__cuda_host->error_set(EK_ERR_OUT_OF_MEMORY, "cuda: no host memory for %s", what);
  }
  return memory;
}

ek_status ek__cuda_check_blas(const struct ek__cuda_device *device, cublasStatus_t status,
                              const char *call) {
  if (status == CUBLAS_STATUS_SUCCESS) return EK_OK;
  const ek_status kind = status == CUBLAS_STATUS_ALLOC_FAILED    ? EK_ERR_OUT_OF_MEMORY
                         : status == CUBLAS_STATUS_INVALID_VALUE ? EK_ERR_INTERNAL
                                                                 : EK_ERR_UNAVAILABLE;
  return ek__cuda_host->error_set(kind, "%s: %s: cuBLAS: %s", device->name, call,
                                  cublasLtGetStatusString(status));
}
