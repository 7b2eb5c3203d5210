/*
 * cpu_backend.c - the CPU backend: the table, its streams, and properties of the machine.
 *
 * Work is done when it is queued, by the calling thread and the stream's team; so there are no
 * events and nothing to wait for. Each stream has a team of its own and needs no lock. A
 * communication stream has one thread only: its work (copies and reductions) is bound by memory,
 * and all devices of the group do theirs at the same time.
 */
#include "backend/cpu/cpu_internal.h"

#include <evenkeel/dlpack.h>

#include <stdio.h>
#include <string.h>

#include "core/error.h"

static const struct ek__kernels kernels = {
#define ENTRY(name, ...) .name = ek__cpu_##name,
    EK__SLOT_LIST(ENTRY, EK__CPU_NOTHING, ENTRY, ENTRY)};

/* ---- streams ---- */

static ek_status stream_open(void **native, ek_device *device, ek_stream_kind kind, int threads) {
  struct ek__team *team = NULL;
  if (kind == EK_STREAM_COMPUTE) {
    EK_TRY(ek__cpu_isa_check_wish());
    EK_TRY(ek__cpu_products_check_wish());
    EK_TRY(ek__cpu_products_prepare());
  }
  EK_TRY(ek__team_open(&team, kind == EK_STREAM_COMPUTE && threads > 1 ? threads : 1));
  if (ek__device_is_deterministic(device)) ek__team_fix(team);
  *native = team;
  return EK_OK;
}

static void stream_close(void *native) { ek__team_close(native); }

/* ---- copies ---- */

/* What is to be made, in pieces for the team. */
struct making {
  char *to;
  const struct ek__host_bytes *host;
  size_t bytes;
};
#define PIECE ((size_t)64 << 10)

static ek_status make_pieces(void *raw, int64_t begin, int64_t end) {
  const struct making *job = raw;
  const size_t first = (size_t)begin * PIECE;
  const size_t last = (size_t)end * PIECE < job->bytes ? (size_t)end * PIECE : job->bytes;
  return job->host->make(job->host->context, job->to + first, first, last - first);
}

static ek_status upload(ek_stream *stream, void *device, const struct ek__host_bytes *host,
                        size_t bytes) {
  if (host->make == NULL) return ek__cpu_copy(stream, device, host->data, bytes);
  struct making job = {device, host, bytes};
  return ek__cpu_parallel_for(stream, (int64_t)((bytes + PIECE - 1) / PIECE), make_pieces, &job);
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
  if (ek__cpu_memory_size(&bytes, NULL, 0) == EK_OK) it->memory_bytes = bytes;
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
    .values = EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 | EK_TYPES_F16,
    .shared_memory = true,
    .dlpack_type = EK_DLPACK_CPU,
    .memory_commit = ek__cpu_memory_commit,
    .parallel_for = ek__cpu_parallel_for,
    .upload = upload,
    .download = download,
    .between = between,
};
