/*
 * cuda_runtime.h - the host interface and, for C++, the device language and kernel launches.
 */
#ifndef CUEMU_CUDA_RUNTIME_H
#define CUEMU_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus
#include "cuemu_device.h"
#include "cuemu_portable.h"
#endif

#endif
