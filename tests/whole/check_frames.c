/*
 * check_frames.c - modules that run their child otherwise than they run themselves: without saving,
 * again in backward, in another type.
 *
 * A model that recomputes trains like the same model that does not, bit for bit: the same
 * operations run on the same numbers, and random masks are functions of names and samples. In a
 * model of 16 bits a module that knows f32 alone runs between casts, and its children as they know.
 */
#include "ck_module.h"
#include "ck_parent.h"
#include "ck_probe.h"
#include "ck_rerun.h"
#include "ck_training.h"

enum { IN = 7, WIDTH = 16, CLASSES = 5 }; /* those of the workload "mlp" */

static const ek_type halves[] = {EK_BF16, EK_F16};

/* ---- modules ---- */

/* Wraps `module`, a reference that it takes over, `depth` times. */
static ek_status rerun(ek_module **module, int depth) {
  for (int i = 0; i < depth; i++) {
    EK_TRY(ck_around(module, *module, ck_rerun_create));
  }
  return EK_OK;
}

/* linear, GELU, dropout, a counter, linear: `inner` times recomputed; and `outer` times as a whole.
 */
static ek_status model(ek_module **module, int inner, int outer) {
  ek_module *p[6] = {[0] = ck_linear(WIDTH, WIDTH, true), [4] = ck_linear(WIDTH, WIDTH, true)};
  ek_module *middle = NULL;
  ck_ok(ek_activation_create(&p[1], EK_ACTIVATION_GELU));
  ck_ok(ek_dropout_create(&p[2], 0.25));
  ck_ok(ck_counter_create(&p[3]));
  ck_ok(ek_dropout_create(&p[5], 0.5));
  ck_ok(ck_sequential(&middle, p, 6, NULL));
  ck_ok(rerun(&middle, inner));
  ek_module *q[] = {ck_linear(IN, WIDTH, true), middle, ck_linear(WIDTH, CLASSES, true)};
  ck_ok(ck_sequential(module, q, 3, NULL));
  return rerun(module, outer);
}

static ek_status plain(ek_module **module) { return model(module, 0, 0); }
static ek_status once(ek_module **module) { return model(module, 1, 0); }
static ek_status twice(ek_module **module) { return model(module, 2, 0); }
static ek_status nested(ek_module **module) { return model(module, 1, 1); }

static ek_status create_mlp(ek_module **module) {
  static const int64_t sizes[] = {3, 6, 2};
  ck_ok(ek_mlp_create(module, sizes, 3, EK_ACTIVATION_GELU));
  return EK_OK;
}

static ek_status rerun_mlp(ek_module **module) {
  ck_ok(create_mlp(module));
  return rerun(module, 1);
}

static ek_status rerun_attention(ek_module **module) {
  ck_ok(ek_attention_create(module, 4, 2));
  return rerun(module, 2);
}

static ek_status widen(ek_module **module, ek_module *child) {
  const ek_status status = ck_widen_create(module, child);
  ek_module_free(child);
  return status;
}

static ek_status wide_gelu(ek_module **module) {
  CK_GOT(ek_module *, gelu, ek_activation_create(&gelu, EK_ACTIVATION_GELU));
  return widen(module, gelu);
}

static const struct ck_module_case cases[] = {
    CK_CASE("mlp, recomputed", rerun_mlp, 6, 4, 0, {0, 2, {4, 3}, -1, 1}),
    CK_CASE("attention, recomputed twice", rerun_attention, 12, 8, 0, {0, 3, {2, 3, 4}, -1, 1}),
    CK_CASE("GELU in f64", wide_gelu, 1, 8, 1, {0, 2, {4, 3}, -2, 2})};
CK_MODULE_CASES(cases)

/* ---- training ---- */

static const struct {
  const char *spec;
  int placement;
} places[] = {{"cpu:1", 2}, {"cpu:3", 0}, {"cpu:3", 1}, {"cpu:3", 2}, {"cpu:3", 3}, {"cpu:2", 5}};
enum { PLACES = sizeof places / sizeof *places };

/* Parameters after three steps of two micro-batches, of 7 samples and of 2. */
static double *trained(struct ck_training *training, ek_status (*create)(ek_module **module),
                       int place, ek_precision precision) {
  static const ek_loss_scale no_loss_scale = {.kind = EK_LOSS_SCALE_NONE};
  CK_WITH(struct ck_workload, workload, *ck_workload("mlp"), .module = create);
  struct ck_setup setup = ck_setup_at(&workload, places[place].spec, places[place].placement);
  ck_assign(setup, .options.precision = precision, .loss_scale = &no_loss_scale);
  ck_training_open(training, &setup);
  for (uint64_t step = 0; step < 3; step++) {
    struct ck_batch first = ck_batch_make(&workload, EK_F32, 7, 0.1, 2 * step);
    struct ck_batch second = ck_batch_make(&workload, EK_F32, 2, 0.1, 2 * step + 1);
    ck_ok(ck_training_backward(training, &first, NULL, true, NULL));
    ck_ok(ck_training_step(training, &second, NULL));
  }
  training->setup.workload = ck_workload("mlp");
  return ck_training_read(training, CK_VALUES);
}

/* How often the counter ran in the three ways on device 0, which has rows of each micro-batch. */
static void check_counts(const struct ck_training *training, const double *expected) {
  float got[3];
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, got, EK_F32, 1, (const int64_t[]){3}));
  ck_ok(ek_state_read(&host, training->model, "1.3.count"));
  for (int i = 0; i < 3; i++) ck_assert_msg(got[i] == expected[i], "count %d: %g", i, got[i]);
}

CK_LOOP(recomputation_changes_no_bit, PLACES) {
  static const struct {
    ek_status (*create)(ek_module **module);
    double counts[3];
  } reruns[] = {{once, {0, 6, 6}}, {twice, {0, 6, 12}}, {nested, {0, 6, 12}}};
  struct ck_training training;
  double *want = trained(&training, plain, _i, EK_PRECISION_F32);
  check_counts(&training, (const double[]){6, 0, 0});
  ck_training_close(&training);
  for (size_t i = 0; i < sizeof reruns / sizeof *reruns; i++) {
    double *got = trained(&training, reruns[i].create, _i, EK_PRECISION_F32);
    check_counts(&training, reruns[i].counts);
    ck_training_close(&training);
    ck_arrays_same("parameters with recomputation", got, want);
  }
}

/* ---- a module that knows f32 alone ---- */

static const double odd[] = {257, 0.1}; /* not numbers of bf16 */

/* What a device holds of activations and of copies; a small tensor is one unit of its arena. */
struct held {
  uint64_t activations, copies;
};
enum { UNIT = 256 };
static struct held at_rest; /* of see_forward's device, before the pass */

static struct held held_on(const ek_device *device) {
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, device));
  return (struct held){usage.current[EK_MEMORY_ACTIVATIONS], usage.current[EK_MEMORY_COPIES]};
}

static void holds_rounded(const ek_tensor *tensor) {
  double values[2];
  ck_assert_int_eq(tensor->type, EK_F32);
  ck_get(values, tensor);
  for (int i = 0; i < 2; i++) ck_assert_double_eq(values[i], ck_round_to(EK_BF16, odd[i]));
}

static ek_status see_forward(ek_pass *pass, const ek_tensor *x) {
  ek_tensor a, again, c;
  ck_assert_int_eq(ek_pass_type(pass), EK_F32);
  holds_rounded(x);
  EK_TRY(ek_pass_parameter(&a, pass, 0));
  EK_TRY(ek_pass_parameter(&again, pass, 0));
  EK_TRY(ek_pass_parameter(&c, pass, 2));
  holds_rounded(&a);
  ck_assert_ptr_eq(a.data, again.data);
  ck_assert_int_eq(c.type, EK_F32);
  const struct held held = held_on(ek_pass_device(pass)); /* x in bf16 and in f32, and a in f32 */
  ck_assert_uint_eq(held.activations, at_rest.activations + 2 * UNIT);
  ck_assert_uint_eq(held.copies, at_rest.copies + UNIT);
  return ek_pass_save(pass, &a); /* it lives on */
}

static ek_status see_backward(ek_pass *pass, const ek_tensor *dy) {
  CK_FREED(tensor) a = {0};
  ek_tensor gradient;
  ck_assert_int_eq(ek_pass_type(pass), EK_F32);
  holds_rounded(dy);
  EK_TRY(ek_pass_take(&a, pass));
  holds_rounded(&a);
  EK_TRY(ek_pass_gradient(&gradient, NULL, pass, 0));
  ck_assert_int_eq(gradient.type, EK_F32);
  return ek_op_add(ek_pass_stream(pass), &gradient, &gradient, &a);
}

/* In a sequential of bf16, which is given f32. The ledger has what is converted. */
CK_TEST(a_module_of_f32_runs_between_casts) {
  struct ck_probe *p = ck_probe_open(see_forward, see_backward);
  ek_module *child = &p->probe->base;
  ek_replica *none = NULL;
  ek_parameter_info info;
  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .precision = EK_PRECISION_BF16);
  CK_OPENED(ek_module *, whole, ek_sequential_create(&whole, &child, 1));
  if (ck_has_halves()) {
    CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, p->device, whole, &options));
    ck_assert_int_eq(ek_replica_precision(replica), EK_BF16);
    ck_ok(ek_replica_find(&info, replica, "0.a"));
    ek_tensor x = ck_upload(p->device, EK_F32, odd, CK_SHAPE(1, 2)), flat = x;
    ck_assign(flat, .rank = 1, .shape[0] = 2);
    ck_ok(ek_tensor_copy(&info.value, &flat));
    ck_ok(ek_replica_refresh(replica));
    at_rest = held_on(p->device);
    CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
    CK_OPENED(ek_tensor, y, ek_pass_run_forward(&y, pass, &x));
    ck_assert_int_eq(y.type, EK_BF16);
    CK_OPENED(ek_tensor, dx, ek_pass_run_backward(&dx, pass, &y));
    holds_rounded(&dx); /* of the type of what was given */
    holds_rounded(&info.gradient);
  } else {
    ck_fails(ek_replica_open(&none, p->device, whole, &options), EK_ERR_UNSUPPORTED, "not in bf16");
  }
}

/* ---- a container that knows f32 alone, over children that know more ---- */

/* Runs its first child, and after it the second if there is one, whose input is made again from the
 * container's. */
struct container {
  struct ck_parent parent;
  ek_precision asked; /* ek_child_options.precision for the first */
};

CK_PARAMETERS(container) {
  ek_module *second = ck_child(self, 1);
  EK_TRY(ek_declare_module(declaration, "first", ck_child(self, 0)));
  return second == NULL ? EK_OK : ek_declare_module(declaration, "second", second);
}

/* It sees tensors of the type that it runs in; on a worker nothing is asserted. */
static ek_status sees(ek_pass *pass, const ek_tensor *tensor, ek_type wanted) {
  if (ek_pass_type(pass) == wanted && tensor->type == wanted) return EK_OK;
  return ek_error_set(EK_ERR_INTERNAL, "a container in %s sees %s",
                      ek_type_name(ek_pass_type(pass)), ek_type_name(tensor->type));
}

CK_FORWARD(container) {
  CK_FREED(tensor) middle = {0};
  const ek_type own = ek_module_table(self)->types == 0 ? EK_F32 : ek_pass_type(pass);
  EK_TRY(sees(pass, &inputs[0], own));
  CK_WITH(ek_child_options, options, EK_CHILD_OPTIONS_INIT,
          .precision = ((const struct container *)self)->asked);
  if (ck_child(self, 1) == NULL) {
    EK_TRY(ek_pass_child_forward_with(outputs, pass, 0, inputs, &options));
    return sees(pass, outputs, own);
  }
  EK_TRY(ek_pass_child_forward_with(&middle, pass, 0, inputs, &options));
  ck_assign(options, .made_from = inputs, .precision = EK_PRECISION_DEFAULT);
  return ek_pass_child_forward_with(outputs, pass, 1, &middle, &options);
}

#define CONTAINER_OPS CK_OPS("container", container_forward, ck_parent_backward, ck_parent_free)
static const ek_module_ops container_ops = {CONTAINER_OPS, .parameters = container_parameters};
static const ek_module_ops knowing_ops = {
    CONTAINER_OPS, .parameters = container_parameters,
    .types = EK_TYPES_F32 | EK_TYPES_BF16 | EK_TYPES_F16};

/* Takes over the children. */
static ek_module *container_of(const ek_module_ops *ops, ek_module *first, ek_module *second,
                               ek_precision asked) {
  struct container *it = ck_parent_new(sizeof *it, ops, first);
  it->parent.children[1] = second;
  it->asked = asked;
  return &it->parent.base;
}

static ek_status contained_mlp(ek_module **module, const ek_module_ops *ops) {
  ek_module *mlp = NULL;
  EK_TRY(ck_workload("mlp")->module(&mlp));
  *module = container_of(ops, container_of(ops, mlp, NULL, EK_PRECISION_DEFAULT), NULL,
                         EK_PRECISION_DEFAULT);
  return EK_OK;
}
static ek_status mlp_in_f32(ek_module **module) { return contained_mlp(module, &container_ops); }
static ek_status mlp_in_all(ek_module **module) { return contained_mlp(module, &knowing_ops); }

/* Its children compute as in one that knows 16 bits: casts from these and back are exact. */
CK_LOOP(a_container_of_f32_leaves_its_children_alone, ck_if_halves(2 * PLACES)) {
  const int place = _i / 2;
  struct ck_training training;
  double *want = trained(&training, mlp_in_all, place, (ek_precision)halves[_i % 2]);
  ck_training_close(&training);
  double *got = trained(&training, mlp_in_f32, place, (ek_precision)halves[_i % 2]);
  ck_training_close(&training);
  ck_arrays_same("contained", got, want);
}

/* What its caller hands to a child in backward, as often as it likes, is what it gave forward. */
static double kept[2];

static ek_status keep_forward(ek_pass *pass, const ek_tensor *x) {
  ck_assert_int_eq(x->type, EK_F32);
  ck_get(kept, x);
  return ek_pass_save(pass, x);
}

static ek_status keep_backward(ek_pass *pass, const ek_tensor *dy) {
  ek_tensor x = {0};
  double again[2];
  (void)dy;
  EK_TRY(ek_pass_take(&x, pass));
  ck_get(again, &x);
  ck_same_bits("made again", again, kept, 2);
  ek_tensor_free(&x);
  return EK_OK;
}

/* One child of it computes in bf16, and so when it runs again; asked for f32 it does that. */
CK_TEST(a_container_asks_for_f32) {
  static const double third = 1.0 / 3;
  for (int asked = 0; asked < 2; asked++) {
    struct ck_probe *p = ck_probe_open(keep_forward, keep_backward);
    CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .precision = EK_PRECISION_BF16);
    if (ck_has_halves()) {
      CK_GOT(ek_module *, gelu, ek_activation_create(&gelu, EK_ACTIVATION_GELU));
      CK_HELD(ek_module *, module,
              ck_keep(container_of(&container_ops, gelu, ek_module_share(&p->probe->base),
                                   asked ? EK_PRECISION_F32 : EK_PRECISION_DEFAULT)));
      CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, p->device, module, &options));
      CK_HELD(ek_tensor, x,
              ck_upload(p->device, EK_F32, (const double[]){third, 1}, CK_SHAPE(1, 2)));
      CK_SCOPED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
      CK_SCOPED(ek_tensor, y, ek_pass_run_forward(&y, pass, &x));
      CK_SCOPED(ek_tensor, dx, ek_pass_run_backward(&dx, pass, &y));
      const bool rounded = kept[1] == ck_round_to(EK_BF16, kept[1]); /* GELU(1) = 0.8411 */
      ck_assert_int_eq(rounded, asked == 0);
    }
  }
}

/* ---- misuse ---- */

/* Forward and backward of a module on 4 rows of 3, which it takes over; the first failure. */
static ek_status run_alone(ek_module *module) {
  CK_HELD(ek_group *, group, ck_open("cpu:1", 1));
  ek_device *device = ek_group_device(group, 0);
  CK_FREED(module) *owned = module;
  CK_FREED(replica) *replica = NULL;
  CK_FREED(pass) *pass = NULL;
  CK_FREED(tensor) x = ck_upload(device, EK_F32, (const double[12]){1, 2, 3}, CK_SHAPE(4, 3)),
                   y = {0};
  ck_ok(ek_replica_open(&replica, device, owned, NULL));
  ck_ok(ek_pass_open(&pass, replica, NULL));
  EK_TRY(ek_pass_run_forward(&y, pass, &x));
  return ek_pass_run_backward(NULL, pass, &y);
}

CK_LOOP(misuse, 6) {
  static const struct {
    enum ck_rerun_flaw flaw;
    ek_status status;
    const char *text;
  } wrong[] = {
      {CK_RERUN_NOT, EK_ERR_STATE,
       "backward of sequential: its forward ran without saving and was not run again"},
      {CK_RERUN_NO_BACKWARD, EK_ERR_STATE, "rerun, backward: saved tensors (activations) not"},
      {CK_RERUN_TWICE, EK_ERR_STATE, "rerun, backward: saved tensors (activations) not"},
      {CK_RERUN_SHORTER, EK_ERR_SHAPE, "is [4 x 2], expected [3 x 2]"},
      {CK_RERUN_IN_BF16, EK_ERR_UNSUPPORTED, "a child runs in f32 or f64, not in bf16"},
      {CK_RERUN_IN_F64, EK_ERR_TYPE, "input number 0 is f32, but the module runs in f64"}};
  CK_GOT(ek_module *, mlp, create_mlp(&mlp));
  CK_GOT(ek_module *, module, ck_rerun_create_wrong(&module, mlp, wrong[_i].flaw));
  ek_module_free(mlp);
  ck_fails(run_alone(module), wrong[_i].status, wrong[_i].text);
}

/* A parameter has one type, and so has a module that computes in one alone. */
CK_TEST(type_of_a_child) {
  CK_GOT(ek_module *, child, ek_linear_create(&child, 3, 3, true));
  CK_GOT(ek_module *, module, widen(&module, child));
  ck_fails(run_alone(module), EK_ERR_UNSUPPORTED, "weight is f32, but the module runs in f64");
  ck_ok(ek_activation_create(&child, EK_ACTIVATION_GELU));
  CK_WITH(ek_module_ops, single, *ek_module_table(child), .types = EK_TYPES_F32);
  child->private_members.ops = &single;
  ck_ok(widen(&module, child));
  ck_fails(run_alone(module), EK_ERR_UNSUPPORTED, "gelu");
}

CK_SUITE("frames")
