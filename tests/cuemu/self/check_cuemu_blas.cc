/*
 * check_cuemu_blas.cc - matrix products of cuBLASLt against three plain loops.
 *
 * Entries are small integers, so that products and sums are exact and compared for equality; only
 * GELU needs a tolerance, that of float.
 */
#include "self.h"

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

template <class T> static void check_product(cublasComputeType_t compute, bool ta, bool tb) {
  const int lda = (ta ? K : M) + PAD, ldb = (tb ? N : K) + PAD, ldc = M + PAD;
  const size_t size = 100;
  numbers a = sequence(size, 0), b = sequence(size, 3), c = sequence(size, 5);
  T *dc = upload<T>(c);
  ck_assert_int_eq(multiply<T>(compute, ta, tb, M, N, K, 2, upload<T>(a), lda, upload<T>(b), ldb, 3,
                               dc, ldc),
                   CUBLAS_STATUS_SUCCESS);
  numbers result = download(dc, size);
  for (int at = 0; at < (int)size; at++) {
    int i = at % ldc, j = at / ldc;
    double expected = c[(size_t)at];
    if (i < M && j < N) expected = 2 * product(a, b, ta, tb, i, j) + 3 * expected;
    ck_assert_double_eq(result[(size_t)at], expected);
  }
}

SELF_LOOP(products_in_all_transpositions, 4) {
  check_product<float>(CUBLAS_COMPUTE_32F, _i & 1, _i & 2);
  check_product<double>(CUBLAS_COMPUTE_64F, _i & 1, _i & 2);
}

SELF_TEST(beta_zero_does_not_read) {
  const cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  float result, *x = upload<float>({2, 3}), *c = device_new<float>(1); /* new memory is NaN */
  ck_assert_int_eq(multiply<float>(compute, false, false, 1, 1, 1, 1, x, 1, x + 1, 1, 0, c, 1),
                   CUBLAS_STATUS_SUCCESS);
  to_host(&result, c, 1);
  ck_assert_float_eq(result, 6);
  ck_assert_int_eq(multiply<float>(compute, false, false, 2, 1, 1, 1, x, 1, x, 1, 0, c, 2),
                   CUBLAS_STATUS_INVALID_VALUE);
}

SELF_TEST(tf32_is_opt_in) {
  float result[2], fine = 1.0f + 1.0f / 4096; /* TF32 has ten bits of fraction */
  float *x = upload<float>({fine, 1}), *c = device_new<float>(2);
  for (int i = 0; i < 2; i++) {
    (void)multiply<float>(i ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, false, false, 1, 1,
                          1, 1, x, 1, x + 1, 1, 0, c + i, 1);
  }
  to_host(result, c, 2);
  ck_assert_float_eq(result[0], fine);
  ck_assert_float_eq(result[1], 1);
}

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

/* `rows`: of a alone; other ones than M do not fit. */
static void make_layouts(lt *x, cudaDataType type, uint64_t rows) {
  (void)cublasLtMatrixLayoutCreate(&x->a, type, rows, K, M + PAD);
  (void)cublasLtMatrixLayoutCreate(&x->b, type, K, N, K + PAD);
  (void)cublasLtMatrixLayoutCreate(&x->d, type, M, N, M + PAD);
}

static void forget_layouts(lt *x) {
  for (cublasLtMatrixLayout_t layout : {x->a, x->b, x->d}) {
    (void)cublasLtMatrixLayoutDestroy(layout);
  }
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
  make_layouts(x, CUDA_R_32F, M);
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
  forget_layouts(x);
  (void)cublasLtMatmulDescDestroy(x->desc);
  (void)cublasLtDestroy(x->handle);
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

SELF_LOOP(epilogues_of_lt, sizeof(epilogues) / sizeof(*epilogues)) {
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

/* GELU's matrix has columns that begin at multiples of 8, and 16 bytes; the bias need not. */
SELF_TEST(epilogues_may_have_no_algorithm) {
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
  set(&x, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, CUBLAS_COMPUTE_64F);
  set(&x, CUBLASLT_MATMUL_DESC_SCALE_TYPE, CUDA_R_64F);
  forget_layouts(&x);
  make_layouts(&x, CUDA_R_64F, M);
  ck_assert_int_eq(lt_ask(&x), CUBLAS_STATUS_NOT_SUPPORTED);
  set(&x, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  ck_assert_int_eq(lt_ask(&x), CUBLAS_STATUS_SUCCESS);
  lt_close(&x);
}

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
  forget_layouts(x);
  (void)cublasLtMatmulDescDestroy(x->desc);
}

SELF_TEST(types_of_lt) {
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

/* 256 + 1 - 256 is 1 in f32, and 0 where 257 becomes 256, as in bf16. */
SELF_TEST(parts_in_the_type_of_the_result) {
  const float one = 1, zero = 0;
  const uint16_t left[] = {0x4300, 0x3f80, 0xc300}, right[] = {0x4000, 0x3f80, 0x4000};
  uint16_t *a = device_copy(left, 3), *b = device_copy(right, 3), *d = device_new<uint16_t>(1);
  lt x;
  (void)cublasLtCreate(&x.handle);
  for (int parts = 0; parts < 3; parts++) { /* 2: the heuristic was not asked */
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
}

SELF_TEST(lt_is_strict) {
  lt x;
  lt_open(&x, CUBLASLT_EPILOGUE_DEFAULT);
  ck_assert_int_eq(lt_run(&x, 0),
                   CUBLAS_STATUS_INVALID_VALUE); /* the algorithm wants a workspace */
  int32_t short_attribute = 0;
  ck_assert_int_eq(cublasLtMatmulDescSetAttribute(x.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                  &short_attribute, sizeof(short_attribute)),
                   CUBLAS_STATUS_INVALID_VALUE);
  forget_layouts(&x);
  make_layouts(&x, CUDA_R_32F, M + 1);
  ck_assert_int_eq(lt_run(&x, x.found.workspaceSize), CUBLAS_STATUS_INVALID_VALUE);
  lt_close(&x);
}
