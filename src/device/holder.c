/*
 * holder.c - see holder.h. Sums by holder go into the caller's table with open addressing, so that
 * nothing is allocated when memory has run out.
 */
#include "device/holder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/process.h"
#include "core/sizes.h"
#include "device/arena.h"

static _Thread_local struct ek__place here;

struct ek__place *ek__place_here(void) {
  return &here;
}

void ek__holders_forget(const ek_device *device, const void *owner) {
  struct ek__arena *arena = ek__device_arena(device);
  if (ek__process_is_child(&arena->process)) return;
  pthread_mutex_lock(&arena->mutex);
  for (struct ek_memory *block = arena->last; block != NULL; block = block->previous) {
    if (block->used && block->holder != NULL && block->holder->owner == owner) block->holder = NULL;
  }
  for (size_t i = 0; i < arena->event_count; i++) {
    struct ek__event_place *place = &arena->places[i];
    if (place->holder != NULL && place->holder->owner == owner) place->holder = NULL;
  }
  pthread_mutex_unlock(&arena->mutex);
}

/* ---- paths that differ in numbers alone ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* The end of a part of a path that is a number; NULL if it is not a number. */
static const char *number_end(const char *part) {
  const char *end = part;
  while (is_digit(*end)) end++;
  return end > part && (*end == '\0' || *end == '.') ? end : NULL;
}

/* The next character of a path, and where it goes on; a number is '*'. */
static char next_letter(const char **at, bool begins, bool alike) {
  const char *end = begins && alike ? number_end(*at) : NULL;
  if (end == NULL) return *(*at)++;
  *at = end;
  return '*';
}

static size_t hash(const char *path, bool alike) { /* FNV-1a (Fowler, Noll, Vo) */
  uint64_t value = UINT64_C(14695981039346656037);
  for (char c = '.'; *path != '\0';) {
    c = next_letter(&path, c == '.', alike);
    value = (value ^ (unsigned char)c) * UINT64_C(1099511628211);
  }
  return (size_t)value;
}

static bool same_path(const char *a, const char *b, bool alike) {
  for (char x = '.', y = '.'; *a != '\0' && *b != '\0';) {
    x = next_letter(&a, x == '.', alike);
    y = next_letter(&b, y == '.', alike);
    if (x != y) return false;
  }
  return *a == *b;
}

/* ---- sums ---- */

static bool belongs(const struct ek__holding *it, const struct ek_memory *block, bool alike) {
  if (block->holder == NULL || it->holder == NULL) {
    return block->holder == it->holder && block->category == it->category;
  }
  return block->holder == it->holder ||
         same_path(ek__holder_name(it->holder), ek__holder_name(block->holder), alike);
}

static void add_block(struct ek__holdings *to, const struct ek_memory *block) {
  const struct ek__holder *holder = block->holder;
  const size_t start =
      holder == NULL ? (size_t)block->category : hash(ek__holder_name(holder), to->alike);
  size_t at = start & (to->capacity - 1);
  while (to->list[at].blocks > 0 && !belongs(&to->list[at], block, to->alike)) {
    at = (at + 1) & (to->capacity - 1);
  }
  struct ek__holding *it = &to->list[at];
  if (it->blocks == 0) {
    if (to->count == to->capacity / 2) {
      to->missing_bytes += block->bytes;
      return;
    }
    to->count++;
    it->holder = holder;
    it->category = block->category;
  }
  it->several = it->several || (holder != it->holder && !same_path(ek__holder_name(it->holder),
                                                                   ek__holder_name(holder), false));
  it->bytes += block->bytes;
  it->blocks++;
}

/* The largest first; of equal ones by name, so that a run repeats; unused places last. */
static int by_bytes(const void *left, const void *right) {
  const struct ek__holding *a = left, *b = right;
  if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
  if (a->blocks == 0 || b->blocks == 0) return (a->blocks == 0) - (b->blocks == 0);
  if (a->holder == NULL || b->holder == NULL) {
    return a->holder != b->holder ? (a->holder == NULL) - (b->holder == NULL)
                                  : (int)a->category - (int)b->category;
  }
  return strcmp(ek__holder_name(a->holder), ek__holder_name(b->holder));
}

void ek__holdings_collect(struct ek__holdings *holdings, const struct ek__arena *arena) {
  for (const struct ek_memory *block = arena->last; block != NULL; block = block->previous) {
    if (block->used) add_block(holdings, block);
  }
  qsort(holdings->list, holdings->capacity, sizeof *holdings->list, by_bytes);
}

/* ---- words ---- */

void ek__holding_name(char *buffer, size_t size, const struct ek__holding *holding) {
  char name[1024];
  size_t length = 0;
  if (holding->holder == NULL) {
    (void)snprintf(buffer, size, "(%s)", ek_memory_category_name(holding->category));
    return;
  }
  const char *path = ek__holder_name(holding->holder);
  for (char c = '.'; *path != '\0' && length + 1 < sizeof name;) {
    c = next_letter(&path, c == '.', holding->several);
    name[length++] = c;
  }
  name[length] = '\0';
  (void)snprintf(buffer, size, "%s", name + (length < size ? 0 : length - size + 1));
}

void ek__holders_describe(char *buffer, size_t size, const struct ek__arena *arena) {
  enum { PLACES = 128, NAMED = 3 };
  struct ek__holding list[PLACES] = {{0}};
  struct ek__holdings holdings = {.list = list, .capacity = PLACES, .alike = true};
  size_t used = 0, named = 0;
  if (size > 0) buffer[0] = '\0';
  ek__holdings_collect(&holdings, arena);
  for (size_t i = 0; i < holdings.count && named < NAMED && used < size; i++) {
    char name[128], bytes[32];
    if (list[i].holder == NULL) continue;
    ek__holding_name(name, sizeof name, &list[i]);
    const int written = snprintf(buffer + used, size - used, "%s%s %s", named > 0 ? ", " : "", name,
                                 ek__size_text(bytes, sizeof bytes, list[i].bytes));
    if (written > 0) used += (size_t)written;
    named++;
  }
}
