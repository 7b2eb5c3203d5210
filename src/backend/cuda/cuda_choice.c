/*
 * cuda_choice.c - what is faster, by the GPU's clock: the algorithm of a product, of those that
 * cuBLASLt's heuristic puts first, and then whether an epilogue is worth it (cuda_epilogues.c); and
 * whether attention is cuDNN's (cuda_attend_cudnn.c), by the rule of algorithms.
 *
 * A shape includes the alignment of its addresses, so it is not known before the product is called.
 * ek_trainer_prepare() makes all products of a step ahead of the first step; a shape that it has
 * not met is timed in the step. The candidates are timed at the first product of a shape, when the
 * worker waits on the host anyway before code is loaded (cuda_wait.c), with the product's own
 * operands and so without extra memory. A product with beta 0 can be repeated: it overwrites its
 * results and does not read them; the last run counts. A product that adds uses the algorithm found
 * for the one that overwrites, with which each step begins, or the heuristic's first. A shape is
 * timed once, and no thread waits for a shape that has been timed.
 *
 * A choice holds for the life of the process and for all GPUs of one model, so that they compute
 * alike: a forward that runs again, in the same step or in another group, has the same bits. A
 * shape that comes when the table is full gets the heuristic's first algorithm. So do all shapes in
 * a deterministic group, because the next process might measure differently.
 *
 * An epilogue is timed against a product and kernels of ours after its algorithm was chosen, and is
 * used if it is clearly faster. An algorithm for an epilogue need not be a good one: for f32
 * cuBLASLt may have none made for GELU or for gradients of a bias. Where nothing may be timed, and
 * until the first product of a shape that can be repeated, kernels of ours do it. A bias alone is
 * always added by cuBLASLt.
 *
 * Locks: each table's mutex is held while one device times for it; others that have a new shape
 * wait for it. No work in the stream then waits for a worker: collectives have ended, and copies
 * between devices wait only for work that is queued already. What is timed for `ways` may take the
 * mutex of `algorithms`, and never the other way round.
 */
#include <string.h>

#include "backend/cuda/cuda_internal.h"

/* How often something is run that is timed, after the first time; a build over a stand-in, where no
 * time varies, says less. */
#ifndef EK__CUDA_TIMED_ROUNDS
#define EK__CUDA_TIMED_ROUNDS 4
#endif

enum { CHOICES = 512, ROUNDS = EK__CUDA_TIMED_ROUNDS };

struct choice {
  int model;
  struct ek__cuda_shape shape; /* has_beta is false */
  int number;                  /* among the heuristic's; or whether the epilogue is used */
};

struct table {
  pthread_mutex_t mutex;
  struct choice list[CHOICES];
  size_t count;
};
static struct table algorithms = {.mutex = PTHREAD_MUTEX_INITIALIZER};
static struct table ways = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Milliseconds of some rounds of it, after one that loads what it needs. Waits; *done is false
 * where it cannot be done. */
static ek_status take_time(float *time, bool *done, const struct ek__cuda_stream *stream,
                           ek__cuda_timed *run, void *what) {
  struct ek__cuda_device *device = stream->device;
  EK_TRY(run(done, what));
  if (!*done) return EK_OK;
  EK_TRY(EK__CUDA(device, cudaEventRecord, device->begin, stream->handle));
  for (int i = 0; i < ROUNDS && *done; i++) EK_TRY(run(done, what));
  EK_TRY(EK__CUDA(device, cudaEventRecord, device->end, stream->handle));
  EK_TRY(ek__cuda_finish_event(device, device->end, "timing products"));
  return EK__CUDA(device, cudaEventElapsedTime, time, device->begin, device->end);
}

static const struct choice *find(const struct table *table, const struct choice *like) {
  for (size_t i = 0; i < table->count; i++) {
    const struct choice *it = &table->list[i];
    if (it->model == like->model && memcmp(&it->shape, &like->shape, sizeof it->shape) == 0)
      return it;
  }
  return NULL;
}

static void log_choice(const struct ek__cuda_stream *stream, const struct choice *it, int count,
                       double first, double best) {
  const struct ek__cuda_shape *shape = &it->shape;
  const bool product = shape->heads == 0;
  ek__cuda_host->log(EK_LOG_DEBUG,
                     "%s: %s %lld x %lld x %lld, %s %lld: algorithm %d of %d, %.1f us; the first "
                     "%.1f us",
                     stream->device->name, product ? "product" : "attention", (long long)shape->m,
                     (long long)shape->n, (long long)shape->k, product ? "epilogue" : "heads",
                     (long long)(product ? (int64_t)shape->epilogue : shape->heads),
                     it->number + 1, count, 1000 * best / ROUNDS, 1000 * first / ROUNDS);
}

/* The fastest of them, if it is clearly faster than the first that does it at all. */
static ek_status fastest(struct choice *own, const struct ek__cuda_stream *stream, int count,
                         ek__cuda_timed *run, struct ek__cuda_candidate *candidate) {
  float first = 0, best = 0;
  int *number = &own->number;
  *number = -1;
  for (int i = 0; i < count; i++) {
    float time = 0;
    bool done = false;
    candidate->number = i;
    EK_TRY(take_time(&time, &done, stream, run, candidate));
    if (!done) continue;
    if (*number < 0) first = time;
    if (*number < 0 || (time < best && time < EK__CUDA_CLEARLY * first)) {
      *number = i;
      best = time;
    }
  }
  if (*number < 0) *number = 0; /* none works: whoever tries them finds out */
  log_choice(stream, own, count, first, best);
  return EK_OK;
}

ek_status ek__cuda_choose(int *number, const struct ek__cuda_stream *stream,
                          const struct ek__cuda_shape *shape, int count, ek__cuda_timed *run,
                          struct ek__cuda_candidate *candidate) {
  const struct ek__cuda_device *device = stream->device;
  struct choice own = {.model = device->gpu->model, .shape = *shape};
  ek_status status = EK_OK;
  own.shape.has_beta = false;
  *number = 0;
  if (count < 2 || device->group->options.deterministic) return EK_OK;
  pthread_mutex_lock(&algorithms.mutex);
  const struct choice *known = find(&algorithms, &own);
  if (known != NULL) {
    *number = known->number < count ? known->number : 0;
  } else if (!shape->has_beta && algorithms.count < CHOICES) {
    const int few = count < EK__CUDA_TIMED_CANDIDATES ? count : EK__CUDA_TIMED_CANDIDATES;
    status = fastest(&own, stream, few, run, candidate);
    if (status == EK_OK) algorithms.list[algorithms.count++] = own;
    *number = own.number;
  }
  pthread_mutex_unlock(&algorithms.mutex);
  return status;
}

/* ---- epilogues ---- */

static uint32_t at_most_16(uint32_t alignment) { return alignment < 16 ? alignment : 16; }

/* The vector is in the workspace where it is added to. */
static struct choice way_of(const struct ek__cuda_device *device,
                            const struct ek__cuda_shape *shape) {
  struct choice way = {.model = device->gpu->model, .shape = *shape};
  way.shape.has_beta = false;
  way.shape.align_a = at_most_16(shape->align_a);
  way.shape.align_b = at_most_16(shape->align_b);
  way.shape.align_c = at_most_16(shape->align_c);
  way.shape.align_aux = at_most_16(shape->align_aux);
  way.shape.align_vector = 16;
  return way;
}

/* The mutex is held. */
static bool is_known(bool *wins, const struct choice *way) {
  const struct choice *known = find(&ways, way);
  if (known != NULL) *wins = known->number != 0;
  return known != NULL;
}

static ek_status race(struct choice *way, const struct ek__cuda_stream *stream,
                      ek__cuda_timed *run, void *of, const struct ek__cuda_product *what) {
  float with = 0, without = 0;
  bool one = false, other = false;
  EK_TRY(take_time(&without, &other, stream, what->other, what->with));
  EK_TRY(take_time(&with, &one, stream, run, of));
  way->number = one && (!other || with < EK__CUDA_CLEARLY * without);
  ek__cuda_host->log(EK_LOG_DEBUG,
                     "%s: product %lld x %lld x %lld: epilogue %u takes %.1f us, kernels %.1f us",
                     stream->device->name, (long long)way->shape.m, (long long)way->shape.n,
                     (long long)way->shape.k, (unsigned)way->shape.epilogue,
                     (double)(1000 * with / ROUNDS), (double)(1000 * without / ROUNDS));
  return EK_OK;
}

ek_status ek__cuda_prefer(bool *wins, const struct ek__cuda_stream *stream,
                          const struct ek__cuda_shape *shape, ek__cuda_timed *run, void *of,
                          const struct ek__cuda_product *what) {
  struct choice way = way_of(stream->device, shape);
  ek_status status = EK_OK;
  bool done = false;
  *wins = false;
  pthread_mutex_lock(&ways.mutex);
  const bool known = is_known(wins, &way);
  pthread_mutex_unlock(&ways.mutex);
  if (known || !what->repeats) return EK_OK;
  EK_TRY(what->other(&done, what->with)); /* chooses its algorithm: collectives may have to end */
  pthread_mutex_lock(&ways.mutex);
  if (!is_known(wins, &way) && ways.count < CHOICES) {
    status = race(&way, stream, run, of, what);
    if (status == EK_OK) ways.list[ways.count++] = way;
    *wins = way.number != 0;
  }
  pthread_mutex_unlock(&ways.mutex);
  return status;
}
