/*
 * cpu_limits.c - the memory limit of a container: Linux control groups, version 2 and version 1.
 *
 * /proc/self/cgroup has the group of the process, one line for version 2 ("0::/a/b") and one for
 * each hierarchy of version 1 ("4:memory:/a/b"). /proc/self/mountinfo has the mount point of a
 * hierarchy and the folder that is mounted there: in a container often the group itself, so that
 * the process sees no group above its own. A limit holds for all groups below, so every folder from
 * the group's up to the mount point is read.
 *
 * A file that cannot be read or understood sets no limit: the file system may be mounted elsewhere,
 * or not at all.
 *
 * The kernel writes mountinfo anew for each reader, which took a quarter of the time to open a
 * device. So the path of the group's folder is kept, and looked up again only when the process has
 * moved to another group.
 */
#include "backend/cpu/cpu_limits.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 2048, PATH = 3072 };

/* The names of one version's files. */
struct files {
  const char *limit, *used, *cache; /* cache: the line of memory.stat */
};
static const struct files version2 = {"memory.max", "memory.current", "inactive_file "};
static const struct files version1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                      "total_inactive_file "};

/* ---- files ---- */

/* The next line without its end; a line that is too long is skipped. */
static bool read_line(char line[LINE], FILE *file) {
  bool whole = true;
  while (fgets(line, LINE, file) != NULL) {
    const size_t length = strcspn(line, "\n");
    const bool ended = line[length] == '\n' || feof(file);
    line[length] = '\0';
    if (ended && whole) return true;
    whole = ended;
  }
  return false;
}

/* A number, if the text begins with one; "max" is not a number. */
static bool parse_number(uint64_t *value, const char *text) {
  if (text[0] < '0' || text[0] > '9') return false;
  *value = strtoull(text, NULL, 10);
  return true;
}

/* The number after `key` at the start of a line of a file; the first line's for "". */
static bool read_number(uint64_t *value, const char *folder, const char *name, const char *key) {
  char path[PATH + 64], line[LINE];
  (void)snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "re");
  if (file == NULL) return false;
  bool found = false;
  while (!found && read_line(line, file)) {
    if (strncmp(line, key, strlen(key)) != 0) continue;
    found = parse_number(value, line + strlen(key));
    if (key[0] == '\0') break;
  }
  (void)fclose(file);
  return found;
}

/* ---- where the group is ---- */

/* Whether `word` is one of the words of `list`, which commas separate. */
static bool has_word(const char *list, const char *word) {
  const size_t length = strlen(word);
  for (const char *at = list; at != NULL; at = strchr(at, ',')) {
    if (*at == ',') at++;
    if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0')) return true;
  }
  return false;
}

/* The path of the process's group: "" for the controllers of version 2, "memory" for version 1. */
static bool find_group(char group[LINE], const char *root, const char *controller) {
  char path[PATH], line[LINE];
  (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *file = fopen(path, "re");
  if (file == NULL) return false;
  bool found = false;
  while (!found && read_line(line, file)) {
    char *controllers = strchr(line, ':');
    char *name = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (name == NULL) continue;
    *name++ = '\0';
    found = controller[0] == '\0' ? controllers[1] == '\0' : has_word(controllers + 1, controller);
    if (found) memcpy(group, name, strlen(name) + 1);
  }
  (void)fclose(file);
  return found;
}

/* Takes \040 and other octal numbers in a path back, in place. */
static void unescape(char *text) {
  char *to = text;
  for (const char *from = text; *from != '\0'; to++) {
    if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' && from[2] <= '7' &&
        from[3] >= '0' && from[3] <= '7') {
      *to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
      from += 4;
    } else {
      *to = *from++;
    }
  }
  *to = '\0';
}

/* A line of mountinfo: "31 23 0:28 /root /point options - type source options". */
static bool parse_mount(char *line, char **folder, char **point, const char *type,
                        const char *option) {
  char *rest = strstr(line, " - "), *save = NULL, *words[5] = {NULL};
  if (rest == NULL) return false;
  *rest = '\0';
  char *word = strtok_r(line, " ", &save);
  for (int i = 0; i < 5 && word != NULL; i++, word = strtok_r(NULL, " ", &save)) words[i] = word;
  const char *found_type = strtok_r(rest + 3, " ", &save);
  const char *source = strtok_r(NULL, " ", &save), *options = strtok_r(NULL, " ", &save);
  if (words[4] == NULL || found_type == NULL || strcmp(found_type, type) != 0) return false;
  if (option[0] != '\0' && (source == NULL || options == NULL || !has_word(options, option))) {
    return false;
  }
  *folder = words[3];
  *point = words[4];
  unescape(*folder);
  unescape(*point);
  return true;
}

/* What of the group's path is below `folder`, which is what the mount point shows; "" if the
 * group is not there, as when the process has another root than the mount. */
static const char *below(const char *group, const char *folder) {
  const size_t length = strcmp(folder, "/") == 0 ? 0 : strlen(folder);
  if (strncmp(group, folder, length) != 0) return "";
  const char *rest = group + length;
  return rest[0] == '/' && rest[1] != '\0' && strncmp(rest, "/..", 3) != 0 ? rest : "";
}

/* ---- limits ---- */

static void look_at(struct ek__cpu_limit *limit, const char *folder, const struct files *files) {
  uint64_t bytes = 0, used = 0, cache = 0;
  /* In version 1 a number near 2^63 means no limit. */
  if (!read_number(&bytes, folder, files->limit, "") || bytes >= UINT64_C(1) << 62) return;
  (void)read_number(&used, folder, files->used, "");
  (void)read_number(&cache, folder, "memory.stat", files->cache);
  used -= cache < used ? cache : used;
  const uint64_t left = used < bytes ? bytes - used : 0;
  if (bytes < limit->bytes) limit->bytes = bytes;
  if (left < limit->free) limit->free = left;
}

/* The group's folder and those above it, up to the mount point, whose path has `top` bytes. */
static void climb(struct ek__cpu_limit *limit, const char *start, size_t top,
                  const struct files *files) {
  char folder[PATH];
  memcpy(folder, start, strlen(start) + 1);
  for (;;) {
    look_at(limit, folder, files);
    char *slash = strrchr(folder, '/');
    if (slash == NULL || (size_t)(slash - folder) < top) return;
    *slash = '\0';
  }
}

/* The result for one version: written once, by the first thread that has it, and then only read. A
 * child of fork() might find a lock held for ever. */
struct known {
  atomic_int state; /* 0: not written, 1: being written, 2: may be read */
  char root[LINE], group[LINE], folder[PATH];
  size_t top;
  bool mounted;
};

static bool is_known(struct known *known, const char *root, const char *group) {
  return atomic_load_explicit(&known->state, memory_order_acquire) == 2 &&
         strcmp(known->root, root) == 0 && strcmp(known->group, group) == 0;
}

/* `folder` may be NULL. */
static void keep(struct known *known, const char *root, const char *group, const char *folder,
                 size_t top) {
  int unwritten = 0;
  if (strlen(root) >= sizeof known->root) return;
  if (!atomic_compare_exchange_strong(&known->state, &unwritten, 1)) return;
  memcpy(known->root, root, strlen(root) + 1);
  memcpy(known->group, group, strlen(group) + 1);
  known->mounted = folder != NULL;
  if (folder != NULL) memcpy(known->folder, folder, strlen(folder) + 1);
  known->top = top;
  atomic_store_explicit(&known->state, 2, memory_order_release);
}

static void look_for(struct ek__cpu_limit *limit, struct known *known, const char *root,
                     const char *type, const char *controller, const struct files *files) {
  char group[LINE], path[PATH], line[LINE], start[PATH], *folder = NULL, *point = NULL;
  if (!find_group(group, root, controller)) return;
  if (is_known(known, root, group)) {
    if (known->mounted) climb(limit, known->folder, known->top, files);
    return;
  }
  (void)snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
  FILE *file = fopen(path, "re");
  if (file == NULL) return;
  const char *found = NULL; /* in `start` */
  int mounts = 0;
  size_t top = 0;
  while (read_line(line, file)) {
    if (!parse_mount(line, &folder, &point, type, controller)) continue;
    mounts++;
    top = strlen(root) + strlen(point);
    const int length = snprintf(start, sizeof start, "%s%s%s", root, point, below(group, folder));
    found = length < 0 || (size_t)length >= sizeof start ? NULL : start;
    if (found != NULL) climb(limit, found, top, files);
  }
  (void)fclose(file);
  if (mounts <= 1) keep(known, root, group, found, top);
}

struct ek__cpu_limit ek__cpu_memory_limit(const char *root) {
  static struct known version2_known, version1_known;
  struct ek__cpu_limit limit = {UINT64_MAX, UINT64_MAX};
  look_for(&limit, &version2_known, root, "cgroup2", "", &version2);
  look_for(&limit, &version1_known, root, "cgroup", "memory", &version1);
  return limit;
}
