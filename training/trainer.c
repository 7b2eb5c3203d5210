/*
 * trainer.c - a model, its loss and its optimizer in one object.
 *
 * It uses public functions, except for two things: a micro-batch is one job of the workers
 * (micro_batches.c), and the sums of a loss over the parts of a batch are read from the criterion
 * (forward.h).
 *
 * A step that fails drops what it has begun, so that no activations are held until the next one.
 * trainer_predict.c has what a trainer does without gradients.
 */
#include <evenkeel/trainer.h>

#include <stdio.h>
#include <string.h>

#include "checkpoint_internal.h"
#include "core/alloc.h"
#include "core/error.h"
#include "core/log_internal.h"
#include "core/options.h"
#include "parallel/forward.h"
#include "parallel/optimizer_internal.h"
#include "device/device_internal.h"
#include "batches.h"
#include "trainer_internal.h"
#include "trainer_struct.h"

/* ---- opening and closing ---- */

/* The options of a trainer, and those of its parts in full. */
struct trainer_options {
  ek_trainer_options own;
  ek_data_parallel_model_options model;
  ek_data_parallel_criterion_options criterion;
  ek_data_parallel_optimizer_options optimizer;
};

static ek_status read_options(struct trainer_options *o, const ek_trainer_options *options) {
  *o = (struct trainer_options){EK_TRAINER_OPTIONS_INIT, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
                                EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT,
                                EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT};
  EK_TRY(ek__options_read(&o->own, sizeof o->own, options, "ek_trainer_options"));
  EK_TRY(ek__options_read(&o->model, sizeof o->model, o->own.model,
                          "ek_data_parallel_model_options"));
  EK_TRY(ek__options_read(&o->criterion, sizeof o->criterion, o->own.criterion,
                          "ek_data_parallel_criterion_options"));
  return ek__options_read(&o->optimizer, sizeof o->optimizer, o->own.optimizer,
                          "ek_data_parallel_optimizer_options");
}

static ek_status check_open(ek_trainer **trainer, const char *devices, const ek_module *module,
                            const ek_criterion *criterion, const ek_optimizer *optimizer,
                            const ek_trainer_options *o) {
  EK__NOT_NULL("ek_trainer_open", trainer, module);
  const bool has_loss = criterion != NULL || ek_module_is_criterion(module);
  EK__FAIL_IF(optimizer != NULL && !has_loss, EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_open: criterion is NULL, but %s does not compute its own loss",
              ek_module_kind(module));
  EK__FAIL_IF(optimizer == NULL && o->optimizer != NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_open: options.optimizer is given without an optimizer");
  EK__FAIL_IF(!has_loss && o->criterion != NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_open: options.criterion is given without a criterion");
  EK__FAIL_IF((devices == NULL) == (o->group == NULL) ||
                  (o->group != NULL && o->group_options != NULL),
              EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_open: pass either a string of devices (options.group_options is then "
              "allowed) or options.group");
  EK__FAIL_IF(o->group != NULL && o->world != NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_open: options.group was opened with its world; options.world is for "
              "`devices`");
  EK__FAIL_IF(o->micro_batches < 0, EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_open: options.micro_batches is %lld, expected 0 or more",
              (long long)o->micro_batches);
  return EK_OK;
}

static ek_status open_group(ek_group **group, const char *devices,
                            const struct trainer_options *o) {
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  EK_TRY(ek__options_read(&options, sizeof options, o->own.group_options, "ek_group_options"));
  if (!ek__reduction_of(&o->model)->whole) options.deterministic = true;
  if (o->own.world != NULL) options.world = o->own.world;
  return ek_group_open(group, devices, &options);
}

/* A trainer without an optimizer trains nothing, so no device has memory for gradients. */
static ek_status open_frozen(ek_trainer *self, ek_module *module,
                             ek_data_parallel_model_options *model) {
  ek_parameter_pattern *patterns = NULL;
  const size_t count = model->pattern_count;
  EK__FAIL_IF(count > 0 && model->patterns == NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_open: options.model->patterns is NULL, but %zu patterns are announced",
              count);
  EK_TRY(ek__new(&patterns, count + 1, sizeof *patterns, "patterns of parameters"));
  for (size_t i = 0; i < count; i++) patterns[i] = model->patterns[i];
  patterns[count] = (ek_parameter_pattern){.pattern = "*", .frozen = true};
  model->patterns = patterns;
  model->pattern_count = count + 1;
  const ek_status status = ek_data_parallel_model_open(&self->model, self->group, module, model);
  ek__free(patterns);
  return status;
}

/* Targets of a model that computes its loss itself are inputs of the model: its scalings are put
 * together in `all`. */
static ek_status join_scalings(ek_input_scaling all[EK_MAX_INPUTS], struct trainer_options *o,
                               const ek_module *module) {
  ek_data_parallel_model_options *model = &o->model;
  ek_data_parallel_criterion_options *loss = &o->criterion;
  const size_t inputs = ek_module_inputs(module) - ek_module_targets(module),
               given = model->input_scaling_count;
  if (ek_module_targets(module) == 0 || loss->target_scaling_count == 0) return EK_OK;
  EK__FAIL_IF(given > inputs || loss->target_scaling_count > ek_module_targets(module) ||
                  (given > 0 && model->input_scaling == NULL) || loss->target_scaling == NULL,
              EK_ERR_INVALID_ARGUMENT,
              "ek_trainer_open: %zu scalings of inputs and %zu of targets; %s takes %zu and %zu",
              given, loss->target_scaling_count, ek_module_kind(module), inputs,
              ek_module_targets(module));
  if (given > 0) memcpy(all, model->input_scaling, given * sizeof *all);
  memcpy(all + inputs, loss->target_scaling, loss->target_scaling_count * sizeof *all);
  model->input_scaling = all;
  model->input_scaling_count = inputs + loss->target_scaling_count;
  loss->target_scaling = NULL;
  loss->target_scaling_count = 0;
  return EK_OK;
}

static ek_status open_parts(ek_trainer *self, ek_module *module, ek_criterion *criterion,
                            ek_optimizer *optimizer, struct trainer_options *o) {
  ek_input_scaling all[EK_MAX_INPUTS] = {{0}};
  EK_TRY(join_scalings(all, o, module));
  if (criterion == NULL || ek_criterion_reduction(criterion) != EK_REDUCTION_NONE) {
    o->criterion.gradient_in_forward = !o->criterion.keep_outputs;
  }
  if (o->model.optimizer == NULL) o->model.optimizer = optimizer;
  EK_TRY(optimizer == NULL
             ? open_frozen(self, module, &o->model)
             : ek_data_parallel_model_open(&self->model, self->group, module, &o->model));
  if (criterion != NULL || ek_module_is_criterion(module)) {
    EK_TRY(ek_data_parallel_criterion_open(&self->criterion, self->model, criterion,
                                           &o->criterion));
  }
  if (optimizer == NULL) return EK_OK;
  return ek_data_parallel_optimizer_open(&self->optimizer, self->model, optimizer, &o->optimizer);
}

/* Loss and gradient are those of the whole batch except where a module mixes samples. */
static void warn_of_parts(const ek_trainer *self) {
  const ek_module *mixer = self->micro_batches > 1 ? ek__model_mixer(self->model) : NULL;
  if (mixer == NULL) return;
  ek__log(EK_LOG_WARNING,
          "ek_trainer_open: micro_batches is %lld: the statistics of %s are of one micro-batch, "
          "not of the whole batch",
          (long long)self->micro_batches, ek_module_kind(mixer));
}

/* All processes cut their batches into as many parts. */
static ek_status compare(const ek_trainer *self) {
  char line[64];
  (void)snprintf(line, sizeof line, "micro-batches = %lld\n", (long long)self->micro_batches);
  return ek__world_same(ek__group_world(self->group), "opening a trainer", line);
}

ek_status ek_trainer_open(ek_trainer **trainer, const char *devices, ek_module *module,
                          ek_criterion *criterion, ek_optimizer *optimizer,
                          const ek_trainer_options *options) {
  struct trainer_options o;
  EK_TRY(read_options(&o, options));
  EK_TRY(check_open(trainer, devices, module, criterion, optimizer, &o.own));
  ek_trainer *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, "a trainer"));
  ek_status status = EK_OK;
  self->group = o.own.group;
  self->module = module;
  self->output_count = ek_module_outputs(module);
  self->micro_batches = o.own.micro_batches;
  self->grains = o.model.reproducible;
  self->broadcast_inputs = o.model.broadcast_inputs;
  if (o.own.group == NULL) EK_TRY_GOTO(status, open_group(&self->group, devices, &o), cleanup);
  self->owns_group = o.own.group == NULL;
  EK_TRY_GOTO(status, open_parts(self, module, criterion, optimizer, &o), cleanup);
  EK_TRY_GOTO(status, compare(self), cleanup);
  warn_of_parts(self);
  *trainer = self;
  return EK_OK;
cleanup:
  ek_trainer_free(self);
  return status;
}

struct ek__trainer_cut ek__trainer_cut(const ek_trainer *trainer) {
  const int64_t parts = trainer->micro_batches;
  return (struct ek__trainer_cut){trainer->group, parts < 1 ? 1 : parts, trainer->grains};
}

static ek_status end_save(ek_trainer *self) {
  ek_checkpoint_write *write = self->write;
  self->write = NULL;
  return ek_checkpoint_end(write);
}

ek_status ek_trainer_close(ek_trainer *trainer) {
  if (trainer == NULL) return EK_OK;
  EK_TRY(ek__owner_enter(&trainer->owner, "ek_trainer_close", "the trainer"));
  (void)end_save(trainer);
  ek_data_parallel_optimizer_free(trainer->optimizer);
  ek_data_parallel_criterion_free(trainer->criterion);
  ek_data_parallel_model_free(trainer->model);
  trainer->optimizer = NULL;
  trainer->criterion = NULL;
  trainer->model = NULL;
  const ek_status status = trainer->owns_group ? ek_group_close(trainer->group) : EK_OK;
  ek__owner_leave(&trainer->owner);
  if (status != EK_OK) return status;
  ek__free(trainer);
  return EK_OK;
}

void ek_trainer_free(ek_trainer *trainer) {
  char before[EK__MESSAGE_SIZE];
  ek__error_keep(before);
  ek__error_restore(before, ek_trainer_close(trainer));
}

/* ---- steps ---- */

static ek_status check_open_still(const char *who, const ek_trainer *trainer) {
  EK__NOT_NULL(who, trainer);
  if (trainer->model != NULL) return EK_OK;
  return ek_error_set(EK_ERR_STATE, "%s: the trainer was freed; only its group remains", who);
}

ek_status ek__trainer_check_parts(const char *who, const ek_trainer *trainer, bool updates) {
  EK_TRY(check_open_still(who, trainer));
  EK__FAIL_IF(trainer->criterion == NULL, EK_ERR_STATE,
              "%s: the trainer was opened without a criterion: it only predicts", who);
  EK__FAIL_IF(updates && trainer->optimizer == NULL, EK_ERR_STATE,
              "%s: the trainer was opened without an optimizer: it only evaluates and predicts",
              who);
  return EK_OK;
}

ek_status ek__trainer_check_call(const char *who, const ek_trainer *trainer,
                                 const ek_tensor *inputs, const ek_tensor *targets,
                                 size_t target_count) {
  EK_TRY(check_open_still(who, trainer));
  EK__NOT_NULL(who, inputs);
  if (target_count > 0) EK__NOT_NULL(who, targets);
  return EK_OK;
}

/* Drops what a failed step has accumulated. The message stays the step's. */
static ek_status drop_step(ek_trainer *self, ek_status status) {
  char message[EK__MESSAGE_SIZE];
  (void)snprintf(message, sizeof message, "%s", ek_error_message());
  if (ek_data_parallel_model_discard(self->model) == EK_OK) return status;
  return ek_error_set(status, "%s", message);
}

/* Forward, loss and backward of a batch or of a part of it. */
static ek_status add_gradients(ek_trainer *self, const struct ek__batch *batch, bool training,
                               enum ek__next next) {
  ek_forward_options forward = EK_FORWARD_OPTIONS_INIT;
  forward.training = training;
  return ek__batch_run(self->model, self->criterion, batch, &forward, next);
}

ek_status ek__trainer_count_parts(int64_t *count, int64_t *samples, const ek_trainer *self,
                                  const struct ek__batch *batch) {
  *count = 1;
  if (self->micro_batches < 2) return EK_OK;
  EK_TRY(ek__batch_samples(samples, batch));
  if (ek__group_world(self->group) != NULL) {
    *count = self->micro_batches;
    return EK_OK;
  }
  if (*samples > 1) *count = *samples < self->micro_batches ? *samples : self->micro_batches;
  return EK_OK;
}

/* Those of a whole batch, in its parts. */
static ek_status add_batch(ek_trainer *self, const struct ek__batch *batch, bool training,
                           enum ek__next next) {
  int64_t samples = 0, count = 0;
  struct ek__batch_cuts cuts;
  EK_TRY(ek__trainer_count_parts(&count, &samples, self, batch));
  if (count < 2) return add_gradients(self, batch, training, next);
  EK_TRY(ek__batch_cuts_make(&cuts, self->model, samples, count));
  for (int64_t i = 0; i < count; i++) {
    struct ek__batch_part part;
    ek__batch_cut(&part, batch, &cuts, i);
    EK_TRY(add_gradients(self, &part.batch, training, i + 1 < count ? EK__NEXT_MORE : next));
  }
  return EK_OK;
}

struct ek__batch ek__trainer_batch(ek_tensor all[EK_MAX_INPUTS], const ek_trainer *self,
                                   const ek_tensor *inputs, size_t input_count,
                                   const ek_tensor *targets, size_t target_count) {
  return ek__batch_for(
      all, self->module,
      &(struct ek__batch){inputs, targets, input_count, target_count, self->broadcast_inputs});
}

/* What a step does with its result. */
enum result { DROPPED, READ, KEPT };

static ek_status run_step(ek_step_result *result, ek_trainer *trainer, const ek_tensor *inputs,
                          size_t input_count, const ek_tensor *targets, size_t target_count,
                          enum result use) {
  const char *who = use == KEPT ? "ek_trainer_step_begin" : "ek_trainer_step";
  EK_TRY(ek__trainer_check_parts(who, trainer, true));
  EK_TRY(ek__trainer_check_call(who, trainer, inputs, targets, target_count));
  EK__OWNER_ENTER(&trainer->owner, who, "the trainer");
  EK_TRY(ek__checkpoint_go_on(trainer->write));
  if (use == KEPT) EK_TRY(ek__optimizer_check_room(trainer->optimizer));
  ek_tensor all[EK_MAX_INPUTS];
  const struct ek__batch batch =
      ek__trainer_batch(all, trainer, inputs, input_count, targets, target_count);
  const bool norm = ek__update_takes_norm(trainer->model->update, use != DROPPED);
  ek_status status =
      add_batch(trainer, &batch, true, norm ? EK__NEXT_UPDATE_BY_NORM : EK__NEXT_UPDATE);
  if (status == EK_OK) {
    status = use == KEPT ? ek_data_parallel_optimizer_step_begin(trainer->optimizer)
                         : ek_data_parallel_optimizer_step(result, trainer->optimizer);
  }
  if (status != EK_OK) return drop_step(trainer, status);
  return EK_OK;
}

ek_status ek_trainer_step(ek_step_result *result, ek_trainer *trainer, const ek_tensor *inputs,
                          size_t input_count, const ek_tensor *targets, size_t target_count) {
  EK__NOT_NULL("ek_trainer_step", trainer);
  EK__WORLD_CALL(ek__group_world(trainer->group),
                 run_step(result, trainer, inputs, input_count, targets, target_count,
                          result == NULL ? DROPPED : READ));
}

ek_status ek_trainer_step_begin(ek_trainer *trainer, const ek_tensor *inputs, size_t input_count,
                                const ek_tensor *targets, size_t target_count) {
  EK__NOT_NULL("ek_trainer_step_begin", trainer);
  EK__WORLD_CALL(ek__group_world(trainer->group),
                 run_step(NULL, trainer, inputs, input_count, targets, target_count, KEPT));
}

ek_status ek_trainer_step_end(ek_step_result *result, ek_trainer *trainer) {
  EK__NOT_NULL("ek_trainer_step_end", result);
  EK_TRY(ek__trainer_check_parts("ek_trainer_step_end", trainer, true));
  EK__OWNER_ENTER(&trainer->owner, "ek_trainer_step_end", "the trainer");
  return ek_data_parallel_optimizer_step_end(result, trainer->optimizer);
}

/* With training off no module writes a buffer; masks and products' sizes do not depend on it. */
static ek_status run_prepare(ek_trainer *trainer, const ek_tensor *inputs, size_t input_count,
                             const ek_tensor *targets, size_t target_count) {
  EK_TRY(ek__trainer_check_parts("ek_trainer_prepare", trainer, true));
  EK_TRY(ek__trainer_check_call("ek_trainer_prepare", trainer, inputs, targets, target_count));
  EK__OWNER_ENTER(&trainer->owner, "ek_trainer_prepare", "the trainer");
  ek_tensor all[EK_MAX_INPUTS];
  const struct ek__batch batch =
      ek__trainer_batch(all, trainer, inputs, input_count, targets, target_count);
  ek_status status = add_batch(trainer, &batch, false, EK__NEXT_NOTHING);
  if (status == EK_OK) status = ek_group_synchronize(trainer->group);
  if (status != EK_OK) return drop_step(trainer, status);
  return ek_data_parallel_model_discard(trainer->model);
}

ek_status ek_trainer_prepare(ek_trainer *trainer, const ek_tensor *inputs, size_t input_count,
                             const ek_tensor *targets, size_t target_count) {
  EK__NOT_NULL("ek_trainer_prepare", trainer);
  EK__WORLD_CALL(ek__group_world(trainer->group),
                 run_prepare(trainer, inputs, input_count, targets, target_count));
}

/* ---- files ---- */

ek_status ek_trainer_save(ek_trainer *trainer, const char *folder,
                          const ek_checkpoint_options *options) {
  EK_TRY(check_open_still("ek_trainer_save", trainer));
  EK__OWNER_ENTER(&trainer->owner, "ek_trainer_save", "the trainer");
  EK_TRY(end_save(trainer));
  return ek_checkpoint_save(trainer->model, folder, options);
}

ek_status ek_trainer_save_begin(ek_trainer *trainer, const char *folder,
                                const ek_checkpoint_options *options) {
  EK_TRY(check_open_still("ek_trainer_save_begin", trainer));
  EK__OWNER_ENTER(&trainer->owner, "ek_trainer_save_begin", "the trainer");
  EK_TRY(end_save(trainer));
  return ek_checkpoint_begin(&trainer->write, trainer->model, folder, options);
}

ek_status ek_trainer_save_end(ek_trainer *trainer) {
  EK_TRY(check_open_still("ek_trainer_save_end", trainer));
  EK__OWNER_ENTER(&trainer->owner, "ek_trainer_save_end", "the trainer");
  return end_save(trainer);
}

ek_status ek_trainer_load(ek_checkpoint_info *info, ek_trainer *trainer, const char *path) {
  EK_TRY(check_open_still("ek_trainer_load", trainer));
  EK__OWNER_ENTER(&trainer->owner, "ek_trainer_load", "the trainer");
  EK_TRY(ek__checkpoint_wait(trainer->write)); /* its error is of the next save */
  return ek_checkpoint_load(info, trainer->model, path);
}

/* ---- parts ---- */

ek_group *ek_trainer_group(const ek_trainer *trainer) {
  return trainer == NULL ? NULL : trainer->group;
}

ek_data_parallel_model *ek_trainer_model(const ek_trainer *trainer) {
  return trainer == NULL ? NULL : trainer->model;
}

ek_data_parallel_criterion *ek_trainer_criterion(const ek_trainer *trainer) {
  return trainer == NULL ? NULL : trainer->criterion;
}

ek_data_parallel_optimizer *ek_trainer_optimizer(const ek_trainer *trainer) {
  return trainer == NULL ? NULL : trainer->optimizer;
}

EK__OPTIONS_INIT(ek_trainer_options, EK_TRAINER_OPTIONS_INIT)
