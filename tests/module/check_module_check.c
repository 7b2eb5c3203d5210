/*
 * check_module_check.c - ek_module_check() passes a right module and names what a wrong one does.
 *
 * The module is y = w x, element by element, with as many faults as there are checks.
 */
#include <stdatomic.h>

#include "ck_batch_norm.h"
#include "ck_mirror.h"

/* What comes of it, the check that finds it, and what is said. */
#define FAULTS_OF(X)                                                                               \
  X(GRADIENT, EK_ERR_MISMATCH, "(differences)", "gradient of w against differences, element")      \
  X(GRAD_INPUT, EK_ERR_MISMATCH, "(differences)",                                                  \
    "gradient of input 0 against differences, element 7:")                                         \
  X(NOT_ADDED, EK_ERR_MISMATCH, "(accumulate)", "gradient of w, element")                          \
  X(UNDEFINED, EK_ERR_MISMATCH, "(repeat)", "output 0, element 4: nan")                            \
  X(OVERRUN, EK_ERR_OVERRUN, "", "after its end")                                                  \
  X(COUNTER, EK_ERR_MISMATCH, "(repeat)", "output 0, element")                                     \
  X(WRITES_INPUT, EK_ERR_MISMATCH, "(repeat)", "input 0 was written: element 0 was")               \
  X(DEPENDS_ON_GRAD_INPUTS, EK_ERR_MISMATCH, "(grad_inputs)", "gradient of w, element")            \
  X(COMPLETE_TOO_EARLY, EK_ERR_MISMATCH, "(complete)", "gradient of w, when it was reported")      \
  X(EVALUATES_OTHERWISE, EK_ERR_MISMATCH, "(evaluation)", "output 0, element")                     \
  X(MIXES_ROWS, EK_ERR_MISMATCH, "(devices)", "output 0, element")                                 \
  X(NAN_WITHOUT_ROWS, EK_ERR_MISMATCH, "(rows)", "gradient of w, element 0: nan")                  \
  X(FORGETS, EK_ERR_MISMATCH, "(repeat)", "bytes are still held")                                  \
  X(OWN_ERROR, EK_ERR_MISMATCH, "(memory)", "something else")                                      \
  X(OWN_ERROR_AT_FIRST, EK_ERR_MISMATCH, "(memory)", "allocation 1 fails")                         \
  X(OTHER_SHAPE, EK_ERR_MISMATCH, "(repeat)", "output 0: 30 elements, expected 15")                \
  X(OTHER_PLAN, EK_ERR_MISMATCH, "(plan)", "of the ledger is")                                     \
  X(OTHER_TYPE, EK_ERR_MISMATCH, "(types)", "output 0, element")                                   \
  X(FAILS, EK_ERR_UNSUPPORTED, "(repeat)", "words of its own")
#define NAME(fault, status, check, words) fault,
enum fault {
  NONE,
  FAULTS_OF(NAME) FAULTS,
  WRONG_BELOW_ZERO = FAULTS /* the gradient of w, where w[0] < 0 */
};

struct product {
  ek_module base;
  enum fault fault;
  atomic_int *calls;
};

enum { WIDTH = 3, SAMPLES = 5 };

CK_PARAMETERS(product) {
  const int64_t width = WIDTH;
  return ek_declare_parameter(declaration, "w", 1, &width, ek_initializer_normal(0, 1));
}

static ek_tensor kept; /* what a forgetful module keeps */

/* What is beside the arithmetic. */
static ek_status misbehave(const struct product *p, ek_pass *pass, const ek_tensor *x,
                           ek_tensor *y) {
  const bool plan = ek_device_counts_only(ek_pass_device(pass));
  ek_tensor spare = {0};
  uint8_t zeros[8] = {0};
  switch (p->fault) {
  case FORGETS:
    if (plan || ek_tensor_exists(&kept)) return EK_OK;
    return ek_pass_output(&kept, pass, EK_F32, CK_SHAPE(1));
  case OTHER_PLAN:
    if (!plan) EK_TRY(ek_pass_workspace(&spare, pass, EK_F32, CK_SHAPE(5)));
    ek_tensor_free(&spare);
    return EK_OK;
  case OWN_ERROR:
    if (ek_pass_workspace(&spare, pass, EK_F32, CK_SHAPE(5)) != EK_OK) {
      return ek_error_set(EK_ERR_INTERNAL, "something else");
    }
    ek_tensor_free(&spare);
    return EK_OK;
  case OVERRUN: {
    ek_tensor host, behind = *y; /* one element past its end */
    if (plan) return EK_OK;
    EK_TRY(ek_tensor_host(&host, zeros, y->type, CK_SHAPE(1)));
    ck_assign(behind, .data = (char *)y->data + ek_tensor_bytes(y), .rank = 1, .shape[0] = 1);
    return ek_tensor_copy(&behind, &host);
  }
  case WRITES_INPUT: {
    ek_tensor host, loan = *x;
    double row[WIDTH] = {0};
    if (plan) return EK_OK;
    EK_TRY(ek_tensor_rows(&loan, x, 0, x->shape[0] > 0));
    EK_TRY(ek_tensor_host(&host, row, x->type, 2, loan.shape));
    const ek_status status = ek_tensor_copy(&loan, &host);
    ek_tensor_free(&loan);
    return status;
  }
  case FAILS: return ek_error_set(EK_ERR_UNSUPPORTED, "words of its own");
  default: return EK_OK;
  }
}

CK_FORWARD(product) {
  const struct product *p = (const struct product *)self;
  ek_tensor w, x = inputs[0], y = {0};
  EK_TRY(ek_pass_parameter(&w, pass, 0));
  const bool longer = p->fault == OTHER_SHAPE && atomic_load(p->calls) > 0;
  const ek_status taken =
      ek_pass_output(&y, pass, x.type, CK_SHAPE(x.shape[0] * (longer ? 2 : 1), WIDTH));
  if (taken != EK_OK && p->fault == OWN_ERROR_AT_FIRST) {
    return ek_error_set(EK_ERR_INTERNAL, "something else");
  }
  EK_TRY(taken);
  outputs[0] = y;
  EK_TRY(misbehave(p, pass, &x, &y));
  CK_MIRRORS(m, 1, &y, &x, &w);
  const int calls = atomic_fetch_add(p->calls, 1);
  for (int64_t i = 0; i < ek_tensor_count(&x); i++) {
    double value = ck_at(&m.host[1], i) * ck_at(&m.host[2], i % WIDTH);
    if (p->fault == UNDEFINED && i == 4) value += 0 * ck_at(&m.host[0], i);
    if (p->fault == COUNTER) value += calls;
    if (p->fault == EVALUATES_OTHERWISE && !ek_pass_is_training(pass)) value *= 0.5;
    if (p->fault == MIXES_ROWS) value += 0.1 * (double)x.shape[0];
    if (p->fault == OTHER_TYPE && x.type == EK_F32) value *= 2;
    ck_put(&m.host[0], i, value);
  }
  EK_TRY(ck_mirrors_close(&m));
  return ek_pass_save(pass, &inputs[0]);
}

CK_BACKWARD(product) {
  const struct product *p = (const struct product *)self;
  CK_FREED(tensor) x = {0}, dx = {0};
  ek_tensor w, dw;
  double beta = 0;
  EK_TRY(ek_pass_take(&x, pass));
  EK_TRY(ek_pass_parameter(&w, pass, 0));
  EK_TRY(ek_pass_gradient(&dw, &beta, pass, 0));
  EK_TRY(ek_pass_output(&dx, pass, x.type, 2, x.shape));
  if (p->fault == COMPLETE_TOO_EARLY) EK_TRY(ek_pass_gradient_complete(pass, 0));
  CK_MIRRORS(m, 2, &dw, &dx, &grad_outputs[0], &x, &w);
  for (int64_t i = 0; i < WIDTH; i++) {
    const double before = beta == 0 || p->fault == NOT_ADDED ? 0 : ck_at(&m.host[0], i);
    ck_put(&m.host[0], i, before);
  }
  double scale = p->fault == GRADIENT ? 1.001 : 1;
  if (p->fault == DEPENDS_ON_GRAD_INPUTS && grad_inputs == NULL) scale = 2;
  if (p->fault == WRONG_BELOW_ZERO && ck_at(&m.host[4], 0) < 0) scale = 2;
  for (int64_t i = 0; i < ek_tensor_count(&x); i++) {
    const double of_w = scale * ck_at(&m.host[2], i) * ck_at(&m.host[3], i);
    ck_put(&m.host[0], i % WIDTH, ck_at(&m.host[0], i % WIDTH) + of_w);
    const double of_x = ck_at(&m.host[2], i) * ck_at(&m.host[4], i % WIDTH);
    ck_put(&m.host[1], i, p->fault == GRAD_INPUT && i == 7 ? of_x + 0.25 : of_x);
  }
  if (p->fault == NAN_WITHOUT_ROWS && x.shape[0] == 0) ck_put(&m.host[0], 0, NAN);
  EK_TRY(ck_mirrors_close(&m));
  return grad_inputs == NULL ? EK_OK : ek_tensor_share(&grad_inputs[0], &dx);
}

static void product_free(ek_module *self) {
  free(((struct product *)self)->calls);
  free(self);
}

static ek_module *make_product(enum fault fault, unsigned types) {
  static const unsigned both = EK_TYPES_F32 | EK_TYPES_F64;
  static const ek_module_ops wide = {CK_OPS_MEMBERS(product),
                                     .parameters = product_parameters,
                                     .types = EK_TYPES_F32 | EK_TYPES_F64};
  static ek_module_ops narrow;
  narrow = wide;
  narrow.types = EK_TYPES_F32;
  struct product *p = ck_module_new(sizeof *p, types == both ? &wide : &narrow, 1, 1);
  p->fault = fault;
  p->calls = calloc(1, sizeof *p->calls);
  ck_assert_ptr_nonnull(p->calls);
  return ck_keep(&p->base);
}

static const ek_check_input rows = {.rank = 2, .shape = {SAMPLES, WIDTH}, .low = -1, .high = 1};

struct reports {
  int count;
  ek_check last;
  double worst;
};

static void note(void *context, ek_check check, double error) {
  struct reports *reports = context;
  reports->count++;
  reports->last = check;
  if (error > reports->worst) reports->worst = error;
}

/* ---- what passes ---- */

CK_PART_LOOP(a_right_module_passes, 6) {
  static const char *const devices[] = {"cpu:1", "cpu:2", "cpu:7"};
  struct reports reports = {0};
  CK_WITH(ek_module_check_options, options, EK_MODULE_CHECK_OPTIONS_INIT, .report = note,
          .context = &reports, .longest = 1, .depth = 8);
  ek_module *module = make_product(NONE, _i % 2 == 0 ? EK_TYPES_F32 | EK_TYPES_F64 : EK_TYPES_F32);
  ck_ok(ek_module_check(module, ck_spec(devices[_i / 2]), &rows, 1, &options));
  ck_assert_int_eq(reports.count, EK_CHECKS);
  ck_assert(reports.worst > 0 && reports.worst <= 1);
}

/* Stock layers with an edge and random numbers, and defaults for everything. */
CK_TEST(a_stock_model_passes) {
  ek_module *layers[4] = {NULL};
  const ek_check_input x = {.rank = 2, .shape = {4, 3}, .low = -1, .high = 1};
  ck_ok(ek_linear_create(&layers[0], 3, 6, true));
  ck_ok(ek_activation_create(&layers[1], EK_ACTIVATION_GELU));
  ck_ok(ek_dropout_create(&layers[2], 0.3));
  ck_ok(ek_linear_create(&layers[3], 6, 2, true));
  CK_OPENED(ek_module *, model, ck_sequential(&model, layers, 4, NULL));
  ck_ok(ek_module_check(model, ck_spec("cpu:3"), &x, 1, NULL));
}

/* It sums over all devices, those without rows included. */
CK_LOOP(a_collective_module_passes, 2) {
  CK_OPENED(ek_module *, module, ck_batch_norm_create(&module, WIDTH));
  ck_ok(ek_module_check(module, ck_spec(_i == 0 ? "cpu:2" : "cpu:7"), &rows, 1, NULL));
}

/* Criteria are modules: logits and classes, with sums of losses or the loss of each row. */
CK_LOOP(a_criterion_passes, 2) {
  CK_WITH(ek_cross_entropy_options, options, EK_CROSS_ENTROPY_OPTIONS_INIT,
          .reduction = _i == 0 ? EK_REDUCTION_MEAN : EK_REDUCTION_NONE, .ignore_index = 2,
          .label_smoothing = 0.1);
  const ek_check_input both[] = {{.rank = 2, .shape = {7, 4}, .low = -2, .high = 2},
                                 {.type = EK_I32, .rank = 1, .shape = {7}, .low = 0, .high = 3}};
  CK_OPENED(ek_criterion *, criterion, ek_cross_entropy_create(&criterion, &options));
  ck_ok(ek_module_check(&criterion->base, ck_spec("cpu:3"), both, 2, NULL));
}

/* ---- what is found ---- */

static const struct {
  const char *name;
  ek_status status;
  const char *check, *words;
} found[FAULTS] = {
#define ROW(fault, status, check, words) [fault] = {#fault, status, check, words},
    FAULTS_OF(ROW)};

CK_LOOP_FROM(a_wrong_module_is_named, GRADIENT, FAULTS) {
  if (!ck_part(_i)) return;
  ek_module *module = make_product((enum fault)_i, EK_TYPES_F32 | EK_TYPES_F64);
  const ek_status status = ek_module_check(module, ck_spec("cpu:2"), &rows, 1, NULL);
  ek_tensor_free(&kept);
  ck_assert_msg(status == found[_i].status, "%s gave %s: %s", found[_i].name,
                ek_status_name(status), ek_error_message());
  ck_assert_msg(strstr(ek_error_message(), found[_i].check) != NULL &&
                    strstr(ek_error_message(), found[_i].words) != NULL &&
                    strstr(ek_error_message(), "of product") != NULL,
                "%s: %s", found[_i].name, ek_error_message());
}

/* ReLU keeps its output: 5 x 3 numbers of f32, without the guards, are one unit. */
CK_TEST(what_forward_keeps_is_counted) {
  CK_WITH(ek_module_check_options, options, EK_MODULE_CHECK_OPTIONS_INIT,
          .left_out = ~(1u << EK_CHECK_MEMORY), .saved = EK_MEMORY_UNIT);
  CK_OPENED(ek_module *, module, ek_activation_create(&module, EK_ACTIVATION_RELU));
  ck_ok(ek_module_check(module, ck_spec("cpu:2"), &rows, 1, &options));
  options.saved = 0;
  ck_fails(ek_module_check(module, ck_spec("cpu:2"), &rows, 1, &options), EK_ERR_MISMATCH,
           "module check (memory) of relu: forward keeps 256 bytes for backward, expected 0");
}

/* y = x, as the first rows of a tensor that nothing else needs. */
CK_FORWARD(wide) {
  const ek_tensor *x = &inputs[0];
  const int64_t shape[] = {64 * x->shape[0], x->shape[1]};
  ek_tensor large = {0};
  EK_TRY(ek_pass_output(&large, pass, x->type, 2, shape));
  ek_status status = ek_tensor_rows(&outputs[0], &large, 0, x->shape[0]);
  ek_tensor_free(&large);
  if (status == EK_OK) status = ek_op_copy(ek_pass_stream(pass), &outputs[0], x);
  return status;
}

CK_TEST(an_output_holds_its_own_size) {
  static const ek_module_ops ops = {CK_OPS("wide", wide_forward, ck_share_backward, ck_no_free)};
  ek_module_check_options options = EK_MODULE_CHECK_OPTIONS_INIT;
  CK_GOT(ek_module, module, ek_module_init(&module, &ops, 1, 1));
  ck_ok(ek_module_check(&module, ck_spec("cpu:2"), &rows, 1, &options));
  options.saved = 0;
  ck_fails(ek_module_check(&module, ck_spec("cpu:2"), &rows, 1, &options), EK_ERR_MISMATCH,
           "outputs and gradients hold 3840 bytes, expected 256, their own size");
}

/* In f32 a gradient that is wrong by a quarter shows too; what is left out is not looked at. */
CK_TEST(f32_alone_and_checks_left_out) {
  CK_WITH(ek_module_check_options, options, EK_MODULE_CHECK_OPTIONS_INIT, .longest = 5);
  ek_module *module = make_product(GRAD_INPUT, EK_TYPES_F32);
  ck_fails(ek_module_check(module, ck_spec("cpu:1"), &rows, 1, &options), EK_ERR_MISMATCH,
           "(differences)");
  options.left_out = 1u << EK_CHECK_DIFFERENCES;
  ck_ok(ek_module_check(module, ck_spec("cpu:1"), &rows, 1, &options));
}

/* Parameters that keep their initial values have those of the seed. */
CK_TEST(initial_values_are_of_the_seed) {
  ek_module_check_options options = EK_MODULE_CHECK_OPTIONS_INIT;
  bool passed = false, failed = false;
  ek_module *module = make_product(WRONG_BELOW_ZERO, EK_TYPES_F32);
  options.low = options.high = 0;
  options.left_out = ~(1u << EK_CHECK_DIFFERENCES);
  for (options.seed = 1; options.seed <= 20; options.seed++) {
    const ek_status status = ek_module_check(module, ck_spec("cpu:1"), &rows, 1, &options);
    ck_assert(status == EK_OK || status == EK_ERR_MISMATCH);
    passed = passed || status == EK_OK;
    failed = failed || status == EK_ERR_MISMATCH;
  }
  ck_assert(passed && failed);
}

/* ---- several inputs ---- */

/* y = a + b, whose gradient of b is twice what it should be. */
CK_FORWARD(sum) {
  const ek_tensor *a = &inputs[0];
  EK_TRY(ek_pass_output(&outputs[0], pass, a->type, a->rank, a->shape));
  return ek_op_add(ek_pass_stream(pass), &outputs[0], a, &inputs[1]);
}

CK_BACKWARD(sum) {
  const ek_tensor *dy = &grad_outputs[0];
  for (int i = 0; i < 2 && grad_inputs != NULL; i++) {
    EK_TRY(ek_pass_output(&grad_inputs[i], pass, dy->type, dy->rank, dy->shape));
    EK_TRY(ek_op_scale(ek_pass_stream(pass), &grad_inputs[i], dy, i + 1));
  }
  return EK_OK;
}

static ek_module *make_module(const ek_module_ops *ops, size_t inputs) {
  ek_module *module = ck_module_new(sizeof *module, ops, inputs, 1);
  return ck_keep(module);
}

CK_TEST(the_gradient_of_each_input_counts) {
  static const ek_module_ops ops = {CK_OPS("sum", sum_forward, sum_backward, ck_plain_free),
                                    .types = EK_TYPES_F32 | EK_TYPES_F64};
  const ek_check_input both[] = {rows, rows};
  ek_module *module = make_module(&ops, 2);
  ck_fails(ek_module_check(module, ck_spec("cpu:1"), both, 2, NULL), EK_ERR_MISMATCH,
           "gradient of input 1 against differences");
}

/* ---- large numbers ---- */

enum { LARGE = 1 << 16 };

/* y = x - LARGE, which is exact. */
CK_FORWARD(shifted) {
  const ek_tensor *x = &inputs[0];
  EK_TRY(ek_pass_output(&outputs[0], pass, x->type, x->rank, x->shape));
  EK_TRY(ek_op_fill(ek_pass_stream(pass), &outputs[0], -LARGE));
  return ek_op_add(ek_pass_stream(pass), &outputs[0], &outputs[0], x);
}

/* Where neighbours of f32 are 1/128 apart a step of 1/256 goes to the next number or nowhere, and
 * in f64 it is rounded, too: differences are taken over the way that x has really gone. */
CK_LOOP(differences_of_large_numbers, 2) {
  static const ek_module_ops ops = {
      CK_OPS("shifted", shifted_forward, ck_share_backward, ck_plain_free),
      .types = EK_TYPES_F32 | EK_TYPES_F64};
  static ek_module_ops single;
  single = ops;
  single.types = EK_TYPES_F32;
  const ek_check_input x = {.rank = 2, .shape = {4, 3}, .low = LARGE, .high = LARGE + 64};
  ek_module_check_options options = EK_MODULE_CHECK_OPTIONS_INIT;
  ek_module *module = make_module(_i == 0 ? &ops : &single, 1);
  options.left_out = ~(1u << EK_CHECK_DIFFERENCES) & ((1u << EK_CHECKS) - 1);
  ck_ok(ek_module_check(module, ck_spec("cpu:1"), &x, 1, &options));
}

/* ---- 16 bits ---- */

static ek_type wrong_in; /* in which type the module below is wrong */

/* y = x, or twice that. */
static ek_status scaled(ek_pass *pass, const ek_tensor *x, ek_tensor *y) {
  const double factor = ek_pass_type(pass) == wrong_in ? 2 : 1;
  EK_TRY(ek_pass_output(y, pass, x->type, x->rank, x->shape));
  return ek_op_scale(ek_pass_stream(pass), y, x, factor);
}

CK_FORWARD(scaled) { return scaled(pass, &inputs[0], &outputs[0]); }

CK_BACKWARD(scaled) {
  return grad_inputs == NULL ? EK_OK : scaled(pass, &grad_outputs[0], &grad_inputs[0]);
}

/* Each type of 16 bits that the table declares, where the devices compute in it. */
CK_TEST(types_of_16_bits) {
  static const ek_module_ops ops = {
      CK_OPS("scaled", scaled_forward, scaled_backward, ck_plain_free),
      .types = EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 | EK_TYPES_F16};
  static const ek_type halves[] = {EK_BF16, EK_F16};
  ek_module *module = make_module(&ops, 1);
  ek_group *group = ck_open("cpu:2", 1);
  const unsigned types = ek_device_types(ek_group_device(group, 0));
  ek_group_free(group);
  wrong_in = (ek_type)0;
  ck_ok(ek_module_check(module, ck_spec("cpu:2"), &rows, 1, NULL));
  for (int i = 0; i < 2; i++) {
    wrong_in = halves[i];
    if ((types >> halves[i] & 1u) == 0) {
      ck_ok(ek_module_check(module, ck_spec("cpu:2"), &rows, 1, NULL));
    } else {
      ck_fails(ek_module_check(module, ck_spec("cpu:2"), &rows, 1, NULL), EK_ERR_MISMATCH,
               i == 0 ? "(types) of scaled: in bf16: output 0"
                      : "(types) of scaled: in f16: output 0");
    }
  }
}

/* Every allocation on the host fails once. */
CK_TEST(the_host_runs_out_of_memory) {
  ek_module_check_options options = EK_MODULE_CHECK_OPTIONS_INIT;
  options.left_out = ~(1u << EK_CHECK_REPEAT | 1u << EK_CHECK_PLAN | 1u << EK_CHECK_START);
  ek_module *module = make_product(NONE, EK_TYPES_F32);
  const char *devices = ck_spec("cpu:2");
  uint64_t n = 0;
  while (ck_host_fails(&n, ek_module_check(module, devices, &rows, 1, &options))) {
  }
}

CK_TEST(wrong_arguments) {
  ek_module *module = make_product(NONE, EK_TYPES_F32);
  const char *devices = ck_spec("cpu:1");
  ek_check_input x = rows;
  ek_module_check_options options = EK_MODULE_CHECK_OPTIONS_INIT;
  ck_invalid(ek_module_check(NULL, devices, &x, 1, NULL), "NULL");
  ck_invalid(ek_module_check(module, devices, NULL, 1, NULL), "NULL");
  ck_invalid(ek_module_check(module, devices, &x, 2, NULL), "inputs");
  ck_invalid(ek_module_check(module, "gpu", &x, 1, NULL), "gpu");
  ck_bad(x, shape[0], 0, ek_module_check(module, devices, &x, 1, NULL), "input 0");
  ck_bad(x, rank, 9, ek_module_check(module, devices, &x, 1, NULL), "rank");
  ck_bad(x, low, 2, ek_module_check(module, devices, &x, 1, NULL), "low");
  ck_bad(x, type, EK_F16, ek_module_check(module, devices, &x, 1, NULL), "type");
  ck_bad(options, longest, 0, ek_module_check(module, devices, &rows, 1, &options), "longest is 0");
  ck_assert_str_eq(ek_check_name(EK_CHECK_PLAN), "plan");
  ck_assert_str_eq(ek_check_name(EK_CHECKS), "unknown");
}

CK_SUITE("module check")
