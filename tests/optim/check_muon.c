/*
 * check_muon.c - Muon: its formula, exactly where numbers have few bits and against plain loops in
 * f64; in every mode, from the gradients of a model; what devices own and hold; and a rule of the
 * program's own that takes parameters whole.
 */
#include "ck_gpt.h"
#include "ck_state.h"
#include "ck_training.h"

/* ---- the formula, written out ---- */

enum { MOST = 1024 }; /* elements of a matrix here */

/* c = a b, or a b^T */
static void multiply(double *c, const double *a, const double *b, int64_t rows, int64_t inner,
                     int64_t columns, bool transposed) {
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = 0; j < columns; j++) {
      double sum = 0;
      for (int64_t k = 0; k < inner; k++) {
        sum += a[i * inner + k] * (transposed ? b[j * inner + k] : b[k * columns + j]);
      }
      c[i * columns + j] = sum;
    }
  }
}

static double norm_of(const double *x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; i++) sum += x[i] * x[i];
  return sqrt(sum);
}

/* x [rows, columns], never transposed: the same in exact arithmetic. */
static void iterate(const ek_muon_options *o, double *x, int64_t rows, int64_t columns) {
  double s[MOST], ss[MOST], sx[MOST], ssx[MOST];
  multiply(s, x, x, rows, columns, rows, true);
  multiply(ss, s, s, rows, rows, rows, false);
  multiply(sx, s, x, rows, rows, columns, false);
  multiply(ssx, ss, x, rows, rows, columns, false);
  for (int64_t i = 0; i < rows * columns; i++) {
    x[i] = o->coefficients[0] * x[i] + o->coefficients[1] * sx[i] + o->coefficients[2] * ssx[i];
  }
}

static void step_of(const ek_muon_options *o, double *p, double *m, const double *g, int64_t rows,
                    int64_t columns, double rate, double decay) {
  double x[MOST];
  const int64_t count = rows * columns;
  for (int64_t i = 0; i < count; i++) {
    m[i] += (1 - o->momentum) * (g[i] - m[i]);
    x[i] = o->nesterov ? g[i] + o->momentum * (m[i] - g[i]) : m[i];
  }
  const double norm = fmax(norm_of(x, count), o->epsilon);
  for (int64_t i = 0; i < count; i++) x[i] /= norm;
  for (int i = 0; i < o->iterations; i++) iterate(o, x, rows, columns);
  const double longer = (double)(rows > columns ? rows : columns);
  const double factor = o->factor == EK_MUON_ORIGINAL
                            ? sqrt(fmax(1, (double)rows / (double)columns))
                            : 0.2 * sqrt(longer);
  for (int64_t i = 0; i < count; i++) p[i] -= rate * decay * p[i] + rate * factor * x[i];
}

/* ---- one matrix ---- */

struct matrix {
  struct ck_rig *rig;
  ek_optimizer *rule;
  ek_optimizer_parameter info;
  ek_tensor *parameters, *gradients, *workspace;
  ek_tensor states[EK_MAX_OPTIMIZER_STATES];
  int64_t step;
};

/* Takes over the other rule. */
static ek_status muon_and(ek_optimizer **rule, ek_optimizer *other,
                          const ek_muon_options *options) {
  const ek_status status = ek_muon_create(rule, other, options);
  ek_optimizer_free(other);
  return status;
}

static ek_optimizer *make(const ek_muon_options *options) {
  CK_GOT(ek_optimizer *, adamw, ek_adamw_create(&adamw, NULL));
  CK_OPENED(ek_optimizer *, rule, muon_and(&rule, adamw, options));
  return rule;
}

static ek_status make_muon(ek_optimizer **rule) {
  CK_GOT(ek_optimizer *, adamw, ek_adamw_create(&adamw, NULL));
  return muon_and(rule, adamw, NULL);
}

static struct matrix open_matrix(struct ck_rig *rig, const ek_muon_options *options,
                                 const double *p, int64_t rows, int64_t columns) {
  struct matrix it = {.rig = rig, .rule = make(options)};
  const ek_optimizer_ops *ops = ek_optimizer_table(it.rule);
  it.info = (ek_optimizer_parameter){.name = "matrix", .rank = 2, .shape = {rows, columns}};
  ck_assert(ops->takes_whole(it.rule, &it.info));
  ck_assign(it, .parameters = ck_tensor(rig, p, CK_SHAPE(rows, columns)),
            .gradients = ck_poisoned(rig, CK_SHAPE(rows, columns)),
            .states[0] = *ck_poisoned(rig, CK_SHAPE(rows, columns)),
            .workspace =
                ck_poisoned(rig, CK_SHAPE(ops->workspace(it.rule, &it.info) + EK_MEMORY_UNIT)));
  return it;
}

/* The library aligns a workspace as it does any memory; a tensor of a rig may begin beside. */
static ek_tensor aligned(const ek_tensor *room) {
  ek_tensor tensor = *room;
  tensor.data = (char *)tensor.data + (0 - (uintptr_t)tensor.data) % EK_MEMORY_UNIT;
  tensor.shape[0] -= EK_MEMORY_UNIT;
  return tensor;
}

static void step_matrix(struct matrix *it, const double *gradient, double rate) {
  ek_tensor workspace = aligned(it->workspace);
  ek_update update = {.parameters = it->parameters, .gradients = it->gradients,
                      .states = it->states, .step = ++it->step, .learning_rate = rate,
                      .whole = &it->info, .workspace = &workspace};
  ck_set(it->gradients, gradient);
  ck_ok(ek_optimizer_table(it->rule)->update(it->rule, it->rig->stream, &update));
}

/* Rows of a Hadamard matrix: u u^T is a multiple of I, |u| is a power of two, and the coefficients
 * have few bits. So every number is exact, in f32 too, and any order of sums gives the same. With
 * momentum 1/2 the first gradient and then its half make the momentum half of the first, always. */
CK_RIG_LOOP(exact_numbers, CK_VARIANTS) {
  static const int64_t shapes[][2] = {{4, 4}, {2, 8}, {8, 2}, {1, 16}, {16, 1}, {1, 1}};
  for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
    const int64_t rows = shapes[k][0], columns = shapes[k][1];
    const int64_t least = rows < columns ? rows : columns;
    double p[16], m[16] = {0}, g[16];
    CK_WITH(ek_muon_options, o, EK_MUON_OPTIONS_INIT, .momentum = k % 2 == 0 ? 0 : 0.5,
            .weight_decay = 0.25, .nesterov = k % 2 == 0, .iterations = 2);
    o.coefficients[0] = 1, o.coefficients[1] = -1, o.coefficients[2] = 4;
    for (int64_t i = 0; i < rows * columns; i++) {
      const int64_t r = i / columns, c = i % columns;
      p[i] = (double)(i - 5);
      g[i] = least == 1 || __builtin_parity((unsigned)(r & c)) == 0 ? 4 : -4;
    }
    struct matrix it = open_matrix(rig, &o, p, rows, columns);
    for (int step = 0; step < 3; step++) {
      step_matrix(&it, g, 0.5);
      step_of(&o, p, m, g, rows, columns, 0.5, o.weight_decay);
      ck_same_bits("momentum", ck_read(rig, &it.states[0]), m, rows * columns);
      if (rows <= columns) { /* the factor of others may be irrational */
        ck_same_bits("parameters", ck_read(rig, it.parameters), p, rows * columns);
      }
      for (int64_t i = 0; i < rows * columns; i++) g[i] *= step == 0 ? 1 - o.momentum : 1;
    }
  }
}

/*
 * An iteration maps singular values by f(v) = a v + b v^3 + c v^5, and with the default
 * coefficients values in 0 .. 1.21 to such values, |f'| < 4 there: so an error grows at most 4
 * times, 4^5 = 1024 in five. In an iteration the terms are at most 3.5 x, 4.8 * 1.21^2 x and 2.1 *
 * 1.21^4 x, 15 |x| together, |x| <= 1.21 sqrt(least); sums have `rows + columns` terms at most and
 * are rounded as often, products of them 8 times more. All five iterations: (1 + 4 + .. + 4^4) =
 * 341 of that, and the normalised direction has 1024 times its own error, 16 roundings of each
 * element. The momentum keeps 1 / (1 - momentum) errors.
 */
static double bound_of(const struct ck_rig *rig, const ek_muon_options *o, int64_t rows,
                       int64_t columns) {
  const double least = (double)(rows < columns ? rows : columns);
  const double iteration = 15 * 1.21 * sqrt(least) * (double)(rows + columns + 8);
  return rig->unit * (341 * iteration + 1024 * 16 / (1 - o->momentum));
}

CK_RIG_LOOP(equals_the_formula, CK_VARIANTS) {
  static const int64_t shapes[][2] = {{5, 7}, {12, 3}, {9, 9}, {1, 6}, {6, 1}, {17, 40}};
  for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
    const int64_t rows = shapes[k][0], columns = shapes[k][1], count = rows * columns;
    CK_WITH(ek_muon_options, o, EK_MUON_OPTIONS_INIT, .nesterov = k % 2 == 0,
            .factor = k % 3 == 0 ? EK_MUON_MATCH_RMS_ADAMW : EK_MUON_ORIGINAL);
    const double rate = 0.02, largest = 0.2 * sqrt(40) + sqrt(12);
    double *p = ck_values(rig, count, -1, 1), *m = ck_zeros(rig, count),
           *bound = ck_zeros(rig, count);
    struct matrix it = open_matrix(rig, &o, p, rows, columns);
    for (int step = 0; step < 6; step++) {
      const double *g = ck_values(rig, count, -1e-3, 1e-3);
      step_matrix(&it, g, rate);
      step_of(&o, p, m, g, rows, columns, rate, o.weight_decay);
      for (int64_t i = 0; i < count; i++) {
        bound[i] += rate * largest * bound_of(rig, &o, rows, columns) + 8 * rig->unit;
      }
      ck_within("parameters", ck_read(rig, it.parameters), p, bound, count);
    }
  }
}

/* A gradient of zeros moves nothing, and one that is tiny is not made large: |u| < epsilon. */
CK_RIG_LOOP(small_gradients, CK_VARIANTS) {
  const double zeros[4] = {0}, p[4] = {1, 2, 3, 4};
  double tiny[4] = {0x1p-80, 0, 0, 0};
  CK_WITH(ek_muon_options, o, EK_MUON_OPTIONS_INIT, .weight_decay = 0, .epsilon = 0x1p-20);
  struct matrix it = open_matrix(rig, &o, p, 2, 2);
  step_matrix(&it, zeros, 1);
  ck_same_bits("parameters", ck_read(rig, it.parameters), p, 4);
  step_matrix(&it, tiny, 1);
  ck_assert(fabs(ck_read(rig, it.parameters)[0] - 1) < 0x1p-20);
}

CK_TEST(options_are_checked) {
  ek_optimizer *made = NULL, *adamw = NULL, *clipped = NULL, *twice = NULL, *muon = NULL;
  ek_optimizer *second = NULL, *third = NULL;
  ck_kept(ek_adamw_create(&adamw, NULL), adamw);
  ck_kept(ck_clipped_adamw(&clipped), clipped);
  ck_kept(ek_averaged_create(&second, adamw, 0.5), second);
  ck_invalid(ek_muon_create(NULL, adamw, NULL), "optimizer is NULL");
  ck_invalid(ek_muon_create(&made, NULL, NULL), "elementwise is NULL");
  ck_invalid(ek_muon_create(&made, clipped, NULL), "clip_norm 0.5");
  ek_muon_options o = EK_MUON_OPTIONS_INIT;
#define REFUSED(member, value, text)                                                               \
  ck_bad(o, member, value, ek_muon_create(&made, adamw, &o), text)
  REFUSED(learning_rate, 0, "learning_rate is 0");
  REFUSED(learning_rate, NAN, "learning_rate is");
  REFUSED(momentum, 1, "expected 0 <= momentum < 1");
  REFUSED(weight_decay, -1, "weight_decay");
  REFUSED(coefficients[1], INFINITY, "coefficient number 1");
  REFUSED(iterations, 0, "expected 1 to 99");
  REFUSED(epsilon, 0, "epsilon is 0");
  REFUSED(factor, (ek_muon_factor)2, "unknown factor 2");
  REFUSED(clip_norm, -1, "clip_norm");
  ck_kept(ek_muon_create(&muon, adamw, NULL), muon);
  ck_assert_uint_eq(ek_optimizer_states(muon), 3);
  ck_invalid(ek_muon_create(&twice, muon, NULL), "takes parameters whole");
  ck_kept(ek_muon_create(&third, second, NULL), third); /* four states */
  ck_invalid(ek_averaged_create(&twice, third, 0.5), "4 states");
  ck_assert_ptr_null(made);
  ck_assert_ptr_null(twice);
}

/* ---- a model ---- */

static struct ck_training open_gpt(int placement, const char *spec, ek_type type,
                                   ek_status (*rule)(ek_optimizer **)) {
  CK_WITH(struct ck_setup, setup, ck_setup_at(ck_workload("gpt"), spec, placement),
          .optimizer = rule, .options.type = type);
  return ck_training_opened(&setup);
}

static void read_entry(double out[MOST], ek_tensor *host, const struct ck_training *t,
                       const char *prefix, const char *name) {
  const char *entry = ck_text("%s%s", prefix, name);
  CK_GOT(ek_state_info, info, ek_state_find(&info, t->model, entry));
  *host = info.like;
  ck_assert_int_le(ek_tensor_count(host), MOST);
  ck_ok(ek_tensor_host(host, out, EK_F64, host->rank, host->shape));
  ck_ok(ek_state_read(host, t->model, entry));
}

/* One step of every matrix of a model, from the gradients that the model says it has. */
static void follow_step(struct ck_training *t, const ek_muon_options *o, int step) {
  static double p[8][MOST], m[8][MOST], g[MOST], after[MOST];
  const ek_replica *replica = ek_data_parallel_model_replica(t->model, 0);
  const struct ck_batch batch = ck_batch_make(ck_workload("gpt"), EK_F64, 7, 0, (uint64_t)step);
  const char *names[8];
  ek_tensor host;
  size_t matrices = 0;
  ck_ok(ck_training_backward(t, &batch, NULL, false, NULL));
  CK_EACH_PARAMETER(info, replica) {
    if (info.value.rank != 2 || info.elementwise) continue;
    names[matrices] = info.name;
    read_entry(p[matrices], &host, t, "", info.name);
    read_entry(m[matrices], &host, t, "muon/momentum/", info.name);
    ck_ok(ek_tensor_host(&host, g, EK_F64, host.rank, host.shape));
    ck_ok(ek_data_parallel_model_gradient(&host, t->model, info.name));
    step_of(o, p[matrices], m[matrices], g, host.shape[0], host.shape[1], o->learning_rate,
            info.no_decay ? 0 : o->weight_decay);
    matrices++;
  }
  ck_assert_uint_ge(matrices, 4);
  ck_ok(ek_data_parallel_optimizer_step(NULL, t->optimizer));
  for (size_t i = 0; i < matrices; i++) {
    read_entry(after, &host, t, "", names[i]);
    const int64_t count = ek_tensor_count(&host);
    for (int64_t k = 0; k < count; k++) {
      ck_assert_msg(fabs(after[k] - p[i][k]) <= 1e-9, "%s, element %lld: %.17g, not %.17g",
                    names[i], (long long)k, after[k], p[i][k]);
    }
    read_entry(after, &host, t, "muon/momentum/", names[i]);
    for (int64_t k = 0; k < count; k++) ck_assert(fabs(after[k] - m[i][k]) <= 1e-15);
  }
}

/* In f64, so that bound_of() is below 1e-9. */
CK_LOOP(every_mode_follows_the_formula, CK_PLACEMENTS) {
  const ek_muon_options o = EK_MUON_OPTIONS_INIT;
  struct ck_training t = open_gpt(_i, "cpu:3", EK_F64, make_muon);
  for (int step = 0; step < 3; step++) follow_step(&t, &o, step);
}

/* Matrices have a momentum and nothing else, embeddings and vectors have the other rule's states at
 * its own rate. */
CK_LOOP(states_by_name, CK_PLACEMENTS) {
  static double values[MOST];
  struct ck_training t = open_gpt(_i, "cpu:2", EK_F32, make_muon);
  ek_state_info info;
  ek_tensor host;
  read_entry(values, &host, &t, "muon/momentum/", "blocks.0.expand.weight");
  read_entry(values, &host, &t, "muon/m/", "blocks.0.expand.bias");
  read_entry(values, &host, &t, "muon/v/", "tokens.weight");
  read_entry(values, &host, &t, "muon/v/", "head.weight"); /* tied to it */
  ck_fails(ek_state_find(&info, t.model, "muon/m/blocks.0.expand.weight"), EK_ERR_NOT_FOUND,
           "does not take whole");
  ck_fails(ek_state_find(&info, t.model, "muon/momentum/tokens.weight"), EK_ERR_NOT_FOUND,
           "only for parameters that it takes whole");
  const ek_replica *replica = ek_data_parallel_model_replica(t.model, 0);
  size_t matrices = 0, parameters = ek_replica_parameter_count(replica);
  CK_EACH_PARAMETER(parameter, replica) {
    matrices += parameter.value.rank == 2 && !parameter.elementwise;
  }
  ck_assert_uint_eq(ek_state_count(t.model),
                    parameters + matrices + 2 * (parameters - matrices) + 2);
}

/* The other rule gets its own rate, in proportion to the schedule of Muon's. */
CK_RIG_LOOP(rates_are_in_proportion, CK_VARIANTS) {
  ek_optimizer *other = NULL, *rule = NULL;
  const double start[3] = {1, 2, 3}, g[3] = {1, -1, 2}, want[3] = {0.875, 2.125, 2.75};
  CK_WITH(ek_sgd_options, sgd, EK_SGD_OPTIONS_INIT, .learning_rate = 0.5, .momentum = 0.5);
  CK_WITH(ek_muon_options, o, EK_MUON_OPTIONS_INIT, .learning_rate = 2);
  ck_ok(ek_sgd_create(&other, &sgd));
  ck_kept(muon_and(&rule, other, &o), rule);
  ek_tensor *p = ck_tensor(rig, start, CK_SHAPE(3));
  ek_tensor states[2] = {{0}, *ck_poisoned(rig, CK_SHAPE(3))};
  const ek_update update = {.parameters = p, .gradients = ck_tensor(rig, g, CK_SHAPE(3)),
                            .states = states, .step = 1,
                            .learning_rate = 0.5}; /* a quarter: 0.125 */
  ck_ok(ek_optimizer_table(rule)->update(rule, rig->stream, &update));
  ck_same_bits("parameters", ck_read(rig, p), want, 3);
}

/* Both rules have a state of this name: each parameter has its own. */
CK_SGD(make_sgd, .momentum = 0.9)

static ek_status make_muon_and_sgd(ek_optimizer **rule) {
  CK_GOT(ek_optimizer *, other, make_sgd(&other));
  return muon_and(rule, other, NULL);
}

CK_TEST(two_states_of_one_name) {
  struct ck_training t = open_gpt(EK_MODE_SHARDED, "cpu:3", EK_F32, make_muon_and_sgd);
  struct ck_training other = open_gpt(EK_MODE_FULLY_SHARDED, "cpu:2", EK_F32, make_muon_and_sgd);
  const struct ck_batch batch = ck_batch_make(ck_workload("gpt"), EK_F32, 7, 0, 1);
  ck_ok(ck_training_step(&t, &batch, NULL));
  struct ck_state state = ck_state_take(t.model);
  ck_ok(ck_state_put(other.model, &state));
  ck_state_is("after another mode", other.model, &state);
}

/* ---- averages ---- */

static ek_status make_averaged(ek_optimizer **rule) {
  CK_SCOPED(ek_optimizer *, muon, make_muon(&muon));
  return ek_averaged_create(rule, muon, 0.75);
}

/* Of matrices and of the rest; the parameters are those of Muon alone. */
CK_LOOP(averages_around_muon, CK_PLACEMENTS) {
  static const char *const names[] = {"tokens.weight", "blocks.0.expand.weight"};
  static double p[MOST], average[2][MOST], got[MOST];
  struct ck_training t = open_gpt(_i, "cpu:3", EK_F32, make_averaged);
  struct ck_training plain = open_gpt(_i, "cpu:3", EK_F32, make_muon);
  ek_tensor host;
  for (int step = 0; step < 3; step++) {
    const struct ck_batch batch = ck_batch_make(ck_workload("gpt"), EK_F32, 7, 0, (uint64_t)step);
    ck_ok(ck_training_step(&t, &batch, NULL));
    ck_ok(ck_training_step(&plain, &batch, NULL));
    for (int k = 0; k < 2; k++) {
      read_entry(p, &host, &t, "", names[k]);
      read_entry(got, &host, &t, "muon/average/", names[k]);
      for (int64_t i = 0; i < ek_tensor_count(&host); i++) {
        const double before = average[k][i];
        const double want = step == 0 ? p[i] : before + 0.25 * (p[i] - before);
        const double bound = 12 * 0x1p-24 * (fabs(p[i]) + fabs(before)); /* as check_averaged.c */
        ck_assert(fabs(got[i] - want) <= (step == 0 ? 0 : bound));
        average[k][i] = got[i];
      }
    }
  }
  ck_runs_agree(&t, &plain, CK_VALUES, 0);
}

/* ---- memory ---- */

/* plan is cpu, with two micro-batches, in f32, with bf16, and with gradients of bf16. */
CK_LOOP(plan_knows_the_workspace, 3 * CK_PLACEMENTS) {
  struct ck_setup setup = ck_setup_at(ck_workload("gpt"), "cpu:3", _i / 3);
  const struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, 7, 0.1, 3);
  ek_memory_usage planned[3], real[3];
  setup.optimizer = ck_clipped_muon;
  if (_i % 3 > 0) setup.options.precision = EK_PRECISION_BF16;
  if (_i % 3 == 2) setup.options.gradient_type = EK_BF16;
  ck_measure(planned, &setup, "plan:3", &batch, 2);
  ck_measure(real, &setup, "cpu:3", &batch, 2);
  ck_same_peaks(ck_placement_name(_i / 3), planned, real, 3);
}

static ek_status make_gpt(ek_module **module, int layers) {
  const ek_gpt_options options = ck_gpt_sizes(64, 16, 64, layers, 4);
  return ek_gpt_create(module, &options);
}

/* State and shares: no device has more elements of the model than another by more than the largest
 * matrix, and Muon's state is one number for an element of a matrix, where AdamW has two. */
CK_LOOP(shares_are_even, 7) {
  const size_t devices = (size_t)_i + 2;
  uint64_t bytes[2] = {0, 0}, least = UINT64_MAX, most = 0;
  CK_WITH(ek_cross_entropy_options, entropy, EK_CROSS_ENTROPY_OPTIONS_INIT, .classes = 64);
  const char *spec = ck_text("plan:%zu", devices);
  CK_GOT(ek_module *, module, make_gpt(&module, 4));
  CK_GOT(ek_criterion *, loss, ek_cross_entropy_create(&loss, &entropy));
  CK_GOT(ek_parameter_totals, totals, ek_parameter_count(&totals, module, NULL, 0));
  struct ck_setup setup = ck_setup_own(module, loss, spec, EK_MODE_FULLY_SHARDED);
  for (int k = 0; k < 2; k++) {
    setup.optimizer = k == 0 ? make_muon : ck_plain_adamw;
    CK_SET_UP(struct ck_training, t, ck_training_open(&t, &setup));
    for (size_t d = 0; d < devices; d++) {
      CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, ek_group_device(t.group, d)));
      bytes[k] += usage.current[EK_MEMORY_OPTIMIZER];
      if (k == 1) continue;
      const uint64_t own = usage.current[EK_MEMORY_PARAMETERS];
      least = own < least ? own : least;
      most = own > most ? own : most;
    }
    ck_training_close(&t);
  }
  const int64_t matrices = 4 * 12 * 64 * 64, rest = totals.parameters - matrices;
  const uint64_t rounding = 4096 * devices; /* of blocks */
  ck_assert_uint_le(most - least, 4 * 4 * 64 * 64);
  ck_assert_uint_le(bytes[0], 4 * (uint64_t)(matrices + 2 * rest) + rounding);
  ck_assert_uint_ge(bytes[1], 8 * (uint64_t)(matrices + rest));
}

/* ---- a rule of one's own that takes parameters whole ---- */

struct own_rule {
  ek_optimizer base;
  ek_optimizer_ops ops;
  int64_t workspace;
  _Atomic int whole, flat, wrong;
};

/* Whole: p = 2 p; the rest: p = p / 2. */
CK_UPDATE(own_update) {
  struct own_rule *own = (struct own_rule *)(uintptr_t)self;
  const ek_optimizer_parameter *whole = update->whole;
  if (whole == NULL) {
    own->flat++;
    own->wrong += update->parameters->rank != 1 || update->workspace != NULL ||
                  !ek_tensor_exists(&update->states[0]) || ek_tensor_exists(&update->states[1]);
  } else {
    const ek_tensor *p = update->parameters, *w = update->workspace;
    own->whole++;
    own->wrong += p->rank != whole->rank || w == NULL ||
                  ek_tensor_count(w) < 10 + ek_tensor_count(p) || w->type != p->type ||
                  ek_tensor_exists(&update->states[0]) || update->states[1].rank != p->rank ||
                  update->gradients->rank != p->rank;
    for (int d = 0; d < p->rank; d++) own->wrong += p->shape[d] != whole->shape[d];
  }
  return ek_op_scale(stream, update->parameters, update->parameters, whole == NULL ? 0.5 : 2);
}

/* The weights of a bias, too: rank 1. */
static bool own_takes(const ek_optimizer *self, const ek_optimizer_parameter *parameter) {
  (void)self;
  return strstr(parameter->name, "expand") != NULL;
}
static int64_t own_workspace(const ek_optimizer *self, const ek_optimizer_parameter *parameter) {
  const int64_t extra = ((const struct own_rule *)self)->workspace;
  int64_t count = 1;
  for (int d = 0; d < parameter->rank; d++) count *= parameter->shape[d];
  return extra < 0 ? extra : extra + count;
}
static bool own_keeps(const ek_optimizer *self, size_t state, bool whole) {
  (void)self;
  return state == (whole ? 1 : 0);
}
static void own_free(ek_optimizer *self) { free(self); }

static int64_t own_extra = 10;

static ek_status make_own(ek_optimizer **rule) {
  struct own_rule *own = calloc(1, sizeof *own);
  ck_assert_ptr_nonnull(own);
  own->workspace = own_extra;
  own->ops = (ek_optimizer_ops){.size = sizeof own->ops, .kind = "own", .update = own_update,
                                .free = own_free, .takes_whole = own_takes,
                                .workspace = own_workspace, .keeps = own_keeps};
  *rule = &own->base;
  return ek_optimizer_init(&own->base, &own->ops, 2, 0.5, 0);
}

CK_LOOP(a_rule_of_ones_own, CK_PLACEMENTS) {
  static double before[2][MOST], after[MOST];
  static const char *const names[] = {"blocks.0.expand.bias", "blocks.0.contract.weight"};
  struct ck_training t = open_gpt(_i, "cpu:3", EK_F32, make_own);
  ek_tensor host;
  for (int k = 0; k < 2; k++) read_entry(before[k], &host, &t, "", names[k]);
  const struct ck_batch batch = ck_batch_make(ck_workload("gpt"), EK_F32, 7, 0, 1);
  ck_ok(ck_training_step(&t, &batch, NULL));
  for (int k = 0; k < 2; k++) {
    read_entry(after, &host, &t, "", names[k]);
    for (int64_t i = 0; i < ek_tensor_count(&host); i++) {
      ck_assert(after[i] == before[k][i] * (k == 0 ? 2 : 0.5));
    }
  }
  const struct own_rule *own = (const struct own_rule *)t.rule;
  const ek_state_placement state = t.setup.options.state;
  ck_assert_int_eq(own->wrong, 0);
  ck_assert_int_gt(own->flat, 0);
  /* Once, or by each device its own. */
  int taken = 0;
  const ek_replica *replica = ek_data_parallel_model_replica(t.model, 0);
  CK_EACH_PARAMETER(info, replica) {
    taken += strstr(info.name, "expand") != NULL;
  }
  ck_assert_int_gt(taken, 0);
  ck_assert_int_eq(own->whole, taken * (state == EK_STATE_REPLICATED ? 3 : 1));
}

CK_TEST(the_model_has_to_know) {
  ek_group *group = ck_open("cpu:2", 1);
  ek_data_parallel_optimizer *optimizer = NULL;
  ek_optimizer *muon = make(NULL);
  CK_OPENED(ek_optimizer *, adamw, ek_adamw_create(&adamw, NULL));
  CK_OPENED(ek_module *, module, make_gpt(&module, 1));
  CK_OPENED(ek_data_parallel_model *, model,
            ek_data_parallel_model_open(&model, group, module, NULL));
  ck_invalid(ek_data_parallel_optimizer_open(&optimizer, model, muon, NULL),
             "ek_data_parallel_model_options.optimizer");
  ck_kept(ek_data_parallel_optimizer_open(&optimizer, model, adamw, NULL), optimizer);
  CK_WITH(ek_data_parallel_model_options, options, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
          .optimizer = muon);
  ck_kept(ek_data_parallel_model_open(&model, group, module, &options), model);
  ck_invalid(ek_data_parallel_optimizer_open(&optimizer, model, adamw, NULL), "adamw does not");
  ck_kept(ek_data_parallel_optimizer_open(&optimizer, model, muon, NULL), optimizer);
}

CK_TEST(a_workspace_below_zero) {
  struct ck_setup setup = ck_setup_mode(ck_workload("gpt"), "cpu:2", EK_MODE_SHARDED);
  struct ck_training t;
  setup.optimizer = make_own;
  own_extra = -1;
  ck_invalid(ck_training_try(&t, &setup, ck_open("cpu:2", 1)), "a workspace of -1 elements for ");
  own_extra = 10;
}

/* By a pattern, any parameter is left to the other rule; what is declared elementwise stays so. */
CK_TEST(patterns_of_elementwise) {
  static const ek_parameter_pattern patterns[] = {
      {.pattern = "*.expand.weight", .elementwise = true},
      {.pattern = "tokens.*", .rate_scale = 2}};
  static double values[MOST];
  ek_tensor host;
  CK_TRAINING(t, ck_setup_mode(ck_workload("gpt"), "cpu:2", EK_MODE_SHARDED),
              .optimizer = make_muon, .options.patterns = patterns, .options.pattern_count = 2);
  read_entry(values, &host, &t, "muon/v/", "blocks.0.expand.weight");
  read_entry(values, &host, &t, "muon/v/", "tokens.weight");
  read_entry(values, &host, &t, "muon/momentum/", "blocks.0.contract.weight");
}

CK_SUITE("muon")
