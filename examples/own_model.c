/*
 * own_model.c - a model in plain C, trained over four devices.
 *
 * The network y = W2 tanh(W1 x + b1) + b2 is written by hand, forward and backward, as loops over
 * raw pointers: it uses none of evenkeel's layers and operations. What makes it trainable over
 * several devices is its table of functions. docs/own-model.md walks through this file.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <evenkeel/evenkeel.h>

/* ---- the description: sizes, and nothing that changes ---- */

struct network {
  ek_module base; /* first */
  int64_t in, hidden, out;
};

enum { W1, B1, W2, B2 }; /* the parameters' numbers, in the order of their declaration */

static ek_status network_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct network *n = (const struct network *)self;
  const int64_t w1[] = {n->hidden, n->in}, w2[] = {n->out, n->hidden};
  const ek_initializer first = ek_initializer_normal(0.0, 1.0 / sqrt((double)n->in));
  const ek_initializer second = ek_initializer_normal(0.0, 1.0 / sqrt((double)n->hidden));
  EK_TRY(ek_declare_parameter(declaration, "w1", 2, w1, first));
  EK_TRY(ek_declare_parameter(declaration, "b1", 1, &n->hidden, ek_initializer_zeros()));
  EK_TRY(ek_declare_parameter(declaration, "w2", 2, w2, second));
  return ek_declare_parameter(declaration, "b2", 1, &n->out, ek_initializer_zeros());
}

/* ---- the arithmetic: plain loops ---- */

/* y[r][o] = b[o] + sum of w[o][i] x[r][i] */
static void affine(float *y, const float *x, const float *w, const float *b, int64_t rows,
                   int64_t in, int64_t out) {
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t o = 0; o < out; o++) {
      float sum = b[o];
      for (int64_t i = 0; i < in; i++) sum += w[o * in + i] * x[r * in + i];
      y[r * out + o] = sum;
    }
  }
}

/* dw[o][i] += dy[r][o] x[r][i] and db[o] += dy[r][o], over all rows */
static void affine_parameters(float *dw, float *db, const float *dy, const float *x, int64_t rows,
                              int64_t in, int64_t out) {
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t o = 0; o < out; o++) {
      db[o] += dy[r * out + o];
      for (int64_t i = 0; i < in; i++) dw[o * in + i] += dy[r * out + o] * x[r * in + i];
    }
  }
}

/* dx[r][i] = sum of dy[r][o] w[o][i] */
static void affine_input(float *dx, const float *dy, const float *w, int64_t rows, int64_t in,
                         int64_t out) {
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t i = 0; i < in; i++) {
      float sum = 0;
      for (int64_t o = 0; o < out; o++) sum += dy[r * out + o] * w[o * in + i];
      dx[r * in + i] = sum;
    }
  }
}

/* ---- forward ---- */

static float *floats(const ek_tensor *tensor) { return tensor->data; }

static ek_status get_parameters(ek_tensor parameters[4], ek_pass *pass) {
  for (size_t i = 0; i < 4; i++) EK_TRY(ek_pass_parameter(&parameters[i], pass, i));
  return EK_OK;
}

static ek_status network_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                 ek_tensor *outputs) {
  const struct network *n = (const struct network *)self;
  const ek_tensor *x = &inputs[0];
  if (x->type != EK_F32 || x->rank != 2 || x->shape[1] != n->in) {
    return ek_error_set(EK_ERR_SHAPE, "expected f32 input with %lld columns", (long long)n->in);
  }
  const int64_t rows = x->shape[0]; /* this device's share of the batch */
  const int64_t hidden_shape[] = {rows, n->hidden}, out_shape[] = {rows, n->out};
  ek_tensor p[4], h = {0};
  EK_TRY(get_parameters(p, pass));
  EK_TRY(ek_pass_output(&outputs[0], pass, EK_F32, 2, out_shape));
  EK_TRY(ek_pass_output(&h, pass, EK_F32, 2, hidden_shape));
  if (!ek_device_counts_only(ek_pass_device(pass))) {
    affine(floats(&h), floats(x), floats(&p[W1]), floats(&p[B1]), rows, n->in, n->hidden);
    for (int64_t i = 0; i < rows * n->hidden; i++) floats(&h)[i] = tanhf(floats(&h)[i]);
    affine(floats(&outputs[0]), floats(&h), floats(&p[W2]), floats(&p[B2]), rows, n->hidden,
           n->out);
  }
  ek_status status = ek_pass_save(pass, x);
  if (status == EK_OK) status = ek_pass_save(pass, &h);
  ek_tensor_free(&h); /* the stack has a reference of its own */
  return status;
}

/* ---- backward ---- */

/* The layers from the last to the first; each one's gradients are complete as soon as they are. */
static ek_status network_gradients(const struct network *n, ek_pass *pass, const ek_tensor *dy,
                                   const ek_tensor *x, const ek_tensor *h, ek_tensor *dh,
                                   ek_tensor *dx) {
  const int64_t rows = x->shape[0];
  const bool compute = !ek_device_counts_only(ek_pass_device(pass));
  ek_tensor p[4], dw, db;
  EK_TRY(get_parameters(p, pass));

  EK_TRY(ek_pass_gradient(&dw, NULL, pass, W2)); /* zeroed before the first use in a step */
  EK_TRY(ek_pass_gradient(&db, NULL, pass, B2));
  if (compute) {
    affine_parameters(floats(&dw), floats(&db), floats(dy), floats(h), rows, n->hidden, n->out);
    affine_input(floats(dh), floats(dy), floats(&p[W2]), rows, n->hidden, n->out);
    for (int64_t i = 0; i < rows * n->hidden; i++) {
      floats(dh)[i] *= 1 - floats(h)[i] * floats(h)[i];
    }
  }
  EK_TRY(ek_pass_gradient_complete(pass, W2));
  EK_TRY(ek_pass_gradient_complete(pass, B2));

  EK_TRY(ek_pass_gradient(&dw, NULL, pass, W1));
  EK_TRY(ek_pass_gradient(&db, NULL, pass, B1));
  if (compute) {
    affine_parameters(floats(&dw), floats(&db), floats(dh), floats(x), rows, n->in, n->hidden);
  }
  EK_TRY(ek_pass_gradient_complete(pass, W1));
  EK_TRY(ek_pass_gradient_complete(pass, B1));

  if (dx == NULL) return EK_OK; /* nobody asks for the input's gradient */
  EK_TRY(ek_pass_output(dx, pass, EK_F32, 2, x->shape));
  if (compute) affine_input(floats(dx), floats(dh), floats(&p[W1]), rows, n->in, n->hidden);
  return EK_OK;
}

static ek_status network_backward(const ek_module *self, ek_pass *pass,
                                  const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  ek_tensor x = {0}, h = {0}, dh = {0};
  ek_status status = ek_pass_take(&h, pass); /* in reverse order */
  if (status == EK_OK) status = ek_pass_take(&x, pass);
  if (status == EK_OK) status = ek_pass_workspace(&dh, pass, EK_F32, 2, h.shape);
  if (status == EK_OK) {
    status = network_gradients((const struct network *)self, pass, &grad_outputs[0], &x, &h, &dh,
                               grad_inputs);
  }
  ek_tensor_free(&dh);
  ek_tensor_free(&x);
  ek_tensor_free(&h);
  return status;
}

/* ---- the table ---- */

static void network_free(ek_module *self) { free(self); }

static const ek_module_ops network_ops = {.size = sizeof(ek_module_ops),
                                          .kind = "network",
                                          .parameters = network_parameters,
                                          .forward = network_forward,
                                          .backward = network_backward,
                                          .free = network_free,
                                          .types = EK_TYPES_F32}; /* the loops read floats */

static ek_status network_create(ek_module **module, int64_t in, int64_t hidden, int64_t out) {
  struct network *n = calloc(1, sizeof *n);
  if (n == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "network: no memory");
  n->in = in;
  n->hidden = hidden;
  n->out = out;
  const ek_status status = ek_module_init(&n->base, &network_ops, 1, 1); /* 1 input, 1 output */
  if (status != EK_OK) {
    free(n);
    return status;
  }
  *module = &n->base;
  return EK_OK;
}

/* ---- training ---- */

enum { SAMPLES = 250, IN = 2, HIDDEN = 24, STEPS = 300 };

/* The function to learn: sin(3 a) b, on points that fill the square [-1, 1) x [-1, 1). */
static void make_samples(float x[SAMPLES * IN], float t[SAMPLES]) {
  for (size_t i = 0; i < SAMPLES; i++) {
    const double a = 2 * fmod(0.5 + 0.7548776662 * (double)i, 1.0) - 1;
    const double b = 2 * fmod(0.5 + 0.5698402910 * (double)i, 1.0) - 1;
    x[IN * i] = (float)a;
    x[IN * i + 1] = (float)b;
    t[i] = (float)(sin(3 * a) * b);
  }
}

struct training {
  ek_group *group;
  ek_module *module;
  ek_data_parallel_model *model;
  ek_criterion *criterion;
  ek_data_parallel_criterion *parallel_criterion;
  ek_optimizer *optimizer;
  ek_data_parallel_optimizer *parallel_optimizer;
};

static ek_status open_training(struct training *t) {
  ek_adamw_options options = EK_ADAMW_OPTIONS_INIT;
  options.learning_rate = 0.02;
  options.weight_decay = 0;
  EK_TRY(ek_group_open(&t->group, "cpu:4", NULL));
  EK_TRY(network_create(&t->module, IN, HIDDEN, 1));
  EK_TRY(ek_data_parallel_model_open(&t->model, t->group, t->module, NULL));
  EK_TRY(ek_mean_squared_error_create(&t->criterion, EK_REDUCTION_MEAN));
  EK_TRY(ek_data_parallel_criterion_open(&t->parallel_criterion, t->model, t->criterion, NULL));
  EK_TRY(ek_adamw_create(&t->optimizer, &options));
  return ek_data_parallel_optimizer_open(&t->parallel_optimizer, t->model, t->optimizer, NULL);
}

static void close_training(struct training *t) {
  ek_data_parallel_optimizer_free(t->parallel_optimizer);
  ek_optimizer_free(t->optimizer);
  ek_data_parallel_criterion_free(t->parallel_criterion);
  ek_criterion_free(t->criterion);
  ek_data_parallel_model_free(t->model);
  ek_module_free(t->module);
  ek_group_free(t->group);
}

static ek_status step(struct training *t, const ek_tensor *x, const ek_tensor *target,
                      double *loss) {
  ek_shards outputs = {0};
  ek_step_result result = {0};
  EK_TRY(ek_data_parallel_model_forward(&outputs, t->model, x, 1, NULL));
  ek_status status =
      ek_data_parallel_criterion_forward(t->parallel_criterion, &outputs, 1, target, 1);
  if (status == EK_OK) {
    status = ek_data_parallel_criterion_backward(t->parallel_criterion, t->model, NULL);
  }
  if (status == EK_OK) status = ek_data_parallel_optimizer_step(&result, t->parallel_optimizer);
  ek_shards_free(&outputs);
  *loss = result.loss;
  return status;
}

static ek_status train(struct training *t, double *first, double *last) {
  static float samples[SAMPLES * IN], targets[SAMPLES];
  const int64_t x_shape[] = {SAMPLES, IN}, target_shape[] = {SAMPLES, 1};
  ek_tensor x, target;
  make_samples(samples, targets);
  EK_TRY(ek_tensor_host(&x, samples, EK_F32, 2, x_shape));
  EK_TRY(ek_tensor_host(&target, targets, EK_F32, 2, target_shape));
  EK_TRY(open_training(t));
  for (int i = 0; i < STEPS; i++) {
    EK_TRY(step(t, &x, &target, last));
    if (i == 0) *first = *last;
    if (i % 50 == 0 || i + 1 == STEPS) printf("step %3d  loss %.6f\n", i + 1, *last);
  }
  return EK_OK;
}

int main(void) {
  struct training training = {0};
  double first = 0, last = 0;
  const ek_status status = train(&training, &first, &last);
  if (status != EK_OK) fprintf(stderr, "%s: %s\n", ek_status_name(status), ek_error_message());
  close_training(&training);
  if (status != EK_OK) return 1;
  if (!(last < 0.1 * first)) {
    fprintf(stderr, "the loss did not fall\n");
    return 1;
  }
  return 0;
}
