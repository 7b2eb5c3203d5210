/*
 * cuda_choice.c - the algorithm of a product: the fastest of those that cuBLASLt's heuristic puts
 * first.
 *
 * A shape includes the alignment of its addresses, so it is not known before the product is called.
 * ek_trainer_prepare() makes all products of a step ahead of the first step; a shape that it has
 * not met is timed in the step. The candidates are timed at the first product of a shape, when the
 * worker waits on the host anyway before code is loaded (cuda_products.c), with the product's own
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
 * Lock: `mutex` is held while one device times; others that have a new shape wait for it. No work
 * in the stream then waits for a worker: collectives have ended, and copies between devices wait
 * only for work that is queued already.
 */
#include <string.h>

#include "backend/cuda/cuda_internal.h"

enum { CHOICES = 512, ROUNDS = 4 };

struct choice {
  int model;
  struct ek__cuda_shape shape; /* has_beta is false */
  int number;                  /* among the heuristic's */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct choice choices[CHOICES];
static size_t choice_count;

/* Once to load what it needs, then some rounds. */
ek_status ek__cuda_take_time(float *time, bool *done, const struct ek__cuda_stream *stream,
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

static struct choice *find(const struct choice *like) {
  for (size_t i = 0; i < choice_count; i++) {
    struct choice *it = &choices[i];
    if (it->model == like->model && memcmp(&it->shape, &like->shape, sizeof it->shape) == 0)
      return it;
  }
  return NULL;
}

static void log_choice(const struct ek__cuda_stream *stream, const struct choice *it, int count,
                       double first, double best) {
  const struct ek__cuda_shape *shape = &it->shape;
  ek__cuda_host->log(EK_LOG_DEBUG,
                     "%s: product %lld x %lld x %lld, epilogue %u: algorithm %d of %d, %.1f us; "
                     "the first %.1f us",
                     stream->device->name, (long long)shape->m, (long long)shape->n,
                     (long long)shape->k, (unsigned)shape->epilogue, it->number + 1, count,
                     1000 * best / ROUNDS, 1000 * first / ROUNDS);
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
    EK_TRY(ek__cuda_take_time(&time, &done, stream, run, candidate));
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
  pthread_mutex_lock(&mutex);
  const struct choice *known = find(&own);
  if (known != NULL) {
    *number = known->number < count ? known->number : 0;
  } else if (!shape->has_beta && choice_count < CHOICES) {
    const int few = count < EK__CUDA_TIMED_CANDIDATES ? count : EK__CUDA_TIMED_CANDIDATES;
    status = fastest(&own, stream, few, run, candidate);
    if (status == EK_OK) choices[choice_count++] = own;
    *number = own.number;
  }
  pthread_mutex_unlock(&mutex);
  return status;
}
