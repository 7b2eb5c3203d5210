/*
 * checkpoint.c - writes the state of a model into a file: now, or from a thread of its own.
 *
 * A save is described first (entries, pairs, the file's path), so errors in it are found on the
 * caller's thread. Then the file is filled piece by piece, regardless of the borders of entries,
 * and each piece is summed while it is in the processor's cache. An immediate save has a few
 * pieces, which threads write while the next ones are filled (io/write_behind.h). A save in the
 * background fills one block of host memory with the whole file and hands that to its thread; from
 * then on it needs neither the model nor its devices, and little processor time.
 *
 * Pieces and the block are images of the file: whole pages of one are whole pages of the other, so
 * that they are written past the page cache (io/file.h).
 *
 * Process 0 of a world writes the file; the others fill the same pieces in the same order, and what
 * they have of each goes to process 0. So a save needs no file system that the processes share, and
 * is whole or absent whichever of them is killed.
 *
 * The public functions of state.h and safetensors.h do the work; only the schedule is looked up in
 * the optimizer, and in the writer where entries are.
 */
#include <evenkeel/checkpoint.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <evenkeel/safetensors.h>
#include <evenkeel/state.h>
#include <evenkeel/version.h>

#include "checkpoint_internal.h"
#include "core/alloc.h"
#include "core/c_locale.h"
#include "core/error.h"
#include "core/options.h"
#include "core/process.h"
#include "core/thread.h"
#include "core/utf8.h"
#include "io/file.h"
#include "io/write_behind.h"
#include "io/writer.h"
#include "parallel/optimizer_internal.h"

/* A piece is an eighth of the file, within these bounds: small files, too, are written by
 * several. */
enum { LEAST_PIECE = 256 << 10, MOST_PIECE = 8 << 20 };

enum { NUMBER_SIZE = 32, SCHEDULE_SIZE = 256 };

struct ek_checkpoint_write {
  ek_world *world; /* NULL: there is one process */
  char *folder;
  int64_t step;
  size_t keep, count;
  ek_state_info *infos; /* of the model's entries, and after them of the program's extras */
  const ek_checkpoint_extra *extras; /* a loan, while the caller is here */
  size_t extra_count;
  ek_safetensors_entry *entries; /* their names are those of infos */
  ek_safetensors_writer *file;
  size_t *order;             /* entries as they are in the file */
  size_t next;               /* of them, the first that is not filled to its end */
  uint64_t page, begin, end; /* of the file: entries are from `begin` on, which is in this page */
  size_t piece;
  char *memory;               /* in the background: for all from `page` on, */
  char *image;                /* it begins here, at a page */
  struct ek__process process; /* which has the thread */
  pthread_t thread;
  bool joined;
  ek_status status; /* the thread's, with its message */
  char message[EK__MESSAGE_SIZE];
};

static const char memory_of[] = "a state to save";

/* ---- several processes ---- */

/* The part of an entry that process 0 wants next; count < 0: no more. */
struct wanted {
  int64_t index, first, count;
};

static ek_world *world_of(const ek_data_parallel_model *model) {
  return ek__group_world(model->run.group);
}

static bool writes(const ek_data_parallel_model *model) {
  return ek_world_process(world_of(model)) == 0;
}

/* Process 0 has filled everything. */
static ek_status end_filling(const ek_data_parallel_model *model) {
  struct wanted end = {.count = -1};
  return ek__world_share(world_of(model), &end, sizeof end);
}

/* The other processes give process 0 what it asks for; state.c checks that. */
static ek_status help(const ek_data_parallel_model *model) {
  char *scratch = NULL;
  size_t room = 0;
  ek_status status = ek__model_check(model);
  while (status == EK_OK) {
    struct wanted wanted;
    ek_state_info info;
    EK_TRY_GOTO(status, ek__world_share(world_of(model), &wanted, sizeof wanted), cleanup);
    if (wanted.count < 0) break;
    EK_TRY_GOTO(status, ek_state_entry(&info, model, (size_t)wanted.index), cleanup);
    ek_tensor host = {.type = info.like.type, .rank = 1, .shape = {wanted.count}};
    const size_t bytes = ek_tensor_bytes(&host);
    EK_TRY_GOTO(status, ek__grow(&scratch, &room, bytes, 1, memory_of), cleanup);
    host.data = scratch;
    status = ek__state_read_part(&host, model, info.name, wanted.first, false);
  }
cleanup:
  ek__free(scratch);
  return status;
}

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

static ek_status list_entries(ek_checkpoint_write *self, const ek_data_parallel_model *model) {
  const size_t own = ek_state_count(model);
  EK__FAIL_IF(self->extra_count > SIZE_MAX - own, EK_ERR_OVERFLOW, "too many extras");
  self->count = own + self->extra_count;
  EK_TRY(ek__new(&self->infos, self->count, sizeof *self->infos, memory_of));
  EK_TRY(ek__new(&self->entries, self->count, sizeof *self->entries, memory_of));
  for (size_t i = 0; i < self->count; i++) {
    EK_TRY(i < own ? ek_state_entry(&self->infos[i], model, i)
                   : describe_extra(&self->infos[i], &self->extras[i - own]));
    self->entries[i] = (ek_safetensors_entry){self->infos[i].name, self->infos[i].like};
  }
  return EK_OK;
}

static ek_status open_file(ek_checkpoint_write *self, const ek_data_parallel_model *model,
                           int64_t position) {
  char path[EK_CHECKPOINT_PATH_SIZE], number[NUMBER_SIZE], schedule[SCHEDULE_SIZE];
  ek_safetensors_pair pairs[4] = {{EK__CHECKPOINT_FORMAT_KEY, EK__CHECKPOINT_FORMAT},
                                  {EK__CHECKPOINT_VERSION_KEY, ek_version_string()},
                                  {EK__CHECKPOINT_POSITION_KEY, number}};
  size_t count = 3;
  (void)snprintf(number, sizeof number, "%lld", (long long)position);
  if (model->update != NULL && model->update->schedule.kind != EK_SCHEDULE_FUNCTION) {
    const ek_schedule *s = &model->update->schedule;
    const locale_t before = ek__c_locale_begin();
    (void)snprintf(schedule, sizeof schedule, "%d %a %a %lld %lld %lld %a %a", (int)s->kind, s->peak,
                   s->floor, (long long)s->warmup, (long long)s->total, (long long)s->decay,
                   s->first, s->factor);
    ek__c_locale_end(before);
    pairs[count++] = (ek_safetensors_pair){EK__CHECKPOINT_SCHEDULE_KEY, schedule};
  }
  EK_TRY(ek__checkpoint_path(path, self->folder, model->step.taken));
  return ek_safetensors_create(&self->file, path, self->entries, self->count, pairs, count);
}

/* Lays out the file. */
static ek_status lay_out(ek_checkpoint_write *self) {
  EK_TRY(ek__new(&self->order, self->count, sizeof *self->order, memory_of));
  self->begin = UINT64_MAX;
  for (size_t i = 0; i < self->count; i++) {
    const uint64_t place = ek__safetensors_place(self->file, i);
    const uint64_t end = place + ek_tensor_bytes(&self->infos[i].like);
    self->order[ek__safetensors_order(self->file, i)] = i;
    if (place < self->begin) self->begin = place;
    if (end > self->end) self->end = end;
  }
  self->page = self->begin - self->begin % EK__FILE_PAGE;
  const uint64_t eighth = (self->end - self->page) / 8;
  self->piece = eighth < LEAST_PIECE  ? LEAST_PIECE
                : eighth > MOST_PIECE ? MOST_PIECE
                                      : (size_t)(eighth - eighth % EK__FILE_PAGE);
  return EK_OK;
}

/* Makes the objects that only the writing needs. */
static void drop_file(ek_checkpoint_write *self) {
  ek_safetensors_writer_free(self->file);
  ek__free(self->memory);
  self->file = NULL;
  self->memory = NULL;
}

static void destroy(ek_checkpoint_write *self) {
  if (self == NULL) return;
  drop_file(self);
  ek__free(self->order);
  ek__free(self->entries);
  ek__free(self->infos);
  ek__free(self->folder);
  ek__free(self);
}

static ek_status describe(ek_checkpoint_write *self, const ek_data_parallel_model *model,
                          const char *folder, const ek_checkpoint_options *options) {
  ek_checkpoint_options o = EK_CHECKPOINT_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_checkpoint_options"));
  EK_TRY(ek__model_check(model));
  EK__FAIL_IF(ek_device_counts_only(ek_group_device(model->run.group, 0)), EK_ERR_UNSUPPORTED,
              "plan devices have no values, so there is no state to save");
  EK__FAIL_IF(o.extras == NULL && o.extra_count > 0, EK_ERR_INVALID_ARGUMENT,
              "ek_checkpoint_options.extras is NULL");
  /* A step that every load would refuse. */
  EK_TRY(ek__state_check_number(EK_STATE_KIND_STEP, &model->step.taken));
  self->step = model->step.taken;
  self->keep = o.keep;
  self->extras = o.extras;
  self->extra_count = o.extra_count;
  EK_TRY(ek__new_copy(&self->folder, folder, strlen(folder) + 1, memory_of));
  EK_TRY(list_entries(self, model));
  EK_TRY(ek__checkpoint_make_folder(folder));
  EK_TRY(open_file(self, model, o.position));
  return lay_out(self);
}

static ek_status create(ek_checkpoint_write **write, const ek_data_parallel_model *model,
                        const char *folder, const ek_checkpoint_options *options) {
  ek_checkpoint_write *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  self->world = world_of(model);
  const ek_status status = describe(self, model, folder, options);
  if (status == EK_OK) {
    *write = self;
  } else {
    destroy(self);
  }
  return status;
}

/* ---- filling ---- */

/* Elements of an entry into host memory. */
static ek_status read_part(ek_tensor *host, const ek_checkpoint_write *self,
                           const ek_data_parallel_model *model, size_t index, int64_t first) {
  const size_t own = self->count - self->extra_count;
  if (index < own) {
    const ek_state_info *info = &self->infos[index];
    if (ek__state_is_away(model, info)) {
      struct wanted wanted = {(int64_t)index, first, ek_tensor_count(host)};
      EK_TRY(ek__world_share(world_of(model), &wanted, sizeof wanted));
    }
    return ek__state_read_part(host, model, info->name, first, false);
  }
  const ek_tensor *value = &self->extras[index - own].value;
  const size_t size = ek_type_size(value->type), bytes = ek_tensor_bytes(host);
  if (bytes > 0) memcpy(host->data, (const char *)value->data + (size_t)first * size, bytes);
  return EK_OK;
}

/* Copies those bytes of the entry that are in the file from `from` to `to`, if any, to their place
 * in an image that begins with byte `page`. */
static ek_status fill_entry(ek_checkpoint_write *self, const ek_data_parallel_model *model,
                            size_t index, char *image, uint64_t page, uint64_t from, uint64_t to) {
  const ek_tensor *like = &self->infos[index].like;
  const size_t size = ek_type_size(like->type);
  const uint64_t place = ek__safetensors_place(self->file, index);
  const uint64_t end = place + ek_tensor_bytes(like);
  const uint64_t first = place > from ? place : from, last = end < to ? end : to;
  if (first >= last) return EK_OK;
  const int64_t count = (int64_t)((last - first) / size);
  ek_tensor host = {
      .data = image + (first - page), .type = like->type, .rank = 1, .shape = {count}};
  EK_TRY(read_part(&host, self, model, index, (int64_t)((first - place) / size)));
  return ek__safetensors_sum(self->file, index, host.data, (size_t)(last - first));
}

/* The next piece of the file, which begins at `from`, into an image that begins with its page.
 * Elements are not cut: they are at multiples of their size, as pages do. */
static ek_status fill(ek_checkpoint_write *self, const ek_data_parallel_model *model, char *image,
                      uint64_t page, uint64_t from, uint64_t to) {
  for (; self->next < self->count; self->next++) {
    const size_t index = self->order[self->next];
    const uint64_t place = ek__safetensors_place(self->file, index);
    EK_TRY(fill_entry(self, model, index, image, page, from, to));
    if (place + ek_tensor_bytes(&self->infos[index].like) > to) break;
  }
  return EK_OK;
}

/* Bytes from .. to - 1 of the file, in an image that begins with `page`. */
struct piece {
  uint64_t page, from, to;
};

/* The first piece if *piece is all 0, else the one after it; false: no more pieces. */
static bool next_piece(struct piece *piece, const ek_checkpoint_write *self) {
  const bool first = piece->to == 0;
  const uint64_t page = first ? self->page : piece->page + self->piece;
  const uint64_t from = first ? self->begin : piece->to;
  if (from >= self->end) return false;
  const uint64_t to = self->end - page < self->piece ? self->end : page + self->piece;
  *piece = (struct piece){page, from, to};
  return true;
}

/* ---- now ---- */

/* Before an older state is removed, the new one is read again: from the disk, because most of it
 * was written past the page cache. */
static ek_status finish(ek_checkpoint_write *self) {
  const bool replaces = ek__checkpoint_replaces(self->folder, self->step, self->keep);
  EK_TRY(ek__safetensors_finish(self->file, replaces));
  ek__checkpoint_prune(self->folder, self->step, self->keep);
  return EK_OK;
}

static ek_status write_entries(ek_checkpoint_write *self, const ek_data_parallel_model *model) {
  struct ek__write_behind *behind = NULL;
  struct piece it = {0};
  ek_status status = EK_OK;
  EK_TRY(ek__write_behind_begin(&behind, self->file, self->piece));
  while (status == EK_OK && next_piece(&it, self)) {
    char *image = ek__write_behind_take(behind);
    if (image == NULL) break; /* a write has failed */
    status = fill(self, model, image, it.page, it.from, it.to);
    if (status == EK_OK) {
      ek__write_behind_put(behind, image + (it.from - it.page), (size_t)(it.to - it.from), it.from);
    }
  }
  return ek__write_behind_end(behind, status);
}

static ek_status save(const ek_data_parallel_model *model, const char *folder,
                      const ek_checkpoint_options *options) {
  ek_checkpoint_write *self = NULL;
  EK__NOT_NULL("ek_checkpoint_save", folder);
  EK__MODEL_ENTER(model, "ek_checkpoint_save");
  if (!writes(model)) return help(model);
  EK_TRY(create(&self, model, folder, options));
  ek_status status = write_entries(self, model);
  if (status == EK_OK) status = end_filling(model);
  if (status == EK_OK) status = finish(self);
  destroy(self);
  return status;
}

ek_status ek_checkpoint_save(const ek_data_parallel_model *model, const char *folder,
                             const ek_checkpoint_options *options) {
  EK__NOT_NULL("ek_checkpoint_save", model);
  ek_world *world = world_of(model);
  const uint64_t began = ek__world_begin(world);
  ek_status status = save(model, folder, options);
  if (status == EK_OK) status = ek__world_agree(world, "saving a state", model->step.taken);
  return ek__world_end(world, began, status);
}

/* ---- in the background ---- */

static ek_status copy_all(ek_checkpoint_write *self, const ek_data_parallel_model *model) {
  EK_TRY(ek__file_pages(&self->memory, &self->image, self->end - self->page, memory_of));
  struct piece it = {0};
  while (next_piece(&it, self)) EK_TRY(fill(self, model, self->image, self->page, it.from, it.to));
  return EK_OK;
}

static ek_status write_image(ek_checkpoint_write *self) {
  struct piece it = {0};
  while (next_piece(&it, self)) {
    EK_TRY(ek__safetensors_put(self->file, self->image + (it.from - self->page),
                               (size_t)(it.to - it.from), it.from));
  }
  return finish(self);
}

static void *write_main(void *arg) {
  ek_checkpoint_write *self = arg;
  self->status = write_image(self);
  (void)snprintf(self->message, sizeof self->message, "%s", ek_error_message());
  return NULL;
}

/* A process without a file waits for this in ek_checkpoint_end(). */
static ek_status create_empty(ek_checkpoint_write **write, const ek_data_parallel_model *model) {
  ek_checkpoint_write *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  self->world = world_of(model);
  self->process = ek__process_this();
  self->joined = true;
  *write = self;
  return EK_OK;
}

static ek_status begin(ek_checkpoint_write **write, const ek_data_parallel_model *model,
                       const char *folder, const ek_checkpoint_options *options) {
  ek_checkpoint_write *self = NULL;
  EK__NOT_NULL("ek_checkpoint_begin", write, folder);
  EK__MODEL_ENTER(model, "ek_checkpoint_begin");
  if (!writes(model)) {
    EK_TRY(help(model));
    return create_empty(write, model);
  }
  EK_TRY(create(&self, model, folder, options));
  ek_status status = copy_all(self, model);
  if (status == EK_OK) status = end_filling(model);
  self->process = ek__process_this();
  if (status == EK_OK) {
    status = ek__thread_start(&self->thread, EK__WORKER_STACK, write_main, self);
  }
  if (status == EK_OK) {
    *write = self;
  } else {
    destroy(self);
  }
  return status;
}

ek_status ek_checkpoint_begin(ek_checkpoint_write **write, const ek_data_parallel_model *model,
                              const char *folder, const ek_checkpoint_options *options) {
  ek_checkpoint_write *made = NULL;
  EK__NOT_NULL("ek_checkpoint_begin", write, model);
  ek_world *world = world_of(model);
  const uint64_t began = ek__world_begin(world);
  ek_status status = begin(&made, model, folder, options);
  if (status == EK_OK) status = ek__world_agree(world, "saving a state", model->step.taken);
  status = ek__world_end(world, began, status);
  if (status == EK_OK) {
    *write = made;
  } else if (made != NULL) {
    char before[EK__MESSAGE_SIZE];
    ek__error_keep(before);
    ek__checkpoint_wait(made);
    destroy(made);
    status = ek_error_set(status, "%s", before);
  }
  return status;
}

void ek__checkpoint_wait(ek_checkpoint_write *write) {
  if (write == NULL || write->joined || ek__process_is_child(&write->process)) return;
  (void)pthread_join(write->thread, NULL);
  write->joined = true;
  drop_file(write);
}

ek_status ek_checkpoint_end(ek_checkpoint_write *write) {
  ek_status status = EK_OK;
  if (write == NULL) return EK_OK;
  ek__checkpoint_wait(write);
  if (!write->joined) {
    status =
        ek_error_set(EK_ERR_STATE,
                     "%s: the save was begun by process %ld; a child made by fork() cannot use it",
                     write->folder, write->process.id);
  } else if (write->status != EK_OK) {
    status = ek_error_set(write->status, "%s", write->message);
  }
  ek_world *world = write->world;
  destroy(write);
  const uint64_t began = ek__world_begin(world);
  if (status == EK_OK) status = ek__world_agree(world, "at the end of a save", 0);
  return ek__world_end(world, began, status);
}

EK__OPTIONS_INIT(ek_checkpoint_options, EK_CHECKPOINT_OPTIONS_INIT)
