/*
 * memory.c - the table of the memory that a group's devices hold, and memory outside the arenas.
 *
 * The arena keeps the numbers.
 */
#include <evenkeel/memory.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <evenkeel/device.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sizes.h"
#include "device/device_internal.h"

ek_status ek_memory_measure_outside(ek_memory_outside *outside, const ek_device *device) {
  EK__NOT_NULL("ek_memory_measure_outside", outside, device);
  const struct ek__backend *backend = ek__device_table(device);
  ek_memory_outside result = {0};
  if (backend->memory_outside != NULL) EK_TRY(backend->memory_outside(&result, device));
  *outside = result;
  return EK_OK;
}

/* A text that grows beyond its buffer is counted to its end. */
struct text {
  char *buffer;
  size_t size, used;
};

static void append(struct text *text, const char *format, ...) EK_PRINTF(2, 3);
static void append(struct text *text, const char *format, ...) {
  const bool room = text->used < text->size;
  va_list arguments;
  va_start(arguments, format);
  const int written = vsnprintf(room ? text->buffer + text->used : NULL,
                                room ? text->size - text->used : 0, format, arguments);
  va_end(arguments);
  if (written > 0) text->used += (size_t)written;
}

/* No size is longer than "1023.99 MiB" and no name of a row than 13 letters. */
enum { NAME_COLUMN = 13, SIZE_COLUMN = 11 };

/* A device's column is as wide as its name, if that is wider than a size. */
static int column_width(const ek_group *group, size_t device) {
  const int name = (int)strlen(ek_device_name(ek_group_device(group, device)));
  return name > SIZE_COLUMN ? name : SIZE_COLUMN;
}

/* Each size in the unit that suits it: bytes beside a capacity of terabytes must be seen. */
static void append_row(struct text *text, const char *name, const ek_group *group,
                       const ek_memory_usage *usages, size_t offset) {
  append(text, "%-*s", NAME_COLUMN, name);
  for (size_t i = 0; i < ek_group_size(group); i++) {
    const uint64_t bytes = *(const uint64_t *)(const void *)((const char *)&usages[i] + offset);
    char number[32];
    append(text, "  %*s", column_width(group, i), ek__size_text(number, sizeof number, bytes));
  }
  append(text, "\n");
}

static void format(char *buffer, size_t size, size_t *needed, const ek_group *group,
                   const ek_memory_usage *usages) {
  const size_t count = ek_group_size(group);
  struct text text = {buffer, size, 0};
  append(&text, "%-*s", NAME_COLUMN, "at the peak");
  for (size_t i = 0; i < count; i++) {
    append(&text, "  %*s", column_width(group, i), ek_device_name(ek_group_device(group, i)));
  }
  append(&text, "\n");
  for (size_t c = 0; c < EK_MEMORY_CATEGORIES; c++) {
    append_row(&text, ek_memory_category_name((ek_memory_category)c), group, usages,
               offsetof(ek_memory_usage, at_peak) + c * sizeof(uint64_t));
  }
  append_row(&text, "unused", group, usages, offsetof(ek_memory_usage, unused_at_peak));
  append_row(&text, "peak", group, usages, offsetof(ek_memory_usage, peak_bytes));
  append_row(&text, "held now", group, usages, offsetof(ek_memory_usage, current_bytes));
  append_row(&text, "capacity", group, usages, offsetof(ek_memory_usage, capacity_bytes));
  bool outside = false;
  for (size_t i = 0; i < count; i++) outside = outside || usages[i].outside_bytes > 0;
  if (outside) {
    append_row(&text, "outside", group, usages, offsetof(ek_memory_usage, outside_bytes));
  }
  if (needed != NULL) *needed = text.used + 1;
}

ek_status ek_memory_format(char *buffer, size_t *needed, size_t size, const ek_group *group) {
  EK__FAIL_IF(group == NULL || (buffer == NULL && size > 0), EK_ERR_INVALID_ARGUMENT,
              "ek_memory_format: group and buffer may not be NULL");
  const size_t count = ek_group_size(group);
  ek_memory_usage *usages = NULL;
  EK_TRY(ek__new(&usages, count, sizeof *usages, "a table"));
  ek_status status = EK_OK;
  for (size_t i = 0; i < count && status == EK_OK; i++) {
    status = ek_memory_stats(&usages[i], ek_group_device(group, i));
  }
  if (status == EK_OK) format(buffer, size, needed, group, usages);
  ek__free(usages);
  return status;
}
