/*
 * weights.c - parameters and buffers in files, by names that a table turns.
 *
 * A list of what there is (the entries of state.h up to the optimizer's) is made with each entry's
 * name in the file and its place in one block of host memory. A load fills the block from the file
 * and then writes the model; a save fills it from the model and then writes the file. Matrices that
 * the file has transposed are turned in the block.
 */
#include <evenkeel/weights.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/safetensors.h>
#include <evenkeel/state.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "parallel/parallel_internal.h"
#include "weights_config.h"

static const char memory_of[] = "a model's weights";
enum { LONGEST_PREFIX = 600 };

struct weight {
  ek_state_info info;
  char name[2 * EK_STATE_NAME_SIZE]; /* in the file, with the prefix */
  bool transposed, bare;             /* bare: a file that is written has it without the prefix */
  size_t place, bytes; /* in the block */
};

struct weights {
  struct weight *list;
  size_t count, prefix; /* the length of the prefix of names in the file */
  bool foreign;         /* names are those of another program */
  char *block;
};

static void close_weights(struct weights *w) {
  ek__free(w->block);
  ek__free(w->list);
}

/* ---- names ---- */

/* Whether `name` is `pattern` with a number for its %d; *number points to the number, and *length
 * is its length, 0 without one. */
static bool matches(const char **number, size_t *length, const char *name, const char *pattern) {
  const char *hole = strstr(pattern, "%d");
  *length = 0;
  if (hole == NULL) return strcmp(name, pattern) == 0;
  const size_t before = (size_t)(hole - pattern);
  if (strncmp(name, pattern, before) != 0) return false;
  *number = name + before;
  *length = strspn(*number, "0123456789");
  return *length > 0 && strcmp(*number + *length, hole + 2) == 0;
}

/* As it is written, or the other form, which a load takes too. */
static const char *form_of(const struct weights *w, const struct weight *weight, bool written) {
  return weight->name + (weight->bare == written ? w->prefix : 0);
}

static void name_in_file(struct weight *weight, const ek_weights_options *o) {
  const char *prefix = o->prefix == NULL ? "" : o->prefix;
  for (size_t i = 0; i < o->name_count; i++) {
    const ek_weight_name *row = &o->names[i];
    const char *number = "", *hole = strstr(row->file, "%d");
    size_t length = 0;
    if (!matches(&number, &length, weight->info.name, row->model)) continue;
    const size_t before = hole == NULL ? strlen(row->file) : (size_t)(hole - row->file);
    (void)snprintf(weight->name, sizeof weight->name, "%s%.*s%.*s%s", prefix, (int)before,
                   row->file, (int)length, number, hole == NULL ? "" : hole + 2);
    weight->transposed = row->transposed && weight->info.like.rank == 2;
    weight->bare = row->bare;
    return;
  }
  (void)snprintf(weight->name, sizeof weight->name, "%s%s", prefix, weight->info.name);
}

/* ---- the list and the block ---- */

static ek_status fill_list(struct weights *w, const ek_data_parallel_model *model,
                           const ek_weights_options *o) {
  const size_t entries = ek_state_count(model);
  uint64_t total = 0;
  EK_TRY(ek__new(&w->list, entries, sizeof *w->list, memory_of));
  for (size_t i = 0; i < entries; i++) {
    struct weight *weight = &w->list[w->count];
    EK_TRY(ek_state_entry(&weight->info, model, i));
    if (weight->info.kind > EK_STATE_KIND_BUFFER) break;
    weight->place = (size_t)total;
    weight->bytes = ek_tensor_bytes(&weight->info.like);
    EK__FAIL_IF(__builtin_add_overflow(total, weight->bytes, &total) ||
                    !ek__round_up(&total, total, 16),
                EK_ERR_OVERFLOW, "the weights are too large for one block of host memory");
    name_in_file(weight, o);
    w->count++;
  }
  return ek__new(&w->block, 1, (size_t)total, memory_of);
}

static ek_status open_weights(struct weights *w, const ek_data_parallel_model *model,
                              const ek_weights_options *options) {
  ek_weights_options o = EK_WEIGHTS_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_weights_options"));
  EK__FAIL_IF(o.names == NULL && o.name_count > 0, EK_ERR_INVALID_ARGUMENT,
              "ek_weights_options: names is NULL");
  EK__FAIL_IF(ek_device_counts_only(ek_group_device(model->run.group, 0)), EK_ERR_UNSUPPORTED,
              "plan devices have no values, so there are no weights");
  EK_TRY(ek__model_check(model));
  w->prefix = o.prefix == NULL ? 0 : strlen(o.prefix);
  EK__FAIL_IF(w->prefix > LONGEST_PREFIX, EK_ERR_INVALID_ARGUMENT,
              "ek_weights_options: the prefix has %zu bytes, expected at most %d", w->prefix,
              LONGEST_PREFIX);
  w->foreign = o.name_count > 0;
  const ek_status status = fill_list(w, model, &o);
  if (status != EK_OK) close_weights(w);
  return status;
}

static ek_tensor host_of(const struct weights *w, const struct weight *weight) {
  ek_tensor host = weight->info.like;
  host.data = w->block + weight->place;
  return host;
}

/* As the file has it. */
static ek_tensor in_file(const struct weight *weight) {
  ek_tensor like = weight->info.like;
  if (weight->transposed) {
    like.shape[0] = weight->info.like.shape[1];
    like.shape[1] = weight->info.like.shape[0];
  }
  return like;
}

/* [rows, columns] becomes [columns, rows], through memory of the same size. */
static ek_status transpose(char *data, int64_t rows, int64_t columns, size_t size) {
  char *copy = NULL;
  const size_t bytes = (size_t)(rows * columns) * size;
  EK_TRY(ek__new_copy(&copy, data, bytes, memory_of));
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < columns; c++) {
      memcpy(data + (size_t)(c * rows + r) * size, copy + (size_t)(r * columns + c) * size, size);
    }
  }
  ek__free(copy);
  return EK_OK;
}

static ek_status turn(const struct weights *w, const struct weight *weight, const ek_tensor *from) {
  if (!weight->transposed) return EK_OK;
  return transpose(w->block + weight->place, from->shape[0], from->shape[1],
                   ek_type_size(from->type));
}

/* ---- reading ---- */

/* A buffer that counts is an integer in files of PyTorch, and a number of the model's type here. */
static ek_status read_count(ek_tensor *host, const ek_safetensors *file, const char *name) {
  int64_t count = 0;
  ek_tensor integer;
  EK_TRY(ek_tensor_host(&integer, &count, EK_I64, 0, NULL));
  EK_TRY(ek_safetensors_read(&integer, file, name));
  if (host->type == EK_F64) *(double *)host->data = (double)count;
  if (host->type == EK_F32) *(float *)host->data = (float)count;
  return EK_OK;
}

static ek_status read_weight(const struct weights *w, const struct weight *weight,
                             const ek_safetensors *file, const char *path) {
  ek_tensor host = in_file(weight);
  const char *name = form_of(w, weight, true);
  const ek_safetensors_entry *entry = ek_safetensors_find(file, name);
  if (entry == NULL) entry = ek_safetensors_find(file, name = form_of(w, weight, false));
  EK__FAIL_IF(entry == NULL, EK_ERR_MISMATCH, "%s has no %s, which the model calls %s", path,
              form_of(w, weight, true), weight->info.name);
  EK__FAIL_IF(!ek__same_sizes(host.rank, host.shape, entry->like.rank, entry->like.shape),
              EK_ERR_MISMATCH, "%s: %s has another shape than the model's %s", path, name,
              weight->info.name);
  host.data = w->block + weight->place;
  if (entry->like.type == EK_I64 && host.rank == 0) return read_count(&host, file, name);
  EK_TRY(ek_safetensors_read(&host, file, name));
  return turn(w, weight, &host);
}

/* Each process of a world reads the file. None writes a parameter before all have read it. */
static ek_status load(ek_data_parallel_model *model, const char *path,
                      const ek_weights_options *options) {
  struct weights w = {0};
  ek_safetensors *file = NULL;
  ek_world *world = ek__group_world(model->run.group);
  EK__NOT_NULL("ek_weights_load", path);
  EK__MODEL_ENTER(model, "ek_weights_load");
  EK_TRY(open_weights(&w, model, options));
  ek_status status = ek_safetensors_open(&file, path);
  if (status == EK_OK && w.foreign) {
    status = ek__config_check(&model->run.ranks[0].replica->layout, path);
  }
  for (size_t i = 0; i < w.count && status == EK_OK; i++) {
    status = read_weight(&w, &w.list[i], file, path);
  }
  if (status == EK_OK) status = ek__world_agree(world, "loading weights", model->step.taken);
  for (size_t i = 0; i < w.count && status == EK_OK; i++) {
    const ek_tensor host = host_of(&w, &w.list[i]);
    status = ek_state_write(model, w.list[i].info.name, &host);
  }
  ek_safetensors_free(file);
  close_weights(&w);
  return status;
}

ek_status ek_weights_load(ek_data_parallel_model *model, const char *path,
                          const ek_weights_options *options) {
  EK__NOT_NULL("ek_weights_load", model);
  ek_world *world = ek__group_world(model->run.group);
  const uint64_t began = ek__world_begin(world);
  return ek__world_end(world, began, load(model, path, options));
}

/* ---- writing ---- */

static ek_status write_all(const struct weights *w, const ek_data_parallel_model *model,
                           ek_safetensors_writer *writer) {
  for (size_t i = 0; i < w->count; i++) {
    const struct weight *weight = &w->list[i];
    ek_tensor host = host_of(w, weight);
    EK_TRY(ek_state_read(&host, model, weight->info.name));
    if (writer == NULL) continue;
    EK_TRY(turn(w, weight, &host));
    EK_TRY(ek_safetensors_write(writer, i, host.data, weight->bytes));
  }
  return writer == NULL ? EK_OK : ek_safetensors_finish(writer);
}

/* Process 0 of a world writes the file; all read the weights, of which each may have parts. */
static ek_status save(const ek_data_parallel_model *model, const char *path,
                      const ek_weights_options *options) {
  /* `format` is what the Python packages ask for. */
  static const ek_safetensors_pair pairs[] = {{"format", "pt"}};
  struct weights w = {0};
  ek_safetensors_writer *writer = NULL;
  ek_safetensors_entry *entries = NULL;
  EK__NOT_NULL("ek_weights_save", path);
  EK__MODEL_ENTER(model, "ek_weights_save");
  EK_TRY(open_weights(&w, model, options));
  ek_status status = ek__new(&entries, w.count, sizeof *entries, memory_of);
  for (size_t i = 0; i < w.count && status == EK_OK; i++) {
    entries[i] = (ek_safetensors_entry){form_of(&w, &w.list[i], true), in_file(&w.list[i])};
  }
  const bool writes = ek_world_process(ek__group_world(model->run.group)) == 0;
  if (status == EK_OK && writes) {
    status = ek_safetensors_create(&writer, path, entries, w.count, pairs, 1);
  }
  if (status == EK_OK) status = write_all(&w, model, writer);
  ek_safetensors_writer_free(writer);
  ek__free(entries);
  close_weights(&w);
  return status;
}

ek_status ek_weights_save(const ek_data_parallel_model *model, const char *path,
                          const ek_weights_options *options) {
  EK__NOT_NULL("ek_weights_save", model);
  ek_world *world = ek__group_world(model->run.group);
  const uint64_t began = ek__world_begin(world);
  ek_status status = save(model, path, options);
  if (status == EK_OK) status = ek__world_agree(world, "saving weights", model->step.taken);
  return ek__world_end(world, began, status);
}

EK__OPTIONS_INIT(ek_weights_options, EK_WEIGHTS_OPTIONS_INIT)
