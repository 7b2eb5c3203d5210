/*
 * misbehaviour_parts.c - see misbehaviour_parts.h.
 */
#include "misbehaviour_parts.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

struct trouble trouble;

/* ---- what all of them share ---- */

enum { MOST_LEAKS = 64 };
static ek_tensor leaked[MOST_LEAKS];
static size_t leaks;
static pthread_mutex_t leak_lock = PTHREAD_MUTEX_INITIALIZER;

static void leak(const ek_tensor *tensor) {
  pthread_mutex_lock(&leak_lock);
  FUZZ_EXPECT(leaks < MOST_LEAKS, "the harness leaks too much");
  leaked[leaks++] = *tensor;
  pthread_mutex_unlock(&leak_lock);
}

void misbehaviour_clean(void) {
  while (leaks > 0) ek_tensor_free(&leaked[--leaks]);
}

/* What this function is to do wrong, here. */
static enum misdeed misdeed_at(enum place place, const ek_device *device) {
  if (trouble.place != place || (trouble.devices >> ek_device_index(device) & 1) == 0) {
    return NO_MISDEED;
  }
  if (trouble.misdeed != NO_MISDEED) atomic_store(&trouble.done, true);
  return trouble.misdeed;
}

static ek_status fail(enum misdeed misdeed) {
  if (misdeed == FAILS) return ek_error_set(EK_ERR_IO, "the harness gives up");
  ek_error_clear();
  return misdeed == ODD_STATUS ? (ek_status)77 : EK_ERR_IO;
}

static bool is_failure(enum misdeed misdeed) {
  return misdeed == FAILS || misdeed == FAILS_SILENTLY || misdeed == ODD_STATUS;
}

/* Replaces a good result by a bad one. */
static ek_status spoil(ek_tensor *result, enum misdeed misdeed, ek_device *device) {
  static float host[64 * (WIDTH + 1)];
  int64_t shape[2] = {result->shape[0], result->shape[1]};
  const ek_type type = misdeed == OTHER_TYPE ? EK_I32 : result->type;
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  if (misdeed == INFINITIES) return ek_op_fill(stream, result, HUGE_VAL);
  if (misdeed == FEWER_ROWS && shape[0] > 0) shape[0]--;
  if (misdeed == OTHER_SHAPE) shape[1]++;
  if (misdeed == ELSEWHERE) {
    ek_group *group = ek_device_group(device);
    device = ek_group_device(group, (ek_device_index(device) + 1) % ek_group_size(group));
  }
  if (misdeed == NO_MEMORY) { /* of its own: nothing to read from, but a reference */
    result->data = NULL;
    return EK_OK;
  }
  if (misdeed == ODD_STRUCT) {
    if (shape[0] % 2 == 0) result->shape[1] = -1;
    if (shape[0] % 2 == 1) result->rank = EK_MAX_RANK + 1;
    return EK_OK;
  }
  ek_tensor_free(result);
  if (misdeed == MISSING) return EK_OK;
  if (misdeed == ON_THE_HOST) return ek_tensor_host(result, host, type, 2, shape);
  return ek_tensor_create(result, device, EK_MEMORY_ACTIVATIONS, type, 2, shape);
}

static bool spoils(enum misdeed misdeed) {
  return (misdeed >= MISSING && misdeed <= ODD_STRUCT) || misdeed == INFINITIES;
}

/* ---- the module ---- */

struct module {
  ek_module base;
  ek_module *child;
};

static ek_status module_parameters(const ek_module *base, ek_declaration *declaration) {
  const struct module *self = (const struct module *)base;
  static const int64_t shape[] = {WIDTH};
  EK_TRY(ek_declare_parameter(declaration, "p", 1, shape, ek_initializer_constant(0.5)));
  EK_TRY(ek_declare_buffer(declaration, "b", 1, shape, ek_initializer_zeros()));
  return self->child == NULL ? EK_OK : ek_declare_module(declaration, "child", self->child);
}

/* The statuses are those of mistakes: what counts is that nothing is broken by them. */
static void odd_calls(ek_pass *pass) {
  ek_tensor tensor = {0};
  ek_status status = ek_pass_parameter(&tensor, pass, 99);
  status = ek_pass_gradient(&tensor, NULL, pass, 99);
  status = ek_pass_gradient(&tensor, NULL, pass, 1); /* a buffer has none */
  status = ek_pass_gradient_complete(pass, 99);
  status = ek_pass_child_leave(pass);
  status = ek_pass_child_enter(pass, 99);
  status = ek_pass_child_forward(&tensor, pass, 99, &tensor);
  status = ek_pass_child_backward(&tensor, pass, 99, &tensor);
  status = ek_pass_run_backward(NULL, pass, &tensor);
  status = ek_pass_save(pass, &tensor);
  (void)status;
}

static ek_status leak_workspace(ek_pass *pass) {
  const int64_t shape[] = {3};
  ek_tensor tensor = {0};
  EK_TRY(ek_pass_workspace(&tensor, pass, EK_F32, 1, shape));
  leak(&tensor);
  return EK_OK;
}

static ek_status take_more(ek_pass *pass, enum misdeed misdeed) {
  ek_tensor tensor = {0};
  ek_status status = EK_OK;
  for (int i = 0; i < 8 && status == EK_OK; i++) {
    status = ek_pass_take(&tensor, pass);
    ek_tensor_free(&tensor);
  }
  return misdeed == TAKES_MORE ? status : EK_OK;
}

static ek_status run_child(const struct module *self, ek_pass *pass, const ek_tensor *x,
                           ek_tensor *y, enum misdeed misdeed) {
  ek_tensor first = {0};
  if (self->child == NULL || misdeed == NO_CHILD) {
    EK_TRY(ek_pass_output(y, pass, x->type, x->rank, x->shape));
    return ek_op_copy(ek_pass_stream(pass), y, x);
  }
  if (misdeed == CHILD_TWICE) EK_TRY(ek_pass_child_forward(&first, pass, 0, x));
  ek_tensor_free(&first);
  return ek_pass_child_forward(y, pass, 0, x);
}

static ek_status module_forward(const ek_module *base, ek_pass *pass, const ek_tensor *inputs,
                                ek_tensor *outputs) {
  const struct module *self = (const struct module *)base;
  ek_device *device = ek_pass_device(pass);
  const enum misdeed misdeed = misdeed_at(PLACE_FORWARD, device);
  ek_tensor p;
  if (misdeed == ODD_CALLS) odd_calls(pass);
  if (misdeed == LEAKS) EK_TRY(leak_workspace(pass));
  if (misdeed == TAKES_MORE || misdeed == TAKES_QUIETLY) EK_TRY(take_more(pass, misdeed));
  if (misdeed == SHARES) return ek_tensor_share(&outputs[0], &inputs[0]);
  EK_TRY(ek_pass_save(pass, &inputs[0]));
  if (misdeed == SAVES_MORE) EK_TRY(ek_pass_save(pass, &inputs[0]));
  EK_TRY(ek_pass_parameter(&p, pass, 0));
  EK_TRY(run_child(self, pass, &inputs[0], &outputs[0], misdeed));
  EK_TRY(ek_op_add_bias(ek_pass_stream(pass), &outputs[0], &p));
  if (is_failure(misdeed)) return fail(misdeed);
  return spoils(misdeed) ? spoil(&outputs[0], misdeed, device) : EK_OK;
}

static ek_status child_backward(const struct module *self, ek_pass *pass, const ek_tensor *dy,
                                ek_tensor *dx, enum misdeed misdeed) {
  ek_tensor first = {0};
  if (self->child == NULL || misdeed == NO_CHILD) {
    EK_TRY(ek_pass_output(dx, pass, dy->type, dy->rank, dy->shape));
    return ek_op_copy(ek_pass_stream(pass), dx, dy);
  }
  if (misdeed == CHILD_TWICE) {
    const ek_status status = ek_pass_child_backward(&first, pass, 0, dy);
    ek_tensor_free(&first);
    EK_TRY(status);
  }
  return ek_pass_child_backward(dx, pass, 0, dy);
}

static ek_status module_backward(const ek_module *base, ek_pass *pass,
                                 const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const struct module *self = (const struct module *)base;
  ek_device *device = ek_pass_device(pass);
  const enum misdeed misdeed = misdeed_at(PLACE_BACKWARD, device);
  ek_tensor saved = {0}, gradient, dx = {0};
  ek_status status = EK_OK;
  double beta = 0;
  if (misdeed == ODD_CALLS) odd_calls(pass);
  if (misdeed == LEAKS) EK_TRY(leak_workspace(pass));
  if (misdeed == SHARES && grad_inputs != NULL) {
    return ek_tensor_share(&grad_inputs[0], &grad_outputs[0]);
  }
  if (misdeed == TAKES_MORE || misdeed == TAKES_QUIETLY) EK_TRY(take_more(pass, misdeed));
  EK_TRY(ek_pass_gradient(&gradient, &beta, pass, 0));
  EK_TRY(ek_op_column_sum(ek_pass_stream(pass), &gradient, &grad_outputs[0], beta));
  if (misdeed == INFINITIES) EK_TRY(ek_op_fill(ek_pass_stream(pass), &gradient, -HUGE_VAL));
  EK_TRY(ek_pass_gradient_complete(pass, 0));
  EK_TRY(child_backward(self, pass, &grad_outputs[0], &dx, misdeed));
  if (misdeed != SAVES_MORE && misdeed != TAKES_QUIETLY) status = ek_pass_take(&saved, pass);
  ek_tensor_free(&saved);
  if (status == EK_OK && is_failure(misdeed)) status = fail(misdeed);
  if (status != EK_OK || grad_inputs == NULL) {
    ek_tensor_free(&dx);
    return status;
  }
  grad_inputs[0] = dx;
  return spoils(misdeed) ? spoil(&grad_inputs[0], misdeed, device) : EK_OK;
}

static void module_free(ek_module *base) {
  ek_module_free(((struct module *)base)->child);
  free(base);
}

ek_status misbehaving_module(ek_module **module, bool with_child) {
  static const ek_module_ops ops = {.size = sizeof(ek_module_ops),
                                    .types = EK_TYPES_F32 | EK_TYPES_F64, .kind = "misbehaving",
                                    .parameters = module_parameters, .forward = module_forward,
                                    .backward = module_backward, .free = module_free};
  struct module *self = calloc(1, sizeof *self);
  FUZZ_EXPECT(self != NULL, "the harness has no memory");
  FUZZ_OK(ek_module_init(&self->base, &ops, 1, 1));
  if (with_child) FUZZ_OK(ek_linear_create(&self->child, WIDTH, WIDTH, true));
  *module = &self->base;
  return EK_OK;
}

/* ---- the criterion ---- */

/* A result of a criterion that no caller frees. */
static ek_status leak_loss(ek_pass *pass) {
  const int64_t shape[] = {3};
  ek_tensor tensor = {0};
  EK_TRY(ek_pass_output(&tensor, pass, EK_F32, 1, shape));
  leak(&tensor);
  return EK_OK;
}

static void odd_loss_calls(ek_pass *pass) {
  ek_tensor tensor = {0};
  double scale = 0;
  ek_status status = ek_pass_parameter(&tensor, pass, 99);
  status = ek_pass_save(pass, &tensor);
  status = ek_pass_input_gradient(&tensor, pass, &tensor);
  (void)ek_pass_gradient_now(&scale, pass); /* and writes none */
  (void)status;
}

static ek_status loss_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                              ek_tensor *outputs) {
  const enum misdeed misdeed = misdeed_at(PLACE_LOSS, ek_pass_device(pass));
  ek_stream *stream = ek_pass_stream(pass);
  (void)self;
  if (misdeed == ODD_CALLS) odd_loss_calls(pass);
  if (misdeed == LEAKS) EK_TRY(leak_loss(pass));
  if (misdeed == TAKES_MORE || misdeed == TAKES_QUIETLY) EK_TRY(take_more(pass, misdeed));
  EK_TRY(ek_pass_save(pass, &inputs[0]));
  EK_TRY(ek_pass_save(pass, &inputs[1]));
  if (misdeed == SAVES_MORE) EK_TRY(ek_pass_save(pass, &inputs[1]));
  if (is_failure(misdeed)) return fail(misdeed);
  EK_TRY(ek_pass_totals(&outputs[0], pass));
  EK_TRY(ek_op_squared_error_forward(stream, NULL, &outputs[0], &inputs[0], &inputs[1]));
  return misdeed == INFINITIES ? ek_op_fill(stream, &outputs[0], HUGE_VAL) : EK_OK;
}

static ek_status compute_gradient(ek_pass *pass, ek_tensor *gradient, const ek_tensor *y,
                                  const ek_tensor *target, const ek_tensor *scales) {
  const ek_tensor scale = ek_criterion_scale(scales, 0);
  EK_TRY(ek_pass_input_gradient(gradient, pass, y));
  return ek_op_squared_error_backward(ek_pass_stream(pass), gradient, y, target, &scale, NULL);
}

static ek_status loss_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                               ek_tensor *grad_inputs) {
  ek_device *device = ek_pass_device(pass);
  const enum misdeed misdeed = misdeed_at(PLACE_LOSS_BACKWARD, device);
  ek_tensor target = {0}, y = {0};
  ek_status status = EK_OK;
  (void)self;
  if (misdeed == ODD_CALLS) odd_loss_calls(pass);
  if (misdeed == LEAKS) EK_TRY(leak_loss(pass));
  if (misdeed == TAKES_MORE || misdeed == TAKES_QUIETLY) EK_TRY(take_more(pass, misdeed));
  if (misdeed == SAVES_MORE) return EK_OK; /* and takes nothing back */
  EK_TRY_GOTO(status, ek_pass_take(&target, pass), cleanup);
  EK_TRY_GOTO(status, ek_pass_take(&y, pass), cleanup);
  if (misdeed == SHARES) {
    status = ek_tensor_share(&grad_inputs[0], &target);
    goto cleanup;
  }
  EK_TRY_GOTO(status, compute_gradient(pass, &grad_inputs[0], &y, &target, &grad_outputs[0]),
              cleanup);
  if (is_failure(misdeed)) status = fail(misdeed);
cleanup:
  ek_tensor_free(&target);
  ek_tensor_free(&y);
  if (status != EK_OK) return status;
  return spoils(misdeed) ? spoil(&grad_inputs[0], misdeed, device) : EK_OK;
}

static void loss_free(ek_module *self) { free(self); }

ek_status misbehaving_criterion(ek_criterion **criterion) {
  static const ek_module_ops ops = {.size = sizeof(ek_module_ops),
                                    .types = EK_TYPES_F32 | EK_TYPES_F64, .kind = "misbehaving",
                                    .forward = loss_forward, .backward = loss_backward,
                                    .free = loss_free};
  *criterion = calloc(1, sizeof **criterion);
  FUZZ_EXPECT(*criterion != NULL, "the harness has no memory");
  return ek_criterion_init(*criterion, &ops, 1, 1, EK_REDUCTION_MEAN);
}

/* ---- the update rule ---- */

static ek_status rule_update(const ek_optimizer *self, ek_stream *stream, const ek_update *update) {
  const enum misdeed misdeed = misdeed_at(PLACE_UPDATE, ek_stream_device(stream));
  const ek_sgd_terms terms = {.learning_rate = update->learning_rate};
  (void)self;
  if (misdeed == FAILS || misdeed == ODD_STATUS) return fail(misdeed);
  EK_TRY(ek_op_sgd(stream, update->parameters, NULL, update->gradients, &terms, &update->scale));
  EK_TRY(ek_op_fill(stream, &update->states[0], (double)update->step));
  if (misdeed == INFINITIES) return ek_op_fill(stream, update->parameters, HUGE_VAL);
  /* After it has written. */
  return misdeed == FAILS_SILENTLY ? fail(misdeed) : EK_OK;
}

static void rule_free(ek_optimizer *self) { free(self); }

ek_status misbehaving_rule(ek_optimizer **rule) {
  static const ek_optimizer_ops ops = {.size = sizeof(ek_optimizer_ops),
                                       .types = EK_TYPES_F32 | EK_TYPES_F64, .kind = "misbehaving",
                                       .update = rule_update, .free = rule_free};
  *rule = calloc(1, sizeof **rule);
  FUZZ_EXPECT(*rule != NULL, "the harness has no memory");
  return ek_optimizer_init(*rule, &ops, 1, 0.125, 0);
}
