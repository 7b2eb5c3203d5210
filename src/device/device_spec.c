/*
 * device_spec.c - reads device strings.
 *
 *     spec = name [":" count] ["@" size];  size = digits ["." digits] [unit]
 */
#include "device/device_spec.h"

#include <string.h>

#include <evenkeel/device.h>

static ek_status wrong(const char *text, const char *place, const char *expected) {
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "device string: expected %s\n  %s\n  %*s^", expected,
                      text, (int)(place - text), "");
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static ek_status read_count(size_t *count, const char **at, const char *text) {
  const char *place = *at;
  size_t value = 0;
  if (!is_digit(**at)) return wrong(text, place, "a number of devices");
  for (; is_digit(**at); (*at)++) {
    value = value * 10 + (size_t)(**at - '0');
    if (value > EK_MAX_DEVICES) return wrong(text, place, "at most 64 devices");
  }
  if (value == 0) return wrong(text, place, "at least one device");
  *count = value;
  return EK_OK;
}

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

static ek_status read_unit(uint64_t *unit, const char **at, const char *text) {
  size_t length = 0;
  while (is_letter((*at)[length])) length++;
  *unit = 1;
  if (length == 0) return EK_OK;
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    if (strlen(units[i].name) == length && strncmp(units[i].name, *at, length) == 0) {
      *unit = units[i].bytes;
      *at += length;
      return EK_OK;
    }
  }
  return wrong(text, *at, "a unit (B KiB MiB GiB TiB KB MB GB TB)");
}

/* Digits and unit without rounding: the fraction is kept as a numerator over a power of ten. */
static ek_status read_size(uint64_t *bytes, const char **at, const char *text) {
  const char *place = *at;
  uint64_t whole = 0, fraction = 0, scale = 1, unit = 1;
  if (!is_digit(**at)) return wrong(text, place, "a size");
  for (; is_digit(**at); (*at)++) {
    if (whole > INT64_MAX / 10 - 1) return wrong(text, place, "a size that fits in 63 bits");
    whole = whole * 10 + (uint64_t)(**at - '0');
  }
  if (**at == '.') {
    (*at)++;
    if (!is_digit(**at)) return wrong(text, *at, "digits");
    for (; is_digit(**at); (*at)++) {
      if (scale == 1000000) continue; /* finer digits do not matter */
      fraction = fraction * 10 + (uint64_t)(**at - '0');
      scale *= 10;
    }
  }
  EK_TRY(read_unit(&unit, at, text));
  uint64_t total = 0;
  if (__builtin_mul_overflow(whole, unit, &total) ||
      __builtin_add_overflow(total, fraction * (unit / scale) + fraction * (unit % scale) / scale,
                             &total) ||
      total > INT64_MAX) {
    return wrong(text, place, "a size that fits in 63 bits");
  }
  if (total < EK_MEMORY_UNIT) return wrong(text, place, "at least 256 bytes");
  *bytes = total;
  return EK_OK;
}

ek_status ek__device_spec_parse(struct ek__device_spec *spec, const char *text) {
  struct ek__device_spec result = {.count = 1};
  const char *at = text;
  size_t length = 0;
  while (is_letter(text[length])) length++;
  if (length == 0 || length >= sizeof result.backend) {
    return wrong(text, text, "a backend (cpu, plan, cuda)");
  }
  memcpy(result.backend, text, length);
  at += length;
  if (strcmp(result.backend, "cuda") == 0) {
    return ek_error_set(EK_ERR_UNAVAILABLE, "cuda: this build has no CUDA module");
  }
  if (strcmp(result.backend, "cpu") != 0 && strcmp(result.backend, "plan") != 0) {
    return wrong(text, text, "a backend (cpu, plan, cuda)");
  }
  if (*at == ':') {
    at++;
    EK_TRY(read_count(&result.count, &at, text));
  }
  if (*at == '@') {
    at++;
    EK_TRY(read_size(&result.capacity, &at, text));
  }
  if (*at != '\0') return wrong(text, at, "the end, \":count\" or \"@size\"");
  *spec = result;
  return EK_OK;
}
