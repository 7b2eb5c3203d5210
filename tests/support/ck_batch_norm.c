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
  CK_MIRRORS(m, 1, sums, x);
  for (int64_t i = 0; i < 2 * channels + 1; i++) ck_put(&m.host[0], i, 0);
  for (int64_t i = 0; i < ek_tensor_count(x); i++) {
    const double value = ck_at(&m.host[1], i);
    double *sum = (double *)m.host[0].data;
    sum[i % channels] += value;
    sum[channels + i % channels] += value * value;
  }
  ck_put(&m.host[0], 2 * channels, (double)x->shape[0]);
  EK_TRY(ck_mirrors_close(&m));
  return ek_pass_all_reduce(pass, sums);
}

/* sums become mean, 1 / deviation and the number of rows; the running ones follow. */
static ek_status statistics(ek_tensor *sums, ek_pass *pass, int64_t channels) {
  ek_tensor mean, variance, batches;
  const bool first = !ek_pass_is_recomputing(pass);
  EK_TRY(ek_pass_parameter(&mean, pass, MEAN));
  EK_TRY(ek_pass_parameter(&variance, pass, VARIANCE));
  EK_TRY(ek_pass_parameter(&batches, pass, BATCHES));
  CK_MIRRORS(m, first ? 4 : 1, sums, &mean, &variance, &batches);
  for (int64_t i = 0; i < channels; i++) {
    const double rows = ck_at(&m.host[0], 2 * channels), average = ck_at(&m.host[0], i) / rows;
    const double spread = ck_at(&m.host[0], channels + i) / rows - average * average;
    ck_put(&m.host[1], i, (1 - MOMENTUM) * ck_at(&m.host[1], i) + MOMENTUM * average);
    ck_put(&m.host[2], i, (1 - MOMENTUM) * ck_at(&m.host[2], i) + MOMENTUM * spread);
    ck_put(&m.host[0], i, average);
    ck_put(&m.host[0], channels + i, 1 / sqrt(spread + EPSILON));
  }
  ck_put(&m.host[3], 0, ck_at(&m.host[3], 0) + 1);
  return ck_mirrors_close(&m);
}

static ek_status running(ek_tensor *sums, ek_pass *pass, int64_t channels) {
  ek_tensor mean, variance;
  EK_TRY(ek_pass_parameter(&mean, pass, MEAN));
  EK_TRY(ek_pass_parameter(&variance, pass, VARIANCE));
  CK_MIRRORS(m, 1, sums, &mean, &variance);
  for (int64_t i = 0; i < channels; i++) {
    ck_put(&m.host[0], i, ck_at(&m.host[1], i));
    ck_put(&m.host[0], channels + i, 1 / sqrt(ck_at(&m.host[2], i) + EPSILON));
  }
  ck_put(&m.host[0], 2 * channels, 0); /* no gradient flows through them */
  return ck_mirrors_close(&m);
}

static ek_status normalize(ek_pass *pass, const ek_tensor *x, const ek_tensor *sums, ek_tensor *y,
                           int64_t channels) {
  ek_tensor weight, bias;
  EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  EK_TRY(ek_pass_parameter(&bias, pass, BIAS));
  CK_MIRRORS(m, 1, y, &weight, &bias, x, sums);
  for (int64_t i = 0; i < ek_tensor_count(x); i++) {
    const int64_t c = i % channels;
    const double normal =
        (ck_at(&m.host[3], i) - ck_at(&m.host[4], c)) * ck_at(&m.host[4], channels + c);
    ck_put(&m.host[0], i, ck_at(&m.host[1], c) * normal + ck_at(&m.host[2], c));
  }
  return ck_mirrors_close(&m);
}

CK_FORWARD(batch_norm) {
  const int64_t channels = channels_of(self), size[] = {2 * channels + 1};
  const ek_tensor *x = &inputs[0];
  CK_FREED(tensor) sums = {0};
  EK_TRY(ek_pass_output(&sums, pass, EK_F64, 1, size));
  if (!ek_pass_is_training(pass)) {
    EK_TRY(running(&sums, pass, channels));
  } else {
    EK_TRY(add_up(&sums, pass, x, channels));
    EK_TRY(statistics(&sums, pass, channels));
  }
  EK_TRY(ek_pass_output(&outputs[0], pass, ek_pass_type(pass), 2, x->shape));
  EK_TRY(normalize(pass, x, &sums, &outputs[0], channels));
  EK_TRY(ek_pass_save(pass, x));
  return ek_pass_save(pass, &sums);
}

/* ---- backward ---- */

/* The gradients of weight and bias, and the same two sums over all devices in slopes [2C]. */
static ek_status add_slopes(ek_tensor *slopes, ek_pass *pass, const ek_tensor *dy,
                            const ek_tensor *x, const ek_tensor *sums, int64_t channels) {
  ek_tensor dweight, dbias;
  EK_TRY(ek_pass_gradient(&dweight, NULL, pass, WEIGHT));
  EK_TRY(ek_pass_gradient(&dbias, NULL, pass, BIAS));
  CK_MIRRORS(m, 3, slopes, &dweight, &dbias, dy, x, sums);
  for (int64_t i = 0; i < 2 * channels; i++) ck_put(&m.host[0], i, 0);
  for (int64_t i = 0; i < ek_tensor_count(x); i++) {
    const int64_t c = i % channels;
    const double slope = ck_at(&m.host[3], i);
    double *sum = (double *)m.host[0].data;
    sum[c] += slope;
    sum[channels + c] +=
        slope * (ck_at(&m.host[4], i) - ck_at(&m.host[5], c)) * ck_at(&m.host[5], channels + c);
  }
  for (int64_t c = 0; c < channels; c++) {
    ck_put(&m.host[1], c, ck_at(&m.host[1], c) + ck_at(&m.host[0], channels + c));
    ck_put(&m.host[2], c, ck_at(&m.host[2], c) + ck_at(&m.host[0], c));
  }
  EK_TRY(ck_mirrors_close(&m));
  return ek_pass_is_training(pass) ? ek_pass_all_reduce(pass, slopes) : EK_OK;
}

static ek_status input_gradient(ek_tensor *dx, ek_pass *pass, const ek_tensor *dy,
                                const ek_tensor *x, const ek_tensor *sums, const ek_tensor *slopes,
                                int64_t channels) {
  ek_tensor weight;
  EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  EK_TRY(ek_pass_output(dx, pass, ek_pass_type(pass), 2, x->shape));
  CK_MIRRORS(m, 1, dx, &weight, dy, x, sums, slopes);
  for (int64_t i = 0; i < ek_tensor_count(x); i++) {
    const int64_t c = i % channels;
    const double rows = ck_at(&m.host[4], 2 * channels), scale = ck_at(&m.host[4], channels + c);
    const double normal = (ck_at(&m.host[3], i) - ck_at(&m.host[4], c)) * scale;
    double slope = ck_at(&m.host[2], i);
    if (rows > 0) slope -= (ck_at(&m.host[5], c) + normal * ck_at(&m.host[5], channels + c)) / rows;
    ck_put(&m.host[0], i, ck_at(&m.host[1], c) * scale * slope);
  }
  return ck_mirrors_close(&m);
}

CK_BACKWARD(batch_norm) {
  const int64_t channels = channels_of(self), size[] = {2 * channels};
  CK_FREED(tensor) x = {0}, sums = {0}, slopes = {0};
  EK_TRY(ek_pass_take(&sums, pass));
  EK_TRY(ek_pass_take(&x, pass));
  EK_TRY(ek_pass_workspace(&slopes, pass, EK_F64, 1, size));
  EK_TRY(add_slopes(&slopes, pass, &grad_outputs[0], &x, &sums, channels));
  EK_TRY(ek_pass_gradient_complete(pass, WEIGHT));
  EK_TRY(ek_pass_gradient_complete(pass, BIAS));
  if (grad_inputs == NULL) return EK_OK;
  return input_gradient(&grad_inputs[0], pass, &grad_outputs[0], &x, &sums, &slopes, channels);
}

#define BATCH_NORM_OPS(name, declared)                                                             \
  {                                                                                                \
    .size = sizeof(ek_module_ops), .kind = name, .parameters = batch_norm_parameters,              \
    .forward = batch_norm_forward, .backward = batch_norm_backward, .free = ck_plain_free,         \
    .types = EK_TYPES_F32 | EK_TYPES_F64, .collective = declared                                   \
  }

static ek_status create(ek_module **module, const ek_module_ops *ops, int64_t channels) {
  struct batch_norm *m = ck_module_new(sizeof *m, ops, 1, 1);
  m->channels = channels;
  *module = &m->base;
  return EK_OK;
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
  CK_FREED(tensor) both = {0};
  const ek_tensor *x = &inputs[0];
  double sum = 0;
  EK_TRY(ek_pass_output(&outputs[0], pass, x->type, 0, NULL));
  EK_TRY(ek_pass_workspace(&both, pass, EK_F64, 1, (const int64_t[]){2}));
  CK_MIRRORS(m, 1, &both, x);
  for (int64_t i = 0; i < ek_tensor_count(x); i++) sum += ck_at(&m.host[1], i);
  ck_put(&m.host[0], 0, sum);
  ck_put(&m.host[0], 1, 1);
  EK_TRY(ck_mirrors_close(&m));
  EK_TRY(ek_pass_all_reduce(pass, &both));
  CK_MIRRORS(all, 1, &outputs[0], &both);
  ck_put(&all.host[0], 0, sum - ck_at(&all.host[1], 0) / ck_at(&all.host[1], 1));
  EK_TRY(ck_mirrors_close(&all));
  return ek_pass_save(pass, x);
}

/* dx = dy - the mean of dy over the devices, in each element. */
CK_BACKWARD(spread) {
  CK_FREED(tensor) both = {0}, x = {0};
  EK_TRY(ek_pass_take(&x, pass));
  EK_TRY(ek_pass_workspace(&both, pass, EK_F64, 1, (const int64_t[]){2}));
  CK_MIRRORS(m, 1, &both, &grad_outputs[0]);
  const double slope = ck_at(&m.host[1], 0);
  ck_put(&m.host[0], 0, slope);
  ck_put(&m.host[0], 1, 1);
  EK_TRY(ck_mirrors_close(&m));
  EK_TRY(ek_pass_all_reduce(pass, &both));
  if (grad_inputs == NULL) return EK_OK;
  EK_TRY(ek_pass_output(&grad_inputs[0], pass, x.type, x.rank, x.shape));
  CK_MIRRORS(all, 1, &grad_inputs[0], &both);
  for (int64_t i = 0; i < ek_tensor_count(&x); i++) {
    ck_put(&all.host[0], i, slope - ck_at(&all.host[1], 0) / ck_at(&all.host[1], 1));
  }
  return ck_mirrors_close(&all);
}

ek_status ck_spread_create(ek_module **module) {
  static const ek_module_ops ops = {
      CK_OPS("spread", spread_forward, spread_backward, ck_plain_free),
      .types = EK_TYPES_F32 | EK_TYPES_F64, .collective = true};
  return create(module, &ops, 0);
}
