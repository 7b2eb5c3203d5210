/*
 * cublas.c - cuBLAS: handles and the functions that multiply.
 */
#include "product.h"

#include <stdlib.h>

/* Of the workspace a real product may use anything; so much is overwritten here. */
#define WORKSPACE_TOUCHED ((size_t)64 << 10)

struct cublasContext {
  int device;
  cudaStream_t stream;
  cublasMath_t math;
  void *workspace;
  size_t workspace_bytes;
};

cublasStatus_t cublasCreate(cublasHandle_t *handle) {
  if (cuemu_enter() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  int device = cuemu_current_device();
  *handle = cuemu_new(sizeof(**handle));
  (*handle)->device = device;
  cuemu_count(&cuemu_devices[device].handles_alive, 1);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  cuemu_count(&cuemu_devices[handle->device].handles_alive, -1);
  free(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion(cublasHandle_t handle, int *version) {
  (void)handle;
  *version = CUBLAS_VER_MAJOR * 10000 + CUBLAS_VER_MINOR * 100;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  handle->workspace = NULL; /* as documented: back to the default pool */
  handle->workspace_bytes = 0;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t *stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if ((uintptr_t)workspace % 256) return CUBLAS_STATUS_INVALID_VALUE;
  handle->workspace = workspace;
  handle->workspace_bytes = workspace ? bytes : 0;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode) {
  (void)mode;
  return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  return mode == CUBLAS_POINTER_MODE_HOST ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

const char *cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
  case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
  case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
  case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
  case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
  case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
  case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
  case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
  case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
  case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  case CUBLAS_STATUS_LICENSE_ERROR: return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "CUBLAS_STATUS_?";
}

const char *cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

/* ---- products ---- */

static bool bad_leading_dimensions(bool transpose_a, bool transpose_b, int m, int n, int k, int lda,
                                   int ldb, int ldc) {
  int a_rows = transpose_a ? k : m, b_rows = transpose_b ? n : k;
  return lda < (a_rows > 1 ? a_rows : 1) || ldb < (b_rows > 1 ? b_rows : 1) ||
         ldc < (m > 1 ? m : 1);
}

/* Column-major storage: element (i, j) is at i + j * ld; transposed, the other way round. */
static struct cuemu_matrix matrix(const void *data, cudaDataType type, int ld, bool transpose,
                                  long long stride) {
  return (struct cuemu_matrix){(void *)(uintptr_t)data, type, transpose ? ld : 1,
                               transpose ? 1 : ld, stride};
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                          cublasOperation_t transb, int m, int n, int k,
                                          const void *alpha, const void *a, cudaDataType a_type,
                                          int lda, long long int stride_a, const void *b,
                                          cudaDataType b_type, int ldb, long long int stride_b,
                                          const void *beta, void *c, cudaDataType c_type, int ldc,
                                          long long int stride_c, int batches,
                                          cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
  (void)algorithm;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  bool ta = transa != CUBLAS_OP_N, tb = transb != CUBLAS_OP_N;
  if (m < 0 || n < 0 || k < 0 || batches < 0 || !alpha || !beta ||
      bad_leading_dimensions(ta, tb, m, n, k, lda, ldb, ldc)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  bool f64 = compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC;
  if (a_type != b_type || !cuemu_element_bytes(a_type) || !cuemu_element_bytes(c_type) ||
      f64 != (a_type == CUDA_R_64F) || f64 != (c_type == CUDA_R_64F)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (compute == CUBLAS_COMPUTE_32F && handle->math == CUBLAS_TF32_TENSOR_OP_MATH) {
    compute = CUBLAS_COMPUTE_32F_FAST_TF32;
  }
  size_t touched = handle->workspace_bytes;
  struct cuemu_product product = {.m = m,
                                  .n = n,
                                  .k = k,
                                  .batches = batches,
                                  .alpha = f64 ? *(const double *)alpha : *(const float *)alpha,
                                  .beta = f64 ? *(const double *)beta : *(const float *)beta,
                                  .a = matrix(a, a_type, lda, ta, stride_a),
                                  .b = matrix(b, b_type, ldb, tb, stride_b),
                                  .c = matrix(c, c_type, ldc, false, stride_c),
                                  .d = matrix(c, c_type, ldc, false, stride_c),
                                  .compute = compute,
                                  .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                                  .algorithm = -1,
                                  .workspace = handle->workspace,
                                  .workspace_bytes =
                                      touched < WORKSPACE_TOUCHED ? touched : WORKSPACE_TOUCHED};
  return cuemu_queue_product(&product, handle->device, handle->stream);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void *alpha,
                            const void *a, cudaDataType a_type, int lda, const void *b,
                            cudaDataType b_type, int ldb, const void *beta, void *c,
                            cudaDataType c_type, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t algorithm) {
  return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, a, a_type, lda, 0, b,
                                    b_type, ldb, 0, beta, c, c_type, ldc, 0, 1, compute, algorithm);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa,
                                         cublasOperation_t transb, int m, int n, int k,
                                         const float *alpha, const float *a, int lda,
                                         long long int stride_a, const float *b, int ldb,
                                         long long int stride_b, const float *beta, float *c,
                                         int ldc, long long int stride_c, int batches) {
  return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, a, CUDA_R_32F, lda,
                                    stride_a, b, CUDA_R_32F, ldb, stride_b, beta, c, CUDA_R_32F,
                                    ldc, stride_c, batches, CUBLAS_COMPUTE_32F,
                                    CUBLAS_GEMM_DEFAULT);
}

cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa,
                                         cublasOperation_t transb, int m, int n, int k,
                                         const double *alpha, const double *a, int lda,
                                         long long int stride_a, const double *b, int ldb,
                                         long long int stride_b, const double *beta, double *c,
                                         int ldc, long long int stride_c, int batches) {
  return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, a, CUDA_R_64F, lda,
                                    stride_a, b, CUDA_R_64F, ldb, stride_b, beta, c, CUDA_R_64F,
                                    ldc, stride_c, batches, CUBLAS_COMPUTE_64F,
                                    CUBLAS_GEMM_DEFAULT);
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t transa,
                           cublasOperation_t transb, int m, int n, int k, const float *alpha,
                           const float *a, int lda, const float *b, int ldb, const float *beta,
                           float *c, int ldc) {
  return cublasSgemmStridedBatched(handle, transa, transb, m, n, k, alpha, a, lda, 0, b, ldb, 0,
                                   beta, c, ldc, 0, 1);
}

cublasStatus_t cublasDgemm(cublasHandle_t handle, cublasOperation_t transa,
                           cublasOperation_t transb, int m, int n, int k, const double *alpha,
                           const double *a, int lda, const double *b, int ldb, const double *beta,
                           double *c, int ldc) {
  return cublasDgemmStridedBatched(handle, transa, transb, m, n, k, alpha, a, lda, 0, b, ldb, 0,
                                   beta, c, ldc, 0, 1);
}
