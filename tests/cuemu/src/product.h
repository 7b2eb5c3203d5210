/*
 * product.h - one matrix product with an epilogue, as cuBLASLt queues it.
 *
 *   d = epilogue(alpha op(a) op(b) + beta c),   op(a) is m x k, op(b) is k x n
 *
 * Matrices are given by strides in elements, after the transposition: element (i, j) of op(a) is at
 * a.data[i * a.row + j * a.column].
 */
#ifndef CUEMU_PRODUCT_H
#define CUEMU_PRODUCT_H

#include "cublasLt.h"
#include "internal.h"

struct cuemu_matrix {
  void *data;
  cudaDataType type;
  int64_t row, column;
};

struct cuemu_product {
  int64_t m, n, k;
  double alpha, beta;
  struct cuemu_matrix a, b, c, d;
  cublasComputeType_t compute;
  cublasLtEpilogue_t epilogue;
  int algorithm;     /* -1: none was said */
  bool rounds_parts; /* of a sum, to the type of d */
  struct cuemu_matrix bias; /* a vector: `row` is 1 */
  struct cuemu_matrix aux;
  void *workspace; /* filled with rubbish, so that two streams that share it are found out */
  size_t workspace_bytes;
};

/* Copies the product and queues it; counts it as a call of CUEMU_BLAS. */
cublasStatus_t cuemu_queue_product(const struct cuemu_product *product, int device,
                                   cudaStream_t stream);
size_t cuemu_element_bytes(cudaDataType type); /* 0: not supported */

#endif
