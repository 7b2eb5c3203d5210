/*
 * same.c - what all processes of a world must open alike: models, criteria and optimizers, as lines
 * of text, so that a difference has a name.
 *
 * Of a program's own module, criterion or rule the lines have what the library sees: its kind, its
 * declarations, counts and coefficients. What it keeps to itself is not compared.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "criterion_internal.h"
#include "optimizer_internal.h"

struct lines {
  char *text; /* ends with a NUL */
  size_t used, room;
  ek_status status;
};

/* Adds a line. A failure is kept, and the rest left out. */
static void add(struct lines *lines, const char *format, ...) EK_PRINTF(2, 3);
static void add(struct lines *lines, const char *format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (lines->status != EK_OK) return;
  const size_t length = strlen(line), wanted = lines->used + length + 2;
  if (wanted > lines->room) {
    lines->status = ek__grow(&lines->text, &lines->room, 2 * wanted, 1, "the options of a process");
    if (lines->status != EK_OK) return;
  }
  memcpy(lines->text + lines->used, line, length);
  lines->used += length;
  lines->text[lines->used++] = '\n';
  lines->text[lines->used] = '\0';
}

static ek_status compare(const ek_data_parallel_model *model, struct lines *lines,
                         const char *doing) {
  ek_status status = lines->status;
  if (status == EK_OK) status = ek__world_same(ek__group_world(model->run.group), doing, lines->text);
  ek__free(lines->text);
  return status;
}

static void add_parameter(struct lines *lines, const struct ek__parameter *parameter) {
  char shape[32 * EK_MAX_RANK] = "";
  size_t used = 0;
  for (int d = 0; d < parameter->rank; d++) {
    used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%" PRId64, d == 0 ? "" : ", ",
                             parameter->shape[d]);
  }
  add(lines, "%s %s = [%s]%s%s%s", parameter->buffer ? "buffer" : "parameter", parameter->name, shape,
      parameter->frozen ? ", frozen" : "", parameter->no_decay ? ", no decay" : "",
      parameter->elementwise ? ", elementwise" : "");
}

static void add_options(struct lines *lines, const ek_data_parallel_model_options *o) {
  add(lines, "placement of outputs = %d", (int)o->outputs);
  add(lines, "placement of state = %d", (int)o->state);
  add(lines, "type = %s", ek_type_name(o->type));
  add(lines, "precision = %d", (int)o->precision);
  add(lines, "gradient type = %s", ek_type_name(o->gradient_type));
  add(lines, "seed = %" PRIu64, o->seed);
  add(lines, "broadcast inputs = %" PRIx64, o->broadcast_inputs);
  add(lines, "bucket bytes = %zu", o->bucket_bytes);
  add(lines, "reproducible = %zu", o->reproducible);
  add(lines, "shard over = %d", (int)o->shard_over);
}

ek_status ek__model_same(const ek_data_parallel_model *model) {
  struct lines lines = {0};
  if (ek__group_world(model->run.group) == NULL) return EK_OK;
  const struct ek__layout *layout = &model->run.ranks[0].replica->layout;
  add(&lines, "module = %s", ek_module_kind(model->module));
  add_options(&lines, &model->options);
  for (size_t i = 0; i < layout->parameter_count; i++) {
    add_parameter(&lines, &layout->parameters[i]);
    if (ek__buckets_whole(&model->run.cut, i)) add(&lines, "taken whole by the optimizer");
  }
  for (size_t i = 0; i < layout->group_count; i++) {
    const struct ek__group *group = &layout->groups[i];
    add(&lines, "group %zu = rate %.17g, decay %.17g", i, group->rate_scale, group->weight_decay);
  }
  return compare(model, &lines, "opening a model");
}

ek_status ek__loss_same(const ek_data_parallel_model *model, const struct ek__loss *loss) {
  struct lines lines = {0};
  if (ek__group_world(model->run.group) == NULL) return EK_OK;
  add(&lines, "criterion = %s", ek_module_kind(&loss->criterion->base));
  add(&lines, "reduction = %d", (int)loss->reduction);
  add(&lines, "gradient in forward = %d", loss->options.gradient_in_forward);
  for (size_t i = 0; i < loss->terms; i++) {
    add(&lines, "coefficient %zu = %.17g", i, loss->coefficients[i]);
  }
  return compare(model, &lines, "opening a criterion");
}

ek_status ek__update_same(const ek_data_parallel_model *model, const struct ek__update *update) {
  struct lines lines = {0};
  const ek_schedule *rate = &update->schedule;
  const ek_loss_scale *scale = &update->loss_scale;
  if (ek__group_world(model->run.group) == NULL) return EK_OK;
  add(&lines, "optimizer = %s", ek_optimizer_kind(update->optimizer));
  add(&lines, "states = %zu", update->state_count);
  add(&lines, "clip norm = %.17g", ek_optimizer_clip_norm(update->optimizer));
  add(&lines, "schedule = %d, %.17g, %.17g, %.17g, %.17g, %" PRId64 ", %" PRId64 ", %" PRId64,
      (int)rate->kind, rate->peak, rate->floor, rate->first, rate->factor, rate->warmup,
      rate->total, rate->decay);
  add(&lines, "loss scale = %d, %.17g, %.17g, %.17g, %" PRId64, (int)scale->kind, scale->scale,
      scale->growth, scale->backoff, (int64_t)scale->interval);
  add(&lines, "refuse not finite = %d", update->refuse);
  add(&lines, "gradient norm = %d", update->norm);
  return compare(model, &lines, "opening an optimizer");
}
