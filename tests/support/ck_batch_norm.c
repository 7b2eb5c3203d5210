/*
 * ck_batch_norm.c - modules with collectives: see ck_batch_norm.h.
 */
#include "ck_batch_norm.h"

#include "ck_mirror.h"

enum { WEIGHT, BIAS, MEAN, VARIANCE, BATCHES };

#define EPSILON 0.125
#define MOMENTUM 0.25

struct batch_norm {
  ek_module base;
  int64_t channels;
};

static int64_t channels_of(const ek_module *self) {
  return ((const struct batch_norm *)self)->channels;
}

CK_PARAMETERS(batch_norm) {
  const int64_t shape[] = {channels_of(self)}, one[] = {1};
  EK_TRY(ek_declare_parameter(declaration, "weight", 1, shape, ek_initializer_ones()));
  EK_TRY(ek_declare_parameter(declaration, "bias", 1, shape, ek_initializer_zeros()));
  EK_TRY(ek_declare_buffer(declaration, "mean", 1, shape, ek_initializer_zeros()));
  EK_TRY(ek_declare_buffer(declaration, "variance", 1, shape, ek_initializer_ones()));
  return ek_declare_buffer(declaration, "batches", 1, one, ek_initializer_zeros());
}

/* ---- forward ---- */

/* sums [2C + 1]: of x, of x * x, and the number of rows, over all devices. */
static ek_status add_up(ek_tensor *sums, ek_pass *pass, const ek_tensor *x, int64_t channels) {
  ek_tensor loan = *x;
  struct ck_mirrors m;
  ek_status status = ck_mirrors_open(&m, 1, (ek_tensor *[]){sums, &loan}, 2);
  for (int64_t i = 0; status == EK_OK && i < 2 * channels + 1; i++) ck_put(&m.host[0], i, 0);
  for (int64_t i = 0; status == EK_OK && i < ek_tensor_count(x); i++) {
    const double value = ck_at(&m.host[1], i);
    double *sum = (double *)m.host[0].data;
    sum[i % channels] += value;
    sum[channels + i % channels] += value * value;
  }
  if (status == EK_OK) ck_put(&m.host[0], 2 * channels, (double)x->shape[0]);
  EK_TRY(ck_mirrors_close(&m, status));
  return ek_pass_all_reduce(pass, sums);
}

/* sums become mean, 1 / deviation and the number of rows; the running ones follow. */
static ek_status statistics(ek_tensor *sums, ek_pass *pass, int64_t channels) {
  ek_tensor mean, variance, batches;
  struct ck_mirrors m;
  const bool first = !ek_pass_is_recomputing(pass);
  EK_TRY(ek_pass_parameter(&mean, pass, MEAN));
  EK_TRY(ek_pass_parameter(&variance, pass, VARIANCE));
  EK_TRY(ek_pass_parameter(&batches, pass, BATCHES));
  const ek_status status =
      ck_mirrors_open(&m, first ? 4 : 1, (ek_tensor *[]){sums, &mean, &variance, &batches}, 4);
  for (int64_t i = 0; status == EK_OK && i < channels; i++) {
    const double rows = ck_at(&m.host[0], 2 * channels), average = ck_at(&m.host[0], i) / rows;
    const double spread = ck_at(&m.host[0], channels + i) / rows - average * average;
    ck_put(&m.host[1], i, (1 - MOMENTUM) * ck_at(&m.host[1], i) + MOMENTUM * average);
    ck_put(&m.host[2], i, (1 - MOMENTUM) * ck_at(&m.host[2], i) + MOMENTUM * spread);
    ck_put(&m.host[0], i, average);
    ck_put(&m.host[0], channels + i, 1 / sqrt(spread + EPSILON));
  }
  if (status == EK_OK) ck_put(&m.host[3], 0, ck_at(&m.host[3], 0) + 1);
  return ck_mirrors_close(&m, status);
}

static ek_status running(ek_tensor *sums, ek_pass *pass, int64_t channels) {
  ek_tensor mean, variance;
  struct ck_mirrors m;
  EK_TRY(ek_pass_parameter(&mean, pass, MEAN));
  EK_TRY(ek_pass_parameter(&variance, pass, VARIANCE));
  const ek_status status = ck_mirrors_open(&m, 1, (ek_tensor *[]){sums, &mean, &variance}, 3);
  for (int64_t i = 0; status == EK_OK && i < channels; i++) {
    ck_put(&m.host[0], i, ck_at(&m.host[1], i));
    ck_put(&m.host[0], channels + i, 1 / sqrt(ck_at(&m.host[2], i) + EPSILON));
  }
  if (status == EK_OK) ck_put(&m.host[0], 2 * channels, 0); /* no gradient flows through them */
  return ck_mirrors_close(&m, status);
}

static ek_status normalize(ek_pass *pass, const ek_tensor *x, const ek_tensor *sums, ek_tensor *y,
                           int64_t channels) {
  ek_tensor weight, bias, loans[2] = {*x, *sums};
  struct ck_mirrors m;
  EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  EK_TRY(ek_pass_parameter(&bias, pass, BIAS));
  const ek_status status =
      ck_mirrors_open(&m, 1, (ek_tensor *[]){y, &weight, &bias, &loans[0], &loans[1]}, 5);
  for (int64_t i = 0; status == EK_OK && i < ek_tensor_count(x); i++) {
    const int64_t c = i % channels;
    const double normal =
        (ck_at(&m.host[3], i) - ck_at(&m.host[4], c)) * ck_at(&m.host[4], channels + c);
    ck_put(&m.host[0], i, ck_at(&m.host[1], c) * normal + ck_at(&m.host[2], c));
  }
  return ck_mirrors_close(&m, status);
}

CK_FORWARD(batch_norm) {
  const int64_t channels = channels_of(self), size[] = {2 * channels + 1};
  const ek_tensor *x = &inputs[0];
  ek_tensor sums = {0};
  EK_TRY(ek_pass_output(&sums, pass, EK_F64, 1, size));
  ek_status status = EK_OK;
  if (!ek_pass_is_training(pass)) {
    EK_TRY_GOTO(status, running(&sums, pass, channels), cleanup);
  } else {
    EK_TRY_GOTO(status, add_up(&sums, pass, x, channels), cleanup);
    EK_TRY_GOTO(status, statistics(&sums, pass, channels), cleanup);
  }
  EK_TRY_GOTO(status, ek_pass_output(&outputs[0], pass, ek_pass_type(pass), 2, x->shape), cleanup);
  EK_TRY_GOTO(status, normalize(pass, x, &sums, &outputs[0], channels), cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, x), cleanup);
  status = ek_pass_save(pass, &sums);
cleanup:
  ek_tensor_free(&sums);
  return status;
}

/* ---- backward ---- */

/* The gradients of weight and bias, and the same two sums over all devices in slopes [2C]. */
static ek_status add_slopes(ek_tensor *slopes, ek_pass *pass, const ek_tensor *dy,
                            const ek_tensor *x, const ek_tensor *sums, int64_t channels) {
  ek_tensor dweight, dbias, loans[3] = {*dy, *x, *sums};
  struct ck_mirrors m;
  EK_TRY(ek_pass_gradient(&dweight, NULL, pass, WEIGHT));
  EK_TRY(ek_pass_gradient(&dbias, NULL, pass, BIAS));
  const ek_status status = ck_mirrors_open(
      &m, 3, (ek_tensor *[]){slopes, &dweight, &dbias, &loans[0], &loans[1], &loans[2]}, 6);
  for (int64_t i = 0; status == EK_OK && i < 2 * channels; i++) ck_put(&m.host[0], i, 0);
  for (int64_t i = 0; status == EK_OK && i < ek_tensor_count(x); i++) {
    const int64_t c = i % channels;
    const double slope = ck_at(&m.host[3], i);
    double *sum = (double *)m.host[0].data;
    sum[c] += slope;
    sum[channels + c] +=
        slope * (ck_at(&m.host[4], i) - ck_at(&m.host[5], c)) * ck_at(&m.host[5], channels + c);
  }
  for (int64_t c = 0; status == EK_OK && c < channels; c++) {
    ck_put(&m.host[1], c, ck_at(&m.host[1], c) + ck_at(&m.host[0], channels + c));
    ck_put(&m.host[2], c, ck_at(&m.host[2], c) + ck_at(&m.host[0], c));
  }
  EK_TRY(ck_mirrors_close(&m, status));
  return ek_pass_is_training(pass) ? ek_pass_all_reduce(pass, slopes) : EK_OK;
}

static ek_status input_gradient(ek_tensor *dx, ek_pass *pass, const ek_tensor *dy,
                                const ek_tensor *x, const ek_tensor *sums, const ek_tensor *slopes,
                                int64_t channels) {
  ek_tensor weight, loans[4] = {*dy, *x, *sums, *slopes};
  struct ck_mirrors m;
  EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  EK_TRY(ek_pass_output(dx, pass, ek_pass_type(pass), 2, x->shape));
  const ek_status status = ck_mirrors_open(
      &m, 1, (ek_tensor *[]){dx, &weight, &loans[0], &loans[1], &loans[2], &loans[3]}, 6);
  for (int64_t i = 0; status == EK_OK && i < ek_tensor_count(x); i++) {
    const int64_t c = i % channels;
    const double rows = ck_at(&m.host[4], 2 * channels), scale = ck_at(&m.host[4], channels + c);
    const double normal = (ck_at(&m.host[3], i) - ck_at(&m.host[4], c)) * scale;
    double slope = ck_at(&m.host[2], i);
    if (rows > 0) {
      slope -= (ck_at(&m.host[5], c) + normal * ck_at(&m.host[5], channels + c)) / rows;
    }
    ck_put(&m.host[0], i, ck_at(&m.host[1], c) * scale * slope);
  }
  return ck_mirrors_close(&m, status);
}

CK_BACKWARD(batch_norm) {
  const int64_t channels = channels_of(self), size[] = {2 * channels};
  ek_tensor x = {0}, sums = {0}, slopes = {0};
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek_pass_take(&sums, pass), cleanup);
  EK_TRY_GOTO(status, ek_pass_take(&x, pass), cleanup);
  EK_TRY_GOTO(status, ek_pass_workspace(&slopes, pass, EK_F64, 1, size), cleanup);
  EK_TRY_GOTO(status, add_slopes(&slopes, pass, &grad_outputs[0], &x, &sums, channels), cleanup);
  EK_TRY_GOTO(status, ek_pass_gradient_complete(pass, WEIGHT), cleanup);
  EK_TRY_GOTO(status, ek_pass_gradient_complete(pass, BIAS), cleanup);
  if (grad_inputs != NULL) {
    status = input_gradient(&grad_inputs[0], pass, &grad_outputs[0], &x, &sums, &slopes, channels);
  }
cleanup:
  ek_tensor_free(&slopes);
  ek_tensor_free(&x);
  ek_tensor_free(&sums);
  return status;
}

static void free_module(ek_module *self) { free(self); }

#define BATCH_NORM_OPS(name, declared)                                                             \
  {                                                                                                \
    .size = sizeof(ek_module_ops), .kind = name, .parameters = batch_norm_parameters,              \
    .forward = batch_norm_forward, .backward = batch_norm_backward, .free = free_module,           \
    .types = EK_TYPES_F32 | EK_TYPES_F64, .collective = declared                                   \
  }

static ek_status create(ek_module **module, const ek_module_ops *ops, int64_t channels) {
  struct batch_norm *m = calloc(1, sizeof *m);
  if (m == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "%s: no memory", ops->kind);
  m->channels = channels;
  const ek_status status = ek_module_init(&m->base, ops, 1, 1);
  if (status == EK_OK) *module = &m->base;
  if (status != EK_OK) free(m);
  return status;
}

ek_status ck_batch_norm_create(ek_module **module, int64_t channels) {
  static const ek_module_ops ops = BATCH_NORM_OPS("batch_norm", true);
  return create(module, &ops, channels);
}

ek_status ck_batch_norm_create_undeclared(ek_module **module, int64_t channels) {
  static const ek_module_ops ops = BATCH_NORM_OPS("undeclared", false);
  return create(module, &ops, channels);
}

/* ---- spread ---- */

CK_FORWARD(spread) {
  ek_tensor both = {0}, x = inputs[0];
  struct ck_mirrors m;
  EK_TRY(ek_pass_output(&outputs[0], pass, x.type, 0, NULL));
  EK_TRY(ek_pass_workspace(&both, pass, EK_F64, 1, (const int64_t[]){2}));
  ek_status status = ck_mirrors_open(&m, 1, (ek_tensor *[]){&both, &x}, 2);
  double sum = 0;
  for (int64_t i = 0; status == EK_OK && i < ek_tensor_count(&x); i++) sum += ck_at(&m.host[1], i);
  if (status == EK_OK) ck_put(&m.host[0], 0, sum);
  if (status == EK_OK) ck_put(&m.host[0], 1, 1);
  status = ck_mirrors_close(&m, status);
  if (status == EK_OK) status = ek_pass_all_reduce(pass, &both);
  if (status == EK_OK) status = ck_mirrors_open(&m, 1, (ek_tensor *[]){&outputs[0], &both}, 2);
  if (status == EK_OK) {
    ck_put(&m.host[0], 0, sum - ck_at(&m.host[1], 0) / ck_at(&m.host[1], 1));
    status = ck_mirrors_close(&m, status);
  }
  ek_tensor_free(&both);
  return status == EK_OK ? ek_pass_save(pass, &x) : status;
}

/* dx = dy - the mean of dy over the devices, in each element. */
CK_BACKWARD(spread) {
  ek_tensor both = {0}, x = {0}, dy = grad_outputs[0];
  struct ck_mirrors m = {0};
  double slope = 0;
  EK_TRY(ek_pass_take(&x, pass));
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek_pass_workspace(&both, pass, EK_F64, 1, (const int64_t[]){2}), cleanup);
  EK_TRY_GOTO(status, ck_mirrors_open(&m, 1, (ek_tensor *[]){&both, &dy}, 2), cleanup);
  slope = ck_at(&m.host[1], 0);
  ck_put(&m.host[0], 0, slope);
  ck_put(&m.host[0], 1, 1);
  EK_TRY_GOTO(status, ck_mirrors_close(&m, EK_OK), cleanup);
  EK_TRY_GOTO(status, ek_pass_all_reduce(pass, &both), cleanup);
  if (grad_inputs == NULL) goto cleanup;
  EK_TRY_GOTO(status, ek_pass_output(&grad_inputs[0], pass, x.type, x.rank, x.shape), cleanup);
  EK_TRY_GOTO(status, ck_mirrors_open(&m, 1, (ek_tensor *[]){&grad_inputs[0], &both}, 2), cleanup);
  for (int64_t i = 0; i < ek_tensor_count(&x); i++) {
    ck_put(&m.host[0], i, slope - ck_at(&m.host[1], 0) / ck_at(&m.host[1], 1));
  }
  status = ck_mirrors_close(&m, EK_OK);
cleanup:
  ek_tensor_free(&x);
  ek_tensor_free(&both);
  return status;
}

ek_status ck_spread_create(ek_module **module) {
  static const ek_module_ops ops = {CK_OPS("spread", spread_forward, spread_backward, free_module),
                                    .types = EK_TYPES_F32 | EK_TYPES_F64, .collective = true};
  return create(module, &ops, 0);
}
