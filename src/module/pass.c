/*
 * pass.c - one forward and its backward on one device: what a pass gives to a module.
 *
 * The frame of the pass says whose parameters, saved tensors and random numbers these are: run.c.
 *
 * For every parameter the pass knows whether its gradient has been written in this step (`touched`:
 * the first user overwrites it instead of adding, so it need not be zeroed) and how many users have
 * not yet said that they are done (`waiting`).
 *
 * A freed pass stays with its replica, its tables included, so that the next step allocates
 * nothing.
 */
#include <evenkeel/pass.h>

#include <string.h>

#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "device/communicator_internal.h"
#include "module/pass_internal.h"

/* ---- an addition that a chain leaves to the next one ---- */

ek_status ek__sum_close(ek_pass *pass) {
  struct ek__open_sum *it = &pass->open_sum;
  if (!ek_tensor_exists(&it->residual)) return EK_OK;
  const ek_status status = ek_op_add(ek_pass_stream(pass), &it->place, &it->place, &it->residual);
  ek__sum_drop(pass);
  return status;
}

void ek__sum_drop(ek_pass *pass) {
  ek_tensor_free(&pass->open_sum.residual);
  pass->open_sum = (struct ek__open_sum){.place = {0}};
}

/* ---- what a module postpones ---- */

bool ek_pass_can_postpone(const ek_pass *pass) {
  if (pass == NULL || !pass->frame->backward || pass->frame->entered) return false;
  const bool lent = pass->lender != NULL && pass->lender->enter != NULL; /* and given back */
  return pass->replica->layout.collective && !lent && pass->exchange == NULL &&
         ek_communicator_world_size(pass->options.communicator) > 1;
}

void ek__postponed_drop(ek_pass *pass) {
  for (size_t i = 0; i < EK_MAX_POSTPONED; i++) ek_tensor_free(&pass->postponed.kept[i]);
  pass->postponed = (struct ek__postponed){.node = NULL};
}

/* Before another user adds to a gradient that a postponed backward adds to. */
static ek_status keep_order(ek_pass *pass, size_t global) {
  const struct ek__node *node = pass->postponed.node;
  for (size_t i = 0; node != NULL && i < node->parameter_count; i++) {
    if (node->parameters[i] == global) return ek__postponed_run(pass);
  }
  return EK_OK;
}

/* ---- opening and closing ---- */

static void destroy(struct ek__spare *spare) {
  ek_pass *pass = (ek_pass *)spare;
  ek__free(pass->saved);
  ek__free(pass->recipes);
  ek__free(pass->converted);
  ek__free(pass->records);
  ek__free(pass->extents);
  ek__free(pass->touched);
  ek__free(pass->waiting);
  ek__free(pass->wide);
  ek__free(pass);
}

static ek_status create(ek_pass **pass, ek_replica *replica) {
  const size_t parameters = replica->layout.parameter_count;
  ek_pass *made = NULL;
  EK_TRY(ek__new(&made, 1, sizeof *made, "a pass"));
  made->spare.free = destroy;
  made->replica = replica;
  ek_status status = ek__new(&made->touched, parameters, sizeof *made->touched, "a pass");
  if (status == EK_OK) {
    status = ek__new(&made->waiting, parameters, sizeof *made->waiting, "a pass");
  }
  const bool frozen = replica->layout.order_trained < replica->layout.order_count;
  if (status == EK_OK && (ek__replica_rounds_gradients(replica) || frozen)) {
    status = ek__new(&made->wide, parameters, sizeof *made->wide, "a pass");
  }
  if (status == EK_OK) {
    *pass = made;
  } else {
    destroy(&made->spare);
  }
  return status;
}

ek_status ek_pass_open(ek_pass **pass, ek_replica *replica, const ek_pass_options *options) {
  return ek__pass_open(pass, replica, options, NULL);
}

ek_status ek__pass_open(ek_pass **pass, ek_replica *replica, const ek_pass_options *options,
                        struct ek__lender *lender) {
  ek_pass_options o = EK_PASS_OPTIONS_INIT;
  EK__NOT_NULL("ek_pass_open", pass, replica);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_pass_options"));
  EK__FAIL_IF(o.first_sample < 0 || o.samples < 0, EK_ERR_INVALID_ARGUMENT,
              "ek_pass_open: options.first_sample is %lld, samples %lld; expected 0 or "
              "more",
              (long long)o.first_sample, (long long)o.samples);
  EK__FAIL_IF(o.gradient && lender == NULL && !ek__replica_has_gradients(replica), EK_ERR_STATE,
              "ek_pass_open: the replica does not hold whole gradients");
  EK__FAIL_IF(lender == NULL && !replica->whole_values, EK_ERR_STATE,
              "ek_pass_open: the replica holds only a part of each parameter");
  ek_pass *result = (ek_pass *)replica->spares;
  if (result != NULL) {
    replica->spares = result->spare.next;
  } else {
    EK_TRY(create(&result, replica));
  }
  result->options = o;
  result->lender = lender;
  result->exchange = NULL;
  result->outermost[0] = (struct ek__frame){.node = replica->layout.root,
                                            .precision = replica->precision,
                                            .children = replica->precision,
                                            .saving = o.gradient,
                                            .recipe = EK__NO_RECIPE};
  result->frame = result->outermost;
  result->record_count = result->extent_count = 0;
  result->named = 0;
  memset(result->lent, 0, sizeof result->lent);
  result->added = result->leaves_sum = false;
  result->stage = EK__PASS_OPENED;
  for (size_t i = 0; i < replica->layout.parameter_count; i++) {
    const struct ek__parameter *parameter = &replica->layout.parameters[i];
    result->touched[i] = o.accumulate && !parameter->frozen;
    result->waiting[i] = parameter->buffer ? 0 : parameter->users;
  }
  *pass = result;
  return EK_OK;
}

void ek_pass_free(ek_pass *pass) {
  if (pass == NULL) return;
  /* Frees in the order of backward, so that the arena sees the same sequence either way. */
  while (pass->saved_count > 0) ek__saved_drop(pass);
  ek__cast_drop_parameters(pass, 0);
  ek__drop_wide_gradients(pass);
  ek__sum_drop(pass);
  ek__postponed_drop(pass);
  pass->spare.next = pass->replica->spares;
  pass->replica->spares = &pass->spare;
}

/* ---- parameters and gradients ---- */

static ek_status global_index(size_t *global, const char *who, const ek_pass *pass, size_t index) {
  EK__NOT_NULL(who, pass);
  EK__FAIL_IF(index >= pass->frame->node->parameter_count, EK_ERR_INVALID_ARGUMENT,
              "%s: no parameter number %zu", who, index);
  *global = pass->frame->node->parameters[index];
  if (ek_type_of_sums(ek__pass_values(pass)) == pass->replica->type) return EK_OK;
  return ek_error_set(EK_ERR_UNSUPPORTED, "%s: %s is %s, but the module runs in %s", who,
                      pass->replica->layout.parameters[*global].name,
                      ek_type_name(pass->replica->type), ek_precision_name(pass->frame->precision));
}

static ek_status gradient_index(size_t *global, const char *who, const ek_pass *pass,
                                size_t index) {
  EK_TRY(global_index(global, who, pass, index));
  EK__FAIL_IF(pass->replica->layout.parameters[*global].buffer, EK_ERR_INVALID_ARGUMENT,
              "%s: %s is a buffer", who, pass->replica->layout.parameters[*global].name);
  EK__FAIL_IF(!pass->options.gradient, EK_ERR_STATE, "%s: this pass has no gradient", who);
  return EK_OK;
}

ek_status ek_pass_parameter(ek_tensor *parameter, ek_pass *pass, size_t index) {
  size_t global = 0;
  EK__NOT_NULL("ek_pass_parameter", parameter);
  EK_TRY(global_index(&global, "ek_pass_parameter", pass, index));
  const bool buffer = pass->replica->layout.parameters[global].buffer;
  if (!buffer && ek__pass_values(pass) != ek_precision_type(pass->replica->precision)) {
    return ek__cast_parameter(parameter, pass, global);
  }
  return ek__pass_value(parameter, pass, global);
}

int64_t ek_pass_padded_rows(const ek_pass *pass, size_t index, bool gradient) {
  if (pass == NULL || index >= pass->frame->node->parameter_count) return 0;
  const size_t global = pass->frame->node->parameters[index];
  const struct ek__parameter *p = &pass->replica->layout.parameters[global];
  const bool own = gradient ? !ek__replica_lends_gradient(pass->replica, global)
                            : ek__pass_values(pass) == ek_precision_type(pass->replica->precision);
  if (p->rank == 0) return 1;
  return own ? p->room / (p->count / p->shape[0]) : p->shape[0];
}

/* The gradient that a module adds to. */
static ek_status find_gradient(ek_tensor *gradient, ek_pass *pass, size_t global) {
  return ek__replica_lends_gradient(pass->replica, global)
             ? ek__wide_gradient(gradient, pass, global)
             : ek__kept_gradient(gradient, pass, global);
}

/* What is made to hold zeros after a table, which a step that was not finite may have changed. */
static ek_status zero_room(ek_pass *pass, size_t global, const ek_tensor *gradient) {
  const struct ek__parameter *p = &pass->replica->layout.parameters[global];
  ek_tensor rows = *gradient;
  if (p->room == p->count || ek__replica_lends_gradient(pass->replica, global)) return EK_OK;
  rows.rank = 1;
  rows.shape[0] = p->room - p->count;
  if (rows.data != NULL) {
    rows.data = (char *)rows.data + (size_t)p->count * ek_type_size(rows.type);
  }
  return ek_op_zero(ek_pass_stream(pass), &rows);
}

static ek_status zero_gradient(ek_pass *pass, size_t global, ek_tensor *gradient) {
  EK_TRY(ek_op_zero(ek_pass_stream(pass), gradient));
  pass->touched[global] = true;
  return EK_OK;
}

bool ek_pass_trains(const ek_pass *pass, size_t index) {
  if (pass == NULL || !pass->options.gradient) return false;
  if (index >= pass->frame->node->parameter_count) return false;
  const struct ek__parameter *parameter =
      &pass->replica->layout.parameters[pass->frame->node->parameters[index]];
  return !parameter->buffer && !parameter->frozen;
}

ek_status ek_pass_gradient(ek_tensor *gradient, double *beta, ek_pass *pass, size_t index) {
  size_t global = 0;
  EK__NOT_NULL("ek_pass_gradient", gradient);
  EK_TRY(gradient_index(&global, "ek_pass_gradient", pass, index));
  EK__FAIL_IF(pass->waiting[global] == 0, EK_ERR_STATE,
              "ek_pass_gradient: the gradient of %s was already reported complete",
              pass->replica->layout.parameters[global].name);
  EK_TRY(keep_order(pass, global));
  EK_TRY(find_gradient(gradient, pass, global));
  if (!pass->touched[global]) EK_TRY(zero_room(pass, global, gradient));
  if (beta != NULL) {
    *beta = pass->touched[global] ? 1.0 : 0.0;
    pass->touched[global] = true;
  } else if (!pass->touched[global]) {
    EK_TRY(zero_gradient(pass, global, gradient));
  }
  if (!pass->frame->backward) pass->added = true;
  return EK_OK;
}

static ek_status complete(ek_pass *pass, size_t global) {
  EK_TRY(ek__round_gradient(pass, global));
  if (pass->replica->layout.parameters[global].frozen) return EK_OK;
  if (!pass->touched[global]) {
    ek_tensor gradient;
    EK_TRY(ek__kept_gradient(&gradient, pass, global));
    EK_TRY(zero_room(pass, global, &gradient));
    EK_TRY(zero_gradient(pass, global, &gradient));
  }
  if (pass->options.complete == NULL) return EK_OK;
  return pass->options.complete(pass->options.context, pass, global);
}

ek_status ek_pass_gradient_complete(ek_pass *pass, size_t index) {
  size_t global = 0;
  EK_TRY(gradient_index(&global, "ek_pass_gradient_complete", pass, index));
  EK__FAIL_IF(pass->waiting[global] == 0, EK_ERR_STATE,
              "ek_pass_gradient_complete: %s was already reported complete",
              pass->replica->layout.parameters[global].name);
  return --pass->waiting[global] == 0 && pass->frame->backward ? complete(pass, global) : EK_OK;
}

/* Of parameters whose users were all done in forward; those that wait for no other user now. */
ek_status ek__pass_complete_early(ek_pass *pass) {
  for (size_t i = pass->replica->layout.parameter_count; i-- > 0;) {
    if (pass->waiting[i] > 0 || pass->replica->layout.parameters[i].buffer) continue;
    EK_TRY(complete(pass, i));
  }
  return EK_OK;
}

/* Parameters that no module has reported as complete are complete now. */
ek_status ek__pass_complete_rest(ek_pass *pass) {
  for (size_t i = pass->replica->layout.parameter_count; i-- > 0;) {
    if (pass->waiting[i] == 0) continue;
    pass->waiting[i] = 0;
    EK_TRY(complete(pass, i));
  }
  return EK_OK;
}

/* ---- memory ---- */

ek_status ek_pass_output(ek_tensor *tensor, ek_pass *pass, ek_type type, int rank,
                         const int64_t *shape) {
  EK__NOT_NULL("ek_pass_output", tensor, pass);
  const bool loss = pass->frame->node->terms > 0;
  return ek_tensor_create(tensor, pass->replica->device,
                          loss ? EK_MEMORY_LOSS : EK_MEMORY_ACTIVATIONS, type, rank, shape);
}

ek_status ek_pass_workspace(ek_tensor *tensor, ek_pass *pass, ek_type type, int rank,
                            const int64_t *shape) {
  EK__NOT_NULL("ek_pass_workspace", tensor, pass);
  if (!pass->frame->workspace.taken) {
    ek_memory_usage usage;
    EK_TRY(ek_memory_stats(&usage, pass->replica->device));
    pass->frame->workspace = (struct ek__workspace){true, usage.current[EK_MEMORY_WORKSPACE]};
  }
  return ek_tensor_create(tensor, pass->replica->device, EK_MEMORY_WORKSPACE, type, rank, shape);
}

ek_status ek_pass_save(ek_pass *pass, const ek_tensor *tensor) {
  EK__NOT_NULL("ek_pass_save", pass);
  EK__FAIL_IF(!ek_tensor_exists(tensor), EK_ERR_INVALID_ARGUMENT,
              "ek_pass_save: the tensor is NULL or absent");
  if (!pass->frame->saving) return EK_OK;
  return ek__saved_push(pass, tensor, ek__recipe_for(pass, tensor));
}

ek_status ek_pass_take(ek_tensor *tensor, ek_pass *pass) {
  EK__NOT_NULL("ek_pass_take", tensor, pass);
  EK__FAIL_IF(pass->saved_count <= pass->frame->floor, EK_ERR_STATE,
              "it takes more tensors back than it saved");
  return ek__saved_take(tensor, pass);
}

/* ---- the other devices ---- */

/* The device's other passes go on meanwhile. What they take and give back of workspace is no
 * doing of the functions that run in this one. */
static ek_status exchange(ek_pass *pass, ek_tensor *tensor) {
  ek_memory_usage before, after;
  EK_TRY(ek_memory_stats(&before, pass->replica->device));
  const ek_status status = pass->exchange->all_reduce(pass->exchange, tensor);
  EK_TRY(ek_memory_stats(&after, pass->replica->device));
  for (struct ek__frame *frame = pass->frame; frame != NULL; frame = frame->below) {
    frame->workspace.before +=
        after.current[EK_MEMORY_WORKSPACE] - before.current[EK_MEMORY_WORKSPACE];
  }
  return status;
}

/* What is postponed is done meanwhile. If that fails, the sum is still waited for: the others read
 * and write the tensor, which its owner frees. */
static ek_status sum(ek_pass *pass, ek_communicator *communicator, ek_tensor *tensor) {
  ek_device *device = pass->replica->device;
  EK_TRY(ek_communicator_all_reduce(communicator, device, tensor));
  const uint64_t number = ek__communicator_started(communicator, device);
  const ek_status status = ek__postponed_run(pass);
  if (status == EK_OK) return ek__communicator_wait_for(communicator, device, number);
  char kept[EK__MESSAGE_SIZE];
  ek__error_keep(kept);
  const ek_status waited = ek__communicator_wait_for(communicator, device, number);
  ek__error_restore(kept, waited);
  pass->named = ek__error_number(); /* the message that was kept has the name already */
  return status;
}

ek_status ek_pass_all_reduce(ek_pass *pass, ek_tensor *tensor) {
  static const char *const who = "ek_pass_all_reduce";
  EK__NOT_NULL(who, pass, tensor);
  EK__FAIL_IF(!ek__is_collective(pass->frame->node->module), EK_ERR_STATE,
              "%s: the module's table does not declare `collective`", who);
  EK_TRY(ek__check_tensors(who, pass, tensor, 1));
  EK_TRY(ek__communicator_can_sum(who, pass->replica->device, tensor->type));
  ek_communicator *communicator = pass->options.communicator;
  if (pass->exchange != NULL) return exchange(pass, tensor);
  return communicator == NULL ? EK_OK : sum(pass, communicator, tensor);
}

bool ek_pass_is_collective(const ek_pass *pass) {
  if (pass == NULL) return false;
  return pass->replica->layout.collective || (pass->lender != NULL && pass->lender->enter != NULL);
}

/* ---- losses, and gradients in the memory of what they belong to ---- */

ek_status ek_pass_totals(ek_tensor *totals, ek_pass *pass) {
  EK__NOT_NULL("ek_pass_totals", totals, pass);
  const int64_t shape[] = {(int64_t)pass->frame->node->terms, 2};
  EK__FAIL_IF(shape[0] == 0, EK_ERR_STATE, "ek_pass_totals: the module is not a criterion");
  const ek_tensor *place = pass->frame->promise.totals;
  if (place != NULL && !pass->frame->entered) return ek_tensor_share(totals, place);
  return ek_pass_output(totals, pass, EK_F64, 2, shape);
}

ek_status ek_pass_input_gradient(ek_tensor *gradient, ek_pass *pass, const ek_tensor *input) {
  static const char *const who = "ek_pass_input_gradient";
  EK__NOT_NULL(who, gradient, pass);
  EK__FAIL_IF(!ek_tensor_exists(input), EK_ERR_INVALID_ARGUMENT,
              "%s: the input is NULL or absent", who);
  EK__FAIL_IF(!pass->frame->backward, EK_ERR_STATE, "%s: only possible during a backward", who);
  const int others = ek_tensor_holders(input) - 1;
  const int runner = ek__pass_was_lent(pass, input->memory) ? 1 : 0;
  if (input->memory != NULL && others <= runner) return ek_tensor_share(gradient, input);
  return ek_pass_output(gradient, pass, input->type, input->rank, input->shape);
}

bool ek_pass_known_scale(double *scale, const ek_pass *pass) {
  if (scale == NULL || pass == NULL || !pass->frame->saving) return false;
  if (pass->frame->promise.gradient_now == 0) return false;
  *scale = pass->frame->promise.gradient_now;
  return true;
}

/* True if it has no other holder, and each caller on the way from its holder allows overwriting. */
static bool is_left(const ek_pass *pass, const ek_tensor *input) {
  if (input->memory == NULL || ek_tensor_holders(input) != 1) return false;
  if (ek__recipe_for(pass, input) != EK__NO_RECIPE) return false;
  for (const struct ek__frame *frame = pass->frame; frame->inputs != NULL; frame = frame->below) {
    bool lent = false;
    if (frame->entered) continue; /* inputs are of the one below */
    for (size_t i = 0; i < frame->node->inputs; i++) {
      lent = lent || frame->inputs[i].memory == input->memory;
    }
    if (!lent) return true;
    if (!frame->promise.overwrite_inputs) return false;
  }
  return true;
}

bool ek_pass_gradient_now(double *scale, ek_pass *pass) {
  double known = 0;
  if (scale == NULL || !ek_pass_known_scale(&known, pass)) return false;
  const struct ek__frame *frame = pass->frame;
  if (frame->inputs == NULL || frame->entered) return false;
  for (size_t i = 0; i < frame->node->inputs - frame->node->targets; i++) {
    if (!is_left(pass, &frame->inputs[i])) return false;
  }
  *scale = known;
  pass->frame->written = true;
  return true;
}

/* ---- where and how it runs ---- */

ek_module *ek_pass_module(const ek_pass *pass) {
  return pass == NULL ? NULL : pass->replica->module;
}

ek_device *ek_pass_device(const ek_pass *pass) {
  return pass == NULL ? NULL : pass->replica->device;
}

ek_stream *ek_pass_stream(const ek_pass *pass) {
  return pass == NULL ? NULL : ek__pass_stream(pass);
}

ek_type ek_pass_type(const ek_pass *pass) {
  return pass == NULL ? (ek_type)0 : ek__pass_values(pass);
}

bool ek_pass_wants_gradient(const ek_pass *pass) { return pass != NULL && pass->frame->saving; }

bool ek_pass_is_training(const ek_pass *pass) { return pass != NULL && pass->options.training; }

bool ek_pass_is_recomputing(const ek_pass *pass) { return pass != NULL && pass->frame->backward; }

bool ek_pass_runs_again(const ek_pass *pass) {
  return pass != NULL && pass->options.gradient && !pass->frame->saving;
}

bool ek_pass_wants_outputs(const ek_pass *pass) { return pass != NULL && !pass->frame->unread; }

void *ek_pass_state(const ek_pass *pass) { return pass == NULL ? NULL : pass->frame->node->state; }

ek_random_key ek_pass_random(const ek_pass *pass) {
  ek_random_key key = {0, 0, 0};
  if (pass == NULL) return key;
  key.seed = pass->options.seed;
  key.step = pass->options.step;
  key.stream = pass->frame->node->stream;
  return key;
}

int64_t ek_pass_first_sample(const ek_pass *pass) {
  return pass == NULL ? 0 : pass->options.first_sample;
}

EK__OPTIONS_INIT(ek_child_options, EK_CHILD_OPTIONS_INIT)
EK__OPTIONS_INIT(ek_pass_options, EK_PASS_OPTIONS_INIT)
