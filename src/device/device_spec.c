/*
 * device_spec.c - reads device strings.
 *
 *     spec = name [":" count] ["@" size]     for cpu, plan and plan-cuda
 *          | "cuda" [":" item {"," item}] ["@" size]
 *     item = number ["-" number] ["x" count]  GPUs, and how many logical devices on each
 *     size = digits ["." digits] [unit]
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

#define UNITS "a unit (B KiB MiB GiB TiB KB MB GB TB)"

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
  return wrong(text, *at, UNITS);
}

/* Digits and unit without rounding: the fraction is kept as a numerator over a power of ten. */
static ek_status read_size(uint64_t *bytes, const char **at, const char *text) {
  const char *place = *at;
  uint64_t whole = 0, fraction = 0, scale = 1, unit = 1;
  if (!is_digit(**at)) return wrong(text, place, "a size");
  for (; is_digit(**at); (*at)++) {
    if (__builtin_mul_overflow(whole, UINT64_C(10), &whole) ||
        __builtin_add_overflow(whole, (uint64_t)(**at - '0'), &whole)) {
      return wrong(text, place, "a size that fits in 63 bits");
    }
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
  const char *behind = *at;
  EK_TRY(read_unit(&unit, at, text));
  /* What is wrong behind the number must not pass for a number that is too small. */
  if (**at != '\0') {
    return wrong(text, *at, *at > behind ? "the end" : "the end, or right behind the number " UNITS);
  }
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

/* ---- the devices of cuda ---- */

/* A GPU's number; the limit keeps the text in step with what a device name has room for. */
static ek_status read_number(int *number, const char **at, const char *text) {
  const char *place = *at;
  int value = 0;
  if (!is_digit(**at)) return wrong(text, place, "the number of a GPU");
  for (; is_digit(**at); (*at)++) {
    value = value * 10 + (**at - '0');
    if (value > 9999) return wrong(text, place, "the number of a GPU");
  }
  *number = value;
  return EK_OK;
}

/* All logical devices of one GPU; they are written together, so a GPU comes once. */
static ek_status add_gpu(struct ek__device_spec *spec, int physical, size_t parts,
                         const char *place, const char *text) {
  for (size_t i = 0; i < spec->count; i++) {
    if (spec->places[i].physical == physical) {
      return wrong(text, place, "each GPU once (two devices on GPU 0 are 0x2)");
    }
  }
  if (parts > EK_MAX_DEVICES - spec->count) return wrong(text, place, "at most 64 devices");
  for (size_t part = 0; part < parts; part++) {
    spec->places[spec->count++] =
        (struct ek__device_place){.physical = physical, .part = (int)part, .parts = (int)parts};
  }
  return EK_OK;
}

static ek_status read_item(struct ek__device_spec *spec, const char **at, const char *text) {
  const char *place = *at;
  int first = 0;
  size_t parts = 1;
  EK_TRY(read_number(&first, at, text));
  int last = first;
  if (**at == '-') {
    const char *end = ++(*at);
    EK_TRY(read_number(&last, at, text));
    if (last < first) return wrong(text, end, "a number that is not below the first");
  }
  if (**at == 'x') {
    (*at)++;
    EK_TRY(read_count(&parts, at, text));
  }
  for (int i = first; i <= last; i++) EK_TRY(add_gpu(spec, i, parts, place, text));
  return EK_OK;
}

static ek_status read_gpus(struct ek__device_spec *spec, const char **at, const char *text) {
  do {
    (*at)++; /* the colon, or a comma */
    EK_TRY(read_item(spec, at, text));
  } while (**at == ',');
  return EK_OK;
}

/* ---- the whole ---- */

static ek_status read_backend(struct ek__device_spec *spec, const char **at, const char *text) {
  static const char *const names[] = {"cpu", "plan", "cuda", "plan-cuda"};
  size_t length = 0;
  while (is_letter(text[length]) || (length > 0 && text[length] == '-')) length++;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (strlen(names[i]) == length && strncmp(names[i], text, length) == 0) {
      memcpy(spec->backend, text, length);
      *at = text + length;
      return EK_OK;
    }
  }
  return wrong(text, text, "a backend (cpu, plan, cuda)");
}

ek_status ek__device_spec_parse(struct ek__device_spec *spec, const char *text) {
  struct ek__device_spec result = {.count = 1};
  const char *at = text;
  EK_TRY(read_backend(&result, &at, text));
  const bool cuda = strcmp(result.backend, "cuda") == 0;
  if (cuda) {
    result.count = 0;
    if (*at == ':') EK_TRY(read_gpus(&result, &at, text));
  } else if (*at == ':') {
    at++;
    EK_TRY(read_count(&result.count, &at, text));
  }
  if (*at == '@') {
    at++;
    EK_TRY(read_size(&result.capacity, &at, text));
  }
  if (*at != '\0') {
    return wrong(text, at,
                 cuda ? "the end, \",GPU\" or \"@size\"" : "the end, \":count\" or \"@size\"");
  }
  *spec = result;
  return EK_OK;
}
