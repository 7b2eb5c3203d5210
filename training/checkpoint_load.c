/*
 * checkpoint_load.c - reads the state of a model out of a file.
 *
 * The file is checked before the model is touched: that it is a state, of a format that this
 * library knows, with the entries of this model in their shapes, with numbers that a run can have,
 * and with all of its bytes. Only then the model is torn on purpose; it is whole again with its
 * last entry. So a failure in between leaves a model that refuses to go on, never a mixture of two
 * states.
 */
#include <evenkeel/checkpoint.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <evenkeel/safetensors.h>
#include <evenkeel/state.h>

#include "checkpoint_internal.h"
#include "core/alloc.h"
#include "core/c_locale.h"
#include "core/error.h"
#include "core/sizes.h"
#include "io/file.h"
#include "parallel/optimizer_internal.h"

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

/* A number of `run`, which is one that a run can have. */
static ek_status read_number(void *number, const ek_safetensors *file, const char *path,
                             const char *name, ek_state_kind kind) {
  const ek_type type = kind == EK_STATE_KIND_LOSS_SCALE ? EK_F64 : EK_I64;
  ek_tensor host = {.data = number, .type = type};
  EK_TRY(ek_safetensors_read(&host, file, name));
  if (ek__state_check_number(kind, number) == EK_OK) return EK_OK;
  return ek_error_set(EK_ERR_CORRUPT, "%s: %s", path, ek_error_message());
}

static ek_status describe(ek_checkpoint_info *info, const ek_safetensors *file, const char *path) {
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
  return read_number(&info->step, file, path, "run/step", EK_STATE_KIND_STEP);
}

/* Opens it, and checks every byte. */
static ek_status open_whole(ek_safetensors **file, ek_checkpoint_info *info, const char *path) {
  ek_safetensors *opened = NULL;
  EK_TRY(ek_safetensors_open(&opened, path));
  ek_status status = describe(info, opened, path);
  if (status == EK_OK) status = ek_safetensors_check(opened);
  if (status == EK_OK) {
    *file = opened;
  } else {
    ek_safetensors_free(opened);
  }
  return status;
}

/* ---- the last one of a folder ---- */

/* The last whole state of a list. A state is skipped only for damaged bytes. EK_ERR_CORRUPT if all
 * are damaged; EK_ERR_NOT_FOUND if one was removed since it was listed, or the list is empty. */
static ek_status open_listed(ek_safetensors **file, ek_checkpoint_info *info, const char *folder,
                             const int64_t *steps, size_t count) {
  ek_status status = ek_error_set(EK_ERR_NOT_FOUND,
                                  "%s: this folder contains no saved state", folder);
  for (size_t i = 0; i < count; i++) {
    char path[EK_CHECKPOINT_PATH_SIZE];
    status = ek__checkpoint_path(path, folder, steps[i]);
    if (status == EK_OK) status = open_whole(file, info, path);
    if (status != EK_ERR_CORRUPT) break;
  }
  return status;
}

/* A process that removes a state has saved a later one: the folder is read again. */
static ek_status open_last(ek_safetensors **file, ek_checkpoint_info *info, const char *folder) {
  ek_status status = EK_ERR_NOT_FOUND;
  size_t count = 1;
  for (int i = 0; i < 100 && status == EK_ERR_NOT_FOUND && count > 0; i++) {
    int64_t *steps = NULL;
    EK_TRY(ek__checkpoint_list(&steps, &count, folder));
    status = open_listed(file, info, folder, steps, count);
    ek__free(steps);
  }
  if (status != EK_ERR_CORRUPT) return status;
  return ek_error_set(EK_ERR_NOT_FOUND,
                      "%s: every state in this folder is damaged; the first error: %s", folder,
                      ek_error_message());
}

ek_status ek_checkpoint_latest(ek_checkpoint_info *info, const char *folder) {
  ek_safetensors *file = NULL;
  ek_checkpoint_info found = {.step = 0};
  EK__NOT_NULL("ek_checkpoint_latest", info, folder);
  EK_TRY(open_last(&file, &found, folder));
  ek_safetensors_free(file);
  *info = found;
  return EK_OK;
}

static ek_status open_any(ek_safetensors **file, ek_checkpoint_info *info, const char *path) {
  struct stat about;
  if (stat(path, &about) != 0) return ek__file_refused(path, "cannot be examined");
  return S_ISDIR(about.st_mode) ? open_last(file, info, path) : open_whole(file, info, path);
}

/* ---- into a model ---- */

static ek_status mismatch(const char *path, const char *name, const char *what) {
  return ek_error_set(EK_ERR_MISMATCH, "%s is not a state of this model: %s %s", path, name, what);
}

/* The parameter of a state of an optimizer, KIND/STATE/PARAMETER; else NULL. */
static const char *parameter_of(const char *name) {
  const char *slash = strchr(name, '/');
  if (slash != NULL) slash = strchr(slash + 1, '/');
  return slash == NULL ? NULL : slash + 1;
}

/* Why an entry is missing in the file: one of a run with the same rule has states of others. */
static const char *why_missing(const ek_safetensors *file, const ek_state_info *info) {
  const size_t kind = strcspn(info->name, "/") + 1;
  const char *parameter = info->kind == EK_STATE_KIND_OPTIMIZER ? parameter_of(info->name) : NULL;
  if (parameter == NULL || ek_safetensors_find(file, parameter) == NULL) return "is missing";
  for (size_t i = 0; i < ek_safetensors_count(file); i++) {
    if (strncmp(ek_safetensors_at(file, i)->name, info->name, kind) == 0) {
      return "is missing: the parameter was frozen when the run was saved, but is trained now";
    }
  }
  return "is missing";
}

/* Why an entry of the file has no place in the model. */
static const char *why_extra(const ek_data_parallel_model *model, const char *name) {
  const char *parameter = parameter_of(name);
  ek_parameter_info info;
  if (parameter != NULL &&
      ek_replica_find(&info, model->run.ranks[0].replica, parameter) == EK_OK && info.frozen) {
    return "is in the file, but the parameter is frozen now; it was trained when the run was saved";
  }
  return "is in the file, but not in the model or its optimizer";
}

/* Whether the file has this entry, in its shape; of `run`, a number that may be. Floating types may
 * differ. */
static ek_status check_entry(const ek_safetensors *file, const char *path,
                             const ek_state_info *info) {
  const ek_safetensors_entry *entry = ek_safetensors_find(file, info->name);
  if (entry == NULL && ek__state_is_scaler(info->name)) return EK_OK;
  if (entry == NULL) return mismatch(path, info->name, why_missing(file, info));
  if (!ek__same_sizes(entry->like.rank, entry->like.shape, info->like.rank, info->like.shape)) {
    return mismatch(path, info->name, "has another shape");
  }
  const bool whole = info->like.type == EK_I32 || info->like.type == EK_I64;
  const bool whole_there = entry->like.type == EK_I32 || entry->like.type == EK_I64;
  if (entry->like.type == 0 || whole != whole_there ||
      (whole && entry->like.type != info->like.type))
    return mismatch(path, info->name, "has another type");
  if (info->kind < EK_STATE_KIND_STEP) return EK_OK;
  uint64_t number = 0;
  return read_number(&number, file, path, info->name, info->kind);
}

/* *largest becomes the bytes of the largest entry. */
static ek_status measure_entries(size_t *largest, const ek_data_parallel_model *model) {
  const size_t count = ek_state_count(model);
  *largest = 0;
  for (size_t i = 0; i < count; i++) {
    ek_state_info info;
    EK_TRY(ek_state_entry(&info, model, i));
    const size_t bytes = ek_tensor_bytes(&info.like);
    if (bytes > *largest) *largest = bytes;
  }
  return EK_OK;
}

static ek_status check_entries(const ek_data_parallel_model *model, const ek_safetensors *file,
                               const char *path) {
  for (size_t i = 0; i < ek_state_count(model); i++) {
    ek_state_info info;
    EK_TRY(ek_state_entry(&info, model, i));
    EK_TRY(check_entry(file, path, &info));
  }
  for (size_t i = 0; model->update != NULL && i < ek_safetensors_count(file); i++) {
    ek_state_info info;
    const char *name = ek_safetensors_at(file, i)->name;
    const bool extra = strncmp(name, EK__CHECKPOINT_EXTRA, strlen(EK__CHECKPOINT_EXTRA)) == 0;
    if (extra || ek__state_is_scaler(name)) continue;
    if (ek_state_find(&info, model, name) != EK_OK) {
      return mismatch(path, name, why_extra(model, name));
    }
  }
  return EK_OK;
}

/* A file of a run without a dynamic loss scale: it begins with what the options say. */
static ek_status read_entry(ek_tensor *host, const ek_data_parallel_model *model,
                            const ek_safetensors *file, const ek_state_info *info) {
  if (ek_safetensors_find(file, info->name) != NULL) {
    return ek_safetensors_read(host, file, info->name);
  }
  const ek_loss_scale_state begin = ek_loss_scale_begin(&model->update->loss_scale);
  const bool scale = info->kind == EK_STATE_KIND_LOSS_SCALE;
  memcpy(host->data, scale ? (const void *)&begin.scale : &begin.good_steps, sizeof(int64_t));
  return EK_OK;
}

static ek_status write_entries(ek_data_parallel_model *model, const ek_safetensors *file,
                               void *buffer) {
  const size_t count = ek_state_count(model);
  ek__model_tear(model);
  for (size_t i = 0; i < count; i++) {
    ek_state_info info;
    EK_TRY(ek_state_entry(&info, model, i));
    ek_tensor host = info.like;
    host.data = buffer;
    if (file != NULL) EK_TRY(read_entry(&host, model, file, &info));
    EK_TRY(ek__world_share(ek__group_world(model->run.group), buffer, ek_tensor_bytes(&host)));
    EK_TRY(ek_state_write(model, info.name, &host));
  }
  return EK_OK;
}

/* Process 0 of a world reads the file, and shares what it reads. */
static ek_status load(ek_checkpoint_info *info, ek_data_parallel_model *model, const char *path) {
  ek_safetensors *file = NULL;
  ek_checkpoint_info found = {.step = 0};
  ek_world *world = ek__group_world(model->run.group);
  size_t largest = 0;
  void *buffer = NULL;
  ek_status status = EK_OK;
  EK__NOT_NULL("ek_checkpoint_load", path);
  EK__MODEL_ENTER(model, "ek_checkpoint_load");
  if (ek_world_process(world) == 0) {
    EK_TRY(open_any(&file, &found, path));
    EK_TRY_GOTO(status, check_entries(model, file, found.path), cleanup);
  }
  EK_TRY_GOTO(status, measure_entries(&largest, model), cleanup);
  EK_TRY_GOTO(status, ek__new(&buffer, 1, largest, "a state to load"), cleanup);
  EK_TRY_GOTO(status, ek__world_share(world, &found, sizeof found), cleanup);
  EK_TRY_GOTO(status, write_entries(model, file, buffer), cleanup);
  if (info != NULL) *info = found;
cleanup:
  ek__free(buffer);
  ek_safetensors_free(file);
  return status;
}

ek_status ek_checkpoint_load(ek_checkpoint_info *info, ek_data_parallel_model *model,
                             const char *path) {
  EK__NOT_NULL("ek_checkpoint_load", model);
  ek_world *world = ek__group_world(model->run.group);
  const uint64_t began = ek__world_begin(world);
  ek_status status = load(info, model, path);
  if (status == EK_OK) status = ek__world_agree(world, "loading a state", model->step.taken);
  return ek__world_end(world, began, status);
}
