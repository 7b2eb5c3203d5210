/*
 * check_cuemu_blas.cc - matrix products of cuBLAS and cuBLASLt against three plain loops.
 *
 * Entries are small integers, so that products and sums are exact and compared for equality; only
 * GELU needs a tolerance, that of float.
 */
#include "self.h"

#include <cublasLt.h>
#include <vector>

enum { M = 5, N = 7, K = 3, PAD = 3 }; /* M + PAD = 8: GELU's matrix needs that */
typedef std::vector<double> numbers;

static int small(int i) { return i * 7 % 11 - 5; }

static numbers sequence(size_t count, int from) {
  numbers x(count);
  for (size_t i = 0; i < count; i++) x[i] = small((int)i + from);
  return x;
}

template <class T> static T *upload(const numbers &x) {
  std::vector<T> host(x.begin(), x.end());
  return device_copy(host.data(), host.size());
}

template <class T> static numbers download(const T *device, size_t count) {
  std::vector<T> host(count);
  to_host(host.data(), device, count);
  return numbers(host.begin(), host.end());
}

/* Column-major op(a) op(b), element (i, j); leading dimensions are padded by PAD. */
static double product(const numbers &a, const numbers &b, bool ta, bool tb, int i, int j) {
  int lda = (ta ? K : M) + PAD, ldb = (tb ? N : K) + PAD;
  double sum = 0;
  for (int l = 0; l < K; l++) {
    sum +=
        a[(size_t)(ta ? l + i * lda : i + l * lda)] * b[(size_t)(tb ? j + l * ldb : l + j * ldb)];
  }
  return sum;
}

static cublasStatus_t gemm(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb,
                           float alpha, float beta, const float *a, int lda, const float *b,
                           int ldb, float *c, int ldc, int batches, long long sa, long long sb,
                           long long sc) {
  return cublasSgemmStridedBatched(h, ta, tb, M, N, K, &alpha, a, lda, sa, b, ldb, sb, &beta, c,
                                   ldc, sc, batches);
}

static cublasStatus_t gemm(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb,
                           double alpha, double beta, const double *a, int lda, const double *b,
                           int ldb, double *c, int ldc, int batches, long long sa, long long sb,
                           long long sc) {
  return cublasDgemmStridedBatched(h, ta, tb, M, N, K, &alpha, a, lda, sa, b, ldb, sb, &beta, c,
                                   ldc, sc, batches);
}

template <class T> static void check_gemm(bool ta, bool tb) {
  const int batches = 2, lda = (ta ? K : M) + PAD, ldb = (tb ? N : K) + PAD, ldc = M + PAD;
  const size_t sa = 100, sb = 100, sc = 100;
  numbers a = sequence(2 * sa, 0), b = sequence(2 * sb, 3), c = sequence(2 * sc, 5);
  T *da = upload<T>(a), *db = upload<T>(b), *dc = upload<T>(c);
  cublasHandle_t handle;
  ck_assert_int_eq(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
  ck_assert_int_eq(gemm(handle, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N,
                        (T)2, (T)3, da, lda, db, ldb, dc, ldc, batches, sa, sb, sc),
                   CUBLAS_STATUS_SUCCESS);
  numbers result = download(dc, 2 * sc);
  for (int batch = 0; batch < batches; batch++) {
    numbers part_a(a.begin() + batch * (long)sa, a.end()),
        part_b(b.begin() + batch * (long)sb, b.end());
    for (int at = 0; at < (int)sc; at++) {
      size_t position = (size_t)batch * sc + (size_t)at;
      int i = at % ldc, j = at / ldc;
      double expected = c[position];
      if (i < M && j < N) expected = 2 * product(part_a, part_b, ta, tb, i, j) + 3 * expected;
      ck_assert_double_eq(result[position], expected);
    }
  }
  ck_assert_int_eq(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
  CUDA_OK(cudaFree(da));
  CUDA_OK(cudaFree(db));
  CUDA_OK(cudaFree(dc));
  check_no_leaks();
}

START_TEST(products_in_all_transpositions) {
  check_gemm<float>(_i & 1, _i & 2);
  check_gemm<double>(_i & 1, _i & 2);
}
END_TEST

START_TEST(beta_zero_does_not_read) {
  float one = 1, zero = 0, result;
  float *x = upload<float>({2, 3}), *c = device_new<float>(1); /* new memory is NaN */
  cublasHandle_t handle;
  (void)cublasCreate(&handle);
  ck_assert_int_eq(
      cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, x, 1, x + 1, 1, &zero, c, 1),
      CUBLAS_STATUS_SUCCESS);
  to_host(&result, c, 1);
  ck_assert_float_eq(result, 6);
  ck_assert_int_eq(
      cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 1, 1, &one, x, 1, x, 1, &zero, c, 2),
      CUBLAS_STATUS_INVALID_VALUE);
  CUDA_OK(cudaFree(x));
  CUDA_OK(cudaFree(c));
  (void)cublasDestroy(handle);
}
END_TEST

START_TEST(tf32_is_opt_in) {
  float one = 1, zero = 0, result[2], fine = 1.0f + 1.0f / 4096; /* TF32 has ten bits of fraction */
  float *x = upload<float>({fine, 1}), *c = device_new<float>(2);
  cublasHandle_t handle;
  (void)cublasCreate(&handle);
  for (int i = 0; i < 2; i++) {
    (void)cublasSetMathMode(handle, i ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH);
    (void)cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, x, 1, x + 1, 1, &zero, c + i,
                      1);
  }
  to_host(result, c, 2);
  ck_assert_float_eq(result[0], fine);
  ck_assert_float_eq(result[1], 1);
  CUDA_OK(cudaFree(x));
  CUDA_OK(cudaFree(c));
  (void)cublasDestroy(handle);
}
END_TEST

/* ---- cuBLASLt ---- */

struct lt {
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, d;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t found;
  float *da, *db, *dd, *bias, *aux;
  void *workspace;
  numbers ha, hb, haux, hbias;
};

template <class T> static void set(lt *x, cublasLtMatmulDescAttributes_t attribute, T value) {
  ck_assert_int_eq(cublasLtMatmulDescSetAttribute(x->desc, attribute, &value, sizeof(value)),
                   CUBLAS_STATUS_SUCCESS);
}

static cublasStatus_t lt_ask(lt *x) {
  int found = 0;
  cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(x->handle, x->desc, x->a, x->b, x->d, x->d,
                                                         x->preference, 1, &x->found, &found);
  ck_assert_int_eq(found, status == CUBLAS_STATUS_SUCCESS);
  return status;
}

static void lt_open(lt *x, cublasLtEpilogue_t epilogue) {
  x->ha = sequence((M + PAD) * K, 1);
  x->hb = sequence((K + PAD) * N, 2);
  x->haux = sequence((M + PAD) * N, 3);
  x->hbias = sequence(M + N, 4);
  for (double &value : x->haux) value /= 4;
  x->da = upload<float>(x->ha);
  x->db = upload<float>(x->hb);
  x->aux = upload<float>(x->haux);
  x->bias = upload<float>(x->hbias);
  x->dd = device_new<float>((M + PAD) * N);
  (void)cublasLtCreate(&x->handle);
  (void)cublasLtMatmulDescCreate(&x->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  (void)cublasLtMatrixLayoutCreate(&x->a, CUDA_R_32F, M, K, M + PAD);
  (void)cublasLtMatrixLayoutCreate(&x->b, CUDA_R_32F, K, N, K + PAD);
  (void)cublasLtMatrixLayoutCreate(&x->d, CUDA_R_32F, M, N, M + PAD);
  (void)cublasLtMatmulPreferenceCreate(&x->preference);
  set(x, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  set(x, CUBLASLT_MATMUL_DESC_BIAS_POINTER, x->bias);
  set(x, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, x->aux);
  set(x, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)(M + PAD));
  uint64_t workspace = 1 << 20;
  (void)cublasLtMatmulPreferenceSetAttribute(
      x->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
  ck_assert_int_eq(lt_ask(x), CUBLAS_STATUS_SUCCESS);
  x->workspace = device_new<char>(x->found.workspaceSize);
}

static cublasStatus_t lt_run(lt *x, size_t workspace_bytes) {
  float one = 1, zero = 0;
  return cublasLtMatmul(x->handle, x->desc, &one, x->da, x->a, x->db, x->b, &zero, x->dd, x->d,
                        x->dd, x->d, &x->found.algo, x->workspace, workspace_bytes, NULL);
}

static void lt_close(lt *x) {
  (void)cublasLtMatmulPreferenceDestroy(x->preference);
  (void)cublasLtMatrixLayoutDestroy(x->a);
  (void)cublasLtMatrixLayoutDestroy(x->b);
  (void)cublasLtMatrixLayoutDestroy(x->d);
  (void)cublasLtMatmulDescDestroy(x->desc);
  (void)cublasLtDestroy(x->handle);
  for (float *memory : {x->da, x->db, x->dd, x->bias, x->aux}) CUDA_OK(cudaFree(memory));
  CUDA_OK(cudaFree(x->workspace));
  check_no_leaks();
}

static double gelu(double x) {
  return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x) { return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5; }

static const cublasLtEpilogue_t epilogues[] = {
    CUBLASLT_EPILOGUE_DEFAULT,     CUBLASLT_EPILOGUE_BIAS,          CUBLASLT_EPILOGUE_RELU_BIAS,
    CUBLASLT_EPILOGUE_GELU_AUX,    CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
    CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA,        CUBLASLT_EPILOGUE_BGRADB};

/* What d and aux have to be at one place. */
static double expect(const lt *x, cublasLtEpilogue_t epilogue, int i, int j, double *aux) {
  double value = product(x->ha, x->hb, false, false, i, j);
  if (epilogue & CUBLASLT_EPILOGUE_BIAS) value += x->hbias[(size_t)i];
  if (epilogue & CUBLASLT_EPILOGUE_RELU) value = fmax(value, 0);
  if (epilogue & CUBLASLT_EPILOGUE_GELU) {
    *aux = value;
    return gelu(value);
  }
  return epilogue & 64 ? value * gelu_slope(*aux) : value;
}

START_TEST(epilogues_of_lt) {
  lt x;
  cublasLtEpilogue_t epilogue = epilogues[_i];
  lt_open(&x, epilogue);
  ck_assert_int_eq(lt_run(&x, x.found.workspaceSize), CUBLAS_STATUS_SUCCESS);
  numbers d = download(x.dd, (M + PAD) * N), aux = download(x.aux, (M + PAD) * N);
  numbers bias = download(x.bias, M + N), sums = x.hbias;
  if (epilogue & (16 | 256)) std::fill(sums.begin(), sums.begin() + M, 0.0);
  if (epilogue & 512) std::fill(sums.begin(), sums.begin() + N, 0.0);
  for (int j = 0; j < N; j++) {
    for (int i = 0; i < M; i++) {
      size_t at = (size_t)(i + j * (M + PAD));
      double expected_aux = x.haux[at];
      double expected = expect(&x, epilogue, i, j, &expected_aux);
      ck_assert_double_eq_tol(d[at], expected, 2e-6 * (1 + fabs(expected)));
      ck_assert_double_eq(aux[at], expected_aux);
      if (epilogue & 16) sums[(size_t)i] += expected;
    }
    ck_assert(
        std::isnan(d[(size_t)(M + j * (M + PAD))])); /* between the columns nothing is written */
  }
  for (int l = 0; l < K; l++) {
    for (int i = 0; i < M && (epilogue & 256); i++)
      sums[(size_t)i] += x.ha[(size_t)(i + l * (M + PAD))];
    for (int j = 0; j < N && (epilogue & 512); j++)
      sums[(size_t)j] += x.hb[(size_t)(l + j * (K + PAD))];
  }
  for (size_t i = 0; i < sums.size(); i++) {
    ck_assert_double_eq_tol(bias[i], sums[i], 2e-5 * (1 + fabs(sums[i])));
  }
  lt_close(&x);
}
END_TEST

/* GELU's matrix has columns that begin at multiples of 8, and 16 bytes; the bias need not. */
START_TEST(epilogues_may_have_no_algorithm) {
  lt x;
  lt_open(&x, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  const size_t workspace = x.found.workspaceSize;
  for (int ld : {0, 5, 7, 16}) {
    set(&x, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)ld);
    const cublasStatus_t want = ld == 16 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    ck_assert_int_eq(lt_ask(&x), want);
    if (ld != 16) ck_assert_int_eq(lt_run(&x, workspace), want);
  }
  set(&x, CUBLASLT_MATMUL_DESC_BIAS_POINTER, x.bias + 1);
  ck_assert_int_eq(lt_ask(&x), CUBLAS_STATUS_SUCCESS);
  set(&x, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, x.aux + 1);
  ck_assert_int_eq(lt_ask(&x), CUBLAS_STATUS_NOT_SUPPORTED);
  set(&x, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, x.aux + 4);
  ck_assert_int_eq(lt_ask(&x), CUBLAS_STATUS_SUCCESS);
  cuemu_set_epilogues(CUBLASLT_EPILOGUE_BIAS);
  ck_assert_int_eq(lt_ask(&x), CUBLAS_STATUS_NOT_SUPPORTED);
  set(&x, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  ck_assert_int_eq(lt_ask(&x), CUBLAS_STATUS_SUCCESS);
  cuemu_set_epilogues(~0u);
  const cublasComputeType_t wide = CUBLAS_COMPUTE_64F;
  const cudaDataType_t type = CUDA_R_64F;
  set(&x, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, wide);
  set(&x, CUBLASLT_MATMUL_DESC_SCALE_TYPE, type);
  for (cublasLtMatrixLayout_t layout : {x.a, x.b, x.d}) {
    (void)cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type);
  }
  ck_assert_int_eq(lt_ask(&x), CUBLAS_STATUS_NOT_SUPPORTED);
  set(&x, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  ck_assert_int_eq(lt_ask(&x), CUBLAS_STATUS_SUCCESS);
  lt_close(&x);
}
END_TEST

/* ---- types ---- */

static const struct {
  cudaDataType ab, cd, scale;
  cublasComputeType_t compute;
  int bias; /* a type of its own, or -1 */
  bool known;
} combinations[] = {{CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, -1, true},
                    {CUDA_R_16BF, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, -1, true},
                    {CUDA_R_16F, CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F, -1, true},
                    {CUDA_R_16F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F, true},
                    {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, -1, true},
                    {CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F, -1, false},
                    {CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, -1, false},
                    {CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F, false},
                    {CUDA_R_16BF, CUDA_R_16BF, CUDA_R_64F, CUBLAS_COMPUTE_32F, -1, false},
                    {CUDA_R_32F, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, -1, false},
                    {CUDA_R_32F, CUDA_R_64F, CUDA_R_32F, CUBLAS_COMPUTE_32F, -1, false}};

/* What the heuristic says of a product 1 x 1 x 3. */
static cublasStatus_t ask(int i, uint32_t reductions, cublasLtMatmulHeuristicResult_t *found,
                          lt *x) {
  const int32_t bias_type = combinations[i].bias;
  int count = 0;
  (void)cublasLtMatmulDescCreate(&x->desc, combinations[i].compute, combinations[i].scale);
  (void)cublasLtMatmulDescSetAttribute(x->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                                       sizeof(bias_type));
  (void)cublasLtMatrixLayoutCreate(&x->a, combinations[i].ab, 1, 3, 1);
  (void)cublasLtMatrixLayoutCreate(&x->b, combinations[i].ab, 3, 1, 3);
  (void)cublasLtMatrixLayoutCreate(&x->d, combinations[i].cd, 1, 1, 1);
  cublasLtMatmulPreference_t preference;
  (void)cublasLtMatmulPreferenceCreate(&preference);
  (void)cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions));
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      x->handle, x->desc, x->a, x->b, x->d, x->d, preference, 1, found, &count);
  (void)cublasLtMatmulPreferenceDestroy(preference);
  return status;
}

static void forget(lt *x) {
  (void)cublasLtMatrixLayoutDestroy(x->a);
  (void)cublasLtMatrixLayoutDestroy(x->b);
  (void)cublasLtMatrixLayoutDestroy(x->d);
  (void)cublasLtMatmulDescDestroy(x->desc);
}

START_TEST(types_of_lt) {
  cublasLtMatmulHeuristicResult_t found;
  lt x;
  (void)cublasLtCreate(&x.handle);
  for (int i = 0; i < (int)(sizeof(combinations) / sizeof(combinations[0])); i++) {
    ck_assert_int_eq(ask(i, CUBLASLT_REDUCTION_SCHEME_MASK, &found, &x),
                     combinations[i].known ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED);
    forget(&x);
  }
  (void)cublasLtDestroy(x.handle);
}
END_TEST

/* 256 + 1 - 256 is 1 in f32, and 0 where 257 becomes 256, as in bf16. */
START_TEST(parts_in_the_type_of_the_result) {
  const float one = 1, zero = 0;
  const uint16_t left[] = {0x4300, 0x3f80, 0xc300}, right[] = {0x4000, 0x3f80, 0x4000};
  uint16_t *a = device_copy(left, 3), *b = device_copy(right, 3), *d = device_new<uint16_t>(1);
  lt x;
  (void)cublasLtCreate(&x.handle);
  for (int parts = 0; parts < 3; parts++) { /* 2: nobody was asked */
    cublasLtMatmulHeuristicResult_t found;
    const uint32_t reductions =
        parts ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint16_t result;
    ck_assert_int_eq(ask(0, reductions, &found, &x), CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(cublasLtMatmul(x.handle, x.desc, &one, a, x.a, b, x.b, &zero, d, x.d, d, x.d,
                                    parts == 2 ? NULL : &found.algo, NULL, 0, NULL),
                     CUBLAS_STATUS_SUCCESS);
    to_host(&result, d, 1);
    ck_assert_uint_eq(result, parts ? 0 : 0x3f80);
    forget(&x);
  }
  (void)cublasLtDestroy(x.handle);
  CUDA_OK(cudaFree(a));
  CUDA_OK(cudaFree(b));
  CUDA_OK(cudaFree(d));
}
END_TEST

START_TEST(lt_is_strict) {
  lt x;
  lt_open(&x, CUBLASLT_EPILOGUE_DEFAULT);
  ck_assert_int_eq(lt_run(&x, 0),
                   CUBLAS_STATUS_INVALID_VALUE); /* the algorithm wants a workspace */
  int32_t short_attribute = 0;
  ck_assert_int_eq(cublasLtMatmulDescSetAttribute(x.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                  &short_attribute, sizeof(short_attribute)),
                   CUBLAS_STATUS_INVALID_VALUE);
  uint64_t rows = M + 1;
  (void)cublasLtMatrixLayoutSetAttribute(x.a, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof(rows));
  ck_assert_int_eq(lt_run(&x, x.found.workspaceSize), CUBLAS_STATUS_INVALID_VALUE);
  lt_close(&x);
}
END_TEST

static void add_tests(TCase *tests) {
  tcase_add_loop_test(tests, products_in_all_transpositions, 0, 4);
  tcase_add_test(tests, beta_zero_does_not_read);
  tcase_add_test(tests, tf32_is_opt_in);
  tcase_add_loop_test(tests, epilogues_of_lt, 0, sizeof(epilogues) / sizeof(*epilogues));
  tcase_add_test(tests, epilogues_may_have_no_algorithm);
  tcase_add_test(tests, types_of_lt);
  tcase_add_test(tests, parts_in_the_type_of_the_result);
  tcase_add_test(tests, lt_is_strict);
}

SELF_MAIN("cuemu_blas", add_tests)
