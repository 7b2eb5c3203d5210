/*
 * agreement.c - what the processes of a world agree on: what they open, and each update.
 *
 * Models, criteria and optimizers must be alike. They are compared as lines of text, so that a
 * difference has a name. Of a program's own module, criterion or rule the lines have what the
 * library sees: its kind, its declarations, counts and coefficients.
 *
 * Before an update all processes tell each other that none has failed. The update also needs
 * numbers of all ranks: {s, D} of the last micro-batch, if that was run in the same call of the
 * program (ek__batch_run), and the squares of the ranks' gradients. Where devices compute in the
 * memory of the host, the same message has these. So neither takes a collective, and a good step
 * has no message for the agreement alone.
 *
 * The numbers are *leaves*: one for each rank or, in a reproducible model, one for each grain. Each
 * process adds them up in the order of the reduction, so the sums have the bits of one process.
 * What follows the message here is arithmetic of the host, because nothing may fail in one process
 * alone after it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "forward.h"
#include "device/place.h"
#include "optimizer_internal.h"

/* ---- what is opened ---- */

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

/* ---- updates: memory ---- */

enum { TOTALS = 2 }; /* s and D */

static const char memory_of[] = "a data-parallel optimizer";

ek_status ek__told_open(struct ek__told *told, const ek_data_parallel_model *model) {
  const size_t ranks = ek__group_world_size(model->run.group);
  ek_world *world = ek__model_world(model);
  if (world == NULL) return EK_OK;
  EK_TRY(ek__new(&told->numbers, ranks * model->run.reduction->most(model),
                 (TOTALS + 1) * sizeof *told->numbers, memory_of));
  return ek__new(&told->ends, ek_world_processes(world), sizeof *told->ends, memory_of);
}

void ek__told_close(struct ek__told *told) {
  ek__free(told->numbers);
  ek__free(told->ends);
}

/* ---- leaves ---- */

/* What the message has. */
struct telling {
  ek_data_parallel_model *model;
  struct ek__loss *late; /* NULL: no totals */
  bool norm;
  size_t width; /* numbers of a leaf: s, D, and the square */
};

/* Where the leaves of a process end, in leaves. */
static size_t leaves_until(const struct telling *telling, size_t process) {
  const struct ek__ranks *run = &telling->model->run;
  const size_t rank = ek__place_first_rank(ek__group_place(run->group), process + 1);
  return run->reduction->leaves_before(telling->model, rank);
}

static void put_leaves(double *numbers, const struct telling *telling) {
  const ek_data_parallel_model *model = telling->model;
  const struct ek__reduction *reduction = model->run.reduction;
  EK__EACH_RANK(rank, &model->run) {
    const size_t end = reduction->leaves_before(model, rank->number + 1);
    for (size_t i = reduction->leaves_before(model, rank->number); i < end; i++) {
      double *leaf = numbers + i * telling->width;
      if (telling->late != NULL) {
        const struct ek__totals *totals = &ek__loss_of(rank, telling->late)->totals;
        const ek_tensor own = ek__totals_leaf(totals, reduction->whole ? 0 : i);
        memcpy(leaf, own.data, TOTALS * sizeof *leaf);
      }
      if (telling->norm) {
        memcpy(&leaf[telling->width - 1], rank->share.square_norm.data, sizeof *leaf);
      }
    }
  }
}

/* ---- sums ---- */

/* {s, D} of the only term of a loss, put together as ek_op_combine_totals() does. */
static void take_totals(const struct ek__rank *rank, const struct telling *telling,
                        const double *sums) {
  const struct ek__loss *loss = telling->late;
  const bool first = telling->model->step.micro_batches == 1;
  const double combined[] = {0.0 + loss->coefficients[0] * sums[0],
                             loss->reduction == EK_REDUCTION_MEAN ? sums[1] : 1};
  double *step = rank->totals.data;
  memcpy(ek__loss_of(rank, loss)->totals.sum.data, sums, TOTALS * sizeof *sums);
  memcpy(loss->combined[rank->place].data, combined, sizeof combined);
  for (size_t i = 0; i < TOTALS; i++) step[i] = first ? combined[i] : step[i] + combined[i];
}

static void take_sums(struct ek__numbers *numbers, const struct telling *telling,
                      const double *sums) {
  const struct ek__ranks *run = &telling->model->run;
  EK__EACH_RANK(rank, run) {
    if (telling->late != NULL) take_totals(rank, telling, sums);
    if (telling->norm) {
      memcpy(rank->share.square_norm.data, &sums[telling->width - 1], sizeof *sums);
    }
  }
  if (telling->late != NULL) {
    memcpy(numbers->totals, run->ranks[0].totals.data, sizeof numbers->totals);
  }
  if (telling->norm) numbers->square_norm = sums[telling->width - 1];
}

/* ---- the message ---- */

static void say_update(char *text, size_t size, const int64_t *words) {
  static const char *const with[] = {"", " of a trainer", ", with its norm",
                                     " of a trainer, with its norm"};
  (void)snprintf(text, size, "in the update of step %" PRId64 "%s", words[0],
                 with[words[1] & 3]);
}

/* late: with totals. */
static struct ek__topic topic_of(const ek_data_parallel_model *model, bool late, bool norm) {
  return (struct ek__topic){.kind = EK__TOPIC_AGREE,
                            .doing = "in an optimizer step",
                            .say = say_update,
                            .same = 2,
                            .words = {model->step.taken, late + 2 * norm}};
}

ek_status ek__norm_agree(const ek_data_parallel_model *model, bool norm) {
  const struct ek__update *update = model->update;
  const struct ek__topic topic = topic_of(model, false, norm);
  const bool choice = update->norm && !ek__update_takes_norm(update, false);
  if (!choice || model->run.totals_ride) return EK_OK;
  return ek__world_talk(ek__model_world(model), &topic, NULL);
}

static ek_status tell(struct ek__numbers *numbers, const struct telling *telling) {
  const ek_data_parallel_model *model = telling->model;
  const struct ek__told *told = &model->update->told;
  ek_world *world = ek__model_world(model);
  const size_t last = ek_world_processes(world) - 1;
  const struct ek__topic topic = topic_of(model, telling->late != NULL, telling->norm);
  for (size_t p = 0; p <= last; p++) {
    told->ends[p] = leaves_until(telling, p) * telling->width * sizeof *told->numbers;
  }
  if (telling->width > 0) put_leaves(told->numbers, telling);
  EK_TRY(ek__world_tell(world, &topic, told->numbers, told->ends));
  if (telling->width == 0) return EK_OK;
  const size_t leaves = leaves_until(telling, last);
  if (leaves == 0) memset(told->numbers, 0, telling->width * sizeof *told->numbers);
  model->run.reduction->fold(told->numbers, leaves, telling->width);
  take_sums(numbers, telling, told->numbers);
  return EK_OK;
}

ek_status ek__update_agree(ek_data_parallel_model *model, bool norm, struct ek__numbers *numbers) {
  struct telling telling = {
      .model = model, .late = model->step.late, .norm = norm && model->run.norms_ride};
  if (telling.late != NULL) telling.width += TOTALS;
  if (telling.norm) telling.width++;
  if (ek__model_world(model) != NULL) EK_TRY(tell(numbers, &telling));
  if (telling.late != NULL) telling.late->has_loss = true;
  model->step.late = NULL;
  return EK_OK;
}
