/*
 * ck_scaling.c - trainings with a loss scale: see ck_scaling.h.
 */
#include "ck_scaling.h"

struct ck_setup ck_scaling_setup(const struct ck_workload *workload, int placement,
                                 const ek_loss_scale *loss_scale) {
  struct ck_setup setup = ck_setup_at(workload, "cpu:3", placement);
  setup.loss_scale = loss_scale;
  return setup;
}

ek_loss_scale ck_scaling_fixed(double scale) {
  return (ek_loss_scale){.kind = EK_LOSS_SCALE_STATIC, .scale = scale};
}

ek_loss_scale ck_scaling_dynamic(double scale, int64_t interval) {
  CK_WITH(ek_loss_scale, rule, EK_LOSS_SCALE_INIT, .scale = scale, .interval = interval);
  return rule;
}

ek_status ck_scaling_step(struct ck_training *t, uint64_t number, bool two,
                          ek_step_result *result) {
  CK_HELD(struct ck_batch, batch,
          ck_batch_make(t->setup.workload, t->setup.options.type, CK_SCALING_SAMPLES, 0.2,
                        10 + number));
  struct ck_batch more = ck_batch_samples(&batch, 2, 4);
  ek_status status = EK_OK;
  if (two) status = ck_training_backward(t, &more, NULL, true, NULL);
  if (status == EK_OK) status = ck_training_step(t, &batch, result);
  return status;
}

void ck_scaling_same_results(const ek_step_result *got, const ek_step_result *want) {
  ck_assert(got->loss == want->loss && got->weight == want->weight);
  ck_assert(got->gradient_norm == want->gradient_norm);
  ck_assert(got->step == want->step && got->learning_rate == want->learning_rate);
  ck_assert(got->finite && want->finite && !got->skipped && !want->skipped);
}

int64_t ck_scaling_number(const struct ck_training *t, const char *name) {
  int64_t number = -1;
  ek_tensor host = {.type = EK_I64, .data = &number};
  ck_ok(ek_state_read(&host, t->model, name));
  return number;
}

ek_status ck_scaling_write(struct ck_training *t, const char *name, ek_type type, void *value) {
  const ek_tensor host = {.type = type, .data = value};
  return ek_state_write(t->model, name, &host);
}

double ck_scaling_scale(const struct ck_training *t) {
  double scale = 0;
  ek_tensor host = {.type = EK_F64, .data = &scale};
  ck_ok(ek_state_read(&host, t->model, "run/loss_scale"));
  ck_assert_double_eq(scale, ek_data_parallel_optimizer_loss_scale(t->optimizer));
  return scale;
}

void ck_scaling_overflow(struct ck_training *t, size_t device, uint64_t number, bool two,
                         bool with_result) {
  const double scale = ck_scaling_scale(t);
  const int64_t steps = ck_scaling_number(t, "run/step");
  CK_HELD(struct ck_snapshot, before, ck_snapshot_take(t));
  ek_step_result result = {.step = -1};
  ck_spike_at(device, (double)INFINITY);
  ck_ok(ck_scaling_step(t, number, two, with_result ? &result : NULL));
  ck_spike_nowhere();
  ck_snapshot_is("a step that overflowed", t, &before);
  ck_assert_int_eq(ck_scaling_number(t, "run/step"), steps);
  ck_assert_int_eq(ck_scaling_number(t, "run/good_steps"), 0);
  ck_assert_double_eq(ck_scaling_scale(t), scale / 2);
  if (!with_result) return;
  ck_assert(result.skipped && !result.finite && !isfinite(result.gradient_norm));
  ck_assert(isfinite(result.loss) && result.loss > 0);
  ck_assert_double_eq(result.loss_scale, scale);
  ck_assert_int_eq(result.step, steps);
}
