/*
 * scatter.c - cuts a tensor along dimension 0 and puts each part on its device.
 *
 * The cut is pure arithmetic on the host; every device's worker then makes and fills its own part.
 */
#include <evenkeel/scatter.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "device/types.h"
#include "parallel_internal.h"

/* ---- the cut ---- */

static void cut_chunks(int64_t *offsets, int64_t rows, int64_t count) {
  const int64_t chunk = rows / count + (rows % count != 0);
  for (int64_t i = 0; i <= count; i++) {
    offsets[i] = chunk != 0 && i > rows / chunk ? rows : chunk * i;
  }
}

int64_t ek__grains_begin(int64_t rows, size_t grains, size_t rank, size_t ranks) {
  const size_t grain = (size_t)ek__even_begin((int64_t)grains, rank, ranks);
  return ek__even_begin(rows, grain, grains);
}

static void cut_grains(int64_t *offsets, int64_t rows, size_t count, size_t grains) {
  for (size_t i = 0; i <= count; i++) {
    offsets[i] = ek__grains_begin(rows, grains, i, count);
  }
}

static ek_status check_sizes(int64_t rows, size_t count, const int64_t *sizes) {
  int64_t left = rows;
  for (size_t i = 0; i < count; i++) {
    EK__FAIL_IF(sizes[i] < 0 || sizes[i] > left, EK_ERR_INVALID_ARGUMENT,
                "scatter: size %lld of device number %zu is negative or exceeds the rows that are "
                "left of %lld",
                (long long)sizes[i], i, (long long)rows);
    left -= sizes[i];
  }
  if (left == 0) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "scatter: the sizes sum to %lld, expected %lld, the number of rows",
                      (long long)(rows - left), (long long)rows);
}

static void cut_sizes(int64_t *offsets, size_t count, const int64_t *sizes) {
  offsets[0] = 0;
  for (size_t i = 0; i < count; i++) offsets[i + 1] = offsets[i] + sizes[i];
}

static ek_status check_weights(size_t count, const double *weights) {
  bool some = false;
  for (size_t i = 0; i < count; i++) {
    EK__FAIL_IF(!isfinite(weights[i]) || weights[i] < 0, EK_ERR_INVALID_ARGUMENT,
                "scatter: weight %g of device number %zu is negative or not finite", weights[i], i);
    some = some || weights[i] > 0;
  }
  if (some) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "scatter: all weights are 0, expected at least one "
                                               "above 0");
}

/* Whole shares first, then one row each to the largest remainders, lower devices first. */
static void cut_weights(int64_t *offsets, int64_t rows, size_t count, const double *weights) {
  double largest = 0, sum = 0;
  for (size_t i = 0; i < count; i++) largest = fmax(largest, weights[i]);
  /* The power of two rounds nothing and keeps the sum finite for any weights. */
  int exponent = 0;
  (void)frexp(largest, &exponent);
  for (size_t i = 0; i < count; i++) sum += ldexp(weights[i], -exponent);
#define SHARE(i) ((double)rows * (ldexp(weights[i], -exponent) / sum))
  int64_t *const sizes = offsets + 1, left = rows;
  for (size_t i = 0; i < count; i++) {
    /* A double near 2^63 may exceed the number of rows, or the range of int64_t. */
    sizes[i] = SHARE(i) >= (double)left ? left : (int64_t)floor(SHARE(i));
    left -= sizes[i];
  }
  for (; left > 0; left--) {
    size_t best = 0;
    double most = -HUGE_VAL;
    for (size_t i = 0; i < count; i++) {
      const double remainder = SHARE(i) - (double)sizes[i];
      if (weights[i] > 0 && remainder > most) best = i, most = remainder;
    }
    sizes[best]++;
  }
#undef SHARE
  cut_sizes(offsets, count, sizes);
}

ek_status ek_scatter_offsets(int64_t *offsets, int64_t rows, size_t count,
                             const ek_scatter_options *options) {
  ek_scatter_options o = EK_SCATTER_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_scatter_options"));
  EK__NOT_NULL("ek_scatter_offsets", offsets);
  EK__FAIL_IF(rows < 0 || count == 0 || count >= SIZE_MAX / sizeof *offsets,
              EK_ERR_INVALID_ARGUMENT,
              "scatter: %lld rows over %zu devices, expected 0 or more over 1 or more",
              (long long)rows, count);
  switch (o.kind) {
  case EK_SCATTER_EVEN: cut_grains(offsets, rows, count, count); return EK_OK;
  case EK_SCATTER_CHUNK: cut_chunks(offsets, rows, (int64_t)count); return EK_OK;
  case EK_SCATTER_SIZES:
    EK__FAIL_IF(o.sizes == NULL, EK_ERR_INVALID_ARGUMENT, "scatter: options.sizes is NULL");
    EK_TRY(check_sizes(rows, count, o.sizes));
    cut_sizes(offsets, count, o.sizes);
    return EK_OK;
  case EK_SCATTER_WEIGHTS:
    EK__FAIL_IF(o.weights == NULL, EK_ERR_INVALID_ARGUMENT, "scatter: options.weights is NULL");
    EK_TRY(check_weights(count, o.weights));
    cut_weights(offsets, rows, count, o.weights);
    return EK_OK;
  case EK_SCATTER_GRAINS:
    EK__FAIL_IF(o.grains == 0 || o.grains > INT32_MAX, EK_ERR_INVALID_ARGUMENT,
                "scatter: %zu grains, expected 1 or more", o.grains);
    cut_grains(offsets, rows, count, o.grains);
    return EK_OK;
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "scatter: unknown kind %d", (int)o.kind);
}

ek_status ek_world_rows(int64_t *first, int64_t *count, const ek_group *group, int64_t rows,
                        size_t grains) {
  EK__NOT_NULL("ek_world_rows", first, count, group);
  const size_t rank = ek__group_first_rank(group), ranks = ek__group_world_size(group);
  const size_t last = rank + ek_group_size(group);
  const int64_t parts = (int64_t)(grains == 0 ? ranks : grains);
  EK__FAIL_IF(rows < 0 || (size_t)parts < ranks || grains > INT32_MAX, EK_ERR_INVALID_ARGUMENT,
              "ek_world_rows: %lld rows and %zu grains over %zu devices; expected 0 rows or more, "
              "and 0 grains or at least one for each device",
              (long long)rows, grains, ranks);
  *first = ek__grains_begin(rows, (size_t)parts, rank, ranks);
  *count = ek__grains_begin(rows, (size_t)parts, last, ranks) - *first;
  return EK_OK;
}

/* ---- conversion of integers ---- */

static ek_status choose_intake(struct ek__given *given, const char *who, size_t number) {
  const bool scaled = number < given->scaling_count && given->scalings[number].channels != 0;
  const ek_input_scaling *scaling = scaled ? &given->scalings[number] : NULL;
  const ek_type type =
      scaled ? given->floating : ek_module_input_type(given->module, given->first + number);
  return ek__conversion_choose(&given->intakes[number], who, &given->sources[number], type,
                               scaling);
}

ek_status ek__scalings_copy(ek_input_scaling **copy, const char *who,
                            const ek_input_scaling *scalings, size_t count, size_t most) {
  EK__FAIL_IF(count > most || (count > 0 && scalings == NULL), EK_ERR_INVALID_ARGUMENT,
              "%s: %zu scalings for %zu tensors, or they are NULL", who, count, most);
  for (size_t i = 0; i < count; i++) {
    if (scalings[i].channels != 0) EK_TRY(ek__input_scaling_check(who, &scalings[i]));
  }
  return count == 0 ? EK_OK
                    : ek__new_copy(copy, scalings, count * sizeof *scalings, "scalings of inputs");
}

/* The caller's ek_scatter_options.type is used exactly. */
static ek_status read_intake(struct ek__conversion *intake, const char *who,
                             const ek_tensor *source, const ek_scatter_options *options) {
  ek_scatter_options o = EK_SCATTER_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_scatter_options"));
  EK__FAIL_IF(o.type != 0 && o.type != EK_I32 && o.type != EK_I64 && o.type != EK_F32 &&
                  o.type != EK_F64,
              EK_ERR_INVALID_ARGUMENT, "%s: options.type is %s; expected 0, i32, i64, f32 or f64",
              who, ek_type_name(o.type));
  EK_TRY(ek__conversion_choose(intake, who, source, o.type, o.scaling));
  EK__FAIL_IF(o.type != 0 && intake->to != o.type, EK_ERR_TYPE, "%s: %s%s cannot become %s", who,
              ek_type_name(source->type), source->device == NULL ? "" : " on a device",
              ek_type_name(o.type));
  return EK_OK;
}

/* ---- the parts ---- */

/* A tensor that is cut. */
struct cut {
  const ek_shards *shards;
  const ek_tensor *source;
  ek_memory_category category;
  const struct ek__conversion *intake; /* NULL: none */
};

/* Rows of the source from `first` on, on a device that does not have them. */
static ek_status make_copy(ek_tensor *part, const struct cut *cut, ek_device *device,
                           const ek_tensor *rows, int64_t first) {
  const bool ahead = cut->shards->private_members.ahead;
  if (cut->intake == NULL || cut->intake->to == rows->type) {
    return ek_tensor_create_from(part, device, cut->category, rows, ahead);
  }
  struct ek__conversion own = *cut->intake;
  own.per_row = ek_tensor_row_elements(cut->source);
  own.first = first * own.per_row;
  return ek__tensor_create_converted(part, device, cut->category, rows, &own, ahead);
}

/* On the device's worker. */
static ek_status make_part(void *context, ek_device *device, size_t index) {
  const struct cut *cut = context;
  const ek_shards *shards = cut->shards;
  ek_tensor rows = {0}, *part = &shards->parts[index];
  const int64_t first = shards->broadcast ? 0 : shards->offsets[index];
  if (shards->broadcast) {
    EK_TRY(ek_tensor_share(&rows, cut->source));
  } else {
    EK_TRY(ek_tensor_rows(&rows, cut->source, first, shards->offsets[index + 1] - first));
  }
  if (rows.device == device) {
    *part = rows;
    return EK_OK;
  }
  const ek_status status = make_copy(part, cut, device, &rows, first);
  ek_tensor_free(&rows);
  if (status == EK_OK && !shards->broadcast) {
    ek__tensor_cut_from(part, first * ek_tensor_row_elements(cut->source));
  }
  return status;
}

ek_status ek__given_cut(const struct ek__given *given, const struct ek__rank *rank) {
  for (size_t i = 0; i < given->count && given->sources != NULL; i++) {
    struct cut cut = {&given->shards[i], &given->sources[i], EK_MEMORY_INPUTS, &given->intakes[i]};
    EK_TRY(make_part(&cut, rank->device, rank->place));
  }
  return EK_OK;
}

void ek__given_give_back(const struct ek__given *given, const struct ek__rank *rank) {
  for (size_t i = 0; i < given->count && given->sources != NULL; i++) {
    ek_tensor_free(&given->shards[i].parts[rank->place]);
  }
}

void ek__given_free(struct ek__given *given) {
  if (given->sources == NULL) return; /* the program's */
  for (size_t i = 0; i < given->count; i++) ek_shards_free(&given->shards[i]);
}

ek_status ek__scatter_fill(const ek_shards *shards, const ek_tensor *source,
                           ek_memory_category category, const struct ek__conversion *intake) {
  struct cut cut = {shards, source, category, intake};
  return ek_group_apply(shards->group, make_part, &cut);
}

/* A struct that a caller filled by hand may hold anything. */
static ek_status check_source(const char *who, const ek_shards *shards, const ek_group *group,
                              const ek_tensor *source) {
  EK__FAIL_IF(shards == NULL || group == NULL || !ek_tensor_exists(source), EK_ERR_INVALID_ARGUMENT,
              "%s: the shards, the group or the source is missing", who);
  EK__FAIL_IF(source->device != NULL && ek_device_group(source->device) != group, EK_ERR_DEVICE,
              "%s: the source is on %s, which is of another group", who,
              ek_device_name(source->device));
  int64_t bytes = 0;
  EK_TRY(ek__tensor_measure(&bytes, who, source->type, source->rank, source->shape));
  EK__FAIL_IF(source->device == NULL && source->data == NULL && bytes > 0, EK_ERR_INVALID_ARGUMENT,
              "%s: the source has elements but no memory", who);
  return EK_OK;
}

/* At the samples of `like`, whole ones each. */
static ek_status cut_like(ek_shards *made, const char *who, const ek_shards *like, int64_t rows) {
  const int64_t samples = like->samples[like->count];
  const int64_t per_sample = samples == 0 ? 0 : rows / samples;
  EK__FAIL_IF(per_sample * samples != rows, EK_ERR_SHAPE,
              "%s: %lld rows are not a multiple of %lld samples", who, (long long)rows,
              (long long)samples);
  made->private_members.ahead = like->private_members.ahead;
  for (size_t i = 0; i <= made->count; i++) {
    made->samples[i] = like->samples[i];
    made->offsets[i] = like->samples[i] * per_sample;
  }
  return EK_OK;
}

/* Checks everything and cuts; the parts do not exist yet. like: NULL, or those whose samples it is
 * cut at. */
static ek_status lay(ek_shards *shards, const char *who, ek_group *group, const ek_shards *like,
                     const ek_tensor *source, bool broadcast, const ek_scatter_options *options) {
  ek_scatter_options o = EK_SCATTER_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_scatter_options"));
  EK_TRY(check_source(who, shards, group, source));
  EK__FAIL_IF(!broadcast && source->rank == 0, EK_ERR_SHAPE, "%s: a scalar cannot be cut", who);
  EK_TRY(ek_shards_create(shards, group));
  ek_status status = EK_OK;
  shards->broadcast = broadcast;
  shards->private_members.ahead = o.ahead && !broadcast;
  if (like != NULL) {
    status = cut_like(shards, who, like, source->shape[0]);
  } else if (!broadcast) {
    status = ek_scatter_offsets(shards->offsets, source->shape[0], shards->count, &o);
    memcpy(shards->samples, shards->offsets, (shards->count + 1) * sizeof *shards->samples);
  }
  if (status != EK_OK) ek_shards_free(shards);
  return status;
}

/* Shards of a program's: of the model's group, each part on its device and as long as its cut. */
static ek_status check_shards(const char *what, size_t number, const ek_data_parallel_model *model,
                              const ek_shards *given, const ek_shards *like) {
  EK__FAIL_IF(given->group != model->run.group, EK_ERR_DEVICE,
              "%s number %zu is not of the model's group", what, number);
  EK_TRY(ek__shards_check(what, given));
  EK__FAIL_IF(like != NULL && !ek__target_fits(given, like), EK_ERR_SHAPE,
              "%s number %zu is not cut at the samples of the outputs", what, number);
  for (size_t k = 0; k < model->run.count; k++) {
    const ek_tensor *part = &given->parts[k];
    const ek_device *device = model->run.ranks[k].device;
    const int64_t rows = given->offsets[k + 1] - given->offsets[k];
    EK__FAIL_IF(!ek_tensor_exists(part) || part->device != device, EK_ERR_DEVICE,
                "%s number %zu: its part number %zu is not on %s", what, number, k,
                ek_device_name(device));
    EK__FAIL_IF(!given->broadcast && (part->rank == 0 || rows < 0 || part->shape[0] != rows),
                EK_ERR_SHAPE,
                "%s number %zu: its part number %zu does not have the %lld rows of "
                "the cut",
                what, number, k, (long long)rows);
  }
  return EK_OK;
}

ek_status ek__given_lay(struct ek__given *given, size_t number, const ek_data_parallel_model *model,
                        const ek_shards *cut, const ek_shards *like, bool broadcast,
                        const ek_scatter_options *options) {
  char who[64];
  if (cut != NULL) {
    given->shards[number] = *cut;
    return check_shards(given->what, number, model, cut, like);
  }
  (void)snprintf(who, sizeof who, "%s number %zu", given->what, number);
  EK_TRY(lay(&given->shards[number], who, model->run.group, like, &given->sources[number],
             broadcast, options));
  return choose_intake(given, who, number);
}

static ek_status scatter(ek_shards *shards, const char *who, ek_group *group, const ek_shards *like,
                         const ek_tensor *source, ek_memory_category category, bool broadcast,
                         const ek_scatter_options *options) {
  ek_shards made;
  struct ek__conversion intake;
  if (shards == NULL) return check_source(who, shards, group, source);
  EK_TRY(lay(&made, who, group, like, source, broadcast, options));
  ek_status status = read_intake(&intake, who, source, options);
  if (status == EK_OK) status = ek__scatter_fill(&made, source, category, &intake);
  if (status == EK_OK) {
    *shards = made;
  } else {
    ek_shards_free(&made);
  }
  return status;
}

ek_status ek_scatter(ek_shards *shards, ek_group *group, const ek_tensor *source,
                     ek_memory_category category, const ek_scatter_options *options) {
  return scatter(shards, "ek_scatter", group, NULL, source, category, false, options);
}

ek_status ek_scatter_like(ek_shards *shards, const ek_shards *like, const ek_tensor *source,
                          ek_memory_category category) {
  EK_TRY(ek__shards_check("ek_scatter_like: the shards to follow", like));
  return scatter(shards, "ek_scatter_like", like->group, like, source, category, false, NULL);
}

ek_status ek_scatter_broadcast(ek_shards *shards, ek_group *group, const ek_tensor *source,
                               ek_memory_category category) {
  return scatter(shards, "ek_scatter_broadcast", group, NULL, source, category, true, NULL);
}

EK__OPTIONS_INIT(ek_scatter_options, EK_SCATTER_OPTIONS_INIT)
