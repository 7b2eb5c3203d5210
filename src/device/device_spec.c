/*
 * device_spec.c - reads device strings.
 *
 *     spec = name [":" count] ["@" size]     for cpu, plan and plan-cuda
 *          | "cuda" [":" item {"," item}] ["@" size]
 *     item = number ["-" number] ["x" count]  GPUs, and how many logical devices on each
 *     size                                 as ek__size_read() takes it
 */
#include "device/device_spec.h"

#include <stdio.h>
#include <string.h>

#include <evenkeel/device.h>

#include "core/alloc.h"
#include "core/sizes.h"
#include "device/backends.h"

/* A larger number is a typing error. The library itself has no largest number of devices. */
enum { MOST_DEVICES = 64 };
#define TOO_MANY "at most 64 devices"

static ek_status wrong(const char *text, const char *place, const char *expected) {
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "device string: expected %s\n  %s\n  %*s^", expected,
                      text, (int)(place - text), "");
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* Digits of a number that is not above `most`. */
static ek_status read_digits(int *value, const char **at, const char *text, int most,
                             const char *expected, const char *expected_less) {
  const char *place = *at;
  *value = 0;
  if (!is_digit(**at)) return wrong(text, place, expected);
  for (; is_digit(**at); (*at)++) {
    *value = *value * 10 + (**at - '0');
    if (*value > most) return wrong(text, place, expected_less);
  }
  return EK_OK;
}

static ek_status read_count(size_t *count, const char **at, const char *text) {
  const char *place = *at;
  int value = 0;
  EK_TRY(read_digits(&value, at, text, MOST_DEVICES, "a number of devices", TOO_MANY));
  if (value == 0) return wrong(text, place, "at least one device");
  *count = (size_t)value;
  return EK_OK;
}

static ek_status read_size(uint64_t *bytes, const char **at, const char *text) {
  const char *place = *at, *expected = ek__size_read(bytes, at);
  if (expected != NULL) return wrong(text, *at, expected);
  return *bytes < EK_MEMORY_UNIT ? wrong(text, place, "at least 256 bytes") : EK_OK;
}

/* ---- the devices of cuda ---- */

/* A GPU's number; the limit keeps the text within the room of a device's name. */
static ek_status read_number(int *number, const char **at, const char *text) {
  return read_digits(number, at, text, 9999, "the number of a GPU", "the number of a GPU");
}

/* All logical devices of one GPU; they are written together, so a GPU comes once. */
static ek_status add_gpu(struct ek__device_spec *spec, int physical, size_t parts,
                         const char *place, const char *text) {
  for (size_t i = 0; i < spec->count; i++) {
    if (spec->places[i].physical == physical) {
      return wrong(text, place, "each GPU once (two devices on GPU 0 are 0x2)");
    }
  }
  if (parts > spec->room - spec->count) return wrong(text, place, TOO_MANY);
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
    if (last < first) return wrong(text, end, "a number not below the first");
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
  size_t length = 0;
  while (is_letter(text[length]) || (length > 0 && text[length] == '-')) length++;
  spec->backend = ek__backend_named(text, length);
  if (spec->backend == NULL) {
    char names[64], expected[80];
    snprintf(expected, sizeof expected, "a backend (%s)", ek__backend_names(names, sizeof names));
    return wrong(text, text, expected);
  }
  *at = text + length;
  return EK_OK;
}

static ek_status read_devices(struct ek__device_spec *spec, const char **at, const char *text) {
  if (!spec->backend->numbered) {
    spec->count = 1;
    if (**at != ':') return EK_OK;
    (*at)++;
    return read_count(&spec->count, at, text);
  }
  spec->room = MOST_DEVICES;
  EK_TRY(ek__new(&spec->places, spec->room, sizeof *spec->places, "a list of devices"));
  return **at == ':' ? read_gpus(spec, at, text) : EK_OK;
}

static ek_status read_all(struct ek__device_spec *spec, const char *text) {
  const char *at = text;
  EK_TRY(read_backend(spec, &at, text));
  EK_TRY(read_devices(spec, &at, text));
  if (*at == '@') {
    at++;
    EK_TRY(read_size(&spec->capacity, &at, text));
  }
  if (*at == '\0') return EK_OK;
  return wrong(text, at,
               spec->backend->numbered ? "the end, \",GPU\" or \"@size\""
                                       : "the end, \":count\" or \"@size\"");
}

ek_status ek__device_spec_parse(struct ek__device_spec *spec, const char *text) {
  *spec = (struct ek__device_spec){0};
  const ek_status status = read_all(spec, text);
  if (status != EK_OK) ek__device_spec_free(spec);
  return status;
}

void ek__device_spec_free(struct ek__device_spec *spec) {
  ek__free(spec->places);
  *spec = (struct ek__device_spec){0};
}
