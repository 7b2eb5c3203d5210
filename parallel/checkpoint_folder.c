/*
 * checkpoint_folder.c - the folder that states lie in, and their names.
 *
 * The number in a name has twelve digits at least, so that names sort as steps do. Files of other
 * names are nobody's business here.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_internal.h"
#include "core/alloc.h"
#include "core/error.h"
#include "io/file.h"

static const char prefix[] = "step-", suffix[] = ".safetensors", unfinished[] = ".safetensors.tmp";

ek_status ek__checkpoint_path(char path[EK_CHECKPOINT_PATH_SIZE], const char *folder,
                              int64_t step) {
  const int length = snprintf(path, EK_CHECKPOINT_PATH_SIZE, "%s/%s%012lld%s", folder, prefix,
                              (long long)step, suffix);
  if (length > 0 && (size_t)length + sizeof ".tmp" <= EK_CHECKPOINT_PATH_SIZE) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "the path of a folder of states is too long");
}

/* The step in a name that ends in `end`; -1 for other names. */
static int64_t step_of(const char *name, const char *end) {
  int64_t step = 0;
  const char *digit = name + sizeof prefix - 1;
  if (strncmp(name, prefix, sizeof prefix - 1) != 0 || digit[0] < '0' || digit[0] > '9') return -1;
  for (; *digit >= '0' && *digit <= '9'; digit++) {
    if (__builtin_mul_overflow(step, 10, &step) ||
        __builtin_add_overflow(step, *digit - '0', &step))
      return -1;
  }
  return strcmp(digit, end) == 0 ? step : -1;
}

static int last_first(const void *left, const void *right) {
  const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
  return a == b ? 0 : a > b ? -1 : 1;
}

ek_status ek__checkpoint_list(int64_t **steps, size_t *count, const char *folder) {
  DIR *entries = opendir(folder);
  size_t capacity = 0;
  int64_t *list = NULL;
  ek_status status = EK_OK;
  if (entries == NULL) return ek__file_refused(folder, "the folder cannot be read");
  *count = 0;
  for (const struct dirent *entry; (entry = readdir(entries)) != NULL;) {
    const int64_t step = step_of(entry->d_name, suffix);
    if (step < 0) continue;
    status = ek__grow(&list, &capacity, *count + 1, sizeof *list, "a list of states");
    if (status != EK_OK) break;
    list[(*count)++] = step;
  }
  (void)closedir(entries);
  if (status == EK_OK && *count > 0) qsort(list, *count, sizeof *list, last_first);
  if (status == EK_OK) {
    *steps = list;
  } else {
    ek__free(list);
  }
  return status;
}

ek_status ek__checkpoint_make_folder(const char *folder) {
  struct stat about;
  if (mkdir(folder, 0777) == 0 || errno == EEXIST) {
    if (stat(folder, &about) != 0)
      return ek__file_refused(folder, "the folder cannot be looked at");
    if (S_ISDIR(about.st_mode)) return EK_OK;
    return ek_error_set(EK_ERR_IO, "%s: states go into a folder, and this is none", folder);
  }
  return ek__file_refused(folder, "the folder cannot be made");
}

static void remove_unfinished(const char *folder) {
  DIR *entries = opendir(folder);
  char path[EK_CHECKPOINT_PATH_SIZE];
  if (entries == NULL) return;
  for (const struct dirent *entry; (entry = readdir(entries)) != NULL;) {
    if (step_of(entry->d_name, unfinished) < 0) continue;
    const int length = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    if (length > 0 && (size_t)length < sizeof path) (void)unlink(path);
  }
  (void)closedir(entries);
}

/* What cannot be taken away stays: the new state is there, which is what counts. */
void ek__checkpoint_prune(const char *folder, int64_t step, size_t keep) {
  int64_t *steps = NULL;
  size_t count = 0, kept = 0;
  char path[EK_CHECKPOINT_PATH_SIZE];
  remove_unfinished(folder);
  if (keep == 0 || ek__checkpoint_list(&steps, &count, folder) != EK_OK) return;
  for (size_t i = 0; i < count; i++) {
    if (steps[i] > step || kept++ < keep) continue;
    if (ek__checkpoint_path(path, folder, steps[i]) == EK_OK) (void)unlink(path);
  }
  ek__free(steps);
}
