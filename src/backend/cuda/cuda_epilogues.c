/*
 * cuda_epilogues.c - products that cuBLASLt fuses with GELU and with the gradient of a bias.
 *
 *   slot's epilogue   cuBLASLt's                 vector         aux
 *   GELU, no pre      GELU(_BIAS)                the bias       -
 *   GELU_BACKWARD     DGELU, DGELU_BGRAD         sums           pre, read
 *   SUMS              BGRADB                     sums           -
 *
 * The vector has the type of c. So with 16-bit values the sums beside a gradient of a weight are
 * f32, as the gradient is, but those of DGELU_BGRAD would be rounded: they are computed by a kernel
 * of ours after DGELU.
 *
 * cuBLASLt swaps our operands (cuda_products.c): its B is our a, and the sums over its columns are
 * sums over our rows. Its GELU is the tanh form, as ours is.
 *
 * If pre is kept for a backward, GELU is always a kernel of ours, after a product that adds the
 * bias: `cheap` recomputation makes y again from pre by that kernel, and the two formulas need not
 * round alike (docs/numerics.md). This costs 4 bytes for each element of y, because GELU reads pre.
 *
 * Bytes saved in f32 for each element: 12 of dpre in backward, because dy w is neither written nor
 * read, and dpre is not read again for the bias; 4 of dy, because the sum of its columns does not
 * read it again; 8 of a y whose pre is not needed. A block of GPT of width C moves
 * 12 x 4C + 4 x 5C = 68 C bytes less for each token, in five operations less: 5.1 GB in a step
 * of 8 x 1024 tokens through twelve blocks of 768 columns. These figures are computed;
 * cuda_timing.c measures the gain of each of the three epilogues on the GPU that runs them.
 */
#include "backend/cuda/cuda_internal.h"

/* cublasLt.h: the leading dimension of GELU's input is a multiple of 8 elements. The alignment is
 * that of the widest access. */
enum { AUX_COLUMNS = 8, AUX_BYTES = 16 };

static bool fits(const struct ek__fused_args *args) {
  const struct ek__matmul_args *product = &args->product;
  if (product->types.value == EK_F64) return false;
  return args->pre == NULL || (product->n % AUX_COLUMNS == 0 && product->ldc == product->n &&
                               (uintptr_t)args->pre % AUX_BYTES == 0);
}

/* Whether sums are made by a kernel after the product. */
static bool sums_apart(const struct ek__fused_args *args) {
  return args->sums != NULL && args->epilogue == EK__EPILOGUE_GELU_BACKWARD &&
         ek__cuda_is_half(args->product.types.value);
}

static cublasLtEpilogue_t epilogue_for(const struct ek__fused_args *args) {
  switch (args->epilogue) {
  case EK__EPILOGUE_GELU:
    return args->product.bias == NULL ? CUBLASLT_EPILOGUE_GELU : CUBLASLT_EPILOGUE_GELU_BIAS;
  case EK__EPILOGUE_GELU_BACKWARD:
    return args->sums == NULL || sums_apart(args) ? CUBLASLT_EPILOGUE_DGELU
                                                  : CUBLASLT_EPILOGUE_DGELU_BGRAD;
  case EK__EPILOGUE_SUMS: break;
  }
  return CUBLASLT_EPILOGUE_BGRADB;
}

/* pre = x w^T + bias, y = GELU(pre): 8 bytes an element after the product, where a kernel that
 * adds the bias itself would move 12. */
static ek_status gelu_behind(ek_stream *stream, const struct ek__fused_args *args) {
  struct ek__matmul_args product = args->product;
  const struct ek__activation_args gelu = {.kind = EK_ACTIVATION_GELU,
                                           .y = product.c,
                                           .x = args->pre,
                                           .rows = product.m,
                                           .columns = product.n,
                                           .types = product.types};
  product.c = args->pre;
  EK_TRY(ek__cuda_slot_matmul(stream, &product));
  return ek__cuda_slot_activation_forward(stream, &gelu);
}

/* sums = sums_beta sums + the columns of a matrix. */
static ek_status sum_columns(ek_stream *stream, const struct ek__fused_args *args, const void *a,
                             int64_t rows, int64_t columns, int64_t pitch, struct ek__types types) {
  const struct ek__matrix_args sum = {.y = args->sums,
                                      .a = a,
                                      .rows = rows,
                                      .columns = columns,
                                      .pitch = pitch,
                                      .value = args->sums_beta,
                                      .types = types};
  return ek__cuda_slot_column_sum(stream, &sum);
}

static ek_status matmul_fused(bool *done, ek_stream *stream, const struct ek__fused_args *args) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  const struct ek__matmul_args *product = &args->product;
  const int64_t count = args->epilogue == EK__EPILOGUE_SUMS ? product->m : product->n;
  const bool apart = sums_apart(args);
  /* cuBLASLt overwrites: what is to be added comes by way of the workspace. */
  const bool add = args->sums != NULL && args->sums_beta != 0 && !apart;
  const bool fast =
      it->device->gpu->fused.of[ek__types_precision(&product->types)] >> args->epilogue & 1;
  if (args->epilogue == EK__EPILOGUE_GELU && args->pre != NULL) {
    *done = product->types.value != EK_F64; /* which has no products with a bias */
    return *done ? gelu_behind(stream, args) : EK_OK;
  }
  if (!fast || !fits(args) || (add && count > (int64_t)(EK__CUDA_KERNEL_BYTES / sizeof(float))))
    return EK_OK;
  void *sums = add ? ek__cuda_kernel_workspace(it->device) : apart ? NULL : args->sums;
  const struct ek__cuda_product what = {
      .args = product,
      .epilogue = epilogue_for(args),
      .vector = args->epilogue == EK__EPILOGUE_GELU ? product->bias : sums,
      .aux = args->pre};
  EK_TRY(ek__cuda_enter(it->device));
  EK_TRY(ek__cuda_multiply(done, it, &what));
  if (!*done) return EK_OK;
  if (apart) {
    return sum_columns(stream, args, product->c, product->m, count, product->ldc, product->types);
  }
  if (!add) return EK_OK;
  /* One row: column_sum reads it where it is, and needs no workspace of its own. */
  return sum_columns(stream, args, sums, 1, count, count, ek__types_in(EK_F32));
}

ek_status ek__cuda_slot_matmul_fused(bool *done, ek_stream *stream,
                                     const struct ek__fused_args *args) {
  const int before = ek__cuda_current();
  return ek__cuda_leave(before, matmul_fused(done, stream, args));
}
