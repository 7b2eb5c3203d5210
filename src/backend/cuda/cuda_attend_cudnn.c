/*
 * cuda_attend_cudnn.c - attention by cuDNN, forward, where it is faster than our kernel.
 *
 * It is never needed. cuDNN is looked for by its name at the first attention that it could do:
 * causal, of 16 bits, each head with keys of its own, without dropout and documents. For each shape
 * a plan (cuda_cudnn.c) is a candidate beside our kernel (cuda_choice.c): both run on the operands
 * of the first call, and the plan is taken if its results agree with ours and it is faster by 5 %.
 * What fails, then or later, leaves the shape to our kernel, which writes all results again. lse
 * has one meaning, so our backward follows either forward. A deterministic group never asks: the
 * next process might measure differently.
 *
 * `plan` knows nothing of cuDNN, which works in the workspace of products. Handle and code take
 * memory of the reserve that a default capacity leaves; without any, cuDNN is not used.
 */
#include <string.h>

#include "backend/cuda/cuda_cudnn.h"
#include "backend/cuda/cuda_internal.h"
#include "core/half.h"

/* A build over a stand-in says another name. */
#ifndef EK__CUDA_CUDNN_LIBRARY
#define EK__CUDA_CUDNN_LIBRARY "libcudnn.so.9"
#endif

/* A PIECE of numbers at each end of out and of lse is compared; less is not worth a plan. */
enum { PIECE = 256, PIECES = 4, SHAPES = 32 };

struct ek__cuda_cudnn {
  struct ek__cudnn library;
  void *handle; /* NULL: cuDNN cannot be used here */
  double ours[PIECES][PIECE], theirs[PIECE];
  float sums[PIECE]; /* lse on its way to them; and out */
  uint16_t values[PIECE];
  size_t count;
  struct ek__cuda_shape shapes[SHAPES];
  struct ek__cudnn_plan plans[SHAPES]; /* closed: our kernel does the shape */
};

struct call {
  const struct ek__cuda_stream *stream;
  const struct ek__attention_args *args;
  struct ek__cuda_cudnn *own;
  struct ek__cudnn_plan *plan;
  bool compared;
};

/* Whether a call of cuDNN's did it. CUDA forgets its error, except for one that ends the process:
 * our kernel's launch, which is next, finds that. */
static bool succeeds(const struct ek__cuda_device *device, int status) {
  if (status == 0) return true;
  (void)cudaGetLastError();
  ek__cuda_host->log(EK_LOG_INFO, "%s: attention: status %d of cuDNN", device->name, status);
  return false;
}

static ek_status open_library(struct ek__cuda_device *device) {
  const cudaStream_t stream = device->streams[EK_STREAM_COMPUTE].handle;
  EK_TRY(ek__cuda_let_collectives_end(device));
  struct ek__cuda_cudnn *own = device->cudnn = ek__cuda_new(sizeof *own, "plans of cuDNN");
  if (own == NULL) return EK_ERR_OUT_OF_MEMORY;
  const char *missing = ek__cudnn_load(&own->library, EK__CUDA_CUDNN_LIBRARY);
  if (missing != NULL) {
    ek__cuda_host->log(EK_LOG_DEBUG, "%s: attention without cuDNN: %s", device->name, missing);
  } else if (!succeeds(device, own->library.Create(&own->handle)) ||
             !succeeds(device, own->library.SetStream(own->handle, stream))) {
    own->handle = NULL;
  }
  return EK_OK;
}

void ek__cuda_cudnn_close(struct ek__cuda_device *device) {
  struct ek__cuda_cudnn *own = device->cudnn;
  if (own == NULL) return;
  for (size_t i = 0; i < own->count; i++) ek__cudnn_plan_close(&own->plans[i]);
  if (own->handle != NULL) (void)own->library.Destroy(own->handle);
  ek__cuda_host->free(own);
  device->cudnn = NULL;
}

static bool by_cudnn(const struct call *c) {
  const struct ek__cuda_device *device = c->stream->device;
  return succeeds(device, ek__cudnn_plan_run(c->plan, c->own->handle, c->args, device->workspace));
}

/* The first and the last numbers of out, and those of lse. */
static ek_status read_piece(double to[PIECE], const struct call *call, int piece) {
  const struct ek__attention_args *a = call->args;
  struct ek__cuda_cudnn *own = call->own;
  const bool sums = piece >= 2, bf16 = a->types.value == EK_BF16;
  const size_t size = sums ? sizeof own->sums[0] : sizeof own->values[0];
  const int64_t all = a->batch * a->heads * a->tokens * (sums ? 1 : a->head_width);
  const char *from =
      (const char *)(sums ? a->lse : a->out) + piece % 2 * (all - PIECE) * (int64_t)size;
  EK_TRY(EK__CUDA(call->stream->device, cudaMemcpyAsync, sums ? (void *)own->sums : own->values,
                  from, PIECE * size, cudaMemcpyDeviceToHost, call->stream->handle));
  EK_TRY(ek__cuda_finish(call->stream, "comparing attention with cuDNN's"));
  for (int i = 0; i < PIECE; i++) {
    to[i] = sums   ? (double)own->sums[i]
            : bf16 ? (double)ek__bf16_widen((struct ek__bf16){own->values[i]})
                   : (double)ek__f16_widen((struct ek__f16){own->values[i]});
  }
  return EK_OK;
}

/* Each piece by its norm. Results of 16 bits that are right are some 2^-8 apart; a wrong mask,
 * scale or place is a distance of the order of the norm. lse is f32, and an error of it is one of
 * every probability in backward. Zeros and what is not finite show nothing, and are not close. */
static ek_status compare(bool *close, const struct call *call) {
  const double *theirs = call->own->theirs;
  *close = true;
  for (int piece = 0; piece < PIECES && *close; piece++) {
    const double *ours = call->own->ours[piece], most = piece < 2 ? 0x1p-5 : 0x1p-10;
    double norm = 0, distance = 0;
    EK_TRY(read_piece(call->own->theirs, call, piece));
    for (int i = 0; i < PIECE; i++) {
      norm += ours[i] * ours[i];
      distance += (ours[i] - theirs[i]) * (ours[i] - theirs[i]);
    }
    *close = distance < most * most * norm;
  }
  if (!*close) {
    ek__cuda_host->log(EK_LOG_WARNING, "%s: attention: cuDNN's results are not the library's own",
                       call->stream->device->name);
  }
  return EK_OK;
}

/* 0: our kernel, which runs first. 1: cuDNN, whose first results are compared. */
static ek_status run_candidate(bool *done, void *raw) {
  const struct ek__cuda_candidate *candidate = raw;
  struct call *call = candidate->of;
  const struct ek__cuda_place at = ek__cuda_place_on(call->stream);
  const bool compares = candidate->number == 1 && !call->compared;
  for (int i = 0; i < PIECES && compares; i++) EK_TRY(read_piece(call->own->ours[i], call, i));
  *done = candidate->number == 1 ? by_cudnn(call)
                                 : ek__cuda_attention_forward(&at, call->args) == cudaSuccess;
  call->compared |= compares;
  return *done && compares ? compare(done, call) : EK_OK;
}

static bool can(const struct ek__cuda_stream *stream, const struct ek__attention_args *a) {
  const uintptr_t at =
      (uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)a->out | (uintptr_t)a->lse;
  const int64_t steps = a->q_step | a->k_step | a->v_step | a->head_width;
  return a->dq == NULL && ek__cuda_is_half(a->types.value) && a->causal && a->ranges == NULL &&
         a->dropout == 0 && a->heads == a->kv_heads && a->head_width <= 128 && at % 16 == 0 &&
         steps % 8 == 0 && a->batch * a->heads * a->tokens >= PIECE && a->head_width > 0 &&
         stream == &stream->device->streams[EK_STREAM_COMPUTE] &&
         !stream->device->group->options.deterministic;
}

/* A plan for a new shape, which is closed again if our kernel is better. */
static ek_status choose(struct call *call, const struct ek__cuda_shape *shape) {
  struct ek__cuda_candidate candidate = {.of = call};
  ek_status status = EK_OK;
  int number = 0;
  if (succeeds(call->stream->device, ek__cudnn_plan_open(call->plan, &call->own->library,
                                                         call->own->handle, call->args)) &&
      call->plan->workspace <= (int64_t)EK__CUDA_PRODUCT_BYTES) {
    status = ek__cuda_choose(&number, call->stream, shape, 2, run_candidate, &candidate);
  }
  if (status != EK_OK || number == 0) ek__cudnn_plan_close(call->plan);
  return status;
}

ek_status ek__cuda_attend_by_cudnn(bool *done, const struct ek__cuda_stream *stream,
                                   const struct ek__attention_args *args) {
  const struct ek__cuda_shape shape = {.m = args->batch,
                                       .n = args->tokens,
                                       .k = args->head_width,
                                       .lda = args->q_step,
                                       .ldb = args->k_step,
                                       .ldc = args->v_step,
                                       .heads = args->heads,
                                       .precision = (uint16_t)args->types.value};
  struct ek__cuda_device *device = stream->device;
  size_t i = 0;
  *done = false;
  if (!can(stream, args)) return EK_OK;
  if (device->cudnn == NULL) EK_TRY(open_library(device));
  struct ek__cuda_cudnn *own = device->cudnn;
  while (i < own->count && memcmp(&own->shapes[i], &shape, sizeof shape) != 0) i++;
  if (own->handle == NULL || i == SHAPES) return EK_OK;
  struct call call = {.stream = stream, .args = args, .own = own, .plan = &own->plans[i]};
  if (i == own->count) {
    EK_TRY(ek__cuda_let_collectives_end(device));
    own->shapes[own->count++] = shape;
    EK_TRY(choose(&call, &shape));
  }
  *done = call.plan->plan != NULL && by_cudnn(&call);
  if (!*done) ek__cudnn_plan_close(call.plan);
  return EK_OK;
}
