/*
 * data_parallel_optimizer.c - steps over the ranges that each device owns (optimizer_pieces.c).
 *
 * All memory is taken at opening. A step does everything that may fail before it writes anything,
 * so such a failure leaves parameters and state as they were. A failure inside the update itself
 * leaves the model torn (model_step.c).
 *
 * A model has one optimizer at a time, and one counter of steps, which masks, schedule and bias
 * corrections all follow. The counter belongs to the model and starts again when the optimizer is
 * freed.
 */
#include <evenkeel/data_parallel_optimizer.h>

#include <math.h>
#include <string.h>

#include <evenkeel/convert.h>
#include <evenkeel/elementwise.h>
#include <evenkeel/trace.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "device/types.h"
#include "forward.h"
#include "optimizer_internal.h"

/* ---- opening and closing ---- */

/* A rule takes no other parameters whole than when the model opened. */
static ek_status check_whole(const ek_data_parallel_model *model, const ek_optimizer *rule) {
  const ek_replica *replica = model->run.ranks[0].replica;
  for (size_t i = 0; i < ek_replica_parameter_count(replica); i++) {
    const char *name = replica->layout.parameters[i].name;
    const bool cut = ek__buckets_whole(&model->run.cut, i);
    const bool whole = ek__rule_takes(rule, replica, i);
    EK__FAIL_IF(whole && !cut, EK_ERR_INVALID_ARGUMENT,
                "%s takes %s whole, but the model was opened without this rule: give it in "
                "ek_data_parallel_model_options.optimizer",
                ek_optimizer_kind(rule), name);
    EK__FAIL_IF(cut && !whole, EK_ERR_INVALID_ARGUMENT,
                "the model was opened for a rule that takes %s whole, and %s does not", name,
                ek_optimizer_kind(rule));
  }
  return EK_OK;
}

static ek_status check_open(const ek_data_parallel_model *model, const ek_optimizer *optimizer) {
  const ek_optimizer_ops *ops = ek_optimizer_table(optimizer);
  EK__FAIL_IF(ops == NULL || ek_optimizer_states(optimizer) > EK_MAX_OPTIMIZER_STATES,
              EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_optimizer_open: the optimizer has %zu states, expected 0 to %d, or "
              "was changed since ek_optimizer_init()",
              ek_optimizer_states(optimizer), EK_MAX_OPTIMIZER_STATES);
  const unsigned types = EK__TABLE_TYPES(ops);
  EK_TRY(ek__types_check(types, model->options.type, ops->kind));
  EK_TRY(ek__types_check(types, model->options.gradient_type, ops->kind));
  EK_TRY(ek__model_check(model));
  EK_TRY(check_whole(model, optimizer));
  const bool takes = EK__TABLE_SLOT(ops, takes_decay);
  const struct ek__layout *layout = &model->run.ranks[0].replica->layout;
  for (size_t i = 0; i < layout->group_count && !takes; i++) {
    EK__FAIL_IF(layout->groups[i].weight_decay > 0, EK_ERR_UNSUPPORTED,
                "a pattern sets weight decay %g, but %s takes no weight decay from patterns "
                "(takes_decay in optimizer.h)",
                layout->groups[i].weight_decay, ops->kind);
  }
  if (model->update == NULL) return EK_OK;
  return ek_error_set(EK_ERR_STATE, "ek_data_parallel_optimizer_open: the model already has an "
                                    "optimizer; free it before opening another");
}

/* `given` may have been filled by hand; NULL: the rate of the rule. */
static ek_status read_schedule(ek_schedule *schedule, const ek_schedule *given,
                               const ek_optimizer *rule) {
  if (given == NULL) return ek_schedule_constant(schedule, ek_optimizer_learning_rate(rule));
  EK_TRY(ek_schedule_check(given));
  *schedule = *given;
  return EK_OK;
}

static ek_status open_optimizer(ek_data_parallel_optimizer **parallel,
                                ek_data_parallel_model *model, ek_optimizer *optimizer,
                                const ek_data_parallel_optimizer_options *options) {
  ek_data_parallel_optimizer_options o = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_data_parallel_optimizer_options"));
  if (o.loss_scale != NULL) EK_TRY(ek_loss_scale_check(o.loss_scale));
  EK__NOT_NULL("ek_data_parallel_optimizer_open", parallel, model, optimizer);
  EK__MODEL_ENTER(model, "optimizer open");
  EK_TRY(check_open(model, optimizer));
  ek_data_parallel_optimizer *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, "a data-parallel optimizer"));
  struct ek__update *update = &self->update;
  self->model = model;
  update->optimizer = ek_optimizer_share(optimizer);
  update->norm = o.gradient_norm;
  update->refuse = o.refuse_not_finite;
  if (model->options.precision == EK_PRECISION_F16 || model->options.gradient_type == EK_F16) {
    update->loss_scale = (ek_loss_scale)EK_LOSS_SCALE_INIT;
  }
  if (o.loss_scale != NULL) update->loss_scale = *o.loss_scale;
  update->scaler = ek_loss_scale_begin(&update->loss_scale);
  update->state_count = ek_optimizer_states(optimizer);
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, read_schedule(&update->schedule, o.schedule, optimizer), cleanup);
  EK_TRY_GOTO(status, ek__shares_open(model, update), cleanup);
  ek_device *device = model->run.ranks[0].device;
  EK_TRY_GOTO(status, ek__note_open(&update->forward, device), cleanup);
  EK_TRY_GOTO(status, ek__note_open(&update->square_norm, device), cleanup);
  EK_TRY_GOTO(status, ek__told_open(&update->told, model), cleanup);
  EK_TRY_GOTO(status, ek__update_same(model, update), cleanup);
  model->update = update;
  *parallel = self;
  return EK_OK;
cleanup:
  ek_data_parallel_optimizer_free(self);
  return status;
}

ek_status ek_data_parallel_optimizer_open(ek_data_parallel_optimizer **parallel,
                                          ek_data_parallel_model *model, ek_optimizer *optimizer,
                                          const ek_data_parallel_optimizer_options *options) {
  EK__WORLD_CALL(ek__model_world(model), open_optimizer(parallel, model, optimizer, options));
}

void ek_data_parallel_optimizer_free(ek_data_parallel_optimizer *parallel) {
  if (parallel == NULL) return;
  ek_data_parallel_model *model = parallel->model;
  if (model->update == &parallel->update) ek__model_lose_update(model);
  ek__shares_close(model, &parallel->update);
  ek__told_close(&parallel->update.told);
  ek__note_close(parallel->update.square_norm);
  ek__note_close(parallel->update.forward);
  ek_optimizer_free(parallel->update.optimizer);
  ek__free(parallel);
}

/* ---- the step, on a rank's worker ---- */

/* The rule may be a program's own: a message of failure names it. copy: the 16-bit copy that
 * modules see, NULL if they see the parameters. */
static ek_status run_rule(const ek_optimizer *rule, ek_device *device, ek_update *update,
                          ek_tensor *copy) {
  const ek_optimizer_ops *ops = ek_optimizer_table(rule);
  const bool writes = EK__TABLE_SLOT(ops, writes_copy);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  const uint64_t errors = ek__error_number();
  update->scale.copy = writes ? copy : NULL;
  const ek_status status = ops->update(rule, stream, update);
  if (status != EK_OK) ek__error_name(ops->kind, status, errors);
  if (status != EK_OK || writes || copy == NULL) return status;
  return ek_op_convert(stream, copy, update->parameters);
}

/* The elements of a span, as ek__span_range(); of a parameter that is taken whole in its shape. */
static ek_tensor view(const ek_tensor *flat, struct ek__span span, bool packed,
                      const ek_optimizer_parameter *whole) {
  ek_tensor tensor = ek__span_range(flat, span, packed);
  if (whole == NULL) return tensor;
  tensor.rank = whole->rank;
  memcpy(tensor.shape, whole->shape, sizeof tensor.shape);
  return tensor;
}

/* Range number `index` of those that the rank updates. */
static ek_status update_range(const ek_data_parallel_model *model, const struct ek__rank *rank,
                              ek_update *update, size_t index) {
  const struct ek__range *range = &rank->share.updates.list[index];
  const struct ek__placement *placement = ek__placement(model);
  const ek_replica *replica = rank->share.owner->replica;
  const struct ek__share *owner = &rank->share.owner->share;
  const struct ek__group *group = &replica->layout.groups[range->group];
  const struct ek__span span = range->span;
  const double rate = update->learning_rate;
  ek_tensor states[EK_MAX_OPTIMIZER_STATES] = {{0}}, copy = {0}, workspace = rank->share.workspace;
  ek_optimizer_parameter parameter;
  const bool whole = range->whole != EK__NO_PARAMETER;
  if (whole) parameter = ek__rule_parameter(replica, range->whole);
  update->whole = whole ? &parameter : NULL;
  update->workspace = whole && ek_tensor_exists(&workspace) ? &workspace : NULL;
  ek_tensor parameters = view(ek_replica_parameters(replica), span,
                              ek__model_shares_masters(model), update->whole);
  const ek_tensor gradients =
      view(ek_replica_gradients(replica), span, placement->gradient_shares, update->whole);
  for (size_t s = 0; s < model->update->state_count; s++) {
    const struct ek__span kept = {.first = range->states[s], .count = span.count};
    if (kept.first >= 0) states[s] = view(&owner->states[s], kept, false, update->whole);
  }
  update->no_decay = group->no_decay;
  update->learning_rate = rate * group->rate_scale;
  update->weight_decay = group->weight_decay;
  update->parameters = &parameters;
  update->gradients = &gradients;
  update->states = states;
  const bool mixed = ek__replica_is_mixed(replica);
  if (mixed) {
    copy = view(ek_replica_copies(replica), span, placement->parameter_shares, update->whole);
  }
  const ek_status status =
      run_rule(model->update->optimizer, rank->device, update, mixed ? &copy : NULL);
  update->learning_rate = rate;
  return status;
}

static ek_status update_ranges(ek_data_parallel_model *model, struct ek__rank *rank) {
  const double clip = ek_optimizer_clip_norm(model->update->optimizer);
  ek_update update = {.step = model->step.taken + 1,
                      .learning_rate = model->update->rate};
  if (model->step.divided || model->step.scaling.factor != 1) update.scale.totals = &rank->totals;
  update.scale.clip_norm = clip;
  if (clip > 0) update.scale.square_norm = &rank->share.square_norm;
  ek__model_update_begins(model);
  for (size_t i = 0; i < rank->share.updates.count; i++) {
    EK_TRY(update_range(model, rank, &update, i));
  }
  return EK_OK;
}

/*
 * Turns the totals into those of the gradient in memory: an update divides by D times the factor of
 * the loss scale, or by that factor alone. So rules, and the clipping in them, need not know the
 * scale. It is a power of two, so the quotients are the same. The step ends here, and with it its
 * totals.
 */
static ek_status scale_totals(const ek_data_parallel_model *model, struct ek__rank *rank) {
  ek_stream *stream = ek__rank_stream(rank);
  const double factor = model->step.scaling.factor;
  if (factor == 1) return EK_OK;
  if (model->step.divided) return ek_op_scale(stream, &rank->totals, &rank->totals, factor);
  return ek_op_fill(stream, &rank->totals, factor);
}

/* A step before and in its update. */
struct step_job {
  ek_data_parallel_model *model;
  bool norm, update;
  struct ek__note *note; /* that gets the norm before the update; or NULL */
};

/* Whether the ranks give each other what they have updated. */
static bool shares_update(const ek_data_parallel_model *model) {
  const struct ek__placement *placement = ek__placement(model);
  return placement->state_shares && !placement->parameter_shares;
}

/* How many conversations with other processes that takes; NCCL takes none. */
static size_t gathers_away(const ek_data_parallel_model *model) {
  const struct ek__ranks *run = &model->run;
  const bool away = shares_update(model) && run->cut.ranks > run->count;
  return away && run->totals_ride ? run->cut.trained : 0;
}

static ek_status step_one(void *context, struct ek__rank *rank) {
  const struct step_job *job = context;
  ek_data_parallel_model *model = job->model;
  if (job->norm) EK_TRY(model->run.reduction->norm(model, rank));
  if (job->note != NULL && rank->place == 0) {
    EK_TRY(ek__note_write(job->note, &rank->share.square_norm));
  }
  if (!job->update) return EK_OK;
  EK_TRY(scale_totals(model, rank));
  const ek_trace_span span = ek_trace_begin(rank->device, "update");
  const ek_status status = update_ranges(model, rank);
  ek_trace_end(span);
  EK_TRY(status);
  ek__group_keep(rank->device);
  return shares_update(model) ? ek__masters_share(model, rank, false) : EK_OK;
}

/*
 * ---- the result ----
 *
 * Of a step whose result is wanted later, or of one on a single device, rank 0 writes two notes
 * (device/note.h): the totals as the last backward begins, and the square of the norm before the
 * update. The host waits for the first before it queues the update, and for the second when it
 * needs the result. There is one note of each, because the totals of a step are read after the norm
 * of the step before has arrived.
 */

/* Whether a step whose gradient is not finite is skipped. */
static bool scales(const struct ek__update *update) {
  return update->loss_scale.kind != EK_LOSS_SCALE_NONE;
}

/* Waits until all devices have ended forward, while they have backward to do, so that what forward
 * finds wrong is known before anything is written. No rank has the totals before all have computed
 * theirs. */
static ek_status read_forward(ek_data_parallel_model *model, double totals[2]) {
  const struct ek__update *update = model->update;
  const ek_status status = ek__note_read(totals, update->forward);
  if (status != EK_OK && update->late) ek__model_tear(model); /* of a step that was begun before */
  EK_TRY(status);
  return ek__device_check_found(model->run.ranks[0].device);
}

/* All of a result except what its norm says; `norm`: it has one, or is going to. */
static void set_totals(struct ek__reading *reading, const ek_data_parallel_model *model, bool norm,
                       const double totals[2]) {
  const struct ek__step *step = &model->step;
  ek_step_result *result = &reading->result;
  const double weight = step->divided ? totals[1] : 0;
  result->empty = step->divided && totals[1] == 0;
  result->weight = weight;
  result->loss = !step->divided ? totals[0] : result->empty ? 0 : totals[0] / weight;
  result->gradient_norm = -1;
  /* On a `plan` device nothing is computed, so nothing is wrong. */
  result->finite = ek_device_counts_only(model->run.ranks[0].device) || isfinite(result->loss);
  result->learning_rate = model->update->rate;
  result->loss_scale = step->scaling.factor * step->scaling.unit;
  result->step = step->taken + 1;
  reading->factor = step->scaling.factor;
  reading->divided = step->divided;
  reading->norm = norm;
}

static void set_norm(struct ek__reading *reading, const ek_data_parallel_model *model,
                     double square_norm) {
  ek_step_result *result = &reading->result;
  if (!reading->norm) return;
  result->gradient_norm = sqrt(square_norm) / reading->factor;
  if (reading->divided) result->gradient_norm /= result->weight;
  if (result->empty && isfinite(square_norm)) result->gradient_norm = 0;
  if (ek_device_counts_only(model->run.ranks[0].device) || isfinite(square_norm)) return;
  result->finite = false;
  result->skipped = scales(model->update);
  result->step -= result->skipped;
}

/* After the update was queued. An error is of work before that update, which may have run all the
 * same: the model is torn. */
static ek_status read_norm(struct ek__reading *reading, ek_data_parallel_model *model) {
  double square_norm = NAN;
  const ek_status status = ek__note_read(&square_norm, model->update->square_norm);
  if (status != EK_OK) {
    ek__model_tear(model);
    return status;
  }
  set_norm(reading, model, square_norm);
  return EK_OK;
}

/* The same for the last step that was begun. */
static ek_status complete_begun(ek_data_parallel_model *model) {
  struct ek__update *update = model->update;
  if (!update->late) return EK_OK;
  update->late = false;
  const ek_status status = read_norm(&update->begun[update->begun_count - 1], model);
  if (status != EK_OK) update->begun_count--;
  return status;
}

/* ---- the step, for the caller ---- */

static ek_status read_numbers(struct ek__numbers *numbers, const ek_data_parallel_model *model,
                              bool norm) {
  const struct ek__rank *rank = &model->run.ranks[0];
  EK_TRY(ek__read_numbers(numbers->totals, 2, &rank->totals));
  return norm ? ek__read_numbers(&numbers->square_norm, 1, &rank->share.square_norm) : EK_OK;
}

/* Asks for the rate once, because a function of the program's may give it. */
static ek_status find_rate(struct ek__update *update, int64_t taken) {
  const double rate =
      update->held ? update->held_rate : ek_schedule_rate(&update->schedule, taken);
  EK__FAIL_IF(!(rate >= 0 && isfinite(rate)), EK_ERR_INVALID_ARGUMENT,
              "optimizer step: the schedule's function gives %g for step %lld; expected a finite "
              "number of at least 0",
              rate, (long long)taken);
  update->rate = rate;
  return EK_OK;
}

/* Whether to refuse a step that was read. An overflow by the loss scale alone is no reason. */
static ek_status check_read(const struct ek__update *update, const ek_step_result *read) {
  if (!update->refuse || read->finite || (read->skipped && isfinite(read->loss))) return EK_OK;
  return ek_error_set(EK_ERR_NOT_FINITE,
                      "optimizer step: the loss is %g and the norm of the gradient %g: the step "
                      "was discarded without an update",
                      read->loss, read->gradient_norm);
}

static ek_status run(struct step_job job) {
  return job.norm || job.update ? ek__ranks_apply(&job.model->run, step_one, &job) : EK_OK;
}

/* A job of its own: workers may read the sum in the memory of another rank. Where gradients are
 * shares each micro-batch was reduced. */
static ek_status reduce_rest(ek_data_parallel_model *model) {
  const bool shares = ek__placement(model)->gradient_shares;
  if (model->step.stage == EK__STEP_ACCUMULATED && !shares) {
    EK_TRY(ek__ranks_apply(&model->run, model->run.reduction->rest, model));
  }
  model->step.stage = EK__STEP_REDUCED;
  return EK_OK;
}

/* The result of a step that its caller wants. */
enum wanted { NO_RESULT, NOW, LATER };

/* When the result of a step is read, if something depends on it, or if the caller wants it. */
enum reading {
  NO_READING,
  BEFORE_UPDATE, /* all of it: it decides whether there is an update, or the gradient's sum over the
                  * ranks may yet fail */
  BESIDE_UPDATE  /* the totals when forward has ended, the norm after the update was queued */
};

static enum reading reading_for(const ek_data_parallel_model *model, enum wanted wanted) {
  const struct ek__update *own = model->update;
  const bool alone = model->run.count == 1 && ek__model_world(model) == NULL;
  if (own->refuse || scales(own)) return BEFORE_UPDATE;
  if (wanted == NO_RESULT) return NO_READING;
  /* The optimizer came after backward, or the totals come with the agreement. */
  if (!ek__note_written(own->forward) || model->step.late != NULL) return BEFORE_UPDATE;
  return wanted == LATER || alone ? BESIDE_UPDATE : BEFORE_UPDATE;
}

/* What can be known of the step before its update. */
static ek_status read_before(struct ek__reading *reading, ek_data_parallel_model *model,
                             enum reading how, bool norm) {
  struct ek__numbers numbers = {{NAN, NAN}, NAN};
  if (how == BEFORE_UPDATE) EK_TRY(read_numbers(&numbers, model, norm));
  if (how == BESIDE_UPDATE) EK_TRY(read_forward(model, numbers.totals));
  EK_TRY(ek__update_agree(model, norm, &numbers));
  if (how == NO_READING) return EK_OK;
  set_totals(reading, model, norm, numbers.totals);
  if (how == BEFORE_UPDATE) set_norm(reading, model, numbers.square_norm);
  return how == BEFORE_UPDATE ? check_read(model->update, &reading->result) : EK_OK;
}

/*
 * Whatever decides whether there is an update is read before it, and errors of a device that can be
 * known are found before anything is written. Several processes agree there that none has failed;
 * what follows needs no memory. *late: the norm of the reading is to come.
 */
static ek_status step(struct ek__reading *reading, bool *late, ek_data_parallel_model *model,
                      enum wanted wanted) {
  const struct ek__update *own = model->update;
  const enum reading how = reading_for(model, wanted);
  ek_world *world = ek__model_world(model);
  const bool norm = ek__update_takes_norm(own, wanted != NO_RESULT);
  const bool due = norm && !model->step.norm;
  const bool before = how == BEFORE_UPDATE || world != NULL; /* the norm, in a job of its own */
  *late = how == BESIDE_UPDATE && norm;
  EK_TRY(find_rate(model->update, model->step.taken));
  EK_TRY(reduce_rest(model));
  EK_TRY(ek__terms_verify(model));
  EK_TRY(ek__norm_agree(model, norm));
  if (before) EK_TRY(run((struct step_job){.model = model, .norm = due}));
  EK_TRY(read_before(reading, model, how, norm));
  if (how != NO_READING) EK_TRY(complete_begun(model)); /* the note is needed again */
  if (reading->result.skipped) return EK_OK;
  /* From here on parameters are written; nothing below takes memory. */
  ek__world_part(world, gathers_away(model));
  const ek_status status = run((struct step_job){.model = model,
                                                 .norm = due && !before,
                                                 .update = true,
                                                 .note = *late ? own->square_norm : NULL});
  ek__world_rejoin(world);
  if (status == EK_OK) ek__model_update_ended(model);
  return status;
}

static ek_status take_step(ek_step_result *result, ek_data_parallel_model *model,
                           enum wanted wanted) {
  struct ek__update *update = model->update;
  struct ek__reading reading = {.result = {.step = 0}};
  bool late = false;
  const ek_status status = step(&reading, &late, model, wanted);
  const bool skipped = reading.result.skipped;
  if (status == EK_OK) {
    update->scaler = ek_loss_scale_next(&update->loss_scale, update->scaler, skipped);
  }
  ek__model_end_step(model, status == EK_OK && !skipped);
  if (status != EK_OK || wanted == NO_RESULT) return status;
  if (wanted == LATER) {
    update->begun[update->begun_count++] = reading;
    update->late = late;
    return EK_OK;
  }
  if (late) EK_TRY(read_norm(&reading, model));
  *result = reading.result;
  return EK_OK;
}

ek_status ek__optimizer_check_room(const ek_data_parallel_optimizer *parallel) {
  EK__FAIL_IF(parallel->update.begun_count == EK_MAX_STEPS_BEGUN, EK_ERR_STATE,
              "step_begin: the results of %d steps that were begun were not taken; call step_end",
              EK_MAX_STEPS_BEGUN);
  return EK_OK;
}

static ek_status run_step(ek_step_result *result, ek_data_parallel_optimizer *parallel,
                          enum wanted wanted) {
  ek_data_parallel_model *model = parallel->model;
  EK__MODEL_ENTER(model, "optimizer step");
  EK_TRY(ek__model_check_step(model));
  EK__FAIL_IF(model->step.stage == EK__STEP_EMPTY, EK_ERR_STATE,
              "no gradient: no backward has run since the last step");
  if (wanted == LATER) EK_TRY(ek__optimizer_check_room(parallel));
  return take_step(result, model, wanted);
}

ek_status ek_data_parallel_optimizer_step(ek_step_result *result,
                                          ek_data_parallel_optimizer *parallel) {
  EK__NOT_NULL("optimizer step", parallel);
  EK__WORLD_CALL(ek__model_world(parallel->model),
                 run_step(result, parallel, result == NULL ? NO_RESULT : NOW));
}

ek_status ek_data_parallel_optimizer_step_begin(ek_data_parallel_optimizer *parallel) {
  EK__NOT_NULL("optimizer step_begin", parallel);
  EK__WORLD_CALL(ek__model_world(parallel->model), run_step(NULL, parallel, LATER));
}

ek_status ek_data_parallel_optimizer_step_end(ek_step_result *result,
                                              ek_data_parallel_optimizer *parallel) {
  EK__NOT_NULL("optimizer step_end", parallel, result);
  struct ek__update *update = &parallel->update;
  EK__MODEL_ENTER(parallel->model, "optimizer step_end");
  EK__FAIL_IF(update->begun_count == 0, EK_ERR_STATE,
              "optimizer step_end: no step was begun whose result was not taken");
  if (update->begun_count == 1) EK_TRY(complete_begun(parallel->model));
  *result = update->begun[0].result;
  update->begun_count--;
  memmove(update->begun, update->begun + 1, update->begun_count * sizeof update->begun[0]);
  return EK_OK;
}

ek_status ek_data_parallel_optimizer_set_learning_rate(ek_data_parallel_optimizer *parallel,
                                                       double learning_rate) {
  EK__NOT_NULL("set_learning_rate", parallel);
  EK__MODEL_USE(parallel->model, "set_learning_rate");
  ek_schedule rate;
  EK_TRY(ek_schedule_constant(&rate, learning_rate));
  struct ek__update *update = &parallel->update;
  update->held = update->schedule.kind != EK_SCHEDULE_CONSTANT;
  update->held_rate = learning_rate;
  if (!update->held) update->schedule = rate;
  return EK_OK;
}

ek_status ek_data_parallel_optimizer_set_schedule(ek_data_parallel_optimizer *parallel,
                                                  const ek_schedule *schedule) {
  EK__NOT_NULL("set_schedule", parallel);
  EK__MODEL_USE(parallel->model, "set_schedule");
  if (schedule != NULL) {
    EK_TRY(read_schedule(&parallel->update.schedule, schedule, parallel->update.optimizer));
  }
  parallel->update.held = false;
  return EK_OK;
}

double ek_data_parallel_optimizer_loss_scale(const ek_data_parallel_optimizer *parallel) {
  return parallel == NULL ? 1 : parallel->update.scaler.scale;
}

int64_t ek_data_parallel_optimizer_steps(const ek_data_parallel_optimizer *parallel) {
  return parallel == NULL ? 0 : parallel->model->step.taken;
}

EK__OPTIONS_INIT(ek_data_parallel_optimizer_options, EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT)
