/*
 * check_frames.c - modules that run their child otherwise than they run themselves: without saving,
 * again in backward, in another type.
 *
 * A model that recomputes trains like the same model that does not, bit for bit: the same
 * operations run on the same numbers, and random masks are functions of names and samples.
 */
#include <stdlib.h>

#include <evenkeel/attention.h>
#include <evenkeel/dropout.h>
#include <evenkeel/activation.h>
#include <evenkeel/linear.h>
#include <evenkeel/mlp.h>
#include <evenkeel/sequential.h>

#include "ck_module.h"
#include "ck_rerun.h"
#include "ck_training.h"

enum { IN = 7, WIDTH = 16, CLASSES = 5 }; /* those of the workload "mlp" */

/* ---- modules ---- */

/* Wraps `module`, a reference that it takes over, `depth` times. */
static ek_status rerun(ek_module **module, int depth) {
  for (int i = 0; i < depth; i++) {
    ek_module *inner = *module;
    const ek_status status = ck_rerun_create(module, inner);
    if (status != EK_OK) *module = inner;
    if (status != EK_OK) return status;
    ek_module_free(inner);
  }
  return EK_OK;
}

static ek_status chain(ek_module **module, ek_module **parts, size_t count) {
  const ek_status status = ek_sequential_create(module, parts, count);
  for (size_t i = 0; i < count; i++) ek_module_free(parts[i]);
  return status;
}

/* linear, GELU, dropout, a counter, linear: `inner` times recomputed; and `outer` times as a whole.
 */
static ek_status model(ek_module **module, int inner, int outer) {
  ek_module *p[6] = {NULL}, *middle = NULL;
  ck_ok(ek_linear_create(&p[0], WIDTH, WIDTH, true));
  ck_ok(ek_activation_create(&p[1], EK_ACTIVATION_GELU));
  ck_ok(ek_dropout_create(&p[2], 0.25));
  ck_ok(ck_counter_create(&p[3]));
  ck_ok(ek_linear_create(&p[4], WIDTH, WIDTH, true));
  ck_ok(ek_dropout_create(&p[5], 0.5));
  ck_ok(chain(&middle, p, 6));
  ck_ok(rerun(&middle, inner));
  ek_module *q[3] = {NULL, middle, NULL};
  ck_ok(ek_linear_create(&q[0], IN, WIDTH, true));
  ck_ok(ek_linear_create(&q[2], WIDTH, CLASSES, true));
  ck_ok(chain(module, q, 3));
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
  ek_module *gelu = NULL;
  ck_ok(ek_activation_create(&gelu, EK_ACTIVATION_GELU));
  return widen(module, gelu);
}

static const struct ck_module_case cases[] = {
    {.name = "mlp, recomputed",
     .create = rerun_mlp,
     .inputs = 1,
     .input = {{0, 2, {4, 3}, -1, 1, 0}},
     .longest = 6,
     .depth = 4},
    {.name = "attention, recomputed twice",
     .create = rerun_attention,
     .inputs = 1,
     .input = {{0, 3, {2, 3, 4}, -1, 1, 0}},
     .longest = 12,
     .depth = 8},
    {.name = "GELU in f64",
     .create = wide_gelu,
     .inputs = 1,
     .input = {{0, 2, {4, 3}, -2, 2, 0}},
     .longest = 1,
     .depth = 8,
     .saved = 1},
};

/* ---- training ---- */

/* Parameters after three steps of two micro-batches, of 7 samples and of 2, over `spec`. */
static double *trained(struct ck_training *training, ek_status (*create)(ek_module **module),
                       const char *spec, int placement, int64_t *count) {
  struct ck_workload workload = *ck_workload("mlp");
  workload.module = create;
  struct ck_setup setup = ck_setup_mode(&workload, spec, EK_MODE_REPLICATED);
  ck_setup_place(&setup, placement);
  ck_training_open(training, &setup);
  for (uint64_t step = 0; step < 3; step++) {
    struct ck_batch first = ck_batch_make(&workload, EK_F32, 7, 0.1, 2 * step);
    struct ck_batch second = ck_batch_make(&workload, EK_F32, 2, 0.1, 2 * step + 1);
    ck_ok(ck_training_backward(training, &first, NULL, true, NULL));
    ck_ok(ck_training_step(training, &second, NULL));
    ck_batch_free(&first);
    ck_batch_free(&second);
  }
  training->setup.workload = ck_workload("mlp");
  return ck_training_read(training, CK_VALUES, count);
}

/* How often the counter ran in the three ways on device 0, which has rows of each micro-batch. */
static void check_counts(const struct ck_training *training, const double *expected) {
  float got[3];
  ek_tensor host;
  ck_ok(ek_tensor_host(&host, got, EK_F32, 1, (const int64_t[]){3}));
  ck_ok(ek_state_read(&host, training->model, "1.3.count"));
  for (int i = 0; i < 3; i++) ck_assert_msg(got[i] == expected[i], "count %d: %g", i, got[i]);
}

static const struct {
  const char *spec;
  int placement;
} places[] = {{"cpu:1", 2}, {"cpu:3", 0}, {"cpu:3", 1}, {"cpu:3", 2}, {"cpu:3", 3}, {"cpu:2", 5}};

START_TEST(recomputation_changes_no_bit) {
  static const struct {
    ek_status (*create)(ek_module **module);
    double counts[3];
  } reruns[] = {{once, {0, 6, 6}}, {twice, {0, 6, 12}}, {nested, {0, 6, 12}}};
  struct ck_training training;
  int64_t count = 0, again = 0;
  double *want = trained(&training, plain, places[_i].spec, places[_i].placement, &count);
  check_counts(&training, (const double[]){6, 0, 0});
  ck_training_close(&training);
  for (size_t i = 0; i < sizeof reruns / sizeof *reruns; i++) {
    double *got =
        trained(&training, reruns[i].create, places[_i].spec, places[_i].placement, &again);
    check_counts(&training, reruns[i].counts);
    ck_training_close(&training);
    ck_assert_int_eq(again, count);
    ck_same_bits("parameters with recomputation", got, want, count);
    free(got);
  }
  free(want);
}
END_TEST

/* ---- misuse ---- */

/* Forward and backward of a module on 4 rows of 3, which it takes over; the first failure. */
static ek_status run_alone(ek_module *module) {
  ek_group *group = ck_open("cpu:1", 1);
  ek_device *device = ek_group_device(group, 0);
  ek_replica *replica = NULL;
  ek_pass *pass = NULL;
  ek_tensor x = ck_upload(device, EK_F32, (const double[12]){1, 2, 3}, CK_SHAPE(4, 3)), y = {0};
  ck_ok(ek_replica_open(&replica, device, module, NULL));
  ck_ok(ek_pass_open(&pass, replica, NULL));
  ek_status status = ek_pass_run_forward(&y, pass, &x);
  if (status == EK_OK) status = ek_pass_run_backward(NULL, pass, &y);
  ek_tensor_free(&x);
  ek_tensor_free(&y);
  ek_pass_free(pass);
  ek_replica_free(replica);
  ek_module_free(module);
  ck_no_memory_held(group);
  ek_group_free(group);
  return status;
}

START_TEST(misuse) {
  static const struct {
    enum ck_rerun_flaw flaw;
    ek_status status;
    const char *text;
  } wrong[] = {
      {CK_RERUN_NOT, EK_ERR_STATE,
       "backward of sequential: its forward ran without saving, and has not run again"},
      {CK_RERUN_NO_BACKWARD, EK_ERR_STATE, "rerun, backward: it left saved tensors behind"},
      {CK_RERUN_TWICE, EK_ERR_STATE, "rerun, backward: it left saved tensors behind"},
      {CK_RERUN_SHORTER, EK_ERR_SHAPE, "is [4 x 2], expected [3 x 2]"},
      {CK_RERUN_IN_BF16, EK_ERR_UNSUPPORTED, "a child runs in f32 or f64, not in bf16"},
      {CK_RERUN_IN_F64, EK_ERR_UNSUPPORTED, "0.weight is f32, and the module runs in f64"},
  };
  ek_module *mlp = NULL, *module = NULL;
  ck_ok(create_mlp(&mlp));
  ck_ok(ck_rerun_create_wrong(&module, mlp, wrong[_i].flaw));
  ek_module_free(mlp);
  ck_fails(run_alone(module), wrong[_i].status, wrong[_i].text);
}
END_TEST

/* A parameter has one type, and so has a module that computes in one alone. */
START_TEST(type_of_a_child) {
  ek_module *child = NULL, *module = NULL;
  ck_ok(ek_linear_create(&child, 3, 3, true));
  ck_ok(widen(&module, child));
  ck_fails(run_alone(module), EK_ERR_UNSUPPORTED, "weight is f32, and the module runs in f64");
  ck_ok(ek_activation_create(&child, EK_ACTIVATION_GELU));
  ek_module_ops single = *child->ops;
  single.types = EK_TYPES_F32;
  child->ops = &single;
  ck_ok(widen(&module, child));
  ck_fails(run_alone(module), EK_ERR_UNSUPPORTED, "gelu");
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("frames");
  ck_module_tests(suite, cases, (int)(sizeof cases / sizeof *cases));
  TCase *tcase = ck_case(suite, "training");
  tcase_add_loop_test(tcase, recomputation_changes_no_bit, 0,
                      (int)(sizeof places / sizeof *places));
  tcase = ck_case(suite, "misuse");
  tcase_add_loop_test(tcase, misuse, 0, 6);
  tcase_add_test(tcase, type_of_a_child);
  return suite;
}

CK_MAIN(make_suite)
