/*
 * constants.c - prints every constant of CUDA, cuBLAS(Lt) and NCCL that cuemu's headers have.
 *
 * Built twice, with cuemu's headers and with a real toolkit's where there is one; the test
 * cuemu_constants compares what the two print. Only headers are needed, nothing is called.
 */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#ifdef HAVE_NCCL
#include <nccl.h>
#endif

#include "../include/cuemu_errors.h"

#define SHOW(name) printf("%s %lld\n", #name, (long long)(name))
#define SHOW_ERROR(name, value, text) SHOW(name);
#define SHOW_STATUS(name, value) SHOW(name);

static void show_runtime(void) {
  CUEMU_CUDA_ERRORS(SHOW_ERROR)
  SHOW(cudaMemcpyHostToHost), SHOW(cudaMemcpyHostToDevice), SHOW(cudaMemcpyDeviceToHost);
  SHOW(cudaMemcpyDeviceToDevice), SHOW(cudaMemcpyDefault), SHOW(cudaStreamDefault);
  SHOW(cudaStreamNonBlocking), SHOW(cudaEventDefault), SHOW(cudaEventDisableTiming);
  SHOW(cudaHostAllocPortable), SHOW(cudaHostAllocMapped);
  SHOW(cudaFuncAttributeMaxDynamicSharedMemorySize), SHOW(CUDA_R_32F), SHOW(CUDA_R_64F);
  SHOW(CUDA_R_16F), SHOW(CUDA_R_16BF), SHOW(sizeof(dim3));
}

static void show_attributes(void) {
  SHOW(cudaDevAttrMultiProcessorCount), SHOW(cudaDevAttrComputeCapabilityMajor);
  SHOW(cudaDevAttrComputeCapabilityMinor), SHOW(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

static void show_cublas(void) {
  CUEMU_CUBLAS_STATUSES(SHOW_STATUS)
  SHOW(CUBLAS_OP_N), SHOW(CUBLAS_OP_T), SHOW(CUBLAS_COMPUTE_32F), SHOW(CUBLAS_COMPUTE_64F);
  SHOW(CUBLAS_COMPUTE_32F_FAST_TF32);
}

static void show_cublas_lt(void) {
  SHOW(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE), SHOW(CUBLASLT_MATMUL_DESC_SCALE_TYPE);
  SHOW(CUBLASLT_MATMUL_DESC_TRANSA), SHOW(CUBLASLT_MATMUL_DESC_TRANSB);
  SHOW(CUBLASLT_MATMUL_DESC_EPILOGUE), SHOW(CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  SHOW(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER), SHOW(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
  SHOW(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE), SHOW(CUBLASLT_EPILOGUE_DEFAULT);
  SHOW(CUBLASLT_EPILOGUE_RELU), SHOW(CUBLASLT_EPILOGUE_BIAS), SHOW(CUBLASLT_EPILOGUE_RELU_BIAS);
  SHOW(CUBLASLT_EPILOGUE_GELU), SHOW(CUBLASLT_EPILOGUE_GELU_AUX), SHOW(CUBLASLT_EPILOGUE_GELU_BIAS);
  SHOW(CUBLASLT_EPILOGUE_GELU_AUX_BIAS), SHOW(CUBLASLT_EPILOGUE_DGELU);
  SHOW(CUBLASLT_EPILOGUE_DGELU_BGRAD), SHOW(CUBLASLT_EPILOGUE_BGRADA);
  SHOW(CUBLASLT_EPILOGUE_BGRADB), SHOW(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  SHOW(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
  SHOW(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
  SHOW(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
  SHOW(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
  SHOW(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES), SHOW(CUBLASLT_REDUCTION_SCHEME_NONE);
  SHOW(CUBLASLT_REDUCTION_SCHEME_INPLACE), SHOW(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  SHOW(CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE), SHOW(CUBLASLT_REDUCTION_SCHEME_MASK);
  SHOW(sizeof(cublasLtMatmulAlgo_t)), SHOW(sizeof(cublasLtMatmulHeuristicResult_t));
}

#ifdef HAVE_NCCL
static void show_nccl(void) {
  SHOW(ncclSuccess), SHOW(ncclUnhandledCudaError), SHOW(ncclSystemError), SHOW(ncclInternalError);
  SHOW(ncclInvalidArgument), SHOW(ncclInvalidUsage), SHOW(ncclRemoteError), SHOW(ncclInProgress);
  SHOW(ncclSum), SHOW(ncclUint8), SHOW(ncclFloat16), SHOW(ncclFloat32), SHOW(ncclFloat64);
  SHOW(ncclBfloat16), SHOW(NCCL_UNIQUE_ID_BYTES), SHOW(NCCL_CONFIG_UNDEF_INT);
  SHOW(sizeof(ncclUniqueId));
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
