/*
 * ck_linears.c - two linear layers to train: see ck_linears.h.
 */
#include "ck_linears.h"

#include "ek_check.h"

void ck_linears_open(struct ck_linears *it, const char *spec, int64_t width, ek_mode mode) {
  ck_linears_open_in(it, spec, width, mode, EK_PRECISION_F32);
}

void ck_linears_open_in(struct ck_linears *it, const char *spec, int64_t width, ek_mode mode,
                        ek_precision precision) {
  ek_module *parts[2] = {NULL};
  ck_assert_int_le(width, CK_LINEARS_WIDTH);
  *it = (struct ck_linears){.width = width};
  it->group = ck_open(spec, 1);
  for (int i = 0; i < 2; i++) ck_ok(ek_linear_create(&parts[i], width, width, true));
  ck_ok(ek_sequential_create(&it->module, parts, 2));
  for (int i = 0; i < 2; i++) ek_module_free(parts[i]);
  ck_ok(ek_mean_squared_error_create(&it->loss, EK_REDUCTION_MEAN));
  ck_ok(ek_sgd_create(&it->rule, NULL));
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  options.group = it->group;
  options.model = &model_options;
  ck_ok(ek_data_parallel_model_options_set_mode(&model_options, mode));
  model_options.precision = precision;
  ck_ok(ek_trainer_open(&it->trainer, NULL, it->module, it->loss, it->rule, &options));
}

ek_status ck_linears_step(struct ck_linears *it) {
  static float rows[CK_LINEARS_SAMPLES * CK_LINEARS_WIDTH];
  const int64_t shape[] = {CK_LINEARS_SAMPLES, it->width};
  ek_tensor batch;
  ck_ok(ek_tensor_host(&batch, rows, EK_F32, 2, shape));
  return ek_trainer_step(NULL, it->trainer, &batch, 1, &batch, 1);
}

void ck_linears_close(struct ck_linears *it) {
  ek_trainer_free(it->trainer);
  ek_optimizer_free(it->rule);
  ek_criterion_free(it->loss);
  ek_module_free(it->module);
  ck_ok(ek_group_close(it->group));
}
