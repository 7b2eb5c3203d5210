/*
 * ck_criterion.c - a criterion on the device of a rig: see ck_criterion.h.
 */
#include "ck_criterion.h"

static ek_tensor terms_tensor(const struct ck_rig *rig, const ek_criterion *criterion) {
  const int64_t shape[] = {(int64_t)ek_module_terms(&criterion->base), 2};
  ek_tensor tensor = {0};
  ck_ok(ek_tensor_create(&tensor, rig->device, EK_MEMORY_WORKSPACE, EK_F64, 2, shape));
  return tensor;
}

static ek_status open_replica(ek_replica **replica, const struct ck_rig *rig,
                              ek_criterion *criterion) {
  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .type = rig->type,
          .gradients = false);
  return ek_replica_open(replica, rig->device, &criterion->base, &options);
}

static void close_loss(void *loss) { ck_loss_close(loss); }

struct ck_loss *ck_loss_open(struct ck_rig *rig, ek_criterion *criterion, bool keep_outputs) {
  struct ck_loss *loss = calloc(1, sizeof *loss);
  ck_assert_ptr_nonnull(loss);
  ck_assert_uint_le(ek_criterion_outputs(criterion), CK_LOSS_OUTPUTS);
  loss->criterion = criterion;
  loss->keep_outputs = keep_outputs;
  ck_ok(open_replica(&loss->replica, rig, criterion));
  loss->totals = terms_tensor(rig, criterion);
  loss->scales = terms_tensor(rig, criterion);
  ck_keep_by(loss, close_loss);
  return loss;
}

static void drop_pass(struct ck_loss *loss) {
  ek_pass_free(loss->pass);
  loss->pass = NULL;
  ek_tensor_free(&loss->losses);
}

void ck_loss_drop(struct ck_loss *loss) {
  drop_pass(loss);
  for (size_t i = 0; i < CK_LOSS_OUTPUTS; i++) ek_tensor_free(&loss->gradients[i]);
}

void ck_loss_close(struct ck_loss *loss) {
  ck_forget(loss);
  ck_loss_drop(loss);
  ek_tensor_free(&loss->totals);
  ek_tensor_free(&loss->scales);
  ek_replica_free(loss->replica);
  ek_criterion_free(loss->criterion);
  free(loss);
}

ek_status ck_loss_try_forward(struct ck_loss *loss, const ek_tensor *outputs,
                              const ek_tensor *targets, bool now) {
  const ek_criterion *c = loss->criterion;
  ek_tensor inputs[EK_MAX_INPUTS] = {{0}}, results[EK_MAX_TENSORS] = {{0}};
  CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT, .training = false);
  const double *coefficients = ek_criterion_coefficients(c);
  ck_assign(options.promise, .overwrite_inputs = !loss->keep_outputs, .totals = &loss->totals);
  if (now) options.promise.gradient_now = coefficients == NULL ? 1 : coefficients[0];
  drop_pass(loss);
  for (size_t i = 0; i < ek_criterion_outputs(c); i++) inputs[i] = outputs[i];
  for (size_t i = 0; i < ek_module_targets(&c->base); i++) {
    inputs[ek_criterion_outputs(c) + i] = targets[i];
  }
  EK_TRY(ek_pass_open(&loss->pass, loss->replica, &options));
  EK_TRY(ek_pass_run_forward(results, loss->pass, inputs));
  ck_assert(results[0].data == loss->totals.data);
  ek_tensor_free(&results[0]);
  loss->losses = results[1];
  return EK_OK;
}

static void forward(struct ck_loss *loss, const ek_tensor *outputs, const ek_tensor *targets,
                    double *totals, bool now) {
  ck_set(&loss->totals, NULL); /* forward overwrites what is there */
  ck_ok(ck_loss_try_forward(loss, outputs, targets, now));
  if (totals != NULL) ck_get(totals, &loss->totals);
}

void ck_loss_forward(struct ck_loss *loss, const ek_tensor *outputs, const ek_tensor *targets,
                     double *totals) {
  forward(loss, outputs, targets, totals, false);
}

void ck_loss_forward_gradient(struct ck_loss *loss, const ek_tensor *outputs,
                              const ek_tensor *targets, double *totals) {
  forward(loss, outputs, targets, totals, true);
}

/* The gradient of the losses: the factors, or the first scale for each. */
static ek_status make_factors(ek_tensor *made, const struct ck_loss *loss,
                              const ek_tensor *factors) {
  const ek_tensor *losses = &loss->losses;
  if (!ek_tensor_exists(losses)) return EK_OK;
  if (factors != NULL && ek_tensor_count(factors) == ek_tensor_count(losses)) {
    return ek_tensor_reshape(made, factors, losses->rank, losses->shape);
  }
  if (factors != NULL) return ek_tensor_share(made, factors); /* it will be refused */
  EK_TRY(ek_tensor_create(made, losses->device, EK_MEMORY_WORKSPACE, losses->type, losses->rank,
                          losses->shape));
  double scales[2 * EK_MAX_TERMS];
  ck_get(scales, &loss->scales);
  return ek_op_fill(ek_device_stream(made->device, EK_STREAM_COMPUTE), made, scales[0]);
}

ek_status ck_loss_try_backward(struct ck_loss *loss, const ek_tensor *factors) {
  ek_tensor made = {0}, results[EK_MAX_INPUTS] = {{0}};
  for (size_t i = 0; i < CK_LOSS_OUTPUTS; i++) ek_tensor_free(&loss->gradients[i]);
  EK_TRY(make_factors(&made, loss, factors));
  const ek_tensor gradients[] = {loss->scales, made};
  const ek_status status = ek_pass_run_backward(results, loss->pass, gradients);
  ek_tensor_free(&made);
  if (status != EK_OK) return status;
  for (size_t i = 0; i < ek_module_inputs(&loss->criterion->base); i++) {
    const bool target = i >= ek_criterion_outputs(loss->criterion);
    ck_assert_int_eq(ek_tensor_exists(&results[i]), !target);
    if (!target) loss->gradients[i] = results[i];
  }
  return EK_OK;
}

void ck_loss_backward(struct ck_loss *loss, const double *scales, const ek_tensor *factors) {
  double pairs[2 * EK_MAX_TERMS] = {0};
  for (size_t i = 0; i < EK_MAX_TERMS; i++) pairs[2 * i] = 1.0;
  for (size_t i = 0; i < ek_module_terms(&loss->criterion->base) && scales != NULL; i++) {
    pairs[2 * i] = scales[i];
  }
  ck_set(&loss->scales, pairs);
  ck_ok(ck_loss_try_backward(loss, factors));
}

uint64_t ck_loss_bytes(const struct ck_rig *rig) {
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, rig->device));
  return usage.current[EK_MEMORY_LOSS];
}

void ck_loss_gradient(struct ck_rig *rig, struct ck_loss *loss, ek_tensor *outputs,
                      const ek_tensor *targets, int64_t probes) {
  double totals[2 * EK_MAX_TERMS];
  ck_loss_forward(loss, outputs, targets, NULL);
  ck_loss_backward(loss, NULL, NULL);
  ck_gradient(rig, "the loss", outputs, &loss->gradients[0], probes,
              ck_loss_try_forward(loss, outputs, targets, false),
              (ck_get(totals, &loss->totals), totals[0]));
}

/* ---- failures ---- */

struct attempt {
  struct ck_rig *rig;
  ek_criterion *criterion;
  const ek_tensor *outputs, *targets;
  ek_tensor totals, scales;
};

static ek_status attempt(struct attempt *a) {
  /* Kept outputs, so that the gradient's allocation can fail too. */
  struct ck_loss loss = {
      .criterion = a->criterion, .keep_outputs = true, .totals = a->totals, .scales = a->scales};
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, open_replica(&loss.replica, a->rig, a->criterion), cleanup);
  EK_TRY_GOTO(status, ck_loss_try_forward(&loss, a->outputs, a->targets, false), cleanup);
  EK_TRY_GOTO(status, ck_loss_try_backward(&loss, NULL), cleanup);

cleanup:
  for (size_t i = 0; i < CK_LOSS_OUTPUTS; i++) {
    ck_assert_msg(status == EK_OK || !ek_tensor_exists(&loss.gradients[i]), "a gradient was left");
  }
  ck_loss_drop(&loss);
  ek_replica_free(loss.replica);
  return status;
}

static void all_failures(struct attempt *a, bool host) {
  ek_device *device = a->rig->device;
  const uint64_t before = ck_usage(device).current_bytes;
  uint64_t n = 0;
  for (bool failed = true; failed;) {
    failed = host ? ck_host_fails(&n, attempt(a)) : ck_device_fails(&n, device, attempt(a));
    ck_assert_uint_eq(ck_usage(device).current_bytes, before);
    ck_assert_int_eq(a->criterion->base.private_members.references, 1);
  }
}

void ck_loss_failures(struct ck_rig *rig, ek_criterion *criterion, const ek_tensor *outputs,
                      const ek_tensor *targets) {
  const double ones[2 * EK_MAX_TERMS] = {1.0};
  struct attempt a = {.rig = rig, .criterion = criterion, .outputs = outputs, .targets = targets};
  ck_assign(a, .totals = terms_tensor(rig, criterion), .scales = terms_tensor(rig, criterion));
  ck_set(&a.scales, ones);
  all_failures(&a, false);
  all_failures(&a, true);
  ek_tensor_free(&a.totals);
  ek_tensor_free(&a.scales);
}
