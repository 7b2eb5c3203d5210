/*
 * backends.c - the one table of backends by name, and the list of devices.
 */
#include "device/backends.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/loader.h"

static struct ek__loadable cuda = {.name = "cuda",
                                  .title = "CUDA",
                                  .file = "libevenkeel_cuda.so",
                                  .entry = EK__CUDA_ENTRY,
                                  .table_size = EK__BACKEND_SIZE};

static const struct ek__backend_name rows[] = {
    {"cpu", &ek__cpu_backend, .listed = true},
    {"plan", &ek__plan_backend, .listed = true},
    {"plan-cuda", &ek__plan_cuda_backend, .listed = false},
    {"cuda", NULL, .numbered = true, .listed = true},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

const struct ek__backend_name *ek__backend_named(const char *name, size_t length) {
  for (size_t i = 0; i < ROWS; i++) {
    if (strlen(rows[i].name) == length && strncmp(rows[i].name, name, length) == 0) return &rows[i];
  }
  return NULL;
}

ek_status ek__backend_load(const struct ek__backend **backend, const struct ek__backend_name *row) {
  const void *table = row->backend;
  if (table == NULL) EK_TRY(ek__load(&table, &cuda));
  *backend = table;
  return EK_OK;
}

const char *ek__backend_names(char *buffer, size_t size) {
  size_t used = 0;
  for (size_t i = 0; i < ROWS && used < size; i++) {
    if (!rows[i].listed) continue;
    used +=
        (size_t)snprintf(buffer + used, size - used, "%s%s", used == 0 ? "" : ", ", rows[i].name);
  }
  return buffer;
}

/* ---- what there is ---- */

struct list {
  ek_device_description *descriptions;
  size_t capacity, count;
};

/* A backend that cannot be loaded still has its line, which says why; the thread's message stays.
 */
static void add_missing(struct list *list, const char *name) {
  if (list->count < list->capacity) {
    ek_device_description *line = &list->descriptions[list->count];
    *line = (ek_device_description){.available = false};
    snprintf(line->name, sizeof line->name, "%s", name);
    const char *why = ek_error_message();
    const size_t length = strlen(name);
    const bool named = strncmp(why, name, length) == 0 && strncmp(why + length, ": ", 2) == 0;
    snprintf(line->text, sizeof line->text, "%s", named ? why + length + 2 : why);
  }
  ek_error_clear();
  list->count++;
}

static ek_status add(struct list *list, const struct ek__backend_name *row) {
  const size_t room = list->count < list->capacity ? list->capacity - list->count : 0;
  const struct ek__backend *backend = NULL;
  size_t found = 0;
  /* To say "one more" to a program that has no room for it, 200 MB need not be loaded. */
  const bool asked = row->backend != NULL || list->capacity == 0 || room > 0 || ek__loaded(&cuda);
  if (!asked || ek__backend_load(&backend, row) != EK_OK) {
    add_missing(list, row->name);
    return EK_OK;
  }
  EK_TRY(backend->describe(room > 0 ? list->descriptions + list->count : NULL, room, &found));
  list->count += found;
  return EK_OK;
}

ek_status ek_device_list(ek_device_description *descriptions, size_t *count, size_t capacity) {
  EK__FAIL_IF(count == NULL || (descriptions == NULL && capacity > 0), EK_ERR_INVALID_ARGUMENT,
              "ek_device_list: descriptions and count may not be NULL");
  struct list list = {descriptions, capacity, 0};
  for (size_t i = 0; i < ROWS; i++) {
    if (rows[i].listed) EK_TRY(add(&list, &rows[i]));
  }
  *count = list.count;
  return EK_OK;
}
