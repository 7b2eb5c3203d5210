/*
 * flaw.c - checks the struct of a tensor: see flaw.h.
 */
#include "device/flaw.h"

#include <stdio.h>

#include "core/sizes.h"
#include "device/arena.h"

/* Whether the memory that a tensor holds has room for all of it, from where its data begins. */
static bool inside(const ek_tensor *tensor, uint64_t bytes) {
  if (tensor->memory == NULL || tensor->data == NULL) return true;
  /* Unsigned: an address before the memory counts as far after it. */
  const uint64_t offset = (uintptr_t)tensor->data - (uintptr_t)tensor->memory->address;
  const uint64_t room = ek__arena_room(tensor->memory);
  return offset <= room && bytes <= room - offset;
}

const char *ek__tensor_flaw(char text[EK__FLAW_TEXT], const ek_tensor *tensor) {
  if (tensor->rank < 0 || tensor->rank > EK_MAX_RANK) {
    snprintf(text, EK__FLAW_TEXT, "rank %d", tensor->rank);
    return text;
  }
  int64_t bytes = (int64_t)ek_type_size(tensor->type);
  bool empty = false, fits = true;
  for (int d = 0; d < tensor->rank; d++) {
    if (tensor->shape[d] < 0) {
      snprintf(text, EK__FLAW_TEXT, "size %lld of dimension %d", (long long)tensor->shape[d], d);
      return text;
    }
    empty = empty || tensor->shape[d] == 0;
    if (tensor->shape[d] > 0) fits = fits && ek__multiply(&bytes, bytes, tensor->shape[d]);
  }
  if (!fits) return "bytes that do not fit in 63 bits";
  if (!empty && !inside(tensor, (uint64_t)bytes)) return "elements outside of its memory";
  if (tensor->data == NULL && !empty && !ek_device_counts_only(tensor->device)) {
    return "elements but no memory";
  }
  return NULL;
}
