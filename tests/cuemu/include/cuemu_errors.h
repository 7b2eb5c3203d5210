/*
 * cuemu_errors.h - the CUDA errors that cuemu knows, once: name, number, text.
 *
 * The enumeration and the tables behind cudaGetErrorName() and cudaGetErrorString() come from this
 * list; the test of constants compares it with a real toolkit.
 */
#ifndef CUEMU_ERRORS_H
#define CUEMU_ERRORS_H

#define CUEMU_CUDA_ERRORS(X)                                                                       \
  X(cudaSuccess, 0, "no error")                                                                    \
  X(cudaErrorInvalidValue, 1, "invalid argument")                                                  \
  X(cudaErrorMemoryAllocation, 2, "out of memory")                                                 \
  X(cudaErrorInitializationError, 3, "initialization error")                                       \
  X(cudaErrorCudartUnloading, 4, "driver shutting down")                                           \
  X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                            \
  X(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")                                   \
  X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                      \
  X(cudaErrorStubLibrary, 34, "CUDA driver is a stub library")                                     \
  X(cudaErrorInsufficientDriver, 35,                                                               \
    "CUDA driver version is insufficient for CUDA runtime version")                                \
  X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                                 \
  X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                  \
  X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                         \
  X(cudaErrorDeviceUninitialized, 201, "invalid device context")                                   \
  X(cudaErrorNoKernelImageForDevice, 209,                                                          \
    "no kernel image is available for execution on the device")                                    \
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
  X(cudaErrorNotPermitted, 800, "operation not permitted")                                         \
  X(cudaErrorNotSupported, 801, "operation not supported")                                         \
  X(cudaErrorSystemDriverMismatch, 803,                                                            \
    "system has unsupported display driver / cuda driver combination")                             \
  X(cudaErrorMpsClientTerminated, 810, "MPS client terminated")                                    \
  X(cudaErrorExternalDevice, 911, "async operations failure on the external device")               \
  X(cudaErrorUnknown, 999, "unknown error")

#endif
