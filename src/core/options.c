/*
 * options.c - reads a struct that states its own size.
 */
#include "core/options.h"

#include <string.h>

#include "core/error.h"

ek_status ek__options_read(void *local, size_t size, const void *given, const char *name) {
  if (given == NULL) return EK_OK;
  size_t stated = 0;
  memcpy(&stated, given, sizeof stated); /* the first member of each of these structs */
  EK__FAIL_IF(
      stated < sizeof stated || stated > size, EK_ERR_INVALID_ARGUMENT,
      "%s.size is %zu, expected %zu (less only from an older program); was the struct initialised?",
      name, stated, size);
  memcpy((char *)local + sizeof stated, (const char *)given + sizeof stated,
         stated - sizeof stated);
  return EK_OK;
}
