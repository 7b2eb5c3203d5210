/*
 * multi_output.c - one model, two outputs, two losses, four devices.
 *
 * Points in the plane are to be sorted into three rings (a class: cross-entropy) and told their
 * angle (two numbers, its cosine and sine: mean squared error). A small network with one trunk and
 * two heads learns both at once; the loss is 1 x cross-entropy + 0.5 x squared error.
 *
 * The model is a module of the program's own that is put together from stock ones: it declares
 * three children and calls them. ek_weighted_sum gives the first output and target to the first
 * term and the second ones to the second. Exit code 1 if something failed or a loss did not fall.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/evenkeel.h>

enum { POINT = 2, HIDDEN = 32, RINGS = 3, DIRECTION = 2, BATCH = 61, STEPS = 300, SEED = 11 };

/* ---- the model: trunk, then two heads side by side ---- */

enum { TRUNK, RING_HEAD, DIRECTION_HEAD, CHILDREN };
static const char *const child_names[CHILDREN] = {"trunk", "ring", "direction"};

struct two_heads {
  ek_module base; /* first */
  ek_module *children[CHILDREN];
};

static ek_status two_heads_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct two_heads *model = (const struct two_heads *)self;
  for (size_t i = 0; i < CHILDREN; i++) {
    EK_TRY(ek_declare_module(declaration, child_names[i], model->children[i]));
  }
  return EK_OK;
}

/* Both heads read the trunk's result, which is freed here: modules that need it have saved it. */
static ek_status two_heads_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                   ek_tensor *outputs) {
  (void)self;
  ek_tensor hidden = {0};
  EK_TRY(ek_pass_child_forward(&hidden, pass, TRUNK, inputs));
  ek_status status = ek_pass_child_forward(&outputs[0], pass, RING_HEAD, &hidden);
  if (status == EK_OK) status = ek_pass_child_forward(&outputs[1], pass, DIRECTION_HEAD, &hidden);
  ek_tensor_free(&hidden);
  return status;
}

/* In the reverse order; the gradient of what both heads read is the sum of theirs. */
static ek_status two_heads_backward(const ek_module *self, ek_pass *pass,
                                    const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  (void)self;
  ek_status status = EK_OK;
  ek_tensor sum = {0}, other = {0};
  EK_TRY_GOTO(status, ek_pass_child_backward(&sum, pass, DIRECTION_HEAD, &grad_outputs[1]),
              cleanup);
  EK_TRY_GOTO(status, ek_pass_child_backward(&other, pass, RING_HEAD, &grad_outputs[0]), cleanup);
  EK_TRY_GOTO(status, ek_op_add(ek_pass_stream(pass), &sum, &sum, &other), cleanup);
  ek_tensor_free(&other);
  EK_TRY_GOTO(status, ek_pass_child_backward(grad_inputs, pass, TRUNK, &sum), cleanup);
cleanup:
  ek_tensor_free(&other);
  ek_tensor_free(&sum);
  return status;
}

static void two_heads_free(ek_module *self) {
  struct two_heads *model = (struct two_heads *)self;
  for (size_t i = 0; i < CHILDREN; i++) ek_module_free(model->children[i]);
  free(model);
}

static const ek_module_ops two_heads_ops = {.size = sizeof(ek_module_ops),
                                            .kind = "two_heads",
                                            .parameters = two_heads_parameters,
                                            .forward = two_heads_forward,
                                            .backward = two_heads_backward,
                                            .free = two_heads_free};

static ek_status create_two_heads(ek_module **module) {
  struct two_heads *model = calloc(1, sizeof *model);
  if (model == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "two_heads: out of memory");
  const ek_status status = ek_module_init(&model->base, &two_heads_ops, 1, 2);
  if (status != EK_OK) {
    free(model);
    return status;
  }
  /* From here on ek_module_free() frees the children there are. */
  *module = &model->base;
  const int64_t sizes[] = {POINT, HIDDEN, HIDDEN};
  EK_TRY(ek_mlp_create(&model->children[TRUNK], sizes, 3, EK_ACTIVATION_GELU));
  EK_TRY(ek_linear_create(&model->children[RING_HEAD], HIDDEN, RINGS, true));
  return ek_linear_create(&model->children[DIRECTION_HEAD], HIDDEN, DIRECTION, true);
}

/* ---- the training ---- */

static ek_status open_trainer(ek_trainer **trainer) {
  ek_module *module = NULL;
  ek_criterion *terms[2] = {NULL}, *loss = NULL;
  ek_optimizer *rule = NULL;
  ek_status status = EK_OK;
  const double coefficients[] = {1.0, 0.5};
  ek_adamw_options adamw = EK_ADAMW_OPTIONS_INIT;
  adamw.learning_rate = 1e-2;
  EK_TRY_GOTO(status, create_two_heads(&module), cleanup);
  EK_TRY_GOTO(status, ek_cross_entropy_create(&terms[0], NULL), cleanup);
  EK_TRY_GOTO(status, ek_mean_squared_error_create(&terms[1], EK_REDUCTION_MEAN), cleanup);
  EK_TRY_GOTO(status, ek_weighted_sum_create(&loss, terms, coefficients, 2), cleanup);
  EK_TRY_GOTO(status, ek_adamw_create(&rule, &adamw), cleanup);
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  options.model = &model_options;
  model_options.seed = SEED;
  status = ek_trainer_open(trainer, "cpu:4", module, loss, rule, &options);
cleanup: /* the trainer keeps what it needs of them */
  ek_optimizer_free(rule);
  ek_criterion_free(loss);
  for (int i = 0; i < 2; i++) ek_criterion_free(terms[i]);
  ek_module_free(module);
  return status;
}

/* 61 points do not divide by four devices: 16, 15, 15, 15. The loss is exact all the same. */
struct batch {
  float points[BATCH][POINT];
  int32_t rings[BATCH];
  float directions[BATCH][DIRECTION];
};

static void make_batch(struct batch *batch, uint32_t step) {
  for (uint32_t i = 0; i < BATCH; i++) {
    uint32_t bits[4];
    ek_random_bits((ek_random_key){SEED, step, 1}, i, 0, bits);
    const double radius = 0.2 + 1.8 * ek_random_unit(bits[0]);
    const double angle = 6.283185307179586 * ek_random_unit(bits[1]);
    batch->directions[i][0] = (float)cos(angle);
    batch->directions[i][1] = (float)sin(angle);
    batch->points[i][0] = (float)(radius * cos(angle));
    batch->points[i][1] = (float)(radius * sin(angle));
    batch->rings[i] = radius < 0.8 ? 0 : radius < 1.4 ? 1 : 2;
  }
}

static ek_status train_step(ek_trainer *trainer, struct batch *batch, double *loss) {
  const int64_t point_shape[] = {BATCH, POINT}, ring_shape[] = {BATCH};
  const int64_t direction_shape[] = {BATCH, DIRECTION};
  ek_tensor points, targets[2];
  EK_TRY(ek_tensor_host(&points, batch->points, EK_F32, 2, point_shape));
  EK_TRY(ek_tensor_host(&targets[0], batch->rings, EK_I32, 1, ring_shape));
  EK_TRY(ek_tensor_host(&targets[1], batch->directions, EK_F32, 2, direction_shape));

  ek_step_result result;
  EK_TRY(ek_trainer_step(&result, trainer, &points, 1, targets, 2));
  *loss = result.loss;
  return EK_OK;
}

/* How good each output is by itself, on points that were never trained on. */
static ek_status evaluate(ek_trainer *trainer, double *correct, double *squared_error) {
  struct batch batch;
  make_batch(&batch, UINT32_MAX);
  const int64_t point_shape[] = {BATCH, POINT}, ring_shape[] = {BATCH, RINGS};
  const int64_t direction_shape[] = {BATCH, DIRECTION};
  float rings[BATCH][RINGS], directions[BATCH][DIRECTION];
  ek_tensor points, ring, direction;
  EK_TRY(ek_tensor_host(&points, batch.points, EK_F32, 2, point_shape));
  EK_TRY(ek_tensor_host(&ring, rings, EK_F32, 2, ring_shape));
  EK_TRY(ek_tensor_host(&direction, directions, EK_F32, 2, direction_shape));

  ek_shards outputs[2];
  memset(outputs, 0, sizeof outputs);
  EK_TRY(ek_trainer_predict(outputs, trainer, &points, 1));
  ek_status status = ek_gather_host(&ring, &outputs[0]);
  if (status == EK_OK) status = ek_gather_host(&direction, &outputs[1]);
  for (int i = 0; i < 2; i++) ek_shards_free(&outputs[i]);
  EK_TRY(status);

  *correct = *squared_error = 0;
  for (int i = 0; i < BATCH; i++) {
    int best = 0;
    for (int r = 1; r < RINGS; r++) best = rings[i][r] > rings[i][best] ? r : best;
    *correct += (best == batch.rings[i]) / (double)BATCH;
    for (int d = 0; d < DIRECTION; d++) {
      const double error = directions[i][d] - batch.directions[i][d];
      *squared_error += error * error / (BATCH * DIRECTION);
    }
  }
  return EK_OK;
}

static ek_status run(ek_trainer *trainer, int *learnt) {
  double before[2], after[2], loss = 0;
  EK_TRY(evaluate(trainer, &before[0], &before[1]));
  for (uint32_t step = 0; step < STEPS; step++) {
    struct batch batch;
    make_batch(&batch, step);
    EK_TRY(train_step(trainer, &batch, &loss));
    if (step == 0 || (step + 1) % 50 == 0) printf("step %3u  loss %.4f\n", step + 1, loss);
  }
  EK_TRY(evaluate(trainer, &after[0], &after[1]));
  printf("rings right: %.0f %% -> %.0f %%   squared error of the direction: %.4f -> %.4f\n",
         100 * before[0], 100 * after[0], before[1], after[1]);
  *learnt = after[0] > before[0] && after[1] < before[1];
  return EK_OK;
}

int main(void) {
  ek_trainer *trainer = NULL;
  int learnt = 0;
  ek_status status = open_trainer(&trainer);
  if (status == EK_OK) status = run(trainer, &learnt);
  if (status != EK_OK) {
    fprintf(stderr, "multi_output: %s: %s\n", ek_status_name(status), ek_error_message());
  } else if (!learnt) {
    fprintf(stderr, "multi_output: one of the two losses did not fall\n");
  }
  ek_trainer_free(trainer);
  return status == EK_OK && learnt ? 0 : 1;
}
