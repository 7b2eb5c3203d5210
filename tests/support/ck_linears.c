/*
 * ck_linears.c - two linear layers to train: see ck_linears.h.
 */
#include "ck_linears.h"

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
  ck_kept(ek_sequential_create(&it->module, parts, 2), it->module);
  for (int i = 0; i < 2; i++) ek_module_free(parts[i]);
  ck_kept(ek_mean_squared_error_create(&it->loss, EK_REDUCTION_MEAN), it->loss);
  ck_kept(ek_sgd_create(&it->rule, NULL), it->rule);
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  CK_WITH(ek_trainer_options, options, EK_TRAINER_OPTIONS_INIT, .group = it->group,
          .model = &model_options);
  ck_ok(ek_data_parallel_model_options_set_mode(&model_options, mode));
  model_options.precision = precision;
  ck_kept(ek_trainer_open(&it->trainer, NULL, it->module, it->loss, it->rule, &options),
          it->trainer);
}

ek_status ck_linears_step(struct ck_linears *it) {
  static float rows[CK_LINEARS_SAMPLES * CK_LINEARS_WIDTH];
  const int64_t shape[] = {CK_LINEARS_SAMPLES, it->width};
  CK_GOT(ek_tensor, batch, ek_tensor_host(&batch, rows, EK_F32, 2, shape));
  return ek_trainer_step(NULL, it->trainer, &batch, 1, &batch, 1);
}
