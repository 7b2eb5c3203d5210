/*
 * check_criterion.c - a criterion of a program's own through the table, with children; what a pass
 * gives and when; what is refused.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/criterion.h>
#include <evenkeel/host_memory.h>
#include <evenkeel/mean_squared_error.h>
#include <evenkeel/memory.h>

#include "ck_criterion.h"
#include "ck_own_criteria.h"

enum { COLUMNS = CK_ABSOLUTE_COLUMNS };

static double some_weights[COLUMNS] = {0.5, 1.0, 2.0};

/* ---- it works like the stock ones ---- */

START_TEST(a_criterion_of_our_own) {
  struct ck_rig *rig = ck_rig_variant(_i);
  int freed = 0;
  const double outputs[] = {1, 2, 3, -1, -2, -3};
  const double targets[] = {2, 2.5, 1, -1.5, 0, 0};
  /* |y - t| = 1 0.5 2 | 0.5 2 3, weighted 0.5 0.5 4 | 0.25 2 6: exact in both types */
  const double want[] = {13.25, 7.0};
  const double gradient[] = {-1, -2, 4, 1, -2, -4}; /* sign * weight, twice */
  const double doubled = 2.0;
  ek_tensor *y = ck_tensor(rig, outputs, CK_SHAPE(2, COLUMNS));
  ek_tensor *t = ck_tensor(rig, targets, CK_SHAPE(2, COLUMNS));
  for (int keep = 0; keep < 2; keep++) {
    struct ck_loss loss = ck_loss_open(
        rig, ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, &freed), keep == 1);
    double totals[2];
    ck_set(y, outputs);
    ck_loss_forward(&loss, y, t, totals);
    ck_within("totals", totals, want, NULL, 2);
    ck_loss_forward(&loss, y, t, totals); /* what the first one saved is dropped */
    ck_loss_backward(&loss, y, t, &doubled, NULL);
    ck_within("gradient", ck_read(rig, &loss.gradients[0]), gradient, NULL, 6);
    ck_assert_int_eq(loss.gradients[0].data == y->data, keep == 0);
    ck_loss_close(&loss);
    ck_assert_int_eq(freed, keep + 1);
  }
  ck_rig_close(rig);
}
END_TEST

/* In the place of the outputs at the end of forward, with the coefficient; backward hands it out.
 */
START_TEST(the_gradient_in_forward) {
  struct ck_rig *rig = ck_rig_variant(_i);
  const double outputs[] = {1, 2, 3}, targets[] = {2, 1, 1}, want[] = {5.5, 3.5};
  const double gradient[] = {-0.5, 1, 2}, halves[] = {-0.25, 0.5, 1}, half = 0.5, other = 64;
  ek_tensor *y = ck_tensor(rig, outputs, CK_SHAPE(1, COLUMNS));
  ek_tensor *t = ck_tensor(rig, targets, CK_SHAPE(1, COLUMNS));
  for (int scaled = 0; scaled < 2; scaled++) {
    ek_criterion *c = ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL);
    if (scaled == 1) c->coefficients = &half;
    struct ck_loss loss = ck_loss_open(rig, c, false);
    double totals[2];
    ck_set(y, outputs);
    ck_loss_forward_gradient(&loss, y, t, totals);
    ck_within("totals", totals, want, NULL, 2);
    ck_within("outputs", ck_read(rig, y), scaled ? halves : gradient, NULL, 3);
    ck_loss_backward(&loss, y, t, &other, NULL); /* the scale came in forward */
    ck_assert(loss.gradients[0].data == y->data);
    ck_within("gradient", ck_read(rig, &loss.gradients[0]), scaled ? halves : gradient, NULL, 3);
    ck_loss_drop(&loss);
    ck_set(&loss.scales, &other);
    ck_fails(ek_criterion_pass_run_backward(loss.pass, y, t, &loss.scales, NULL, loss.gradients),
             EK_ERR_STATE, "without a forward");
    /* Another forward is not bound by it, nor is one after a reset. */
    ck_set(y, outputs);
    ck_loss_forward_gradient(&loss, y, t, NULL);
    ck_set(y, outputs);
    ck_loss_forward(&loss, y, t, totals);
    ck_within("outputs", ck_read(rig, y), outputs, NULL, 3);
    ck_loss_backward(&loss, y, t, NULL, NULL);
    ck_within("gradient", ck_read(rig, &loss.gradients[0]), gradient, NULL, 3);
    ck_loss_close(&loss);
  }
  ck_rig_close(rig);
}
END_TEST

static void stays(struct ck_rig *rig, struct ck_loss *loss, ek_tensor *y, const ek_tensor *t,
                  const double *outputs) {
  ck_loss_forward_gradient(loss, y, t, NULL);
  for (size_t i = 0; i < loss->criterion->outputs; i++) {
    ck_within("outputs", ck_read(rig, &y[i]), outputs, NULL, 3);
  }
  ck_loss_backward(loss, y, t, NULL, NULL);
  ck_loss_close(loss);
}

/* Kept outputs, outputs that others hold, single losses, children, and two terms: not in forward.
 */
START_TEST(the_gradient_waits_for_backward) {
  struct ck_rig *rig = ck_rig_variant(_i);
  const double outputs[] = {1, 2, 3}, targets[] = {2, 1, 1};
  ek_tensor y[2] = {*ck_tensor(rig, outputs, CK_SHAPE(1, 3)),
                    *ck_tensor(rig, outputs, CK_SHAPE(1, 3))};
  ek_tensor t[2] = {*ck_tensor(rig, targets, CK_SHAPE(1, 3)),
                    *ck_tensor(rig, targets, CK_SHAPE(1, 3))};
  ek_tensor held = {0};
  double scale = 0;
  struct ck_loss loss = ck_loss_open(
      rig, ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL), true);
  ck_assert(!ek_criterion_pass_gradient_now(&scale, loss.pass)); /* not in forward */
  stays(rig, &loss, y, t, outputs);

  loss = ck_loss_open(rig, ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL),
                      false);
  ck_ok(ek_tensor_share(&held, &y[0]));
  stays(rig, &loss, y, t, outputs);
  ek_tensor_free(&held);

  loss = ck_loss_open(rig, ck_absolute_error(some_weights, EK_REDUCTION_NONE, CK_NO_FAULT, NULL),
                      false);
  stays(rig, &loss, y, t, outputs);
  ck_set(&y[0], outputs);

  loss = ck_loss_open(rig, ck_pair(some_weights, some_weights, 0, CK_NO_FAULT), false);
  stays(rig, &loss, y, t, outputs);
  ck_assert(!ek_criterion_pass_gradient_now(&scale, NULL));
  ck_rig_close(rig);
}
END_TEST

START_TEST(single_losses) {
  struct ck_rig *rig = ck_rig_variant(_i);
  const double outputs[] = {1, 2, 3}, targets[] = {2, 2.5, 1}, factors[] = {3, 0, 0.5};
  const double want[] = {0.5, 0.5, 4}, gradient[] = {-1.5, 0, 1};
  ek_tensor *y = ck_tensor(rig, outputs, CK_SHAPE(1, COLUMNS));
  ek_tensor *t = ck_tensor(rig, targets, CK_SHAPE(1, COLUMNS));
  struct ck_loss loss = ck_loss_open(
      rig, ck_absolute_error(some_weights, EK_REDUCTION_NONE, CK_NO_FAULT, NULL), false);
  ek_tensor losses = {0};
  ck_fails(ek_criterion_pass_last_losses(&losses, loss.pass), EK_ERR_STATE, "no forward");
  ck_loss_forward(&loss, y, t, NULL);
  ck_ok(ek_criterion_pass_last_losses(&losses, loss.pass));
  ck_within("losses", ck_read(rig, &losses), want, NULL, 3);

  const ek_tensor *few = ck_tensor(rig, factors, CK_SHAPE(2));
  const ek_tensor *strange =
      ck_tensor_of(rig, rig->type == EK_F32 ? EK_F64 : EK_F32, factors, CK_SHAPE(3));
  ck_set(&loss.scales, want);
  ck_fails(ek_criterion_pass_run_backward(loss.pass, y, t, &loss.scales, few, loss.gradients),
           EK_ERR_SHAPE, "2 factors for 3 losses");
  ck_fails(ek_criterion_pass_run_backward(loss.pass, y, t, &loss.scales, strange, loss.gradients),
           EK_ERR_TYPE, "factors");
  ck_loss_backward(&loss, y, t, NULL, ck_tensor(rig, factors, CK_SHAPE(3)));
  ck_within("gradient", ck_read(rig, &loss.gradients[0]), gradient, NULL, 3);
  ck_ok(ek_criterion_pass_last_losses(&losses, loss.pass));       /* they belong to the forward */
  ck_assert(!ek_criterion_pass_loss_factors(&losses, loss.pass)); /* they to the backward */
  ek_criterion_pass_reset(loss.pass);
  ck_fails(ek_criterion_pass_last_losses(&losses, loss.pass), EK_ERR_STATE, "no forward");
  ck_loss_close(&loss);
  ck_rig_close(rig);
}
END_TEST

START_TEST(children_have_their_own_constants) {
  struct ck_rig *rig = ck_rig_variant(_i);
  double other[COLUMNS] = {4, 8, 16};
  const double outputs[] = {1, 2, 3}, zeros[] = {0, 0, 0};
  const double want[] = {8.5, 3.5, 68, 28}; /* 0.5 + 2 + 6; 4 + 16 + 48 */
  const double first[] = {0.5, 1, 2}, second[] = {12, 24, 48}, scales[] = {1, 3};
  ek_tensor y[2] = {*ck_tensor(rig, outputs, CK_SHAPE(1, 3)),
                    *ck_tensor(rig, outputs, CK_SHAPE(1, 3))};
  ek_tensor t[2] = {*ck_tensor(rig, zeros, CK_SHAPE(1, 3)), *ck_tensor(rig, zeros, CK_SHAPE(1, 3))};
  struct ck_loss loss = ck_loss_open(rig, ck_pair(some_weights, other, 0, CK_NO_FAULT), false);
  double totals[4];
  ck_loss_forward(&loss, y, t, totals);
  ck_within("totals", totals, want, NULL, 4);
  ck_loss_backward(&loss, y, t, scales, NULL);
  ck_within("gradient 0", ck_read(rig, &loss.gradients[0]), first, NULL, 3);
  ck_within("gradient 1", ck_read(rig, &loss.gradients[1]), second, NULL, 3);
  ck_loss_close(&loss);

  /* A child that would read constants that are not its parent's. */
  loss = ck_loss_open(rig, ck_pair(some_weights, other, 1, CK_NO_FAULT), false);
  ck_fails(ek_criterion_pass_run_forward(loss.pass, y, t, &loss.totals), EK_ERR_INVALID_ARGUMENT,
           "child absolute needs constants 3 .. 5, but there are 4");
  ck_loss_close(&loss);
  /* A gradient that was made before another child failed is freed. */
  loss = ck_loss_open(rig, ck_pair(some_weights, other, 0, CK_FAILS_BACKWARD), false);
  ck_loss_forward(&loss, y, t, NULL);
  ck_set(&loss.scales, scales);
  ck_fails(ek_criterion_pass_run_backward(loss.pass, y, t, &loss.scales, NULL, loss.gradients),
           EK_ERR_UNSUPPORTED, "not back");
  ck_assert(!ek_tensor_exists(&loss.gradients[0]) && !ek_tensor_exists(&loss.gradients[1]));
  ck_loss_close(&loss);
  ck_rig_close(rig);
}
END_TEST

/* ---- constants ---- */

START_TEST(floating_constants_take_the_type_of_the_model) {
  struct ck_rig *rig = ck_rig_variant(_i);
  double thirds[COLUMNS] = {1.0 / 3, 2.0 / 3, 1e-3};
  float quarters[COLUMNS] = {0.25f, 0.5f, 0.1f};
  struct ck_absolute_error *a =
      (struct ck_absolute_error *)ck_absolute_error(thirds, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL);
  ck_ok(ek_tensor_host(&a->constants[1], quarters, EK_F32, CK_SHAPE(COLUMNS)));
  struct ck_loss loss = ck_loss_open(rig, &a->base, false);
  ek_tensor constant = {0};
  double want[COLUMNS];
  for (size_t i = 0; i < 2; i++) {
    ck_ok(ek_criterion_pass_constant(&constant, loss.pass, i));
    ck_assert_int_eq(constant.type, rig->type);
    ck_assert_ptr_eq(constant.device, rig->device);
    for (int c = 0; c < COLUMNS; c++) {
      want[c] = i == 0 ? ck_round(rig, thirds[c]) : (double)quarters[c];
    }
    ck_within("constant", ck_read(rig, &constant), want, NULL, COLUMNS);
  }
  ck_assert_uint_eq(ck_loss_bytes(rig), 2 * EK_MEMORY_UNIT);
  ck_fails(ek_criterion_pass_constant(&constant, loss.pass, 2), EK_ERR_INVALID_ARGUMENT,
           "constant 2 of 2");
  ck_loss_close(&loss);
  ck_rig_close(rig);
}
END_TEST

START_TEST(bad_constants) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  ek_criterion *criterion = ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL);
  struct ck_absolute_error *a = (struct ck_absolute_error *)criterion;
  ek_criterion_pass *pass = NULL;
  const ek_tensor good = a->constants[1];
  a->constants[1] = (ek_tensor){0};
  ck_fails(ek_criterion_pass_open(&pass, rig->device, criterion, NULL), EK_ERR_INVALID_ARGUMENT,
           "constant 1");
  a->constants[1] = *ck_poisoned(rig, CK_SHAPE(2));
  ck_fails(ek_criterion_pass_open(&pass, rig->device, criterion, NULL), EK_ERR_INVALID_ARGUMENT,
           "constant 1 is not a host tensor");
  uint16_t half[2] = {0, 0};
  ck_ok(ek_tensor_host(&a->constants[1], half, EK_F16, CK_SHAPE(2)));
  ck_fails(ek_criterion_pass_open(&pass, rig->device, criterion, NULL), EK_ERR_UNSUPPORTED, "f16");
  a->constants[1] = good;
  criterion->constant_count = EK_MAX_CONSTANTS + 1;
  ck_fails(ek_criterion_pass_open(&pass, rig->device, criterion, NULL), EK_ERR_INVALID_ARGUMENT,
           "0 to 16 constants, not 17");
  criterion->constant_count = 2;
  criterion->constants = NULL;
  ck_fails(ek_criterion_pass_open(&pass, rig->device, criterion, NULL), EK_ERR_INVALID_ARGUMENT,
           "is NULL");
  criterion->constants = a->constants;
  const size_t terms[] = {0, EK_MAX_TERMS + 1};
  for (size_t i = 0; i < 2; i++) {
    criterion->terms = terms[i];
    ck_fails(ek_criterion_pass_open(&pass, rig->device, criterion, NULL), EK_ERR_INVALID_ARGUMENT,
             "terms");
  }
  ck_assert_ptr_null(pass);
  ck_assert_int_eq(criterion->references, 1);
  ek_criterion_free(criterion);
  ck_rig_close(rig);
}
END_TEST

/* ---- order of calls ---- */

START_TEST(only_inside_forward_or_backward) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  struct ck_loss loss = ck_loss_open(
      rig, ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL), false);
  ek_criterion_pass *pass = loss.pass;
  ek_tensor *x = ck_tensor(rig, some_weights, CK_SHAPE(1, 3));
  ek_tensor taken = {0};
  ck_assert_ptr_eq(ek_criterion_pass_device(pass), rig->device);
  ck_assert_ptr_eq(ek_criterion_pass_stream(pass), rig->stream);
  ck_fails(ek_criterion_pass_save(pass, x), EK_ERR_STATE, "outside of forward");
  ck_fails(ek_criterion_pass_take(&taken, pass), EK_ERR_STATE, "outside of backward");
  ck_fails(ek_criterion_pass_gradient(&taken, pass, x), EK_ERR_STATE, "outside of backward");
  ck_fails(ek_criterion_pass_losses(pass, x), EK_ERR_STATE, "outside of forward");
  ck_fails(ek_criterion_pass_forward(pass, loss.criterion, 0, x, x, &loss.totals), EK_ERR_STATE,
           "outside of forward");
  ck_fails(ek_criterion_pass_backward(pass, loss.criterion, 0, x, x, &loss.scales, &taken),
           EK_ERR_STATE, "outside of backward");
  ck_assert(!ek_criterion_pass_loss_factors(&taken, pass));
  ck_fails(ek_criterion_pass_last_losses(&taken, pass), EK_ERR_STATE, "reduction is not none");

  ck_fails(ek_criterion_pass_run_backward(pass, x, x, &loss.scales, NULL, loss.gradients),
           EK_ERR_STATE, "without a forward");
  ek_tensor target = *ck_tensor(rig, some_weights, CK_SHAPE(1, 3));
  ck_loss_forward(&loss, x, &target, NULL);
  ck_loss_backward(&loss, x, &target, NULL, NULL);
  ck_loss_drop(&loss);
  ck_fails(ek_criterion_pass_run_backward(pass, x, &target, &loss.scales, NULL, loss.gradients),
           EK_ERR_STATE, "without a forward");
  ck_loss_forward(&loss, x, &target, NULL);
  ek_criterion_pass_reset(pass);
  ck_assert_uint_eq(ck_loss_bytes(rig), 2 * EK_MEMORY_UNIT); /* the constants */
  ck_fails(ek_criterion_pass_run_backward(pass, x, &target, &loss.scales, NULL, loss.gradients),
           EK_ERR_STATE, "without a forward");
  ck_loss_close(&loss);
  ck_rig_close(rig);
}
END_TEST

START_TEST(faults_of_a_criterion_leave_nothing) {
  static const struct {
    enum ck_fault fault;
    ek_status status;
    const char *text;
  } cases[] = {{CK_NO_GRADIENT, EK_ERR_INVALID_ARGUMENT, "gradient 0 is not there"},
               {CK_WRONG_GRADIENT, EK_ERR_SHAPE, "gradient 0"},
               {CK_TAKES_TOO_MUCH, EK_ERR_STATE, "takes more than forward saved"},
               {CK_FAILS_FORWARD, EK_ERR_UNSUPPORTED, "absolute: no"},
               {CK_FAILS_BACKWARD, EK_ERR_UNSUPPORTED, "absolute: not back"}};
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  ek_tensor *x = ck_tensor(rig, some_weights, CK_SHAPE(1, 3));
  ek_tensor *t = ck_tensor(rig, some_weights, CK_SHAPE(1, 3));
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct ck_loss loss = ck_loss_open(
        rig, ck_absolute_error(some_weights, EK_REDUCTION_MEAN, cases[i].fault, NULL), false);
    if (cases[i].fault == CK_FAILS_FORWARD) {
      ck_fails(ek_criterion_pass_run_forward_gradient(loss.pass, x, t, &loss.totals),
               cases[i].status, cases[i].text);
      ck_fails(ek_criterion_pass_run_forward(loss.pass, x, t, &loss.totals), cases[i].status,
               cases[i].text);
    } else {
      ck_loss_forward(&loss, x, t, NULL);
      ck_set(&loss.scales, some_weights);
      ck_fails(ek_criterion_pass_run_backward(loss.pass, x, t, &loss.scales, NULL, loss.gradients),
               cases[i].status, cases[i].text);
      ck_assert(!ek_tensor_exists(&loss.gradients[0]));
    }
    ck_fails(ek_criterion_pass_run_backward(loss.pass, x, t, &loss.scales, NULL, loss.gradients),
             EK_ERR_STATE, "without a forward");
    ck_assert_uint_eq(ck_loss_bytes(rig), 2 * EK_MEMORY_UNIT);
    ck_loss_close(&loss);
  }
  ck_rig_close(rig);
}
END_TEST

START_TEST(out_of_memory) {
  struct ck_rig *rig = ck_rig_variant(_i);
  ek_tensor *x = ck_tensor(rig, some_weights, CK_SHAPE(1, 3));
  ek_tensor *t = ck_tensor(rig, some_weights, CK_SHAPE(1, 3));
  ek_criterion *criterion = ck_absolute_error(some_weights, EK_REDUCTION_NONE, CK_NO_FAULT, NULL);
  ck_loss_failures(rig, criterion, x, t);
  ek_criterion_free(criterion);
  ck_rig_close(rig);
}
END_TEST

/* ---- what is refused ---- */

START_TEST(bad_bases) {
  ek_criterion c;
  ek_criterion *made = ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL);
  ek_criterion_ops ops = *made->ops;
  ek_criterion_free(made);
  const ek_criterion_ops good = ops;
  ck_fails(ek_criterion_init(NULL, &ops, 1, 1, EK_REDUCTION_MEAN), EK_ERR_INVALID_ARGUMENT,
           "criterion is NULL");
  ck_fails(ek_criterion_init(&c, NULL, 1, 1, EK_REDUCTION_MEAN), EK_ERR_INVALID_ARGUMENT,
           "ops is NULL");
  ops.size = sizeof ops + 1;
  ck_fails(ek_criterion_init(&c, &ops, 1, 1, EK_REDUCTION_MEAN), EK_ERR_INVALID_ARGUMENT, "size");
  ops = good;
  ops.kind = NULL;
  ck_fails(ek_criterion_init(&c, &ops, 1, 1, EK_REDUCTION_MEAN), EK_ERR_INVALID_ARGUMENT, "kind");
  ops = good;
  ops.forward = NULL;
  ck_fails(ek_criterion_init(&c, &ops, 1, 1, EK_REDUCTION_MEAN), EK_ERR_INVALID_ARGUMENT,
           "ops.forward");
  ops = good;
  ops.backward = NULL;
  ck_fails(ek_criterion_init(&c, &ops, 1, 1, EK_REDUCTION_MEAN), EK_ERR_INVALID_ARGUMENT,
           "ops.backward");
  ops = good;
  ops.free = NULL;
  ck_fails(ek_criterion_init(&c, &ops, 1, 1, EK_REDUCTION_MEAN), EK_ERR_INVALID_ARGUMENT,
           "ops.free");
  ck_fails(ek_criterion_init(&c, &good, 0, 1, EK_REDUCTION_MEAN), EK_ERR_INVALID_ARGUMENT,
           "has 1 to 16 outputs, not 0");
  ck_fails(ek_criterion_init(&c, &good, 1, 1, (ek_reduction)-1), EK_ERR_INVALID_ARGUMENT,
           "reduction");
  ck_ok(ek_criterion_init(&c, &good, 2, 0, EK_REDUCTION_SUM));
  ck_assert_uint_eq(c.outputs, 2);
  ck_assert_uint_eq(c.terms, 1);
  ck_assert_ptr_null(c.coefficients);
  ck_assert_int_eq(c.references, 1);
}
END_TEST

START_TEST(references) {
  int freed = 0;
  ek_criterion *c = ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, &freed);
  ck_assert_ptr_null(ek_criterion_share(NULL));
  ek_criterion_free(NULL);
  ck_assert_ptr_eq(ek_criterion_share(c), c);
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  ek_criterion_pass *pass = NULL;
  ck_ok(ek_criterion_pass_open(&pass, rig->device, c, NULL));
  ek_criterion_free(c);
  ek_criterion_free(c);
  ck_assert_int_eq(freed, 0); /* the pass holds it */
  ek_criterion_pass_free(pass);
  ck_assert_int_eq(freed, 1);
  ck_rig_close(rig);
}
END_TEST

START_TEST(bad_passes) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  ek_criterion *c = ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL);
  ek_criterion_pass *pass = NULL;
  ek_criterion_pass_options o = EK_CRITERION_PASS_OPTIONS_INIT;
  ck_fails(ek_criterion_pass_open(NULL, rig->device, c, NULL), EK_ERR_INVALID_ARGUMENT, "pass");
  ck_fails(ek_criterion_pass_open(&pass, NULL, c, NULL), EK_ERR_INVALID_ARGUMENT, "device");
  ck_fails(ek_criterion_pass_open(&pass, rig->device, NULL, NULL), EK_ERR_INVALID_ARGUMENT,
           "criterion");
  o.size = 1;
  ck_fails(ek_criterion_pass_open(&pass, rig->device, c, &o), EK_ERR_INVALID_ARGUMENT, "size");
  o.size = sizeof o;
  o.type = EK_I32;
  ck_fails(ek_criterion_pass_open(&pass, rig->device, c, &o), EK_ERR_INVALID_ARGUMENT, "i32");
  ck_assert_ptr_null(pass);
  ek_criterion_free(c);

  ek_tensor t = {0};
  ck_assert_ptr_null(ek_criterion_pass_device(NULL));
  ck_assert_ptr_null(ek_criterion_pass_stream(NULL));
  ck_assert(!ek_criterion_pass_loss_factors(&t, NULL));
  ek_criterion_pass_reset(NULL);
  ek_criterion_pass_free(NULL);
  const ek_status statuses[] = {ek_criterion_pass_constant(&t, NULL, 0),
                                ek_criterion_pass_create(&t, NULL, EK_F32, 0, NULL),
                                ek_criterion_pass_save(NULL, &t),
                                ek_criterion_pass_take(&t, NULL),
                                ek_criterion_pass_gradient(&t, NULL, &t),
                                ek_criterion_pass_losses(NULL, &t),
                                ek_criterion_pass_forward(NULL, NULL, 0, &t, &t, &t),
                                ek_criterion_pass_backward(NULL, NULL, 0, &t, &t, &t, &t),
                                ek_criterion_pass_run_forward(NULL, &t, &t, &t),
                                ek_criterion_pass_run_forward_gradient(NULL, &t, &t, &t),
                                ek_criterion_pass_run_backward(NULL, &t, &t, &t, NULL, &t),
                                ek_criterion_pass_last_losses(&t, NULL)};
  for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
    ck_assert_int_eq(statuses[i], EK_ERR_INVALID_ARGUMENT);
  }
  ck_assert(ck_contains(ek_error_message(), "pass is NULL"));
  ck_rig_close(rig);
}
END_TEST

START_TEST(bad_tensors) {
  struct ck_rig *rig = ck_rig_open("cpu:2", EK_F32, 1);
  struct ck_loss loss = ck_loss_open(
      rig, ck_absolute_error(some_weights, EK_REDUCTION_MEAN, CK_NO_FAULT, NULL), false);
  ek_criterion_pass *pass = loss.pass;
  ek_tensor *x = ck_tensor(rig, some_weights, CK_SHAPE(1, 3)), *s = &loss.totals;
  ek_tensor none = {0}, host, *g = loss.gradients;
  float numbers[3] = {0};
  ck_ok(ek_tensor_host(&host, numbers, EK_F32, CK_SHAPE(1, 3)));
  ek_tensor far = ck_upload(ek_group_device(rig->group, 1), EK_F32, NULL, CK_SHAPE(1, 3));
  const ek_tensor *floats = ck_poisoned(rig, CK_SHAPE(1, 2));
  ek_tensor *flat = ck_tensor_of(rig, EK_F64, NULL, CK_SHAPE(2));

  ck_fails(ek_criterion_pass_run_forward(pass, NULL, x, s), EK_ERR_INVALID_ARGUMENT, "outputs");
  ck_fails(ek_criterion_pass_run_forward(pass, x, NULL, s), EK_ERR_INVALID_ARGUMENT, "targets");
  ck_fails(ek_criterion_pass_run_forward(pass, x, x, NULL), EK_ERR_INVALID_ARGUMENT, "totals");
  ck_fails(ek_criterion_pass_run_forward(pass, &none, x, s), EK_ERR_INVALID_ARGUMENT, "output 0");
  ck_fails(ek_criterion_pass_run_forward(pass, x, &host, s), EK_ERR_DEVICE, "host memory");
  ck_fails(ek_criterion_pass_run_forward(pass, x, &far, s), EK_ERR_DEVICE, "cpu:1");
  ek_tensor copy = *floats;
  ck_fails(ek_criterion_pass_run_forward(pass, x, x, &copy), EK_ERR_TYPE, "expected f64");
  ck_fails(ek_criterion_pass_run_forward(pass, x, x, flat), EK_ERR_SHAPE, "1 x 2");

  ck_loss_forward(&loss, x, x, NULL);
  const ek_tensor *c = &loss.scales;
  ck_fails(ek_criterion_pass_run_backward(pass, NULL, x, c, NULL, g), EK_ERR_INVALID_ARGUMENT,
           "outputs");
  ck_fails(ek_criterion_pass_run_backward(pass, x, NULL, c, NULL, g), EK_ERR_INVALID_ARGUMENT,
           "targets");
  ck_fails(ek_criterion_pass_run_backward(pass, x, x, NULL, NULL, g), EK_ERR_INVALID_ARGUMENT,
           "scales");
  ck_fails(ek_criterion_pass_run_backward(pass, x, x, flat, NULL, g), EK_ERR_SHAPE, "scales");
  ck_fails(ek_criterion_pass_run_backward(pass, x, x, c, x, g), EK_ERR_INVALID_ARGUMENT,
           "reduction none");
  ck_fails(ek_criterion_pass_run_backward(pass, x, x, c, NULL, NULL), EK_ERR_INVALID_ARGUMENT,
           "gradients");
  g[0] = host;
  ck_fails(ek_criterion_pass_run_backward(pass, x, x, c, NULL, g), EK_ERR_INVALID_ARGUMENT,
           "struct of zeros");
  g[0] = none;
  ck_fails(ek_criterion_pass_last_losses(NULL, pass), EK_ERR_INVALID_ARGUMENT, "losses");
  ck_loss_backward(&loss, x, x, NULL, NULL); /* nothing was lost by all that */
  ek_tensor_free(&far);
  ck_loss_close(&loss);
  ck_rig_close(rig);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("criterion");
  TCase *own = ck_case(suite, "own");
  tcase_add_loop_test(own, a_criterion_of_our_own, 0, CK_VARIANTS);
  tcase_add_loop_test(own, the_gradient_in_forward, 0, CK_VARIANTS);
  tcase_add_loop_test(own, the_gradient_waits_for_backward, 0, CK_VARIANTS);
  tcase_add_loop_test(own, single_losses, 0, CK_VARIANTS);
  tcase_add_loop_test(own, children_have_their_own_constants, 0, CK_VARIANTS);
  tcase_add_loop_test(own, floating_constants_take_the_type_of_the_model, 0, CK_VARIANTS);
  TCase *order = ck_case(suite, "order");
  tcase_add_test(order, only_inside_forward_or_backward);
  tcase_add_test(order, faults_of_a_criterion_leave_nothing);
  tcase_add_loop_test(order, out_of_memory, 0, CK_VARIANTS);
  tcase_add_test(order, references);
  TCase *refused = ck_case(suite, "refused");
  tcase_add_test(refused, bad_constants);
  tcase_add_test(refused, bad_bases);
  tcase_add_test(refused, bad_passes);
  tcase_add_test(refused, bad_tensors);
  return suite;
}

CK_MAIN(make_suite)
