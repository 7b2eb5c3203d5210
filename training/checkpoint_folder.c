/*
 * checkpoint_folder.c - the folder of the states, and their names.
 *
 * The number in a name has twelve digits, or more without a leading zero, so that names sort as
 * steps do and each step has one name. Everything else in the folder is ignored and left alone:
 * files with other names, and entries that are not files. A folder is read as a whole or not at
 * all: an error in the middle of it does not count as its end.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_internal.h"
#include "core/alloc.h"
#include "core/error.h"
#include "io/file.h"

static const char prefix[] = "step-", suffix[] = ".safetensors", unfinished[] = ".tmp";

enum { DIGITS = 12 };

ek_status ek__checkpoint_path(char path[EK_CHECKPOINT_PATH_SIZE], const char *folder,
                              int64_t step) {
  const int length = snprintf(path, EK_CHECKPOINT_PATH_SIZE, "%s/%s%012lld%s", folder, prefix,
                              (long long)step, suffix);
  if (length > 0 && (size_t)length + EK__FILE_BESIDE_SIZE <= EK_CHECKPOINT_PATH_SIZE) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "the path of a folder of states is too long");
}

/* The step in a name, of which *rest follows; -1 for other names. */
static int64_t step_of(const char **rest, const char *name) {
  int64_t step = 0;
  const char *first = name + sizeof prefix - 1, *digit = first;
  if (strncmp(name, prefix, sizeof prefix - 1) != 0) return -1;
  for (; *digit >= '0' && *digit <= '9'; digit++) {
    if (__builtin_mul_overflow(step, 10, &step) ||
        __builtin_add_overflow(step, *digit - '0', &step))
      return -1;
  }
  if (digit - first < DIGITS || (digit - first > DIGITS && *first == '0')) return -1;
  if (strncmp(digit, suffix, sizeof suffix - 1) != 0) return -1;
  *rest = digit + sizeof suffix - 1;
  return step;
}

/* A directory, a pipe or a broken link is not a state. A file that cannot be examined counts as
 * one, so that its reader sees the error. */
static bool may_be_file(DIR *folder, const struct dirent *entry) {
  struct stat about;
  if (entry->d_type == DT_REG) return true;
  if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN) return false;
  if (fstatat(dirfd(folder), entry->d_name, &about, 0) == 0) return S_ISREG(about.st_mode);
  return errno != ENOENT && errno != ELOOP;
}

/* The next entry; NULL at the end, with EK_OK, or after an error. */
static const struct dirent *next_entry(ek_status *status, DIR *folder, const char *path) {
  const struct dirent *entry = NULL;
  do {
    errno = 0;
    entry = readdir(folder);
  } while (entry == NULL && errno == EINTR);
  *status =
      entry == NULL && errno != 0 ? ek__file_refused(path, "the folder cannot be read") : EK_OK;
  return entry;
}

static ek_status open_entries(DIR **entries, const char *folder) {
  do {
    *entries = opendir(folder);
  } while (*entries == NULL && errno == EINTR);
  return *entries == NULL ? ek__file_refused(folder, "the folder cannot be read") : EK_OK;
}

static int last_first(const void *left, const void *right) {
  const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
  return a == b ? 0 : a > b ? -1 : 1;
}

ek_status ek__checkpoint_list(int64_t **steps, size_t *count, const char *folder) {
  DIR *entries = NULL;
  size_t capacity = 0;
  int64_t *list = NULL;
  const char *rest = NULL;
  ek_status status = EK_OK;
  EK_TRY(open_entries(&entries, folder));
  *count = 0;
  for (const struct dirent *entry; (entry = next_entry(&status, entries, folder)) != NULL;) {
    const int64_t step = step_of(&rest, entry->d_name);
    if (step < 0 || *rest != '\0' || !may_be_file(entries, entry)) continue;
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
  if (mkdir(folder, 0777) == 0) {
    const ek_status status = ek__file_sync_folder(folder);
    if (status != EK_OK) (void)rmdir(folder); /* else the next save finds it, and does not sync */
    return status;
  }
  if (errno == EEXIST) {
    if (stat(folder, &about) != 0)
      return ek__file_refused(folder, "the folder cannot be examined");
    if (S_ISDIR(about.st_mode)) return EK_OK;
    return ek_error_set(EK_ERR_IO, "%s: not a directory; states are saved into a "
                                   "directory", folder);
  }
  return ek__file_refused(folder, "the folder cannot be created");
}

/* Removes the files of killed saves: running ones, of any process, have their file locked. */
static void remove_unfinished(const char *folder) {
  DIR *entries = NULL;
  char path[EK_CHECKPOINT_PATH_SIZE];
  const char *rest = NULL;
  ek_status status = EK_OK;
  if (open_entries(&entries, folder) != EK_OK) return;
  for (const struct dirent *entry; (entry = next_entry(&status, entries, folder)) != NULL;) {
    if (step_of(&rest, entry->d_name) < 0 || *rest != '.') continue;
    const size_t digits = strspn(rest + 1, "0123456789");
    if (strcmp(digits > 0 ? rest + 1 + digits : rest, unfinished) != 0) continue;
    const int length = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    if (length > 0 && (size_t)length < sizeof path) (void)ek__file_remove_stale(path);
  }
  (void)closedir(entries);
}

/* Of a list, the last first: how many states are of later steps than `step`. */
static size_t later_than(int64_t step, const int64_t *steps, size_t count) {
  size_t later = 0;
  while (later < count && steps[later] > step) later++;
  return later;
}

bool ek__checkpoint_replaces(const char *folder, int64_t step, size_t keep) {
  int64_t *steps = NULL;
  size_t count = 0;
  if (ek__checkpoint_list(&steps, &count, folder) != EK_OK) return true;
  const size_t later = later_than(step, steps, count);
  const bool same = later < count && steps[later] == step;
  ek__free(steps);
  return same || (keep > 0 && count - later >= keep);
}

/* A state that cannot be removed stays: the new state is saved, which is what counts. */
void ek__checkpoint_prune(const char *folder, int64_t step, size_t keep) {
  int64_t *steps = NULL;
  size_t count = 0;
  char path[EK_CHECKPOINT_PATH_SIZE];
  remove_unfinished(folder);
  if (keep == 0 || ek__checkpoint_list(&steps, &count, folder) != EK_OK) return;
  const size_t later = later_than(step, steps, count);
  for (size_t i = later; i < count; i++) {
    if (i - later < keep) continue;
    if (ek__checkpoint_path(path, folder, steps[i]) == EK_OK) (void)unlink(path);
  }
  ek__free(steps);
}
