/*
 * error.c - names and texts of errors, and the last error of each thread.
 *
 * As in CUDA the last error of a thread stays until it is asked for, and a sticky error of the
 * device comes back each time.
 */
#include "internal.h"

static __thread cudaError_t last_error;

cudaError_t cuemu_result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

static cudaError_t sticky_or(cudaError_t error) {
  cudaError_t sticky = cuemu_sticky(cuemu_current_device());
  return sticky != cudaSuccess ? sticky : error;
}

cudaError_t cudaGetLastError(void) {
  cudaError_t error = sticky_or(last_error);
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) { return sticky_or(last_error); }

/* The errors after which a process can do nothing more with a device. */
bool cuemu_is_sticky_error(cudaError_t error) {
  switch (error) {
  case cudaErrorECCUncorrectable:
  case cudaErrorContained:
  case cudaErrorIllegalAddress:
  case cudaErrorLaunchTimeout:
  case cudaErrorAssert:
  case cudaErrorHardwareStackError:
  case cudaErrorIllegalInstruction:
  case cudaErrorMisalignedAddress:
  case cudaErrorInvalidAddressSpace:
  case cudaErrorInvalidPc:
  case cudaErrorTensorMemoryLeak:
  case cudaErrorMpsClientTerminated:
  case cudaErrorExternalDevice:
  case cudaErrorLaunchFailure: return true;
  default: return false;
  }
}

const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define CUEMU_NAME(name, value, text)                                                              \
  case name: return #name;
    CUEMU_CUDA_ERRORS(CUEMU_NAME)
#undef CUEMU_NAME
  }
  return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define CUEMU_TEXT(name, value, text)                                                              \
  case name: return text;
    CUEMU_CUDA_ERRORS(CUEMU_TEXT)
#undef CUEMU_TEXT
  }
  return "unrecognized error code";
}
