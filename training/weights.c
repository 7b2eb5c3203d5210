/*
 * weights.c - parameters and buffers in files, by names that a table turns: the list of what there
 * is, and saves. weights_load.c has loads.
 *
 * A list of what there is (the entries of state.h up to the optimizer's) is made, with the tensors
 * of the file that each is made of, its sources: most often one, or several rows of the table,
 * which follow each other in dimension 0. The numbers go through EK__WEIGHT_PIECE bytes of host
 * memory, so that no second copy of the model is needed. A matrix that the file has transposed is
 * in host memory whole, and is turned in blocks of rows.
 */
#include <evenkeel/weights.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <evenkeel/safetensors.h>
#include <evenkeel/state.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "model_config.h"
#include "parallel/parallel_internal.h"
#include "weights_internal.h"

static const char memory_of[] = "a model's weights";
enum { LONGEST_PREFIX = 600 };

void ek__weights_close(struct ek__weights *w) {
  ek__free(w->whole);
  ek__free(w->piece);
  ek__free(w->sources);
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

const char *ek__weight_form(const struct ek__weights *w, const struct ek__weight_source *source,
                            bool written) {
  return source->name + (source->bare == written ? w->prefix : 0);
}

size_t ek__weight_count_sources(const char *name, const ek_weights_options *o) {
  const char *number = NULL;
  size_t length = 0, count = 0;
  for (size_t i = 0; i < o->name_count; i++) {
    count += matches(&number, &length, name, o->names[i].model);
  }
  return count == 0 ? 1 : count;
}

/* The number that a module of the model declares under this key. */
static ek_status find_share(int64_t *share, const struct ek__layout *layout, const char *key) {
  for (struct ek__fact_at at = {0}; ek__config_next_fact(&at, layout);) {
    const double number = at.fact->number;
    if (strcmp(at.fact->key, key) != 0 || at.fact->kind != EK_FACT_NUMBER) continue;
    EK__FAIL_IF(!(number >= 1 && number <= INT32_MAX), EK_ERR_INVALID_ARGUMENT,
                "a table of names divides rows by %s, which is %g, expected 1 or more", key,
                number);
    *share = (int64_t)number;
    return EK_OK;
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "a table of names divides rows by %s, but no module of the model declares it "
                      "among its facts",
                      key);
}

/* A prefix, and a pattern with a number for its %d. */
static void write_name(char *name, size_t size, const char *prefix, const char *pattern,
                       const char *number, size_t length) {
  const char *hole = strstr(pattern, "%d");
  const size_t before = hole == NULL ? strlen(pattern) : (size_t)(hole - pattern);
  (void)snprintf(name, size, "%s%.*s%.*s%s", prefix, (int)before, pattern, (int)length, number,
                 hole == NULL ? "" : hole + 2);
}

void ek__weight_model_name(char *name, size_t size, const char *tensor,
                           const ek_weights_options *o) {
  const char *number = "";
  size_t length = 0;
  for (size_t i = 0; i < o->name_count; i++) {
    if (!matches(&number, &length, tensor, o->names[i].file)) continue;
    write_name(name, size, "", o->names[i].model, number, length);
    return;
  }
  (void)snprintf(name, size, "%s", tensor);
}

void ek__weights_own_names(ek_weights_options *o, const ek_data_parallel_model *model) {
  const struct ek__layout *layout = &model->run.ranks[0].replica->layout;
  for (const struct ek__node *node = layout->nodes; node != NULL; node = node->next) {
    if (EK__TABLE_SLOT(ek_module_table(node->module), weight_names) == NULL) continue;
    const ek_weight_names *own = ek_module_table(node->module)->weight_names(node->module);
    o->names = own->rows;
    o->name_count = own->count;
    if (o->prefix == NULL) o->prefix = own->prefix;
    return;
  }
}

/* The sources of a weight, by the rows of the table that have its name. */
ek_status ek__weight_name_sources(struct ek__weight *weight, const struct ek__layout *layout,
                                  const ek_weights_options *o) {
  const char *prefix = o->prefix == NULL ? "" : o->prefix, *name = weight->info.name;
  size_t n = 0;
  for (size_t i = 0; i < o->name_count; i++) {
    const ek_weight_name *row = &o->names[i];
    const char *number = "";
    size_t length = 0;
    if (!matches(&number, &length, name, row->model)) continue;
    struct ek__weight_source *source = &weight->sources[n++];
    write_name(source->name, sizeof source->name, prefix, row->file, number, length);
    source->bare = row->bare;
    source->share = 1;
    if (row->share != NULL) EK_TRY(find_share(&source->share, layout, row->share));
    weight->transposed = row->transposed && weight->info.like.rank == 2;
    EK__FAIL_IF(weight->transposed && weight->count > 1, EK_ERR_INVALID_ARGUMENT,
                "a table of names makes %s of %zu tensors, of which one is transposed, expected "
                "rows",
                name, weight->count);
  }
  if (n > 0) return EK_OK;
  struct ek__weight_source *source = weight->sources;
  source->share = 1;
  (void)snprintf(source->name, sizeof source->name, "%s%s", prefix, name);
  return EK_OK;
}

/* The rows of dimension 0, divided in proportion to the shares. */
static ek_status divide(struct ek__weight *weight) {
  const ek_tensor *like = &weight->info.like;
  const int64_t all = ek_tensor_count(like), rows = like->rank == 0 ? 1 : like->shape[0];
  int64_t shares = 0;
  for (size_t i = 0; i < weight->count; i++) shares += weight->sources[i].share;
  EK__FAIL_IF(weight->count > 1 && (like->rank == 0 || rows % shares != 0), EK_ERR_MISMATCH,
              "%s has %" PRId64 " rows, which %zu tensors of a file cannot divide into %" PRId64
              " equal parts",
              weight->info.name, rows, weight->count, shares);
  for (size_t i = 0; i < weight->count; i++) {
    weight->sources[i].elements =
        weight->count == 1 ? all : all / shares * weight->sources[i].share;
  }
  return EK_OK;
}

/* ---- the list and its memory ---- */

static ek_status count_weights(struct ek__weights *w, size_t *sources,
                               const ek_data_parallel_model *model, const ek_weights_options *o) {
  const size_t entries = ek_state_count(model);
  EK_TRY(ek__new(&w->list, entries, sizeof *w->list, memory_of));
  for (size_t i = 0; i < entries; i++) {
    struct ek__weight *weight = &w->list[w->count];
    EK_TRY(ek_state_entry(&weight->info, model, i));
    if (weight->info.kind > EK_STATE_KIND_BUFFER) break;
    weight->count = ek__weight_count_sources(weight->info.name, o);
    *sources += weight->count;
    w->count++;
  }
  return EK_OK;
}

static ek_status fill_list(struct ek__weights *w, const ek_data_parallel_model *model,
                           const ek_weights_options *o) {
  size_t sources = 0, piece = EK__WEIGHT_PIECE, whole = 0;
  EK_TRY(count_weights(w, &sources, model, o));
  EK_TRY(ek__new(&w->sources, sources, sizeof *w->sources, memory_of));
  struct ek__weight_source *next = w->sources;
  for (size_t i = 0; i < w->count; i++) {
    struct ek__weight *weight = &w->list[i];
    const ek_tensor *like = &weight->info.like;
    weight->sources = next;
    next += weight->count;
    EK_TRY(ek__weight_name_sources(weight, &model->run.ranks[0].replica->layout, o));
    EK_TRY(divide(weight));
    if (!weight->transposed) continue;
    const size_t bytes = ek_tensor_bytes(like), size = ek_type_size(like->type);
    const int64_t longer = like->shape[0] > like->shape[1] ? like->shape[0] : like->shape[1];
    if (whole < bytes) whole = bytes;
    if (piece < (size_t)longer * size) piece = (size_t)longer * size;
  }
  EK_TRY(ek__new(&w->piece, 1, piece, memory_of));
  return whole == 0 ? EK_OK : ek__new(&w->whole, 1, whole, memory_of);
}

ek_status ek__weights_open(struct ek__weights *w, const ek_data_parallel_model *model,
                           const ek_weights_options *o) {
  EK__FAIL_IF(o->names == NULL && o->name_count > 0, EK_ERR_INVALID_ARGUMENT,
              "ek_weights_options: names is NULL");
  for (size_t i = 0; i < o->name_count; i++) {
    EK__FAIL_IF(o->names[i].file == NULL || o->names[i].model == NULL, EK_ERR_INVALID_ARGUMENT,
                "ek_weights_options: row %zu of names has NULL for a name", i);
  }
  EK__FAIL_IF(ek_device_counts_only(ek_group_device(model->run.group, 0)), EK_ERR_UNSUPPORTED,
              "plan devices have no values, so there are no weights");
  EK_TRY(ek__model_check(model));
  w->prefix = o->prefix == NULL ? 0 : strlen(o->prefix);
  EK__FAIL_IF(w->prefix > LONGEST_PREFIX, EK_ERR_INVALID_ARGUMENT,
              "ek_weights_options: the prefix has %zu bytes, expected at most %d", w->prefix,
              LONGEST_PREFIX);
  const ek_status status = fill_list(w, model, o);
  if (status != EK_OK) ek__weights_close(w);
  return status;
}

ek_tensor ek__weight_in_file(const struct ek__weight *weight,
                             const struct ek__weight_source *source) {
  ek_tensor like = weight->info.like;
  if (weight->transposed) {
    like.shape[0] = weight->info.like.shape[1];
    like.shape[1] = weight->info.like.shape[0];
  } else if (weight->count > 1) {
    like.shape[0] = source->elements / (ek_tensor_count(&like) / like.shape[0]);
  }
  return like;
}

/* ---- pieces ---- */

ek_tensor ek__weight_flat(const struct ek__weight *weight, char *data, int64_t count) {
  ek_tensor piece = weight->info.like;
  piece.rank = 1;
  piece.shape[0] = count;
  piece.data = data;
  return piece;
}

ek_status ek__weight_pieces(const struct ek__weights *w, const struct ek__weight *weight,
                            ek__weight_move move, void *context) {
  const int64_t most = EK__WEIGHT_PIECE / (int64_t)ek_type_size(weight->info.like.type);
  int64_t first = 0;
  for (size_t i = 0; i < weight->count; i++) {
    const struct ek__weight_source *source = &weight->sources[i];
    int64_t left = source->elements;
    do {
      ek_tensor piece = ek__weight_flat(weight, w->piece, left < most ? left : most);
      EK_TRY(move(context, weight, source, &piece, first));
      first += piece.shape[0];
      left -= piece.shape[0];
    } while (left > 0);
  }
  return EK_OK;
}

/* Rows `first` to first + n of the other matrix, which are columns of the one in w->whole, that has
 * `rows` rows and `columns` columns, into the piece. */
static void turn(const struct ek__weights *w, int64_t rows, int64_t columns, int64_t first,
                 int64_t n, size_t size) {
  for (int64_t c = 0; c < n; c++) {
    char *to = w->piece + (size_t)(c * rows) * size;
    const char *from = w->whole + (size_t)(first + c) * size;
    for (int64_t r = 0; r < rows; r++) {
      memcpy(to + (size_t)r * size, from + (size_t)(r * columns) * size, size);
    }
  }
}

ek_status ek__weight_turned_pieces(const struct ek__weights *w, const struct ek__weight *weight,
                                   int64_t rows, int64_t columns, ek__weight_move move,
                                   void *context) {
  const size_t size = ek_type_size(weight->info.like.type);
  int64_t most = rows == 0 ? columns : EK__WEIGHT_PIECE / ((int64_t)size * rows), first = 0;
  if (most == 0) most = 1;
  do {
    const int64_t n = columns - first < most ? columns - first : most;
    ek_tensor piece = ek__weight_flat(weight, w->piece, n * rows);
    turn(w, rows, columns, first, n, size);
    EK_TRY(move(context, weight, weight->sources, &piece, first * rows));
    first += n;
  } while (first < columns);
  return EK_OK;
}

/* ---- writing ---- */

struct save {
  const ek_data_parallel_model *model;
  const char *average;           /* of the weights */
  ek_safetensors_writer *writer; /* NULL: process 0 writes */
  const struct ek__weight_source *sources;
};

static ek_status write_piece(const struct save *save, const struct ek__weight_source *source,
                             const ek_tensor *piece) {
  if (save->writer == NULL) return EK_OK;
  return ek_safetensors_write(save->writer, (size_t)(source - save->sources), piece->data,
                              ek_tensor_bytes(piece));
}

/* Finds the weights that have an average: its entries are in the order of the parameters. */
static ek_status find_averages(struct ek__weights *w, const ek_data_parallel_model *model) {
  static const char state[] = "/average/";
  const size_t entries = ek_state_count(model);
  size_t next = 0, found = 0;
  EK__FAIL_IF(model->step.taken == 0, EK_ERR_STATE,
              "ek_weights_options.average: no step was taken, so there is no average");
  for (size_t i = w->count; i < entries; i++) {
    ek_state_info info;
    EK_TRY(ek_state_entry(&info, model, i));
    const char *at = strstr(info.name, state);
    if (info.kind != EK_STATE_KIND_OPTIMIZER || at == NULL) continue;
    const char *name = at + sizeof state - 1;
    while (next < w->count && strcmp(w->list[next].info.name, name) != 0) next++;
    if (next == w->count) break;
    w->list[next].averaged = true;
    (void)snprintf(w->average, sizeof w->average, "%.*s", (int)(name - info.name), info.name);
    found++;
  }
  EK__FAIL_IF(found == 0, EK_ERR_STATE,
              "ek_weights_options.average: the optimizer keeps no average, expected a rule of "
              "ek_averaged_create()");
  return EK_OK;
}

static ek_status read_weight(ek_tensor *host, const struct save *save,
                             const struct ek__weight *weight, int64_t first) {
  char name[2 * EK_STATE_NAME_SIZE];
  (void)snprintf(name, sizeof name, "%s%s", weight->averaged ? save->average : "",
                 weight->info.name);
  return ek_state_read_range(host, save->model, name, first);
}

static ek_status save_piece(void *context, const struct ek__weight *weight,
                            const struct ek__weight_source *source, ek_tensor *piece,
                            int64_t first) {
  const struct save *save = context;
  EK_TRY(read_weight(piece, save, weight, first));
  return write_piece(save, source, piece);
}

static ek_status save_turned(void *context, const struct ek__weight *weight,
                             const struct ek__weight_source *source, ek_tensor *piece,
                             int64_t first) {
  (void)weight;
  (void)first;
  return write_piece(context, source, piece);
}

static ek_status save_weights(const struct ek__weights *w, struct save *save) {
  for (size_t i = 0; i < w->count; i++) {
    const struct ek__weight *weight = &w->list[i];
    if (!weight->transposed) {
      EK_TRY(ek__weight_pieces(w, weight, save_piece, save));
      continue;
    }
    const int64_t *shape = weight->info.like.shape;
    ek_tensor whole = ek__weight_flat(weight, w->whole, ek_tensor_count(&weight->info.like));
    EK_TRY(read_weight(&whole, save, weight, 0));
    EK_TRY(ek__weight_turned_pieces(w, weight, shape[0], shape[1], save_turned, save));
  }
  return save->writer == NULL ? EK_OK : ek_safetensors_finish(save->writer);
}

static ek_status create_file(ek_safetensors_writer **writer, const struct ek__weights *w,
                             const char *path) {
  /* `format` is what the Python packages ask for. */
  static const ek_safetensors_pair pairs[] = {{"format", "pt"}};
  ek_safetensors_entry *entries = NULL;
  size_t count = 0;
  for (size_t i = 0; i < w->count; i++) count += w->list[i].count;
  EK_TRY(ek__new(&entries, count, sizeof *entries, memory_of));
  for (size_t i = 0, n = 0; i < w->count; i++) {
    const struct ek__weight *weight = &w->list[i];
    for (size_t j = 0; j < weight->count; j++, n++) {
      const struct ek__weight_source *source = &weight->sources[j];
      entries[n] = (ek_safetensors_entry){ek__weight_form(w, source, true),
                                          ek__weight_in_file(weight, source)};
    }
  }
  const ek_status status = ek_safetensors_create(writer, path, entries, count, pairs, 1);
  ek__free(entries);
  return status;
}

/* Process 0 of a world writes the file; all read the weights, of which each may have parts. */
static ek_status save(const ek_data_parallel_model *model, const char *path,
                      const ek_weights_options *options) {
  struct ek__weights w = {0};
  struct save context = {.model = model};
  ek_weights_options o = EK_WEIGHTS_OPTIONS_INIT;
  EK__NOT_NULL("ek_weights_save", path);
  EK__MODEL_ENTER(model, "ek_weights_save");
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_weights_options"));
  EK_TRY(ek__weights_open(&w, model, &o));
  context.sources = w.sources;
  context.average = w.average;
  ek_status status = o.average ? find_averages(&w, model) : EK_OK;
  if (status == EK_OK && ek_world_process(ek__group_world(model->run.group)) == 0) {
    status = create_file(&context.writer, &w, path);
  }
  if (status == EK_OK) status = save_weights(&w, &context);
  ek_safetensors_writer_free(context.writer);
  ek__weights_close(&w);
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
