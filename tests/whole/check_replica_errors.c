/*
 * check_replica_errors.c - a module that fails on one device, and one that writes its buffer.
 *
 * The module has LAYERS parameters p0, p1, ... [N] and a buffer b [N]: y = x * p0 * p1 * ... + b.
 * What goes wrong is set by the test before the call and only read by the workers.
 */

#include "ck_mirror.h"
#include "ck_training.h"

static const double patience = 5.0; /* seconds; nothing here takes a tenth of it */
enum { DEVICES = 4, SAMPLES = 8, N = 16, LAYERS = 6, NOBODY = 99 };

static struct {
  size_t forward, backward; /* the devices on which they fail */
  int after;                /* layers of backward that are complete by then */
  bool writes;              /* forward adds 1 + device to its buffer */
} trouble;

static void no_trouble(void) {
  trouble.forward = trouble.backward = NOBODY;
  ck_assign(trouble, .after = 0, .writes = false);
}

/* ---- the module ---- */

CK_PARAMETERS(product) {
  for (int i = 0; i < LAYERS; i++) {
    EK_TRY(ek_declare_parameter(declaration, ck_text("p%d", i), CK_SHAPE(N),
                                ek_initializer_uniform(0.5, 1.5)));
  }
  return ek_declare_buffer(declaration, "b", CK_SHAPE(N), ek_initializer_zeros());
}

CK_FORWARD(product) {
  const size_t device = ek_device_index(ek_pass_device(pass));
  const ek_tensor *x = &inputs[0];
  ek_tensor buffer, p[LAYERS];
  if (device == trouble.forward) return ek_error_set(EK_ERR_IO, "the test gives up");
  EK_TRY(ek_pass_parameter(&buffer, pass, LAYERS));
  for (int i = 0; i < LAYERS; i++) EK_TRY(ek_pass_parameter(&p[i], pass, (size_t)i));
  EK_TRY(ek_pass_output(&outputs[0], pass, ek_pass_type(pass), 2, x->shape));
  CK_MIRRORS(m, 2, &outputs[0], &buffer, x, &p[0], &p[1], &p[2], &p[3], &p[4], &p[5]);
  for (int64_t e = 0; e < ek_tensor_count(x); e++) {
    double y = ck_at(&m.host[2], e);
    for (int i = 0; i < LAYERS; i++) y *= ck_at(&m.host[3 + i], e % N);
    ck_put(&m.host[0], e, y + ck_at(&m.host[1], e % N));
  }
  for (int64_t e = 0; trouble.writes && ek_pass_is_training(pass) && e < N; e++) {
    ck_put(&m.host[1], e, ck_at(&m.host[1], e) + 1 + (double)device);
  }
  EK_TRY(ck_mirrors_close(&m));
  return ek_pass_save(pass, x);
}

static ek_status layer_backward(ek_pass *pass, int layer, const ek_tensor *x, const ek_tensor *dy) {
  ek_tensor gradient, p[LAYERS];
  EK_TRY(ek_pass_gradient(&gradient, NULL, pass, (size_t)layer));
  for (int i = 0; i < LAYERS; i++) EK_TRY(ek_pass_parameter(&p[i], pass, (size_t)i));
  CK_MIRRORS(m, 1, &gradient, x, dy, &p[0], &p[1], &p[2], &p[3], &p[4], &p[5]);
  for (int64_t e = 0; e < ek_tensor_count(x); e++) {
    double g = ck_at(&m.host[1], e) * ck_at(&m.host[2], e);
    for (int i = 0; i < LAYERS; i++) g *= i == layer ? 1 : ck_at(&m.host[3 + i], e % N);
    ck_put(&m.host[0], e % N, ck_at(&m.host[0], e % N) + g);
  }
  EK_TRY(ck_mirrors_close(&m));
  return ek_pass_gradient_complete(pass, (size_t)layer);
}

CK_BACKWARD(product) {
  const bool fails = ek_device_index(ek_pass_device(pass)) == trouble.backward;
  CK_FREED(tensor) x = {0};
  EK_TRY(ek_pass_take(&x, pass));
  for (int i = LAYERS; i-- > 0;) {
    if (fails && LAYERS - 1 - i == trouble.after) {
      return ek_error_set(EK_ERR_IO, "the test gives up");
    }
    EK_TRY(layer_backward(pass, i, &x, &grad_outputs[0]));
  }
  return EK_OK;
}

CK_PLAIN_OPS(product, .parameters = product_parameters);

static ek_status product_create(ek_module **module) {
  return ck_plain_create(module, &product_ops, 1, 1);
}

static const struct ck_workload product = {
    .name = "product", .module = product_create, .criterion = ek_mean_squared_error_create,
    .sample = CK_SAMPLE(CK_ROW(N), CK_ROW(N))};

/* ---- errors ---- */

struct bench {
  struct ck_setup setup;
  struct ck_batch batch;
  struct ck_training training, other; /* the other one is left alone */
};

static void open_bench(struct bench *b, int placement) {
  no_trouble();
  b->setup = ck_setup_mode(&product, "cpu:4", EK_MODE_GATHER);
  ck_setup_place(&b->setup, placement);
  b->setup.options.bucket_bytes = 1; /* a bucket per parameter */
  b->batch = ck_batch_make(&product, EK_F32, SAMPLES, 0, 1);
  b->training = ck_training_opened(&b->setup);
  b->other = ck_training_opened(&b->setup);
}

/* The step failed as it was meant to; the next one is that of the other training. */
static void fails_and_recovers(struct bench *b, size_t device, const char *what) {
  const char *text = ck_text("replica %zu on cpu:%zu: %s", device, device, what);
  const double start = ck_now();
  ck_fails(ck_training_backward(&b->training, &b->batch, NULL, false, NULL), EK_ERR_IO, text);
  ck_assert_double_lt(ck_now() - start, patience);
  no_trouble();
  ck_fails(ek_data_parallel_optimizer_step(NULL, b->training.optimizer), EK_ERR_STATE, "gradient");
  ck_ok(ck_training_step(&b->training, &b->batch, NULL));
  ck_ok(ck_training_step(&b->other, &b->batch, NULL));
  ck_runs_agree(&b->training, &b->other, CK_VALUES, 0);
}

CK_LOOP(an_error_in_forward, CK_PLACEMENTS) {
  CK_SET_UP(struct bench, b, open_bench(&b, _i));
  for (size_t device = 0; device < DEVICES; device++) {
    trouble.forward = device;
    fails_and_recovers(&b, device, "product, forward: the test gives up");
  }
}

/* Some buckets are on their way: the peers wait for the rest, and are let go. */
CK_LOOP(an_error_in_backward, CK_PLACEMENTS) {
  CK_SET_UP(struct bench, b, open_bench(&b, _i));
  for (size_t device = 0; device < DEVICES; device++) {
    for (int after = 0; after < LAYERS; after += 2) {
      ck_assign(trouble, .backward = device, .after = after);
      fails_and_recovers(&b, device, "product, backward: the test gives up");
    }
  }
}

/* What micro-batches before it had added is dropped with the step. */
CK_LOOP(an_error_drops_what_was_accumulated, CK_PLACEMENTS) {
  CK_SET_UP(struct bench, b, open_bench(&b, _i));
  ck_ok(ck_training_backward(&b.training, &b.batch, NULL, true, NULL));
  ck_assign(trouble, .backward = 2, .after = 3);
  fails_and_recovers(&b, 2, "product, backward: the test gives up");
  ck_ok(ck_training_backward(&b.training, &b.batch, NULL, true, NULL));
  trouble.forward = 1;
  fails_and_recovers(&b, 1, "product, forward: the test gives up");
}

/* ---- buffers ---- */

static void forward_shows(struct ck_training *t, const struct ck_batch *zeros, bool training,
                          double wanted) {
  ek_shards output[1] = {{0}};
  CK_WITH(ek_forward_options, options, EK_FORWARD_OPTIONS_INIT, .gradient = false,
          .training = training);
  ck_ok(ek_data_parallel_model_forward(output, t->model, zeros->input, 1, &options));
  for (size_t k = 0; k < DEVICES; k++) {
    const ek_tensor *part = &output[0].parts[k];
    const double *values = ck_got(part);
    for (int64_t e = 0; e < ek_tensor_count(part); e++) ck_assert_double_eq(values[e], wanted);
  }
  ek_shards_free(&output[0]);
}

/* Each device adds another number to its buffer; all see device 0's at the next forward. */
CK_LOOP(buffers_come_from_the_first_device, CK_PLACEMENTS) {
  CK_SET_UP(struct bench, b, open_bench(&b, _i));
  struct ck_batch zeros = ck_batch_make(&product, EK_F32, SAMPLES, 0, 1);
  float *x = zeros.input[0].data;
  for (int i = 0; i < SAMPLES * N; i++) x[i] = 0;
  trouble.writes = true;
  forward_shows(&b.training, &zeros, true, 0);
  forward_shows(&b.training, &zeros, true, 1);
  forward_shows(&b.training, &zeros, false, 2);
  forward_shows(&b.training, &zeros, false, 2);
  forward_shows(&b.training, &zeros, true, 2);
  ck_ok(ck_training_step(&b.training, &b.batch, NULL));
  forward_shows(&b.training, &zeros, false, 4);
  float numbers[N];
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, numbers, EK_F32, CK_SHAPE(N)));
  ck_ok(ek_state_read(&host, b.training.model, "b"));
  for (int i = 0; i < N; i++) ck_assert_float_eq(numbers[i], 4);
}

CK_SUITE("replica errors")
