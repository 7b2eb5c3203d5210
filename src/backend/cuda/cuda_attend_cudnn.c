/*
 * cuda_attend_cudnn.c - attention by cuDNN, where that is installed and faster than our kernels.
 *
 * It is never needed. The library is looked for by its name at the first attention that it could
 * do: causal, of 16 bits, each head with keys of its own, without dropout and documents. For each
 * shape a plan is made once (cuda_cudnn_graph.c) and tried on the operands of its first call,
 * beside our kernels. It is taken if the results agree and it is faster by 5 %; the choice holds as
 * that of an epilogue does (cuda_choice.c). What fails, then or later, is left to our kernels,
 * which write all results again.
 *
 * lse has one meaning for both, so forward and backward are chosen each by itself. cuDNN adds up dQ
 * in no fixed order, so a deterministic group never asks for it.
 *
 * Memory: `plan` knows nothing of cuDNN, and our kernels need no memory here. So cuDNN works in the
 * workspace of products (cuda_workspace.h). Where that is too small for a batch, it takes as many
 * samples at once as fit, a divisor of the batch. Its handle and its code take memory of the
 * reserve that a default capacity leaves; where none is left, cuDNN is not used.
 *
 * Loading code and the heuristic take some seconds for a shape, in the same place as for a product
 * that is new: collectives have ended (cuda_wait.c).
 */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_cudnn.h"
#include "backend/cuda/cuda_internal.h"
#include "core/half.h"

/* A stand-in has a name that its tests change. */
#ifdef EK__CUDA_CUDNN_NAME
const char *EK__CUDA_CUDNN_NAME(void);
#else
#define EK__CUDA_CUDNN_NAME() "libcudnn.so.9"
#endif

/* The oldest whose plans were made (docs/notes/cuda.md); older ones have known faults in
 * backward. */
enum { LEAST_VERSION = 91900, NEXT_MAJOR = 100000, SHAPES = 32, SAMPLE_ROWS = 16, RESULTS = 3 };
/* Of calls whose results are zero or not finite, and so show nothing. */
enum { MOST_TRIES = 16 };

enum state { UNTRIED, TAKEN, REFUSED };

struct entry {
  enum state state;
  int tries;
  struct ek__cudnn_shape shape; /* of a call; that of the plan has fewer samples */
  struct ek__cudnn_plan plan;   /* without descriptors where it is refused */
};

struct ek__cuda_cudnn {
  void *handle; /* NULL: cuDNN cannot be used here */
  size_t count;
  struct entry entries[SHAPES];
};

/* ---- the library: stays loaded ---- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ek__cudnn loaded;
static bool is_loaded;

/* NULL, or what is missing. A failure is not kept, as NCCL's is not. The mutex is held. */
static const char *load(void) {
  struct ek__cudnn found;
  const char *off = getenv("EVENKEEL_CUDA_CUDNN");
  if (off != NULL && strcmp(off, "0") == 0) return "EVENKEEL_CUDA_CUDNN is 0";
  void *library = dlopen(EK__CUDA_CUDNN_NAME(), RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return "it is not installed";
  const struct {
    const char *name;
    void *pointer; /* to a pointer to a function */
  } functions[] = {
#define ENTRY(result, name, parameters) {"cudnn" #name, &found.name},
      EK__CUDNN_LIST(ENTRY)};
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    void *symbol = dlsym(library, functions[i].name);
    if (symbol == NULL) return "the installed one lacks a function";
    memcpy(functions[i].pointer, &symbol, sizeof symbol); /* as POSIX has it */
  }
  const size_t version = found.GetVersion();
  if (version < LEAST_VERSION || version >= NEXT_MAJOR) return "it is not 9.19 or a later 9";
  if (!is_loaded) loaded = found; /* else other threads may be calling it */
  is_loaded = true;
  return NULL;
}

static const char *missing(void) {
  pthread_mutex_lock(&mutex);
  const char *reason = load();
  pthread_mutex_unlock(&mutex);
  return reason;
}

/* What a failed call of cuDNN's means: nothing, unless CUDA is at its end. */
static ek_status survive(const struct ek__cuda_device *device, const char *what, int status) {
  const cudaError_t error = cudaPeekAtLastError();
  if (ek__cuda_is_final(error)) return ek__cuda_check(device, error, what);
  (void)cudaGetLastError();
  ek__cuda_host->log(EK_LOG_INFO, "%s: %s: status %d of cuDNN; the library's own kernels do it",
                     device->name, what, status);
  return EK_OK;
}

static ek_status open_library(struct ek__cuda_device *device) {
  device->cudnn = ek__cuda_new(sizeof *device->cudnn, "plans of cuDNN");
  if (device->cudnn == NULL) return EK_ERR_OUT_OF_MEMORY;
  const char *reason = missing();
  if (reason != NULL) {
    ek__cuda_host->log(EK_LOG_DEBUG, "%s: attention without cuDNN: %s", device->name, reason);
    return EK_OK;
  }
  struct ek__cuda_cudnn *own = device->cudnn;
  int status = loaded.Create(&own->handle);
  if (status != 0) own->handle = NULL;
  const cudaStream_t stream = device->streams[EK_STREAM_COMPUTE].handle;
  if (status == 0) status = loaded.SetStream(own->handle, stream);
  if (status == 0) return EK_OK;
  if (own->handle != NULL) (void)loaded.Destroy(own->handle);
  own->handle = NULL;
  return survive(device, "cudnnCreate", status);
}

void ek__cuda_cudnn_close(struct ek__cuda_device *device) {
  struct ek__cuda_cudnn *own = device->cudnn;
  if (own == NULL) return;
  for (size_t i = 0; i < own->count; i++) ek__cudnn_plan_close(&own->entries[i].plan);
  if (own->handle != NULL) (void)loaded.Destroy(own->handle);
  ek__cuda_host->free(own);
  device->cudnn = NULL;
}

/* ---- a call ---- */

struct call {
  const struct ek__cuda_stream *stream;
  const struct ek__attention_args *args;
  struct entry *entry;
  char *sample; /* of our results, and after its bytes one of cuDNN's; or NULL */
  size_t bytes;
  bool compared;
};

static bool can(const struct ek__cuda_stream *stream, const struct ek__attention_args *a) {
  const void *all[] = {a->q, a->k, a->v, a->dout, a->out, a->lse, a->dq, a->dk, a->dv};
  uintptr_t odd = (uintptr_t)(a->q_step | a->k_step | a->v_step | a->head_width) % 8;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) odd |= (uintptr_t)all[i] % 16;
  return ek__cuda_is_half(a->types.value) && a->causal && a->ranges == NULL && a->dropout == 0 &&
         a->heads == a->kv_heads && a->head_width <= 128 && a->tokens > 1 &&
         a->heads * a->tokens % 4 == 0 && a->batch * a->heads * a->head_width > 0 && odd == 0 &&
         stream == &stream->device->streams[EK_STREAM_COMPUTE] &&
         !stream->device->group->options.deterministic;
}

static bool is_backward(const struct ek__attention_args *args) { return args->dq != NULL; }

static int run_plan(const struct call *call) {
  const struct ek__attention_args *a = call->args;
  const struct ek__cuda_device *device = call->stream->device;
  const struct ek__cudnn_plan *plan = &call->entry->plan;
  const bool back = is_backward(a);
  int status = 0;
  for (int64_t first = 0; first < a->batch && status == 0; first += plan->shape.batch) {
    const int64_t token = first * a->tokens * 2, columns = a->heads * a->head_width; /* 2 bytes */
    const struct ek__cudnn_operands at = {
        .q = (const char *)a->q + token * a->q_step,
        .k = (const char *)a->k + token * a->k_step,
        .v = (const char *)a->v + token * a->v_step,
        .dout = back ? (const char *)a->dout + token * columns : NULL,
        .out = (char *)a->out + token * columns,
        .lse = (float *)a->lse + first * a->heads * a->tokens,
        .dq = back ? (char *)a->dq + token * a->q_step : NULL,
        .dk = back ? (char *)a->dk + token * a->k_step : NULL,
        .dv = back ? (char *)a->dv + token * a->v_step : NULL,
        .workspace = device->workspace};
    status = ek__cudnn_plan_run(plan, device->cudnn->handle, &at);
  }
  return status;
}

/* ---- whether the results agree ---- */

/* A result as rows of columns: gradients may be parts of the rows of one tensor. */
struct result {
  const void *at;
  int64_t rows, step, columns;
  ek_type type;
};

static int results_of(struct result results[RESULTS], const struct ek__attention_args *a) {
  const int64_t rows = a->batch * a->tokens, columns = a->heads * a->head_width;
  const ek_type type = a->types.value;
  if (is_backward(a)) {
    results[0] = (struct result){a->dq, rows, a->q_step, columns, type};
    results[1] = (struct result){a->dk, rows, a->k_step, columns, type};
    results[2] = (struct result){a->dv, rows, a->v_step, columns, type};
    return RESULTS;
  }
  results[0] = (struct result){a->out, rows, columns, columns, type};
  results[1] = (struct result){a->lse, a->batch * a->heads, a->tokens, a->tokens, EK_F32};
  return 2;
}

/* Of a result that many rows at each end, from their first element to their last. */
static size_t piece_elements(const struct result *r) {
  const int64_t rows = r->rows < SAMPLE_ROWS ? r->rows : SAMPLE_ROWS;
  return (size_t)((rows - 1) * r->step + r->columns);
}

/* On the host, the pieces one after the other; NULL: only counts. */
static ek_status read_sample(size_t *bytes, char *to, const struct call *call) {
  struct result results[RESULTS];
  const int count = results_of(results, call->args);
  *bytes = 0;
  for (int i = 0; i < 2 * count; i++) {
    const struct result *r = &results[i / 2];
    const size_t element = ek__type_size(r->type), some = piece_elements(r) * element;
    const size_t all = (size_t)((r->rows - 1) * r->step + r->columns) * element;
    const char *from = (const char *)r->at + (i % 2 == 0 ? 0 : all - some);
    if (to != NULL) {
      EK_TRY(EK__CUDA(call->stream->device, cudaMemcpyAsync, to + *bytes, from, some,
                      cudaMemcpyDeviceToHost, call->stream->handle));
    }
    *bytes += some;
  }
  return to == NULL ? EK_OK : ek__cuda_finish(call->stream, "comparing attention with cuDNN's");
}

static double value_at(const char *piece, size_t i, ek_type type) {
  if (type == EK_F32) return ((const float *)(const void *)piece)[i];
  const uint16_t bits = ((const uint16_t *)(const void *)piece)[i];
  return type == EK_BF16 ? ek__bf16_widen((struct ek__bf16){bits})
                         : ek__f16_widen((struct ek__f16){bits});
}

/* Each piece by its norm, where the first row of dq, which is rounding alone, counts for nothing.
 * Two right results of 16 bits are some 2^-8 apart; a wrong mask, scale or place is a distance of
 * the order of the norm. False if ours are zero or not finite, which shows nothing. */
static bool are_close(const struct ek__attention_args *args, const char *ours,
                      const char *theirs) {
  const double most = 0x1p-4;
  struct result results[RESULTS];
  const int count = results_of(results, args);
  for (int i = 0; i < 2 * count; i++) {
    const struct result *r = &results[i / 2];
    const size_t elements = piece_elements(r);
    double norm = 0, distance = 0;
    for (size_t k = 0; k < elements; k++) {
      if ((int64_t)k % r->step >= r->columns) continue;
      const double x = value_at(ours, k, r->type), d = x - value_at(theirs, k, r->type);
      norm += x * x;
      distance += d * d;
    }
    if (!(norm > 0 && norm < HUGE_VAL && distance <= most * most * norm)) return false;
    ours += elements * ek__type_size(r->type);
    theirs += elements * ek__type_size(r->type);
  }
  return true;
}

/* ---- which is faster ---- */

static ek_status by_kernels(bool *done, void *raw) {
  const struct call *call = raw;
  const struct ek__cuda_place at = ek__cuda_place_on(call->stream);
  const cudaError_t error = is_backward(call->args) ? ek__cuda_attention_backward(&at, call->args)
                                                    : ek__cuda_attention_forward(&at, call->args);
  *done = error == cudaSuccess;
  if (error == cudaErrorNotSupported) return EK_OK;
  return ek__cuda_check(call->stream->device, error, "attention");
}

static ek_status by_cudnn(bool *done, void *raw) {
  struct call *call = raw;
  const int status = run_plan(call);
  *done = status == 0;
  if (status != 0) return survive(call->stream->device, "attention", status);
  if (call->sample == NULL || call->compared) return EK_OK;
  size_t bytes = call->bytes;
  EK_TRY(read_sample(&bytes, call->sample + bytes, call));
  call->compared = true;
  *done = are_close(call->args, call->sample, call->sample + bytes);
  if (!*done) {
    ek__cuda_host->log(EK_LOG_WARNING,
                       "%s: attention: cuDNN's results differ from those of the library's own "
                       "kernels, which are used for this shape",
                       call->stream->device->name);
  }
  return EK_OK;
}

/* Runs our kernels, whose results stay unless cuDNN's agree with them and come sooner. */
static ek_status race(bool *done, struct call *call) {
  const struct ek__attention_args *a = call->args;
  const struct ek__cuda_shape shape = {.m = a->batch,
                                       .n = a->tokens,
                                       .k = a->head_width,
                                       .lda = a->q_step,
                                       .ldb = a->k_step,
                                       .ldc = a->v_step,
                                       .precision = (uint16_t)ek__types_precision(&a->types),
                                       .heads = (uint32_t)a->heads,
                                       .backward = is_backward(a)};
  const struct ek__cuda_product what = {.other = by_kernels, .with = call, .repeats = true};
  bool wins = false;
  EK_TRY(by_kernels(done, call));
  if (!*done) return EK_OK;
  EK_TRY(read_sample(&call->bytes, call->sample, call));
  if (!are_close(a, call->sample, call->sample)) { /* the next call may show more */
    if (++call->entry->tries == MOST_TRIES) call->entry->state = REFUSED;
    return EK_OK;
  }
  EK_TRY(ek__cuda_prefer(&wins, call->stream, &shape, by_cudnn, call, &what));
  *done = false;
  if (wins) EK_TRY(by_cudnn(done, call));
  call->entry->state = *done ? TAKEN : REFUSED;
  return EK_OK;
}

static ek_status try_it(bool *done, struct call *call) {
  EK_TRY(read_sample(&call->bytes, NULL, call));
  call->sample = ek__cuda_new(2 * call->bytes, "a sample of attention");
  if (call->sample == NULL) return EK_ERR_OUT_OF_MEMORY;
  const ek_status status = race(done, call);
  ek__cuda_host->free(call->sample);
  call->sample = NULL;
  return status;
}

/* ---- a shape ---- */

/* As many samples at once as the workspace has room for. */
static int open_plan(struct entry *entry, void *handle) {
  struct ek__cudnn_shape shape = entry->shape;
  struct ek__cudnn_plan *plan = &entry->plan;
  int status = ek__cudnn_plan_open(plan, &loaded, &shape, handle, NULL);
  if (status != 0 || plan->workspace <= EK__CUDA_PRODUCT_BYTES) return status;
  const uint64_t each = plan->workspace / (uint64_t)shape.batch + 1;
  shape.batch = (int64_t)(EK__CUDA_PRODUCT_BYTES / each);
  while (shape.batch > 0 && entry->shape.batch % shape.batch != 0) shape.batch--;
  ek__cudnn_plan_close(plan);
  if (shape.batch == 0) return EK__CUDNN_NO_ROOM;
  status = ek__cudnn_plan_open(plan, &loaded, &shape, handle, NULL);
  if (status == 0 && plan->workspace > EK__CUDA_PRODUCT_BYTES) status = EK__CUDNN_NO_ROOM;
  return status;
}

/* NULL: the table is full. */
static struct entry *entry_for(struct ek__cuda_cudnn *own, const struct ek__attention_args *a) {
  const struct ek__cudnn_shape shape = {.batch = a->batch,
                                        .tokens = a->tokens,
                                        .heads = a->heads,
                                        .width = a->head_width,
                                        .q_step = a->q_step,
                                        .k_step = a->k_step,
                                        .v_step = a->v_step,
                                        .bf16 = a->types.value == EK_BF16,
                                        .backward = is_backward(a)};
  for (size_t i = 0; i < own->count; i++) {
    if (memcmp(&own->entries[i].shape, &shape, sizeof shape) == 0) return &own->entries[i];
  }
  if (own->count == SHAPES) return NULL;
  own->entries[own->count].shape = shape;
  return &own->entries[own->count++];
}

static ek_status attend(bool *done, struct call *call) {
  struct ek__cuda_device *device = call->stream->device;
  ek_status result = EK_OK;
  if (device->cudnn == NULL) {
    EK_TRY(ek__cuda_let_collectives_end(device));
    EK_TRY(open_library(device));
  }
  if (device->cudnn->handle == NULL) return EK_OK;
  struct entry *entry = call->entry = entry_for(device->cudnn, call->args);
  if (entry == NULL || entry->state == REFUSED) return EK_OK;
  if (entry->state == TAKEN) {
    result = by_cudnn(done, call);
    if (!*done) entry->state = REFUSED;
  } else {
    EK_TRY(ek__cuda_let_collectives_end(device));
    const int status = entry->plan.plan == NULL ? open_plan(entry, device->cudnn->handle) : 0;
    ek__cuda_call_goes_on(device);
    if (status != 0) entry->state = REFUSED;
    result = status != 0 ? survive(device, "attention", status) : try_it(done, call);
  }
  if (entry->state == REFUSED) ek__cudnn_plan_close(&entry->plan);
  return result;
}

ek_status ek__cuda_attend_by_cudnn(bool *done, const struct ek__cuda_stream *stream,
                                   const struct ek__attention_args *args) {
  struct call call = {.stream = stream, .args = args};
  *done = false;
  return can(stream, args) ? attend(done, &call) : EK_OK;
}
