/*
 * cuda_timing.c - times an epilogue of cuBLASLt against a kernel of ours, by the GPU's clock.
 *
 * An algorithm for an epilogue need not be a good one: for f32 cuBLASLt may have none made for GELU
 * or for gradients of a bias. So both ways are timed once for each GPU of the process and each
 * precision except f64, which has no epilogues, before the first group's memory is taken, on a
 * product of a size that training has, and the epilogue is used if it is clearly faster. A bias
 * alone is always added by cuBLASLt. The algorithms of a shape are timed when it first occurs
 * (cuda_choice.c).
 *
 * A deterministic group times nothing: a narrow winner may lose in the next run, and the two ways
 * sum in different orders.
 */
#include "backend/cuda/cuda_internal.h"

/* What is timed: rows m, columns n and depth k as in the MLP of a GPT-2. */
struct sample {
  enum ek__epilogue epilogue;
  struct ek__matmul_args product;
  struct ek__cuda_place at;
  const struct ek__cuda_stream *stream;
  void *pre, *sums, *bias;
};

static struct sample sample_on(struct ek__cuda_device *device, char *memory,
                               enum ek__epilogue epilogue, ek_precision precision) {
  enum { M = EK__CUDA_TIMED_ROWS, N = EK__CUDA_TIMED_COLUMNS, K = EK__CUDA_TIMED_DEPTH };
  float *const c = (float *)(void *)memory, *const pre = c + (size_t)M * N;
  float *const a = pre + (size_t)M * N, *const b = a + (size_t)M * K, *const v = b + (size_t)N * K;
  const struct ek__cuda_stream *stream = &device->streams[EK_STREAM_COMPUTE];
  return (struct sample){.epilogue = epilogue,
                         .product = ek__cuda_dense(
                             (struct ek__matmul_args){.c = c,
                                                      .a = a,
                                                      .b = b,
                                                      .m = M,
                                                      .n = N,
                                                      .k = K,
                                                      .transpose_a = epilogue == EK__EPILOGUE_SUMS,
                                                      .transpose_b = epilogue == EK__EPILOGUE_GELU,
                                                      .gradient = epilogue == EK__EPILOGUE_SUMS,
                                                      .types = ek__types_for(precision)}),
                         .at = ek__cuda_place_on(stream),
                         .stream = stream,
                         .pre = pre,
                         .sums = v,
                         .bias = v + N};
}

/* The columns of dpre, or of a. */
static cudaError_t sum_columns(const struct sample *it) {
  const struct ek__matmul_args *args = &it->product;
  const bool sums = it->epilogue == EK__EPILOGUE_SUMS;
  const struct ek__matrix_args columns = {.y = it->sums,
                                          .a = sums ? args->a : args->c,
                                          .rows = sums ? args->k : args->m,
                                          .columns = sums ? args->m : args->n,
                                          .pitch = sums ? args->lda : args->ldc,
                                          .types = args->types};
  return ek__cuda_column_sum(&it->at, &columns);
}

static ek_status with_epilogue(bool *done, void *raw) {
  const struct sample *it = raw;
  struct ek__cuda_product what = {.args = &it->product, .vector = it->sums};
  const bool apart = it->epilogue == EK__EPILOGUE_GELU_BACKWARD &&
                     ek__cuda_is_half(it->product.types.value); /* cuda_epilogues.c */
  switch (it->epilogue) {
  case EK__EPILOGUE_GELU:
    what.epilogue = CUBLASLT_EPILOGUE_GELU_BIAS;
    what.vector = it->bias;
    break;
  case EK__EPILOGUE_GELU_BACKWARD:
    what.epilogue = apart ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_DGELU_BGRAD;
    if (apart) what.vector = NULL;
    what.aux = it->pre;
    break;
  case EK__EPILOGUE_SUMS: what.epilogue = CUBLASLT_EPILOGUE_BGRADB; break;
  }
  EK_TRY(ek__cuda_multiply(done, it->stream, &what));
  if (!*done || !apart) return EK_OK;
  return ek__cuda_check(it->stream->device, sum_columns(it), "timing kernels");
}

/* As src/op/products.c does it. */
static ek_status one_by_one(bool *done, void *raw) {
  const struct sample *it = raw;
  const struct ek__matmul_args *args = &it->product;
  const bool sums = it->epilogue == EK__EPILOGUE_SUMS;
  const bool gelu_of_half =
      it->epilogue == EK__EPILOGUE_GELU && ek__cuda_is_half(args->types.value);
  const struct ek__cuda_product what = {
      .args = args, /* of 16 bits it adds the bias, as it is rounded once */
      .epilogue = gelu_of_half ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT,
      .vector = gelu_of_half ? it->bias : NULL};
  const struct ek__activation_args gelu = {.kind = EK_ACTIVATION_GELU,
                                           .y = args->c,
                                           .x = it->epilogue == EK__EPILOGUE_GELU ? args->c
                                                                                  : it->pre,
                                           .bias = gelu_of_half ? NULL : it->bias,
                                           .dy = args->c,
                                           .rows = args->m,
                                           .columns = args->n,
                                           .types = args->types};
  EK_TRY(ek__cuda_multiply(done, it->stream, &what));
  cudaError_t error = it->epilogue == EK__EPILOGUE_GELU
                          ? ek__cuda_activation_forward(&it->at, &gelu)
                      : sums ? cudaSuccess
                             : ek__cuda_activation_backward(&it->at, &gelu);
  if (error == cudaSuccess && it->epilogue != EK__EPILOGUE_GELU) {
    error = sum_columns(it);
  }
  return ek__cuda_check(it->stream->device, error, "timing kernels");
}

static ek_status time_precision(unsigned *fused, struct ek__cuda_device *device, void *memory,
                                ek_precision precision, const char *name) {
  static const enum ek__epilogue epilogues[] = {EK__EPILOGUE_GELU, EK__EPILOGUE_GELU_BACKWARD,
                                                EK__EPILOGUE_SUMS};
  static const char *const texts[] = {"GELU", "GELU's gradient", "bias gradients"};
  const struct ek__cuda_stream *stream = &device->streams[EK_STREAM_COMPUTE];
  *fused = 0;
  for (size_t i = 0; i < sizeof epilogues / sizeof epilogues[0]; i++) {
    struct sample sample = sample_on(device, memory, epilogues[i], precision);
    float with = 0, without = 0;
    bool one = false, other = false;
    EK_TRY(ek__cuda_take_time(&with, &one, stream, with_epilogue, &sample));
    if (!one) continue;
    EK_TRY(ek__cuda_take_time(&without, &other, stream, one_by_one, &sample));
    const bool taken = other && with < EK__CUDA_CLEARLY * without;
    if (taken) *fused |= 1U << epilogues[i];
    ek__cuda_host->log(EK_LOG_DEBUG, "%s: %s in %s: the epilogue takes %.2f of the kernels' time",
                       device->name, texts[i], name, (double)(with / without));
  }
  return EK_OK;
}

/* In room for f32; zeros are zeros in every type. */
ek_status ek__cuda_time_epilogues(struct ek__cuda_fused *fused, struct ek__cuda_device *device,
                                  void *memory) {
  static const ek_precision precisions[] = {EK_PRECISION_F32, EK_PRECISION_TF32, EK_PRECISION_BF16,
                                            EK_PRECISION_F16};
  static const char *const names[] = {"f32", "tf32", "bf16", "f16"};
  EK_TRY(EK__CUDA(device, cudaMemsetAsync, memory, 0, EK__CUDA_TIMED_BYTES,
                  device->streams[EK_STREAM_COMPUTE].handle));
  for (size_t i = 0; i < sizeof precisions / sizeof precisions[0]; i++) {
    const ek_precision precision = precisions[i];
    EK_TRY(time_precision(&fused->of[precision], device, memory, precision, names[i]));
  }
  return EK_OK;
}
