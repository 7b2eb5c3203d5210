/*
 * weights_load.c - reads the weights of a model from files (weights.c has the list of them).
 *
 * All sources are compared with the files before anything is written. Some files have all that the
 * model wants and are still those of another model, which computes something else: of one that
 * ties nothing, with a tensor under the name of a tied parameter, whose numbers are compared; and
 * of a deeper one, with more blocks. They are refused.
 */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "model_config.h"
#include "parallel/parallel_internal.h"
#include "weight_files.h"
#include "weights_internal.h"

/* ---- comparing ---- */

/* Whether the numbers can become the model's; a buffer that counts is an integer in files of
 * PyTorch. */
static bool fits_type(const ek_tensor *like, const ek_tensor *host) {
  if (like->type == EK_I64) return host->rank == 0;
  return like->type == EK_F16 || like->type == EK_BF16 || like->type == EK_F32 ||
         like->type == EK_F64;
}

/* The tensor of a source in the files; NULL if they have none. */
static ek_status look_up(const ek_safetensors_entry **entry, struct ek__weight_source *source,
                         const struct ek__weights *w, const struct ek__weight_files *files) {
  source->found = ek__weight_form(w, source, true);
  EK_TRY(ek__weight_files_find(entry, &source->file, files, source->found));
  if (*entry != NULL) return EK_OK;
  source->found = ek__weight_form(w, source, false);
  return ek__weight_files_find(entry, &source->file, files, source->found);
}

static ek_status check_source(const struct ek__weight *weight,
                              const struct ek__weight_source *source,
                              const ek_safetensors_entry *entry, const char *path) {
  const ek_tensor host = ek__weight_in_file(weight, source);
  EK__FAIL_IF(!ek__same_sizes(host.rank, host.shape, entry->like.rank, entry->like.shape),
              EK_ERR_MISMATCH, "%s: %s has another shape than the model's %s", path, source->found,
              weight->info.name);
  EK__FAIL_IF(!fits_type(&entry->like, &host), EK_ERR_TYPE,
              "%s: %s has %s numbers, expected f16, bf16, f32 or f64", path, source->found,
              entry->like.type == 0 ? "unknown" : ek_type_name(entry->like.type));
  return EK_OK;
}

static ek_status find_source(const struct ek__weights *w, const struct ek__weight *weight,
                             struct ek__weight_source *source,
                             const struct ek__weight_files *files) {
  const ek_safetensors_entry *entry = NULL;
  EK_TRY(look_up(&entry, source, w, files));
  EK__FAIL_IF(entry == NULL, EK_ERR_MISMATCH, "%s has no %s, which the model calls %s", files->path,
              ek__weight_form(w, source, true), weight->info.name);
  return check_source(weight, source, entry, files->path);
}

/* ---- tied parameters ---- */

/* Of one source each, in the model's type. */
static ek_status compare_numbers(const struct ek__weights *w, const struct ek__weight *tied,
                                 const struct ek__weight_source *source, const char *path) {
  const struct ek__weight_source *own = tied->sources;
  const size_t half = EK__WEIGHT_PIECE / 2, size = ek_type_size(tied->info.like.type);
  const int64_t most = (int64_t)(half / size);
  for (int64_t first = 0, count; first < source->elements; first += count) {
    count = source->elements - first < most ? source->elements - first : most;
    ek_tensor a = ek__weight_flat(tied, w->piece, count);
    ek_tensor b = ek__weight_flat(tied, w->piece + half, count);
    EK_TRY(ek_safetensors_read_part(&a, own->file, own->found, first));
    EK_TRY(ek_safetensors_read_part(&b, source->file, source->found, first));
    EK__FAIL_IF(memcmp(a.data, b.data, (size_t)count * size) != 0, EK_ERR_MISMATCH,
                "%s: %s and %s differ, but the model has one parameter for both, %s", path,
                own->found, source->found, tied->info.name);
  }
  return EK_OK;
}

/* `name` stands for the weight, which has another name of its own. Those that are made of several
 * tensors, or turned in one of the two, are not compared. */
static ek_status check_tied(const struct ek__weights *w, const struct ek__weight *weight,
                            const char *name, const ek_data_parallel_model *model,
                            const struct ek__weight_files *files, const ek_weights_options *o) {
  const ek_safetensors_entry *entry = NULL;
  struct ek__weight_source own = {.elements = weight->sources->elements};
  struct ek__weight tied = *weight;
  tied.sources = &own;
  (void)snprintf(tied.info.name, sizeof tied.info.name, "%s", name);
  if (weight->count > 1 || ek__weight_count_sources(name, o) > 1) return EK_OK;
  EK_TRY(ek__weight_name_sources(&tied, &model->run.ranks[0].replica->layout, o));
  EK_TRY(look_up(&entry, &own, w, files));
  if (entry == NULL || tied.transposed != weight->transposed) return EK_OK;
  EK_TRY(check_source(&tied, &own, entry, files->path));
  return compare_numbers(w, &tied, weight->sources, files->path);
}

/* Names of a layout that are not those of its parameters are tied to these. */
static ek_status check_ties(const struct ek__weights *w, const ek_data_parallel_model *model,
                            const struct ek__weight_files *files, const ek_weights_options *o) {
  const struct ek__layout *layout = &model->run.ranks[0].replica->layout;
  for (size_t i = 0; i < layout->names.capacity; i++) {
    const struct ek__name *name = &layout->names.places[i];
    if (name->name == NULL || name->value == EK__NO_PARAMETER) continue;
    const struct ek__weight *weight = &w->list[name->value];
    if (strcmp(name->name, weight->info.name) == 0) continue;
    EK_TRY(check_tied(w, weight, name->name, model, files, o));
  }
  return EK_OK;
}

/* ---- deeper models ---- */

/* Whether a tensor of this name in the model's names is of a module that would have the next
 * number: "blocks.2.norm.weight", where there are blocks.0 and blocks.1. The name ends with that
 * number then. */
static bool is_beyond(char *name, const struct ek__layout *layout) {
  char first[2 * EK_STATE_NAME_SIZE];
  for (char *part = name; part != NULL;) {
    const size_t digits = strspn(part, "0123456789");
    if (digits > 0 && part[digits] == '.') {
      part[digits] = '\0';
      (void)snprintf(first, sizeof first, "%.*s0", (int)(part - name), name);
      if (ek__names_find(&layout->names, name) == NULL &&
          ek__names_find(&layout->names, first) != NULL) {
        return true;
      }
      part[digits] = '.';
    }
    part = strchr(part, '.');
    if (part != NULL) part++;
  }
  return false;
}

/* Other tensors that the model does not have are skipped: files of other programs have masks. */
static ek_status check_depth(const struct ek__weights *w, const ek_data_parallel_model *model,
                             const struct ek__weight_files *files, const ek_weights_options *o) {
  const struct ek__layout *layout = &model->run.ranks[0].replica->layout;
  for (size_t i = 0; i < files->count; i++) {
    for (size_t j = 0; j < ek_safetensors_count(files->files[i]); j++) {
      char name[2 * EK_STATE_NAME_SIZE];
      const char *tensor = ek_safetensors_at(files->files[i], j)->name;
      const bool prefixed = w->prefix > 0 && strncmp(tensor, o->prefix, w->prefix) == 0;
      ek__weight_model_name(name, sizeof name, tensor + (prefixed ? w->prefix : 0), o);
      EK__FAIL_IF(is_beyond(name, layout), EK_ERR_MISMATCH,
                  "%s: it has %s, but the model has no %s", files->path, tensor, name);
    }
  }
  return EK_OK;
}

/* ---- reading ---- */

struct load {
  ek_data_parallel_model *model;
  int64_t source_first; /* of the source that is being read, in the weight */
  const struct ek__weight_source *reading;
};

static ek_status read_number(ek_tensor *host, const struct ek__weight_source *source, bool counts) {
  int64_t count = 0;
  ek_tensor integer;
  if (!counts) return ek_safetensors_read_part(host, source->file, source->found, 0);
  EK_TRY(ek_tensor_host(&integer, &count, EK_I64, 0, NULL));
  EK_TRY(ek_safetensors_read(&integer, source->file, source->found));
  if (host->type == EK_F64) *(double *)host->data = (double)count;
  if (host->type == EK_F32) *(float *)host->data = (float)count;
  return EK_OK;
}

static ek_status load_piece(void *context, const struct ek__weight *weight,
                            const struct ek__weight_source *source, ek_tensor *piece,
                            int64_t first) {
  struct load *load = context;
  if (load->reading != source) load->source_first = first;
  load->reading = source;
  if (weight->info.like.rank == 0) {
    const ek_safetensors_entry *entry = ek_safetensors_find(source->file, source->found);
    EK_TRY(read_number(piece, source, entry->like.type == EK_I64));
  } else {
    EK_TRY(
        ek_safetensors_read_part(piece, source->file, source->found, first - load->source_first));
  }
  return ek_state_write_range(load->model, weight->info.name, piece, first);
}

static ek_status load_turned(void *context, const struct ek__weight *weight,
                             const struct ek__weight_source *source, ek_tensor *piece,
                             int64_t first) {
  struct load *load = context;
  (void)source;
  return ek_state_write_range(load->model, weight->info.name, piece, first);
}

static ek_status load_weights(const struct ek__weights *w, struct load *load) {
  for (size_t i = 0; i < w->count; i++) {
    const struct ek__weight *weight = &w->list[i];
    if (!weight->transposed) {
      EK_TRY(ek__weight_pieces(w, weight, load_piece, load));
      continue;
    }
    const struct ek__weight_source *source = weight->sources;
    const int64_t *shape = weight->info.like.shape;
    ek_tensor whole = ek__weight_flat(weight, w->whole, source->elements);
    EK_TRY(ek_safetensors_read_part(&whole, source->file, source->found, 0));
    EK_TRY(ek__weight_turned_pieces(w, weight, shape[1], shape[0], load_turned, load));
  }
  return EK_OK;
}

static ek_status check_config(const ek_data_parallel_model *model, const char *path) {
  struct ek__config config;
  ek_status status = ek__config_open(&config, path);
  if (status == EK_OK) {
    status = ek__config_check(&config, &model->run.ranks[0].replica->layout);
  }
  ek__config_close(&config);
  return status;
}

/* Compares all of the files with the model before anything is written. */
static ek_status check_files(struct ek__weights *w, const ek_data_parallel_model *model,
                             struct ek__weight_files *files, const char *path,
                             const ek_weights_options *o) {
  EK_TRY(ek__weight_files_open(files, path));
  if (o->name_count > 0) EK_TRY(check_config(model, files->path));
  for (size_t i = 0; i < w->count; i++) {
    for (size_t j = 0; j < w->list[i].count; j++) {
      EK_TRY(find_source(w, &w->list[i], &w->list[i].sources[j], files));
    }
  }
  EK_TRY(check_depth(w, model, files, o));
  EK_TRY(ek__weight_files_check(files));
  return check_ties(w, model, files, o);
}

/* Each process of a world reads the files. None writes a parameter before all have compared them.
 * A file that fails after that leaves a model with weights of two models, which is torn. */
static ek_status load(ek_data_parallel_model *model, const char *path,
                      const ek_weights_options *options) {
  struct ek__weights w = {0};
  struct ek__weight_files files = {0};
  ek_weights_options o = EK_WEIGHTS_OPTIONS_INIT;
  EK__NOT_NULL("ek_weights_load", path);
  EK__MODEL_ENTER(model, "ek_weights_load");
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_weights_options"));
  EK__FAIL_IF(o.average, EK_ERR_INVALID_ARGUMENT,
              "ek_weights_options: average applies to saves, expected false for a load");
  if (o.names == NULL && o.name_count == 0 && ek__is_folder(path)) {
    ek__weights_own_names(&o, model);
  }
  EK_TRY(ek__weights_open(&w, model, &o));
  ek_status status = check_files(&w, model, &files, path, &o);
  if (status == EK_OK) {
    status =
        ek__world_agree(ek__group_world(model->run.group), "loading weights", model->step.taken);
  }
  if (status == EK_OK) {
    struct load context = {.model = model};
    status = load_weights(&w, &context);
    if (status != EK_OK) ek__model_update_begins(model);
  }
  ek__weight_files_close(&files);
  ek__weights_close(&w);
  return status;
}

ek_status ek_weights_load(ek_data_parallel_model *model, const char *path,
                          const ek_weights_options *options) {
  EK__NOT_NULL("ek_weights_load", model);
  EK__WORLD_CALL(ek__group_world(model->run.group), load(model, path, options));
}
