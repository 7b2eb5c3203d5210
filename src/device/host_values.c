/*
 * host_values.c - a tensor filled with numbers that the host computes, on several threads.
 *
 * Each piece of memory that a backend wants filled (pinned memory, on a GPU) is cut over a team.
 * The cut depends on the number of threads; what is computed may not.
 */
#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_internal.h"
#include "backend/cpu/team.h"
#include "core/error.h"
#include "device/device_internal.h"
#include "device/fault_internal.h"

/* Bytes: less is not worth a thread. A multiple of every type's size and of 8. */
enum { GRAIN = 64 << 10 };

struct making {
  const struct ek__host_bytes *host;
  struct ek__team *team; /* NULL: one thread is enough */
  char *to; /* of one piece, which begins with byte `first` of all */
  size_t first, count;
  atomic_int status;
};

static void make_part(void *raw, int part, int parts) {
  struct making *it = raw;
  int64_t begin = 0, end = 0;
  ek__team_piece((int64_t)it->count, GRAIN, part, parts, &begin, &end);
  if (begin == end) return;
  const ek_status status = it->host->make(it->host->context, it->to + begin,
                                          it->first + (size_t)begin, (size_t)(end - begin));
  if (status != EK_OK) atomic_store(&it->status, status);
}

static ek_status make_piece(const void *context, void *to, size_t first, size_t count) {
  struct making *it = *(struct making *const *)context;
  if (it->team == NULL) return it->host->make(it->host->context, to, first, count);
  it->to = to;
  it->first = first;
  it->count = count;
  ek__team_run(it->team, ek__team_threads(it->team), make_part, it);
  return (ek_status)atomic_load(&it->status);
}

/* The cores of the process, for `sharers` callers at a time; one for each grain at most. */
static int threads_for(size_t bytes, size_t sharers) {
  const size_t grains = (bytes + GRAIN - 1) / GRAIN, cores = (size_t)ek__cpu_cores() / sharers;
  const size_t threads = cores < grains ? cores : grains;
  return threads < 1 ? 1 : (int)threads;
}

ek_status ek__tensor_fill_from(ek_tensor *tensor, const struct ek__host_bytes *host,
                               size_t sharers) {
  const struct ek__backend *backend = ek__device_table(tensor->device);
  const size_t bytes = ek_tensor_bytes(tensor);
  struct making making = {.host = host, .status = EK_OK}, *it = &making;
  const struct ek__host_bytes pieces = {NULL, make_piece, &it};
  if (bytes == 0 || backend->upload == NULL) return EK_OK;
  EK_TRY(ek__fault_point(tensor->device, "copy"));
  const int threads = threads_for(bytes, sharers);
  if (threads > 1) EK_TRY(ek__team_open(&making.team, threads));
  const ek_status status =
      backend->shared_memory ? make_piece(&it, tensor->data, 0, bytes)
                             : backend->upload(ek_device_stream(tensor->device, EK_STREAM_COMPUTE),
                                               tensor->data, &pieces, bytes);
  ek__team_close(making.team);
  return status;
}
