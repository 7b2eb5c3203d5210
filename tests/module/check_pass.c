/*
 * check_pass.c - one forward and its backward: what a pass promises to a module, and modules of a
 * program's own, with several inputs and outputs, that rely on it.
 */
#include "ck_mixer.h"
#include "ck_module.h"
#include "ck_parent.h"
#include "ck_probe.h"

/* Three products with one weight, which ties of ties make: the third completes its gradient. */
CK_PARAMETERS(thrice) {
  EK_TRY(ek_declare_module(declaration, "inner", ck_child(self, 0)));
  EK_TRY(ek_declare_tie(declaration, "inner.1.weight", "inner.0.weight"));
  return ek_declare_tie(declaration, "inner.0.weight", "inner.2.weight");
}

static const ek_module_ops thrice_ops = {
    CK_OPS("thrice", ck_parent_forward, ck_parent_backward, ck_parent_free),
    .parameters = thrice_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64};

static ek_status create_thrice(ek_module **module) {
  ek_module *products[3] = {NULL}, *inner = NULL;
  for (int i = 0; i < 3; i++) ck_ok(ek_linear_create(&products[i], 3, 3, false));
  ck_ok(ck_sequential(&inner, products, 3, NULL));
  *module = ck_parent_new(sizeof(struct ck_parent), &thrice_ops, inner);
  return EK_OK;
}

/* ---- a module that does its child's work, and tests what that gives it ----
 *
 * x W^T for x [B, 3], where W is the weight of its child, a linear that never runs. A parameter of
 * its own, "own" [5], takes no part.
 */

CK_PARAMETERS(visitor) {
  EK_TRY(ek_declare_parameter(declaration, "own", 1, (const int64_t[]){5}, ek_initializer_ones()));
  return ek_declare_module(declaration, "child", ck_child(self, 0));
}

CK_FORWARD(visitor) {
  ek_tensor t = {0};
  const uint32_t own_stream = ek_pass_random(pass).stream;
  ck_fails(ek_pass_child_leave(pass), EK_ERR_STATE, "the module has not entered a child");
  ck_fails(ek_pass_child_enter(pass, 1), EK_ERR_INVALID_ARGUMENT, "no child number 1");
  const bool wanted = ek_pass_wants_outputs(pass);
  CK_WITH(ek_child_options, options, EK_CHILD_OPTIONS_INIT, .unread = true);
  EK_TRY(ek_pass_child_enter_with(pass, 0, NULL, &options));
  ck_assert(!ek_pass_wants_outputs(pass));
  ck_fails(ek_pass_child_enter(pass, 0), EK_ERR_STATE, "the module is already in a child");
  ck_fails(ek_pass_parameter(&t, pass, 1), EK_ERR_INVALID_ARGUMENT, "no parameter number 1");
  ck_assert_uint_ne(ek_pass_random(pass).stream, own_stream);
  EK_TRY(ek_pass_parameter(&t, pass, 0));
  ck_assert_int_eq(t.rank, 2);
  EK_TRY(ek_pass_output(&outputs[0], pass, inputs[0].type, 2, inputs[0].shape));
  EK_TRY(ek_op_linear(ek_pass_stream(pass), &outputs[0], &inputs[0], &t, NULL));
  EK_TRY(ek_pass_child_leave(pass));
  ck_assert(ek_pass_wants_outputs(pass) == wanted);
  ck_assert_uint_eq(ek_pass_random(pass).stream, own_stream);
  EK_TRY(ek_pass_parameter(&t, pass, 0));
  ck_assert_int_eq(t.rank, 1);
  return ek_pass_save(pass, &inputs[0]);
}

/* Returns without leaving, which must not matter to whoever called. */
CK_BACKWARD(visitor) {
  CK_FREED(tensor) x = {0};
  ek_tensor t;
  double beta = 0;
  EK_TRY(ek_pass_child_enter(pass, 0));
  EK_TRY(ek_pass_take(&x, pass));
  EK_TRY(ek_pass_gradient(&t, &beta, pass, 0));
  EK_TRY(ek_op_linear_gradients(ek_pass_stream(pass), &t, NULL, &grad_outputs[0], &x, beta, 0));
  ek_tensor_free(&x);
  EK_TRY(ek_pass_gradient_complete(pass, 0));
  if (grad_inputs == NULL) return EK_OK;
  EK_TRY(ek_pass_parameter(&t, pass, 0));
  EK_TRY(ek_pass_output(&grad_inputs[0], pass, t.type, 2, grad_outputs[0].shape));
  return ek_op_matmul(ek_pass_stream(pass), &grad_inputs[0], &grad_outputs[0], false, &t, false, 0);
}

CK_PARENT_OPS(visitor, .parameters = visitor_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64);

static ek_status create_visitor(ek_module **module) {
  CK_GOT(ek_module *, child, ek_linear_create(&child, 3, 3, false));
  struct ck_parent *m = ck_parent_new(sizeof *m, &visitor_ops, child);
  *module = &m->base;
  return EK_OK;
}

/* Two of them one after the other. */
static ek_status create_visitors(ek_module **module) {
  CK_SCOPED(ek_module *, visitor, create_visitor(&visitor));
  ck_ok(ek_sequential_create(module, (ek_module *[]){visitor, visitor}, 2));
  return EK_OK;
}

static const struct ck_module_case cases[] = {
    CK_CASE("a mixer in plain C", ck_mixer_create, 10, 2, 0,
            {0, 2, {5, CK_MIXER_WIDTH}, -1, 1}, {EK_I32, 1, {5}, 0, CK_MIXER_KINDS - 1}),
    CK_CASE("two tied mixers", ck_mixer_twice_create, 20, 4, 1,
            {0, 2, {5, CK_MIXER_WIDTH}, -1, 1}, {EK_I32, 1, {5}, 0, CK_MIXER_KINDS - 1}),
    CK_CASE("in the place of a child", create_visitor, 4, 1, 0, {0, 2, {4, 3}, -1, 1}),
    CK_CASE("twice in the place of a child", create_visitors, 4, 3, 1, {0, 2, {4, 3}, -1, 1}),
    CK_CASE("three products with one weight", create_thrice, 12, 6, 2, {0, 2, {4, 3}, -1, 1}),
};
CK_MODULE_CASES(cases)

static void run(struct ck_probe *s) {
  ck_ok(ek_pass_run_forward(&s->y, s->pass, &s->x));
  ck_ok(ek_pass_run_backward(&s->dx, s->pass, &s->x));
}

/* ---- the stack ---- */

static ek_status save_three(ek_pass *pass, const ek_tensor *x) {
  for (int64_t i = 1; i <= 3; i++) {
    ek_tensor t = {0};
    EK_TRY(ek_pass_output(&t, pass, EK_I32, 1, &i));
    EK_TRY(ek_pass_save(pass, &t));
    ck_assert_int_eq(ek_tensor_holders(&t), 2);
    ek_tensor_free(&t);
  }
  return ek_pass_save(pass, x);
}

static ek_status take_three(ek_pass *pass, const ek_tensor *dy) {
  ek_tensor t = {0};
  EK_TRY(ek_pass_take(&t, pass));
  ck_assert_ptr_eq(t.data, dy->data); /* the test gives x for dy */
  ek_tensor_free(&t);
  for (int64_t i = 3; i >= 1; i--) {
    EK_TRY(ek_pass_take(&t, pass));
    ck_assert_int_eq(t.shape[0], i);
    ck_assert_int_eq(ek_tensor_holders(&t), 1);
    ek_tensor_free(&t);
  }
  return EK_OK;
}

static ek_status take_too_many(ek_pass *pass, const ek_tensor *dy) {
  ek_tensor t = {0};
  EK_TRY(take_three(pass, dy));
  const ek_status status = ek_pass_take(&t, pass);
  ck_assert(!ek_tensor_exists(&t));
  return status;
}

CK_TEST(stack) { run(ck_probe_open(save_three, take_three)); }

CK_TEST(stack_empty) {
  struct ck_probe *s = ck_probe_open(save_three, take_too_many);
  ck_ok(ek_pass_run_forward(&s->y, s->pass, &s->x));
  ck_fails(ek_pass_run_backward(&s->dx, s->pass, &s->x), EK_ERR_STATE, "probe");
  ck_assert(!ek_tensor_exists(&s->dx));
}

/* What was saved and not taken back is found, and freed with the pass. */
CK_TEST(stack_left_over) {
  struct ck_probe *s = ck_probe_open(save_three, NULL);
  ck_ok(ek_pass_run_forward(&s->y, s->pass, &s->x));
  ck_fails(ek_pass_run_backward(&s->dx, s->pass, &s->x), EK_ERR_STATE, "4");
  ck_assert(!ek_tensor_exists(&s->dx));
}

/* ---- the order of calls ---- */

CK_TEST(order) {
  struct ck_probe *s = ck_probe_open(NULL, NULL);
  ck_fails(ek_pass_run_backward(NULL, s->pass, &s->x), EK_ERR_STATE, "");
  run(s);
  ck_fails(ek_pass_run_backward(NULL, s->pass, &s->x), EK_ERR_STATE, "");
  ek_tensor again = {0};
  ck_fails(ek_pass_run_forward(&again, s->pass, &s->x), EK_ERR_STATE, "");
  ck_assert(!ek_tensor_exists(&again));
}

CK_TEST(no_backward_without_gradient) {
  struct ck_probe *s = ck_probe_open(NULL, NULL);
  CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT, .gradient = false);
  ck_probe_pass(s, &options);
  ck_assert(!ek_pass_wants_gradient(s->pass));
  ck_ok(ek_pass_run_forward(&s->y, s->pass, &s->x));
  ck_fails(ek_pass_run_backward(NULL, s->pass, &s->x), EK_ERR_STATE, "");
}

/* ---- gradients ---- */

/* The first use may overwrite what is undefined, the second adds, and complete ends it. */
static ek_status beta_rule(ek_pass *pass, const ek_tensor *dy) {
  ek_tensor g = {0};
  double beta = -1;
  (void)dy;
  EK_TRY(ek_pass_gradient(&g, &beta, pass, 0));
  ck_assert(beta == 0);
  ck_set(&g, (const double[]){5, 6});
  EK_TRY(ek_pass_gradient(&g, &beta, pass, 0));
  ck_assert(beta == 1);
  ck_holds(&g, 5, 6);
  EK_TRY(ek_pass_gradient_complete(pass, 0));
  ck_fails(ek_pass_gradient(&g, &beta, pass, 0), EK_ERR_STATE, "a");
  ck_fails(ek_pass_gradient_complete(pass, 0), EK_ERR_STATE, "a");
  return EK_OK;
}

static void poison_gradients(struct ck_probe *s) {
  ek_tensor flat = *ek_replica_gradients(s->replica);
  ck_set(&flat, NULL);
}

static void expect_gradient(struct ck_probe *s, const char *name, double first, double second) {
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, s->replica, name));
  ck_holds(&info.gradient, first, second);
}

/* No module touches b: its gradient is zero afterwards. */
CK_TEST(beta_protocol) {
  struct ck_probe *s = ck_probe_open(NULL, beta_rule);
  poison_gradients(s);
  run(s);
  expect_gradient(s, "a", 5, 6);
  expect_gradient(s, "b", 0, 0);
}

/* Without a beta the memory is zeroed, once. */
static ek_status no_beta(ek_pass *pass, const ek_tensor *dy) {
  ek_tensor g = {0};
  (void)dy;
  EK_TRY(ek_pass_gradient(&g, NULL, pass, 1));
  ck_holds(&g, 0, 0);
  ck_set(&g, (const double[]){1, 2});
  EK_TRY(ek_pass_gradient(&g, NULL, pass, 1));
  ck_holds(&g, 1, 2);
  return EK_OK;
}

CK_TEST(zeroed) {
  struct ck_probe *s = ck_probe_open(NULL, no_beta);
  poison_gradients(s);
  run(s);
  expect_gradient(s, "a", 0, 0);
  expect_gradient(s, "b", 1, 2);
}

static ek_status adds_one(ek_pass *pass, const ek_tensor *dy) {
  ek_tensor g = {0};
  double beta = -1;
  (void)dy;
  EK_TRY(ek_pass_gradient(&g, &beta, pass, 0));
  ck_assert(beta == 1);
  return ck_got(&g)[0] == 8 ? EK_OK : ek_error_set(EK_ERR_INTERNAL, "probe: lost the gradient");
}

/* With `accumulate` there is something to add to, and an untouched gradient stays. */
CK_TEST(accumulate) {
  struct ck_probe *s = ck_probe_open(NULL, adds_one);
  CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT, .accumulate = true);
  ck_probe_pass(s, &options);
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, s->replica, "a"));
  ck_set(&info.gradient, (const double[]){8, 9});
  ck_ok(ek_replica_find(&info, s->replica, "b"));
  ck_set(&info.gradient, (const double[]){10, 11});
  run(s);
  expect_gradient(s, "a", 8, 9);
  expect_gradient(s, "b", 10, 11);
}

/* ---- numbers, buffers, children that there are not ---- */

static ek_status wrong_numbers(ek_pass *pass, const ek_tensor *dy) {
  ek_tensor t = {0}, out = {0};
  ck_invalid(ek_pass_parameter(&t, pass, 3), "no parameter number 3");
  ck_invalid(ek_pass_gradient(&t, NULL, pass, 3), "no parameter number 3");
  ck_invalid(ek_pass_gradient_complete(pass, SIZE_MAX), "no parameter");
  ck_invalid(ek_pass_gradient(&t, NULL, pass, 2), "c is a buffer");
  ck_invalid(ek_pass_child_backward(&out, pass, 0, dy), "no child");
  ck_invalid(ek_pass_child_forward(&out, pass, 0, dy), "no child");
  ck_invalid(ek_pass_gradient(NULL, NULL, pass, 0), "");
  ck_invalid(ek_pass_parameter(NULL, pass, 0), "");
  ck_invalid(ek_pass_take(NULL, pass), "");
  ck_invalid(ek_pass_save(pass, NULL), "");
  ck_invalid(ek_pass_save(pass, &t), "");
  ck_invalid(ek_pass_output(NULL, pass, EK_F32, 0, NULL), "");
  ck_invalid(ek_pass_output(&t, pass, EK_F32, 2, NULL), "");
  ck_invalid(ek_pass_output(&t, pass, EK_F32, -1, NULL), "");
  const int64_t huge[] = {INT64_MAX, INT64_MAX};
  ck_fails(ek_pass_output(&t, pass, EK_F32, 2, huge), EK_ERR_OVERFLOW, "");
  ck_fails(ek_pass_workspace(&t, pass, EK_F32, 2, huge), EK_ERR_OVERFLOW, "");
  ck_invalid(ek_pass_workspace(NULL, pass, EK_F32, 0, NULL), "");
  ck_assert(!ek_tensor_exists(&t) && !ek_tensor_exists(&out));
  return EK_OK;
}

CK_TEST(numbers) { run(ck_probe_open(NULL, wrong_numbers)); }

static ek_status look_around(ek_pass *pass, const ek_tensor *x) {
  ek_tensor t = {0};
  EK_TRY(ek_pass_parameter(&t, pass, 2));
  ck_holds(&t, 7, 7);
  ck_assert_ptr_eq(ek_pass_device(pass), x->device);
  ck_assert_ptr_eq(ek_pass_stream(pass), ek_device_stream(x->device, EK_STREAM_COMPUTE));
  ck_assert_int_eq(ek_pass_type(pass), EK_F32);
  ck_assert(ek_pass_wants_gradient(pass) && !ek_pass_is_training(pass));
  ck_assert_int_eq(ek_pass_first_sample(pass), 40);
  ck_assert_uint_eq(ek_pass_random(pass).seed, 12);
  ck_assert_uint_eq(ek_pass_random(pass).step, 34);
  EK_TRY(ek_pass_workspace(&t, pass, EK_F64, CK_SHAPE(100)));
  ek_memory_usage usage;
  EK_TRY(ck_memory_stats(&usage, x->device));
  ck_assert_uint_ge(usage.current[EK_MEMORY_WORKSPACE], 800);
  ek_tensor_free(&t);
  return EK_OK;
}

CK_TEST(surroundings) {
  struct ck_probe *s = ck_probe_open(look_around, NULL);
  CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT, .seed = 12, .step = 34,
          .first_sample = 40, .training = false);
  ck_probe_pass(s, &options);
  run(s);
}

/* ---- errors of a module ---- */

static ek_status fails(ek_pass *pass, const ek_tensor *x) {
  (void)pass, (void)x;
  return ek_error_set(EK_ERR_UNSUPPORTED, "probe: no %s on a %s", "smoking", "Tuesday");
}

/* The module's own status and words arrive, and its output does not: what was there stays. */
CK_TEST(error_in_forward) {
  struct ck_probe *s = ck_probe_open(fails, NULL);
  ek_tensor kept = s->x;
  ck_fails(ek_pass_run_forward(&kept, s->pass, &s->x), EK_ERR_UNSUPPORTED,
           "probe: no smoking on a Tuesday");
  ck_assert_mem_eq(&kept, &s->x, sizeof kept);
  ck_assert_int_eq(ek_tensor_holders(&s->x), 1);
  ck_fails(ek_pass_run_backward(NULL, s->pass, &s->x), EK_ERR_STATE, "");
}

CK_TEST(error_in_backward) {
  struct ck_probe *s = ck_probe_open(save_three, fails);
  ck_ok(ek_pass_run_forward(&s->y, s->pass, &s->x));
  ek_tensor kept = s->x;
  ck_fails(ek_pass_run_backward(&kept, s->pass, &s->x), EK_ERR_UNSUPPORTED,
           "probe: no smoking on a Tuesday");
  ck_assert_mem_eq(&kept, &s->x, sizeof kept);
}

static ek_status refuse(void *context, ek_pass *pass, size_t index) {
  (void)pass, (void)index;
  ++*(int *)context;
  return ek_error_set(EK_ERR_ABORTED, "the others are gone");
}

CK_TEST(error_in_complete) {
  struct ck_probe *s = ck_probe_open(NULL, NULL);
  int calls = 0;
  CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT, .complete = refuse, .context = &calls);
  ck_probe_pass(s, &options);
  ck_ok(ek_pass_run_forward(&s->y, s->pass, &s->x));
  ck_fails(ek_pass_run_backward(&s->dx, s->pass, &s->x), EK_ERR_ABORTED, "the others are gone");
  ck_assert(!ek_tensor_exists(&s->dx));
  ck_assert_int_eq(calls, 1);
}

CK_TEST(wrong_shape_names_the_module) {
  struct ck_bed *bed = ck_bed_open(&cases[0], EK_F32, "cpu:1");
  ek_tensor outputs[2] = {{0}}, inputs[2] = {bed->input[1], bed->input[1]};
  CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, bed->replica, NULL));
  ck_fails(ek_pass_run_forward(outputs, pass, inputs), EK_ERR_SHAPE,
           "mixer, forward: expected [B, 3]");
}

CK_TEST(bad_input) {
  struct ck_probe *s = ck_probe_open(NULL, NULL);
  ek_pass *pass = NULL;
  ek_tensor none = {0};
  ek_pass_options options = EK_PASS_OPTIONS_INIT;
  ck_invalid(ek_pass_open(NULL, s->replica, NULL), "");
  ck_invalid(ek_pass_open(&pass, NULL, NULL), "");
  ck_bad(options, size, 1, ek_pass_open(&pass, s->replica, &options), "");
  ck_bad(options, first_sample, -1, ek_pass_open(&pass, s->replica, &options),
         "first_sample is -1");
  ck_bad(options, samples, -2, ek_pass_open(&pass, s->replica, &options), "samples -2");
  ck_assert_ptr_null(pass);

  float data[2] = {0, 0};
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, data, EK_F32, CK_SHAPE(1, 2)));
  ck_invalid(ek_pass_run_forward(&s->y, NULL, &s->x), "");
  ck_invalid(ek_pass_run_forward(&s->y, s->pass, NULL), "");
  ck_invalid(ek_pass_run_forward(NULL, s->pass, &s->x), "");
  ck_invalid(ek_pass_run_forward(&s->y, s->pass, &none), "");
  ck_fails(ek_pass_run_forward(&s->y, s->pass, &host), EK_ERR_DEVICE, "");
  ck_ok(ek_pass_run_forward(&s->y, s->pass, &s->x)); /* the pass is as good as new */
  ck_invalid(ek_pass_run_backward(NULL, NULL, &s->x), "");
  ck_invalid(ek_pass_run_backward(NULL, s->pass, NULL), "");
  ck_invalid(ek_pass_run_backward(NULL, s->pass, &none), "");
  ck_fails(ek_pass_run_backward(NULL, s->pass, &host), EK_ERR_DEVICE, "");
  ek_tensor turned = ck_upload(s->device, EK_F32, NULL, CK_SHAPE(2, 1));
  ek_tensor wide = ck_upload(s->device, EK_F64, NULL, CK_SHAPE(1, 2));
  ck_fails(ek_pass_run_backward(NULL, s->pass, &turned), EK_ERR_SHAPE,
           "backward of probe: the gradient of output number 0 is [2 x 1], expected [1 x 2]");
  ck_fails(ek_pass_run_backward(NULL, s->pass, &wide), EK_ERR_TYPE, "is f64, expected f32");
  ek_tensor_free(&turned);
  ek_tensor_free(&wide);
  ck_ok(ek_pass_run_backward(NULL, s->pass, &s->x));
}

CK_TEST(null_pass) {
  ek_tensor t = {0};
  ck_invalid(ek_pass_parameter(&t, NULL, 0), "");
  ck_invalid(ek_pass_gradient(&t, NULL, NULL, 0), "");
  ck_invalid(ek_pass_gradient_complete(NULL, 0), "");
  ck_invalid(ek_pass_output(&t, NULL, EK_F32, 0, NULL), "");
  ck_invalid(ek_pass_workspace(&t, NULL, EK_F32, 0, NULL), "");
  ck_invalid(ek_pass_save(NULL, &t), "");
  ck_invalid(ek_pass_take(&t, NULL), "");
  ck_invalid(ek_pass_child_forward(&t, NULL, 0, &t), "");
  ck_invalid(ek_pass_child_forward_with(&t, NULL, 0, &t, NULL), "");
  ck_invalid(ek_pass_child_backward(&t, NULL, 0, &t), "");
  ck_invalid(ek_pass_child_enter(NULL, 0), "");
  ck_invalid(ek_pass_child_leave(NULL), "");
  ck_invalid(ek_pass_all_reduce(NULL, &t), "");
  ck_assert(!ek_pass_is_collective(NULL));
  ck_assert_ptr_null(ek_pass_device(NULL));
  ck_assert_ptr_null(ek_pass_stream(NULL));
  ck_assert(!ek_pass_wants_gradient(NULL) && !ek_pass_is_training(NULL) &&
            !ek_pass_is_recomputing(NULL));
  ck_assert_int_eq(ek_pass_first_sample(NULL), 0);
  ck_assert_uint_eq(ek_pass_random(NULL).seed, 0);
  ek_pass_free(NULL);
}

CK_TEST(no_gradients_in_the_replica) {
  ek_pass *pass = NULL;
  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .gradients = false);
  CK_WITH(ek_pass_options, forward_only, EK_PASS_OPTIONS_INIT, .gradient = false);
  CK_OPENED(ek_module *, module, ek_linear_create(&module, 2, 2, true));
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, ck_device("cpu:1"), module, &options));
  ck_fails(ek_pass_open(&pass, replica, NULL), EK_ERR_STATE, "gradients");
  ck_kept(ek_pass_open(&pass, replica, &forward_only), pass);
}

CK_SUITE("pass")
