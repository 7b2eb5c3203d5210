/*
 * checkpoint_find.c - which state there is to go on from, and the files of it that this process
 * sees.
 *
 * A state is in one file, or in parts on the disks of several machines. Each process lists its own
 * folder, and all have all lists: so all of them choose the same state. The folder of process 0
 * counts, and the next process's only if that has none, because a folder that is not shared may
 * have states of another run. A state in parts is whole if every part is seen by some process. If a
 * part is missing and another one does not wait any more, there were all of them: then it is lost,
 * or the process that sees it is not here, and that is an error, because going on from an older
 * state, or from none, would hide it. Parts that all wait are those of a save that was killed: they
 * are passed over if one is missing.
 *
 * Then the files are opened. Those that should be the same file must have the same header. Their
 * bytes are checked, once on each host: its processes share the work, as far as they have the very
 * same file. A file with damaged bytes counts as not seen; a state of which a part is not seen then
 * is passed over.
 *
 * What one process alone finds out is told in a list that all exchange, or is an error, which the
 * next conversation brings to the others (hear()).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint_internal.h"
#include "core/alloc.h"
#include "core/c_locale.h"
#include "core/error.h"
#include "io/file.h"
#include "io/reader.h"
#include "parallel/optimizer_internal.h"
#include "world/world_internal.h"

static const char memory_of[] = "a list of states", doing[] = "looking for a state";

/* ---- the pairs of a file ---- */

static ek_status read_position(int64_t *number, const char *path, const char *text) {
  char *end = NULL;
  errno = 0;
  const long long value = text == NULL ? 0 : strtoll(text, &end, 10);
  EK__FAIL_IF(text == NULL || end == text || *end != '\0' || errno != 0, EK_ERR_CORRUPT,
              "%s: its header has no valid position of the run (step, samples)", path);
  *number = value;
  return EK_OK;
}

/* A pair that this library would not write is skipped, as a newer library's is; an older one wrote
 * five numbers. */
static bool read_schedule(ek_schedule *schedule, const char *text) {
  ek_schedule s = {.peak = 0};
  int kind = 0;
  long long warmup = 0, total = 0, decay = 0;
  if (text == NULL) return false;
  const locale_t before = ek__c_locale_begin();
  const int read = sscanf(text, "%d %la %la %lld %lld %lld %la %la", &kind, &s.peak, &s.floor,
                          &warmup, &total, &decay, &s.first, &s.factor);
  ek__c_locale_end(before);
  if (read != 5 && read != 8) return false;
  s.kind = (ek_schedule_kind)kind;
  s.warmup = warmup;
  s.total = total;
  s.decay = decay;
  if (ek_schedule_check(&s) != EK_OK) return false;
  *schedule = s;
  return true;
}

ek_status ek__checkpoint_number(void *number, const ek_safetensors *file, const char *path,
                                const char *name, ek_state_kind kind) {
  const ek_type type = kind == EK_STATE_KIND_LOSS_SCALE ? EK_F64 : EK_I64;
  ek_tensor host = {.data = number, .type = type};
  EK_TRY(ek_safetensors_read(&host, file, name));
  if (ek__state_check_number(kind, number) == EK_OK) return EK_OK;
  return ek_error_set(EK_ERR_CORRUPT, "%s: %s", path, ek_error_message());
}

ek_status ek__checkpoint_describe(ek_checkpoint_info *info, const ek_safetensors *file,
                                  const char *path) {
  const char *format = ek_safetensors_value(file, EK__CHECKPOINT_FORMAT_KEY);
  const char *version = ek_safetensors_value(file, EK__CHECKPOINT_VERSION_KEY);
  EK__FAIL_IF(format == NULL || !ek_safetensors_has_checksums(file), EK_ERR_CORRUPT,
              "%s: not a saved state of a training run", path);
  EK__FAIL_IF(strcmp(format, EK__CHECKPOINT_FORMAT) != 0, EK_ERR_UNSUPPORTED,
              "%s: a state of format %.20s, written by evenkeel %.20s; this library knows "
              "format " EK__CHECKPOINT_FORMAT,
              path, format, version == NULL ? "of some version" : version);
  (void)snprintf(info->path, sizeof info->path, "%s", path);
  info->has_schedule =
      read_schedule(&info->schedule, ek_safetensors_value(file, EK__CHECKPOINT_SCHEDULE_KEY));
  EK_TRY(read_position(&info->position, path,
                       ek_safetensors_value(file, EK__CHECKPOINT_POSITION_KEY)));
  if (ek_safetensors_value(file, EK__CHECKPOINT_PART_KEY) != NULL &&
      ek_safetensors_find(file, "run/step") == NULL) {
    return EK_OK;
  }
  return ek__checkpoint_number(&info->step, file, path, "run/step", EK_STATE_KIND_STEP);
}

/* ---- lists ---- */

static void forget_lists(struct ek__state_files *files) {
  ek__free(files->folder);
  ek__free(files->names);
  ek__free(files->all);
  ek__free(files->ends);
  files->folder = NULL;
  files->names = files->all = NULL;
  files->ends = NULL;
  files->name_count = 0;
  files->alone = false;
}

static void close_files(struct ek__state_files *files) {
  for (size_t i = 0; i < files->count; i++) ek_safetensors_free(files->list[i].file);
  ek__free(files->list);
  files->list = NULL;
  files->count = 0;
}

void ek__state_files_close(struct ek__state_files *files) {
  close_files(files);
  forget_lists(files);
}

/* A state in one file of any name. */
static ek_status list_alone(struct ek__state_files *files) {
  files->alone = true;
  EK_TRY(ek__new(&files->names, 1, sizeof *files->names, memory_of));
  files->names[0] = (struct ek__state_name){.step = -1, .part = 1, .parts = 1};
  files->name_count = 1;
  return EK_OK;
}

/* A file; of a part the others in its folder count as well. */
static ek_status list_file(struct ek__state_files *files) {
  const char *slash = strrchr(files->path, '/'), *rest = "";
  const size_t length =
      slash == NULL || slash == files->path ? 1 : (size_t)(slash - files->path);
  struct ek__state_name wanted = {0};
  const bool named = ek__checkpoint_name(&wanted, &rest, slash == NULL ? files->path : slash + 1);
  if (!named || wanted.parts == 1) return list_alone(files);
  EK_TRY(ek__new(&files->folder, length + 1, 1, memory_of));
  memcpy(files->folder, slash == NULL ? "." : files->path, length);
  EK_TRY(ek__checkpoint_list(&files->names, &files->name_count, files->folder));
  size_t count = 0;
  for (size_t i = 0; i < files->name_count; i++) {
    const struct ek__state_name *name = &files->names[i];
    if (name->step == wanted.step && name->save == wanted.save) files->names[count++] = *name;
  }
  files->name_count = count;
  return EK_OK;
}

static ek_status list_own(struct ek__state_files *files) {
  struct stat about;
  if (!files->in_folder) {
    if (stat(files->path, &about) != 0) {
      return ek__file_refused(files->path, "cannot be examined");
    }
    if (!S_ISDIR(about.st_mode)) return list_file(files);
  }
  EK_TRY(ek__new_copy(&files->folder, files->path, strlen(files->path) + 1, memory_of));
  return ek__checkpoint_list(&files->names, &files->name_count, files->folder);
}

/* *absent: this process has no such folder or file. */
static ek_status list_all(struct ek__state_files *files, bool *absent) {
  forget_lists(files);
  const ek_status status = list_own(files);
  *absent = status == EK_ERR_NOT_FOUND;
  if (*absent && files->message[0] == '\0') {
    (void)snprintf(files->message, sizeof files->message, "%s", ek_error_message());
  }
  if (status != EK_OK && !*absent) return status;
  EK_TRY(ek__new(&files->ends, ek_world_processes(files->world), sizeof *files->ends, memory_of));
  return ek__world_gather(&files->all, files->ends, files->world, doing, files->names,
                          files->name_count * sizeof *files->names);
}

/* The names of process p are first .. end - 1 of all. */
static void range_of(size_t *first, size_t *end, const struct ek__state_files *files, size_t p) {
  *first = p == 0 ? 0 : files->ends[p - 1] / sizeof *files->all;
  *end = files->ends[p] / sizeof *files->all;
}

static size_t all_count(const struct ek__state_files *files) {
  return files->ends[ek_world_processes(files->world) - 1] / sizeof *files->all;
}

/* ---- one error for all ---- */

/* The error of another process. */
static ek_status hear(const struct ek__state_files *files) {
  EK_TRY(ek__world_agree(files->world, doing, 0));
  return ek_error_set(EK_ERR_INTERNAL, "%s: an error of another process was not heard",
                      files->path);
}

static bool is_me(const struct ek__state_files *files, size_t process) {
  return ek_world_process(files->world) == process;
}

/* ---- parts that are missing ---- */

/* The first part of a state that none has, or 0; *waits: all that there are. */
static uint32_t missing_part(bool *waits, const struct ek__state_files *files,
                             const struct ek__state_name *state) {
  const size_t count = all_count(files);
  *waits = true;
  for (size_t i = 0; i < count; i++) {
    if (ek__checkpoint_is_of(&files->all[i], state) && !files->all[i].waits) *waits = false;
  }
  for (uint32_t part = 1; part <= state->parts; part++) {
    bool there = false;
    for (size_t i = 0; i < count && !there; i++) {
      there = ek__checkpoint_is_of(&files->all[i], state) && files->all[i].part == part;
    }
    if (!there) return part;
  }
  return 0;
}

/* A part of this process says who wrote it. */
static ek_status say_missing(const struct ek__state_files *files,
                             const struct ek__state_name *state, uint32_t part) {
  char path[EK_CHECKPOINT_PATH_SIZE], key[EK__CHECKPOINT_WRITER_SIZE], writer[256];
  ek_safetensors *file = NULL;
  struct ek__state_name missing = *state;
  const char *value = NULL;
  missing.part = part;
  missing.waits = 0;
  (void)snprintf(key, sizeof key, EK__CHECKPOINT_PART_KEY "/%" PRIu32, part);
  EK_TRY(ek__checkpoint_path(path, files->folder, state));
  if (ek_safetensors_open(&file, path) == EK_OK) value = ek_safetensors_value(file, key);
  (void)snprintf(writer, sizeof writer, "%s",
                 value == NULL ? "a process that is not known" : value);
  ek_safetensors_free(file);
  EK_TRY(ek__checkpoint_path(path, files->folder, &missing));
  return ek_error_set(EK_ERR_IO,
                      "%s: part %" PRIu32 " of %" PRIu32 " of the state of step %" PRId64
                      " is missing; %s wrote it. Copy %s into a folder that a process names, or "
                      "remove the other parts to go on from an older state",
                      files->folder, part, state->parts, state->step, writer,
                      strrchr(path, '/') + 1);
}

/* ---- opening ---- */

enum sight { FINE, DAMAGED, GONE };

/* What a process tells the others of a file. */
struct seen {
  uint32_t part, sight;
  uint64_t header, place;
};

static ek_status check_part(const ek_safetensors *file, const char *path,
                            const struct ek__state_name *name) {
  char want[64];
  const char *value = ek_safetensors_value(file, EK__CHECKPOINT_PART_KEY);
  (void)snprintf(want, sizeof want, EK__CHECKPOINT_PART_FORMAT, name->part, name->parts,
                 name->save);
  if (name->parts == 1 ? value == NULL : value != NULL && strcmp(value, want) == 0) return EK_OK;
  return ek_error_set(EK_ERR_CORRUPT, "%s: its header says that it is %s%s, and its name that it "
                                      "is %s", path, value == NULL ? "" : "part ",
                      value == NULL ? "a whole state" : value,
                      name->parts == 1 ? "a whole state" : want);
}

static ek_status open_file(struct ek__state_file *file, struct seen *seen,
                           const struct ek__state_files *files, const struct ek__state_name *name) {
  ek_checkpoint_info info = {.step = 0};
  if (files->alone) {
    EK__FAIL_IF(strlen(files->path) >= sizeof file->path, EK_ERR_INVALID_ARGUMENT,
                "the path of a state is too long");
    memcpy(file->path, files->path, strlen(files->path) + 1);
  } else {
    EK_TRY(ek__checkpoint_path(file->path, files->folder, name));
  }
  EK_TRY(ek_safetensors_open(&file->file, file->path));
  ek_status status = ek__checkpoint_describe(&info, file->file, file->path);
  if (status == EK_OK) status = check_part(file->file, file->path, name);
  if (status == EK_OK) {
    status = ek__safetensors_identify(&seen->header, &seen->place, file->file);
  }
  file->part = name->part;
  file->place = seen->place;
  if (status != EK_OK) {
    ek_safetensors_free(file->file);
    file->file = NULL;
  }
  return status;
}

/* Damage that this process has found; the first one counts. */
static void note_damage(struct ek__state_files *files, bool *noted) {
  if (*noted) return;
  *noted = true;
  (void)snprintf(files->message, sizeof files->message, "%s", ek_error_message());
}

/* This process's files of a state; seen[] has room for all names. */
static ek_status open_own(struct ek__state_files *files, const struct ek__state_name *state,
                          struct seen *seen, size_t *seen_count, bool *noted) {
  size_t matches = 0;
  for (size_t i = 0; i < files->name_count; i++)
    matches += ek__checkpoint_is_of(&files->names[i], state);
  EK_TRY(ek__new(&files->list, matches, sizeof *files->list, memory_of));
  for (size_t i = 0; i < files->name_count; i++) {
    const struct ek__state_name *name = &files->names[i];
    struct seen *this = &seen[*seen_count];
    if (!ek__checkpoint_is_of(name, state)) continue;
    *this = (struct seen){.part = name->part, .sight = FINE};
    const ek_status status = open_file(&files->list[files->count], this, files, name);
    if (status == EK_ERR_CORRUPT) {
      this->sight = DAMAGED;
      note_damage(files, noted);
    } else if (status == EK_ERR_NOT_FOUND) {
      this->sight = GONE; /* removed since it was listed */
    } else if (status != EK_OK) {
      return status;
    }
    files->count += status == EK_OK;
    ++*seen_count;
  }
  return EK_OK;
}

/* ---- comparing and checking ---- */

/* Of all processes. */
struct sights {
  struct seen *list;
  size_t *ends; /* in bytes */
};

static size_t sights_before(const struct sights *sights, size_t p) {
  return p == 0 ? 0 : sights->ends[p - 1] / sizeof *sights->list;
}

static ek_status differ(const struct ek__state_files *files, size_t first, uint32_t part) {
  const char *path = files->path;
  for (size_t i = 0; i < files->count; i++) {
    if (files->list[i].part == part) path = files->list[i].path;
  }
  return ek_error_set(EK_ERR_MISMATCH,
                      "%s: this state and the one that process %zu on %s sees under that name have "
                      "other headers, so they are not of one save: remove one of them, or name "
                      "another folder",
                      path, first, ek_world_host(files->world, first));
}

/* All that see a part must have the header of the first that does. */
static ek_status compare_headers(const struct ek__state_files *files, const struct sights *sights,
                                 const struct ek__state_name *state) {
  const size_t processes = ek_world_processes(files->world);
  for (uint32_t part = 1; part <= state->parts; part++) {
    size_t first = processes;
    uint64_t header = 0;
    for (size_t p = 0; p < processes; p++) {
      for (size_t i = sights_before(sights, p); i < sights_before(sights, p + 1); i++) {
        const struct seen *seen = &sights->list[i];
        if (seen->part != part || seen->sight != FINE) continue;
        if (first == processes) {
          first = p;
          header = seen->header;
        }
        if (seen->header == header) continue;
        return is_me(files, p) ? differ(files, first, part) : hear(files);
      }
    }
  }
  return EK_OK;
}

/* The file is the one that process p has seen. */
static bool is_same(const struct ek__state_files *files, const struct ek__state_file *file,
                    const struct seen *seen, size_t p) {
  const char *host = ek_world_host(files->world, ek_world_process(files->world));
  return seen->part == file->part && seen->place == file->place &&
         strcmp(ek_world_host(files->world, p), host) == 0;
}

/* This process's share of the work of those that have the very same file. */
static ek_status check_share(const struct ek__state_files *files, const struct sights *sights,
                             const struct ek__state_file *file) {
  const size_t processes = ek_world_processes(files->world);
  size_t index = 0, of = 0;
  for (size_t p = 0; p < processes; p++) {
    for (size_t i = sights_before(sights, p); i < sights_before(sights, p + 1); i++) {
      if (sights->list[i].sight != FINE || !is_same(files, file, &sights->list[i], p)) continue;
      if (is_me(files, p)) index = of;
      of++;
      break;
    }
  }
  return ek__safetensors_check_some(file->file, index, of == 0 ? 1 : of);
}

/* Files that this process or another one has found damaged are closed. */
static void drop_damaged(struct ek__state_files *files, const struct sights *bad) {
  const size_t processes = ek_world_processes(files->world);
  for (size_t k = files->count; k-- > 0;) {
    bool damaged = false;
    for (size_t p = 0; p < processes; p++) {
      for (size_t i = sights_before(bad, p); i < sights_before(bad, p + 1); i++) {
        damaged = damaged || is_same(files, &files->list[k], &bad->list[i], p);
      }
    }
    if (!damaged) continue;
    ek_safetensors_free(files->list[k].file);
    files->list[k] = files->list[--files->count];
  }
}

/* Checks the bytes; *bad: what all processes have found. */
static ek_status check_all(struct ek__state_files *files, const struct sights *sights,
                           struct sights *bad, bool *noted) {
  struct seen *own = NULL;
  size_t count = 0;
  ek_status status = EK_OK;
  EK_TRY(ek__new(&own, files->count, sizeof *own, memory_of));
  for (size_t i = 0; i < files->count && status == EK_OK; i++) {
    status = check_share(files, sights, &files->list[i]);
    if (status != EK_ERR_CORRUPT) continue;
    note_damage(files, noted);
    own[count++] = (struct seen){files->list[i].part, DAMAGED, 0, files->list[i].place};
    status = EK_OK;
  }
  if (status == EK_OK) {
    status = ek__world_gather(&bad->list, bad->ends, files->world, doing, own, count * sizeof *own);
  }
  ek__free(own);
  if (status == EK_OK) drop_damaged(files, bad);
  return status;
}

/* ---- one state ---- */

/* The first process that has found damage; as many as there are: none. */
static size_t first_damage(const struct ek__state_files *files, const struct sights *sights) {
  const size_t processes = ek_world_processes(files->world);
  for (size_t p = 0; p < processes; p++) {
    for (size_t i = sights_before(sights, p); i < sights_before(sights, p + 1); i++) {
      if (sights->list[i].sight == DAMAGED) return p;
    }
  }
  return processes;
}

static bool any_gone(const struct ek__state_files *files, const struct sights *sights) {
  const size_t count = sights_before(sights, ek_world_processes(files->world));
  for (size_t i = 0; i < count; i++) {
    if (sights->list[i].sight == GONE) return true;
  }
  return false;
}

/* Whether each part is open in some process: what they have, in one list more. */
static ek_status are_all_seen(bool *all, const struct ek__state_files *files,
                              const struct ek__state_name *state) {
  const size_t processes = ek_world_processes(files->world);
  uint32_t *own = NULL, *parts = NULL;
  size_t *ends = NULL;
  ek_status status = ek__new(&own, files->count, sizeof *own, memory_of);
  if (status == EK_OK) status = ek__new(&ends, processes, sizeof *ends, memory_of);
  for (size_t i = 0; i < files->count && status == EK_OK; i++) own[i] = files->list[i].part;
  if (status == EK_OK) {
    status = ek__world_gather(&parts, ends, files->world, doing, own, files->count * sizeof *own);
  }
  *all = true;
  for (uint32_t part = 1; part <= state->parts && status == EK_OK; part++) {
    bool there = false;
    for (size_t i = 0; i < ends[processes - 1] / sizeof *parts; i++) {
      there = there || parts[i] == part;
    }
    *all = *all && there;
  }
  ek__free(own);
  ek__free(parts);
  ek__free(ends);
  return status;
}

struct attempt {
  bool whole, gone;
  size_t damage; /* the first process that has found some; as many as there are: none */
};

static ek_status try_state(struct attempt *attempt, struct ek__state_files *files,
                           const struct ek__state_name *state) {
  const size_t processes = ek_world_processes(files->world);
  struct seen *own = NULL;
  struct sights sights = {NULL, NULL}, bad = {NULL, NULL};
  size_t count = 0;
  bool noted = attempt->damage < processes; /* a message of an earlier state stays */
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek__new(&own, files->name_count, sizeof *own, memory_of), cleanup);
  EK_TRY_GOTO(status, ek__new(&sights.ends, processes, sizeof *sights.ends, memory_of), cleanup);
  EK_TRY_GOTO(status, ek__new(&bad.ends, processes, sizeof *bad.ends, memory_of), cleanup);
  EK_TRY_GOTO(status, open_own(files, state, own, &count, &noted), cleanup);
  EK_TRY_GOTO(status, ek__world_gather(&sights.list, sights.ends, files->world, doing, own,
                                       count * sizeof *own), cleanup);
  attempt->gone = any_gone(files, &sights);
  if (attempt->gone) goto cleanup;
  if (attempt->damage == processes) attempt->damage = first_damage(files, &sights);
  EK_TRY_GOTO(status, compare_headers(files, &sights, state), cleanup);
  EK_TRY_GOTO(status, check_all(files, &sights, &bad, &noted), cleanup);
  if (attempt->damage == processes) attempt->damage = first_damage(files, &bad);
  EK_TRY_GOTO(status, are_all_seen(&attempt->whole, files, state), cleanup);
cleanup:
  ek__free(own);
  ek__free(sights.list);
  ek__free(sights.ends);
  ek__free(bad.list);
  ek__free(bad.ends);
  if (!attempt->whole) close_files(files);
  return status;
}

/* ---- the last one ---- */

/* Tries the states that a process sees, the last first. */
static ek_status try_process(struct attempt *attempt, struct ek__state_files *files, size_t p) {
  size_t i = 0, end = 0;
  range_of(&i, &end, files, p);
  while (i < end && !attempt->whole && !attempt->gone) {
    const struct ek__state_name *state = &files->all[i];
    bool waits = false;
    const uint32_t missing = missing_part(&waits, files, state);
    i += ek__checkpoint_same(state, end - i);
    if (missing != 0 && waits) continue;
    if (missing != 0) return is_me(files, p) ? say_missing(files, state, missing) : hear(files);
    EK_TRY(try_state(attempt, files, state));
  }
  return EK_OK;
}

static ek_status say_none(const struct ek__state_files *files, const struct attempt *attempt,
                          bool absent) {
  const size_t processes = ek_world_processes(files->world);
  if (!is_me(files, attempt->damage < processes ? attempt->damage : 0)) return hear(files);
  EK__FAIL_IF(attempt->damage < processes && files->alone, EK_ERR_CORRUPT, "%s", files->message);
  EK__FAIL_IF(attempt->damage < processes, EK_ERR_NOT_FOUND,
              "%s: every state in this folder is damaged; the first error: %s", files->path,
              files->message);
  EK__FAIL_IF(absent, EK_ERR_NOT_FOUND, "%s", files->message);
  return ek_error_set(EK_ERR_NOT_FOUND, "%s: this folder contains no saved state", files->path);
}

/* A process that removes a state has saved a later one: the folders are read again. */
ek_status ek__state_files_open(struct ek__state_files *files) {
  const size_t processes = ek_world_processes(files->world);
  struct attempt attempt = {.damage = processes};
  bool absent = false;
  for (int i = 0; i < 100; i++) {
    attempt = (struct attempt){.damage = processes};
    files->message[0] = '\0';
    EK_TRY(list_all(files, &absent));
    for (size_t p = 0; p < processes && !attempt.whole && !attempt.gone; p++) {
      EK_TRY(try_process(&attempt, files, p));
    }
    if (attempt.whole) return EK_OK;
    if (!attempt.gone) break;
  }
  return say_none(files, &attempt, absent);
}

const struct ek__state_file *ek__state_file_of(const struct ek__state_files *files,
                                               const char *name) {
  for (size_t i = 0; i < files->count; i++) {
    if (ek_safetensors_find(files->list[i].file, name) != NULL) return &files->list[i];
  }
  return NULL;
}

ek_status ek_checkpoint_latest(ek_checkpoint_info *info, const char *folder) {
  struct ek__state_files files = {.path = folder, .in_folder = true};
  ek_checkpoint_info found = {.step = 0};
  EK__NOT_NULL("ek_checkpoint_latest", info, folder);
  ek_status status = ek__state_files_open(&files);
  const struct ek__state_file *file = ek__state_file_of(&files, "run/step");
  if (status == EK_OK && file != NULL) {
    status = ek__checkpoint_describe(&found, file->file, file->path);
  }
  ek__state_files_close(&files);
  if (status == EK_OK) *info = found;
  return status;
}
