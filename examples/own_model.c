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

/* ---- the arithmetic: plain loops, on the device's threads ---- */

struct
    affine { /* y = x w' + b, and its gradients; a range is a part of the rows or of the outputs */
  float *y, *dw, *db, *dx;
  const float *x, *w, *b, *dy;
  int64_t rows, in, out;
};

/* y[r][o] = b[o] + sum of w[o][i] x[r][i], for some rows */
static ek_status affine(void *context, int64_t begin, int64_t end) {
  const struct affine *a = context;
  for (int64_t r = begin; r < end; r++) {
    for (int64_t o = 0; o < a->out; o++) {
      float sum = a->b[o];
      for (int64_t i = 0; i < a->in; i++) sum += a->w[o * a->in + i] * a->x[r * a->in + i];
      a->y[r * a->out + o] = sum;
    }
  }
  return EK_OK;
}

/* dw[o][i] += dy[r][o] x[r][i] and db[o] += dy[r][o], over all rows, for some outputs */
static ek_status affine_parameters(void *context, int64_t begin, int64_t end) {
  const struct affine *a = context;
  for (int64_t o = begin; o < end; o++) {
    for (int64_t r = 0; r < a->rows; r++) {
      const float dy = a->dy[r * a->out + o];
      a->db[o] += dy;
      for (int64_t i = 0; i < a->in; i++) a->dw[o * a->in + i] += dy * a->x[r * a->in + i];
    }
  }
  return EK_OK;
}

/* dx[r][i] = sum of dy[r][o] w[o][i], for some rows */
static ek_status affine_input(void *context, int64_t begin, int64_t end) {
  const struct affine *a = context;
  for (int64_t r = begin; r < end; r++) {
    for (int64_t i = 0; i < a->in; i++) {
      float sum = 0;
      for (int64_t o = 0; o < a->out; o++) sum += a->dy[r * a->out + o] * a->w[o * a->in + i];
      a->dx[r * a->in + i] = sum;
    }
  }
  return EK_OK;
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
  ek_device *device = ek_pass_device(pass);
  const bool compute = !ek_device_counts_only(device);
  ek_tensor p[4], h = {0};
  ek_status status;
  EK_TRY(get_parameters(p, pass));
  EK_TRY(ek_pass_output(&outputs[0], pass, EK_F32, 2, out_shape));
  EK_TRY(ek_pass_output(&h, pass, EK_F32, 2, hidden_shape));
  struct affine first = {.y = floats(&h), .x = floats(x), .w = floats(&p[W1]), .b = floats(&p[B1])};
  first.in = n->in;
  first.out = n->hidden;
  EK_TRY_GOTO(status, ek_device_parallel_for(device, rows, affine, &first), cleanup);
  for (int64_t i = 0; compute && i < rows * n->hidden; i++) floats(&h)[i] = tanhf(floats(&h)[i]);
  struct affine second = {.x = floats(&h), .w = floats(&p[W2]), .b = floats(&p[B2])};
  second.y = floats(&outputs[0]);
  second.in = n->hidden;
  second.out = n->out;
  EK_TRY_GOTO(status, ek_device_parallel_for(device, rows, affine, &second), cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, x), cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, &h), cleanup);
cleanup:
  ek_tensor_free(&h); /* the stack has a reference of its own */
  return status;
}

/* ---- backward ---- */

/* Adds to the gradients of a layer's two parameters, and says that they are complete. */
static ek_status add_gradients(struct affine *layer, ek_pass *pass, size_t w, size_t b) {
  ek_tensor dw, db;
  EK_TRY(ek_pass_gradient(&dw, NULL, pass, w)); /* zeroed before its first use in a step */
  EK_TRY(ek_pass_gradient(&db, NULL, pass, b));
  layer->dw = floats(&dw);
  layer->db = floats(&db);
  EK_TRY(ek_device_parallel_for(ek_pass_device(pass), layer->out, affine_parameters, layer));
  EK_TRY(ek_pass_gradient_complete(pass, w));
  return ek_pass_gradient_complete(pass, b);
}

/* The layers from the last to the first; each one's gradients are complete as soon as they are. */
static ek_status network_gradients(const struct network *n, ek_pass *pass, const ek_tensor *dy,
                                   const ek_tensor *x, const ek_tensor *h, ek_tensor *dh,
                                   ek_tensor *dx) {
  const int64_t rows = x->shape[0];
  ek_device *device = ek_pass_device(pass);
  const bool compute = !ek_device_counts_only(device);
  ek_tensor p[4];
  EK_TRY(get_parameters(p, pass));
  struct affine second = {.x = floats(h), .w = floats(&p[W2]), .dy = floats(dy), .rows = rows};
  second.dx = floats(dh);
  second.in = n->hidden;
  second.out = n->out;
  EK_TRY(add_gradients(&second, pass, W2, B2));
  EK_TRY(ek_device_parallel_for(device, rows, affine_input, &second));
  for (int64_t i = 0; compute && i < rows * n->hidden; i++) {
    floats(dh)[i] *= 1 - floats(h)[i] * floats(h)[i];
  }
  struct affine first = {.x = floats(x), .w = floats(&p[W1]), .dy = floats(dh), .rows = rows};
  first.in = n->in;
  first.out = n->hidden;
  EK_TRY(add_gradients(&first, pass, W1, B1));
  if (dx == NULL) return EK_OK; /* the input's gradient is not needed */
  EK_TRY(ek_pass_output(dx, pass, EK_F32, 2, x->shape));
  first.dx = floats(dx);
  return ek_device_parallel_for(device, rows, affine_input, &first);
}

static ek_status network_backward(const ek_module *self, ek_pass *pass,
                                  const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  ek_tensor x = {0}, h = {0}, dh = {0};
  ek_status status;
  EK_TRY_GOTO(status, ek_pass_take(&h, pass), cleanup); /* in reverse order */
  EK_TRY_GOTO(status, ek_pass_take(&x, pass), cleanup);
  EK_TRY_GOTO(status, ek_pass_workspace(&dh, pass, EK_F32, 2, h.shape), cleanup);
  status = network_gradients((const struct network *)self, pass, &grad_outputs[0], &x, &h, &dh,
                             grad_inputs);
cleanup:
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
  if (n == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "network: out of memory");
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

/* Gradients, memory, rows and devices, before anything is trained. */
static ek_status check_network(ek_module *module) {
  const ek_check_input x = {.rank = 2, .shape = {6, IN}, .low = -1, .high = 1};
  EK_TRY(ek_module_check(module, "cpu:2", &x, 1, NULL));
  return EK_OK;
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
    status = ek_data_parallel_criterion_backward(t->parallel_criterion, NULL);
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
  EK_TRY(check_network(t->module));
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
