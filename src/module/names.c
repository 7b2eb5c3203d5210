/*
 * names.c - open addressing with a step of one; a name is never taken out.
 */
#include "module/names.h"

#include <stdint.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"

/* Where the name is, or the empty place where it would be. */
static struct ek__name *place_of(const struct ek__names *names, const char *name) {
  size_t at = (size_t)ek__hash(EK__HASH_BEGIN, name, strlen(name)) & (names->capacity - 1);
  while (names->places[at].name != NULL && strcmp(names->places[at].name, name) != 0) {
    at = (at + 1) & (names->capacity - 1);
  }
  return &names->places[at];
}

static ek_status make_room(struct ek__names *names) {
  if (names->count < names->capacity / 2) return EK_OK;
  struct ek__names larger = {.capacity = names->capacity == 0 ? 16 : 2 * names->capacity,
                             .count = names->count};
  EK_TRY(ek__new(&larger.places, larger.capacity, sizeof *larger.places, "names"));
  for (size_t i = 0; i < names->capacity; i++) {
    const struct ek__name *it = &names->places[i];
    if (it->name != NULL) *place_of(&larger, it->name) = *it;
  }
  ek__free(names->places);
  *names = larger;
  return EK_OK;
}

ek_status ek__names_add(const char **kept, struct ek__names *names, const char *name,
                        size_t value) {
  char *copy = NULL;
  EK_TRY(make_room(names));
  EK_TRY(ek__new_copy(&copy, name, strlen(name) + 1, "a name"));
  *place_of(names, name) = (struct ek__name){copy, value};
  names->count++;
  *kept = copy;
  return EK_OK;
}

struct ek__name *ek__names_find(const struct ek__names *names, const char *name) {
  if (names->capacity == 0) return NULL;
  struct ek__name *place = place_of(names, name);
  return place->name == NULL ? NULL : place;
}

void ek__names_close(struct ek__names *names) {
  for (size_t i = 0; i < names->capacity; i++) ek__free(names->places[i].name);
  ek__free(names->places);
  *names = (struct ek__names){0};
}
