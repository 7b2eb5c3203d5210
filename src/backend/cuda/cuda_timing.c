/*
 * cuda_timing.c - whether cuBLASLt is faster with an epilogue than without one and kernels of ours.
 *
 * That there is an algorithm for an epilogue does not say that it is a good one: for f32 cuBLASLt may
 * have none made for GELU or for gradients of a bias. So both ways are timed once for each GPU of the
 * process, before the first group's memory is taken, on a product of a size that training has, and
 * the epilogue is used where it won clearly. A bias alone is always added by cuBLASLt. A group that
 * is to be deterministic uses none of the others: what wins by a little may lose in the next run, and
 * the two ways sum in another order.
 */
#include "backend/cuda/cuda_internal.h"

enum { ROUNDS = 4 };

/* Of the time of the separate kernels. */
static const float CLEARLY = 0.95F;

/* What is timed: rows m, columns n and depth k as in the MLP of a GPT-2. */
struct sample {
  struct ek__matmul_args product;
  struct ek__cuda_place at;
  const struct ek__cuda_stream *stream;
  void *pre, *sums, *bias;
  cudaEvent_t begin, end;
};

static struct sample sample_on(struct ek__cuda_device *device, char *memory) {
  enum { M = EK__CUDA_TIMED_ROWS, N = EK__CUDA_TIMED_COLUMNS, K = EK__CUDA_TIMED_DEPTH };
  float *const c = (float *)(void *)memory, *const pre = c + (size_t)M * N;
  float *const a = pre + (size_t)M * N, *const b = a + (size_t)M * K, *const v = b + (size_t)N * K;
  const struct ek__cuda_stream *stream = &device->streams[EK_STREAM_COMPUTE];
  return (struct sample){
      .product = {.c = c, .a = a, .b = b, .m = M, .n = N, .k = K, .types = {EK_F32, EK_F32}},
      .at = {stream->handle, ek__cuda_kernel_workspace(device), device->bad, false},
      .stream = stream,
      .pre = pre,
      .sums = v,
      .bias = v + N};
}

/* ---- the two ways ---- */

static ek_status with_epilogue(bool *done, const struct sample *it, enum ek__epilogue epilogue) {
  struct ek__matmul_args args = it->product;
  args.transpose_b = epilogue == EK__EPILOGUE_GELU;
  args.transpose_a = epilogue == EK__EPILOGUE_SUMS;
  args = ek__cuda_dense(args);
  struct ek__cuda_product what = {.args = &args, .vector = it->sums};
  switch (epilogue) {
  case EK__EPILOGUE_GELU:
    what.epilogue = CUBLASLT_EPILOGUE_GELU_BIAS;
    what.vector = it->bias;
    break;
  case EK__EPILOGUE_GELU_BACKWARD:
    what.epilogue = CUBLASLT_EPILOGUE_DGELU_BGRAD;
    what.aux = it->pre;
    break;
  case EK__EPILOGUE_SUMS: what.epilogue = CUBLASLT_EPILOGUE_BGRADB; break;
  }
  return ek__cuda_multiply(done, it->stream, &what);
}

/* As src/op/products.c does it. */
static ek_status one_by_one(bool *done, const struct sample *it, enum ek__epilogue epilogue) {
  struct ek__matmul_args args = it->product;
  const bool sums = epilogue == EK__EPILOGUE_SUMS;
  args.transpose_b = epilogue == EK__EPILOGUE_GELU;
  args.transpose_a = sums;
  args = ek__cuda_dense(args);
  const struct ek__cuda_product what = {.args = &args, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
  const struct ek__activation_args gelu = {.kind = EK_ACTIVATION_GELU,
                                           .y = args.c,
                                           .x = epilogue == EK__EPILOGUE_GELU ? args.c : it->pre,
                                           .bias = it->bias,
                                           .dy = args.c,
                                           .rows = args.m,
                                           .columns = args.n,
                                           .types = args.types};
  const struct ek__matrix_args columns = {.y = it->sums,
                                          .a = sums ? args.a : args.c,
                                          .rows = sums ? args.k : args.m,
                                          .columns = sums ? args.m : args.n,
                                          .pitch = sums ? args.lda : args.ldc,
                                          .types = args.types};
  EK_TRY(ek__cuda_multiply(done, it->stream, &what));
  cudaError_t error = epilogue == EK__EPILOGUE_GELU ? ek__cuda_activation_forward(&it->at, &gelu)
                      : sums                        ? cudaSuccess
                                                    : ek__cuda_activation_backward(&it->at, &gelu);
  if (error == cudaSuccess && epilogue != EK__EPILOGUE_GELU) {
    error = ek__cuda_column_sum(&it->at, &columns);
  }
  return ek__cuda_check(it->stream->device, error, "timing kernels");
}

/* ---- timing ---- */

typedef ek_status way(bool *done, const struct sample *it, enum ek__epilogue epilogue);

/* Once to load what it needs, then some rounds by the GPU's clock. */
static ek_status take_time(float *time, bool *done, const struct sample *it, way *run,
                           enum ek__epilogue epilogue) {
  struct ek__cuda_device *device = it->stream->device;
  EK_TRY(run(done, it, epilogue));
  if (!*done) return EK_OK;
  EK_TRY(EK__CUDA(device, cudaEventRecord, it->begin, it->stream->handle));
  for (int i = 0; i < ROUNDS; i++) EK_TRY(run(done, it, epilogue));
  EK_TRY(EK__CUDA(device, cudaEventRecord, it->end, it->stream->handle));
  EK_TRY(ek__cuda_finish_event(device, it->end, "timing products"));
  return EK__CUDA(device, cudaEventElapsedTime, time, it->begin, it->end);
}

static ek_status time_all(unsigned *fused, const struct sample *it) {
  static const enum ek__epilogue epilogues[] = {EK__EPILOGUE_GELU, EK__EPILOGUE_GELU_BACKWARD,
                                                EK__EPILOGUE_SUMS};
  for (size_t i = 0; i < sizeof epilogues / sizeof epilogues[0]; i++) {
    float with = 0, without = 0;
    bool one = false, other = false;
    EK_TRY(take_time(&with, &one, it, with_epilogue, epilogues[i]));
    if (!one) continue;
    EK_TRY(take_time(&without, &other, it, one_by_one, epilogues[i]));
    if (other && with < CLEARLY * without) *fused |= 1U << epilogues[i];
  }
  return EK_OK;
}

ek_status ek__cuda_time_epilogues(unsigned *fused, struct ek__cuda_device *device, void *memory) {
  struct sample sample = sample_on(device, memory);
  *fused = 0;
  ek_status status =
      EK__CUDA(device, cudaMemsetAsync, memory, 0, EK__CUDA_TIMED_BYTES, sample.stream->handle);
  if (status == EK_OK) status = EK__CUDA(device, cudaEventCreate, &sample.begin);
  if (status == EK_OK) status = EK__CUDA(device, cudaEventCreate, &sample.end);
  if (status == EK_OK) status = time_all(fused, &sample);
  if (sample.end != NULL) (void)cudaEventDestroy(sample.end);
  if (sample.begin != NULL) (void)cudaEventDestroy(sample.begin);
  return status;
}
