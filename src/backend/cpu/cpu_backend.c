/*
 * cpu_backend.c - the CPU backend: the table, its streams, and what it says of the machine.
 *
 * Work is done when it was queued, by the calling thread and the stream's team; so there are no
 * events and nothing to wait for. Each stream has a team of its own and needs no lock. A
 * communication stream has one thread only: what runs on it (copies and reductions) is bound by
 * memory, and all devices of the group run theirs at the same time.
 */
#include "backend/cpu/cpu_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"

static const struct ek__kernels kernels = {
#define ENTRY(name, arguments) .name = ek__cpu_##name,
    EK__KERNEL_LIST(ENTRY, EK__CPU_NOTHING)};

/* ---- streams ---- */

static ek_status stream_open(void **native, ek_device *device, ek_stream_kind kind, int threads) {
  (void)device;
  struct ek__team *team = NULL;
  if (kind == EK_STREAM_COMPUTE) EK_TRY(ek__cpu_products_prepare());
  EK_TRY(ek__team_open(&team, kind == EK_STREAM_COMPUTE && threads > 1 ? threads : 1));
  *native = team;
  return EK_OK;
}

static void stream_close(void *native) { ek__team_close(native); }

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

static ek_status parallel_for(ek_stream *stream, int64_t count, ek_range_function function,
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

/* ---- copies ---- */

static ek_status upload(ek_stream *stream, void *device, const void *host, size_t bytes) {
  return ek__cpu_copy(stream, device, host, bytes);
}

static ek_status download(ek_stream *stream, void *host, const void *device, size_t bytes) {
  return ek__cpu_copy(stream, host, device, bytes);
}

static ek_status between(ek_stream *stream, void *to, ek_device *source, const void *from,
                         size_t bytes) {
  (void)source;
  return ek__cpu_copy(stream, to, from, bytes);
}

/* ---- what there is ---- */

/* The processor's name from /proc/cpuinfo; "CPU" where there is no such file or line. */
static void processor_name(char *name, size_t size) {
  (void)snprintf(name, size, "CPU");
  FILE *file = fopen("/proc/cpuinfo", "r");
  if (!file) return;
  char line[256];
  while (fgets(line, sizeof line, file)) {
    const char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || !colon) continue;
    const char *text = colon + 1 + strspn(colon + 1, " \t");
    (void)snprintf(name, size, "%.*s", (int)strcspn(text, "\n"), text);
    break;
  }
  (void)fclose(file);
}

static ek_status describe(ek_device_description *descriptions, size_t capacity, size_t *count) {
  *count = 1;
  if (capacity == 0) return EK_OK;
  ek_device_description *it = &descriptions[0];
  *it = (ek_device_description){.name = "cpu", .available = true, .cores = ek__cpu_cores()};
  uint64_t bytes = 0;
  if (ek__cpu_memory_size(&bytes, NULL) == EK_OK) it->memory_bytes = bytes;
  char name[128];
  processor_name(name, sizeof name);
  (void)snprintf(it->text, sizeof it->text, "%s, %d core%s, %s, %s", name, it->cores,
                 it->cores == 1 ? "" : "s", ek__cpu_isa_name(), ek__cpu_products_name());
  return EK_OK;
}

const struct ek__backend ek__cpu_backend = {
    EK__BACKEND_REQUIRED("cpu", describe, ek__cpu_memory_size, ek__cpu_memory_reserve,
                         ek__cpu_memory_release, stream_open, stream_close),
    .kernels = &kernels,
    .shared_memory = true,
    .memory_commit = ek__cpu_memory_commit,
    .parallel_for = parallel_for,
    .upload = upload,
    .download = download,
    .between = between,
};
