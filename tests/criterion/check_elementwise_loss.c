/*
 * check_elementwise_loss.c - L1, smooth L1, Huber and binary cross-entropy: their values against the
 * formulas in long double, and slopes against differences. What all element-wise criteria share is
 * in check_mean_squared_error.c.
 *
 * Bounds, u the unit roundoff of the type of sums: docs/numerics.md.
 */
#include <math.h>
#include <string.h>

#include <evenkeel/elementwise_loss.h>
#include <evenkeel/host_memory.h>

#include "ck_criterion.h"

enum { KINDS = 4 };

static ek_element_loss loss_number(int i) {
  return i == 0   ? ek_absolute_error()
         : i == 1 ? ek_smooth_absolute_error(0.5)
         : i == 2 ? ek_huber(1.5)
                  : ek_binary_cross_entropy();
}

static ek_criterion *make(int number, ek_reduction reduction) {
  ek_criterion *criterion = NULL;
  const ek_element_loss loss = loss_number(number);
  ck_ok(ek_elementwise_loss_create(&criterion, &loss, reduction));
  return criterion;
}

/* As PyTorch's documentation has them. */
static long double formula(int number, long double y, long double t, long double *slope) {
  const long double d = y - t, size = fabsl(d);
  const long double width = number == 1 ? 0.5L : number == 2 ? 1.5L : 0.0L;
  const long double sign = d > 0 ? 1 : d < 0 ? -1 : 0;
  if (number == 3) {
    *slope = 1 / (1 + expl(-y)) - t;
    return fmaxl(y, 0) - y * t + log1pl(expl(-fabsl(y)));
  }
  const long double steepness = number == 2 ? 1.5L : 1.0L;
  *slope = steepness * (size < width ? d / width : sign);
  return steepness * (size < width ? d * d / (2 * width) : size - width / 2);
}

static double bound_of(const struct ck_rig *rig, int number, double y, double t) {
  const double size = fabs(y) + fabs(t);
  if (number == 3) return 8 * rig->unit * (1 + fabs(y) * (1 + fabs(t)));
  return 12 * rig->unit * (number == 2 ? 1.5 : 1.0) * size * (1 + (number == 1 ? size : 0));
}

/* 9,001 elements, more than one chunk of the sum. Targets of a binary loss are probabilities. */
CK_LOOP(equals_the_formula, KINDS * CK_VARIANTS) {
  enum { COUNT = 9001 };
  struct ck_rig *rig = ck_rig_variant(_i / KINDS);
  const int number = _i % KINDS;
  double *y = ck_values(rig, COUNT, -4, 4);
  double *t = ck_values(rig, COUNT, number == 3 ? 0 : -4, number == 3 ? 1 : 4);
  double *want = ck_zeros(rig, COUNT), *bound = ck_zeros(rig, COUNT);
  double *gradient = ck_zeros(rig, COUNT), *gradient_bound = ck_zeros(rig, COUNT);
  long double sum = 0;
  double sum_bound = 0;
  for (int i = 0; i < COUNT; i++) {
    long double slope;
    const long double l = formula(number, y[i], t[i], &slope);
    want[i] = (double)l;
    bound[i] = bound_of(rig, number, y[i], t[i]);
    gradient[i] = (double)slope / 3;
    gradient_bound[i] = 12 * rig->unit * (number == 3 ? 1 + fabs(t[i]) : 1.5 + fabs(t[i]) + fabs(y[i]));
    sum += l;
    sum_bound += bound[i] + (COUNT + 3) * rig->unit * want[i];
  }
  ek_tensor *ty = ck_tensor(rig, y, CK_SHAPE(COUNT)), *tt = ck_tensor(rig, t, CK_SHAPE(COUNT));
  struct ck_loss *loss = ck_loss_open(rig, make(number, EK_REDUCTION_MEAN), true);
  const double all = (double)sum, third = 1.0 / 3;
  double totals[2];
  ck_loss_forward(loss, ty, tt, totals);
  ck_within("s", totals, &all, &sum_bound, 1);
  ck_assert(totals[1] == (double)COUNT);
  ck_loss_backward(loss, &third, NULL);
  ck_fits(rig, "gradient", &loss->gradients[0], gradient, gradient_bound, COUNT);
  struct ck_loss *single = ck_loss_open(rig, make(number, EK_REDUCTION_NONE), false);
  ck_loss_forward(single, ty, tt, NULL);
  ck_within("losses", ck_read(rig, &single->losses), want, bound, COUNT);
}

CK_LOOP(gradient_is_the_derivative, KINDS) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
  double *y = ck_values(rig, 30, -1, 1);
  ek_tensor *ty = ck_tensor(rig, y, CK_SHAPE(5, 6));
  ek_tensor *tt = ck_tensor(rig, ck_values(rig, 30, 0, 1), CK_SHAPE(5, 6));
  struct ck_loss *loss = ck_loss_open(rig, make(_i, EK_REDUCTION_SUM), true);
  ck_loss_forward(loss, ty, tt, NULL);
  ck_loss_backward(loss, NULL, NULL);
  struct ck_loss_function f = {.loss = loss, .outputs = ty, .targets = tt};
  ck_gradient(rig, "loss", ck_loss_of, &f, y, ck_read(rig, &loss->gradients[0]), 30, 30);
}

/* No overflow far from 0, and 0 where nothing differs. */
CK_RIG_LOOP(large_and_equal_numbers, CK_VARIANTS) {
  const double y[] = {100, -100, 3, -3}, t[] = {1, 0, 3, -3}, ends[] = {0, 0};
  ek_tensor *ty = ck_tensor(rig, y, CK_SHAPE(4)), *tt = ck_tensor(rig, t, CK_SHAPE(4));
  struct ck_loss *binary = ck_loss_open(rig, make(3, EK_REDUCTION_NONE), false);
  const double tiny[] = {1e-40, 1e-40};
  ck_loss_forward(binary, ty, tt, NULL);
  ck_within("losses", ck_read(rig, &binary->losses), ends, tiny, 2);
  for (int number = 0; number < 3; number++) {
    struct ck_loss *loss = ck_loss_open(rig, make(number, EK_REDUCTION_SUM), true);
    ck_loss_forward(loss, ty, tt, NULL);
    ck_loss_backward(loss, NULL, NULL);
    ck_within("gradient", ck_read(rig, &loss->gradients[0]) + 2, ends, NULL, 2);
  }
}

CK_TEST(refused) {
  ek_criterion *criterion = NULL;
  const double bad[] = {-1, (double)NAN, (double)INFINITY};
  ek_element_loss loss = {(ek_element_loss_kind)3, 0, 0};
  ck_fails(ek_elementwise_loss_create(&criterion, &loss, EK_REDUCTION_MEAN),
           EK_ERR_INVALID_ARGUMENT, "unknown kind 3");
  for (size_t i = 0; i < 3; i++) {
    loss = ek_huber(bad[i]);
    ck_fails(ek_elementwise_loss_create(&criterion, &loss, EK_REDUCTION_MEAN),
             EK_ERR_INVALID_ARGUMENT, "huber: width is");
  }
  loss = ek_absolute_error();
  ck_fails(ek_elementwise_loss_create(NULL, &loss, EK_REDUCTION_MEAN), EK_ERR_INVALID_ARGUMENT,
           "criterion is NULL");
  ck_fails(ek_elementwise_loss_create(&criterion, NULL, EK_REDUCTION_MEAN),
           EK_ERR_INVALID_ARGUMENT, "loss is NULL");
  ek_host_memory_fail_at(1);
  ck_fails(ek_elementwise_loss_create(&criterion, &loss, EK_REDUCTION_MEAN),
           EK_ERR_OUT_OF_MEMORY, "huber");
  ek_host_memory_fail_at(0);
  ck_assert_ptr_null(criterion);
}

CK_SUITE("elementwise_loss")
