/*
 * guard.c - fills new memory with NaN and finds writes outside a tensor: see guard.h.
 *
 * Both patterns are written as floats by the backend's own `fill`, so there is one code for all
 * backends. NEW in every 32 bits is NaN in f32, f64, f16 and bf16, and the largest number in i32,
 * which is no index of anything.
 *
 * A block is checked while it is `watched`: from its filling until it is freed. The guards of a
 * block in use are read with the arena's mutex held, so that it is not freed meanwhile. Offsets
 * count from the beginning of the block.
 */
#include "device/guard.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/log_internal.h"
#include "core/sizes.h"
#include "device/device_internal.h"

#define NEW UINT32_C(0x7FFFFFFF)
#define SIDE UINT32_C(0xA5A5A5A5)

enum { MOST_BYTES = 2 * EK_MEMORY_UNIT }; /* on one side of a tensor */

void ek__guard_start(ek_device *device) { ek__device_arena(device)->guard = EK_MEMORY_UNIT; }

static char *start(const struct ek_memory *memory) { return memory->address - memory->guard; }

/* Where the guard after `bytes` of a tensor begins: patterns have four bytes. */
static uint64_t behind(const struct ek_memory *memory, uint64_t bytes) {
  return memory->guard + (bytes + 3) / 4 * 4;
}

static ek_status fill(const struct ek_memory *memory, uint64_t from, uint64_t to,
                      uint32_t pattern) {
  const struct ek__kernels *kernels = memory->arena->backend->kernels;
  float value = 0;
  memcpy(&value, &pattern, sizeof value);
  if (kernels == NULL || from == to) return EK_OK;
  const struct ek__elementwise_args args = {.y = start(memory) + from,
                                            .count = (int64_t)((to - from) / sizeof value),
                                            .value = (double)value,
                                            .types = ek__types_in(EK_F32)};
  return kernels->fill(ek_device_stream(memory->arena->device, EK_STREAM_COMPUTE), &args);
}

ek_status ek__guard_paint(struct ek_memory *memory, uint64_t kept) {
  struct ek__arena *arena = memory->arena;
  const uint64_t tail = behind(memory, memory->wanted);
  if (kept == 0) EK_TRY(fill(memory, 0, memory->guard, SIDE));
  EK_TRY(fill(memory, behind(memory, kept), tail, NEW));
  EK_TRY(fill(memory, tail, memory->bytes, SIDE));
  pthread_mutex_lock(&arena->mutex);
  memory->watched = true;
  pthread_mutex_unlock(&arena->mutex);
  return EK_OK;
}

/* ---- looking ---- */

static ek_status read_back(char *bytes, const struct ek_memory *memory, uint64_t from,
                           uint64_t to) {
  const struct ek__arena *arena = memory->arena;
  return arena->backend->download(ek_device_stream(arena->device, EK_STREAM_COMPUTE), bytes,
                                  start(memory) + from, (size_t)(to - from));
}

/* The byte that belongs at `offset`, outside of the tensor. */
static bool intact(char byte, const struct ek_memory *memory, uint64_t offset) {
  const bool rounding = offset >= memory->guard && offset < behind(memory, memory->wanted);
  const uint32_t pattern = rounding ? NEW : SIDE;
  return byte == ((const char *)&pattern)[offset % sizeof pattern];
}

/* Whether all of that is SIDE: the usual case, and the quick one. */
static bool is_side(const char *bytes, uint64_t count) {
  const uint32_t side = SIDE;
  if (count < sizeof side) return false;
  return memcmp(bytes, &side, sizeof side) == 0 &&
         memcmp(bytes, bytes + sizeof side, (size_t)count - sizeof side) == 0;
}

static ek_status overrun(const struct ek_memory *memory, uint64_t distance, const char *where) {
  char size[32];
  return ek_error_set(EK_ERR_OVERRUN,
                      "%s: memory was overwritten beside a tensor of %s (%llu bytes), charged to "
                      "%s: %llu byte%s %s",
                      ek_device_name(memory->arena->device),
                      ek__size_text(size, sizeof size, memory->wanted),
                      (unsigned long long)memory->wanted, ek_memory_category_name(memory->category),
                      (unsigned long long)distance, distance == 1 ? "" : "s", where);
}

/* Finds the changed byte that is nearest to the tensor. */
static ek_status look(const struct ek_memory *memory) {
  char bytes[MOST_BYTES];
  const uint64_t first = memory->guard, end = first + memory->wanted;
  if (memory->arena->backend->download == NULL) return EK_OK; /* nothing is there to look at */
  EK_TRY(read_back(bytes, memory, 0, first));
  for (uint64_t i = is_side(bytes, first) ? 0 : first; i-- > 0;) {
    if (!intact(bytes[i], memory, i)) return overrun(memory, first - i, "before its start");
  }
  const uint64_t side = behind(memory, memory->wanted);
  EK_TRY(read_back(bytes, memory, end, memory->bytes));
  const uint64_t doubtful =
      is_side(bytes + (side - end), memory->bytes - side) ? side : memory->bytes;
  for (uint64_t i = end; i < doubtful; i++) {
    if (!intact(bytes[i - end], memory, i)) return overrun(memory, i - end + 1, "after its end");
  }
  return EK_OK;
}

static void note(struct ek__arena *arena, ek_status status, const char *words) {
  pthread_mutex_lock(&arena->mutex);
  if (arena->noted == EK_OK) {
    arena->noted = status;
    snprintf(arena->noted_words, sizeof arena->noted_words, "%s", words);
  }
  pthread_mutex_unlock(&arena->mutex);
}

void ek__guard_close(struct ek_memory *memory) {
  struct ek__arena *arena = memory->arena;
  pthread_mutex_lock(&arena->mutex);
  const bool asked = memory->watched && !memory->reported;
  pthread_mutex_unlock(&arena->mutex);
  if (!asked) return;
  char before[EK__MESSAGE_SIZE];
  snprintf(before, sizeof before, "%s", ek_error_message());
  const ek_status status = look(memory);
  if (status == EK_OK) return;
  ek__log(EK_LOG_WARNING, "%s", ek_error_message());
  note(arena, status, ek_error_message());
  ek_error_set(status, "%s", before);
}

ek_status ek__guard_noted(struct ek__arena *arena) {
  if (arena->guard == 0) return EK_OK;
  pthread_mutex_lock(&arena->mutex);
  const ek_status status = arena->noted;
  arena->noted = EK_OK;
  if (status != EK_OK) ek_error_set(status, "%s", arena->noted_words);
  pthread_mutex_unlock(&arena->mutex);
  return status;
}

ek_status ek__guard_check(struct ek__arena *arena) {
  EK_TRY(ek__guard_noted(arena));
  if (arena->guard == 0) return EK_OK;
  ek_status status = EK_OK;
  pthread_mutex_lock(&arena->mutex);
  for (struct ek_memory *it = arena->last; it != NULL && status == EK_OK; it = it->previous) {
    if (!it->used || !it->watched || it->reported) continue;
    status = look(it);
    it->reported = status == EK_ERR_OVERRUN;
  }
  pthread_mutex_unlock(&arena->mutex);
  return status;
}
