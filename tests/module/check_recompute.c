/*
 * check_recompute.c - a recomputed model trains like the same model that is not, bit for bit, in
 * less memory; and what is refused.
 */
#include <evenkeel/recompute.h>

#include <stdlib.h>

#include <evenkeel/activation.h>
#include <evenkeel/attention.h>
#include <evenkeel/cross_entropy.h>
#include <evenkeel/dropout.h>
#include <evenkeel/embedding.h>
#include <evenkeel/layer_norm.h>
#include <evenkeel/linear.h>
#include <evenkeel/mlp.h>
#include <evenkeel/residual.h>
#include <evenkeel/sequential.h>

#include "ck_mixer.h"
#include "ck_module.h"
#include "ck_training.h"

/* ---- modules ---- */

/* Takes over the reference. */
static ek_status recomputed(ek_module **module, ek_module *inner) {
  const ek_status status = ek_recompute_create(module, inner);
  ek_module_free(inner);
  return status;
}

static ek_status create_mlp(ek_module **module) {
  static const int64_t sizes[] = {3, 6, 2};
  ek_module *mlp = NULL;
  EK_TRY(ek_mlp_create(&mlp, sizes, 3, EK_ACTIVATION_GELU));
  return recomputed(module, mlp);
}

static ek_status create_twice(ek_module **module) {
  ek_module *attention = NULL, *once = NULL;
  EK_TRY(ek_attention_create(&attention, 4, 2));
  EK_TRY(recomputed(&once, attention));
  return recomputed(module, once);
}

static ek_status create_mixer(ek_module **module) {
  ek_module *mixer = NULL;
  EK_TRY(ck_mixer_twice_create(&mixer));
  return recomputed(module, mixer);
}

static ek_status create_embedding(ek_module **module) {
  ek_module *embedding = NULL;
  EK_TRY(ek_embedding_create(&embedding, 7, 3, 4));
  return recomputed(module, embedding);
}

static const struct ck_module_case cases[] = {
    {.name = "mlp",
     .create = create_mlp,
     .inputs = 1,
     .input = {{0, 2, {4, 3}, -1, 1, 0}},
     .longest = 6,
     .depth = 4},
    {.name = "attention, twice",
     .create = create_twice,
     .inputs = 1,
     .input = {{0, 3, {2, 3, 4}, -1, 1, 0}},
     .longest = 12,
     .depth = 8},
    {.name = "two inputs, three outputs",
     .create = create_mixer,
     .inputs = 2,
     .input = {{0, 2, {5, CK_MIXER_WIDTH}, -1, 1, 0}, {EK_I32, 1, {5}, 0, CK_MIXER_KINDS - 1, 0}},
     .longest = 5,
     .depth = 3},
    {.name = "integers",
     .create = create_embedding,
     .inputs = 1,
     .input = {{EK_I32, 2, {2, 4}, 0, 6, 0}},
     .longest = 8,
     .depth = 1},
};

/* ---- training ---- */

/* Parameters after three steps of two micro-batches, of 7 samples and of 2. */
static double *trained(const struct ck_workload *workload, ek_status (*create)(ek_module **module),
                       const char *spec, int placement, int64_t *count) {
  struct ck_workload other = *workload;
  struct ck_training training;
  if (create != NULL) other.module = create;
  struct ck_setup setup = ck_setup_mode(&other, spec, EK_MODE_REPLICATED);
  ck_setup_place(&setup, placement);
  ck_training_open(&training, &setup);
  for (uint64_t step = 0; step < 3; step++) {
    struct ck_batch first = ck_batch_make(&other, EK_F32, 7, 0.1, 2 * step);
    struct ck_batch second = ck_batch_make(&other, EK_F32, 2, 0.1, 2 * step + 1);
    ck_ok(ck_training_backward(&training, &first, NULL, true, NULL));
    ck_ok(ck_training_step(&training, &second, NULL));
    ck_batch_free(&first);
    ck_batch_free(&second);
  }
  double *values = ck_training_read(&training, CK_VALUES, count);
  ck_training_close(&training);
  return values;
}

static void trains_alike(const struct ck_workload *workload, ek_status (*want)(ek_module **),
                         ek_status (*got)(ek_module **), const char *spec, int placement) {
  int64_t count = 0, again = 0;
  double *a = trained(workload, want, spec, placement, &count);
  double *b = trained(workload, got, spec, placement, &again);
  ck_assert_int_eq(again, count);
  ck_same_bits("parameters with recomputation", b, a, count);
  free(a);
  free(b);
}

static const struct ck_workload *of_model;
static ek_status recomputed_workload(ek_module **module) {
  ek_module *inner = NULL;
  EK_TRY(of_model->module(&inner));
  return recomputed(module, inner);
}

/* A GPT with tied parameters and dropout, several inputs and outputs, buffers: in each mode. */
START_TEST(whole_models) {
  of_model = &ck_workloads[_i / CK_PLACEMENTS];
  trains_alike(of_model, NULL, recomputed_workload, "cpu:3", _i % CK_PLACEMENTS);
}
END_TEST

/* ---- random trees ---- */

enum { IN = 7, WIDTH = 16, CLASSES = 5 }; /* those of the workload "mlp" */

/* Draws the same tree whether it wraps or not. */
struct tree {
  struct ck_random random;
  bool wrap;
};

static ek_module *draw(struct tree *tree, int depth);

static ek_module *draw_sequential(struct tree *tree, int depth) {
  const int64_t count = ck_random_integer(&tree->random, 1, 5);
  ek_module *parts[5] = {NULL}, *module = NULL;
  for (int64_t i = 0; i < count; i++) parts[i] = draw(tree, depth + 1);
  ck_ok(ek_sequential_create(&module, parts, (size_t)count));
  for (int64_t i = 0; i < count; i++) ek_module_free(parts[i]);
  return module;
}

static ek_module *draw_residual(struct tree *tree, int depth) {
  ek_module *inner = draw(tree, depth + 1), *module = NULL;
  ck_ok(ek_residual_create(&module, inner));
  ek_module_free(inner);
  return module;
}

static ek_module *draw_leaf(struct tree *tree) {
  ek_module *module = NULL;
  switch (ck_random_integer(&tree->random, 0, 5)) {
  case 0:
  case 1: ck_ok(ek_linear_create(&module, WIDTH, WIDTH, true)); break;
  case 2: ck_ok(ek_activation_create(&module, EK_ACTIVATION_GELU)); break;
  case 3: ck_ok(ek_activation_create(&module, EK_ACTIVATION_RELU)); break;
  case 4: ck_ok(ek_dropout_create(&module, 0.25)); break;
  default: ck_ok(ek_layer_norm_create(&module, WIDTH, 1e-5)); break;
  }
  return module;
}

static ek_module *draw(struct tree *tree, int depth) {
  const int64_t kind = depth > 3 ? 9 : ck_random_integer(&tree->random, 0, 9);
  const bool wrap = ck_random_integer(&tree->random, 0, 2) == 0 && tree->wrap;
  ek_module *inner = kind < 3   ? draw_sequential(tree, depth)
                     : kind < 5 ? draw_residual(tree, depth)
                                : draw_leaf(tree);
  if (!wrap) return inner;
  ek_module *module = NULL;
  ck_ok(recomputed(&module, inner));
  return module;
}

static struct tree of_tree;
static ek_status random_tree(ek_module **module, bool wrap) {
  struct tree tree = of_tree;
  ek_module *parts[3] = {NULL};
  tree.wrap = wrap;
  ck_ok(ek_linear_create(&parts[0], IN, WIDTH, true));
  parts[1] = draw_sequential(&tree, 0);
  ck_ok(ek_linear_create(&parts[2], WIDTH, CLASSES, true));
  const ek_status status = ek_sequential_create(module, parts, 3);
  for (int i = 0; i < 3; i++) ek_module_free(parts[i]);
  return status;
}
static ek_status plain_tree(ek_module **module) { return random_tree(module, false); }
static ek_status wrapped_tree(ek_module **module) { return random_tree(module, true); }

START_TEST(random_trees) {
  of_tree.random = ck_random_start((uint64_t)_i);
  trains_alike(ck_workload("mlp"), plain_tree, wrapped_tree, _i % 2 == 0 ? "cpu:2" : "cpu:3",
               _i % CK_PLACEMENTS);
}
END_TEST

/* ---- memory ---- */

enum { DEEP = 6, ROWS = 64 };

/* What a recomputed module of 4 x DEEP layers keeps is its input. */
START_TEST(keeps_its_inputs) {
  ek_module *parts[DEEP] = {NULL}, *inner = NULL, *module = NULL;
  ek_group *group = ck_open("cpu:1", 1);
  ek_device *device = ek_group_device(group, 0);
  ek_replica *replica = NULL;
  ek_pass *pass = NULL;
  ek_tensor x = {0}, y = {0};
  ek_memory_usage usage;
  for (int i = 0; i < DEEP; i++) ck_ok(ek_activation_create(&parts[i], EK_ACTIVATION_RELU));
  ck_ok(ek_sequential_create(&inner, parts, DEEP));
  for (int i = 0; i < DEEP; i++) ek_module_free(parts[i]);
  ck_ok(recomputed(&module, inner));
  ck_ok(ek_replica_open(&replica, device, module, NULL));
  ck_ok(ek_tensor_create(&x, device, EK_MEMORY_INPUTS, EK_F32, 2, (const int64_t[]){ROWS, 64}));
  ck_set(&x, (const double[ROWS * 64]){0});
  ck_ok(ck_memory_stats(&usage, device));
  const uint64_t before = usage.current_bytes, unit = sizeof(float) * ROWS * 64;
  ck_ok(ek_pass_open(&pass, replica, NULL));
  ck_ok(ek_pass_run_forward(&y, pass, &x));
  ck_ok(ck_memory_stats(&usage, device));
  ck_assert_uint_eq(usage.current_bytes, before + unit); /* y */
  ck_ok(ek_memory_reset_peak(device));
  ck_ok(ek_pass_run_backward(NULL, pass, &y));
  ck_ok(ck_memory_stats(&usage, device));
  /* y, the results of all layers, and one gradient more. */
  ck_assert_uint_eq(usage.peak_bytes, before + (1 + DEEP + 1) * unit);
  ek_pass_free(pass);
  ek_tensor_free(&x);
  ek_tensor_free(&y);
  ek_replica_free(replica);
  ek_module_free(module);
  ck_no_memory_held(group);
  ek_group_free(group);
}
END_TEST

/* ---- misuse ---- */

/* y = x; fails when it runs again. */
static ek_status fragile_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                 ek_tensor *outputs) {
  (void)self;
  if (ek_pass_is_recomputing(pass)) return ek_error_set(EK_ERR_UNSUPPORTED, "once is enough");
  return ek_tensor_share(&outputs[0], &inputs[0]);
}
static ek_status fragile_backward(const ek_module *self, ek_pass *pass,
                                  const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  (void)self, (void)pass;
  return grad_inputs == NULL ? EK_OK : ek_tensor_share(&grad_inputs[0], &grad_outputs[0]);
}
static void fragile_free(ek_module *self) { self->ops = NULL; }
static const ek_module_ops fragile_ops = {.size = sizeof(ek_module_ops),
                                          .kind = "fragile",
                                          .forward = fragile_forward,
                                          .backward = fragile_backward,
                                          .free = fragile_free};

static ek_module fragile;
static ek_status create_fragile(ek_module **module) {
  ek_module *parts[3] = {NULL}, *inner = NULL;
  ck_ok(ek_module_init(&fragile, &fragile_ops, 1, 1));
  ek_module *const first[] = {&fragile};
  ck_ok(ek_sequential_create(&inner, first, 1));
  ek_module_free(&fragile);
  ck_ok(ek_linear_create(&parts[0], IN, WIDTH, true));
  ck_ok(recomputed(&parts[1], inner));
  ck_ok(ek_linear_create(&parts[2], WIDTH, CLASSES, true));
  const ek_status status = ek_sequential_create(module, parts, 3);
  for (int i = 0; i < 3; i++) ek_module_free(parts[i]);
  return status;
}

START_TEST(errors_of_the_second_forward) {
  struct ck_workload mlp = *ck_workload("mlp");
  struct ck_training training;
  mlp.module = create_fragile;
  const struct ck_setup setup = ck_setup_mode(&mlp, "cpu:2", EK_MODE_REPLICATED);
  ck_training_open(&training, &setup);
  struct ck_batch batch = ck_batch_make(&mlp, EK_F32, 4, 0, 1);
  ck_fails(ck_training_backward(&training, &batch, NULL, false, NULL), EK_ERR_UNSUPPORTED,
           "1.0 (fragile), forward again: once is enough");
  ck_batch_free(&batch);
  ck_training_close(&training);
}
END_TEST

START_TEST(bad_input) {
  ek_module *module = NULL, *relu = NULL, two = {0};
  ek_criterion *loss = NULL;
  ck_ok(ek_activation_create(&relu, EK_ACTIVATION_RELU));
  ck_ok(ek_cross_entropy_create(&loss, NULL));
  ck_fails(ek_recompute_create(NULL, relu), EK_ERR_INVALID_ARGUMENT, "recompute");
  ck_fails(ek_recompute_create(&module, NULL), EK_ERR_INVALID_ARGUMENT, "inner module is NULL");
  ck_fails(ek_recompute_create(&module, &two), EK_ERR_INVALID_ARGUMENT, "or no module");
  ck_fails(ek_recompute_create(&module, &loss->base), EK_ERR_INVALID_ARGUMENT,
           "recompute: cross_entropy is a criterion");
  ck_ok(ek_module_init(&two, &fragile_ops, 1, 1));
  two.inputs = 0;
  ck_fails(ek_recompute_create(&module, &two), EK_ERR_INVALID_ARGUMENT, "fragile has 0 inputs");
  ck_assert_ptr_null(module);
  ek_criterion_free(loss);
  ek_module_free(relu);
  ck_host_failures(create_mlp);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("recompute");
  ck_module_tests(suite, cases, (int)(sizeof cases / sizeof *cases));
  TCase *tcase = ck_case(suite, "training");
  tcase_add_loop_test(tcase, whole_models, 0, CK_WORKLOADS * CK_PLACEMENTS);
  tcase_add_loop_test(tcase, random_trees, 0, 24);
  tcase = ck_case(suite, "memory");
  tcase_add_test(tcase, keeps_its_inputs);
  tcase = ck_case(suite, "misuse");
  tcase_add_test(tcase, errors_of_the_second_forward);
  tcase_add_test(tcase, bad_input);
  return suite;
}

CK_MAIN(make_suite)
