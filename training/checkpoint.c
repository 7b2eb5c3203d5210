/*
 * checkpoint.c - writes the state of a model into a file: now, or from a thread of its own.
 *
 * A save is described first (entries, pairs, the file's path), so errors in it are found on the
 * caller's thread. Then the file is filled piece by piece, regardless of the borders of entries,
 * and each piece is summed while it is in the processor's cache. An immediate save has a few
 * pieces, which threads write while the next ones are filled (io/write_behind.h). A save in the
 * background fills one block of host memory with all that this process writes and hands that to its
 * thread; from then on it needs neither the model nor its devices, and little processor time.
 *
 * Pieces and the block are images of the file: whole pages of one are whole pages of the other, so
 * that they are written past the page cache (io/file.h).
 *
 * The processes of a world that see one folder write one file at the same time, each a region of it
 * (checkpoint_regions.c). The leader of each file gives it its name after it has heard that all
 * regions are on the disk. So a save is whole or absent whichever process is killed.
 * Threads do not talk to other processes: a save in the background ends in a call that all
 * processes make, ek_checkpoint_end() or, in a trainer, the first step after all have written.
 * Where there are several files, all meet once more when the leaders have ended them.
 *
 * The public functions of state.h and safetensors.h do the work, except that where entries are is
 * looked up in the writer.
 */
#include <evenkeel/checkpoint.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint_write.h"
#include "core/alloc.h"
#include "core/options.h"
#include "core/thread.h"
#include "core/utf8.h"
#include "io/file.h"
#include "io/write_behind.h"
#include "io/writer.h"
#include "parallel/optimizer_internal.h"

static const char memory_of[] = "a state to save";

/* ---- describing ---- */

static ek_status describe_extra(ek_state_info *info, const ek_checkpoint_extra *extra) {
  const char *name = extra->name == NULL ? "" : extra->name;
  const int length = snprintf(info->name, sizeof info->name, EK__CHECKPOINT_EXTRA "%s", name);
  EK__FAIL_IF(name[0] == '\0' || length < 0 || (size_t)length >= sizeof info->name,
              EK_ERR_INVALID_ARGUMENT, "the name of a checkpoint's extra must have 1 to %d bytes",
              EK_STATE_NAME_SIZE);
  EK__FAIL_IF(!ek__utf8_is(name), EK_ERR_INVALID_ARGUMENT,
              "the name of a checkpoint's extra, \"%.64s\", is not valid UTF-8", name);
  EK__FAIL_IF(extra->value.device != NULL ||
                  (extra->value.data == NULL && ek_tensor_count(&extra->value) > 0),
              EK_ERR_INVALID_ARGUMENT, "a checkpoint's extra, %s, must be in host memory", name);
  info->like = extra->value;
  return EK_OK;
}

/* Those of the model, and the extras where they are. */
static ek_status list_entries(ek_checkpoint_write *self, const ek_data_parallel_model *model) {
  self->own = ek_state_count(model);
  EK__FAIL_IF(self->plan.extras > SIZE_MAX - self->own, EK_ERR_OVERFLOW, "too many extras");
  self->count = self->own + (size_t)self->plan.extras;
  EK_TRY(ek__new(&self->infos, self->count, sizeof *self->infos, memory_of));
  EK_TRY(ek__new(&self->entries, self->count, sizeof *self->entries, memory_of));
  for (size_t i = 0; i < self->count; i++) {
    if (i < self->own) {
      EK_TRY(ek_state_entry(&self->infos[i], model, i));
    } else if (self->extras != NULL) {
      EK_TRY(describe_extra(&self->infos[i], &self->extras[i - self->own]));
    }
    self->entries[i] = (ek_safetensors_entry){self->infos[i].name, self->infos[i].like};
  }
  return EK_OK;
}

/* Frees what only the writing needs. */
static void drop_file(ek_checkpoint_write *self) {
  ek_safetensors_writer_free(self->file);
  ek__free(self->memory);
  self->file = NULL;
  self->memory = NULL;
}

/* A part that waits goes if all processes know that the save has failed. Where they may not,
 * because one has died, others may count on it. */
static void drop_part(ek_checkpoint_write *self) {
  char path[EK_CHECKPOINT_PATH_SIZE], kept[EK__MESSAGE_SIZE];
  if (!self->waits || (self->process.id != 0 && ek__process_is_child(&self->process))) return;
  ek__error_keep(kept);
  if (ek__world_check(self->world) == EK_OK &&
      ek__checkpoint_path(path, self->folder, &self->name) == EK_OK) {
    (void)unlink(path);
  } else {
    (void)ek_error_set(EK_ERR_UNAVAILABLE, "%s", kept);
  }
}

static void destroy(ek_checkpoint_write *self) {
  if (self == NULL) return;
  drop_part(self);
  drop_file(self);
  ek__writer_file_close(&self->made, ek__region_leads(self));
  ek__regions_close(self);
  ek__free(self->entries);
  ek__free(self->infos);
  ek__free(self->folder);
  ek__free(self);
}

static ek_status describe(ek_checkpoint_write *self, const ek_checkpoint_options *options) {
  const ek_data_parallel_model *model = self->model;
  ek_checkpoint_options o = EK_CHECKPOINT_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_checkpoint_options"));
  EK__FAIL_IF(ek_device_counts_only(ek_group_device(model->run.group, 0)), EK_ERR_UNSUPPORTED,
              "plan devices have no values, so there is no state to save");
  EK__FAIL_IF(o.extras == NULL && o.extra_count > 0, EK_ERR_INVALID_ARGUMENT,
              "ek_checkpoint_options.extras is NULL");
  /* A step that every load would refuse. */
  EK_TRY(ek__state_check_number(EK_STATE_KIND_STEP, &model->step.taken));
  self->plan = (struct ek__save_plan){.step = model->step.taken,
                                      .position = o.position,
                                      .keep = o.only ? 1 : o.keep,
                                      .extras = o.extra_count,
                                      .only = o.only};
  self->extras = o.extras;
  return list_entries(self, model);
}

static ek_status create(ek_checkpoint_write **write, const ek_data_parallel_model *model,
                        const char *folder, const ek_checkpoint_options *options) {
  ek_checkpoint_write *self = NULL;
  EK_TRY(ek__model_check(model));
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  self->made.file = -1;
  self->model = model;
  self->world = ek__model_world(model);
  self->me = ek_world_process(self->world);
  if (ek_world_processes(self->world) > 1) self->several = ek_world_processes(self->world);
  ek_status status = ek__new_copy(&self->folder, folder, strlen(folder) + 1, memory_of);
  if (status == EK_OK && self->me == 0) status = describe(self, options);
  if (status == EK_OK) status = ek__regions_meet(self);
  if (status == EK_OK && self->me != 0) status = list_entries(self, model);
  self->name = (struct ek__state_name){.step = self->plan.step, .part = 1, .parts = 1};
  if (status == EK_OK) status = ek__regions_open(self, model);
  if (status == EK_OK) {
    *write = self;
  } else {
    destroy(self);
  }
  return status;
}

/* ---- the end of the file ---- */

/* A leader, when the regions of its file are on the disk. Before an older state is removed, the new
 * one is read again: from the disk, because most of it was written past the page cache. */
static ek_status end_file(ek_checkpoint_write *self) {
  const struct ek__state_stay stay = ek__save_stay(self);
  const bool replaces = ek__checkpoint_replaces(self->folder, &self->name, &stay);
  const enum ek__read_back rest = self->read_back ? EK__READ_BACK_HEADER : EK__READ_BACK_ALL;
  EK_TRY(ek__safetensors_finish(self->file, replaces ? rest : EK__READ_BACK_NOTHING));
  self->waits = self->apart;
  if (self->part_count == 1) ek__checkpoint_prune(self->folder, &self->name, &stay, NULL, 0);
  return EK_OK;
}

/* ---- now ---- */

static ek_status write_entries(ek_checkpoint_write *self, const ek_data_parallel_model *model) {
  const struct ek__region *region = &self->regions[self->me];
  struct ek__write_behind *behind = NULL;
  struct ek__stretch it = {0};
  ek_status status = EK_OK;
  if (ek__region_piece(&it, region, 0)) {
    EK_TRY(ek__write_behind_begin(&behind, self->file, region->piece));
  }
  for (size_t round = 0; round < self->rounds && status == EK_OK; round++) {
    const bool mine = ek__region_piece(&it, region, round);
    char *image = mine ? ek__write_behind_take(behind) : NULL;
    if (mine && image == NULL) break; /* a write has failed */
    status = ek__regions_fill(self, model, round, image, it.page);
    if (status == EK_OK && mine) {
      ek__write_behind_put(behind, image + (it.from - it.page), (size_t)(it.to - it.from), it.from);
    }
  }
  return behind == NULL ? status : ek__write_behind_end(behind, status);
}

static ek_status save(const ek_data_parallel_model *model, const char *folder,
                      const ek_checkpoint_options *options) {
  ek_checkpoint_write *self = NULL;
  EK__NOT_NULL("ek_checkpoint_save", folder);
  EK__MODEL_ENTER(model, "ek_checkpoint_save");
  EK_TRY(create(&self, model, folder, options));
  ek_status status = write_entries(self, model);
  if (status == EK_OK) status = ek__region_settle(self);
  if (status == EK_OK) status = ek__regions_collect(self, EK_OK);
  if (status == EK_OK && ek__region_leads(self)) status = end_file(self);
  if (status == EK_OK && self->part_count > 1) status = ek__regions_end(self);
  destroy(self);
  return status;
}

ek_status ek_checkpoint_save(const ek_data_parallel_model *model, const char *folder,
                             const ek_checkpoint_options *options) {
  EK__NOT_NULL("ek_checkpoint_save", model);
  ek_world *world = ek__model_world(model);
  const uint64_t began = ek__world_begin(world);
  ek_status status = save(model, folder, options);
  if (status == EK_OK) status = ek__world_agree(world, "saving a state", model->step.taken);
  return ek__world_end(world, began, status);
}

/* ---- in the background ---- */

static ek_status copy_all(ek_checkpoint_write *self, const ek_data_parallel_model *model) {
  const struct ek__region *region = &self->regions[self->me];
  EK_TRY(ek__file_pages(&self->memory, &self->image, region->end - region->page, memory_of));
  for (size_t round = 0; round < self->rounds; round++) {
    EK_TRY(ek__regions_fill(self, model, round, self->image, region->page));
  }
  return EK_OK;
}

static ek_status write_image(ek_checkpoint_write *self) {
  const struct ek__region *region = &self->regions[self->me];
  struct ek__stretch it;
  for (size_t round = 0; ek__region_piece(&it, region, round); round++) {
    EK_TRY(ek__safetensors_put(self->file, self->image + (it.from - region->page),
                               (size_t)(it.to - it.from), it.from));
  }
  return ek__region_settle(self);
}

static void keep_status(ek_checkpoint_write *self, ek_status status) {
  if (status == EK_OK || self->status != EK_OK) return;
  self->status = status;
  (void)snprintf(self->message, sizeof self->message, "%s", ek_error_message());
}

/* Writes the region; alone also ends the file. */
static void *write_main(void *arg) {
  ek_checkpoint_write *self = arg;
  ek_status status = write_image(self);
  if (status == EK_OK && self->several == 0) status = end_file(self);
  keep_status(self, status);
  if (self->several > 0) ek__world_count_writing(self->world, -1);
  return NULL;
}

static void *end_main(void *arg) {
  ek_checkpoint_write *self = arg;
  keep_status(self, end_file(self));
  if (self->part_count > 1) ek__world_count_writing(self->world, -1);
  return NULL;
}

static ek_status start(ek_checkpoint_write *self, void *(*run)(void *)) {
  EK_TRY(ek__thread_start(&self->thread, EK__WORKER_STACK, run, self));
  self->running = true;
  return EK_OK;
}

static ek_status begin(ek_checkpoint_write **write, const ek_data_parallel_model *model,
                       const char *folder, const ek_checkpoint_options *options) {
  ek_checkpoint_write *self = NULL;
  EK__NOT_NULL("ek_checkpoint_begin", write, folder);
  EK__MODEL_ENTER(model, "ek_checkpoint_begin");
  EK_TRY(create(&self, model, folder, options));
  ek_status status = copy_all(self, model);
  self->extras = NULL;
  self->model = NULL;
  self->process = ek__process_this();
  if (self->several > 0) ek__world_count_writing(self->world, 1);
  if (status == EK_OK) status = start(self, write_main);
  if (status == EK_OK) {
    *write = self;
  } else {
    if (self->several > 0) ek__world_count_writing(self->world, -1);
    destroy(self);
  }
  return status;
}

static void join(ek_checkpoint_write *write) {
  if (write->running) (void)pthread_join(write->thread, NULL);
  write->running = false;
}

ek_status ek_checkpoint_begin(ek_checkpoint_write **write, const ek_data_parallel_model *model,
                              const char *folder, const ek_checkpoint_options *options) {
  ek_checkpoint_write *made = NULL;
  EK__NOT_NULL("ek_checkpoint_begin", write, model);
  ek_world *world = ek__model_world(model);
  const uint64_t began = ek__world_begin(world);
  ek_status status = begin(&made, model, folder, options);
  if (status == EK_OK) status = ek__world_agree(world, "saving a state", model->step.taken);
  status = ek__world_end(world, began, status);
  if (status == EK_OK) {
    *write = made;
  } else if (made != NULL) {
    char before[EK__MESSAGE_SIZE];
    ek__error_keep(before);
    join(made);
    destroy(made);
    status = ek_error_set(status, "%s", before);
  }
  return status;
}

/* All processes meet: an error of the save is kept, the same in all of them. The status that is
 * returned is another one's: a process has come here with an error of something else, and the save
 * is as it was. */
static ek_status meet(ek_checkpoint_write *self, ek_status (*what)(ek_checkpoint_write *self),
                      const bool *met) {
  join(self);
  const uint64_t began = ek__world_begin(self->world);
  if (self->status != EK_OK) (void)ek_error_set(self->status, "%s", self->message);
  const ek_status status = ek__world_end(self->world, began, what(self));
  if (!*met) return status;
  self->status = EK_OK; /* the words that all have */
  keep_status(self, status);
  return EK_OK;
}

static ek_status collect(ek_checkpoint_write *self) {
  return ek__regions_collect(self, self->status);
}

static ek_status end_parts(ek_checkpoint_write *self) {
  const ek_status own = self->status;
  EK_TRY(ek__save_agree(self, EK__SAVE_ENDED, &self->ended, own, ek__regions_end));
  return own == EK_OK ? EK_OK : ek_error_set(own, "%s", self->message);
}

/* The threads have written the regions of all processes: the leaders get the checksums, and their
 * threads end the files. */
static ek_status begin_end(ek_checkpoint_write *self) {
  EK_TRY(meet(self, collect, &self->collected));
  self->ended = self->collected && (self->status != EK_OK || self->part_count == 1);
  if (!self->collected || self->status != EK_OK || !ek__region_leads(self)) return EK_OK;
  if (self->part_count > 1) ek__world_count_writing(self->world, 1);
  if (start(self, end_main) != EK_OK) (void)end_main(self);
  return EK_OK;
}

ek_status ek__checkpoint_go_on(ek_checkpoint_write *write) {
  if (write == NULL || write->several == 0 || ek__process_is_child(&write->process)) return EK_OK;
  if (write->ended || ek__world_writing(write->world)) return EK_OK;
  return write->collected ? meet(write, end_parts, &write->ended) : begin_end(write);
}

ek_status ek__checkpoint_wait(ek_checkpoint_write *write) {
  if (write == NULL || ek__process_is_child(&write->process)) return EK_OK;
  ek_status status = EK_OK;
  if (write->several > 0 && !write->collected) status = begin_end(write);
  if (status == EK_OK && write->several > 0 && !write->ended) {
    status = meet(write, end_parts, &write->ended);
  }
  join(write);
  drop_file(write);
  return status;
}

ek_status ek_checkpoint_end(ek_checkpoint_write *write) {
  ek_status status = EK_OK;
  if (write == NULL) return EK_OK;
  if (ek__process_is_child(&write->process)) {
    status =
        ek_error_set(EK_ERR_STATE,
                     "%s: the save was begun by process %ld; a child made by fork() cannot use it",
                     write->folder == NULL ? "a state" : write->folder, write->process.id);
    destroy(write);
    return status;
  }
  ek_world *world = write->world;
  const uint64_t began = ek__world_begin(world);
  status = ek__checkpoint_wait(write);
  if (status == EK_OK && write->status != EK_OK)
    status = ek_error_set(write->status, "%s", write->message);
  destroy(write);
  if (status == EK_OK) status = ek__world_agree(world, "at the end of a save", 0);
  return ek__world_end(world, began, status);
}

EK__OPTIONS_INIT(ek_checkpoint_options, EK_CHECKPOINT_OPTIONS_INIT)
