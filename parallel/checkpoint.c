/*
 * checkpoint.c - writes the state of a model into a file: now, or from a thread of its own.
 *
 * A save is described first (entries, pairs, the file's path), so that all that can be wrong with
 * it is seen on the caller's thread. A save that is made now passes each entry in pieces from the
 * devices to the file. One in the background copies all of them into one block of host memory and
 * hands that to its thread; from then on it needs neither the model nor its devices.
 *
 * Whole pages of a file are whole pages of memory here, so that they are written past the page cache
 * (io/file.h): the block is an image of the file, and pieces end where a page does.
 *
 * The public functions of state.h and safetensors.h do the work; only the schedule is looked up in
 * the optimizer, and in the writer where entries lie.
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
#include "core/error.h"
#include "core/options.h"
#include "core/thread.h"
#include "io/file.h"
#include "io/writer.h"
#include "optimizer_internal.h"

enum { PIECE = 4 << 20, NUMBER_SIZE = 32, SCHEDULE_SIZE = 160 };

struct ek_checkpoint_write {
  char *folder;
  size_t keep, count;
  ek_state_info *infos; /* of the model's entries, and behind them of the program's extras */
  const ek_checkpoint_extra *extras; /* a loan, while the caller is here */
  size_t extra_count;
  ek_safetensors_entry *entries; /* their names are those of infos */
  ek_safetensors_writer *file;
  char *memory; /* what is copied lies here: a piece, or all entries */
  char *image;  /* where in it byte `first` of the file lies, a page of both */
  uint64_t first;
  pthread_t thread;
  ek_status status; /* the thread's, with its message */
  char message[EK__MESSAGE_SIZE];
};

static const char memory_of[] = "a state to save";

/* ---- describing ---- */

static ek_status describe_extra(ek_state_info *info, const ek_checkpoint_extra *extra) {
  const char *name = extra->name == NULL ? "" : extra->name;
  const int length = snprintf(info->name, sizeof info->name, EK__CHECKPOINT_EXTRA "%s", name);
  EK__FAIL_IF(name[0] == '\0' || length < 0 || (size_t)length >= sizeof info->name,
              EK_ERR_INVALID_ARGUMENT, "a checkpoint's extra has no name, or a longer one than %d",
              EK_STATE_NAME_SIZE);
  EK__FAIL_IF(extra->value.device != NULL ||
                  (extra->value.data == NULL && ek_tensor_count(&extra->value) > 0),
              EK_ERR_INVALID_ARGUMENT, "a checkpoint's extra, %s, is not in host memory", name);
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

/* Elements of an entry into host memory. */
static ek_status read_part(ek_tensor *host, const ek_checkpoint_write *self,
                           const ek_data_parallel_model *model, size_t index, int64_t first) {
  const size_t own = self->count - self->extra_count;
  if (index < own) return ek_state_read_part(host, model, self->infos[index].name, first);
  const ek_tensor *value = &self->extras[index - own].value;
  const size_t size = ek_type_size(value->type), bytes = ek_tensor_bytes(host);
  if (bytes > 0) memcpy(host->data, (const char *)value->data + (size_t)first * size, bytes);
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
  if (model->optimizer != NULL) {
    const ek_schedule *s = &model->optimizer->schedule;
    (void)snprintf(schedule, sizeof schedule, "%d %a %a %lld %lld", (int)s->kind, s->peak, s->floor,
                   (long long)s->warmup, (long long)s->total);
    pairs[count++] = (ek_safetensors_pair){EK__CHECKPOINT_SCHEDULE_KEY, schedule};
  }
  EK_TRY(ek__checkpoint_path(path, self->folder, model->step));
  return ek_safetensors_create(&self->file, path, self->entries, self->count, pairs, count);
}

static void destroy(ek_checkpoint_write *self) {
  if (self == NULL) return;
  ek_safetensors_writer_free(self->file);
  ek__free(self->memory);
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
  EK__FAIL_IF(ek_device_counts_only(ek_group_device(model->group, 0)), EK_ERR_UNSUPPORTED,
              "devices that only count have no state to save");
  EK__FAIL_IF(o.extras == NULL && o.extra_count > 0, EK_ERR_INVALID_ARGUMENT,
              "ek_checkpoint_options.extras is NULL");
  self->keep = o.keep;
  self->extras = o.extras;
  self->extra_count = o.extra_count;
  EK_TRY(ek__new_copy(&self->folder, folder, strlen(folder) + 1, memory_of));
  EK_TRY(list_entries(self, model));
  EK_TRY(ek__checkpoint_make_folder(folder));
  return open_file(self, model, o.position);
}

static ek_status create(ek_checkpoint_write **write, const ek_data_parallel_model *model,
                        const char *folder, const ek_checkpoint_options *options) {
  ek_checkpoint_write *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  const ek_status status = describe(self, model, folder, options);
  if (status == EK_OK) {
    *write = self;
  } else {
    destroy(self);
  }
  return status;
}

/* ---- now ---- */

static ek_status take_memory(ek_checkpoint_write *self, uint64_t bytes) {
  EK__FAIL_IF(bytes > SIZE_MAX - EK__FILE_PAGE, EK_ERR_OVERFLOW,
              "the state is too large for one block of host memory");
  EK_TRY(ek__new(&self->memory, 1, (size_t)bytes + EK__FILE_PAGE, memory_of));
  self->image = self->memory + (-(uintptr_t)self->memory & (EK__FILE_PAGE - 1));
  return EK_OK;
}

/* Of `left` bytes that begin at this place, those up to the end of a page. */
static size_t piece_at(uint64_t place, size_t left) {
  const size_t room = PIECE - (size_t)(place % EK__FILE_PAGE);
  return left < room ? left : room;
}

static ek_status write_entry(ek_checkpoint_write *self, const ek_data_parallel_model *model,
                             size_t index) {
  const ek_state_info *info = &self->infos[index];
  const size_t size = ek_type_size(info->like.type), bytes = ek_tensor_bytes(&info->like);
  uint64_t place = ek__safetensors_place(self->file, index);
  for (size_t done = 0, part; done < bytes; done += part, place += part) {
    part = piece_at(place, bytes - done);
    ek_tensor host = {.data = self->image + place % EK__FILE_PAGE,
                      .type = info->like.type,
                      .rank = 1,
                      .shape = {(int64_t)(part / size)}};
    EK_TRY(read_part(&host, self, model, index, (int64_t)(done / size)));
    EK_TRY(ek_safetensors_write(self->file, index, host.data, part));
  }
  return EK_OK;
}

static ek_status finish(ek_checkpoint_write *self) {
  EK_TRY(ek_safetensors_finish(self->file));
  ek__checkpoint_prune(self->folder, self->keep);
  return EK_OK;
}

ek_status ek_checkpoint_save(const ek_data_parallel_model *model, const char *folder,
                             const ek_checkpoint_options *options) {
  ek_checkpoint_write *self = NULL;
  EK__NOT_NULL("ek_checkpoint_save", model, folder);
  EK__MODEL_ENTER(model, "ek_checkpoint_save");
  EK_TRY(create(&self, model, folder, options));
  ek_status status = take_memory(self, PIECE);
  for (size_t i = 0; i < self->count && status == EK_OK; i++) {
    status = write_entry(self, model, i);
  }
  if (status == EK_OK) status = finish(self);
  destroy(self);
  return status;
}

/* ---- in the background ---- */

static char *image_of(const ek_checkpoint_write *self, size_t index) {
  return self->image + (ek__safetensors_place(self->file, index) - self->first);
}

static ek_status copy_all(ek_checkpoint_write *self, const ek_data_parallel_model *model) {
  uint64_t first = UINT64_MAX, end = 0;
  for (size_t i = 0; i < self->count; i++) {
    const uint64_t place = ek__safetensors_place(self->file, i);
    const uint64_t last = place + ek_tensor_bytes(&self->infos[i].like);
    if (place < first) first = place;
    if (last > end) end = last;
  }
  self->first = first - first % EK__FILE_PAGE;
  EK_TRY(take_memory(self, end - self->first));
  for (size_t i = 0; i < self->count; i++) {
    ek_tensor host = self->infos[i].like;
    host.data = image_of(self, i);
    host.shape[0] = ek_tensor_count(&host);
    host.rank = 1;
    EK_TRY(read_part(&host, self, model, i, 0));
  }
  return EK_OK;
}

static ek_status write_image(ek_checkpoint_write *self) {
  for (size_t i = 0; i < self->count; i++) {
    const size_t bytes = ek_tensor_bytes(&self->infos[i].like);
    uint64_t place = ek__safetensors_place(self->file, i);
    for (size_t done = 0, part; done < bytes; done += part, place += part) {
      part = piece_at(place, bytes - done);
      EK_TRY(ek_safetensors_write(self->file, i, image_of(self, i) + done, part));
    }
  }
  return finish(self);
}

static void *write_main(void *arg) {
  ek_checkpoint_write *self = arg;
  self->status = write_image(self);
  (void)snprintf(self->message, sizeof self->message, "%s", ek_error_message());
  return NULL;
}

ek_status ek_checkpoint_begin(ek_checkpoint_write **write, const ek_data_parallel_model *model,
                              const char *folder, const ek_checkpoint_options *options) {
  ek_checkpoint_write *self = NULL;
  EK__NOT_NULL("ek_checkpoint_begin", write, model, folder);
  EK__MODEL_ENTER(model, "ek_checkpoint_begin");
  EK_TRY(create(&self, model, folder, options));
  ek_status status = copy_all(self, model);
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

ek_status ek_checkpoint_end(ek_checkpoint_write *write) {
  ek_status status = EK_OK;
  if (write == NULL) return EK_OK;
  (void)pthread_join(write->thread, NULL);
  if (write->status != EK_OK) status = ek_error_set(write->status, "%s", write->message);
  destroy(write);
  return status;
}
