/*
 * checkpoint_load.c - reads the state of a model out of its files.
 *
 * The files are checked before the model is touched: that they are whole (checkpoint_find.c), of a
 * format that this library knows, with the entries of this model in their shapes, and with numbers
 * that a run can have. Only then the model is torn on purpose; it is whole again with its last
 * entry. So a failure in between leaves a model that refuses to go on, never a mixture of two
 * states.
 *
 * Each process that sees the file of an entry reads it: all of it, or of an entry that is cut over
 * the processes its own parts, whose bytes were checked before. A process that does not see it gets
 * as much from the first one that does. Where all see all files, nothing is sent.
 */
#include <evenkeel/checkpoint.h>

#include <string.h>

#include <evenkeel/safetensors.h>
#include <evenkeel/state.h>

#include "checkpoint_internal.h"
#include "core/alloc.h"
#include "core/error.h"
#include "core/sizes.h"
#include "model_config.h"
#include "parallel/optimizer_internal.h"
#include "world/world_internal.h"

static const char doing[] = "loading a state";

/* A state that is read into a model. */
struct load {
  ek_data_parallel_model *model;
  ek_world *world;
  size_t me, processes;
  struct ek__state_files files;
  size_t count;             /* entries of the model */
  char *have;               /* of each process, for each entry: whether it sees its file */
  size_t *ends;
  ek_checkpoint_info found;
  void *buffer; /* for the largest entry */
};

/* ---- looking at everything ---- */

static ek_status mismatch(const char *path, const char *name, const char *what) {
  return ek_error_set(EK_ERR_MISMATCH, "%s is not a state of this model: %s %s", path, name, what);
}

/* The parameter of a state of an optimizer, KIND/STATE/PARAMETER; else NULL. */
static const char *parameter_of(const char *name) {
  const char *slash = strchr(name, '/');
  if (slash != NULL) slash = strchr(slash + 1, '/');
  return slash == NULL ? NULL : slash + 1;
}

/* Why an entry is in no file: those of a run with the same rule have states of others. */
static const char *why_missing(const struct ek__state_files *files, const ek_state_info *info) {
  const size_t kind = strcspn(info->name, "/") + 1;
  const char *parameter = info->kind == EK_STATE_KIND_OPTIMIZER ? parameter_of(info->name) : NULL;
  if (parameter == NULL || ek__state_file_of(files, parameter) == NULL) return "is missing";
  for (size_t k = 0; k < files->count; k++) {
    const ek_safetensors *file = files->list[k].file;
    for (size_t i = 0; i < ek_safetensors_count(file); i++) {
      if (strncmp(ek_safetensors_at(file, i)->name, info->name, kind) == 0) {
        return "is missing: the parameter was frozen when the run was saved, but is trained now";
      }
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

/* Whether an entry of the file has the shape of the model's; of `run`, a number that may be.
 * Floating types may differ. */
static ek_status check_entry(const struct ek__state_file *file, const ek_state_info *info) {
  const ek_safetensors_entry *entry = ek_safetensors_find(file->file, info->name);
  if (!ek__same_sizes(entry->like.rank, entry->like.shape, info->like.rank, info->like.shape)) {
    return mismatch(file->path, info->name, "has another shape");
  }
  const bool whole = info->like.type == EK_I32 || info->like.type == EK_I64;
  const bool whole_there = entry->like.type == EK_I32 || entry->like.type == EK_I64;
  if (entry->like.type == 0 || whole != whole_there ||
      (whole && entry->like.type != info->like.type))
    return mismatch(file->path, info->name, "has another type");
  if (info->kind < EK_STATE_KIND_STEP) return EK_OK;
  uint64_t number = 0;
  return ek__checkpoint_number(&number, file->file, file->path, info->name, info->kind);
}

/* What the shapes of parameters do not show: a model with other heads, say, computes something
 * else. A file of an earlier version has no facts. */
static ek_status check_facts(const struct load *self, const struct ek__state_file *file) {
  const struct ek__layout *layout = &self->model->run.ranks[0].replica->layout;
  for (struct ek__state_fact fact = {0}; ek__config_next_state_fact(&fact, layout);) {
    const char *there = ek_safetensors_value(file->file, fact.key);
    EK__FAIL_IF(there != NULL && strcmp(there, fact.value) != 0, EK_ERR_MISMATCH,
                "%s is not a state of this model: %s is %.100s in the file, expected %s",
                file->path, fact.key + strlen(EK__STATE_FACT_KEY), there, fact.value);
  }
  return EK_OK;
}

/* What a file has besides the entries of the model and its optimizer. The name of a tied parameter
 * stands for another one here, and is an entry of its own in a state of a model that ties nothing.
 */
static ek_status check_rest(const struct load *self, const struct ek__state_file *file) {
  for (size_t i = 0; i < ek_safetensors_count(file->file); i++) {
    ek_state_info info;
    const char *name = ek_safetensors_at(file->file, i)->name;
    const bool extra = strncmp(name, EK__CHECKPOINT_EXTRA, strlen(EK__CHECKPOINT_EXTRA)) == 0;
    const bool unused = self->model->update == NULL && parameter_of(name) != NULL;
    if (extra || unused || ek__state_is_scaler(name)) continue;
    if (ek_state_find(&info, self->model, name) != EK_OK) {
      return mismatch(file->path, name, why_extra(self->model, name));
    }
    if (strcmp(info.name, name) != 0) {
      return mismatch(file->path, name, "is in the file, but the model ties it to another one");
    }
  }
  return EK_OK;
}

/* Looks for the entries in the files that are here; *largest: bytes of the largest one. */
static ek_status look_here(const struct load *self, char *here, size_t *largest) {
  for (size_t i = 0; i < self->count; i++) {
    ek_state_info info;
    EK_TRY(ek_state_entry(&info, self->model, i));
    const struct ek__state_file *file = ek__state_file_of(&self->files, info.name);
    const size_t bytes = ek_tensor_bytes(&info.like);
    if (bytes > *largest) *largest = bytes;
    if (file == NULL) continue;
    EK_TRY(check_entry(file, &info));
    here[i] = 1;
  }
  return EK_OK;
}

static bool has(const struct load *self, size_t process, size_t index) {
  return self->have[process * self->count + index] != 0;
}

/* The first process that has an entry; as many as there are: none. */
static size_t first_with(const struct load *self, size_t index) {
  size_t p = 0;
  while (p < self->processes && !has(self, p, index)) p++;
  return p;
}

/* Every entry is in some file, except of a scaler. The first process with a file says what is not,
 * and the others hear it in the next conversation. */
static ek_status check_missing(const struct load *self) {
  size_t speaker = 0;
  for (size_t p = self->processes; p-- > 0;) {
    for (size_t i = 0; i < self->count; i++) {
      if (has(self, p, i)) speaker = p;
    }
  }
  for (size_t i = 0; i < self->count && self->me == speaker; i++) {
    ek_state_info info;
    if (first_with(self, i) < self->processes) continue;
    EK_TRY(ek_state_entry(&info, self->model, i));
    if (ek__state_is_scaler(info.name)) continue;
    const char *path = self->files.count > 0 ? self->files.list[0].path : self->files.path;
    return mismatch(path, info.name, why_missing(&self->files, &info));
  }
  return EK_OK;
}

/* All processes get what the file with the step says; each has the path of a file that it sees. */
static ek_status share_info(struct load *self) {
  size_t step = 0;
  for (; step + 1 < self->count; step++) {
    ek_state_info info;
    EK_TRY(ek_state_entry(&info, self->model, step));
    if (info.kind == EK_STATE_KIND_STEP) break;
  }
  const size_t from = first_with(self, step) < self->processes ? first_with(self, step) : 0;
  if (self->me == from) {
    const struct ek__state_file *file = ek__state_file_of(&self->files, "run/step");
    EK__FAIL_IF(file == NULL, EK_ERR_MISMATCH, "%s: run/step is missing", self->files.path);
    EK_TRY(ek__checkpoint_describe(&self->found, file->file, file->path));
  }
  EK_TRY(ek__world_share_from(self->processes > 1 ? self->world : NULL, from, &self->found,
                              sizeof self->found));
  if (self->files.count > 0) {
    memcpy(self->found.path, self->files.list[0].path, sizeof self->found.path);
  }
  return EK_OK;
}

static ek_status look_at_all(struct load *self) {
  char *here = NULL;
  size_t largest = 0;
  ek_status status = EK_OK;
  EK_TRY(ek__state_files_open(&self->files));
  self->count = ek_state_count(self->model);
  EK_TRY_GOTO(status, ek__new(&here, self->count, 1, "a state to load"), cleanup);
  EK_TRY_GOTO(status, look_here(self, here, &largest), cleanup);
  EK_TRY_GOTO(status, ek__new(&self->ends, self->processes, sizeof *self->ends, "a state to load"),
              cleanup);
  EK_TRY_GOTO(status, ek__new(&self->buffer, 1, largest, "a state to load"), cleanup);
  EK_TRY_GOTO(status, ek__world_gather(&self->have, self->ends, self->world, doing, here,
                                       self->count), cleanup);
  EK_TRY_GOTO(status, check_missing(self), cleanup);
  for (size_t i = 0; i < self->files.count; i++) {
    EK_TRY_GOTO(status, check_rest(self, &self->files.list[i]), cleanup);
    EK_TRY_GOTO(status, check_facts(self, &self->files.list[i]), cleanup);
  }
  EK_TRY_GOTO(status, share_info(self), cleanup);
cleanup:
  ek__free(here);
  return status;
}

/* ---- into the model ---- */

/* The next span of an entry that a process needs; all of it where it is not cut. */
struct needed {
  struct ek__state_spans spans;
  bool whole, done;
};

static struct needed begin_needed(const struct load *self, const ek_state_info *info, size_t index,
                                  size_t process) {
  const int64_t count = ek_tensor_count(&info->like);
  return (struct needed){.spans = {self->model, process, index, 0, count, 0},
                         .whole = !ek__state_needs_spans(self->model, info->kind)};
}

static bool next_needed(int64_t *first, int64_t *count, struct needed *needed) {
  if (!needed->whole) return ek__state_next_span(first, count, &needed->spans);
  *first = 0;
  *count = needed->spans.count;
  const bool more = !needed->done;
  needed->done = true;
  return more && *count > 0;
}

/* Of a scaler that the state does not have: it begins with what the options say. */
static void begin_scaler(const struct load *self, const ek_state_info *info) {
  const ek_loss_scale_state begin = ek_loss_scale_begin(&self->model->update->loss_scale);
  const bool scale = info->kind == EK_STATE_KIND_LOSS_SCALE;
  memcpy(self->buffer, scale ? (const void *)&begin.scale : &begin.good_steps, sizeof(int64_t));
}

/* An entry whose file is here: what this process needs, or all of it for others. */
static ek_status read_entry(ek_tensor *host, const struct load *self, const ek_state_info *info,
                            size_t index, bool all) {
  const ek_safetensors *file = ek__state_file_of(&self->files, info->name)->file;
  struct needed needed = begin_needed(self, info, index, self->me);
  const size_t size = ek_type_size(host->type);
  int64_t first = 0, count = 0;
  if (all || needed.whole) return ek_safetensors_read(host, file, info->name);
  while (next_needed(&first, &count, &needed)) {
    ek_tensor part = {.type = host->type, .rank = 1, .shape = {count}};
    part.data = (char *)host->data + (size_t)first * size;
    EK_TRY(ek_safetensors_read_part(&part, file, info->name, first));
  }
  return EK_OK;
}

/* From the first process that has it to one that has not: what that needs. The lock is held. */
static ek_status pass_on(const struct load *self, const ek_state_info *info, size_t index,
                         size_t from, size_t to) {
  struct needed needed = begin_needed(self, info, index, to);
  const size_t size = ek_type_size(info->like.type);
  const bool sends = self->me == from;
  int64_t first = 0, count = 0;
  while (next_needed(&first, &count, &needed)) {
    char *data = (char *)self->buffer + (size_t)first * size;
    const size_t bytes = (size_t)count * size;
    EK_TRY(ek__world_swap(self->world, sends ? to : from, data, sends ? bytes : 0, data,
                          sends ? 0 : bytes));
    ek__world_count(self->world, sends ? bytes : 0, sends ? 0 : bytes);
  }
  return EK_OK;
}

static ek_status pass_entry(const struct load *self, const ek_state_info *info, size_t index,
                            size_t from) {
  const struct ek__topic topic = {
      .kind = EK__TOPIC_AGREE, .doing = doing, .same = 1, .words = {(int64_t)index}};
  ek__world_lock(self->world);
  ek_status status = ek__world_talk(self->world, &topic, NULL);
  for (size_t i = 0; i < self->processes && status == EK_OK; i++) {
    const size_t peer = ek__world_peer(self->world, i), to = self->me == from ? peer : self->me;
    const bool takes_part = self->me == from || peer == from;
    if (peer == self->me || !takes_part || has(self, to, index)) continue;
    status = pass_on(self, info, index, from, to);
  }
  ek__world_unlock(self->world);
  return status;
}

static ek_status load_entry(const struct load *self, size_t index) {
  ek_state_info info;
  EK_TRY(ek_state_entry(&info, self->model, index));
  ek_tensor host = info.like;
  host.data = self->buffer;
  const size_t from = first_with(self, index);
  bool all_have = true;
  for (size_t p = 0; p < self->processes; p++) all_have = all_have && has(self, p, index);
  if (from == self->processes) {
    begin_scaler(self, &info);
    return ek_state_write(self->model, info.name, &host);
  }
  if (has(self, self->me, index)) {
    EK_TRY(read_entry(&host, self, &info, index, self->me == from && !all_have));
  }
  if (!all_have) EK_TRY(pass_entry(self, &info, index, from));
  return ek_state_write(self->model, info.name, &host);
}

static ek_status load(bool *torn, ek_checkpoint_info *info, ek_data_parallel_model *model,
                      const char *path) {
  struct load self = {.model = model};
  ek_status status = EK_OK;
  EK__NOT_NULL("ek_checkpoint_load", path);
  EK__MODEL_ENTER(model, "ek_checkpoint_load");
  self.world = ek__group_world(model->run.group);
  self.me = ek_world_process(self.world);
  self.processes = ek_world_processes(self.world);
  self.files = (struct ek__state_files){.world = self.world, .path = path};
  EK_TRY_GOTO(status, look_at_all(&self), cleanup);
  ek__model_tear(model);
  *torn = true;
  for (size_t i = 0; i < self.count; i++) {
    EK_TRY_GOTO(status, load_entry(&self, i), cleanup);
  }
  if (info != NULL) *info = self.found;
cleanup:
  ek__state_files_close(&self.files);
  ek__free(self.have);
  ek__free(self.ends);
  ek__free(self.buffer);
  return status;
}

ek_status ek_checkpoint_load(ek_checkpoint_info *info, ek_data_parallel_model *model,
                             const char *path) {
  EK__NOT_NULL("ek_checkpoint_load", model);
  ek_world *world = ek__group_world(model->run.group);
  const uint64_t began = ek__world_begin(world);
  bool torn = false;
  ek_status status = load(&torn, info, model, path);
  if (status == EK_OK) status = ek__world_agree(world, doing, model->step.taken);
  status = ek__world_end(world, began, status);
  if (status != EK_OK && torn) ek__model_tear(model); /* also here, where all was written */
  return status;
}
