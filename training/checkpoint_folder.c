/*
 * checkpoint_folder.c - the folder of the states, and their names.
 *
 * The number in a name has twelve digits, or more without a leading zero, so that names sort as
 * steps do and each step has one name. A state that several machines have written on disks of their
 * own is in parts, and the name of a part also has its number, how many there are, and a random
 * number that is the same for all parts of one save: step-000000000012-00001-of-00002-RANDOM. So
 * parts of two saves never meet, and the parts of a state may be copied into one folder. A part has
 * ".waiting" after its name until all parts are on the disks.
 *
 * Everything else in the folder is ignored and left alone: files with other names, and entries that
 * are not files. A folder is read as a whole or not at all: an error in the middle of it does not
 * count as its end.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_internal.h"
#include "core/alloc.h"
#include "core/error.h"
#include "io/file.h"

static const char suffix[] = ".safetensors", unfinished[] = ".tmp", waiting[] = ".waiting";

/* All but ".waiting"; returns its length. */
static int write_name(char *text, size_t size, const struct ek__state_name *name) {
  if (name->parts == 1) {
    return snprintf(text, size, "step-%012" PRId64 "%s", name->step, suffix);
  }
  return snprintf(text, size, "step-%012" PRId64 "-%05" PRIu32 "-of-%05" PRIu32 "-%016" PRIx64 "%s",
                  name->step, name->part, name->parts, name->save, suffix);
}

ek_status ek__checkpoint_path(char path[EK_CHECKPOINT_PATH_SIZE], const char *folder,
                              const struct ek__state_name *name) {
  char text[EK__CHECKPOINT_NAME_SIZE];
  (void)write_name(text, sizeof text, name);
  const int length = snprintf(path, EK_CHECKPOINT_PATH_SIZE, "%s/%s%s", folder, text,
                              name->waits ? waiting : "");
  if (length > 0 && (size_t)length + EK__FILE_BESIDE_SIZE <= EK_CHECKPOINT_PATH_SIZE) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "the path of a folder of states is too long");
}

bool ek__checkpoint_name(struct ek__state_name *name, const char **rest, const char *text) {
  char again[EK__CHECKPOINT_NAME_SIZE];
  memset(name, 0, sizeof *name);
  const int read = sscanf(text, "step-%" SCNd64 "-%" SCNu32 "-of-%" SCNu32 "-%" SCNx64, &name->step,
                          &name->part, &name->parts, &name->save);
  if (read < 1 || name->step < 0) return false;
  if (read < 4) {
    name->part = name->parts = 1;
    name->save = 0;
  }
  if (name->part < 1 || name->part > name->parts || (read == 4 && name->parts < 2)) return false;
  const size_t length = (size_t)write_name(again, sizeof again, name);
  if (strncmp(text, again, length) != 0) return false; /* it is written in another way */
  *rest = text + length;
  return true;
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

static int ascending(uint64_t a, uint64_t b) { return (a > b) - (a < b); }

/* Names of one state are neighbours. */
static int last_first(const void *left, const void *right) {
  const struct ek__state_name *a = left, *b = right;
  if (a->step != b->step) return ascending((uint64_t)b->step, (uint64_t)a->step);
  if (a->save != b->save) return ascending(a->save, b->save);
  if (a->parts != b->parts) return ascending(a->parts, b->parts);
  if (a->part != b->part) return ascending(a->part, b->part);
  return ascending(a->waits, b->waits);
}

void ek__checkpoint_sort(struct ek__state_name *names, size_t count) {
  if (count > 0) qsort(names, count, sizeof *names, last_first);
}

size_t ek__checkpoint_same(const struct ek__state_name *names, size_t count) {
  size_t same = 1;
  while (same < count && ek__checkpoint_is_of(&names[same], names)) same++;
  return same;
}

uint32_t ek__checkpoint_missing(const struct ek__state_name *names, size_t same) {
  uint32_t wanted = 1;
  for (size_t i = 0; i < same; i++) wanted += names[i].part == wanted;
  return wanted > names->parts ? 0 : wanted;
}

ek_status ek__checkpoint_list(struct ek__state_name **names, size_t *count, const char *folder) {
  DIR *entries = NULL;
  size_t capacity = 0;
  struct ek__state_name *list = NULL, name;
  const char *rest = NULL;
  ek_status status = EK_OK;
  EK_TRY(open_entries(&entries, folder));
  *count = 0;
  for (const struct dirent *entry; (entry = next_entry(&status, entries, folder)) != NULL;) {
    if (!ek__checkpoint_name(&name, &rest, entry->d_name)) continue;
    name.waits = name.parts > 1 && strcmp(rest, waiting) == 0;
    if ((*rest != '\0' && !name.waits) || !may_be_file(entries, entry)) continue;
    status = ek__grow(&list, &capacity, *count + 1, sizeof *list, "a list of states");
    if (status != EK_OK) break;
    list[(*count)++] = name;
  }
  (void)closedir(entries);
  if (status == EK_OK) {
    ek__checkpoint_sort(list, *count);
    *names = list;
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
  struct ek__state_name name;
  ek_status status = EK_OK;
  if (open_entries(&entries, folder) != EK_OK) return;
  for (const struct dirent *entry; (entry = next_entry(&status, entries, folder)) != NULL;) {
    if (!ek__checkpoint_name(&name, &rest, entry->d_name) || *rest != '.') continue;
    const size_t digits = strspn(rest + 1, "0123456789");
    if (strcmp(digits > 0 ? rest + 1 + digits : rest, unfinished) != 0) continue;
    const int length = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    if (length > 0 && (size_t)length < sizeof path) (void)ek__file_remove_stale(path);
  }
  (void)closedir(entries);
}

/* The first step, of a list, that stays where the last `keep` states up to `step` do, of which the
 * state of `step` is one; INT64_MIN: all stay. What is not whole is not counted. */
static int64_t first_kept(const struct ek__state_name *names, size_t count, int64_t step,
                          size_t keep) {
  int64_t last = step;
  size_t kept = 1;
  for (size_t i = 0, same; i < count && kept < keep; i += same) {
    same = ek__checkpoint_same(names + i, count - i);
    if (names[i].step >= last || ek__checkpoint_missing(names + i, same) != 0) continue;
    last = names[i].step;
    kept++;
  }
  return kept < keep || keep == 0 ? INT64_MIN : last;
}

/* Names that a saved state takes the place of, or that are older than what is kept. */
static bool is_over(const struct ek__state_name *name, const struct ek__state_name *saved,
                    int64_t kept, bool only) {
  if (name->step == saved->step) return name->save != saved->save;
  return name->step < kept || (only && name->step > saved->step);
}

bool ek__checkpoint_replaces(const char *folder, const struct ek__state_name *saved,
                             const struct ek__state_stay *stay) {
  struct ek__state_name *names = NULL;
  size_t count = 0;
  bool replaces = false;
  if (ek__checkpoint_list(&names, &count, folder) != EK_OK) return true;
  const int64_t kept = first_kept(names, count, saved->step, stay->keep);
  for (size_t i = 0; i < count; i++) {
    replaces = replaces || names[i].step == saved->step ||
               is_over(&names[i], saved, kept, stay->only);
  }
  ek__free(names);
  return replaces;
}

/* A state that cannot be removed stays: the new state is saved, which is what counts. */
void ek__checkpoint_prune(const char *folder, const struct ek__state_name *saved,
                          const struct ek__state_stay *stay,
                          const struct ek__state_name *all, size_t all_count) {
  struct ek__state_name *names = NULL;
  size_t count = 0;
  char path[EK_CHECKPOINT_PATH_SIZE];
  remove_unfinished(folder);
  if (ek__checkpoint_list(&names, &count, folder) != EK_OK) return;
  const int64_t kept = all == NULL ? first_kept(names, count, saved->step, stay->keep)
                                   : first_kept(all, all_count, saved->step, stay->keep);
  for (size_t i = 0; i < count; i++) {
    if (!is_over(&names[i], saved, kept, stay->only)) continue;
    if (ek__checkpoint_path(path, folder, &names[i]) == EK_OK) (void)unlink(path);
  }
  ek__free(names);
}

ek_status ek__checkpoint_commit(const char *folder, const struct ek__state_name *saved) {
  char from[EK_CHECKPOINT_PATH_SIZE], to[EK_CHECKPOINT_PATH_SIZE];
  struct ek__state_name name = *saved;
  name.waits = false;
  EK_TRY(ek__checkpoint_path(to, folder, &name));
  name.waits = true;
  EK_TRY(ek__checkpoint_path(from, folder, &name));
  if (rename(from, to) != 0) return ek__file_refused(to, "cannot be given its name");
  return ek__file_sync_folder(to);
}
