/*
 * same.c - what all processes of a world must open alike: models, criteria and optimizers, as lines
 * of text, so that a difference has a name.
 *
 * Of a program's own module, criterion or rule the lines have what the library sees: its kind, its
 * declarations, counts and coefficients. What it keeps to itself is not compared.
 */
#include <inttypes.h>
#include <stdio.h>

#include "criterion_internal.h"
#include "optimizer_internal.h"

static void add_parameter(struct ek__lines *lines, const struct ek__parameter *parameter) {
  char shape[32 * EK_MAX_RANK] = "";
  size_t used = 0;
  for (int d = 0; d < parameter->rank; d++) {
    used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%" PRId64, d == 0 ? "" : ", ",
                             parameter->shape[d]);
  }
  ek__lines_add(lines, "%s %s = [%s]%s%s%s", parameter->buffer ? "buffer" : "parameter",
                parameter->name, shape, parameter->frozen ? ", frozen" : "",
                parameter->no_decay ? ", no decay" : "",
                parameter->elementwise ? ", elementwise" : "");
}

static void add_options(struct ek__lines *lines, const ek_data_parallel_model_options *o) {
  ek__lines_add(lines, "placement of outputs = %d", (int)o->outputs);
  ek__lines_add(lines, "placement of state = %d", (int)o->state);
  ek__lines_add(lines, "type = %s", ek_type_name(o->type));
  ek__lines_add(lines, "precision = %d", (int)o->precision);
  ek__lines_add(lines, "gradient type = %s", ek_type_name(o->gradient_type));
  ek__lines_add(lines, "seed = %" PRIu64, o->seed);
  ek__lines_add(lines, "broadcast inputs = %" PRIx64, o->broadcast_inputs);
  ek__lines_add(lines, "bucket bytes = %zu", o->bucket_bytes);
  ek__lines_add(lines, "reproducible = %zu", o->reproducible);
  ek__lines_add(lines, "shard over = %d", (int)o->shard_over);
}

ek_status ek__model_same(const ek_data_parallel_model *model) {
  struct ek__lines lines = {0};
  if (ek__model_world(model) == NULL) return EK_OK;
  const struct ek__layout *layout = &model->run.ranks[0].replica->layout;
  ek__lines_add(&lines, "module = %s", ek_module_kind(model->module));
  add_options(&lines, &model->options);
  for (size_t i = 0; i < layout->parameter_count; i++) {
    add_parameter(&lines, &layout->parameters[i]);
    if (ek__buckets_whole(&model->run.cut, i)) {
      ek__lines_add(&lines, "taken whole by the optimizer");
    }
  }
  for (size_t i = 0; i < layout->group_count; i++) {
    const struct ek__group *group = &layout->groups[i];
    ek__lines_add(&lines, "group %zu = rate %.17g, decay %.17g", i, group->rate_scale,
                  group->weight_decay);
  }
  return ek__lines_same(&lines, ek__model_world(model), "opening a model");
}

ek_status ek__loss_same(const ek_data_parallel_model *model, const struct ek__loss *loss) {
  struct ek__lines lines = {0};
  if (ek__model_world(model) == NULL) return EK_OK;
  ek__lines_add(&lines, "criterion = %s", ek_module_kind(&loss->criterion->base));
  ek__lines_add(&lines, "reduction = %d", (int)loss->reduction);
  ek__lines_add(&lines, "gradient in forward = %d", loss->options.gradient_in_forward);
  for (size_t i = 0; i < loss->terms; i++) {
    ek__lines_add(&lines, "coefficient %zu = %.17g", i, loss->coefficients[i]);
  }
  return ek__lines_same(&lines, ek__model_world(model), "opening a criterion");
}

ek_status ek__update_same(const ek_data_parallel_model *model, const struct ek__update *update) {
  struct ek__lines lines = {0};
  const ek_schedule *rate = &update->schedule;
  const ek_loss_scale *scale = &update->loss_scale;
  if (ek__model_world(model) == NULL) return EK_OK;
  ek__lines_add(&lines, "optimizer = %s", ek_optimizer_kind(update->optimizer));
  ek__lines_add(&lines, "states = %zu", update->state_count);
  ek__lines_add(&lines, "clip norm = %.17g", ek_optimizer_clip_norm(update->optimizer));
  ek__lines_add(&lines,
                "schedule = %d, %.17g, %.17g, %.17g, %.17g, %" PRId64 ", %" PRId64 ", %" PRId64,
                (int)rate->kind, rate->peak, rate->floor, rate->first, rate->factor, rate->warmup,
                rate->total, rate->decay);
  ek__lines_add(&lines, "loss scale = %d, %.17g, %.17g, %.17g, %" PRId64, (int)scale->kind,
                scale->scale, scale->growth, scale->backoff, (int64_t)scale->interval);
  ek__lines_add(&lines, "refuse not finite = %d", update->refuse);
  ek__lines_add(&lines, "gradient norm = %d", update->norm);
  return ek__lines_same(&lines, ek__model_world(model), "opening an optimizer");
}
