/*
 * product.c - computes matrix products with plain loops and double accumulators.
 *
 * op(a) is packed column by column as doubles; each column of d is then a sum of columns of op(a),
 * an inner loop that vectorises without changing the order of any sum. A product has one result,
 * whatever the strides. With TF32 the inputs lose the bits that a tensor core would not see.
 */
#include "product.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_bf16.h"
#include "cuda_fp16.h"

#define GELU_AUX_BIT 128
#define BGRAD_BIT 16

size_t cuemu_element_bytes(cudaDataType type) {
  switch (type) {
  case CUDA_R_32F: return 4;
  case CUDA_R_64F: return 8;
  case CUDA_R_16F:
  case CUDA_R_16BF: return 2;
  default: return 0;
  }
}

/* ---- elements ---- */

static double load(const struct cuemu_matrix *x, int64_t at) {
  switch (x->type) {
  case CUDA_R_64F: return ((const double *)x->data)[at];
  case CUDA_R_16F: return cuemu_half_to_float(((const uint16_t *)x->data)[at]);
  case CUDA_R_16BF: return cuemu_bfloat16_to_float(((const uint16_t *)x->data)[at]);
  default: return ((const float *)x->data)[at];
  }
}

static void store(const struct cuemu_matrix *x, int64_t at, double value) {
  switch (x->type) {
  case CUDA_R_64F: ((double *)x->data)[at] = value; break;
  case CUDA_R_16F: ((uint16_t *)x->data)[at] = cuemu_float_to_half((float)value); break;
  case CUDA_R_16BF: ((uint16_t *)x->data)[at] = cuemu_float_to_bfloat16((float)value); break;
  default: ((float *)x->data)[at] = (float)value; break;
  }
}

/* Keeps the bits of a float that TF32 has, rounded to nearest even. */
static double to_tf32(double value) {
  const unsigned dropped = 13;
  float single = (float)value;
  uint32_t bits;
  memcpy(&bits, &single, sizeof(bits));
  if ((bits & 0x7f800000u) == 0x7f800000u) return value;
  uint32_t half = (1u << (dropped - 1)) - 1;
  bits = (bits + half + ((bits >> dropped) & 1)) & ~((1u << dropped) - 1);
  memcpy(&single, &bits, sizeof(single));
  return single;
}

static double load_input(const struct cuemu_matrix *x, int64_t at, cublasComputeType_t compute) {
  double value = load(x, at);
  if (compute == CUBLAS_COMPUTE_32F_FAST_TF32) return to_tf32(value);
  return value;
}

/* To the type of a matrix. */
static double rounded(cudaDataType type, double value) {
  if (type == CUDA_R_16F) return cuemu_half_to_float(cuemu_float_to_half((float)value));
  return cuemu_bfloat16_to_float(cuemu_float_to_bfloat16((float)value));
}

/* The approximation with tanh, which is cuBLASLt's. */
static double gelu(double x) {
  return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_derivative(double x) {
  double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) +
         0.5 * x * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x);
}

/* ---- the product ---- */

/* The value of d at (i, j) from that of the product; writes aux where the epilogue does. */
static double finish(const struct cuemu_product *p, int64_t i, int64_t j, double value) {
  int64_t aux = i * p->aux.row + j * p->aux.column;
  if (p->epilogue & CUBLASLT_EPILOGUE_BIAS) { /* as a sum in f32 gets it */
    value = (float)value + (float)load(&p->bias, i);
  }
  if (p->epilogue & CUBLASLT_EPILOGUE_RELU) value = value > 0 ? value : 0;
  if (p->epilogue & CUBLASLT_EPILOGUE_GELU) {
    if (p->epilogue & GELU_AUX_BIT) store(&p->aux, aux, value);
    return gelu(value);
  }
  if ((p->epilogue & CUBLASLT_EPILOGUE_DGELU) == CUBLASLT_EPILOGUE_DGELU) {
    return value * gelu_derivative(load(&p->aux, aux));
  }
  return value;
}

static void sum_into_bias(const struct cuemu_product *p, const double *sums, int64_t count) {
  for (int64_t i = 0; i < count; i++) store(&p->bias, i, sums[i]);
}

/* Gradients of a bias that come from an input: sums over k. */
static void sum_inputs(const struct cuemu_product *p, double *sums) {
  bool of_a = p->epilogue == CUBLASLT_EPILOGUE_BGRADA;
  int64_t count = of_a ? p->m : p->n;
  for (int64_t i = 0; i < count; i++) {
    sums[i] = 0;
    for (int64_t l = 0; l < p->k; l++) {
      sums[i] += of_a ? load(&p->a, i * p->a.row + l * p->a.column)
                      : load(&p->b, l * p->b.row + i * p->b.column);
    }
  }
  sum_into_bias(p, sums, count);
}

enum { TERMS = 4 };

/* Adds `count` terms, of TERMS at most, to each sum, one after the other: a sum is read and written
 * once for all of them. */
static void add_terms(double *restrict column, const double *restrict from, const double *factor,
                      int64_t m, int64_t count) {
  if (count == TERMS) {
    for (int64_t i = 0; i < m; i++) {
      double sum = column[i];
      for (int t = 0; t < TERMS; t++) sum += factor[t] * from[t * m + i];
      column[i] = sum;
    }
    return;
  }
  for (int64_t t = 0; t < count; t++) {
    for (int64_t i = 0; i < m; i++) column[i] += factor[t] * from[t * m + i];
  }
}

/* Column j of the product, before alpha; with `rounds_parts` as two sums of half of the terms. */
static void sum_column(const struct cuemu_product *p, const double *packed, double *column,
                       int64_t j) {
  const int64_t half = p->rounds_parts ? (p->k + 1) / 2 : p->k;
  memset(column, 0, (size_t)p->m * sizeof *column);
  for (int64_t l = 0, count; l < p->k; l += count) {
    double factor[TERMS];
    const int64_t end = l < half ? half : p->k;
    count = end - l < TERMS ? end - l : TERMS;
    for (int64_t i = 0; p->rounds_parts && l == half && i < p->m; i++) {
      column[i] = rounded(p->d.type, column[i]);
    }
    for (int64_t t = 0; t < count; t++) {
      factor[t] = load_input(&p->b, (l + t) * p->b.row + j * p->b.column, p->compute);
    }
    add_terms(column, packed + l * p->m, factor, p->m, count);
  }
}

static void multiply(const struct cuemu_product *p, double *packed, double *column, double *sums) {
  bool bias_gradient = (p->epilogue & BGRAD_BIT) != 0;
  for (int64_t l = 0; l < p->k; l++) {
    for (int64_t i = 0; i < p->m; i++) {
      packed[l * p->m + i] = load_input(&p->a, i * p->a.row + l * p->a.column, p->compute);
    }
  }
  if (p->epilogue == CUBLASLT_EPILOGUE_BGRADA || p->epilogue == CUBLASLT_EPILOGUE_BGRADB) {
    sum_inputs(p, sums);
  }
  for (int64_t i = 0; bias_gradient && i < p->m; i++) sums[i] = 0;
  for (int64_t j = 0; j < p->n; j++) {
    sum_column(p, packed, column, j);
    for (int64_t i = 0; i < p->m; i++) {
      double value = p->alpha * column[i];
      /* beta 0 does not read c: it may hold NaN */
      if (p->beta != 0) value += p->beta * load(&p->c, i * p->c.row + j * p->c.column);
      value = finish(p, i, j, value);
      store(&p->d, i * p->d.row + j * p->d.column, value);
      if (bias_gradient) sums[i] += value;
    }
  }
  if (bias_gradient) sum_into_bias(p, sums, p->m);
}

static cudaError_t run_product(cudaStream_t stream, void *argument) {
  const struct cuemu_product p = *(const struct cuemu_product *)argument;
  if (cuemu_is_slow((unsigned)p.epilogue)) stream->clock += 100000;
  stream->clock += cuemu_algorithm_time(p.algorithm);
  size_t longer = (size_t)(p.m > p.n ? p.m : p.n);
  double *packed = cuemu_new((size_t)p.m * (size_t)p.k * sizeof(double));
  double *column = cuemu_new((size_t)p.m * sizeof(double));
  double *sums = cuemu_new(longer * sizeof(double));
  if (p.workspace_bytes) memset(p.workspace, 0xff, p.workspace_bytes);
  multiply(&p, packed, column, sums);
  free(packed);
  free(column);
  free(sums);
  return cudaSuccess;
}

/* What needs other code on a GPU: a number that is no address of a kernel. */
static const void *kind_of(const struct cuemu_product *p) {
  const unsigned transposed = (p->a.row == 1) | (unsigned)(p->b.row == 1) << 1;
  uintptr_t kind = ((uintptr_t)p->compute << 16 | (uintptr_t)p->epilogue) << 2 | transposed;
  kind = kind << 8 | (uintptr_t)p->a.type << 4 | (uintptr_t)p->d.type;
  if (cuemu_settings.load_drains) { /* each shape has code of its own */
    kind = (((kind * 1000003 + (uintptr_t)p->m) * 1000003) + (uintptr_t)p->n) * 1000003;
    kind += (uintptr_t)p->k;
  }
  return (const void *)kind;
}

cublasStatus_t cuemu_queue_product(const struct cuemu_product *product, int device,
                                   cudaStream_t stream) {
  int fault = cuemu_call(device, CUEMU_BLAS);
  if (fault) return (cublasStatus_t)fault;
  if (cuemu_enter() != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (cuemu_stream_device(stream) != device || cuemu_current_device() != device) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  if (product->m == 0 || product->n == 0) return CUBLAS_STATUS_SUCCESS;
  if (!cuemu_load(device, kind_of(product), NULL)) return CUBLAS_STATUS_ALLOC_FAILED;
  struct cuemu_product *p = cuemu_new(sizeof(*p));
  *p = *product;
  if (p->algorithm >= 0) cuemu_add(CUEMU_BY_ALGORITHM + p->algorithm);
  cuemu_enqueue(stream, CUEMU_BLAS, cuemu_only_loads() ? NULL : run_product, free, p);
  return CUBLAS_STATUS_SUCCESS;
}
