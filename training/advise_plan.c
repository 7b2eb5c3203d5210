/*
 * advise_plan.c - plans a training step with given settings: its peak, and the time it would take.
 *
 * A trainer is opened on devices that count, and takes two steps: the second finds the memory that
 * the first has left, and later steps would find the same. Of many micro-batches of one size three
 * are planned, the first, one for all in the middle, and the last: those in the middle find and
 * leave the same memory.
 *
 * After each micro-batch of the second step, and after the update, all devices wait for each other.
 * So its time is a sum over these, each as long as the device with the most work takes, or as all
 * devices take one after the other on the processors that there are.
 */
#include "advise_internal.h"

#include <stdatomic.h>

#include "core/alloc.h"
#include "core/error.h"
#include "device/arena.h"
#include "device/free_tree.h"
#include "batches.h"
#include "parallel/parallel_internal.h"

enum { PLANNED_STEPS = 2, PLANNED_PARTS = 3 };

/* Called when a device that counts has reached its limit. */
struct overflow_listener {
  struct ek__when_full base; /* first */
  atomic_bool full;
};

struct lap {
  double seconds, exchange_seconds, sent;
};

struct planning {
  struct overflow_listener listener;
  const struct ek__advise_place *place;
  ek_trainer *trainer;
  struct ek__batch batch;
  double *own;    /* of each */
  uint64_t sent, trips; /* of the process */
  struct lap lap; /* of the step so far */
};

/* ---- time ---- */

static double seconds_in(const struct ek__arithmetic *work, const struct ek__arithmetic *rates) {
  return work->products / rates->products + work->attention / rates->attention +
         work->bytes / rates->bytes;
}

static double seconds_of(const struct ek__work *work, const struct ek__rates *rates) {
  return seconds_in(&work->wide, &rates->wide) + seconds_in(&work->tf32, &rates->tf32) +
         seconds_in(&work->half, &rates->half) + work->moved / rates->moved +
         work->calls * rates->call;
}

/* The processes wait for each other as devices do, and for the link. */
static void take_exchange(struct planning *p, double times) {
  const struct ek__advise_place *place = p->place;
  const struct ek__work *work = ek__device_work(ek_group_device(ek_trainer_group(p->trainer), 0));
  const double sent = (double)(work->sent - p->sent), trips = (double)(work->trips - p->trips);
  const double seconds = sent / place->link_bytes + trips * place->link_seconds;
  p->lap.sent += times * sent;
  p->lap.exchange_seconds += times * seconds;
  p->lap.seconds += times * seconds;
  p->sent = work->sent;
  p->trips = work->trips;
}

/* Adds the time since the last lap, `times` as often as it was planned. */
static void take_lap(struct planning *p, double times) {
  const ek_group *group = ek_trainer_group(p->trainer);
  double most = 0, sum = 0;
  for (size_t k = 0; k < p->place->count; k++) {
    const struct ek__work *work = ek__device_work(ek_group_device(group, k));
    const double now = seconds_of(work, &p->place->rates), lap = now - p->own[k];
    if (lap > most) most = lap;
    sum += lap;
    p->own[k] = now;
  }
  const double shared = sum / p->place->at_once;
  p->lap.seconds += times * (shared > most ? shared : most);
  take_exchange(p, times);
}

/* ---- steps ---- */

/* A part of the batch as the trainer takes it, which stands for `times` equal ones; more: others
 * follow. */
static ek_status plan_part(struct planning *p, const struct ek__batch *batch, double times,
                           bool more) {
  const ek_forward_options options = EK_FORWARD_OPTIONS_INIT;
  EK_TRY(ek__batch_run(ek_trainer_model(p->trainer), ek_trainer_criterion(p->trainer), batch,
                       &options, more ? EK__NEXT_MORE : EK__NEXT_UPDATE));
  take_lap(p, times);
  return EK_OK;
}

/* Parts first .. first + like - 1 of `count` have one size. */
static ek_status plan_parts(struct planning *p, int64_t count, int64_t first, int64_t like) {
  const int64_t planned = like < PLANNED_PARTS ? like : PLANNED_PARTS;
  for (int64_t i = 0; i < planned; i++) {
    struct ek__batch_part part;
    const int64_t index = i + 1 < planned ? first + i : first + like - 1;
    const bool middle = planned == PLANNED_PARTS && i == 1;
    const struct ek__batch_cuts cuts = {.samples = p->place->samples, .count = count};
    ek__batch_cut(&part, &p->batch, &cuts, index);
    EK_TRY(plan_part(p, &part.batch, middle ? (double)(like - 2) : 1, index + 1 < count));
  }
  return EK_OK;
}

static ek_status plan_step(struct planning *p, int64_t micro_batches) {
  p->lap = (struct lap){0, 0, 0};
  if (micro_batches > 1) {
    const int64_t larger = p->place->samples % micro_batches;
    EK_TRY(plan_parts(p, micro_batches, 0, larger));
    EK_TRY(plan_parts(p, micro_batches, larger, micro_batches - larger));
  } else {
    EK_TRY(plan_part(p, &p->batch, 1, false));
  }
  EK_TRY(ek_data_parallel_optimizer_step(NULL, ek_trainer_optimizer(p->trainer)));
  take_lap(p, 1);
  return EK_OK;
}

/* ---- what it took ---- */

static uint64_t beyond(uint64_t bytes, uint64_t limit) { return bytes > limit ? bytes - limit : 0; }

static uint64_t larger_of(uint64_t left, uint64_t right) { return left > right ? left : right; }

static uint64_t smaller_of(uint64_t left, uint64_t right) { return left < right ? left : right; }

static ek_status read_memory(struct ek__advise_plan *plan, const struct planning *p) {
  const struct ek__advise_place *place = p->place;
  uint64_t peaks = 0, held = 0;
  plan->room = UINT64_MAX;
  for (size_t k = 0; k < place->count; k++) {
    ek_memory_usage usage;
    EK_TRY(ek_memory_stats(&usage, ek_group_device(ek_trainer_group(p->trainer), k)));
    ek_advice *advice = &plan->advice;
    if (usage.peak_bytes > advice->peak_bytes) {
      advice->peak_bytes = usage.peak_bytes;
      advice->fullest = k;
    }
    advice->missing_bytes =
        larger_of(advice->missing_bytes, beyond(usage.peak_bytes, place->capacity[k]));
    plan->lacking = larger_of(plan->lacking, beyond(usage.current_bytes, place->capacity[k]));
    plan->room = smaller_of(plan->room, beyond(place->capacity[k], usage.peak_bytes));
    peaks += usage.peak_bytes;
    held += usage.current_bytes;
  }
  if (place->together > 0) {
    plan->advice.missing_bytes =
        larger_of(plan->advice.missing_bytes, beyond(peaks, place->together));
    plan->lacking = larger_of(plan->lacking, beyond(held, place->together));
    plan->room = smaller_of(plan->room, beyond(place->together, peaks));
  }
  plan->advice.fits = plan->advice.missing_bytes == 0;
  return EK_OK;
}

/* ---- a plan ---- */

/* The listener is also called where the host had no memory for a record; then there is room. */
static void note_full(struct ek__when_full *self, const ek_device *device,
                      ek_memory_category category, uint64_t bytes) {
  struct overflow_listener *listener = (struct overflow_listener *)self;
  struct ek__arena *arena = ek__device_arena(device);
  (void)category;
  pthread_mutex_lock(&arena->mutex);
  const bool full = ek__free_tree_largest(arena->free) < bytes;
  pthread_mutex_unlock(&arena->mutex);
  if (full) atomic_store(&listener->full, true);
}

static void listen(struct planning *p) {
  const ek_group *group = ek_trainer_group(p->trainer);
  p->listener.base.call = note_full;
  for (size_t k = 0; k < p->place->count; k++) {
    ek__device_arena(ek_group_device(group, k))->when_full = &p->listener.base;
  }
}

/* A step that is too large to be counted does not fit either; what it lacks is at least this. */
static ek_status read_uncounted(struct ek__advise_plan *plan, const struct planning *p) {
  ek_advice *advice = &plan->advice;
  for (size_t k = 0; k < p->place->count; k++) {
    ek_memory_usage usage;
    EK_TRY(ek_memory_stats(&usage, ek_group_device(ek_trainer_group(p->trainer), k)));
    const uint64_t missing =
        beyond(usage.capacity_bytes, p->place->capacity[k]) + EK_MEMORY_UNIT;
    if (missing <= advice->missing_bytes) continue;
    advice->missing_bytes = missing;
    advice->peak_bytes = p->place->capacity[k] + missing;
    advice->fullest = k;
  }
  return EK_OK;
}

static ek_status open_trainer(struct planning *p, const ek_advise_task *task,
                              const ek_settings *settings, ek_module *module,
                              ek_criterion *criterion) {
  ek_trainer_options options = *task->trainer;
  ek_group_options group = EK_GROUP_OPTIONS_INIT;
  if (options.group_options != NULL) group = *options.group_options;
  group.threads_per_device = p->place->threads; /* some workspace grows with them */
  group.world = NULL; /* other processes are counted, and not asked */
  group.world_size = p->place->world;
  group.first_rank = p->place->first_rank;
  options.group_options = &group;
  options.group = NULL;
  ek_data_parallel_model_options model = *options.model;
  EK_TRY(ek_data_parallel_model_options_set_mode(&model, settings->mode));
  model.precision = settings->precision;
  model.shard_over = settings->shard_over;
  options.model = &model;
  options.micro_batches = 0;
  return ek_trainer_open(&p->trainer, p->place->spec, module, criterion, task->optimizer, &options);
}

static ek_status take_steps(struct planning *p, const ek_advise_task *task,
                            const ek_settings *settings, ek_module *module,
                            ek_criterion *criterion) {
  ek_tensor all[EK_MAX_INPUTS];
  EK__FAIL_IF(module == NULL, EK_ERR_INVALID_ARGUMENT, "ek_advise: build returned EK_OK without a "
                                                       "module");
  EK__FAIL_IF(ek_module_outputs(module) > EK_MAX_TENSORS, EK_ERR_INVALID_ARGUMENT,
              "ek_advise: %s has %zu outputs, expected 1", ek_module_kind(module),
              ek_module_outputs(module));
  EK_TRY(open_trainer(p, task, settings, module, criterion));
  listen(p);
  p->batch = ek__batch_for(all, module,
                           &(struct ek__batch){task->inputs, task->targets, task->input_count,
                                               task->target_count,
                                               task->trainer->model->broadcast_inputs});
  ek_status status = EK_OK;
  for (int i = 0; i < PLANNED_STEPS && status == EK_OK; i++) {
    status = plan_step(p, settings->micro_batches);
  }
  return status;
}

/* Frees all objects that exist; the message of a failure stays. */
static void close_planning(struct planning *p) {
  ek_trainer_free(p->trainer);
  ek__free(p->own);
}

ek_status ek__advise_plan(struct ek__advise_plan *plan, const struct ek__advise_place *place,
                          const ek_advise_task *task, const ek_settings *settings) {
  struct planning p = {.place = place};
  ek_module *module = NULL;
  ek_criterion *criterion = NULL;
  ek_status status = EK_OK;
  *plan = (struct ek__advise_plan){.advice.settings = *settings};
  EK_TRY(ek__new(&p.own, place->count, sizeof *p.own, "a plan"));
  EK_TRY_GOTO(status, task->build(task->context, settings, &module, &criterion), cleanup);
  status = take_steps(&p, task, settings, module, criterion);
  if ((status == EK_ERR_OUT_OF_MEMORY && atomic_load(&p.listener.full)) ||
      (status == EK_ERR_OVERFLOW && p.trainer != NULL)) {
    status = read_uncounted(plan, &p);
    goto cleanup;
  }
  EK_TRY_GOTO(status, status, cleanup);
  plan->advice.seconds = p.lap.seconds;
  plan->advice.exchange_seconds = p.lap.exchange_seconds;
  plan->advice.sent_bytes = (uint64_t)p.lap.sent;
  status = read_memory(plan, &p);
cleanup:
  close_planning(&p);
  ek_criterion_free(criterion);
  ek_module_free(module);
  return status;
}
