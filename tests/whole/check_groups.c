/*
 * check_groups.c - parameters that are declared without weight decay, or frozen: updates follow
 * plain loops in double, in every mode. Layers over frozen parameters: check_frozen.c.
 *
 * The loops are PyTorch's: AdamW and SGD with two groups of parameters, one of them with weight
 * decay 0, and torch.nn.utils.clip_grad_norm_ over the parameters that require a gradient. They
 * start each step from the values that the library has and keep their own states, so after t
 * steps docs/numerics.md bounds the difference by t u (4 P + 88 lr / g): with t = 4, P = 2, lr =
 * 0.01 and gradients of 1e-3 and more it is 4e-13, and 1e-12 is asked for.
 */
#include <stdatomic.h>

#include "ck_mirror.h"
#include "ck_rule.h"
#include "ck_state.h"
#include "ck_training.h"

enum { N = 5, STRIPES = 8, SAMPLES = 7, STEPS = 4, ELEMENTS = 40 * N };

/* ---- a module of many parameters: y[r][j] = x[r][j] * sum of (i + 1) / 8 p[i][j] over all ---- */

enum what { PLAIN = 0, NO_DECAY = 1, FROZEN = 2 };

static const struct {
  const char *name, *source; /* tied to it */
  int64_t rows;
  int what;
} stripes[STRIPES] = {{"a", NULL, 3, PLAIN},    {"b", NULL, 1, NO_DECAY},
                      {"c", NULL, 4, FROZEN},   {"d", NULL, 9, PLAIN},
                      {"e", NULL, 2, NO_DECAY}, {"f", "c", 4, PLAIN},
                      {"g", "a", 3, NO_DECAY},  {"h", NULL, 6, FROZEN | NO_DECAY}};

struct stripes {
  ek_module base;
  int all; /* what each of them is, or -1: as above */
};

static int next_all = -1; /* of the modules that are made */

CK_PARAMETERS(stripes) {
  const int all = ((const struct stripes *)self)->all;
  for (int k = 0; k < STRIPES; k++) {
    const int what = all < 0 ? stripes[k].what : all;
    CK_WITH(ek_parameter_options, options, EK_PARAMETER_OPTIONS_INIT,
            .no_decay = (what & NO_DECAY) != 0, .frozen = (what & FROZEN) != 0);
    EK_TRY(ek_declare_parameter_with(declaration, stripes[k].name, CK_SHAPE(stripes[k].rows, N),
                                     ek_initializer_uniform(-0.1, 0.3), &options));
    if (stripes[k].source != NULL) {
      EK_TRY(ek_declare_tie(declaration, stripes[k].name, stripes[k].source));
    }
  }
  return EK_OK;
}

/* The factors of a row, and their gradients from that of the factors. */
static ek_status factors(ek_pass *pass, double factor[N], const double *slope) {
  for (size_t k = 0; k < STRIPES; k++) {
    ek_tensor p, dp = {0};
    EK_TRY(ek_pass_parameter(&p, pass, k));
    if (slope != NULL) EK_TRY(ek_pass_gradient(&dp, NULL, pass, k));
    CK_MIRRORS(m, slope != NULL, slope != NULL ? &dp : &p);
    for (int64_t i = 0; i < ek_tensor_count(&p); i++) {
      const double weight = (double)(i / N + 1) / 8;
      if (slope == NULL) factor[i % N] += weight * ck_at(&m.host[0], i);
      if (slope != NULL) ck_put(&m.host[0], i, ck_at(&m.host[0], i) + weight * slope[i % N]);
    }
    EK_TRY(ck_mirrors_close(&m));
    if (slope != NULL) EK_TRY(ek_pass_gradient_complete(pass, k));
  }
  return EK_OK;
}

CK_FORWARD(stripes) {
  double factor[N] = {0};
  const ek_tensor *x = &inputs[0];
  EK_TRY(factors(pass, factor, NULL));
  EK_TRY(ek_pass_output(&outputs[0], pass, x->type, 2, x->shape));
  CK_MIRRORS(m, 1, &outputs[0], x);
  for (int64_t i = 0; i < ek_tensor_count(x); i++) {
    ck_put(&m.host[0], i, factor[i % N] * ck_at(&m.host[1], i));
  }
  EK_TRY(ck_mirrors_close(&m));
  return ek_pass_save(pass, x);
}

CK_BACKWARD(stripes) {
  CK_FREED(tensor) x = {0};
  double slope[N] = {0}, factor[N] = {0};
  if (grad_inputs != NULL) return ek_error_set(EK_ERR_UNSUPPORTED, "stripes: only as the root");
  EK_TRY(ek_pass_take(&x, pass));
  CK_MIRRORS(m, 0, &x, &grad_outputs[0]);
  for (int64_t i = 0; i < ek_tensor_count(&x); i++) {
    slope[i % N] += ck_at(&m.host[0], i) * ck_at(&m.host[1], i);
  }
  EK_TRY(ck_mirrors_close(&m));
  ek_tensor_free(&x);
  return factors(pass, factor, slope);
}

CK_PLAIN_OPS(stripes, .parameters = stripes_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64);

static ek_status stripes_create(ek_module **module) {
  struct stripes *m = ck_module_new(sizeof *m, &stripes_ops, 1, 1);
  m->all = next_all;
  *module = &m->base;
  return EK_OK;
}

static const struct ck_workload workload = {
    .name = "stripes", .module = stripes_create, .criterion = ek_mean_squared_error_create,
    .sample = CK_SAMPLE(CK_ROW(N), CK_ROW(N))};

/* ---- rules ---- */

struct rule {
  bool adam, coupled;
  double decay, clip;
};
static const struct rule rules[] = {{true, false, 0.1, 0},
                                    {true, false, 0.1, 0.2},
                                    {true, true, 0.1, 0.2},
                                    {false, false, 0.1, 0.2}};
enum { RULES = sizeof rules / sizeof rules[0] };

static struct rule chosen;

static ek_status create_rule(ek_optimizer **optimizer) {
  ek_adamw_options adamw = EK_ADAMW_OPTIONS_INIT;
  ek_sgd_options sgd = EK_SGD_OPTIONS_INIT;
  adamw.learning_rate = sgd.learning_rate = 0.01;
  adamw.weight_decay = sgd.weight_decay = chosen.decay;
  adamw.clip_norm = sgd.clip_norm = chosen.clip;
  adamw.coupled = chosen.coupled;
  sgd.momentum = 0.9;
  return chosen.adam ? ek_adamw_create(optimizer, &adamw) : ek_sgd_create(optimizer, &sgd);
}

/* One element by the formulas of updates.h. */
static double updated(double p, double g, double decay, double *m, double *v, int step) {
  const double rate = 0.01;
  if (!chosen.adam || chosen.coupled) g += decay * p;
  if (!chosen.adam) {
    *m = step == 1 ? g : 0.9 * *m + g;
    return p - rate * *m;
  }
  if (!chosen.coupled) p -= rate * decay * p;
  *m = 0.9 * *m + 0.1 * g;
  *v = 0.999 * *v + 0.001 * g * g;
  return p - rate / (1 - pow(0.9, step)) * *m / (sqrt(*v / (1 - pow(0.999, step))) + 1e-8);
}

/* ---- against the loops ---- */

struct element {
  bool no_decay, frozen;
};

/* All elements of parameters in declaration order, as ck_training_read() gives them. */
static int64_t elements(struct element *of, const struct ck_training *t) {
  const ek_replica *replica = ek_data_parallel_model_replica(t->model, 0);
  int64_t count = 0;
  CK_EACH_PARAMETER(info, replica) {
    for (int64_t i = 0; i < ek_tensor_count(&info.value); i++) {
      ck_assert_int_lt(count, ELEMENTS);
      of[count++] = (struct element){info.no_decay, info.frozen};
    }
  }
  return count;
}

/* Inputs and errors that are positive, so that no gradient is near zero. */
static struct ck_batch positive_batch(int step) {
  struct ck_batch batch = ck_batch_make(&workload, EK_F64, SAMPLES, 0, (uint64_t)step);
  double *x = batch.input[0].data, *target = batch.target[0].data;
  for (int i = 0; i < SAMPLES * N; i++) {
    x[i] = 0.5 + fabs(x[i]);
    target[i] -= 4;
  }
  return batch;
}

static void one_step(struct ck_training *t, double m[ELEMENTS], double v[ELEMENTS], int step) {
  struct element of[ELEMENTS];
  const int64_t count = elements(of, t);
  struct ck_batch batch = positive_batch(step);
  double square = 0;
  double *want = ck_training_read(t, CK_VALUES);
  ck_ok(ck_training_backward(t, &batch, NULL, false, NULL));
  double *g = ck_training_read(t, CK_GRADIENTS);
  for (int64_t i = 0; i < count; i++) square += of[i].frozen ? 0 : g[i] * g[i];
  const double norm = sqrt(square), clip = chosen.clip > 0 ? chosen.clip / (norm + 1e-6) : 1;
  for (int64_t i = 0; i < count; i++) {
    if (of[i].frozen) continue;
    ck_assert_double_gt(fabs(g[i]), 1e-3);
    const double decay = of[i].no_decay ? 0 : chosen.decay;
    want[i] = updated(want[i], g[i] * fmin(clip, 1), decay, &m[i], &v[i], step);
  }
  CK_GOT(ek_step_result, result, ek_data_parallel_optimizer_step(&result, t->optimizer));
  ck_assert_double_eq_tol(result.gradient_norm, norm, 1e-13 * norm);
  double *got = ck_training_read(t, CK_VALUES);
  for (int64_t i = 0; i < count; i++) {
    ck_assert_msg(fabs(got[i] - want[i]) <= (of[i].frozen ? 0 : 1e-12),
                  "step %d, element %d: %.17g, expected %.17g", step, (int)i, got[i], want[i]);
  }
}

static struct ck_setup setup_of(int placement, ek_type type) {
  struct ck_setup setup = ck_setup_at(&workload, "cpu:3", placement);
  ck_assign(setup, .options.type = type, .optimizer = create_rule);
  return setup;
}

CK_LOOP(updates_follow_the_groups, RULES * CK_PLACEMENTS) {
  const struct ck_setup setup = setup_of(_i / RULES, EK_F64);
  double m[ELEMENTS] = {0}, v[ELEMENTS] = {0};
  chosen = rules[_i % RULES];
  struct ck_training t = ck_training_opened(&setup);
  for (int step = 1; step <= STEPS; step++) one_step(&t, m, v, step);
  if (setup.options.state != EK_STATE_MASTER) ck_training_replicas_agree(&t);
  /* Frozen parameters have no state: a, b, d and e are updated. */
  ek_state_info info;
  ck_assert_uint_eq(ek_state_count(t.model), 6 + 4 * ek_optimizer_states(t.rule) + 2);
  ck_ok(ek_state_find(&info, t.model, ck_state_name(&t, "g", 0))); /* tied to a */
  ck_fails(ek_state_find(&info, t.model, ck_state_name(&t, "f", 0)), EK_ERR_NOT_FOUND, "frozen");
  struct ck_state state = ck_state_take(t.model), after;
  ck_ok(ck_state_put(t.model, &state));
  after = ck_state_take(t.model);
  ck_state_same("written and read", &after, &state);
}

/* Without decay and clipping the groups change no bit. */
CK_LOOP(without_decay_nothing_changes, 2 * CK_PLACEMENTS) {
  struct ck_state state[2];
  chosen = (struct rule){_i % 2 == 0, false, 0, 0};
  for (int k = 0; k < 2; k++) {
    next_all = k == 0 ? PLAIN : NO_DECAY;
    CK_HELD(struct ck_training, t, ck_training_of(setup_of(_i / 2, EK_F32)));
    next_all = -1;
    for (int step = 0; step < STEPS; step++) {
      struct ck_batch batch = ck_batch_make(&workload, EK_F32, SAMPLES, 0, (uint64_t)step);
      ck_ok(ck_training_step(&t, &batch, NULL));
    }
    state[k] = ck_state_take(t.model);
  }
  ck_state_same("groups without decay", &state[1], &state[0]);
}

CK_LOOP(everything_frozen, CK_PLACEMENTS) {
  chosen = rules[1];
  next_all = FROZEN;
  struct ck_training t = ck_training_of(setup_of(_i, EK_F32));
  next_all = -1;
  struct ck_batch batch = ck_batch_make(&workload, EK_F32, SAMPLES, 0, 1);
  double *before = ck_training_read(&t, CK_VALUES);
  CK_GOT(ek_step_result, result, ck_training_step(&t, &batch, &result));
  double *after = ck_training_read(&t, CK_VALUES);
  ck_arrays_same("frozen", after, before);
  ck_assert(result.finite && result.gradient_norm == 0 && result.step == 1);
  ck_assert_uint_eq(ek_state_count(t.model), 6 + 2);
}

/* ---- in 16 bits ---- */

/*
 * Gradients, too, in 16 bits: frozen parameters stay what they are, masters and copies, on all
 * devices, and the norm is that of the others: it is summed in f64, the factor that it is
 * multiplied with rounds to f32 as it is read.
 */
CK_PART_LOOP(frozen_in_16_bits, ck_if_halves(2 * CK_PLACEMENTS)) {
  struct ck_setup setup = setup_of(_i / 2, EK_F32);
  const ek_loss_scale none = {.kind = EK_LOSS_SCALE_NONE};
  struct element of[ELEMENTS];
  chosen = rules[1];
  setup.options.gradient_type = _i % 2 == 0 ? EK_BF16 : EK_F16;
  setup.options.precision = (ek_precision)setup.options.gradient_type;
  setup.loss_scale = &none;
  struct ck_training t = ck_training_opened(&setup);
  const int64_t count = elements(of, &t);
  double *before = ck_training_read(&t, CK_VALUES);
  for (int step = 1; step <= STEPS; step++) {
    double square = 0;
    struct ck_batch batch = ck_batch_make(&workload, EK_F32, SAMPLES, 0, (uint64_t)step);
    ck_ok(ck_training_backward(&t, &batch, NULL, false, NULL));
    double *g = ck_training_read(&t, CK_GRADIENTS);
    for (int64_t i = 0; i < count; i++) square += of[i].frozen ? 0 : g[i] * g[i];
    CK_GOT(ek_step_result, result, ek_data_parallel_optimizer_step(&result, t.optimizer));
    ck_assert_double_eq_tol(result.gradient_norm, sqrt(square), 0x1p-22 * sqrt(square));
    ck_training_copies_are_right(&t);
  }
  double *after = ck_training_read(&t, CK_VALUES);
  for (int64_t i = 0; i < count; i++) ck_assert((after[i] == before[i]) == of[i].frozen);
}

/* ---- what it costs ---- */

static atomic_int calls, without;

static ek_status count_update(const ek_optimizer *self, ek_stream *stream, const ek_update *u) {
  const ek_sgd_terms terms = {.learning_rate = 0.5, .first = true};
  (void)self;
  atomic_fetch_add(&calls, 1);
  if (u->no_decay) atomic_fetch_add(&without, 1);
  return ek_op_sgd(stream, u->parameters, NULL, u->gradients, &terms, &u->scale);
}

static ek_status count_create(ek_optimizer **optimizer) {
  return ck_rule_create(optimizer, "count", count_update);
}

/* A gpt of 28 parameters: one call for those without decay and one for the others, and for each
 * device's part of a bucket. */
CK_LOOP(few_calls, CK_PLACEMENTS) {
  CK_TRAINING(t, ck_setup_at(ck_workload("gpt"), "cpu:2", _i), .options.bucket_bytes = 2048,
              .optimizer = count_create);
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0, 1);
  atomic_store(&calls, 0);
  atomic_store(&without, 0);
  ck_ok(ck_training_step(&t, &batch, NULL));
  const ek_replica *replica = ek_data_parallel_model_replica(t.model, 0);
  const ek_tensor *copies = ek_replica_copies(replica); /* whole where masters are shares */
  const int64_t flat =
      ek_tensor_count(ek_tensor_count(copies) > 0 ? copies : ek_replica_parameters(replica));
  const ek_state_placement state = t.setup.options.state;
  enum { UNITS = 6 }; /* at most: two blocks and what is beside them */
  const int64_t shares = state == EK_STATE_FULLY_SHARDED ? 2 * UNITS
                         : state >= EK_STATE_SHARDED     ? 4 * flat / 2048 + 1
                                                         : 1;
  ck_assert_int_ge(atomic_load(&calls), 2);
  ck_assert_int_le(atomic_load(&calls), 2 * (shares + 1));
  ck_assert_int_ge(atomic_load(&without), 1);
  ck_assert_int_lt(atomic_load(&without), atomic_load(&calls));
}

CK_SUITE("groups")
