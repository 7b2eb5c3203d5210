/*
 * check_collective_modules.c - modules with collectives of their own: a batch normalisation whose
 * statistics are of the whole batch gives the same on any number of devices, also where some have
 * no rows, and a device that fails keeps no other waiting.
 *
 * The first sums are over whole numbers and exact. Others, of at most 64 terms, are taken in
 * another order on another number of devices: 64 * 2^-53 of the sum of magnitudes, which three
 * layers and three steps amplify by less than 100; 1e-12 is allowed.
 */
#include "ck_batch_norm.h"
#include "ck_module.h"
#include "ck_parent.h"
#include "ck_rerun.h"
#include "ck_training.h"

enum { IN = 4, WIDTH = 6, OUT = 2 };

/* ---- the model ---- */

/* batch norm, linear, batch norm, linear; `again`: each batch norm is recomputed, one by a module
 * of a program's own. */
static ek_status model(ek_module **module, bool again) {
  ek_module *p[4] = {NULL};
  ck_ok(ck_batch_norm_create(&p[0], IN));
  ck_ok(ek_linear_create(&p[1], IN, WIDTH, false));
  ck_ok(ck_batch_norm_create(&p[2], WIDTH));
  ck_ok(ek_linear_create(&p[3], WIDTH, OUT, true));
  for (int i = 0; i < 4 && again; i += 2) {
    ck_ok(ck_around(&p[i], p[i], i == 0 ? ck_rerun_create : ek_recompute_create));
  }
  return ck_sequential(module, p, 4, NULL);
}

/* ---- a model that postpones ---- */

/* What device 0 does in backward: '(' and ')' around a sum over the devices, 's' a shift, 'l' the
 * rest of one that was postponed, 'n' of one that was not. */
static char trail[64];
static int fails_on = -1; /* the device whose rest fails */
static size_t given = 1;  /* tensors that a shift postpones; above 1 the first alone exists */
static bool wrong;        /* a mark postpones, too; a shift whether it can or not */

static void note(const ek_pass *pass, char what) {
  if (ek_device_index(ek_pass_device(pass)) != 0) return; /* the others' workers run meanwhile */
  const size_t length = strlen(trail);
  if (length + 1 < sizeof trail) trail[length] = what;
}

/* One that alternates postpones in every second backward of a device's worker. */
struct own {
  ek_module base;
  bool alternates;
};
static _Thread_local bool alternate;

/* Gives dy on, after a sum. */
CK_BACKWARD(mark) {
  ek_tensor sum = {0};
  if (wrong) return ek_pass_postpone(pass, grad_outputs, 1);
  EK_TRY(ek_pass_workspace(&sum, pass, EK_F64, 1, (const int64_t[]){1}));
  note(pass, '(');
  ek_status status = ek_op_zero(ek_pass_stream(pass), &sum);
  if (status == EK_OK) status = ek_pass_all_reduce(pass, &sum);
  note(pass, ')');
  ek_tensor_free(&sum);
  return status != EK_OK ? status : ck_share_backward(self, pass, grad_outputs, grad_inputs);
}

/* y = x + bias. */
CK_PARAMETERS(shift) {
  return ek_declare_parameter(declaration, "bias", 1, (const int64_t[]){IN},
                              ek_initializer_zeros());
}

CK_FORWARD(shift) {
  ek_tensor bias;
  EK_TRY(ek_pass_parameter(&bias, pass, 0));
  EK_TRY(ek_pass_output(&outputs[0], pass, ek_pass_type(pass), 2, inputs[0].shape));
  EK_TRY(ek_op_copy(ek_pass_stream(pass), &outputs[0], &inputs[0]));
  return ek_op_add_bias(ek_pass_stream(pass), &outputs[0], &bias);
}

static ek_status add_gradient(ek_pass *pass, const ek_tensor *dy) {
  double beta = 0;
  ek_tensor gradient;
  EK_TRY(ek_pass_gradient(&gradient, &beta, pass, 0));
  EK_TRY(ek_op_column_sum(ek_pass_stream(pass), &gradient, dy, beta));
  return ek_pass_gradient_complete(pass, 0);
}

CK_BACKWARD(shift) {
  note(pass, 's');
  if (grad_inputs != NULL) EK_TRY(ek_tensor_share(&grad_inputs[0], &grad_outputs[0]));
  const bool now = ((const struct own *)self)->alternates && alternate;
  if (((const struct own *)self)->alternates) alternate = !alternate;
  const ek_tensor kept[EK_MAX_POSTPONED + 1] = {grad_outputs[0]};
  if ((wrong || ek_pass_can_postpone(pass)) && !now) return ek_pass_postpone(pass, kept, given);
  EK_TRY(add_gradient(pass, grad_outputs));
  note(pass, 'n');
  return EK_OK;
}

static ek_status shift_later(const ek_module *self, ek_pass *pass, const ek_tensor *kept) {
  (void)self;
  note(pass, 'l');
  if ((int)ek_device_index(ek_pass_device(pass)) != fails_on) return add_gradient(pass, kept);
  alternate = false;
  return ek_error_set(EK_ERR_IO, "no such luck");
}

static const ek_module_ops mark_ops = {
    CK_OPS("mark", ck_share_forward, mark_backward, ck_plain_free), .types = EK_TYPES_F64,
    .collective = true};
CK_PLAIN_OPS(shift, .types = EK_TYPES_F64, .parameters = shift_parameters,
             .backward_later = shift_later);

static ek_module *own_create(const ek_module_ops *ops, bool alternates) {
  struct own *own = ck_module_new(sizeof *own, ops, 1, 1);
  own->alternates = alternates;
  return &own->base;
}

/* A sequence whose last two shifts share their parameter. */
CK_PARAMETERS(pair) {
  EK_TRY(ek_declare_module(declaration, "in", ck_child(self, 0)));
  return ek_declare_tie(declaration, "in.6.bias", "in.5.bias");
}
static const ek_module_ops pair_ops = {
    CK_OPS("pair", ck_parent_forward, ck_parent_backward, ck_parent_free),
    .types = EK_TYPES_F64, .parameters = pair_parameters};

enum { PARTS = 7 };
static ek_status postponing(ek_module **module) {
  ek_module *p[PARTS], *sequence = NULL;
  for (int i = 0; i < PARTS; i++) {
    p[i] = own_create(i == 1 || i == 4 ? &mark_ops : &shift_ops, i >= PARTS - 2);
  }
  ck_ok(ck_sequential(&sequence, p, PARTS, NULL));
  *module = ck_parent_new(sizeof(struct ck_parent), &pair_ops, sequence);
  return EK_OK;
}

static ek_status normalized(ek_module **module) { return model(module, false); }
static ek_status recomputed(ek_module **module) { return model(module, true); }

CK_SGD(sgd, .learning_rate = 0.125)

#define ON_ROWS(name_, module_)                                                                    \
  {.name = name_, .module = module_, .criterion = ek_mean_squared_error_create,                    \
   .sample = CK_SAMPLE(CK_ROW(IN), CK_ROW(OUT))}
static const struct ck_workload workloads[] = {
    ON_ROWS("batch norm", normalized), ON_ROWS("batch norm, recomputed", recomputed)};

static struct ck_setup setup_of(const struct ck_workload *workload, const char *spec,
                                int placement) {
  struct ck_setup setup = ck_setup_at(workload, spec, placement);
  ck_assign(setup, .options.type = EK_F64, .optimizer = sgd);
  return setup;
}

/* Inputs are made whole numbers. */
static struct ck_batch batch_of(const struct ck_workload *workload, int64_t samples,
                                uint64_t stream) {
  struct ck_batch batch = ck_batch_make(workload, EK_F64, samples, 0, stream);
  double *x = batch.input[0].data;
  for (int64_t i = 0; i < samples * IN; i++) x[i] = floor(8 * x[i]);
  return batch;
}

/* A step of two micro-batches: of 7 samples, and of 2, which leaves devices without rows. */
static ek_status step(struct ck_training *training, uint64_t stream) {
  struct ck_batch first = batch_of(training->setup.workload, 7, 2 * stream);
  struct ck_batch second = batch_of(training->setup.workload, 2, 2 * stream + 1);
  ek_status status = ck_training_backward(training, &first, NULL, true, NULL);
  if (status == EK_OK) status = ck_training_step(training, &second, NULL);
  return status;
}

/* Parameters after three steps, and after them buffers. */
static double *trained(const struct ck_setup *setup) {
  struct ck_training training = ck_training_opened(setup);
  for (uint64_t s = 0; s < 3; s++) ck_ok(step(&training, s));
  return ck_training_model(&training);
}

/* ---- tests ---- */

static const char *const specs[] = {"cpu:2", "cpu:3", "cpu:5"};
enum { SPECS = 3 };

CK_LOOP(any_number_of_devices, CK_PLACEMENTS * SPECS) {
  const int placement = _i / SPECS;
  const struct ck_setup alone = setup_of(&workloads[0], "cpu:1", EK_MODE_REPLICATED);
  const struct ck_setup many = setup_of(&workloads[_i % 2], specs[_i % SPECS], placement);
  double *want = trained(&alone), *got = trained(&many);
  const int64_t count = ck_count(want);
  ck_assert_msg(want[count - 1] == 6 && got[count - 1] == 6, "6 batches were %g and %g",
                want[count - 1], got[count - 1]);
  const double error = ck_arrays_off(got, want);
  ck_assert_msg(error <= 1e-12, "%s over %s, %s: off by %.3g", many.workload->name, many.spec,
                ck_placement_name(placement), error);
}

/* The same steps with the loss inside the model: targets are inputs, also of devices without rows.
 */
CK_LOOP(with_the_loss_inside, 2) {
  const struct ck_setup alone = setup_of(&workloads[0], "cpu:1", EK_MODE_REPLICATED);
  CK_WITH(struct ck_setup, whole,
          setup_of(&workloads[0], _i == 0 ? "cpu:1" : "cpu:5", EK_MODE_REPLICATED),
          .own_loss = true);
  double *want = trained(&alone), *got = trained(&whole);
  ck_assert_double_le(ck_arrays_off(got, want), 1e-12);
}

/* Evaluation uses what training has left, without collectives. */
CK_TEST(evaluation) {
  struct ck_training training = ck_training_of(setup_of(&workloads[0], "cpu:3", EK_MODE_SHARDED));
  ck_ok(step(&training, 0));
  const double *before = ck_training_read(&training, CK_BUFFERS);
  CK_WITH(ek_forward_options, options, EK_FORWARD_OPTIONS_INIT, .training = false,
          .gradient = false);
  struct ck_batch batch = batch_of(&workloads[0], 2, 9);
  ek_shards y = {0};
  ck_ok(ek_data_parallel_model_forward(&y, training.model, batch.input, 1, &options));
  ck_assert_int_eq(y.offsets[3], 2);
  ck_assert_int_eq(y.parts[2].shape[0], 0);
  ek_shards_free(&y);
  ck_arrays_same("buffers", ck_training_read(&training, CK_BUFFERS), before);
}

/* A device that only counts takes as much memory as one that computes. */
CK_LOOP(plan, 2) {
  ek_memory_usage usage[2][3];
  for (int i = 0; i < 2; i++) {
    struct ck_training training =
        ck_training_of(setup_of(&workloads[_i], i == 0 ? "cpu:3" : "plan:3", EK_MODE_SHARDED));
    ck_ok(step(&training, 0));
    ck_usages(usage[i], training.group);
  }
  ck_same_peaks(workloads[_i].name, usage[1], usage[0], 3);
}

/* Each allocation of a step fails once, on each device in turn: an error that names the device,
 * no device waits, and the next step goes on. */
CK_LOOP(failures, 6) {
  const struct ck_setup setup = setup_of(&workloads[_i / 3], "cpu:3", EK_MODE_REPLICATED);
  struct ck_training training = ck_training_opened(&setup);
  ek_device *device = ek_group_device(training.group, (size_t)(_i % 3));
  uint64_t n = 0;
  while (ck_device_fails(&n, device, step(&training, 0))) {
    ck_assert_uint_lt(n, 500);
    ck_assert(ck_contains(ek_error_message(), ek_device_name(device)));
  }
  ck_assert_uint_gt(n, 10);
}

static const struct ck_workload later = {
    .name = "postponed", .module = postponing, .criterion = ek_mean_squared_error_create,
    .sample = CK_SAMPLE(CK_ROW(IN), CK_ROW(IN))};

/* Parameters after a step of 3 samples. */
static double *shifted(const char *spec, int placement) {
  struct ck_training training = ck_training_of(setup_of(&later, spec, placement));
  struct ck_batch batch = batch_of(&later, 3, 1);
  memset(trail, 0, sizeof trail);
  ck_ok(ck_training_step(&training, &batch, NULL));
  return ck_training_read(&training, CK_VALUES);
}

/* The rest of a backward comes during the next sum, before the next one that is postponed, before
 * another user of its parameter adds, and at the end: with rows and without. On one device, and
 * where parameters are lent, nothing is postponed. The sums are exact to 1e-12 as above. */
CK_LOOP(postponed, CK_PLACEMENTS * SPECS) {
  const int placement = _i / SPECS;
  double *want = shifted("cpu:1", EK_MODE_REPLICATED);
  ck_assert_str_eq(trail, "snsn()snsn()sn");
  double *got = shifted(specs[_i % SPECS], placement);
  const bool lent = strncmp(ck_placement_name(placement), "fully-sharded", 13) == 0;
  ck_assert_msg(strcmp(trail, lent ? "snsn()snsn()sn" : "ssln()ssl(l)sl") == 0, "%s: %s",
                ck_placement_name(placement), trail);
  ck_assert_double_le(ck_arrays_off(got, want), 1e-12);
}

/* A rest that fails names its module, whichever function it interrupts. */
CK_LOOP(postponed_failures, 3) {
  struct ck_training training = ck_training_of(setup_of(&later, "cpu:3", EK_MODE_REPLICATED));
  struct ck_batch batch = batch_of(&later, 7, 1);
  fails_on = _i;
  ck_assert_int_eq(ck_training_step(&training, &batch, NULL), EK_ERR_IO);
  fails_on = -1;
  ck_assert_msg(ck_contains(ek_error_message(), " (shift), backward: no such luck"), "%s",
                ek_error_message());
  ck_ok(ck_training_step(&training, &batch, NULL));
}

CK_LOOP(postponed_wrongly, 4) {
  static const struct {
    const char *spec;
    size_t given;
    bool wrong;
    ek_status status;
    const char *text;
  } is[] = {
      {"cpu:2", EK_MAX_POSTPONED + 1, false, EK_ERR_INVALID_ARGUMENT, "5 tensors"},
      {"cpu:2", 2, false, EK_ERR_INVALID_ARGUMENT, "number 1"},
      {"cpu:2", 1, true, EK_ERR_STATE, "(mark), backward: ek_pass_postpone: the module's table"},
      {"cpu:1", 1, true, EK_ERR_STATE, "not possible here; ask ek_pass_can_postpone()"}};
  struct ck_training training = ck_training_of(setup_of(&later, is[_i].spec, EK_MODE_REPLICATED));
  struct ck_batch batch = batch_of(&later, 7, 1);
  given = is[_i].given;
  wrong = is[_i].wrong;
  ck_assert_int_eq(ck_training_step(&training, &batch, NULL), is[_i].status);
  given = 1;
  wrong = false;
  ck_assert_msg(ck_contains(ek_error_message(), is[_i].text), "%s", ek_error_message());
}

CK_TEST(undeclared) {
  CK_SCOPED(ek_module *, module, ck_batch_norm_create_undeclared(&module, 3));
  ck_forward_fails(module, EK_ERR_STATE,
                   "undeclared, forward: ek_pass_all_reduce: the module's table does not declare "
                   "`collective`",
                   EK_F32, CK_SHAPE(4, 3));
}

/* The part of a device without rows is none of the output's. */
CK_TEST(scalars) {
  static const double x[3] = {2, 4, 9};
  ek_group *group = ck_open("cpu:5", 1);
  float values[3];
  for (int i = 0; i < 3; i++) values[i] = (float)x[i];
  CK_SCOPED(ek_module *, module, ck_spread_create(&module));
  CK_OPENED(ek_data_parallel_model *, trained_model,
            ek_data_parallel_model_open(&trained_model, group, module, NULL));
  CK_GOT(ek_tensor, input, ek_tensor_host(&input, values, EK_F32, 2, (const int64_t[]){3, 1}));
  CK_OPENED(ek_shards, y, ek_data_parallel_model_forward(&y, trained_model, &input, 1, NULL));
  ck_assert_int_eq(y.offsets[5], 3);
  for (size_t k = 0; k < 3; k++) {
    double got = 0;
    ck_get(&got, &y.parts[k]);
    ck_assert_double_eq(got, x[k] - 3);
  }
  ck_ok(ek_data_parallel_model_backward(trained_model, &y, 1, NULL));
}

static ek_status norm_alone(ek_module **module) { return ck_batch_norm_create(module, 3); }

/* By hand and alone: sums over one device. */
static const struct ck_module_case cases[] = {
    CK_CASE("batch norm", norm_alone, 15, 8, 1, {0, 2, {5, 3}, -2, 2, 0})};
CK_MODULE_CASES(cases)

CK_SUITE("collective_modules")
