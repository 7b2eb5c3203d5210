/*
 * ck_criterion.c - a criterion on the device of a rig: see ck_criterion.h.
 */
#include "ck_criterion.h"

#include <evenkeel/host_memory.h>
#include <evenkeel/memory.h>

static ek_tensor terms_tensor(const struct ck_rig *rig, const ek_criterion *criterion, int rank) {
  const int64_t shape[] = {(int64_t)criterion->terms, 2};
  ek_tensor tensor = {0};
  ck_ok(ek_tensor_create(&tensor, rig->device, EK_MEMORY_WORKSPACE, EK_F64, rank, shape));
  return tensor;
}

struct ck_loss ck_loss_open(struct ck_rig *rig, ek_criterion *criterion, bool keep_outputs) {
  struct ck_loss loss = {.criterion = criterion};
  ek_criterion_pass_options options = EK_CRITERION_PASS_OPTIONS_INIT;
  options.keep_outputs = keep_outputs;
  options.type = rig->type;
  ck_assert_uint_le(criterion->outputs, CK_LOSS_OUTPUTS);
  ck_ok(ek_criterion_pass_open(&loss.pass, rig->device, criterion, &options));
  loss.totals = terms_tensor(rig, criterion, 2);
  loss.scales = terms_tensor(rig, criterion, 1);
  return loss;
}

void ck_loss_drop(struct ck_loss *loss) {
  for (size_t i = 0; i < CK_LOSS_OUTPUTS; i++) ek_tensor_free(&loss->gradients[i]);
}

void ck_loss_close(struct ck_loss *loss) {
  ck_loss_drop(loss);
  ek_tensor_free(&loss->totals);
  ek_tensor_free(&loss->scales);
  ek_criterion_pass_free(loss->pass);
  ek_criterion_free(loss->criterion);
}

void ck_loss_forward(struct ck_loss *loss, const ek_tensor *outputs, const ek_tensor *targets,
                     double *totals) {
  ck_set(&loss->totals, NULL); /* forward overwrites what is there */
  ck_ok(ek_criterion_pass_run_forward(loss->pass, outputs, targets, &loss->totals));
  if (totals != NULL) ck_get(totals, &loss->totals);
}

void ck_loss_forward_gradient(struct ck_loss *loss, const ek_tensor *outputs,
                              const ek_tensor *targets, double *totals) {
  ck_set(&loss->totals, NULL);
  ck_ok(ek_criterion_pass_run_forward_gradient(loss->pass, outputs, targets, &loss->totals));
  if (totals != NULL) ck_get(totals, &loss->totals);
}

void ck_loss_backward(struct ck_loss *loss, const ek_tensor *outputs, const ek_tensor *targets,
                      const double *scales, const ek_tensor *factors) {
  double ones[EK_MAX_TERMS];
  for (size_t i = 0; i < EK_MAX_TERMS; i++) ones[i] = 1.0;
  ck_loss_drop(loss);
  ck_set(&loss->scales, scales == NULL ? ones : scales);
  ck_ok(ek_criterion_pass_run_backward(loss->pass, outputs, targets, &loss->scales, factors,
                                       loss->gradients));
}

uint64_t ck_loss_bytes(const struct ck_rig *rig) {
  ek_memory_usage usage;
  ck_ok(ck_memory_stats(&usage, rig->device));
  return usage.current[EK_MEMORY_LOSS];
}

double ck_loss_of(void *context, const double *x) {
  const struct ck_loss_function *f = context;
  double totals[2 * EK_MAX_TERMS];
  ck_set(&f->outputs[f->output], x);
  ck_loss_forward(f->loss, f->outputs, f->targets, totals);
  return totals[2 * f->term];
}

/* ---- failures ---- */

struct attempt {
  struct ck_rig *rig;
  ek_criterion *criterion;
  const ek_tensor *outputs, *targets;
  ek_tensor totals, scales;
};

static ek_status attempt(struct attempt *a) {
  ek_tensor gradients[CK_LOSS_OUTPUTS] = {{0}};
  ek_criterion_pass *pass = NULL;
  ek_criterion_pass_options options = EK_CRITERION_PASS_OPTIONS_INIT;
  options.type = a->rig->type;
  options.keep_outputs = true; /* so that the gradient's allocation can fail too */
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek_criterion_pass_open(&pass, a->rig->device, a->criterion, &options),
              cleanup);
  EK_TRY_GOTO(status, ek_criterion_pass_run_forward(pass, a->outputs, a->targets, &a->totals),
              cleanup);
  EK_TRY_GOTO(
      status,
      ek_criterion_pass_run_backward(pass, a->outputs, a->targets, &a->scales, NULL, gradients),
      cleanup);

cleanup:
  for (size_t i = 0; i < CK_LOSS_OUTPUTS; i++) {
    ck_assert_msg(status == EK_OK || !ek_tensor_exists(&gradients[i]), "a gradient was left");
    ek_tensor_free(&gradients[i]);
  }
  ek_criterion_pass_free(pass);
  return status;
}

static void fail_at(const struct ck_rig *rig, bool host, uint64_t n) {
  if (host) {
    ek_host_memory_fail_at(n);
  } else {
    ck_ok(ek_memory_fail_at(rig->device, n));
  }
}

static void all_failures(struct attempt *a, bool host) {
  ek_memory_usage before, after;
  ck_ok(ck_memory_stats(&before, a->rig->device));
  for (uint64_t n = 1;; n++) {
    ck_assert_msg(n < 100, "it never succeeds");
    fail_at(a->rig, host, n);
    const ek_status status = attempt(a);
    fail_at(a->rig, host, 0);
    ck_ok(ck_memory_stats(&after, a->rig->device));
    ck_assert_uint_eq(after.current_bytes, before.current_bytes);
    ck_assert_int_eq(a->criterion->references, 1);
    if (status == EK_OK) break;
    ck_assert_msg(status == EK_ERR_OUT_OF_MEMORY, "failure %d: %s", (int)n, ek_error_message());
    ck_assert_str_ne(ek_error_message(), "");
  }
}

void ck_loss_failures(struct ck_rig *rig, ek_criterion *criterion, const ek_tensor *outputs,
                      const ek_tensor *targets) {
  const double ones[EK_MAX_TERMS] = {1.0};
  struct attempt a = {.rig = rig, .criterion = criterion, .outputs = outputs, .targets = targets};
  a.totals = terms_tensor(rig, criterion, 2);
  a.scales = terms_tensor(rig, criterion, 1);
  ck_set(&a.scales, ones);
  all_failures(&a, false);
  all_failures(&a, true);
  ek_tensor_free(&a.totals);
  ek_tensor_free(&a.scales);
}
