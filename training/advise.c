/*
 * advise.c - the search for settings that fit: see advise.h.
 *
 * For one mode, loss and recomputation the peak falls, and the time rises, with the number of
 * micro-batches, so the fewest that fit are found by halving and interpolation. Of numbers of
 * micro-batches that give the fullest device equally many samples at once, only one is planned.
 * Settings whose state alone does not fit are given up after one plan.
 *
 * No part of the search takes time in proportion to the batch: a plan counts micro-batches of one
 * size once, the search for the fewest takes a logarithm of plans, and the search for a more even
 * cut goes from one number of micro-batches to the next and ends after MOST_CUTS of them.
 */
#include "advise_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "device/device_internal.h"
#include "batches.h"
#include "module/composite.h"
#include "parallel/reduction.h"

/* ---- devices ---- */

/* For each thread of a CPU, and for a GPU. The ratios decide between settings: they are
 * much the same on machines of one kind (docs/memory.md, which has where those of 16 bits are from:
 * without matrix units they are halves of memory that take a little more arithmetic). */
static const struct ek__rates cpu_rates = {
    .wide = {.products = 6e10, .attention = 3e10, .bytes = 6e9},
    .tf32 = {.products = 6e10, .attention = 3e10, .bytes = 6e9},
    .half = {.products = 5.5e10, .attention = 3e10, .bytes = 2.5e9},
    .moved = 6e9,
    .call = 2e-6};
static const struct ek__rates gpu_rates = {
    .wide = {.products = 4e13, .attention = 2e13, .bytes = 3e12},
    .tf32 = {.products = 1e14, .attention = 4.7e13, .bytes = 3e12},
    .half = {.products = 2e14, .attention = 8e13, .bytes = 3e12},
    .moved = 2e11,
    .call = 5e-6};

static void times(struct ek__arithmetic *rates, double threads) {
  rates->products *= threads;
  rates->attention *= threads;
  rates->bytes *= threads;
}

static struct ek__rates rates_of(const ek_device *device) {
  if (strcmp(ek_device_backend(device), "cpu") != 0) return gpu_rates;
  struct ek__rates rates = cpu_rates;
  const double threads = ek_device_threads(device);
  times(&rates.wide, threads);
  times(&rates.tf32, threads);
  times(&rates.half, threads);
  rates.moved *= threads;
  return rates;
}

/* The name without the part of a GPU: "cuda:0#1" and "cuda:0#2" are on one. */
static bool on_one_gpu(const ek_device *left, const ek_device *right) {
  const char *name = ek_device_name(left), *other = ek_device_name(right);
  const size_t length = strcspn(name, "#");
  return name[length] == '#' && strncmp(name, other, length + 1) == 0;
}

static double count_gpus(const ek_group *group) {
  double gpus = 0;
  for (size_t k = 0; k < ek_group_size(group); k++) {
    const ek_device *device = ek_group_device(group, k);
    gpus += k == 0 || !on_one_gpu(device, ek_group_device(group, k - 1));
  }
  return gpus;
}

/* The resources that the devices of a CPU share. */
static ek_status read_machine(struct ek__advise_place *place) {
  ek_device_description machine[1];
  size_t count = 0;
  EK_TRY(ek_device_list(machine, &count, 1));
  const double at_once = (double)machine[0].cores / place->threads;
  place->together = machine[0].memory_bytes;
  place->at_once = at_once < 1 ? 1 : at_once;
  return EK_OK;
}

/* The devices that are planned for, and the link between the processes. */
static ek_status read_world(struct ek__advise_place *place, const ek_group *group,
                            const ek_advise_task *task) {
  place->world = ek__group_world_size(group);
  place->first_rank = ek__group_first_rank(group);
  place->link_bytes = task->link_bytes > 0 ? task->link_bytes : place->rates.moved;
  place->link_seconds = task->link_seconds;
  if (task->processes == 0) return EK_OK;
  EK__FAIL_IF(place->world != place->count, EK_ERR_INVALID_ARGUMENT,
              "ek_advise: the group has its place among %zu devices; task.processes is %zu, "
              "expected 0",
              place->world, task->processes);
  EK__FAIL_IF(task->processes > SIZE_MAX / place->count, EK_ERR_OVERFLOW,
              "ek_advise: %zu processes of %zu devices are too many", task->processes,
              place->count);
  place->world = task->processes * place->count;
  return EK_OK;
}

static ek_status read_place(struct ek__advise_place *place, const ek_group *group,
                            const ek_advise_task *task) {
  const ek_device *first = ek_group_device(group, 0);
  place->count = ek_group_size(group);
  place->threads = ek_device_threads(first);
  place->rates = rates_of(first);
  place->precisions = ek_device_precisions(first);
  place->at_once = count_gpus(group);
  EK_TRY(read_world(place, group, task));
  (void)snprintf(place->spec, sizeof place->spec, "%s:%zu",
                 ek_device_planner(first), place->count);
  EK_TRY(ek__new(&place->capacity, place->count, sizeof *place->capacity, "advice"));
  for (size_t k = 0; k < place->count; k++) {
    ek_memory_usage usage;
    EK_TRY(ek_memory_stats(&usage, ek_group_device(group, k)));
    place->capacity[k] = usage.capacity_bytes;
  }
  return strcmp(ek_device_backend(first), "cpu") == 0 ? read_machine(place) : EK_OK;
}

/* Opens the devices briefly to read their properties. */
static ek_status find_place(struct ek__advise_place *place, const char *devices,
                            const ek_advise_task *task) {
  const ek_trainer_options *trainer = task->trainer;
  if (trainer->group != NULL) return read_place(place, trainer->group, task);
  ek_group *group = NULL;
  EK_TRY(ek_group_open(&group, devices, trainer->group_options));
  const ek_status status = read_place(place, group, task);
  ek_group_free(group);
  return status;
}

/* ---- the search ---- */

enum { MOST_CUTS = 1 << 16 };

struct search {
  const ek_advise_task *task;
  struct ek__advise_place place;
  ek_advice *found;
  size_t count, capacity;
  ek_advice nearest; /* of those that do not fit; missing_bytes 0: none yet */
  bool ended;        /* all was looked at */
};

static ek_status add_found(struct search *s, const ek_advice *advice) {
  EK_TRY(ek__grow(&s->found, &s->capacity, s->count + 1, sizeof *s->found, "advice"));
  s->found[s->count++] = *advice;
  return EK_OK;
}

/* The samples that a device has at once at most, with one micro-batch. */
static int64_t most_rows(const struct search *s) {
  const int64_t devices = (int64_t)s->place.count;
  return (s->place.samples - 1) / devices + 1;
}

/* The fewest micro-batches with which no device has more than `rows` samples at once. */
static int64_t micro_batches_for(const struct search *s, int64_t rows) {
  const int64_t devices = (int64_t)s->place.count;
  if (rows >= most_rows(s)) return 1;
  return (s->place.samples - 1) / (rows * devices) + 1;
}

static ek_status plan_rows(struct ek__advise_plan *plan, struct search *s, ek_settings *settings,
                           int64_t rows) {
  settings->micro_batches = micro_batches_for(s, rows);
  EK_TRY(ek__advise_plan(plan, &s->place, s->task, settings));
  const ek_advice *advice = &plan->advice;
  if (advice->fits) return EK_OK;
  if (s->nearest.missing_bytes == 0 || advice->missing_bytes < s->nearest.missing_bytes) {
    s->nearest = *advice;
  }
  return EK_OK;
}

/* The point at which a peak that grows evenly between the two ends reaches the capacity. */
static int64_t interpolate(int64_t fitting, uint64_t room, int64_t beyond, uint64_t missing) {
  const double part = (double)room / ((double)room + (double)missing);
  const int64_t inside = beyond - fitting - 1;
  const int64_t step = (int64_t)((double)(beyond - fitting) * part);
  return fitting + (step < 1 ? 1 : step > inside ? inside : step);
}

/*
 * Between *fitting, with which *plan fits, and `beyond`, which lacks `missing` bytes. Peaks are
 * nearly straight lines, so a few interpolations find the place; a bisection after every two of
 * them bounds the search where a peak is no line.
 */
static ek_status find_most_rows(struct ek__advise_plan *plan, int64_t *fitting, struct search *s,
                                ek_settings *settings, int64_t beyond, uint64_t missing) {
  for (int i = 0; beyond - *fitting > 1; i++) {
    const int64_t next = i % 3 == 2 ? *fitting + (beyond - *fitting) / 2
                                    : interpolate(*fitting, plan->room, beyond, missing);
    struct ek__advise_plan tried;
    EK_TRY(plan_rows(&tried, s, settings, next));
    if (tried.advice.fits) {
      *fitting = next;
      *plan = tried;
    } else {
      beyond = next;
      missing = tried.advice.missing_bytes;
    }
  }
  return EK_OK;
}

/* The number of samples of the fullest device in a step, all micro-batches together. */
static int64_t rows_of_step(const struct search *s, int64_t rows) {
  const int64_t parts = micro_batches_for(s, rows), devices = (int64_t)s->place.count;
  const int64_t least = s->place.samples / parts, larger = s->place.samples % parts;
  return larger * (least / devices + 1) + (parts - larger) * ((least - 1) / devices + 1);
}

/* The most samples at once that take more micro-batches than `rows`; 0 if no number does. */
static int64_t next_rows(const struct search *s, int64_t rows) {
  return (most_rows(s) - 1) / micro_batches_for(s, rows);
}

/*
 * The next number of micro-batches that leaves the fullest device fewer samples in a step; 0: none.
 * n samples a device can be cut into at most 2 * sqrt(n) different numbers of micro-batches, so
 * MOST_CUTS are all of them up to 2^30 samples. Cuts beyond that number have far more
 * micro-batches, for a difference of a few samples, and would not be faster.
 */
static int64_t find_evener(const struct search *s, int64_t rows) {
  /* Each micro-batch rounds up by itself, so no cut leaves the fullest device fewer than these. */
  const int64_t now = rows_of_step(s, rows), fewest = most_rows(s);
  if (now == fewest) return 0;
  int64_t evener = rows;
  for (int i = 0; i < MOST_CUTS; i++) {
    evener = next_rows(s, evener);
    if (evener == 0 || rows_of_step(s, evener) < now) return evener;
  }
  return 0;
}

/* A few more micro-batches may be cut more evenly over the devices, and be faster. */
static ek_status try_evener(struct ek__advise_plan *plan, struct search *s, ek_settings *settings,
                            int64_t rows) {
  const int64_t evener = find_evener(s, rows);
  if (evener == 0) return EK_OK;
  struct ek__advise_plan tried;
  EK_TRY(plan_rows(&tried, s, settings, evener));
  if (tried.advice.fits && tried.advice.seconds < plan->advice.seconds) *plan = tried;
  return EK_OK;
}

/*
 * The most samples at once that fit, more than *rows, which becomes that number and stays what it
 * is if none fit. *hopeless: nor would they with any other recomputation.
 */
static ek_status search_rows(int64_t *rows, bool *hopeless, struct search *s,
                             ek_settings *settings) {
  const int64_t most = most_rows(s), least = *rows + 1;
  const uint64_t nearest = s->nearest.missing_bytes;
  struct ek__advise_plan plan;
  EK_TRY(plan_rows(&plan, s, settings, most));
  *hopeless = plan.lacking > 0 && (s->count > 0 || (nearest > 0 && plan.lacking >= nearest));
  int64_t fitting = most;
  if (!plan.advice.fits) {
    const uint64_t missing = plan.advice.missing_bytes;
    if (*hopeless || least == most) return EK_OK;
    EK_TRY(plan_rows(&plan, s, settings, least));
    if (!plan.advice.fits) return EK_OK;
    fitting = least;
    EK_TRY(find_most_rows(&plan, &fitting, s, settings, most, missing));
    EK_TRY(try_evener(&plan, s, settings, fitting));
  }
  *rows = fitting;
  return add_found(s, &plan.advice);
}

/* Recomputations, the cheapest first. One that costs more is worth it only with more samples at
 * once; `all` only where nothing else fits. */
static ek_status search_recompute(struct search *s, ek_settings *settings) {
  const ek_recompute *recompute = NULL;
  int64_t rows = 0;
  for (size_t i = 0; (recompute = ek__recompute_by_cost(i)) != NULL; i++) {
    bool hopeless = false;
    if (rows == most_rows(s) || (recompute->kind == EK_RECOMPUTE_ALL && rows > 0)) return EK_OK;
    settings->recompute = *recompute;
    const ek_status status = search_rows(&rows, &hopeless, s, settings);
    if (status == EK_ERR_UNSUPPORTED) continue;
    EK_TRY(status);
    if (hopeless) return EK_OK;
  }
  return EK_OK;
}

static unsigned count_modes(void) {
  unsigned count = 0;
  while (strcmp(ek_mode_name((ek_mode)count), "unknown") != 0) count++;
  return count;
}

/* With one master of the state, which is within a process. */
static bool has_master(unsigned mode) { return mode == EK_MODE_GATHER || mode == EK_MODE_BALANCED; }

static ek_status search_mode(struct search *s, unsigned mode, ek_precision precision,
                             ek_shard_over over) {
  for (int fused = 1; fused >= 0; fused--) {
    ek_settings settings = {.mode = (ek_mode)mode,
                            .fused_loss = fused == 1,
                            .precision = precision,
                            .shard_over = over};
    EK_TRY(search_recompute(s, &settings));
  }
  return EK_OK;
}

/* The last modes first: they hold least, and their results show which settings are hopeless. */
static ek_status search_modes(struct search *s, ek_precision precision) {
  const bool several = s->place.world > s->place.count;
  const struct ek__reduction *reduction = ek__reduction_of(s->task->trainer->model);
  for (unsigned mode = count_modes(); mode-- > 0;) {
    if (s->task->modes != 0 && (s->task->modes >> mode & 1) == 0) continue;
    if (several && has_master(mode)) continue;
    EK_TRY(search_mode(s, mode, precision, EK_SHARD_WORLD));
    if (!several || mode == EK_MODE_REPLICATED || !reduction->whole) continue;
    EK_TRY(search_mode(s, mode, precision, EK_SHARD_PROCESS));
  }
  return EK_OK;
}

/* Those of 16 bits first: they hold less. */
static ek_status search_precisions(struct search *s) {
  static const ek_precision precisions[] = {EK_PRECISION_F16, EK_PRECISION_BF16, EK_PRECISION_TF32,
                                            EK_PRECISION_F64, EK_PRECISION_F32};
  const ek_data_parallel_model_options *model = s->task->trainer->model;
  const unsigned asked = s->task->precisions;
  const unsigned usable = asked & s->place.precisions;
  char text[EK__TYPES_TEXT];
  if (asked == 0) {
    const bool own = model->precision != EK_PRECISION_DEFAULT;
    return search_modes(s, own ? model->precision : (ek_precision)model->type);
  }
  EK__FAIL_IF(usable == 0, EK_ERR_UNSUPPORTED, "ek_advise: the devices compute in %s",
              ek__types_text(text, s->place.precisions));
  for (size_t i = 0; i < sizeof precisions / sizeof precisions[0]; i++) {
    if ((usable >> precisions[i] & 1u) != 0) EK_TRY(search_modes(s, precisions[i]));
  }
  return EK_OK;
}

/* ---- the answer ---- */

static bool comes_before(const ek_advice *left, const ek_advice *right, double fastest) {
  const double thousandth = fastest / 1000;
  const double a = floor(left->seconds / thousandth), b = floor(right->seconds / thousandth);
  return a != b ? a < b : left->peak_bytes < right->peak_bytes;
}

static void sort_found(struct search *s) {
  double fastest = s->count > 0 ? s->found[0].seconds : 0;
  for (size_t i = 1; i < s->count; i++) fastest = fmin(fastest, s->found[i].seconds);
  for (size_t i = 1; i < s->count; i++) {
    const ek_advice advice = s->found[i];
    size_t to = i;
    for (; to > 0 && comes_before(&advice, &s->found[to - 1], fastest); to--) {
      s->found[to] = s->found[to - 1];
    }
    s->found[to] = advice;
  }
}

static ek_status nothing_fits(const struct search *s) {
  const ek_advice *nearest = &s->nearest;
  const ek_settings *settings = &nearest->settings;
  char recompute[EK_RECOMPUTE_TEXT], missing[32];
  EK__FAIL_IF(nearest->missing_bytes == 0, EK_ERR_UNSUPPORTED,
              "ek_advise: build gives no model for any of the settings");
  return ek_error_set(
      EK_ERR_OUT_OF_MEMORY,
      "ek_advise: nothing fits; mode %s, %s, recompute %s, %s loss, %lld micro-batch%s comes "
      "nearest and is short by %s",
      ek_mode_name(settings->mode), ek_precision_name(settings->precision),
      ek_recompute_format(recompute, &settings->recompute),
      settings->fused_loss ? "fused" : "whole", (long long)settings->micro_batches,
      settings->micro_batches == 1 ? "" : "es",
      ek__size_text(missing, sizeof missing, nearest->missing_bytes));
}

/* How many samples there are, and where. */
static ek_status look(struct search *s, const char *devices) {
  const ek_advise_task *task = s->task;
  const struct ek__batch batch = {task->inputs, task->targets, task->input_count,
                                  task->target_count, task->trainer->model->broadcast_inputs};
  EK_TRY(ek__batch_samples(&s->place.samples, &batch));
  EK__FAIL_IF(s->place.samples == 0, EK_ERR_INVALID_ARGUMENT, "ek_advise: the batch is empty");
  return find_place(&s->place, devices, task);
}

static ek_status find(struct search *s, const char *devices) {
  EK_TRY(look(s, devices));
  EK_TRY(search_precisions(s));
  s->ended = true;
  sort_found(s);
  return s->count > 0 ? EK_OK : nothing_fits(s);
}

static ek_status check_task(const ek_advise_task *task, const char *devices,
                            const ek_trainer_options *trainer) {
  EK__FAIL_IF(task->build == NULL || task->optimizer == NULL || task->inputs == NULL ||
                  task->input_count == 0,
              EK_ERR_INVALID_ARGUMENT,
              "ek_advise: the task's build, optimizer or inputs is missing");
  EK__FAIL_IF(task->targets == NULL && task->target_count > 0, EK_ERR_INVALID_ARGUMENT,
              "ek_advise: targets is NULL");
  EK_TRY(ek__check_number("ek_advise", "task.link_bytes", task->link_bytes));
  EK_TRY(ek__check_number("ek_advise", "task.link_seconds", task->link_seconds));
  EK__FAIL_IF((devices == NULL) == (trainer->group == NULL), EK_ERR_INVALID_ARGUMENT,
              "ek_advise: pass either a string of devices or the trainer's group, not both");
  return EK_OK;
}

/* The options of a task, whole: what they point to is of these. */
struct reading {
  ek_advise_task task;
  ek_trainer_options trainer;
  ek_data_parallel_model_options model;
};

static ek_status read_task(struct reading *r, const char *devices, const ek_advise_task *task) {
  *r = (struct reading){EK_ADVISE_TASK_INIT, EK_TRAINER_OPTIONS_INIT,
                        EK_DATA_PARALLEL_MODEL_OPTIONS_INIT};
  EK_TRY(ek__options_read(&r->task, sizeof r->task, task, "ek_advise_task"));
  EK_TRY(ek__options_read(&r->trainer, sizeof r->trainer, r->task.trainer, "ek_trainer_options"));
  EK_TRY(ek__options_read(&r->model, sizeof r->model, r->trainer.model,
                          "ek_data_parallel_model_options"));
  EK_TRY(check_task(&r->task, devices, &r->trainer));
  r->trainer.model = &r->model;
  r->task.trainer = &r->trainer;
  return EK_OK;
}

ek_status ek_advise(ek_advice *choices, size_t *count, size_t capacity, const char *devices,
                    const ek_advise_task *task) {
  struct reading reading;
  EK__NOT_NULL("ek_advise", count, task);
  EK__FAIL_IF(choices == NULL && capacity > 0, EK_ERR_INVALID_ARGUMENT,
              "ek_advise: choices is NULL");
  *count = 0;
  EK_TRY(read_task(&reading, devices, task));
  struct search s = {.task = &reading.task};
  const ek_status status = find(&s, devices);
  const bool nearest = s.ended && status == EK_ERR_OUT_OF_MEMORY;
  const ek_advice *from = nearest ? &s.nearest : s.found;
  const size_t there = nearest ? 1 : status == EK_OK ? s.count : 0;
  if (there > 0 && capacity > 0)
    memcpy(choices, from, (there < capacity ? there : capacity) * sizeof *from);
  *count = there;
  ek__free(s.found);
  ek__free(s.place.capacity);
  return status;
}

static ek_status check_settings(const struct ek__advise_place *place, const ek_settings *settings) {
  EK__FAIL_IF(settings->micro_batches < 1 || settings->micro_batches > place->samples,
              EK_ERR_INVALID_ARGUMENT,
              "ek_plan_step: %lld micro-batches of %lld samples; expected 1 to as many as samples",
              (long long)settings->micro_batches, (long long)place->samples);
  EK__FAIL_IF(place->world > place->count && has_master(settings->mode), EK_ERR_UNSUPPORTED,
              "ek_plan_step: mode %s keeps the state on one device, which works within one "
              "process; expected replicated or a sharded mode",
              ek_mode_name(settings->mode));
  return EK_OK;
}

ek_status ek_plan_step(ek_advice *advice, const char *devices, const ek_advise_task *task,
                       const ek_settings *settings) {
  struct reading reading;
  struct ek__advise_plan plan;
  EK__NOT_NULL("ek_plan_step", advice, task, settings);
  EK_TRY(read_task(&reading, devices, task));
  struct search s = {.task = &reading.task};
  ek_status status = look(&s, devices);
  if (status == EK_OK) status = check_settings(&s.place, settings);
  if (status == EK_OK) status = ek__advise_plan(&plan, &s.place, s.task, settings);
  if (status == EK_OK) *advice = plan.advice;
  ek__free(s.place.capacity);
  return status;
}

EK__OPTIONS_INIT(ek_advise_task, EK_ADVISE_TASK_INIT)
