/*
 * cuda_choice.c - the algorithm of a product: the fastest of those that cuBLASLt's heuristic puts
 * first.
 *
 * A shape holds the alignment of its addresses, so it is known when the product is asked for, not
 * before. ek_trainer_prepare() asks for all of a step's ahead of the first step; what it has not
 * seen is timed in the step. The candidates are timed at the first product of a shape, where the
 * worker waits on the host anyway before code is loaded (cuda_products.c): on the product's own
 * operands, and so without memory. All that a product with beta 0 writes it writes again, and
 * nothing that it writes does it read; the last run counts. A product that adds takes what was
 * found for the one that overwrites, with which each step begins, or the heuristic's first. What
 * has been timed is not timed again, and no thread waits.
 *
 * What was found holds for the process and for all GPUs of one model, so that they compute alike,
 * and for as long as the process lives: a forward that runs again, in the same step or in another
 * group, has the same bits. A shape that comes when the table is full gets the heuristic's first.
 * So does everything in a group that is deterministic, because the next process might measure
 * otherwise.
 *
 * Lock: `mutex` is held while one device times; others that have a new shape wait for it. Nothing
 * that the stream holds then waits for a worker: collectives have ended, and copies between devices
 * wait for what was queued.
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

/* The fastest of them, if it is clearly faster than the first that does it at all. */
static ek_status fastest(int *number, const struct ek__cuda_stream *stream, int count,
                         ek__cuda_timed *run, struct ek__cuda_candidate *candidate) {
  float first = 0, best = 0;
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
    status = fastest(&own.number, stream, few, run, candidate);
    if (status == EK_OK) choices[choice_count++] = own;
    *number = own.number;
  }
  pthread_mutex_unlock(&mutex);
  return status;
}
