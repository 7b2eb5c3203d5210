/*
 * check_contract.c - modules, criteria and optimizers of a program's own that break their contract.
 *
 * Counts that lay out arrays are checked where something is opened and again where it runs; a model
 * is not opened in a type that one of its parts does not know. Nothing is lost by either: the same
 * training goes on when the mistake is taken back.
 */
#include "ck_own_criteria.h"
#include "ck_training.h"

enum { SAMPLES = 4 };

static const double some_weights[CK_ABSOLUTE_COLUMNS] = {1, 2, 0.5};

/* A training over two devices that has made one step, and a batch. */
struct bench {
  struct ck_training t;
  struct ck_batch batch;
};

static void bench_open(struct bench *b, const char *workload, ek_mode mode) {
  struct ck_setup setup = ck_setup_mode(ck_workload(workload), "cpu:2", mode);
  b->t = ck_training_opened(&setup);
  b->batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 1);
  ck_ok(ck_training_step(&b->t, &b->batch, NULL));
}

static void bench_close(struct bench *b) {
  ck_ok(ck_training_step(&b->t, &b->batch, NULL));
  ck_training_close(&b->t);
}

/* ---- counts ---- */

/* Private members of a criterion that a program overwrites after ek_criterion_init(), and values
 * that do not fit the library's arrays. */
static const struct count {
  size_t offset;
  size_t value;
  const char *text;
} counts[] = {
    {offsetof(ek_module, private_members.inputs), 0, "outputs of a model"},
    {offsetof(ek_module, private_members.inputs), EK_MAX_INPUTS, "outputs of a model"},
    {offsetof(ek_module, private_members.inputs), SIZE_MAX, "outputs of a model"},
    {offsetof(ek_module, private_members.targets), EK_MAX_TENSORS + 1, "targets"},
    {offsetof(ek_module, private_members.targets), SIZE_MAX, "targets"},
    {offsetof(ek_module, private_members.outputs), 0, "results"},
    {offsetof(ek_module, private_members.outputs), SIZE_MAX, "results"},
    {offsetof(ek_module, private_members.terms), 0, "terms"},
    {offsetof(ek_module, private_members.terms), EK_MAX_TERMS + 1, "terms"},
    {offsetof(ek_module, private_members.terms), SIZE_MAX, "terms"}};

enum { COUNTS = sizeof counts / sizeof counts[0] };

static size_t *member(ek_criterion *criterion, const struct count *count) {
  return (size_t *)(void *)((char *)criterion + count->offset);
}

CK_TEST(a_criterion_is_not_made_with_counts_out_of_bounds) {
  ek_criterion *made = ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL);
  ek_criterion c;
  const ek_module_ops *ops = ek_module_table(&made->base);
  const size_t out = EK_MAX_TENSORS + 1;
  ck_invalid(ek_criterion_init(&c, ops, out, 1, EK_REDUCTION_MEAN),
             "1 to 16 outputs of a model, not 17");
  ck_invalid(ek_criterion_init(&c, ops, 1, out, EK_REDUCTION_MEAN), "0 to 16 targets, not 17");
  ck_ok(ek_criterion_init(&c, ops, EK_MAX_TENSORS, EK_MAX_TENSORS, EK_REDUCTION_MEAN));
  ek_criterion_free(made);
}

CK_LOOP(a_criterion_is_not_opened_with_counts_out_of_bounds, COUNTS) {
  CK_SET_UP(struct bench, b, bench_open(&b, "mlp", EK_MODE_REPLICATED));
  ek_criterion *c = ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL);
  ek_data_parallel_criterion *loss = NULL;
  *member(c, &counts[_i]) = counts[_i].value;
  ck_invalid(ek_data_parallel_criterion_open(&loss, b.t.model, c, NULL), counts[_i].text);
  ek_criterion *sum = NULL;
  const double one = 1;
  ck_invalid(ek_weighted_sum_create(&sum, &c, &one, 1), counts[_i].text);
  ek_criterion_free(c);
  bench_close(&b);
}

/* Every call of a step in turn meets counts that were changed since the last. */
CK_LOOP(a_criterion_whose_counts_change_is_refused, COUNTS * CK_MODES) {
  CK_SET_UP(struct bench, b, bench_open(&b, "mlp", (ek_mode)(_i % CK_MODES)));
  const struct count *count = &counts[_i / CK_MODES];
  size_t *changed = member(b.t.criterion, count);
  const size_t good = *changed;
  ek_shards outputs = {0};
  ck_ok(ek_data_parallel_model_forward(&outputs, b.t.model, b.batch.input, 1, NULL));
  *changed = count->value;
  ck_fails(ek_data_parallel_criterion_forward(b.t.loss, &outputs, 1, b.batch.target, 1),
           EK_ERR_STATE, "may not change");
  *changed = good;
  ck_ok(ek_data_parallel_criterion_forward(b.t.loss, &outputs, 1, b.batch.target, 1));
  *changed = count->value;
  CK_GOT(double, loss, ek_data_parallel_criterion_loss(&loss, NULL, b.t.loss));
  ck_fails(ek_data_parallel_criterion_backward(b.t.loss, NULL), EK_ERR_STATE, "may not change");
  *changed = good;
  ck_ok(ek_data_parallel_criterion_backward(b.t.loss, NULL));
  ck_ok(ek_data_parallel_optimizer_step(NULL, b.t.optimizer));
  ek_shards_free(&outputs);
  /* What is freed goes by the counts that were there when it was made. */
  *changed = count->value;
  ek_data_parallel_criterion_free(b.t.loss);
  *changed = good;
  ck_ok(ek_data_parallel_criterion_open(&b.t.loss, b.t.model, b.t.criterion, NULL));
  bench_close(&b);
}

/* A part of a weighted sum changes; the sum's own counts do not. */
CK_TEST(a_part_whose_counts_change_is_refused) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  const double one = 1;
  CK_SCOPED(ek_criterion *, part, ek_mean_squared_error_create(&part, EK_REDUCTION_MEAN));
  CK_SCOPED(ek_criterion *, sum, ek_weighted_sum_create(&sum, &part, &one, 1));
  ek_replica *replica = NULL;
  ek_pass *pass = NULL;
  ek_tensor y = *ck_tensor(rig, ck_zeros(rig, 4), CK_SHAPE(2, 2)), totals = {0};
  const ek_tensor inputs[] = {y, y};
  struct ek__module_private *base = &part->base.private_members;
  size_t *const changed[] = {&base->terms, &base->inputs, &base->targets};
  for (int late = 0; late < 2; late++) { /* before the sum is opened, or after */
    if (late == 1) ck_ok(ek_replica_open(&replica, rig->device, &sum->base, NULL));
    for (size_t i = 0; i < 3; i++) {
      const size_t good = *changed[i];
      *changed[i] = 0;
      if (late == 0) {
        ck_assert_int_ne(ek_replica_open(&replica, rig->device, &sum->base, NULL), EK_OK);
      } else {
        ck_ok(ek_pass_open(&pass, replica, NULL));
        ck_fails(ek_pass_run_forward(&totals, pass, inputs), EK_ERR_STATE, "may not change");
        ek_pass_free(pass);
      }
      *changed[i] = EK_MAX_TERMS;
      if (late == 0) {
        ck_fails(ek_replica_open(&replica, rig->device, &sum->base, NULL), EK_ERR_STATE,
                 "terms[0] (mean_squared_error) changed");
      }
      *changed[i] = good;
    }
  }
  ck_ok(ek_pass_open(&pass, replica, NULL));
  ck_kept(ek_pass_run_forward(&totals, pass, inputs), totals);
  ek_pass_free(pass);
  ek_replica_free(replica);
}

static const size_t module_counts[] = {0, EK_MAX_TENSORS + 1, SIZE_MAX};

CK_LOOP(a_module_is_not_opened_with_counts_out_of_bounds, 6) {
  ek_group *group = ck_open("cpu:2", 1);
  CK_SCOPED(ek_module *, inner, ek_linear_create(&inner, 3, 3, true));
  CK_OPENED(ek_module *, module, ek_sequential_create(&module, &inner, 1));
  size_t *changed = _i % 2 == 0 ? &inner->private_members.inputs : &inner->private_members.outputs;
  *changed = module_counts[_i / 2];
  ek_data_parallel_model *model = NULL;
  ck_invalid(ek_data_parallel_model_open(&model, group, module, NULL),
             _i % 2 == 0 ? "1 to 16 inputs" : "1 to 16 outputs");
  ck_invalid(ek_data_parallel_model_open(&model, group, inner, NULL),
             _i % 2 == 0 ? "1 to 16 inputs" : "1 to 16 outputs");
  *changed = 1;
  const ek_module_ops *ops = ek_module_table(inner);
  inner->private_members.ops = NULL;
  ck_invalid(ek_data_parallel_model_open(&model, group, module, NULL),
             "call ek_module_init() first");
  inner->private_members.ops = ops;
  ck_kept(ek_data_parallel_model_open(&model, group, module, NULL), model);
}

CK_LOOP(a_module_whose_counts_change_is_refused, 6 * CK_MODES) {
  CK_SET_UP(struct bench, b, bench_open(&b, "mlp", (ek_mode)(_i % CK_MODES)));
  const int way = _i / CK_MODES;
  struct ek__module_private *module = &b.t.module->private_members;
  size_t *changed = way % 2 == 0 ? &module->inputs : &module->outputs;
  const size_t wrong = module_counts[way / 2];
  ek_shards outputs = {0};
  *changed = wrong;
  ck_fails(ek_data_parallel_model_forward(&outputs, b.t.model, b.batch.input, 1, NULL),
           EK_ERR_STATE, "sequential: a module's numbers may not change");
  *changed = 1;
  ck_ok(ek_data_parallel_model_forward(&outputs, b.t.model, b.batch.input, 1, NULL));
  ck_ok(ek_data_parallel_criterion_forward(b.t.loss, &outputs, 1, b.batch.target, 1));
  *changed = wrong;
  ck_fails(ek_data_parallel_criterion_backward(b.t.loss, NULL), EK_ERR_STATE,
           "sequential: a module's numbers may not change");
  *changed = 1;
  ek_shards_free(&outputs);
  bench_close(&b);
}

/* ---- types ---- */

/* Modules that say nothing of types, or only f32. */
#define TABLE(name) CK_OPS(name, ck_share_forward, ck_share_backward, ck_no_free)
static const ek_module_ops tables[] = {
    {TABLE("silent")},
    {TABLE("single"), .types = EK_TYPES_F32},
    /* An older program's: the table ends before `types`, which must not be read. */
    {.size = offsetof(ek_module_ops, types),
     .kind = "older",
     .forward = ck_share_forward,
     .backward = ck_share_backward,
     .free = ck_no_free,
     .types = EK_TYPES_F64},
    {TABLE("double"), .types = EK_TYPES_F64},
    {TABLE("strange"), .types = 1u << EK_I32},
    {TABLE("both"), .types = EK_TYPES_F32 | EK_TYPES_F64}};

enum { TABLES = sizeof tables / sizeof tables[0] };

static ek_status open_with(ek_group *group, ek_module *own, ek_type type) {
  CK_FREED(data_parallel_model) *model = NULL;
  CK_WITH(ek_data_parallel_model_options, options, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
          .type = type);
  CK_SCOPED(ek_module *, linear, ek_linear_create(&linear, 3, 3, true));
  CK_SCOPED(ek_module *, inner, ek_sequential_create(&inner, (ek_module *[]){linear, own}, 2));
  CK_SCOPED(ek_module *, outer, ek_residual_create(&outer, inner));
  return ek_data_parallel_model_open(&model, group, outer, &options);
}

CK_LOOP(a_model_is_opened_in_a_type_that_its_modules_know, TABLES) {
  ek_group *group = ck_open("cpu:2", 1);
  CK_GOT(ek_module, own, ek_module_init(&own, &tables[_i], 1, 1));
  static const bool knows[TABLES][2] = {{true, false}, {true, false},  {true, false},
                                        {false, true}, {false, false}, {true, true}};
  const char *text = ck_text("inner.1 (%s) computes in ", tables[_i].kind);
  for (int wide = 0; wide < 2; wide++) {
    const ek_type type = wide ? EK_F64 : EK_F32;
    if (knows[_i][wide]) {
      ck_ok(open_with(group, &own, type));
    } else {
      ck_fails(open_with(group, &own, type), EK_ERR_UNSUPPORTED, text);
      ck_fails(open_with(group, &own, type), EK_ERR_UNSUPPORTED,
               wide ? "not in f64" : "not in f32");
    }
  }
}

enum { TYPES = 4 };
static const ek_type all_types[TYPES] = {EK_F32, EK_F64, EK_BF16, EK_F16};

static const ek_module_ops readers[] = {
    {TABLE("plain"), .types = EK_TYPES_F32 | EK_TYPES_F64},
    {TABLE("knowing"), .types = EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 | EK_TYPES_F16}};

/* A module that reads its input in ek_pass_type() gets no other type. f32 is rounded on its way
 * into a model of 16 bits, and numbers of that model are widened for a module of f32 alone. */
CK_LOOP(a_module_is_handed_the_type_that_it_runs_in, TYPES * TYPES) {
  const ek_type precision = all_types[_i / TYPES], given = all_types[_i % TYPES];
  const bool half = precision == EK_BF16 || precision == EK_F16;
  static double zeros[2];
  ek_group *group = ck_open("cpu:2", 1);
  CK_WITH(ek_data_parallel_model_options, options, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
          .type = half ? EK_F32 : precision, .precision = (ek_precision)precision);
  CK_GOT(ek_tensor, x, ek_tensor_host(&x, zeros, given, CK_SHAPE(2, 1)));
  for (size_t i = 0; i < 2 && (ck_has_halves() || !half); i++) {
    ek_shards y = {0};
    CK_GOT(ek_module, own, ek_module_init(&own, &readers[i], 1, 1));
    CK_SCOPED(ek_data_parallel_model *, model,
              ek_data_parallel_model_open(&model, group, &own, &options));
    if (given == precision || (half && given == EK_F32)) {
      ck_ok(ek_data_parallel_model_forward(&y, model, &x, 1, NULL));
      ck_assert_int_eq(y.parts[0].type, precision);
    } else {
      const char *text =
          ck_text("%s, forward: input number 0 is %s, but the module runs in %s", readers[i].kind,
                  ek_type_name(given), ek_type_name(half && i == 0 ? EK_F32 : precision));
      ck_fails(ek_data_parallel_model_forward(&y, model, &x, 1, NULL), EK_ERR_TYPE, text);
    }
    ek_shards_free(&y);
  }
}

CK_TEST(a_criterion_and_an_optimizer_know_the_type) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
  ek_data_parallel_model_options options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  options.type = EK_F64;
  CK_SCOPED(ek_module *, module, ek_linear_create(&module, 3, 3, true));
  CK_SCOPED(ek_data_parallel_model *, model,
            ek_data_parallel_model_open(&model, rig->group, module, &options));

  ek_criterion *loss = ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL);
  CK_WITH(ek_module_ops, loss_ops, *ek_module_table(&loss->base), .types = 0);
  loss->base.private_members.ops = &loss_ops;
  ek_data_parallel_criterion *criterion = NULL;
  ck_fails(ek_data_parallel_criterion_open(&criterion, model, loss, NULL), EK_ERR_UNSUPPORTED,
           "absolute computes in f32, not in f64");

  /* As the child of one that knows both it is found, too. */
  const double one = 1;
  CK_SCOPED(ek_criterion *, sum, ek_weighted_sum_create(&sum, &loss, &one, 1));
  ck_fails(ek_data_parallel_criterion_open(&criterion, model, sum, NULL), EK_ERR_UNSUPPORTED,
           "0 (absolute) computes in f32, not in f64");

  CK_SCOPED(ek_optimizer *, rule, ek_sgd_create(&rule, NULL));
  ek_optimizer_ops rule_ops = *ek_optimizer_table(rule);
  const ek_optimizer_ops *stock = ek_optimizer_table(rule);
  rule_ops.size = offsetof(ek_optimizer_ops, types);
  rule->private_members.ops = &rule_ops;
  ek_data_parallel_optimizer *optimizer = NULL;
  ck_fails(ek_data_parallel_optimizer_open(&optimizer, model, rule, NULL), EK_ERR_UNSUPPORTED,
           "sgd computes in f32, not in f64");
  rule->private_members.ops = stock;
  ck_ok(ek_data_parallel_optimizer_open(&optimizer, model, rule, NULL));
  ek_data_parallel_optimizer_free(optimizer);

  ek_criterion_free(loss);
}

/* ---- names ---- */

CK_TEST(a_full_device_names_the_criterion) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  ek_criterion *c = ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL);
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, rig->device, &c->base, NULL));
  CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  const ek_tensor y = *ck_tensor(rig, ck_zeros(rig, 6), CK_SHAPE(2, 3)), inputs[] = {y, y};
  ek_tensor totals = {0};
  ck_ok(ek_memory_fail_at(rig->device, 1));
  ck_fails(ek_pass_run_forward(&totals, pass, inputs), EK_ERR_OUT_OF_MEMORY, "absolute, forward: ");
  ck_ok(ek_memory_fail_at(rig->device, 0));
  ek_criterion_free(c);
}

CK_SUITE("contract")
