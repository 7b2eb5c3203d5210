/*
 * check_nesting.c - modules and criteria within one another, deeper than any stack.
 *
 * They are made and freed one after the other (three million were tried); what would have to run
 * within one another is refused with a status.
 */
#include "ek_check.h"

/* A path of 511 bytes has room for 255 names "0.", of which the innermost takes one. */
enum { MODULES = 300000, CRITERIA = 200000, DEEPEST = 255 };

CK_TEST(three_hundred_thousand_modules) {
  ek_module *inner = NULL, *outer = NULL;
  ck_ok(ek_activation_create(&inner, EK_ACTIVATION_RELU));
  for (int i = 0; i < MODULES; i++) {
    ck_ok(ek_residual_create(&outer, inner));
    ek_module_free(inner);
    inner = outer;
  }
  ek_group *group = ck_open("cpu:2", 1);
  ek_data_parallel_model *model = NULL;
  ck_invalid(ek_data_parallel_model_open(&model, group, outer, NULL), "is too long");
  ek_module_free(outer);
}

/* A shared one in the middle survives the outer half. */
CK_TEST(a_shared_module_survives) {
  ek_module *inner = NULL, *outer = NULL, *shared = NULL;
  ck_ok(ek_activation_create(&inner, EK_ACTIVATION_RELU));
  for (int i = 0; i < 1000; i++) {
    ck_ok(ek_residual_create(&outer, inner));
    ek_module_free(inner);
    inner = outer;
    if (i == 500) shared = ek_module_share(outer);
  }
  ek_module_free(outer);
  ck_assert_int_eq(shared->private_members.references, 1);
  ck_ok(ek_residual_create(&outer, shared));
  ek_module_free(shared);
  ek_module_free(outer);
}

/* ---- criteria ---- */

struct nest {
  ek_criterion base;
  ek_criterion *inner;
  int *freed;
};

static ek_status nest_declare(const ek_module *self, ek_declaration *declaration) {
  return ek_declare_module(declaration, "0", &((const struct nest *)self)->inner->base);
}

CK_FORWARD(nest) { return ek_pass_child_forward(outputs, pass, 0, inputs); }

CK_BACKWARD(nest) { return ek_pass_child_backward(grad_inputs, pass, 0, grad_outputs); }

static void nest_free(ek_module *self) {
  struct nest *n = (struct nest *)self;
  ek_criterion_free(n->inner);
  ++*n->freed;
  free(n);
}

CK_MODULE_OPS_WITH(nest, .parameters = nest_declare, .types = EK_TYPES_F32);

/* `depth` nests around a mean squared error. */
static ek_criterion *nested(int depth, int *freed) {
  CK_GOT(ek_criterion *, inner, ek_mean_squared_error_create(&inner, EK_REDUCTION_MEAN));
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
  ek_replica *replica = NULL;
  ek_tensor inputs[] = {*ck_tensor(rig, ck_zeros(rig, 4), CK_SHAPE(2, 2)),
                        *ck_tensor(rig, ck_zeros(rig, 4), CK_SHAPE(2, 2))};
  ek_tensor *scales = ck_tensor_of(rig, EK_F64, ck_zeros(rig, 2), CK_SHAPE(1, 2));
  ek_tensor gradients[2] = {{0}};
  EK_TRY(ek_replica_open(&replica, rig->device, &criterion->base, NULL));
  CK_HELD(ek_replica *, kept, ck_keep(replica));
  CK_SCOPED(ek_pass *, pass, ek_pass_open(&pass, kept, NULL));
  CK_SCOPED(ek_tensor, totals, ek_pass_run_forward(&totals, pass, inputs));
  ck_ok(ek_pass_run_backward(gradients, pass, scales));
  ek_tensor_free(&gradients[0]);
  return EK_OK;
}

CK_TEST(two_hundred_thousand_criteria) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  int freed = 0;
  ek_criterion *criterion = nested(CRITERIA, &freed);
  ck_invalid(run(rig, criterion), "is too long");
  ek_criterion_free(criterion);
  ck_assert_int_eq(freed, CRITERIA);
}

/* They nest as deep as modules do: as far as a path reaches. */
CK_TEST(as_deep_as_there_may_be) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  int freed = 0;
  ek_criterion *criterion = nested(DEEPEST, &freed), *sum = NULL;
  ck_ok(run(rig, criterion));
  const double one = 1;
  ck_ok(ek_weighted_sum_create(&sum, &criterion, &one, 1));
  ck_invalid(run(rig, sum), "is too long");
  ck_ok(run(rig, criterion));
  ek_criterion_free(sum);
  ek_criterion_free(criterion);
  ck_assert_int_eq(freed, DEEPEST);
}

CK_SUITE("nesting")
