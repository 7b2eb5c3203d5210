/*
 * options.c - reads a struct that states its own size.
 */
#include "core/options.h"

#include <math.h>
#include <string.h>

#include "core/error.h"

static ek_status check_size(size_t stated, size_t size, const char *name) {
  EK__FAIL_IF(
      stated < sizeof stated || stated > size, EK_ERR_INVALID_ARGUMENT,
      "%s.size is %zu, expected %zu (smaller only in a program built for an older version); "
      "initialise the struct with its ..._INIT",
      name, stated, size);
  return EK_OK;
}

ek_status ek__options_init(void *options, size_t size, const void *defaults, size_t whole,
                           const char *name) {
  EK__FAIL_IF(options == NULL, EK_ERR_INVALID_ARGUMENT, "%s_init: options is NULL", name);
  EK_TRY(check_size(size, whole, name));
  memcpy(options, defaults, size);
  memcpy(options, &size, sizeof size);
  return EK_OK;
}

ek_status ek__options_read(void *local, size_t size, const void *given, const char *name) {
  if (given == NULL) return EK_OK;
  size_t stated = 0;
  memcpy(&stated, given, sizeof stated); /* the first member of each of these structs */
  EK_TRY(check_size(stated, size, name));
  memcpy((char *)local + sizeof stated, (const char *)given + sizeof stated,
         stated - sizeof stated);
  return EK_OK;
}

ek_status ek__check_number(const char *who, const char *name, double value) {
  EK__FAIL_IF(!(value >= 0.0 && isfinite(value)), EK_ERR_INVALID_ARGUMENT,
              "%s: %s is %g, expected a number >= 0", who, name, value);
  return EK_OK;
}

ek_status ek__check_count(const char *of, const char *kind, const char *what, size_t count,
                          size_t least, size_t most) {
  EK__FAIL_IF(count < least || count > most, EK_ERR_INVALID_ARGUMENT,
              "%s: a %s has %zu to %zu %s, not %zu", kind, of, least, most, what, count);
  return EK_OK;
}
