/*
 * cuda_epilogues.c - products that cuBLASLt fuses with GELU and with the gradient of a bias, or
 * these one kernel after the other, whichever is faster.
 *
 *   slot's epilogue   cuBLASLt's                 vector         aux
 *   GELU              GELU(_AUX)(_BIAS)          the bias       pre, written, or -
 *   GELU_BACKWARD     DGELU, DGELU_BGRAD         sums           pre, read
 *   SUMS              BGRADB                     sums           -
 *
 * Which way is faster depends on the shape: a gradient of a weight sums over all tokens and has few
 * tiles, so an algorithm that cannot split that sum for the sake of BGRADB takes several times as
 * long as one that can. So both ways are timed for each shape, on the operands of its first product
 * (cuda_choice.c). A deterministic group times nothing and uses kernels.
 *
 * GELU of cuBLASLt is left out where it is less exact than the rest (is_close): on an H100 its tanh
 * is an approximation, by which y differs from the formula by 5e-5 in f32, and without aux by up to
 * 2 % of a small y of 16 bits.
 *
 * The vector has the type of c. So with 16-bit values the sums beside a gradient of a weight are
 * f32, as the gradient is, but those of DGELU_BGRAD would be rounded: they are computed by a kernel
 * of ours after DGELU.
 *
 * cuBLASLt swaps our operands (cuda_products.c): its B is our a, and the sums over its columns are
 * sums over our rows. Its GELU is the tanh form, as ours is, but it sees pre before that is rounded
 * to 16 bits, and need not round as our kernel does. Where a model makes y again from pre (`cheap`
 * in recompute.h), its chain asks for the product and for GELU, one after the other (product.c).
 *
 * Bytes saved in f32 for each element: 12 of dpre in backward, because dy w is neither written nor
 * read, and dpre is not read again for the bias; 4 of dy, because the sum of its columns does not
 * read it again; 4 of pre in forward, or 8 of a y whose pre is not needed. A block of GPT of width
 * C moves 16 x 4C + 4 x 5C = 84 C bytes less for each token, in six operations less: 6.3 GB in a
 * step of 8 x 1024 tokens through twelve blocks of 768 columns. These figures are computed.
 */
#include "backend/cuda/cuda_internal.h"

/* cublasLt.h: the leading dimension of GELU's input is a multiple of 8 elements. The alignment is
 * that of the widest access. */
enum { AUX_COLUMNS = 8, AUX_BYTES = 16 };

static bool fits(const struct ek__fused_args *args) {
  const struct ek__matmul_args *product = &args->product;
  return args->pre == NULL || (product->n % AUX_COLUMNS == 0 && product->ldc == product->n &&
                               (uintptr_t)args->pre % AUX_BYTES == 0);
}

/* Whether sums are made by a kernel after the product. */
static bool sums_apart(const struct ek__fused_args *args) {
  return args->sums != NULL && args->epilogue == EK__EPILOGUE_GELU_BACKWARD &&
         ek__cuda_is_half(args->product.types.value);
}

static cublasLtEpilogue_t epilogue_for(const struct ek__fused_args *args) {
  const bool bias = args->product.bias != NULL;
  switch (args->epilogue) {
  case EK__EPILOGUE_GELU:
    return args->pre == NULL ? bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU
           : bias            ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                             : CUBLASLT_EPILOGUE_GELU_AUX;
  case EK__EPILOGUE_GELU_BACKWARD:
    return args->sums == NULL || sums_apart(args) ? CUBLASLT_EPILOGUE_DGELU
                                                  : CUBLASLT_EPILOGUE_DGELU_BGRAD;
  case EK__EPILOGUE_SUMS: break;
  }
  return CUBLASLT_EPILOGUE_BGRADB;
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
  return args->sums == NULL ? EK_OK : ek__cuda_slot_column_sum(stream, &sum);
}

/* ---- one kernel after the other ---- */

struct apart {
  ek_stream *stream;
  const struct ek__fused_args *args;
};

/* The product adds the bias: GELU after it moves 8 bytes an element, where a kernel that adds the
 * bias itself would move 12. */
static ek_status one_by_one(bool *done, void *raw) {
  const struct apart *it = raw;
  const struct ek__fused_args *args = it->args;
  struct ek__matmul_args product = args->product;
  struct ek__activation_args gelu = {.kind = EK_ACTIVATION_GELU,
                                     .y = product.c,
                                     .x = args->pre,
                                     .dy = product.c,
                                     .rows = product.m,
                                     .columns = product.n,
                                     .types = product.types};
  *done = true;
  switch (args->epilogue) {
  case EK__EPILOGUE_GELU:
    if (args->pre != NULL) product.c = args->pre;
    gelu.x = product.c;
    gelu.dy = NULL;
    EK_TRY(ek__cuda_slot_matmul(it->stream, &product));
    return ek__cuda_slot_activation_forward(it->stream, &gelu);
  case EK__EPILOGUE_GELU_BACKWARD:
    EK_TRY(ek__cuda_slot_matmul(it->stream, &product));
    EK_TRY(ek__cuda_slot_activation_backward(it->stream, &gelu));
    return sum_columns(it->stream, args, product.c, product.m, product.n, product.ldc,
                       product.types);
  case EK__EPILOGUE_SUMS: break;
  }
  EK_TRY(ek__cuda_slot_matmul(it->stream, &product));
  return sum_columns(it->stream, args, product.a, product.k, product.m, product.lda,
                     product.types);
}

/* ---- by cuBLASLt ---- */

static ek_status by_epilogue(bool *done, ek_stream *stream, const struct ek__fused_args *args) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  const struct ek__matmul_args *product = &args->product;
  const int64_t count = args->epilogue == EK__EPILOGUE_SUMS ? product->m : product->n;
  const bool apart = sums_apart(args);
  /* cuBLASLt overwrites: what is to be added comes by way of the workspace. */
  const bool add = args->sums != NULL && args->sums_beta != 0 && !apart;
  if (!fits(args) || (add && count > (int64_t)(EK__CUDA_KERNEL_BYTES / sizeof(float)))) {
    return EK_OK;
  }
  void *sums = add ? ek__cuda_kernel_workspace(it->device) : apart ? NULL : args->sums;
  struct ek__fused_args alike = *args; /* what the epilogue does */
  if (apart) alike.sums = NULL;
  struct apart other = {stream, &alike};
  const struct ek__cuda_product what = {
      .args = product,
      .epilogue = epilogue_for(args),
      .vector = args->epilogue == EK__EPILOGUE_GELU ? product->bias : sums,
      .aux = args->pre,
      .other = one_by_one,
      .with = &other,
      .repeats = product->beta == 0 && !add && product->c != args->pre};
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

/* TF32's products are no closer than GELU is. */
static bool is_close(const struct ek__fused_args *args) {
  const struct ek__types *types = &args->product.types;
  if (args->epilogue == EK__EPILOGUE_SUMS || types->tf32) return true;
  return ek__cuda_is_half(types->value) && args->pre != NULL;
}

static ek_status matmul_fused(bool *done, ek_stream *stream, const struct ek__fused_args *args) {
  struct apart other = {stream, args};
  if (args->product.types.value == EK_F64) return EK_OK; /* cuBLASLt adds no bias there */
  if (is_close(args) && !ek__cuda_stream_of(stream)->device->group->options.deterministic) {
    EK_TRY(by_epilogue(done, stream, args));
  }
  return *done ? EK_OK : one_by_one(done, &other);
}

ek_status ek__cuda_slot_matmul_fused(bool *done, ek_stream *stream,
                                     const struct ek__fused_args *args) {
  const int before = ek__cuda_current();
  return ek__cuda_leave(before, matmul_fused(done, stream, args));
}
