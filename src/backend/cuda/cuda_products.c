/*
 * cuda_products.c - matrix products by cuBLASLt, plain and with an epilogue.
 *
 * cuBLASLt reads matrices by columns. A row-major matrix read so is its transpose, and
 * (a b)^T = b^T a^T: the operands are swapped and nothing is moved. A bias for each column of c is
 * then one for each row of what cuBLASLt computes, which is what its epilogue adds.
 *
 * cuBLASLt's description of a shape is made once and kept: a product that repeats only sets the
 * addresses of its epilogue. The heuristic is asked for the algorithms of a shape once, and they
 * are kept: asking takes longer than a small product, and the same algorithm gives the same bits.
 * Then the fastest of them is measured (cuda_choice.c). The heuristic may be wrong: an algorithm
 * that the product refuses is given up for good, and the next one is tried. A plain product that
 * has none left goes to cuBLASLt without an algorithm, and then to a kernel of ours
 * (cuda_multiply.cu); other epilogues are computed by kernels of ours, and so are those that are
 * slower than such kernels: the plan of such a shape is one that has no algorithms.
 *
 * Operands of 16 bits are multiplied with f32 sums; c is of their type, or f32 if it is the
 * gradient of a weight. Parts of a sum over k that are computed apart are added up in f32: cuBLASLt
 * would also do that in the type of c (CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, _INPLACE) and round
 * each part, or add in no fixed order. So the heuristic is told not to offer it, and cuBLASLt is
 * never left to choose for a c of 16 bits. With an epilogue, parts of a c of 16 bits are not taken
 * either: on an H100 their sum is rounded before the bias. What beta c adds is added to a rounded
 * product there in any case.
 */
#include <string.h>

#include "backend/cuda/cuda_internal.h"

/* VECTOR_BYTES: for a bias that was aligned to less cuBLASLt has chosen kernels that read 16 bytes
 * of it at once, although the heuristic was given its address. */
enum { PLANS = 512, PROBES = 8, CANDIDATES = 8, VECTOR_BYTES = 16 };

/* Of epilogues that read or write what GELU gets. */
#define AUX_BIT ((unsigned)CUBLASLT_EPILOGUE_GELU_AUX & ~(unsigned)CUBLASLT_EPILOGUE_GELU)

/* What cuBLASLt wants to know of a product: of its shape, and the addresses of the epilogue. */
struct description {
  cublasLtMatmulDesc_t product;
  cublasLtMatrixLayout_t first, second, result; /* b, a and c by columns */
};

struct plan {
  bool known;
  struct ek__cuda_shape shape;
  struct description made; /* of the shape, or of the one that gave way */
  int count, next; /* the candidates, the one to take first; those before `next` were refused */
  cublasLtMatmulAlgo_t candidate[CANDIDATES];
  bool automatic; /* all were: cuBLASLt chooses by itself, if it can */
};

struct ek__cuda_products {
  struct plan plan[PLANS]; /* at a hash of the shape, or in one of the next places */
};

ek_status ek__cuda_products_open(struct ek__cuda_device *device) {
  device->plans = ek__cuda_new(sizeof *device->plans, "matrix products");
  if (device->plans == NULL) return EK_ERR_OUT_OF_MEMORY;
  EK_TRY(EK__CUDA(device, cudaEventCreate, &device->begin));
  EK_TRY(EK__CUDA(device, cudaEventCreate, &device->end));
  return ek__cuda_check_blas(device, cublasLtCreate(&device->products), "cublasLtCreate");
}

static void forget(struct description *made) {
  if (made->result != NULL) (void)cublasLtMatrixLayoutDestroy(made->result);
  if (made->second != NULL) (void)cublasLtMatrixLayoutDestroy(made->second);
  if (made->first != NULL) (void)cublasLtMatrixLayoutDestroy(made->first);
  if (made->product != NULL) (void)cublasLtMatmulDescDestroy(made->product);
  *made = (struct description){0};
}

void ek__cuda_products_close(struct ek__cuda_device *device) {
  for (size_t i = 0; i < PLANS && device->plans != NULL; i++) forget(&device->plans->plan[i].made);
  if (device->products != NULL) (void)cublasLtDestroy(device->products);
  if (device->end != NULL) (void)cudaEventDestroy(device->end);
  if (device->begin != NULL) (void)cudaEventDestroy(device->begin);
  if (device->plans != NULL) ek__cuda_host->free(device->plans);
}

/* ---- what cuBLASLt wants to know ---- */

struct product {
  const struct ek__cuda_device *device;
  struct ek__cuda_shape shape;
  struct description *made; /* its plan's */
};

/* The largest power of two up to 256 that divides an address; NULL has them all. */
static uint32_t alignment(const void *address) {
  uint32_t result = 256;
  while ((uintptr_t)address % result != 0) result /= 2;
  return result;
}

static struct ek__cuda_shape shape_of(const struct ek__cuda_product *what) {
  const struct ek__matmul_args *args = what->args;
  return (struct ek__cuda_shape){.m = args->m,
                                 .n = args->n,
                                 .k = args->k,
                                 .lda = args->lda,
                                 .ldb = args->ldb,
                                 .ldc = args->ldc,
                                 .precision = (uint16_t)ek__types_precision(&args->types),
                                 .result = (uint16_t)ek__cuda_result_type(args),
                                 .transpose_a = args->transpose_a,
                                 .transpose_b = args->transpose_b,
                                 .has_beta = args->beta != 0,
                                 .epilogue = (uint32_t)what->epilogue,
                                 .align_a = alignment(args->a),
                                 .align_b = alignment(args->b),
                                 .align_c = alignment(args->c),
                                 .align_vector = alignment(what->vector),
                                 .align_aux = alignment(what->aux)};
}

static ek_status set(const struct product *product, cublasLtMatmulDescAttributes_t attribute,
                     const void *value, size_t size) {
  return ek__cuda_check_blas(
      product->device,
      cublasLtMatmulDescSetAttribute(product->made->product, attribute, value, size),
      "matmul: cublasLtMatmulDescSetAttribute");
}

/* A stored row-major matrix, by columns. */
static ek_status layout(const struct product *product, cublasLtMatrixLayout_t *result,
                        uint16_t type, int64_t rows, int64_t columns, int64_t pitch) {
  static const cudaDataType_t types[] = {[EK_F32] = CUDA_R_32F,
                                         [EK_F64] = CUDA_R_64F,
                                         [EK_BF16] = CUDA_R_16BF,
                                         [EK_F16] = CUDA_R_16F};
  return ek__cuda_check_blas(
      product->device,
      cublasLtMatrixLayoutCreate(result, types[type], (uint64_t)columns, (uint64_t)rows, pitch),
      "matmul: cublasLtMatrixLayoutCreate");
}

/* The addresses, which another product of the shape has elsewhere. The heuristic looks at their
 * alignment. */
static ek_status point(const struct product *product, const struct ek__cuda_product *what) {
  if (what->vector != NULL) {
    EK_TRY(set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &what->vector, sizeof what->vector));
  }
  if (what->aux == NULL) return EK_OK;
  return set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &what->aux, sizeof what->aux);
}

static ek_status describe_epilogue(const struct product *product,
                                   const struct ek__cuda_product *what) {
  EK_TRY(set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &what->epilogue, sizeof what->epilogue));
  if (what->aux == NULL) return EK_OK;
  return set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &what->args->n, sizeof what->args->n);
}

static ek_status describe(const struct product *product, const struct ek__cuda_product *what) {
  const struct ek__matmul_args *args = what->args;
  struct description *made = product->made;
  const bool wide = args->types.value == EK_F64;
  const uint16_t type = (uint16_t)args->types.value;
  const cublasComputeType_t compute = wide               ? CUBLAS_COMPUTE_64F
                                      : args->types.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                         : CUBLAS_COMPUTE_32F;
  const cublasOperation_t first = args->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = args->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  EK_TRY(ek__cuda_check_blas(
      product->device,
      cublasLtMatmulDescCreate(&made->product, compute, wide ? CUDA_R_64F : CUDA_R_32F),
      "matmul: cublasLtMatmulDescCreate"));
  EK_TRY(set(product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
  EK_TRY(set(product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
  EK_TRY(describe_epilogue(product, what));
  EK_TRY(args->transpose_b ? layout(product, &made->first, type, args->n, args->k, args->ldb)
                           : layout(product, &made->first, type, args->k, args->n, args->ldb));
  EK_TRY(args->transpose_a ? layout(product, &made->second, type, args->k, args->m, args->lda)
                           : layout(product, &made->second, type, args->m, args->k, args->lda));
  return layout(product, &made->result, product->shape.result, args->m, args->n, args->ldc);
}

/* ---- the algorithm ---- */

static cublasStatus_t prefer(cublasLtMatmulPreference_t preference,
                             const struct ek__cuda_shape *shape) {
  const uint64_t bytes = EK__CUDA_PRODUCT_BYTES;
  const bool rounds = ek__cuda_is_half((ek_type)shape->result) &&
                      shape->epilogue != (uint32_t)CUBLASLT_EPILOGUE_DEFAULT;
  const uint32_t sums_in_f32 = rounds ? (uint32_t)CUBLASLT_REDUCTION_SCHEME_NONE
                                      : (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const struct {
    cublasLtMatmulPreferenceAttributes_t attribute;
    uint32_t value;
  } wishes[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape->align_b},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape->align_a},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape->align_c},
                {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape->align_c},
                {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, sums_in_f32}};
  const size_t count = sizeof wishes / sizeof wishes[0];
  cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
  for (size_t i = 0; i < count && status == CUBLAS_STATUS_SUCCESS; i++) {
    status = cublasLtMatmulPreferenceSetAttribute(preference, wishes[i].attribute, &wishes[i].value,
                                                  sizeof wishes[i].value);
  }
  return status;
}

/* The heuristic's answer: an algorithm in the list may be marked as one that does not work. */
static void keep(struct plan *plan, const cublasLtMatmulHeuristicResult_t *found, int count) {
  plan->count = plan->next = 0;
  for (int i = 0; i < count; i++) {
    if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > EK__CUDA_PRODUCT_BYTES)
      continue;
    plan->candidate[plan->count++] = found[i].algo;
  }
  plan->automatic = false;
  plan->known = true;
}

/* Nothing was queued then, and nothing is wrong with the device. cuBLASLt calls some shapes invalid
 * that its manual allows (matrices of one row or column with an epilogue), so that answer, too,
 * says only that another way must be taken. */
static bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH ||
         status == CUBLAS_STATUS_INVALID_VALUE;
}

/* Once for each shape of a device, so that a fault of this file would be seen. */
static void log_refusal(const struct product *product) {
  const struct ek__cuda_shape *shape = &product->shape;
  ek__cuda_host->log(EK_LOG_INFO,
                     "%s: cuBLASLt rejects a product of %lld x %lld x %lld with epilogue %u; using "
                     "the library's own kernels for the epilogue",
                     product->device->name, (long long)shape->m, (long long)shape->n,
                     (long long)shape->k, (unsigned)shape->epilogue);
}

static ek_status ask(struct plan *plan, const struct product *product) {
  cublasLtMatmulPreference_t preference = NULL;
  cublasLtMatmulHeuristicResult_t found[CANDIDATES];
  int count = 0;
  memset(found, 0, sizeof found);
  cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
  if (status == CUBLAS_STATUS_SUCCESS) status = prefer(preference, &product->shape);
  if (status == CUBLAS_STATUS_SUCCESS) {
    const struct description *made = product->made;
    status = cublasLtMatmulAlgoGetHeuristic(product->device->products, made->product, made->first,
                                            made->second, made->result, made->result, preference,
                                            CANDIDATES, found, &count);
  }
  if (preference != NULL) (void)cublasLtMatmulPreferenceDestroy(preference);
  if (is_refusal(status)) {
    count = 0;
    if (status == CUBLAS_STATUS_INVALID_VALUE) log_refusal(product);
  } else {
    EK_TRY(ek__cuda_check_blas(product->device, status, "matmul: cublasLtMatmulAlgoGetHeuristic"));
  }
  plan->shape = product->shape;
  keep(plan, found, count);
  return EK_OK;
}

/* The shape's plan; for a new shape one that is not known yet. */
static struct plan *plan_for(const struct ek__cuda_device *device,
                             const struct ek__cuda_shape *shape) {
  uint64_t hash = UINT64_C(1469598103934665603); /* FNV-1a */
  const unsigned char *bytes = (const unsigned char *)shape;
  for (size_t i = 0; i < sizeof *shape; i++) {
    hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
  }
  hash ^= hash >> 32;
  struct plan *plans = device->plans->plan, *at = NULL;
  for (size_t i = 0; i < PROBES; i++) {
    at = &plans[(hash + i) % PLANS];
    if (!at->known || memcmp(&at->shape, shape, sizeof at->shape) == 0) return at;
  }
  at->known = false; /* gives way */
  return at;
}

/* `algorithm` may be NULL. */
static cublasStatus_t multiply(const struct product *product, const struct ek__matmul_args *args,
                               const cublasLtMatmulAlgo_t *algorithm, cudaStream_t stream) {
  const double one = 1, beta = args->beta;
  const float one_f = 1, beta_f = (float)beta;
  const bool wide = args->types.value == EK_F64;
  const struct description *made = product->made;
  return cublasLtMatmul(product->device->products, made->product,
                        wide ? (const void *)&one : &one_f, args->b, made->first, args->a,
                        made->second, wide ? (const void *)&beta : &beta_f, args->c, made->result,
                        args->c, made->result, algorithm, product->device->workspace,
                        EK__CUDA_PRODUCT_BYTES, stream);
}

/* Whether the plan says that there is nothing. */
static bool is_refused(const struct plan *plan) {
  return plan->known && plan->next == plan->count && !plan->automatic;
}

/* The first candidate that does it. */
static ek_status try_candidates(bool *done, struct plan *plan, const struct product *product,
                                const struct ek__matmul_args *args, cudaStream_t stream) {
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  for (; plan->next < plan->count; plan->next++) {
    status = multiply(product, args, &plan->candidate[plan->next], stream);
    if (!is_refusal(status)) break;
  }
  if (plan->next == plan->count && product->shape.epilogue == CUBLASLT_EPILOGUE_DEFAULT &&
      !ek__cuda_is_half((ek_type)product->shape.result)) {
    status = multiply(product, args, NULL, stream);
    plan->automatic = !is_refusal(status);
  }
  *done = status == CUBLAS_STATUS_SUCCESS;
  if (is_refusal(status)) return EK_OK;
  return ek__cuda_check_blas(product->device, status, "matmul: cublasLtMatmul");
}

/* A candidate of a plan, as cuda_choice.c wants it. */
struct attempt {
  const struct plan *plan;
  const struct product *product;
  const struct ek__matmul_args *args;
  cudaStream_t stream;
};

static ek_status run_candidate(bool *done, void *raw) {
  const struct ek__cuda_candidate *it = raw;
  const struct attempt *of = it->of;
  const cublasStatus_t status =
      multiply(of->product, of->args, &of->plan->candidate[it->number], of->stream);
  *done = status == CUBLAS_STATUS_SUCCESS;
  if (is_refusal(status)) return EK_OK;
  return ek__cuda_check_blas(of->product->device, status, "matmul: cublasLtMatmul");
}

/* Puts the fastest candidate first. */
static ek_status choose(struct plan *plan, const struct ek__cuda_stream *stream,
                        const struct product *product, const struct ek__cuda_product *what) {
  struct attempt attempt = {plan, product, what->args, stream->handle};
  struct ek__cuda_candidate candidate = {.of = &attempt};
  int number = 0;
  if (what->untimed) return EK_OK;
  EK_TRY(ek__cuda_choose(&number, stream, &plan->shape, plan->count, run_candidate, &candidate));
  const cublasLtMatmulAlgo_t chosen = plan->candidate[number];
  memmove(&plan->candidate[1], &plan->candidate[0], (size_t)number * sizeof chosen);
  plan->candidate[0] = chosen;
  return EK_OK;
}

/* A product with an epilogue, and whose it is. */
struct fused {
  const struct ek__cuda_stream *stream;
  struct ek__cuda_product what;
};

static ek_status product_of_shape(bool *done, const struct ek__cuda_stream *stream,
                                  const struct ek__cuda_product *what);

static ek_status run_fused(bool *done, void *raw) {
  const struct fused *it = raw;
  *done = false;
  return product_of_shape(done, it->stream, &it->what);
}

/* The first product of a shape that other kernels can do: refuses the shape if they are faster.
 * The other way has plans of its own, for which this one may have given way. */
static ek_status compare(bool *done, const struct ek__cuda_stream *stream,
                         const struct ek__cuda_product *what, const struct ek__cuda_shape *shape) {
  struct fused fused = {stream, *what};
  bool wins = false;
  fused.what.other = NULL;
  EK_TRY(ek__cuda_prefer(&wins, stream, shape, run_fused, &fused, what));
  if (wins) return run_fused(done, &fused);
  struct plan *plan = plan_for(stream->device, shape);
  if (plan->known) plan->count = plan->next = 0;
  return EK_OK;
}

static ek_status product_of_shape(bool *done, const struct ek__cuda_stream *stream,
                                  const struct ek__cuda_product *what) {
  if ((uintptr_t)what->vector % VECTOR_BYTES != 0) return EK_OK;
  struct product product = {.device = stream->device, .shape = shape_of(what)};
  struct plan *plan = plan_for(stream->device, &product.shape);
  const bool known = plan->known;
  product.made = &plan->made;
  if (is_refused(plan)) return EK_OK;
  if (known) {
    EK_TRY(point(&product, what));
  } else {
    EK_TRY(ek__cuda_let_collectives_end(stream->device));
    forget(&plan->made);
    EK_TRY(describe(&product, what));
    EK_TRY(point(&product, what));
    EK_TRY(ask(plan, &product));
    EK_TRY(choose(plan, stream, &product, what));
  }
  if (!known && what->other != NULL && plan->count > 0) {
    return compare(done, stream, what, &product.shape);
  }
  return try_candidates(done, plan, &product, what->args, stream->handle);
}

ek_status ek__cuda_multiply(bool *done, const struct ek__cuda_stream *stream,
                            const struct ek__cuda_product *what) {
  *done = false;
  ek__cuda_call_begins(stream->device);
  return ek__cuda_call_ends(stream->device, product_of_shape(done, stream, what));
}

/* ---- before the first product ---- */

/* The kinds that training has, forward, backward, and for the parameters. */
static const struct kind {
  bool transpose_a, transpose_b;
  double beta;
  cublasLtEpilogue_t epilogue;
} kinds[] = {
    {false, true, 0, CUBLASLT_EPILOGUE_DEFAULT},   {false, false, 0, CUBLASLT_EPILOGUE_DEFAULT},
    {true, false, 0, CUBLASLT_EPILOGUE_DEFAULT},   {false, false, 1, CUBLASLT_EPILOGUE_DEFAULT},
    {true, false, 1, CUBLASLT_EPILOGUE_DEFAULT},   {false, true, 0, CUBLASLT_EPILOGUE_BIAS},
    {false, true, 0, CUBLASLT_EPILOGUE_GELU_BIAS},
    {false, true, 0, CUBLASLT_EPILOGUE_GELU_AUX_BIAS},
    {false, false, 0, CUBLASLT_EPILOGUE_DGELU},    {false, false, 0, CUBLASLT_EPILOGUE_DGELU_BGRAD},
    {true, false, 0, CUBLASLT_EPILOGUE_BGRADB},    {true, false, 1, CUBLASLT_EPILOGUE_BGRADB}};

/* Whether a precision has it: f64 has the plain ones, 16 bits those whose vector is not a rounded
 * sum. */
static bool has_kind(const struct kind *kind, ek_precision precision) {
  if (precision == EK_PRECISION_F64) return kind->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  return kind->epilogue !=
         (ek__cuda_is_half(ek__types_for(precision).value) ? CUBLASLT_EPILOGUE_DGELU_BGRAD
                                                           : CUBLASLT_EPILOGUE_DGELU);
}

static ek_status warm_kind(const struct ek__cuda_stream *stream, char *at, const struct kind *kind,
                           ek_precision precision) {
  enum { SIDE = 64, BYTES = SIDE * SIDE * sizeof(double) };
  const unsigned epilogue = (unsigned)kind->epilogue;
  const bool aux = (epilogue & AUX_BIT) != 0;
  const bool plain = kind->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  const struct ek__matmul_args args =
      ek__cuda_dense((struct ek__matmul_args){.c = at,
                                              .a = at + BYTES,
                                              .b = at + 2 * BYTES,
                                              .m = SIDE,
                                              .n = SIDE,
                                              .k = SIDE,
                                              .transpose_a = kind->transpose_a,
                                              .transpose_b = kind->transpose_b,
                                              .beta = kind->beta,
                                              .gradient = kind->transpose_a,
                                              .types = ek__types_for(precision)});
  const struct ek__cuda_product what = {
      .args = &args,
      .epilogue = kind->epilogue,
      .vector = plain || kind->epilogue == CUBLASLT_EPILOGUE_DGELU ? NULL : at + 3 * BYTES,
      .aux = aux ? at + 4 * BYTES : NULL,
      .untimed = true};
  bool done = false; /* what there is no algorithm for loads nothing */
  return ek__cuda_multiply(&done, stream, &what);
}

ek_status ek__cuda_products_warm(const struct ek__cuda_stream *stream, void *memory) {
  static const ek_precision precisions[] = {EK_PRECISION_F32, EK_PRECISION_F64, EK_PRECISION_BF16,
                                            EK_PRECISION_F16, EK_PRECISION_TF32};
  for (size_t p = 0; p < sizeof precisions / sizeof precisions[0]; p++) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
      if (!has_kind(&kinds[i], precisions[p])) continue;
      EK_TRY(warm_kind(stream, memory, &kinds[i], precisions[p]));
    }
  }
  return EK_OK;
}

/* ---- the kernel ---- */

/* The place of a kernel of ours that needs no workspace. */
static struct ek__cuda_place place_on(const struct ek__cuda_stream *stream) {
  return (struct ek__cuda_place){.stream = stream->handle, .bad = stream->device->bad};
}

static ek_status plain_product(const struct ek__cuda_stream *it,
                               const struct ek__matmul_args *args) {
  const struct ek__cuda_product plain = {.args = args, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
  const struct ek__cuda_place place = place_on(it);
  bool done = false;
  EK_TRY(ek__cuda_multiply(&done, it, &plain));
  if (done) return EK_OK;
  return ek__cuda_check(it->device, ek__cuda_multiply_plainly(&place, args), "matmul");
}

/* A bias where cuBLASLt adds none: after the product, but of 16 bits before it, as c would be
 * rounded twice. */
static ek_status bias_apart(ek_stream *stream, const struct ek__matmul_args *args) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  const struct ek__matrix_args bias = {.y = args->c,
                                       .b = args->bias,
                                       .rows = args->m,
                                       .columns = args->n,
                                       .pitch = args->ldc,
                                       .types = args->types};
  if (!ek__cuda_is_half(args->types.value) || args->beta != 0) {
    EK_TRY(plain_product(it, args));
    return ek__cuda_slot_add_bias(stream, &bias);
  }
  const struct ek__cuda_place place = place_on(it);
  struct ek__matmul_args added = *args;
  added.beta = 1;
  EK_TRY(ek__cuda_check(it->device, ek__cuda_spread_bias(&place, &bias), "matmul: bias"));
  return plain_product(it, &added);
}

static ek_status whole_product(ek_stream *stream, const struct ek__matmul_args *args) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  if (args->bias == NULL) return plain_product(it, args);
  bool done = false;
  /* cuBLASLt adds no bias to f64. */
  if (args->types.value != EK_F64) {
    const struct ek__cuda_product with_bias = {
        .args = args, .epilogue = CUBLASLT_EPILOGUE_BIAS, .vector = args->bias};
    EK_TRY(ek__cuda_multiply(&done, it, &with_bias));
  }
  return done ? EK_OK : bias_apart(stream, args);
}

/* ---- sides that are not made of whole vectors ---- */

enum side { SIDE_M, SIDE_N, SIDE_K };

/* Less is not worth a second product. */
enum { LEAST_CUT = 1024 };

static int64_t size_of(const struct ek__matmul_args *args, enum side side) {
  return side == SIDE_M ? args->m : side == SIDE_N ? args->n : args->k;
}

/* What is left of a side over whole vectors, if only that keeps cuBLASLt from reading vectors: the
 * rows of an operand have that many elements, and all rows begin at vectors. Else 0. */
static int64_t rest_of(const struct ek__matmul_args *args, enum side side) {
  const int64_t vector = VECTOR_BYTES / (int64_t)ek__type_size(args->types.value);
  const bool along = side == SIDE_N || (side == SIDE_M && args->transpose_a) ||
                     (side == SIDE_K && (!args->transpose_a || args->transpose_b));
  const bool aligned =
      args->lda % vector == 0 && args->ldb % vector == 0 && args->ldc % vector == 0;
  return size_of(args, side) >= LEAST_CUT && along && aligned ? size_of(args, side) % vector : 0;
}

/* Elements first .. first + count - 1 of a side; a part of k after the first is added. */
static struct ek__matmul_args part_of(const struct ek__matmul_args *args, enum side side,
                                      int64_t first, int64_t count) {
  struct ek__matmul_args part = *args;
  const int64_t element = (int64_t)ek__type_size(args->types.value);
  const int64_t result = (int64_t)ek__type_size(ek__cuda_result_type(args));
  const bool rows_of_a = args->transpose_a == (side == SIDE_K);
  const bool rows_of_b = args->transpose_b == (side == SIDE_N);
  if (side == SIDE_M) part.m = count;
  if (side == SIDE_N) part.n = count;
  if (side == SIDE_K) part.k = count;
  if (first == 0) return part;
  if (side != SIDE_N) {
    part.a = (const char *)args->a + first * (rows_of_a ? args->lda : 1) * element;
  }
  if (side != SIDE_M) {
    part.b = (const char *)args->b + first * (rows_of_b ? args->ldb : 1) * element;
  }
  if (side == SIDE_K) {
    part.beta = 1;
    part.bias = NULL;
    return part;
  }
  part.c = (char *)args->c + first * (side == SIDE_M ? args->ldc : 1) * result;
  if (side == SIDE_N && args->bias != NULL) part.bias = (const char *)args->bias + first * element;
  return part;
}

/* On an H100 a head of 50,257 columns takes seven times as long as one of 50,264, however long the
 * rows are. So the rest is a product of its own. Where that is a rest of k, a c of 16 bits is
 * rounded once more. */
static ek_status matmul(ek_stream *stream, const struct ek__matmul_args *args) {
  static const enum side sides[] = {SIDE_N, SIDE_M, SIDE_K};
  EK_TRY(ek__cuda_enter(ek__cuda_stream_of(stream)->device));
  for (size_t i = 0; i < sizeof sides / sizeof sides[0]; i++) {
    const int64_t rest = rest_of(args, sides[i]), whole = size_of(args, sides[i]) - rest;
    if (rest == 0) continue;
    const struct ek__matmul_args most = part_of(args, sides[i], 0, whole);
    const struct ek__matmul_args last = part_of(args, sides[i], whole, rest);
    EK_TRY(whole_product(stream, &most));
    return whole_product(stream, &last);
  }
  return whole_product(stream, args);
}

ek_status ek__cuda_slot_matmul(ek_stream *stream, const struct ek__matmul_args *args) {
  const int before = ek__cuda_current();
  return ek__cuda_leave(before, matmul(stream, args));
}
