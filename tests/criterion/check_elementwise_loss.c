/*
 * check_elementwise_loss.c - squared errors, L1, smooth L1, Huber, binary cross-entropy and
 * divergence: their values against the formulas in long double and against PyTorch's, and slopes
 * against differences. What all element-wise criteria share is in check_mean_squared_error.c.
 *
 * Bounds, u the unit roundoff of the type of sums: docs/numerics.md.
 */
#include "ck_criterion.h"

enum { SQUARED, L1, SMOOTH_L1, HUBER, BINARY, POSITIVE, DIVERGENCE, LOG_DIVERGENCE, KINDS };

static ek_element_loss loss_number(int i) {
  switch (i) {
  case SQUARED: return (ek_element_loss){EK_ELEMENT_LOSS_SQUARED, 0, 0};
  case L1: return ek_absolute_error();
  case SMOOTH_L1: return ek_smooth_absolute_error(0.5);
  case HUBER: return ek_huber(1.5);
  case BINARY: return ek_binary_cross_entropy();
  case POSITIVE: return ek_binary_cross_entropy_with(2.5);
  default: return ek_divergence(i == LOG_DIVERGENCE);
  }
}

static ek_criterion *make_with(int number, ek_reduction reduction, bool weighted, bool by_sample) {
  const ek_element_loss loss = loss_number(number);
  CK_WITH(ek_elementwise_loss_options, options, EK_ELEMENTWISE_LOSS_OPTIONS_INIT,
          .reduction = reduction, .weighted = weighted, .by_sample = by_sample);
  CK_GOT(ek_criterion *, criterion, ek_elementwise_loss_create_with(&criterion, &loss, &options));
  return criterion;
}

static ek_criterion *make(int number, ek_reduction reduction) {
  const ek_element_loss loss = loss_number(number);
  ek_criterion *criterion = NULL;
  ck_ok(number == SQUARED ? ek_mean_squared_error_create(&criterion, reduction)
                          : ek_elementwise_loss_create(&criterion, &loss, reduction));
  return criterion;
}

/* Targets that a kind can have: probabilities, their logarithms, or any. */
static double lowest(int number) {
  return number == LOG_DIVERGENCE ? -3 : number >= BINARY ? 0 : -4;
}
static double highest(int number) {
  return number == LOG_DIVERGENCE ? 0 : number >= BINARY ? 1 : 4;
}

/* As PyTorch's documentation has them. */
static long double formula(int number, long double y, long double t, long double *slope) {
  const long double d = y - t, size = fabsl(d);
  const long double width = number == SMOOTH_L1 ? 0.5L : number == HUBER ? 1.5L : 0.0L;
  const long double sign = d > 0 ? 1 : d < 0 ? -1 : 0;
  if (number == DIVERGENCE || number == LOG_DIVERGENCE) {
    const long double p = number == DIVERGENCE ? t : expl(t), log_p = p == t ? logl(t) : t;
    *slope = -p;
    return p == 0 ? 0 : p * (log_p - y);
  }
  if (number == BINARY || number == POSITIVE) {
    const long double share = number == BINARY ? t : 2.5L * t, other = 1 - t;
    *slope = other / (1 + expl(-y)) - share / (1 + expl(y));
    return share * log1pl(expl(-y)) + other * log1pl(expl(y));
  }
  if (number == SQUARED) {
    *slope = 2 * d;
    return d * d;
  }
  const long double steepness = number == HUBER ? 1.5L : 1.0L;
  *slope = steepness * (size < width ? d / width : sign);
  return steepness * (size < width ? d * d / (2 * width) : size - width / 2);
}

static double bound_of(const struct ck_rig *rig, int number, double y, double t) {
  const double size = fabs(y) + fabs(t);
  if (number == SQUARED) return 3 * rig->unit * (y - t) * (y - t);
  if (number >= DIVERGENCE) return 8 * rig->unit * (1 + size);
  if (number >= BINARY)
    return (number == BINARY ? 8 : 20) * rig->unit * (1 + fabs(y) * (1 + fabs(t)));
  return 12 * rig->unit * (number == HUBER ? 1.5 : 1.0) * size *
         (1 + (number == SMOOTH_L1 ? size : 0));
}

static double slope_bound(const struct ck_rig *rig, int number, double y, double t) {
  if (number == SQUARED) return 8 * rig->unit * fabs(y - t) / 3; /* a difference, and a scale */
  if (number >= BINARY) return (number == POSITIVE ? 30 : 12) * rig->unit * (1 + fabs(t));
  return 12 * rig->unit * (1.5 + fabs(t) + fabs(y));
}

/* 9,001 elements, more than one chunk of the sum. Targets of a binary loss are probabilities. */
CK_LOOP(equals_the_formula, KINDS * CK_VARIANTS) {
  enum { COUNT = 9001 };
  struct ck_rig *rig = ck_rig_variant(_i / KINDS);
  const int number = _i % KINDS;
  double *y = ck_values(rig, COUNT, -4, 4);
  double *t = ck_values(rig, COUNT, lowest(number), highest(number));
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
    gradient_bound[i] = slope_bound(rig, number, y[i], t[i]);
    sum += l;
    sum_bound += (number == SQUARED ? 0 : bound[i]) + (COUNT + 3) * rig->unit * fabs(want[i]);
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

CK_LOOP(gradient_is_the_derivative, 2 * KINDS) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
  const int number = _i % KINDS;
  ek_tensor *y = ck_tensor(rig, ck_values(rig, 30, -1, 1), CK_SHAPE(5, 6));
  const ek_tensor targets[] = {
      *ck_tensor(rig, ck_values(rig, 30, lowest(number), highest(number)), CK_SHAPE(5, 6)),
      *ck_tensor(rig, ck_integers(rig, 30, 0, 3), CK_SHAPE(5, 6))};
  ek_criterion *criterion = make_with(number, EK_REDUCTION_SUM, _i >= KINDS, false);
  ck_loss_gradient(rig, ck_loss_open(rig, criterion, true), y, targets, 30);
}

/* ---- weights ---- */

/* Whole numbers, so that all is exact: the squared error of elements that count, each with its
 * weight. Those of weight 0 hold what would show. */
CK_LOOP(weights, 6 * CK_VARIANTS) {
  enum { ROWS = 7, COUNT = ROWS * 33 };
  struct ck_rig *rig = ck_rig_variant(_i / 6);
  const ek_reduction reduction = (ek_reduction)(_i % 3);
  const bool by_sample = _i % 6 >= 3;
  double *y = ck_integers(rig, COUNT, -5, 5), *t = ck_integers(rig, COUNT, -5, 5);
  double *w = ck_integers(rig, COUNT, 0, 3), *factors = ck_integers(rig, COUNT, -3, 3);
  double *losses = ck_zeros(rig, COUNT), *gradient = ck_zeros(rig, COUNT), want[2] = {0, 0};
  for (int i = 0; i < COUNT; i++) {
    losses[i] = w[i] * (y[i] - t[i]) * (y[i] - t[i]);
    gradient[i] = w[i] * 2 * (y[i] - t[i]) * (reduction == EK_REDUCTION_NONE ? factors[i] : 0.5);
    want[0] += losses[i];
    want[1] += w[i];
    if (w[i] != 0) continue;
    y[i] = i % 2 == 0 ? (double)NAN : (double)INFINITY;
    t[i] = i % 3 == 0 ? (double)NAN : -(double)INFINITY;
  }
  if (by_sample) want[1] /= 33;
  struct ck_loss *loss = ck_loss_open(rig, make_with(SQUARED, reduction, true, by_sample), true);
  ek_tensor *ty = ck_tensor(rig, y, CK_SHAPE(ROWS, 33));
  const ek_tensor targets[] = {*ck_tensor(rig, t, CK_SHAPE(ROWS, 33)),
                               *ck_tensor(rig, w, CK_SHAPE(ROWS, 33))};
  double totals[2];
  const double half = 0.5;
  ck_loss_forward(loss, ty, targets, totals);
  ck_within("totals", totals, want, NULL, 2);
  if (reduction == EK_REDUCTION_NONE) {
    ck_within("losses", ck_read(rig, &loss->losses), losses, NULL, COUNT);
  }
  ck_loss_backward(loss, &half, ck_tensor(rig, factors, CK_SHAPE(COUNT)));
  ck_within("gradient", ck_read(rig, &loss->gradients[0]), gradient, NULL, COUNT);
}

CK_RIG_LOOP(nothing_counts, CK_VARIANTS) {
  const double nan[] = {(double)NAN, (double)NAN, 1, 2}, none[4] = {0};
  for (int number = 0; number < KINDS; number++) {
    ek_tensor *ty = ck_tensor(rig, nan, CK_SHAPE(2, 2));
    const ek_tensor targets[] = {*ck_tensor(rig, nan, CK_SHAPE(2, 2)),
                                 *ck_tensor(rig, none, CK_SHAPE(2, 2))};
    double totals[2];
    ek_criterion *criterion = make_with(number, EK_REDUCTION_MEAN, true, number % 2 == 0);
    struct ck_loss *loss = ck_loss_open(rig, criterion, true);
    ck_loss_forward(loss, ty, targets, totals);
    ck_assert(totals[0] == 0.0 && totals[1] == 0.0);
    ck_loss_backward(loss, NULL, NULL);
    ck_within("gradient", ck_read(rig, &loss->gradients[0]), none, NULL, 4);
  }
}

/*
 * PyTorch 2.15, float64; of divergences y = log_softmax(x, 1):
 *
 *   i = torch.arange(12); x = ((i * 7 % 11 - 5) / 4.0).reshape(3, 4)
 *   t = (i * 5 % 8 / 8.0).reshape(3, 4); w = (i * 3 % 4).reshape(3, 4).double()
 *   F.kl_div(y, t, reduction="mean"), F.kl_div(y, t, reduction="batchmean")
 *   F.kl_div(y, -t, reduction="batchmean", log_target=True)
 *   F.binary_cross_entropy_with_logits(x, t, pos_weight=torch.tensor(2.5))
 *   (F.smooth_l1_loss(x, t, reduction="none", beta=0.5) * w).sum() / w.sum()
 */
static const struct {
  int number;
  bool logs, negative, weighted, by_sample;
  double loss, gradient[2]; /* of elements 3 and 6 */
} torch[] = {
    {DIVERGENCE, true, false, false, false, 0.3548325246590413, {-7.0 / 96, -0.0625}},
    {DIVERGENCE, true, false, false, true, 1.4193300986361652, {-7.0 / 24, -0.25}},
    {LOG_DIVERGENCE, true, true, false, true, 4.08674996852158,
     {-0.1389540065595028, -0.1574555175803382}},
    {POSITIVE, false, false, false, false, 1.0413124097511781,
     {-0.03249950591946057, -0.02679171003426996}},
    {SMOOTH_L1, false, false, true, false, 0.3194444444444444, {1.0 / 24, 1.0 / 18}},
};

CK_LOOP(equals_pytorch, sizeof torch / sizeof torch[0]) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
  double y[12], t[12], w[12];
  for (int i = 0; i < 12; i++) {
    y[i] = (i * 7 % 11 - 5) / 4.0;
    t[i] = (torch[_i].negative ? -1 : 1) * (i * 5 % 8) / 8.0;
    w[i] = i * 3 % 4;
  }
  for (int i = 0; i < 12 && torch[_i].logs; i += 4) {
    double z = 0;
    for (int c = 0; c < 4; c++) z += exp(y[i + c]);
    for (int c = 0; c < 4; c++) y[i + c] -= log(z);
  }
  ek_criterion *criterion = make_with(torch[_i].number, EK_REDUCTION_MEAN, torch[_i].weighted,
                                      torch[_i].by_sample);
  struct ck_loss *loss = ck_loss_open(rig, criterion, true);
  const ek_tensor targets[] = {*ck_tensor(rig, t, CK_SHAPE(3, 4)),
                               *ck_tensor(rig, w, CK_SHAPE(3, 4))};
  double totals[2];
  ck_loss_forward(loss, ck_tensor(rig, y, CK_SHAPE(3, 4)), targets, totals);
  const double got = totals[0] / totals[1], bound = 1e-14, scale = 1 / totals[1];
  ck_within("loss", &got, &torch[_i].loss, &bound, 1);
  ck_loss_backward(loss, &scale, NULL);
  const double *gradient = ck_read(rig, &loss->gradients[0]);
  ck_within("gradient", &gradient[3], &torch[_i].gradient[0], &bound, 1);
  ck_within("gradient", &gradient[6], &torch[_i].gradient[1], &bound, 1);
}

/* No overflow far from 0, and 0 where nothing differs. */
CK_RIG_LOOP(large_and_equal_numbers, CK_VARIANTS) {
  const double y[] = {100, -100, 3, -3}, t[] = {1, 0, 3, -3}, ends[] = {0, 0};
  ek_tensor *ty = ck_tensor(rig, y, CK_SHAPE(4)), *tt = ck_tensor(rig, t, CK_SHAPE(4));
  struct ck_loss *binary = ck_loss_open(rig, make(BINARY, EK_REDUCTION_NONE), false);
  const double tiny[] = {1e-40, 1e-40};
  ck_loss_forward(binary, ty, tt, NULL);
  ck_within("losses", ck_read(rig, &binary->losses), ends, tiny, 2);
  for (int number = 0; number < BINARY; number++) {
    struct ck_loss *loss = ck_loss_open(rig, make(number, EK_REDUCTION_SUM), true);
    ck_loss_forward(loss, ty, tt, NULL);
    ck_loss_backward(loss, NULL, NULL);
    ck_within("gradient", ck_read(rig, &loss->gradients[0]) + 2, ends, NULL, 2);
  }
}

/* The same number of elements in another shape is refused; tensors without elements are not. */
CK_RIG_TEST(shapes, NULL, EK_F32) {
  const double *numbers = ck_values(rig, 12, 0, 1);
  ek_tensor *y = ck_tensor(rig, numbers, CK_SHAPE(2, 6));
  ek_tensor *other = ck_tensor(rig, numbers, CK_SHAPE(4, 3));
  struct ck_loss *loss = ck_loss_open(rig, make_with(L1, EK_REDUCTION_MEAN, true, true), false);
  ck_fails(ck_loss_try_forward(loss, y, (const ek_tensor[]){*other, *y}, false), EK_ERR_SHAPE,
           "the target's shape differs from the output's: rank 2 with 3 elements in each row, "
           "expected rank 2 with 6");
  ck_fails(ck_loss_try_forward(loss, y, (const ek_tensor[]){*y, *other}, false), EK_ERR_SHAPE,
           "the weight's shape differs");
  double totals[2];
  ek_tensor *empty = ck_tensor(rig, numbers, CK_SHAPE(2, 0));
  ck_loss_forward(loss, empty, (const ek_tensor[]){*empty, *empty}, totals);
  ck_assert(totals[0] == 0 && totals[1] == 0);
}

CK_TEST(refused) {
  ek_criterion *criterion = NULL;
  const double bad[] = {-1, (double)NAN, (double)INFINITY};
  ek_element_loss loss = {(ek_element_loss_kind)5, 0, 0};
  ck_invalid(ek_elementwise_loss_create(&criterion, &loss, EK_REDUCTION_MEAN), "unknown kind 5");
  for (size_t i = 0; i < 3; i++) {
    loss = ek_huber(bad[i]);
    ck_invalid(ek_elementwise_loss_create(&criterion, &loss, EK_REDUCTION_MEAN), "huber: width is");
  }
  loss = ek_absolute_error();
  ck_invalid(ek_elementwise_loss_create(NULL, &loss, EK_REDUCTION_MEAN), "criterion is NULL");
  ck_invalid(ek_elementwise_loss_create(&criterion, NULL, EK_REDUCTION_MEAN), "loss is NULL");
  ek_host_memory_fail_at(1);
  ck_fails(ek_elementwise_loss_create(&criterion, &loss, EK_REDUCTION_MEAN),
           EK_ERR_OUT_OF_MEMORY, "huber");
  ek_host_memory_fail_at(0);
  ck_assert_ptr_null(criterion);
}

CK_SUITE("elementwise_loss")
