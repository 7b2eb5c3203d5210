/*
 * ck_running.c - see ck_running.h. In plain C over copies in host memory.
 */
#include "ck_running.h"

#include "ck_mirror.h"

enum { SCALE, SHIFT, OFFSET, MEAN, BATCHES, WIDTH = CK_RUNNING_WIDTH };

CK_PARAMETERS(running) {
  const int64_t shape[] = {WIDTH}, one[] = {1};
  const ek_initializer about_1 = ek_initializer_uniform(0.5, 1.5);
  EK_TRY(ek_declare_parameter(declaration, "scale", 1, shape, about_1));
  CK_WITH(ek_parameter_options, options, EK_PARAMETER_OPTIONS_INIT, .no_decay = true);
  EK_TRY(ek_declare_parameter_with(declaration, "shift", 1, shape, about_1, &options));
  options.frozen = true;
  EK_TRY(ek_declare_parameter_with(declaration, "offset", 1, shape, about_1, &options));
  EK_TRY(ek_declare_buffer(declaration, "mean", 1, shape, ek_initializer_zeros()));
  return ek_declare_buffer(declaration, "batches", 1, one, ek_initializer_zeros());
}

static ek_status follow(ek_pass *pass, const ek_tensor *x) {
  ek_tensor mean, batches;
  const int64_t rows = x->shape[0];
  EK_TRY(ek_pass_parameter(&mean, pass, MEAN));
  EK_TRY(ek_pass_parameter(&batches, pass, BATCHES));
  CK_MIRRORS(m, 2, &mean, &batches, x);
  for (int64_t c = 0; c < WIDTH && rows > 0; c++) {
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += ck_at(&m.host[2], r * WIDTH + c);
    ck_put(&m.host[0], c, 0.75 * ck_at(&m.host[0], c) + 0.25 * sum / (double)rows);
  }
  ck_put(&m.host[1], 0, ck_at(&m.host[1], 0) + 1);
  return ck_mirrors_close(&m);
}

CK_FORWARD(running) {
  const ek_tensor *x = &inputs[0];
  ek_tensor p[3];
  if (ek_pass_is_training(pass) && !ek_pass_is_recomputing(pass)) EK_TRY(follow(pass, x));
  for (size_t i = 0; i < 3; i++) EK_TRY(ek_pass_parameter(&p[i], pass, i));
  EK_TRY(ek_pass_output(&outputs[0], pass, ek_pass_type(pass), 2, x->shape));
  CK_MIRRORS(m, 1, &outputs[0], x, &p[SCALE], &p[SHIFT], &p[OFFSET]);
  for (int64_t i = 0; i < ek_tensor_count(x); i++) {
    const int64_t c = i % WIDTH;
    const double scaled = ck_at(&m.host[1], i) * ck_at(&m.host[2], c);
    ck_put(&m.host[0], i, scaled + ck_at(&m.host[3], c) + ck_at(&m.host[4], c));
  }
  EK_TRY(ck_mirrors_close(&m));
  return ek_pass_save(pass, x);
}

CK_BACKWARD(running) {
  CK_FREED(tensor) x = {0};
  ek_tensor g[3], scale;
  EK_TRY(ek_pass_take(&x, pass));
  for (size_t i = 0; i < 3; i++) EK_TRY(ek_pass_gradient(&g[i], NULL, pass, i));
  CK_MIRRORS(m, 3, &g[SCALE], &g[SHIFT], &g[OFFSET], &grad_outputs[0], &x);
  for (int64_t i = 0; i < ek_tensor_count(&x); i++) {
    const int64_t c = i % WIDTH;
    const double slope = ck_at(&m.host[3], i);
    ck_put(&m.host[SCALE], c, ck_at(&m.host[SCALE], c) + slope * ck_at(&m.host[4], i));
    ck_put(&m.host[SHIFT], c, ck_at(&m.host[SHIFT], c) + slope);
    ck_put(&m.host[OFFSET], c, ck_at(&m.host[OFFSET], c) + slope);
  }
  EK_TRY(ck_mirrors_close(&m));
  for (size_t i = 0; i < 3; i++) EK_TRY(ek_pass_gradient_complete(pass, i));
  if (grad_inputs == NULL) return EK_OK;
  EK_TRY(ek_pass_parameter(&scale, pass, SCALE));
  EK_TRY(ek_pass_output(&grad_inputs[0], pass, x.type, 2, x.shape));
  CK_MIRRORS(of_x, 1, &grad_inputs[0], &grad_outputs[0], &scale);
  for (int64_t i = 0; i < ek_tensor_count(&x); i++) {
    ck_put(&of_x.host[0], i, ck_at(&of_x.host[1], i) * ck_at(&of_x.host[2], i % WIDTH));
  }
  return ck_mirrors_close(&of_x);
}

CK_PLAIN_OPS(running, .parameters = running_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64);

ek_status ck_running_create(ek_module **module) {
  return ck_plain_create(module, &running_ops, 1, 1);
}
