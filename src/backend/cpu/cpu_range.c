/*
 * cpu_range.c - work that is cut into ranges, one for each thread of a stream's team.
 */
#include <pthread.h>
#include <stdio.h>

#include "backend/cpu/cpu_internal.h"
#include "core/error.h"

struct range_job {
  ek__range_function *function;
  const void *args;
  int64_t count, grain;
};

static void run_part(void *raw, int part, int parts) {
  const struct range_job *job = raw;
  int64_t begin = 0, end = 0;
  ek__team_piece(job->count, job->grain, part, parts, &begin, &end);
  if (begin < end) job->function(job->args, begin, end);
}

/* As many threads as have enough to do. */
static int parts_of(const struct ek__team *team, int64_t count, int64_t least) {
  const int64_t most = count / least;
  const int threads = ek__team_threads(team);
  return most < 1 ? 1 : most < threads ? (int)most : threads;
}

void ek__cpu_range_with_scratch(ek_stream *stream, ek__range_function *function, const void *args,
                                int64_t count) {
  if (count <= 0) return;
  struct ek__team *team = ek__stream_backend(stream);
  struct range_job job = {function, args, count, 1};
  ek__team_run_with_scratch(team, parts_of(team, count, 1), run_part, &job);
}

void ek__cpu_range(ek_stream *stream, ek__range_function *function, const void *args, int64_t count,
                   int64_t least) {
  if (count <= 0) return;
  struct ek__team *team = ek__stream_backend(stream);
  const int parts = parts_of(team, count, least);
  if (parts <= 1) {
    function(args, 0, count);
    return;
  }
  /* Ranges of many elements begin at a cache line; ranges of few rows are cut anywhere. */
  struct range_job job = {function, args, count, count / parts >= 1024 ? 64 : 1};
  ek__team_run(team, parts, run_part, &job);
}

void ek__cpu_note(struct ek__cpu_failure *failure, ek_status status) {
  if (status == EK_OK || atomic_flag_test_and_set(&failure->set)) return;
  failure->status = status;
  (void)snprintf(failure->message, sizeof failure->message, "%s", ek_error_message());
}

ek_status ek__cpu_failed(const struct ek__cpu_failure *failure) {
  if (failure->status == EK_OK) return EK_OK;
  return ek_error_set(failure->status, "%s", failure->message);
}

/* ---- loops of a program's own ---- */

struct own_job {
  ek_range_function function;
  void *context;
  int64_t count;
  pthread_mutex_t mutex; /* of what follows: the first range that failed */
  int part;
  ek_status status;
  char message[EK__MESSAGE_SIZE];
};

static void run_own_part(void *raw, int part, int parts) {
  struct own_job *job = raw;
  int64_t begin = 0, end = 0;
  ek__team_piece(job->count, 1, part, parts, &begin, &end);
  const uint64_t before = ek__error_number();
  const ek_status status = job->function(job->context, begin, end);
  if (status == EK_OK) return;
  pthread_mutex_lock(&job->mutex);
  if (job->status == EK_OK || part < job->part) {
    job->part = part;
    job->status = status;
    (void)snprintf(job->message, sizeof job->message, "%s", ek__error_words(status, before));
  }
  pthread_mutex_unlock(&job->mutex);
}

ek_status ek__cpu_parallel_for(ek_stream *stream, int64_t count, ek_range_function function,
                               void *context) {
  struct ek__team *team = ek__stream_backend(stream);
  struct own_job job = {.function = function,
                        .context = context,
                        .count = count,
                        .mutex = PTHREAD_MUTEX_INITIALIZER,
                        .status = EK_OK};
  ek__team_run(team, parts_of(team, count, 1), run_own_part, &job);
  return job.status == EK_OK ? EK_OK : ek_error_set(job.status, "%s", job.message);
}
