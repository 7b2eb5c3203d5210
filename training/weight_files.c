/*
 * weight_files.c - see weight_files.h. The index says which file has which tensor; only the names
 * of the files are taken from it, because each file says itself what it has.
 */
#include "weight_files.h"

#include <stdio.h>
#include <string.h>

#include <sys/stat.h>

#include "core/alloc.h"
#include "core/error.h"
#include "io/file.h"
#include "io/json.h"

static const char memory_of[] = "files of weights";
static const char one_file[] = "model.safetensors", index_file[] = "model.safetensors.index.json";
enum { MOST_INDEX_BYTES = 1 << 26, MOST_FILES = 1024 };

bool ek__is_folder(const char *path) {
  struct stat status;
  return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

ek_status ek__path_in(char **path, const char *folder, const char *name) {
  const size_t size = strlen(folder) + strlen(name) + 2;
  EK_TRY(ek__new(path, size, 1, memory_of));
  (void)snprintf(*path, size, "%s/%s", folder, name);
  return EK_OK;
}

static ek_status open_file(struct ek__weight_files *set, const char *path) {
  EK_TRY(ek__grow(&set->files, &set->capacity, set->count + 1, sizeof(ek_safetensors *),
                  memory_of));
  EK_TRY(ek_safetensors_open(&set->files[set->count], path));
  set->count++;
  return EK_OK;
}

/* ---- the index ---- */

/* The names in a weight_map, each once: loans of its text. */
struct names {
  const char **list;
  size_t count, capacity;
};

static ek_status add_name(struct names *names, const struct ek__weight_files *set,
                          const char *name) {
  for (size_t i = names->count; i > 0; i--) { /* most often the last one */
    if (strcmp(names->list[i - 1], name) == 0) return EK_OK;
  }
  EK__FAIL_IF(*name == '\0' || strchr(name, '/') != NULL || strcmp(name, ".") == 0 ||
                  strcmp(name, "..") == 0,
              EK_ERR_CORRUPT, "%s: weight_map has \"%.80s\", expected the name of a file beside it",
              set->path, name);
  EK__FAIL_IF(names->count == MOST_FILES, EK_ERR_CORRUPT, "%s: weight_map names more than %d files",
              set->path, MOST_FILES);
  EK_TRY(ek__grow(&names->list, &names->capacity, names->count + 1, sizeof *names->list,
                  memory_of));
  names->list[names->count++] = name;
  return EK_OK;
}

static bool read_map(ek_status *status, struct names *names, const struct ek__weight_files *set,
                     struct ek__json *json) {
  size_t seen = 0;
  char *key = NULL, *name = NULL;
  bool good = ek__json_take(json, '{');
  while (good && *status == EK_OK && ek__json_member(json, '}', &seen)) {
    good = ek__json_string(json, &key) && ek__json_take(json, ':') && ek__json_string(json, &name);
    if (good) *status = add_name(names, set, name);
  }
  return good && !json->bad;
}

static ek_status read_index(struct names *names, const struct ek__weight_files *set, char *text,
                            size_t length) {
  struct ek__json json = {text, text + length, false};
  ek_status status = EK_OK;
  size_t seen = 0;
  int64_t number = 0;
  bool whole = false, good = ek__json_take(&json, '{');
  char *key = NULL;
  while (good && status == EK_OK && ek__json_member(&json, '}', &seen)) {
    good = ek__json_string(&json, &key) && ek__json_take(&json, ':');
    if (good && strcmp(key, "weight_map") == 0) {
      good = read_map(&status, names, set, &json);
    } else if (good) {
      good = ek__json_value(&json, &whole, &number);
    }
  }
  if (status != EK_OK) return status;
  EK__FAIL_IF(!good || json.bad || !ek__json_ends(&json), EK_ERR_CORRUPT,
              "%s: invalid JSON object at byte %zu", set->path, (size_t)(json.at - text));
  EK__FAIL_IF(names->count == 0, EK_ERR_CORRUPT, "%s: weight_map names no file", set->path);
  return EK_OK;
}

static ek_status open_named(struct ek__weight_files *set, const char *folder,
                            const struct names *names) {
  for (size_t i = 0; i < names->count; i++) {
    char *path = NULL;
    EK_TRY(ek__path_in(&path, folder, names->list[i]));
    const ek_status status = open_file(set, path);
    ek__free(path);
    EK_TRY(status);
  }
  return EK_OK;
}

static ek_status open_indexed(struct ek__weight_files *set, const char *folder, int file,
                              uint64_t size) {
  struct names names = {0};
  char *text = NULL;
  EK__FAIL_IF(size > MOST_INDEX_BYTES, EK_ERR_CORRUPT, "%s: %llu bytes are too large for an index",
              set->path, (unsigned long long)size);
  EK_TRY(ek__new(&text, (size_t)size + 1, 1, memory_of));
  ek_status status = ek__file_read(file, set->path, text, (size_t)size, 0);
  if (status == EK_OK) status = read_index(&names, set, text, (size_t)size);
  if (status == EK_OK) status = open_named(set, folder, &names);
  ek__free(names.list);
  ek__free(text);
  return status;
}

/* ---- the set ---- */

static ek_status open_folder(struct ek__weight_files *set, const char *folder) {
  uint64_t size = 0;
  int file = -1;
  EK_TRY(ek__path_in(&set->path, folder, one_file));
  ek_status status = open_file(set, set->path);
  if (status != EK_ERR_NOT_FOUND) return status;
  ek__free(set->path);
  set->path = NULL;
  EK_TRY(ek__path_in(&set->path, folder, index_file));
  status = ek__file_open(&file, &size, set->path);
  EK__FAIL_IF(status == EK_ERR_NOT_FOUND, status, "%s: it has neither %s nor %s", folder, one_file,
              index_file);
  EK_TRY(status);
  status = open_indexed(set, folder, file, size);
  ek__file_close(file);
  return status;
}

ek_status ek__weight_files_open(struct ek__weight_files *set, const char *path) {
  *set = (struct ek__weight_files){0};
  if (ek__is_folder(path)) return open_folder(set, path);
  EK_TRY(ek__new_copy(&set->path, path, strlen(path) + 1, memory_of));
  return open_file(set, path);
}

void ek__weight_files_close(struct ek__weight_files *set) {
  for (size_t i = 0; i < set->count; i++) ek_safetensors_free(set->files[i]);
  ek__free(set->files);
  ek__free(set->path);
  *set = (struct ek__weight_files){0};
}

ek_status ek__weight_files_check(const struct ek__weight_files *set) {
  for (size_t i = 0; i < set->count; i++) {
    if (ek_safetensors_has_checksums(set->files[i])) EK_TRY(ek_safetensors_check(set->files[i]));
  }
  return EK_OK;
}

ek_status ek__weight_files_find(const ek_safetensors_entry **entry, const ek_safetensors **file,
                                const struct ek__weight_files *set, const char *name) {
  *entry = NULL;
  for (size_t i = 0; i < set->count; i++) {
    const ek_safetensors_entry *found = ek_safetensors_find(set->files[i], name);
    if (found == NULL) continue;
    EK__FAIL_IF(*entry != NULL, EK_ERR_CORRUPT, "%s: two of its files have %s, expected one",
                set->path, name);
    *entry = found;
    *file = set->files[i];
  }
  return EK_OK;
}
