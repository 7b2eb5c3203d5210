/*
 * check_nesting.c - modules and criteria within one another, deeper than any stack.
 *
 * They are made and freed one after the other (three million were tried); what would have to run
 * within one another is refused with a status.
 */
#include <stdlib.h>

#include <evenkeel/evenkeel.h>

#include "ek_check.h"

enum { MODULES = 300000, CRITERIA = 200000 };

START_TEST(three_hundred_thousand_modules) {
  ek_module *inner = NULL, *outer = NULL;
  ck_ok(ek_activation_create(&inner, EK_ACTIVATION_RELU));
  for (int i = 0; i < MODULES; i++) {
    ck_ok(ek_residual_create(&outer, inner));
    ek_module_free(inner);
    inner = outer;
  }
  ek_group *group = ck_open("cpu:2", 1);
  ek_data_parallel_model *model = NULL;
  ck_fails(ek_data_parallel_model_open(&model, group, outer, NULL), EK_ERR_INVALID_ARGUMENT,
           "is too long");
  ck_no_memory_held(group);
  ek_group_free(group);
  ek_module_free(outer);
}
END_TEST

/* A shared one in the middle survives the outer half. */
START_TEST(a_shared_module_survives) {
  ek_module *inner = NULL, *outer = NULL, *shared = NULL;
  ck_ok(ek_activation_create(&inner, EK_ACTIVATION_RELU));
  for (int i = 0; i < 1000; i++) {
    ck_ok(ek_residual_create(&outer, inner));
    ek_module_free(inner);
    inner = outer;
    if (i == 500) shared = ek_module_share(outer);
  }
  ek_module_free(outer);
  ck_assert_int_eq(shared->references, 1);
  ck_ok(ek_residual_create(&outer, shared));
  ek_module_free(shared);
  ek_module_free(outer);
}
END_TEST

/* ---- criteria ---- */

struct nest {
  ek_criterion base;
  ek_criterion *inner;
  int *freed;
};

static ek_status nest_forward(const ek_criterion *self, ek_criterion_pass *pass,
                              const ek_tensor *outputs, const ek_tensor *targets,
                              ek_tensor *totals) {
  return ek_criterion_pass_forward(pass, ((const struct nest *)self)->inner, 0, outputs, targets,
                                   totals);
}

static ek_status nest_backward(const ek_criterion *self, ek_criterion_pass *pass,
                               const ek_tensor *outputs, const ek_tensor *targets,
                               const ek_tensor *scales, ek_tensor *gradients) {
  return ek_criterion_pass_backward(pass, ((const struct nest *)self)->inner, 0, outputs, targets,
                                    scales, gradients);
}

static void nest_free(ek_criterion *self) {
  struct nest *n = (struct nest *)self;
  ek_criterion_free(n->inner);
  ++*n->freed;
  free(n);
}

static const ek_criterion_ops nest_ops = {.size = sizeof(ek_criterion_ops),
                                          .kind = "nest",
                                          .forward = nest_forward,
                                          .backward = nest_backward,
                                          .free = nest_free,
                                          .types = EK_TYPES_F32};

/* `depth` nests around a mean squared error. */
static ek_criterion *nested(int depth, int *freed) {
  ek_criterion *inner = NULL;
  ck_ok(ek_mean_squared_error_create(&inner, EK_REDUCTION_MEAN));
  for (int i = 0; i < depth; i++) {
    struct nest *n = calloc(1, sizeof *n);
    ck_assert_ptr_nonnull(n);
    ck_ok(ek_criterion_init(&n->base, &nest_ops, 1, 1, EK_REDUCTION_MEAN));
    n->inner = inner;
    n->freed = freed;
    inner = &n->base;
  }
  return inner;
}

static ek_status run(struct ck_rig *rig, ek_criterion *criterion) {
  ek_criterion_pass *pass = NULL;
  ek_tensor *y = ck_tensor(rig, ck_zeros(rig, 4), CK_SHAPE(2, 2)), gradient = {0};
  ek_tensor *target = ck_tensor(rig, ck_zeros(rig, 4), CK_SHAPE(2, 2));
  ek_tensor *totals = ck_blank(rig, EK_F64, CK_SHAPE(1, 2));
  ek_tensor *scales = ck_tensor_of(rig, EK_F64, ck_zeros(rig, 1), CK_SHAPE(1));
  ck_ok(ek_criterion_pass_open(&pass, rig->device, criterion, NULL));
  ek_status status = ek_criterion_pass_run_forward(pass, y, target, totals);
  if (status == EK_OK) {
    status = ek_criterion_pass_run_backward(pass, y, target, scales, NULL, &gradient);
  }
  ek_tensor_free(&gradient);
  ek_criterion_pass_free(pass);
  return status;
}

START_TEST(two_hundred_thousand_criteria) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  int freed = 0;
  ek_criterion *criterion = nested(CRITERIA, &freed);
  ck_fails(run(rig, criterion), EK_ERR_INVALID_ARGUMENT, "nest deeper than 64");
  ek_criterion_free(criterion);
  ck_assert_int_eq(freed, CRITERIA);
  ck_rig_close(rig);
}
END_TEST

START_TEST(as_deep_as_there_may_be) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  int freed = 0;
  ek_criterion *criterion = nested(EK_MAX_CRITERION_DEPTH, &freed), *sum = NULL;
  ck_ok(run(rig, criterion));
  const double one = 1;
  ck_ok(ek_weighted_sum_create(&sum, &criterion, &one, 1));
  ck_fails(run(rig, sum), EK_ERR_INVALID_ARGUMENT, "nest deeper than 64");
  ck_ok(run(rig, criterion));
  ek_criterion_free(sum);
  ek_criterion_free(criterion);
  ck_assert_int_eq(freed, EK_MAX_CRITERION_DEPTH);
  ck_rig_close(rig);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("nesting");
  TCase *modules = ck_case(suite, "modules");
  tcase_add_test(modules, three_hundred_thousand_modules);
  tcase_add_test(modules, a_shared_module_survives);
  TCase *criteria = ck_case(suite, "criteria");
  tcase_add_test(criteria, two_hundred_thousand_criteria);
  tcase_add_test(criteria, as_deep_as_there_may_be);
  return suite;
}

CK_MAIN(make_suite)
