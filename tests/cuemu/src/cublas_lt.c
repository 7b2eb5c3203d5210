/*
 * cublas_lt.c - cuBLASLt: descriptions of products and the product itself.
 *
 * There are a few algorithms, which give the same. The heuristic asks for a workspace when it may
 * have one, and the product insists on getting it, so that host code which mixes up algorithms and
 * workspaces is found out; and on the alignment of pointers that the heuristic was told. A test may
 * have algorithms refused, by the heuristic (in `state`) or by the product (cuemu_refuse()).
 * Types and epilogues have the restrictions that the real header and manual name, and double
 * precision has no epilogues. A result of 16 bits may be added up in its own type, part by part,
 * unless the preference says otherwise, or if the heuristic was not asked. A test may take some
 * away (cuemu_set_epilogues): a real GPU need not have an algorithm for each.
 */
#include "product.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALGORITHM UINT64_C(0x63756c7400000000) /* and its number */
enum { ALGORITHMS = 4 };
#define AUX_BIT 128u /* of an epilogue */
#define WORKSPACE_WANTED ((size_t)16 << 10)

struct cublasLtContext {
  int device;
};

struct cuemu_lt_layout {
  cudaDataType type;
  uint64_t rows, cols;
  int64_t ld;
};

struct cuemu_lt_matmul_desc {
  cublasComputeType_t compute;
  cudaDataType scale_type;
  cublasOperation_t transa, transb;
  cublasLtEpilogue_t epilogue;
  cudaDataType bias_type; /* -1: that of d */
  void *bias, *aux;
  int64_t aux_ld;
};

enum { OF_A, OF_B, OF_C, OF_D, MATRICES };

struct cuemu_lt_preference {
  uint64_t workspace_bytes;
  uint32_t reductions;
  uint32_t alignment[MATRICES];
};

/* ---- handle ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  if (cuemu_enter() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = cuemu_new(sizeof(**handle));
  (*handle)->device = cuemu_current_device();
  cuemu_count(&cuemu_devices[(*handle)->device].handles_alive, 1);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  cuemu_count(&cuemu_devices[handle->device].handles_alive, -1);
  free(handle);
  return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
#define CUEMU_NAME(name, value)                                                                    \
  case name: return #name;
    CUEMU_CUBLAS_STATUSES(CUEMU_NAME)
#undef CUEMU_NAME
  }
  return "CUBLAS_STATUS_?";
}

/* ---- descriptions ---- */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale_type) {
  cuemu_add(CUEMU_DESCRIPTIONS);
  *desc = cuemu_new(sizeof(**desc));
  (*desc)->compute = compute;
  (*desc)->scale_type = scale_type;
  (*desc)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  (*desc)->bias_type = (cudaDataType)-1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  free(desc);
  return CUBLAS_STATUS_SUCCESS;
}

/* Sets a field; the caller has to know how large an attribute is. */
static cublasStatus_t set(void *field, size_t field_bytes, const void *value, size_t bytes) {
  if (!value || bytes != field_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
#define SET(field) set(&(field), sizeof(field), value, bytes)

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
  if (!desc) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
  case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return SET(desc->compute);
  case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return SET(desc->scale_type);
  case CUBLASLT_MATMUL_DESC_TRANSA: return SET(desc->transa);
  case CUBLASLT_MATMUL_DESC_TRANSB: return SET(desc->transb);
  case CUBLASLT_MATMUL_DESC_EPILOGUE: return SET(desc->epilogue);
  case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return SET(desc->bias);
  case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return SET(desc->bias_type);
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return SET(desc->aux);
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return SET(desc->aux_ld);
  default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  cuemu_add(CUEMU_DESCRIPTIONS);
  *layout = cuemu_new(sizeof(**layout));
  **layout = (struct cuemu_lt_layout){type, rows, cols, ld};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  free(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  *preference = cuemu_new(sizeof(**preference));
  (*preference)->reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  free(preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes) {
  if (!preference || !value) return CUBLAS_STATUS_INVALID_VALUE;
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    return SET(preference->workspace_bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return SET(preference->reductions);
  if (attribute >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
      attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES) {
    return SET(preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES]);
  }
  return bytes == sizeof(uint32_t) || bytes == sizeof(float) ? CUBLAS_STATUS_SUCCESS
                                                             : CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- products ---- */

static struct cuemu_matrix matrix(const void *data, cublasLtMatrixLayout_t layout, bool transpose) {
  return (struct cuemu_matrix){(void *)(uintptr_t)data, layout->type, transpose ? layout->ld : 1,
                               transpose ? 1 : layout->ld};
}

static bool bad_layout(cublasLtMatrixLayout_t layout) {
  return layout->ld < (int64_t)layout->rows || !cuemu_element_bytes(layout->type);
}

/* What tests leave of the epilogues. */
static atomic_uint epilogue_bits = ~0u;

void cuemu_set_epilogues(unsigned bits) { atomic_store(&epilogue_bits, bits); }

static atomic_uint slow_bits;

void cuemu_set_slow(unsigned bits) { atomic_store(&slow_bits, bits); }

bool cuemu_is_slow(unsigned epilogue) { return (epilogue & atomic_load(&slow_bits)) != 0; }

static atomic_uint algorithm_times[ALGORITHMS];

void cuemu_set_algorithm_times(const unsigned nanoseconds[4]) {
  for (int i = 0; i < ALGORITHMS; i++) atomic_store(&algorithm_times[i], nanoseconds[i]);
}

unsigned cuemu_algorithm_time(int algorithm) {
  return algorithm < 0 ? 0 : atomic_load(&algorithm_times[algorithm]);
}

static atomic_uint refused_by_heuristic, refused_by_product;

void cuemu_refuse(unsigned by_heuristic, unsigned by_product) {
  atomic_store(&refused_by_heuristic, by_heuristic);
  atomic_store(&refused_by_product, by_product);
}

static atomic_bool ones_are_invalid;

void cuemu_call_ones_invalid(bool invalid) { atomic_store(&ones_are_invalid, invalid); }

/* The algorithm's number, or -1. */
static int number_of(const cublasLtMatmulAlgo_t *algorithm) {
  const uint64_t number = algorithm->data[0] - ALGORITHM;
  return number < ALGORITHMS ? (int)number : -1;
}

static bool known_epilogue(cublasLtEpilogue_t epilogue) {
  switch (epilogue) {
  case CUBLASLT_EPILOGUE_DEFAULT:
  case CUBLASLT_EPILOGUE_RELU:
  case CUBLASLT_EPILOGUE_BIAS:
  case CUBLASLT_EPILOGUE_RELU_BIAS:
  case CUBLASLT_EPILOGUE_GELU:
  case CUBLASLT_EPILOGUE_GELU_AUX:
  case CUBLASLT_EPILOGUE_GELU_BIAS:
  case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
  case CUBLASLT_EPILOGUE_DGELU:
  case CUBLASLT_EPILOGUE_DGELU_BGRAD:
  case CUBLASLT_EPILOGUE_BGRADA:
  case CUBLASLT_EPILOGUE_BGRADB: return true;
  default: return false;
  }
}

/* There is an algorithm for the epilogue, GELU's matrix included if it has one. The heuristic sees
 * the pointer too: what it finds depends on the alignment. */
static bool has_algorithm(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t d) {
  if (desc->epilogue == CUBLASLT_EPILOGUE_DEFAULT) return true;
  const unsigned bits = (unsigned)desc->epilogue;
  if (!known_epilogue(desc->epilogue) || (bits & ~atomic_load(&epilogue_bits)) != 0 ||
      desc->compute == CUBLAS_COMPUTE_64F) {
    return false;
  }
  return (bits & AUX_BIT) == 0 || (desc->aux_ld % 8 == 0 && desc->aux_ld >= (int64_t)d->rows &&
                                   (uintptr_t)desc->aux % 16 == 0);
}

static bool is_half(cudaDataType type) { return type == CUDA_R_16F || type == CUDA_R_16BF; }

/* Of a and b, of c and d, what is computed in, and of the vectors and matrices of an epilogue,
 * which are of the type of d: the table of cublasLtMatmul() in the manual, as far as these types
 * go. */
static bool known_types(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                        cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                        cublasLtMatrixLayout_t d) {
  const cudaDataType none = (cudaDataType)-1;
  if (a->type != b->type || c->type != d->type) return false;
  if (desc->bias_type != none && desc->bias_type != d->type) return false;
  if (desc->compute == CUBLAS_COMPUTE_64F) {
    return a->type == CUDA_R_64F && d->type == CUDA_R_64F && desc->scale_type == CUDA_R_64F;
  }
  if (desc->scale_type != CUDA_R_32F) return false;
  if (is_half(a->type)) {
    return desc->compute == CUBLAS_COMPUTE_32F && (d->type == a->type || d->type == CUDA_R_32F);
  }
  return a->type == CUDA_R_32F && d->type == CUDA_R_32F;
}

/* Fills the sizes; SUCCESS if the layouts fit together and there is an algorithm. */
static cublasStatus_t describe(struct cuemu_product *p, cublasLtMatmulDesc_t desc,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  if (!desc || !a || !b || !c || !d) return CUBLAS_STATUS_INVALID_VALUE;
  bool ta = desc->transa != CUBLAS_OP_N, tb = desc->transb != CUBLAS_OP_N;
  uint64_t m = ta ? a->cols : a->rows, k = ta ? a->rows : a->cols;
  uint64_t k_of_b = tb ? b->cols : b->rows, n = tb ? b->rows : b->cols;
  if (k != k_of_b || d->rows != m || d->cols != n || c->rows != m || c->cols != n ||
      bad_layout(a) || bad_layout(b) || bad_layout(c) || bad_layout(d)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!has_algorithm(desc, d) || !known_types(desc, a, b, c, d)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  *p = (struct cuemu_product){.m = (int64_t)m,
                              .n = (int64_t)n,
                              .k = (int64_t)k,
                              .compute = desc->compute,
                              .epilogue = desc->epilogue};
  return CUBLAS_STATUS_SUCCESS;
}

static bool is_uneven(uint64_t size) { return size > 4096 && size % 64 != 0; }

static void count_unaligned(cublasLtMatmulPreference_t preference,
                            const cublasLtMatrixLayout_t layouts[MATRICES]) {
  bool aligned = true, uneven = false;
  for (int i = 0; i < MATRICES; i++) {
    uneven = uneven || is_uneven(layouts[i]->rows) || is_uneven(layouts[i]->cols);
    const int64_t bytes = layouts[i]->ld * (int64_t)cuemu_element_bytes(layouts[i]->type);
    const uint32_t told = preference->alignment[i];
    aligned = aligned && bytes % 16 == 0 && (told == 0 || told >= 16);
  }
  if (!aligned) cuemu_add(CUEMU_UNALIGNED_PRODUCTS);
  if (uneven) cuemu_add(CUEMU_UNEVEN_PRODUCTS);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *returned) {
  struct cuemu_product product;
  *returned = 0;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (requested < 1 || !results || !preference) return CUBLAS_STATUS_INVALID_VALUE;
  cublasStatus_t status = describe(&product, desc, a, b, c, d);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (atomic_load(&ones_are_invalid) && (product.m == 1 || product.n == 1 || product.k == 1) &&
      desc->epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  count_unaligned(preference, (const cublasLtMatrixLayout_t[]){a, b, c, d});
  size_t workspace = preference->workspace_bytes < WORKSPACE_WANTED ? 0 : WORKSPACE_WANTED;
  const unsigned refused = atomic_load(&refused_by_heuristic);
  const int offered =
      cuemu_settings.algorithms < ALGORITHMS ? cuemu_settings.algorithms : ALGORITHMS;
  for (; *returned < requested && *returned < offered; ++*returned) {
    const int number = *returned;
    results[number] = (cublasLtMatmulHeuristicResult_t){
        .algo = {{ALGORITHM + (uint64_t)number, workspace, 0, 0, preference->reductions}},
        .workspaceSize = workspace,
        .state = refused >> number & 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS,
        .wavesCount = 1.0f};
    memcpy(&results[number].algo.data[2], preference->alignment, sizeof preference->alignment);
  }
  return CUBLAS_STATUS_SUCCESS;
}

/* Whether the pointers are as the heuristic was told; 0 is what a preference has that says
 * nothing. */
static bool aligned_as_told(const cublasLtMatmulAlgo_t *algorithm, const void *const at[MATRICES]) {
  uint32_t alignment[MATRICES];
  memcpy(alignment, &algorithm->data[2], sizeof alignment);
  for (int i = 0; i < MATRICES; i++) {
    const uint32_t told = alignment[i] == 0 ? 256 : alignment[i];
    if ((uintptr_t)at[i] % told == 0) continue;
    fprintf(stderr, "cuemu: cublasLtMatmul: matrix %c at %p, the heuristic was told %u bytes\n",
            "ABCD"[i], at[i], told);
    return false;
  }
  return true;
}

/* What the algorithm that the heuristic chose has to say to the call. */
static cublasStatus_t check_algorithm(const cublasLtMatmulAlgo_t *algorithm,
                                      const void *const at[MATRICES], const void *workspace,
                                      size_t workspace_bytes) {
  const int number = number_of(algorithm);
  const size_t wanted = (size_t)algorithm->data[1];
  if (number < 0 || workspace_bytes < wanted ||
      (wanted && (!workspace || (uintptr_t)workspace % 16)) || !aligned_as_told(algorithm, at)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  /* What the heuristic says to be of no use is not filled in. */
  if (atomic_load(&refused_by_heuristic) >> number & 1) return CUBLAS_STATUS_INVALID_VALUE;
  return atomic_load(&refused_by_product) >> number & 1 ? CUBLAS_STATUS_NOT_SUPPORTED
                                                        : CUBLAS_STATUS_SUCCESS;
}

/* Vectors and matrices of the epilogue; a heuristic does without them, so they are checked here. */
static cublasStatus_t add_epilogue(struct cuemu_product *p, cublasLtMatmulDesc_t desc,
                                   cublasLtMatrixLayout_t d) {
  bool bias = desc->epilogue &
              (CUBLASLT_EPILOGUE_BIAS | 16 | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB);
  if (bias && !desc->bias) return CUBLAS_STATUS_INVALID_VALUE;
  if (bias && (uintptr_t)desc->bias % 16 != 0) { /* read by 16 bytes, whatever the heuristic knew */
    fprintf(stderr, "cuemu: cublasLtMatmul: misaligned address: the bias at %p\n", desc->bias);
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  if ((desc->epilogue & AUX_BIT) && !desc->aux) return CUBLAS_STATUS_INVALID_VALUE;
  p->bias = (struct cuemu_matrix){desc->bias, d->type, 1, 0};
  p->aux = (struct cuemu_matrix){desc->aux, d->type, 1, desc->aux_ld};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  struct cuemu_product p;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  cublasStatus_t status = describe(&p, desc, a_layout, b_layout, c_layout, d_layout);
  if (status == CUBLAS_STATUS_SUCCESS) status = add_epilogue(&p, desc, d_layout);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (!alpha || !beta || !a || !b || !d) return CUBLAS_STATUS_INVALID_VALUE;
  cuemu_note(NULL, "product");
  const void *const at[MATRICES] = {a, b, c, d};
  size_t wanted = algorithm ? (size_t)algorithm->data[1] : 0;
  if (algorithm) status = check_algorithm(algorithm, at, workspace, workspace_bytes);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  bool f64 = desc->scale_type == CUDA_R_64F;
  p.alpha = f64 ? *(const double *)alpha : *(const float *)alpha;
  p.beta = f64 ? *(const double *)beta : *(const float *)beta;
  if (p.beta != 0 && !c) return CUBLAS_STATUS_INVALID_VALUE;
  p.a = matrix(a, a_layout, desc->transa != CUBLAS_OP_N);
  p.b = matrix(b, b_layout, desc->transb != CUBLAS_OP_N);
  p.c = matrix(c, c_layout, false);
  p.d = matrix(d, d_layout, false);
  const uint64_t reductions = algorithm ? algorithm->data[4] : CUBLASLT_REDUCTION_SCHEME_MASK;
  p.rounds_parts =
      is_half(d_layout->type) &&
      reductions & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
  p.workspace = workspace;
  p.workspace_bytes = wanted;
  p.algorithm = algorithm ? number_of(algorithm) : -1;
  return cuemu_queue_product(&p, handle->device, stream);
}
