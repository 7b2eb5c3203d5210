/*
 * check_mean_squared_error.c - the squared error criterion: exactly where it can be exact, and by
 * the memory that it needs: none. Formula and differences: check_elementwise_loss.c.
 */
#include "ck_criterion.h"

static ek_criterion *make(ek_reduction reduction) {
  CK_GOT(ek_criterion *, criterion, ek_mean_squared_error_create(&criterion, reduction));
  ck_assert_int_eq(ek_criterion_reduction(criterion), reduction);
  return criterion;
}

/* Small whole numbers: every sum is exact in both types, so nothing may differ. */
CK_LOOP(exact_for_whole_numbers, 3 * CK_VARIANTS) {
  struct ck_rig *rig = ck_rig_variant(_i / 3);
  const ek_reduction reduction = (ek_reduction)(_i % 3);
  const int64_t count = 5 * 7 * 3;
  double *y = ck_integers(rig, count, -9, 9), *t = ck_integers(rig, count, -9, 9);
  double want[2] = {0, (double)count}, *squares = ck_zeros(rig, count);
  double *gradient = ck_zeros(rig, count);
  for (int64_t i = 0; i < count; i++) {
    squares[i] = (y[i] - t[i]) * (y[i] - t[i]);
    want[0] += squares[i];
    gradient[i] = 0.5 * 2 * (y[i] - t[i]);
  }
  ek_tensor *ty = ck_tensor(rig, y, CK_SHAPE(5, 7, 3)), *tt = ck_tensor(rig, t, CK_SHAPE(5, 7, 3));
  struct ck_loss *loss = ck_loss_open(rig, make(reduction), false);
  double totals[2];
  ck_loss_forward(loss, ty, tt, totals);
  ck_within("totals", totals, want, NULL, 2);
  if (reduction == EK_REDUCTION_NONE) {
    const ek_tensor losses = loss->losses;
    ck_assert(ek_tensor_same_shape(&losses, ty));
    ck_within("losses", ck_read(rig, &losses), squares, NULL, count);
  }
  const double half = 0.5;
  ck_loss_backward(loss, &half, NULL);
  ck_within("gradient", ck_read(rig, &loss->gradients[0]), gradient, NULL, count);
}

CK_RIG_LOOP(factors_multiply_single_gradients, CK_VARIANTS) {
  const int64_t count = 24;
  double *y = ck_integers(rig, count, -9, 9), *t = ck_integers(rig, count, -9, 9);
  double *factors = ck_integers(rig, count, -3, 3), *gradient = ck_zeros(rig, count);
  for (int64_t i = 0; i < count; i++) gradient[i] = factors[i] * 2 * (y[i] - t[i]);
  ek_tensor *ty = ck_tensor(rig, y, CK_SHAPE(4, 6)), *tt = ck_tensor(rig, t, CK_SHAPE(4, 6));
  struct ck_loss *loss = ck_loss_open(rig, make(EK_REDUCTION_NONE), false);
  ck_loss_forward(loss, ty, tt, NULL);
  ck_loss_backward(loss, NULL, ck_tensor(rig, factors, CK_SHAPE(count)));
  ck_within("gradient", ck_read(rig, &loss->gradients[0]), gradient, NULL, count);
}

/* ---- memory ---- */

CK_RIG_LOOP(it_takes_no_memory, CK_VARIANTS) {
  double *y = ck_values(rig, 600, -1, 1);
  ek_tensor *ty = ck_tensor(rig, y, CK_SHAPE(20, 30));
  ek_tensor *tt = ck_tensor(rig, ck_values(rig, 600, -1, 1), CK_SHAPE(20, 30));
  const uint64_t bytes =
      (ek_tensor_bytes(ty) + EK_MEMORY_UNIT - 1) / EK_MEMORY_UNIT * EK_MEMORY_UNIT;
  double *want = NULL;
  for (int way = 0; way < 3; way++) { /* kept; overwritten; with another holder */
    struct ck_loss *loss = ck_loss_open(rig, make(EK_REDUCTION_MEAN), way == 0);
    ek_memory_usage before, after;
    ek_tensor other = {0};
    if (way == 2) ck_ok(ek_tensor_share(&other, ty));
    ck_ok(ck_memory_stats(&before, rig->device));
    ck_loss_forward(loss, ty, tt, NULL);
    ck_assert_uint_eq(ck_loss_bytes(rig), 0);
    ck_loss_backward(loss, NULL, NULL);
    ck_assert_uint_eq(ck_loss_bytes(rig), way == 1 ? 0 : bytes);
    ck_ok(ck_memory_stats(&after, rig->device));
    ck_assert_uint_eq(after.allocations - before.allocations, way == 1 ? 0 : 1);
    const double *got = ck_read(rig, &loss->gradients[0]);
    if (way == 0) want = ck_read(rig, &loss->gradients[0]);
    ck_same_bits("gradient", got, want, 600);
    if (way != 1) ck_same_bits("outputs", ck_read(rig, ty), y, 600);
    ck_set(ty, y);
    ek_tensor_free(&other);
    ck_loss_close(loss);
  }
}

CK_RIG_LOOP(out_of_memory, CK_VARIANTS) {
  ek_tensor *ty = ck_poisoned(rig, CK_SHAPE(2, 3)), *tt = ck_poisoned(rig, CK_SHAPE(2, 3));
  ek_criterion *criterion = NULL;
  ek_host_memory_fail_at(1);
  ck_fails(ek_mean_squared_error_create(&criterion, EK_REDUCTION_MEAN), EK_ERR_OUT_OF_MEMORY,
           "mean_squared_error");
  ek_host_memory_fail_at(0);
  ck_assert_ptr_null(criterion);
  for (int reduction = 0; reduction < 3; reduction++) {
    criterion = make((ek_reduction)reduction);
    ck_loss_failures(rig, criterion, ty, tt);
    ek_criterion_free(criterion);
  }
}

/* ---- what is refused ---- */

CK_TEST(refused) {
  ek_criterion *criterion = NULL;
  ck_invalid(ek_mean_squared_error_create(NULL, EK_REDUCTION_MEAN), "criterion is NULL");
  ck_invalid(ek_mean_squared_error_create(&criterion, (ek_reduction)7), "reduction 7");
  ck_assert_ptr_null(criterion);

  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  struct ck_loss *loss = ck_loss_open(rig, make(EK_REDUCTION_MEAN), false);
  const ek_tensor *y = ck_poisoned(rig, CK_SHAPE(2, 6));
  const ek_tensor *other = ck_poisoned(rig, CK_SHAPE(4, 3));
  const ek_tensor *flat = ck_poisoned(rig, CK_SHAPE(12));
  const ek_tensor *wide = ck_tensor_of(rig, EK_F64, NULL, CK_SHAPE(2, 6));
  const ek_tensor *whole = ck_tensor_of(rig, EK_I32, NULL, CK_SHAPE(2, 6));
  ck_fails(ck_loss_try_forward(loss, y, other, false), EK_ERR_SHAPE, "shape differs");
  ck_fails(ck_loss_try_forward(loss, y, flat, false), EK_ERR_SHAPE, "shape differs");
  ck_fails(ck_loss_try_forward(loss, y, wide, false), EK_ERR_TYPE, "f64");
  ck_fails(ck_loss_try_forward(loss, y, whole, false), EK_ERR_TYPE, "i32");
}

CK_RIG_LOOP(no_rows, CK_VARIANTS) {
  ek_tensor *ty = ck_tensor(rig, NULL, CK_SHAPE(0, 5)), *tt = ck_tensor(rig, NULL, CK_SHAPE(0, 5));
  struct ck_loss *loss = ck_loss_open(rig, make(EK_REDUCTION_MEAN), false);
  double totals[2];
  ck_loss_forward(loss, ty, tt, totals);
  ck_assert(totals[0] == 0.0 && totals[1] == 0.0);
  ck_loss_backward(loss, NULL, NULL);
  ck_assert(ek_tensor_same_shape(&loss->gradients[0], ty));
}

CK_SUITE("mean_squared_error")
