/*
 * sizes.c - see sizes.h: sizes as text, there and back.
 */
#include "core/sizes.h"

#include <stdio.h>
#include <string.h>

const char *ek__size_text(char *buffer, size_t size, uint64_t bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
    value /= 1024;
    unit++;
  }
  snprintf(buffer, size, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return buffer;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static const struct {
  const char *name;
  uint64_t bytes;
} units[] = {{"B", 1},
             {"KiB", UINT64_C(1) << 10},
             {"MiB", UINT64_C(1) << 20},
             {"GiB", UINT64_C(1) << 30},
             {"TiB", UINT64_C(1) << 40},
             {"KB", UINT64_C(1000)},
             {"MB", UINT64_C(1000000)},
             {"GB", UINT64_C(1000000000)},
             {"TB", UINT64_C(1000000000000)}};

#define UNITS "a unit (B KiB MiB GiB TiB KB MB GB TB)"

static const char *read_unit(uint64_t *unit, const char **at) {
  size_t length = 0;
  while (is_letter((*at)[length])) length++;
  *unit = 1;
  if (length == 0) return NULL;
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    if (strlen(units[i].name) == length && strncmp(units[i].name, *at, length) == 0) {
      *unit = units[i].bytes;
      *at += length;
      return NULL;
    }
  }
  return UNITS;
}

/* The fraction is kept as a numerator over a power of ten, so nothing is rounded. */
const char *ek__size_read(uint64_t *bytes, const char **at) {
  static const char *const too_large = "a size that fits in 63 bits";
  const char *const place = *at;
  uint64_t whole = 0, fraction = 0, scale = 1, unit = 1, total = 0;
  if (!is_digit(**at)) return "a size";
  for (; is_digit(**at); (*at)++) {
    if (__builtin_mul_overflow(whole, UINT64_C(10), &whole) ||
        __builtin_add_overflow(whole, (uint64_t)(**at - '0'), &whole)) {
      *at = place;
      return too_large;
    }
  }
  if (**at == '.') {
    (*at)++;
    if (!is_digit(**at)) return "digits";
    for (; is_digit(**at); (*at)++) {
      if (scale == 1000000) continue; /* finer digits do not matter */
      fraction = fraction * 10 + (uint64_t)(**at - '0');
      scale *= 10;
    }
  }
  const char *const number_end = *at, *expected = read_unit(&unit, at);
  if (expected != NULL) return expected;
  /* A mistake after the number must not be reported as a number that is too small. */
  if (**at != '\0') {
    return *at > number_end ? "the end" : "the end, or directly after the number " UNITS;
  }
  if (__builtin_mul_overflow(whole, unit, &total) ||
      __builtin_add_overflow(total, fraction * (unit / scale) + fraction * (unit % scale) / scale,
                             &total) ||
      total > INT64_MAX) {
    *at = place;
    return too_large;
  }
  *bytes = total;
  return NULL;
}
