/*
 * cuemu_errors.h - the errors of CUDA and statuses of cuBLAS that cuemu knows, once: name, number,
 * text.
 *
 * The enumerations and the functions for names and texts come from these lists; the test of
 * constants compares them with a real toolkit.
 */
#ifndef CUEMU_ERRORS_H
#define CUEMU_ERRORS_H

#define CUEMU_CUDA_ERRORS(X)                                                                       \
  X(cudaSuccess, 0, "no error")                                                                    \
  X(cudaErrorInvalidValue, 1, "invalid argument")                                                  \
  X(cudaErrorMemoryAllocation, 2, "out of memory")                                                 \
  X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                            \
  X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                      \
  X(cudaErrorInsufficientDriver, 35,                                                               \
    "CUDA driver version is insufficient for CUDA runtime version")                                \
  X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                                 \
  X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                  \
  X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                         \
  X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error encountered")                         \
  X(cudaErrorPeerAccessUnsupported, 217, "peer access is not supported between these two devices") \
  X(cudaErrorContained, 226, "Invalid access of peer GPU memory over nvlink or a hardware error")  \
  X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                \
  X(cudaErrorNotReady, 600, "device not ready")                                                    \
  X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                      \
  X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")                 \
  X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                        \
  X(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")                      \
  X(cudaErrorPeerAccessNotEnabled, 705, "peer access has not been enabled")                        \
  X(cudaErrorAssert, 710, "device-side assert triggered")                                          \
  X(cudaErrorHardwareStackError, 714, "hardware stack error")                                      \
  X(cudaErrorIllegalInstruction, 715, "an illegal instruction was encountered")                    \
  X(cudaErrorMisalignedAddress, 716, "misaligned address")                                         \
  X(cudaErrorInvalidAddressSpace, 717, "operation not supported on global/shared address space")   \
  X(cudaErrorInvalidPc, 718, "invalid program counter")                                            \
  X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                     \
  X(cudaErrorTooManyPeers, 711, "peer mapping resources exhausted")                                \
  X(cudaErrorTensorMemoryLeak, 721, "tensor memory not completely freed")                          \
  X(cudaErrorNotSupported, 801, "operation not supported")                                         \
  X(cudaErrorMpsClientTerminated, 810, "MPS client terminated")                                    \
  X(cudaErrorExternalDevice, 911, "async operations failure on the external device")

#define CUEMU_CUBLAS_STATUSES(X)                                                                   \
  X(CUBLAS_STATUS_SUCCESS, 0)                                                                      \
  X(CUBLAS_STATUS_NOT_INITIALIZED, 1)                                                              \
  X(CUBLAS_STATUS_ALLOC_FAILED, 3)                                                                 \
  X(CUBLAS_STATUS_INVALID_VALUE, 7)                                                                \
  X(CUBLAS_STATUS_ARCH_MISMATCH, 8)                                                                \
  X(CUBLAS_STATUS_MAPPING_ERROR, 11)                                                               \
  X(CUBLAS_STATUS_EXECUTION_FAILED, 13)                                                            \
  X(CUBLAS_STATUS_INTERNAL_ERROR, 14)                                                              \
  X(CUBLAS_STATUS_NOT_SUPPORTED, 15)                                                               \
  X(CUBLAS_STATUS_LICENSE_ERROR, 16)

#endif
