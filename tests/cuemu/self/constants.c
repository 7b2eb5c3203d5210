/*
 * constants.c - prints every constant of CUDA, cuBLAS(Lt) and NCCL that cuemu's headers have.
 *
 * Built twice, with cuemu's headers and with a real toolkit's where there is one; the test
 * cuemu_constants compares what the two print. Only headers are needed, nothing is called.
 */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#ifdef HAVE_NCCL
#include <nccl.h>
#endif

#include "../include/cuemu_errors.h"

#define SHOW(name) printf("%s %lld\n", #name, (long long)(name))
#define SHOW_ERROR(name, value, text) SHOW(name);

static void show_runtime(void) {
  CUEMU_CUDA_ERRORS(SHOW_ERROR)
  SHOW(cudaMemcpyHostToHost), SHOW(cudaMemcpyHostToDevice), SHOW(cudaMemcpyDeviceToHost);
  SHOW(cudaMemcpyDeviceToDevice), SHOW(cudaMemcpyDefault);
  SHOW(cudaMemoryTypeUnregistered), SHOW(cudaMemoryTypeHost), SHOW(cudaMemoryTypeDevice);
  SHOW(cudaStreamDefault), SHOW(cudaStreamNonBlocking), SHOW((size_t)cudaStreamLegacy);
  SHOW(cudaEventDefault), SHOW(cudaEventBlockingSync), SHOW(cudaEventDisableTiming);
  SHOW(cudaEventRecordDefault), SHOW(cudaEventWaitDefault);
  SHOW(cudaHostAllocDefault), SHOW(cudaHostAllocPortable), SHOW(cudaHostAllocMapped);
  SHOW(cudaHostAllocWriteCombined);
  SHOW(cudaFuncAttributeMaxDynamicSharedMemorySize);
  SHOW(cudaFuncAttributePreferredSharedMemoryCarveout);
  SHOW(CUDA_R_32F), SHOW(CUDA_R_64F), SHOW(CUDA_R_16F), SHOW(CUDA_R_16BF), SHOW(CUDA_R_8I);
  SHOW(CUDA_R_8U), SHOW(CUDA_R_32I);
  SHOW(sizeof(float2)), SHOW(sizeof(float3)), SHOW(sizeof(float4)), SHOW(sizeof(double2));
  SHOW(_Alignof(float2)), SHOW(_Alignof(float3)), SHOW(_Alignof(float4)), SHOW(_Alignof(double2));
  SHOW(_Alignof(uchar4)), SHOW(_Alignof(ushort4)), SHOW(_Alignof(uint4)), SHOW(_Alignof(int2));
  SHOW(sizeof(dim3)), SHOW(sizeof(cudaUUID_t));
}

static void show_attributes(void) {
  SHOW(cudaDevAttrMaxThreadsPerBlock), SHOW(cudaDevAttrMaxSharedMemoryPerBlock);
  SHOW(cudaDevAttrWarpSize), SHOW(cudaDevAttrMultiProcessorCount), SHOW(cudaDevAttrIntegrated);
  SHOW(cudaDevAttrComputeMode), SHOW(cudaDevAttrConcurrentKernels), SHOW(cudaDevAttrPciBusId);
  SHOW(cudaDevAttrPciDeviceId), SHOW(cudaDevAttrMemoryClockRate), SHOW(cudaDevAttrL2CacheSize);
  SHOW(cudaDevAttrGlobalMemoryBusWidth), SHOW(cudaDevAttrMaxThreadsPerMultiProcessor);
  SHOW(cudaDevAttrAsyncEngineCount), SHOW(cudaDevAttrUnifiedAddressing);
  SHOW(cudaDevAttrPciDomainId), SHOW(cudaDevAttrComputeCapabilityMajor);
  SHOW(cudaDevAttrComputeCapabilityMinor), SHOW(cudaDevAttrStreamPrioritiesSupported);
  SHOW(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  SHOW(cudaDevAttrMaxSharedMemoryPerBlockOptin), SHOW(cudaDevAttrMaxBlocksPerMultiprocessor);
  SHOW(cudaDevAttrMemoryPoolsSupported);
}

static void show_cublas(void) {
  SHOW(CUBLAS_STATUS_SUCCESS), SHOW(CUBLAS_STATUS_NOT_INITIALIZED);
  SHOW(CUBLAS_STATUS_ALLOC_FAILED), SHOW(CUBLAS_STATUS_INVALID_VALUE);
  SHOW(CUBLAS_STATUS_ARCH_MISMATCH), SHOW(CUBLAS_STATUS_MAPPING_ERROR);
  SHOW(CUBLAS_STATUS_EXECUTION_FAILED), SHOW(CUBLAS_STATUS_INTERNAL_ERROR);
  SHOW(CUBLAS_STATUS_NOT_SUPPORTED), SHOW(CUBLAS_STATUS_LICENSE_ERROR);
  SHOW(CUBLAS_OP_N), SHOW(CUBLAS_OP_T), SHOW(CUBLAS_OP_C);
  SHOW(CUBLAS_POINTER_MODE_HOST), SHOW(CUBLAS_POINTER_MODE_DEVICE);
  SHOW(CUBLAS_ATOMICS_NOT_ALLOWED), SHOW(CUBLAS_ATOMICS_ALLOWED);
  SHOW(CUBLAS_DEFAULT_MATH), SHOW(CUBLAS_PEDANTIC_MATH), SHOW(CUBLAS_TF32_TENSOR_OP_MATH);
  SHOW(CUBLAS_COMPUTE_16F), SHOW(CUBLAS_COMPUTE_32F), SHOW(CUBLAS_COMPUTE_32F_PEDANTIC);
  SHOW(CUBLAS_COMPUTE_64F), SHOW(CUBLAS_COMPUTE_64F_PEDANTIC), SHOW(CUBLAS_COMPUTE_32F_FAST_16F);
  SHOW(CUBLAS_COMPUTE_32F_FAST_16BF), SHOW(CUBLAS_COMPUTE_32F_FAST_TF32);
  SHOW(CUBLAS_GEMM_DEFAULT);
}

static void show_cublas_lt(void) {
  SHOW(CUBLASLT_ORDER_COL), SHOW(CUBLASLT_ORDER_ROW);
  SHOW(CUBLASLT_MATRIX_LAYOUT_TYPE), SHOW(CUBLASLT_MATRIX_LAYOUT_ORDER);
  SHOW(CUBLASLT_MATRIX_LAYOUT_ROWS), SHOW(CUBLASLT_MATRIX_LAYOUT_COLS);
  SHOW(CUBLASLT_MATRIX_LAYOUT_LD), SHOW(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
  SHOW(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
  SHOW(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE), SHOW(CUBLASLT_MATMUL_DESC_SCALE_TYPE);
  SHOW(CUBLASLT_MATMUL_DESC_POINTER_MODE), SHOW(CUBLASLT_MATMUL_DESC_TRANSA);
  SHOW(CUBLASLT_MATMUL_DESC_TRANSB), SHOW(CUBLASLT_MATMUL_DESC_EPILOGUE);
  SHOW(CUBLASLT_MATMUL_DESC_BIAS_POINTER), SHOW(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE);
  SHOW(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER), SHOW(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
  SHOW(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE);
  SHOW(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE), SHOW(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
  SHOW(CUBLASLT_EPILOGUE_DEFAULT), SHOW(CUBLASLT_EPILOGUE_RELU), SHOW(CUBLASLT_EPILOGUE_BIAS);
  SHOW(CUBLASLT_EPILOGUE_RELU_BIAS), SHOW(CUBLASLT_EPILOGUE_GELU);
  SHOW(CUBLASLT_EPILOGUE_GELU_AUX), SHOW(CUBLASLT_EPILOGUE_GELU_BIAS);
  SHOW(CUBLASLT_EPILOGUE_GELU_AUX_BIAS), SHOW(CUBLASLT_EPILOGUE_DGELU);
  SHOW(CUBLASLT_EPILOGUE_DGELU_BGRAD), SHOW(CUBLASLT_EPILOGUE_BGRADA);
  SHOW(CUBLASLT_EPILOGUE_BGRADB);
  SHOW(CUBLASLT_MATMUL_PREF_SEARCH_MODE), SHOW(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  SHOW(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
  SHOW(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES),
      SHOW(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
  SHOW(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES),
      SHOW(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
  SHOW(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT), SHOW(CUBLASLT_MATMUL_PREF_IMPL_MASK);
  SHOW(CUBLASLT_REDUCTION_SCHEME_NONE), SHOW(CUBLASLT_REDUCTION_SCHEME_INPLACE);
  SHOW(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), SHOW(CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
  SHOW(CUBLASLT_REDUCTION_SCHEME_MASK);
  SHOW(sizeof(cublasLtMatmulAlgo_t)), SHOW(sizeof(cublasLtMatmulHeuristicResult_t));
}

#ifdef HAVE_NCCL
static void show_nccl(void) {
  SHOW(ncclSuccess), SHOW(ncclUnhandledCudaError), SHOW(ncclSystemError), SHOW(ncclInternalError);
  SHOW(ncclInvalidArgument), SHOW(ncclInvalidUsage), SHOW(ncclRemoteError), SHOW(ncclInProgress);
  SHOW(ncclSum), SHOW(ncclProd), SHOW(ncclMax), SHOW(ncclMin), SHOW(ncclAvg);
  SHOW(ncclInt8), SHOW(ncclUint8), SHOW(ncclInt32), SHOW(ncclUint32), SHOW(ncclInt64);
  SHOW(ncclUint64), SHOW(ncclFloat16), SHOW(ncclFloat32), SHOW(ncclFloat64), SHOW(ncclBfloat16);
  SHOW(ncclFloat), SHOW(ncclDouble), SHOW(ncclInt);
  SHOW(NCCL_UNIQUE_ID_BYTES), SHOW(NCCL_CONFIG_UNDEF_INT), SHOW(sizeof(ncclUniqueId));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  SHOW(config.magic), SHOW(config.blocking), SHOW(offsetof(ncclConfig_t, blocking));
  SHOW(offsetof(ncclConfig_t, netName)), SHOW(NCCL_VERSION(2, 18, 3));
}
#endif

int main(void) {
  show_runtime();
  show_attributes();
  show_cublas();
  show_cublas_lt();
#ifdef HAVE_NCCL
  show_nccl();
#endif
  return 0;
}
