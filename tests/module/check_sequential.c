/*
 * check_sequential.c - modules one after the other.
 */
#include "ck_module.h"

/* A sequential of modules whose references it has alone; on a failure they are freed. */
static ek_status wrap(ek_module **module, ek_module **modules, size_t count, ek_status status) {
  if (status == EK_OK) return ck_sequential(module, modules, count, NULL);
  for (size_t i = 0; i < count; i++) ek_module_free(modules[i]);
  return status;
}

static ek_status create_three(ek_module **module) {
  ek_module *modules[3] = {NULL, NULL, NULL};
  ek_status status = ek_linear_create(&modules[0], 3, 4, true);
  if (status == EK_OK) status = ek_activation_create(&modules[1], EK_ACTIVATION_GELU);
  if (status == EK_OK) status = ek_linear_create(&modules[2], 4, 2, false);
  return wrap(module, modules, 3, status);
}

/* Layers by a letter each: l is 3 -> 3, n the same without a bias, g GELU, L is l in a sequential
 * of its own, which hides it. */
static ek_status create_layers(ek_module **module, const char *letters) {
  ek_module *modules[8] = {NULL};
  ek_status status = EK_OK;
  size_t count = 0;
  for (; letters[count] != '\0' && status == EK_OK; count++) {
    const char letter = letters[count];
    ek_module *made = NULL;
    status = letter == 'g' ? ek_activation_create(&made, EK_ACTIVATION_GELU)
                           : ek_linear_create(&made, 3, 3, letter != 'n');
    if (letter == 'L') {
      status = wrap(&modules[count], &made, 1, status);
    } else {
      modules[count] = made;
    }
  }
  return wrap(module, modules, count, status);
}

static ek_status create_lglgl(ek_module **module) { return create_layers(module, "lglgl"); }
static ek_status create_ngn(ek_module **module) { return create_layers(module, "ngn"); }
static ek_status create_glgg(ek_module **module) { return create_layers(module, "glgg"); }
static ek_status create_lglglLgL(ek_module **module) { return create_layers(module, "lglglLgL"); }

static ek_status create_single(ek_module **module) {
  ek_module *modules[1] = {NULL};
  const ek_status status = ek_linear_create(&modules[0], 3, 2, true);
  return wrap(module, modules, 1, status);
}

/* One within another, and the same module twice: these are two sets of parameters. */
static ek_status create_nested(ek_module **module) {
  ek_module *modules[3] = {NULL, NULL, NULL};
  ek_status status = ek_linear_create(&modules[0], 3, 3, true);
  modules[1] = ek_module_share(modules[0]);
  if (status == EK_OK) status = create_three(&modules[2]);
  return wrap(module, modules, 3, status);
}

#define LAYERS(terms, kept)                                                                        \
  .input = {{0, 2, {4, 3}, -1, 1, 0}}, .longest = 4, .depth = terms, .saved = kept

static const struct ck_module_case cases[] = {
    CK_CASE("linear, gelu, linear", create_three, 4, 10, 2, {0, 2, {3, 3}, -1, 1}),
    CK_CASE("a single module", create_single, 3, 2, 0, {0, 2, {3, 3}, -1, 1}),
    CK_CASE("nested, one module twice", create_nested, 4, 14, 4, {0, 2, {2, 3}, -1, 1}),
    {.name = "GELU between three linears", .create = create_lglgl, LAYERS(16, 4)},
    {.name = "GELU between two without a bias", .create = create_ngn, LAYERS(10, 2)},
    {.name = "GELU first, and twice", .create = create_glgg, LAYERS(14, 3)},
    {.name = "some linears hidden", .create = create_lglglLgL, LAYERS(26, 7)},
};
CK_MODULE_CASES(cases)

CK_TEST(names) {
  static const char *const want[] = {"0.weight",   "0.bias",   "1.weight",  "1.bias",
                                     "2.0.weight", "2.0.bias", "2.2.weight"};
  struct ck_bed *bed = ck_bed_open(&cases[2], EK_F32, test_devices("cpu:1"));
  ck_assert_uint_eq(ek_replica_parameter_count(bed->replica), 7);
  for (size_t i = 0; i < 7; i++) {
    CK_GOT(ek_parameter_info, info, ek_replica_parameter(&info, bed->replica, i));
    ck_assert_str_eq(info.name, want[i]);
  }
}

/* Without gradient no more than two results are alive at any time; one where each is written over
 * the one before. */
CK_LOOP(results_are_freed_early, 2) {
  ek_module *parts[8], *module = NULL;
  const ek_activation kind = _i == 0 ? EK_ACTIVATION_RELU : EK_ACTIVATION_SILU;
  for (int i = 0; i < 8; i++) ck_ok(ek_activation_create(&parts[i], kind));
  ck_kept(wrap(&module, parts, 8, EK_OK), module);
  ek_device *device = ck_device("cpu:1");
  CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT, .gradient = false);
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, device, module, NULL));
  ek_tensor x = ck_upload(device, EK_F32, (const double[640]){0}, CK_SHAPE(10, 64));
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, device));
  const uint64_t before = usage.current_bytes;
  ck_ok(ek_memory_reset_peak(device));
  CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, replica, &options));
  CK_OPENED(ek_tensor, y, ek_pass_run_forward(&y, pass, &x));
  ck_ok(ck_memory_stats(&usage, device));
  ck_assert_uint_eq(usage.peak_bytes, before + (_i == 0 ? 1u : 2u) * 2560);
}

/* ---- a linear, GELU and a linear ---- */

enum { ROWS = 4096, NARROW = 3, WIDE = 12 };

static ek_status create_feed_forward(ek_module **module, bool hidden) {
  ek_module *modules[3] = {NULL, NULL, NULL}, *expand = NULL;
  ek_status status = ek_linear_create(&expand, NARROW, WIDE, true);
  if (hidden) {
    status = wrap(&modules[0], &expand, 1, status);
  } else {
    modules[0] = expand;
  }
  if (status == EK_OK) status = ek_activation_create(&modules[1], EK_ACTIVATION_GELU);
  if (status == EK_OK) status = ek_linear_create(&modules[2], WIDE, NARROW, true);
  return wrap(module, modules, 3, status);
}
static ek_status create_joined(ek_module **module) { return create_feed_forward(module, false); }
static ek_status create_apart(ek_module **module) { return create_feed_forward(module, true); }

/* Peaks beside what was held before, in tensors of ROWS x NARROW: without gradient, and with. */
static struct ck_results *measure(ek_status (*create)(ek_module **module), uint64_t peaks[2]) {
  struct ck_bed *bed = CK_BED(create, EK_F32, 0, 2, {ROWS, NARROW}, -1, 1, 0);
  struct ck_results *results = NULL;
  const uint64_t before = ck_bed_held(bed), unit = ck_units(&bed->input[0]);
  for (int i = 0; i < 2; i++) {
    ck_ok(ek_memory_reset_peak(bed->device));
    if (i == 0) ck_bed_forward(bed);
    if (i == 1) results = ck_bed_backward(bed, true);
    peaks[i] = (ck_usage(bed->device).peak_bytes - before) / unit;
  }
  ck_bed_close(bed);
  return results;
}

/* Joined and one by one: the same numbers. 1e-6 is 16 u: at most the order of sums differs, in
 * which errors are independent. Forward, pre is not kept where there is no backward; backward, the
 * gradient of GELU's result is never there, so that the peak is that of the forward: pre, GELU's
 * result, y. */
CK_TEST(joined_equals_one_by_one) {
  const uint64_t wide = WIDE / NARROW;
  uint64_t joined[2], apart[2];
  struct ck_results *a = measure(create_joined, joined), *b = measure(create_apart, apart);
  ck_assert(ck_results_near(a, b, 1e-6));
  ck_assert_uint_eq(joined[0], wide + 1);
  ck_assert_uint_eq(apart[0], 2 * wide);
  ck_assert_uint_eq(joined[1], 2 * wide + 1);
  ck_assert_uint_eq(apart[1], 3 * wide);
}

/* Modules that are never run. */
CK_FORWARD(never) { return ek_error_set(EK_ERR_INTERNAL, "never: was run"); }
static void never_free(ek_module *self) { self->private_members.ops = NULL; }
static const ek_module_ops never_ops = {
    CK_OPS("never", never_forward, never_forward, never_free)};

/* ---- modules of a program's own that say what they compute ---- */

/* A linear, GELU, or what its child is. */
struct declared {
  ek_module base;
  ek_formula formula;
  int64_t in, out;
  ek_module *child;
};

CK_PARAMETERS(declared) {
  const struct declared *m = (const struct declared *)self;
  const int64_t weight[] = {m->out, m->in};
  const ek_initializer start = ek_initializer_zeros();
  if (m->child != NULL) return ek_declare_wrapped(declaration, m->child);
  if (m->formula.kind != EK_FORMULA_LINEAR) return EK_OK;
  EK_TRY(ek_declare_parameter(declaration, "bias", 1, weight, start));
  return ek_declare_parameter(declaration, "weight", 2, weight, start);
}

static void declared_formula(const ek_module *self, ek_formula *formula) {
  const struct declared *m = (const struct declared *)self;
  ck_assert_int_eq(formula->kind, EK_FORMULA_NONE);
  if (m->child != NULL) ek_module_formula(formula, m->child);
  if (m->child == NULL) *formula = m->formula;
}

static void declared_free(ek_module *self) {
  ek_module_free(((struct declared *)self)->child);
  free(self);
}

static const ek_module_ops declared_ops = {
    CK_OPS("declared", never_forward, never_forward, declared_free),
    .parameters = declared_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64,
    .formula = declared_formula};

static struct declared *declare(ek_formula_kind kind, int64_t in, int64_t out) {
  struct declared *m = ck_module_new(sizeof *m, &declared_ops, 1, 1);
  m->formula = (ek_formula){
      .kind = kind, .activation = EK_ACTIVATION_GELU, .weight = 1, .bias = 0, .has_bias = true};
  m->in = in;
  m->out = out;
  return m;
}

static ek_status create_own(ek_module **module) {
  ek_module *modules[] = {&declare(EK_FORMULA_LINEAR, NARROW, WIDE)->base,
                          &declare(EK_FORMULA_ACTIVATION, 0, 0)->base,
                          &declare(EK_FORMULA_LINEAR, WIDE, NARROW)->base};
  return wrap(module, modules, 3, EK_OK);
}

/* The stock layers, the first two wrapped, the linear twice. */
static ek_status create_wrapped(ek_module **module) {
  struct declared *wrapper[3];
  for (int i = 0; i < 3; i++) wrapper[i] = declare(EK_FORMULA_NONE, 0, 0);
  ck_ok(ek_linear_create(&wrapper[0]->child, NARROW, WIDE, true));
  wrapper[1]->child = &wrapper[0]->base;
  ck_ok(ek_activation_create(&wrapper[2]->child, EK_ACTIVATION_GELU));
  ek_module *modules[3] = {&wrapper[1]->base, &wrapper[2]->base, NULL};
  ck_ok(ek_linear_create(&modules[2], WIDE, NARROW, true));
  return wrap(module, modules, 3, EK_OK);
}

/* Forward and backward of `create` on the parameters of the stock layers. */
static struct ck_results *run_with(const struct ck_bed *stock, ek_status (*create)(ek_module **)) {
  CK_WITH(struct ck_module_case, is, *stock->is, .create = create);
  struct ck_bed *bed = ck_bed_open(&is, EK_F32, test_devices("cpu:1"));
  for (size_t i = 0; i < ek_replica_parameter_count(stock->replica); i++) {
    CK_GOT(ek_parameter_info, info, ek_replica_parameter(&info, stock->replica, i));
    ck_bed_set(bed, info.name, ck_got(&info.value));
  }
  struct ck_results *results = ck_bed_backward(bed, true);
  for (size_t i = 0; i < ek_replica_parameter_count(stock->replica); i++) {
    CK_GOT(ek_parameter_info, info, ek_replica_parameter(&info, stock->replica, i));
    CK_GOT(ek_parameter_info, mine, ek_replica_find(&mine, bed->replica, info.name));
    ck_arrays_same(info.name, ck_got(&mine.gradient), ck_got(&info.gradient));
  }
  ck_bed_close(bed);
  return results;
}

/* Neither of their functions is called, and each bit is that of the stock layers. */
CK_LOOP(declared_modules_are_joined, 2) {
  struct ck_bed *stock = CK_BED(create_joined, EK_F32, 0, 2, {5, NARROW}, -1, 1, 0);
  struct ck_results *want = ck_bed_backward(stock, true);
  struct ck_results *got = run_with(stock, _i == 0 ? create_own : create_wrapped);
  ck_same_bits("y", got->output[0], want->output[0], want->output_count[0]);
  ck_same_bits("dx", got->grad_input[0], want->grad_input[0], want->input_count[0]);
}

/* What is declared is not believed: parameters are looked at. */
CK_LOOP(wrong_formula, 3) {
  struct declared *linear = declare(EK_FORMULA_LINEAR, 3, 2);
  ek_module *module = NULL,
            *modules[] = {&linear->base, &declare(EK_FORMULA_ACTIVATION, 0, 0)->base};
  if (_i == 0) linear->formula.weight = 2;
  if (_i == 1) linear->formula.weight = 0;
  ck_ok(wrap(&module, modules, 2, EK_OK));
  ck_forward_fails(module, _i == 0 ? EK_ERR_INVALID_ARGUMENT : EK_ERR_SHAPE,
                   _i == 0   ? "0 (declared), forward: ek_pass_parameter: no parameter"
                   : _i == 1 ? "0 (declared), forward: its weight has rank 1"
                             : "0 (declared), forward: input has 4 columns, expected 3",
                   EK_F32, CK_SHAPE(2, 4));
  ek_module_free(module);
  ek_formula formula = {.kind = EK_FORMULA_LINEAR};
  ek_module_formula(&formula, NULL);
  ck_assert_int_eq(formula.kind, EK_FORMULA_NONE);
}

CK_TEST(bad_input) {
  ek_module *module = NULL, two;
  CK_SCOPED(ek_module *, relu, ek_activation_create(&relu, EK_ACTIVATION_RELU));
  ck_ok(ek_module_init(&two, &never_ops, 2, 2));
  ek_module *with_null[] = {relu, NULL};
  ek_module *not_fitting[] = {relu, &two};
  ek_module *fitting[] = {&two, &two};
  ck_invalid(ek_sequential_create(NULL, &relu, 1), "sequential");
  ck_invalid(ek_sequential_create(&module, NULL, 1), "sequential");
  ck_invalid(ek_sequential_create(&module, &relu, 0), "no module");
  ck_invalid(ek_sequential_create(&module, with_null, 2), "module 1 is NULL");
  ck_invalid(ek_sequential_create(&module, not_fitting, 2),
             "module 0 (relu) has 1 outputs, module 1 (never) takes 2");
  ck_assert_ptr_null(module);
  ck_ok(ek_sequential_create(&module, fitting, 2));
  ck_assert_uint_eq(ek_module_inputs(module), 2);
  ck_assert_uint_eq(ek_module_outputs(module), 2);
  ek_module_free(module);
  ek_module_free(&two);
  ck_assert_ptr_null(ek_module_table(&two)); /* the sequential had references and gave them back */
  ck_host_failures(create_three);

  ck_ok(create_three(&module));
  ck_forward_fails(module, EK_ERR_SHAPE, "(linear), forward: input has 4 columns, expected 3",
                   EK_F32, CK_SHAPE(2, 4));
  ek_module_free(module);
}

/* Two linears with GELU between them, with options. */
static ek_module *with_options(const ek_sequential_options *options, int64_t width) {
  ek_module *modules[3] = {NULL, NULL, NULL}, *made = NULL;
  ck_ok(ek_linear_create(&modules[0], width, width, true));
  ck_ok(ek_activation_create(&modules[1], EK_ACTIVATION_GELU));
  ck_ok(ek_linear_create(&modules[2], width, width, false));
  ck_ok(ck_sequential(&made, modules, 3, options));
  return ck_keep(made);
}

static ek_status open_named(char found[3][64], const char *const *given) {
  ek_group *group = ck_open_exactly("plan:1", 1);
  ek_replica *replica = NULL;
  CK_WITH(ek_sequential_options, options, EK_SEQUENTIAL_OPTIONS_INIT, .names = given);
  ek_module *module = with_options(&options, 4);
  const ek_status status = ek_replica_open(&replica, ek_group_device(group, 0), module, NULL);
  for (size_t i = 0; i < 3 && status == EK_OK; i++) {
    CK_GOT(ek_parameter_info, info, ek_replica_parameter(&info, replica, i));
    (void)snprintf(found[i], sizeof found[i], "%s", info.name);
  }
  ck_keep(replica);
  return status;
}

/* Names are copied; a module without one has its number. */
CK_TEST(children_have_the_names_that_are_given) {
  char first[] = "encoder", found[3][64];
  const char *const three[] = {first, "gelu", "head"}, *const one[] = {NULL, NULL, "head"};
  const char *const twice[] = {"a", "b", "a"}, *const number[] = {"2", NULL, NULL};
  const char *const dotted[] = {"a.b", NULL, NULL}, *const empty[] = {"", NULL, NULL};
  ck_ok(open_named(found, three));
  ck_assert_str_eq(found[0], "encoder.weight");
  ck_assert_str_eq(found[1], "encoder.bias");
  ck_assert_str_eq(found[2], "head.weight");
  ck_ok(open_named(found, one));
  ck_assert_str_eq(found[0], "0.weight");
  ck_assert_str_eq(found[2], "head.weight");
  ck_invalid(open_named(found, twice), "a");
  ck_invalid(open_named(found, number), "2");
  ck_invalid(open_named(found, dotted), "a.b");
  ck_invalid(open_named(found, empty), "");
  CK_WITH(ek_sequential_options, options, EK_SEQUENTIAL_OPTIONS_INIT, .names = three);
  ek_module *module = with_options(&options, 4);
  memset(first, 'x', sizeof first - 1);
  static const ek_parameter_pattern frozen = {.pattern = "encoder.*", .frozen = true};
  CK_GOT(ek_parameter_totals, totals, ek_parameter_count(&totals, module, &frozen, 1));
  ck_assert_int_eq(totals.trained, 16);
}

/* Two sequentials one after the other, as units of mode fully-sharded or not: bytes of parameters
 * that a device holds at once. */
static uint64_t gathered_bytes(bool unit) {
  enum { WIDTH = 64, SAMPLES = 4 };
  ek_group *group = ck_open_exactly("plan:2", 1);
  ek_module *parts[3];
  ek_data_parallel_model_options options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  CK_WITH(ek_sequential_options, sequential, EK_SEQUENTIAL_OPTIONS_INIT, .unit = unit);
  for (int i = 0; i < 3; i++) parts[i] = with_options(&sequential, WIDTH);
  CK_OPENED(ek_module *, whole, ek_sequential_create(&whole, parts, 3));
  ck_ok(ek_data_parallel_model_options_set_mode(&options, EK_MODE_FULLY_SHARDED));
  CK_OPENED(ek_data_parallel_model *, model,
            ek_data_parallel_model_open(&model, group, whole, &options));
  static float numbers[SAMPLES * WIDTH];
  CK_WITH(ek_forward_options, forward, EK_FORWARD_OPTIONS_INIT, .gradient = false);
  CK_GOT(ek_tensor, batch, ek_tensor_host(&batch, numbers, EK_F32, CK_SHAPE(SAMPLES, WIDTH)));
  CK_OPENED(ek_shards, output, ek_data_parallel_model_forward(&output, model, &batch, 1, &forward));
  CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, ek_group_device(group, 1)));
  return usage.peak_bytes;
}

/* Without units all is gathered at once (six matrices); with them two or four, of one that runs and
 * of the next. */
CK_TEST(a_sequential_is_a_unit) {
  const uint64_t together = gathered_bytes(false), apart = gathered_bytes(true);
  ck_assert_msg(apart + 64 * 64 * sizeof(float) < together, "%llu bytes in units, %llu without",
                (unsigned long long)apart, (unsigned long long)together);
}

CK_SUITE("sequential")
