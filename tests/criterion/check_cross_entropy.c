/*
 * check_cross_entropy.c - the cross-entropy criterion against the formula written out, against
 * numbers of PyTorch, against differences, and by its memory.
 */
#include "ck_criterion.h"
#include "ck_op_loss.h"

enum { IGNORED = 7 };

/* rows x classes logits, as 2-dimensional or [rows / 4, 4, classes], with their targets. */
struct batch {
  int64_t rows, classes;
  double *logits, *targets;
  ek_tensor *x, *y;
};

static struct batch make_batch(struct ck_rig *rig, int64_t rows, int64_t classes) {
  struct batch b = {.rows = rows, .classes = classes};
  b.logits = ck_values(rig, rows * classes, -5.0, 5.0);
  b.targets = ck_integers(rig, rows, 0, classes - 1);
  if (classes > IGNORED) b.targets[1] = b.targets[rows - 1] = IGNORED;
  b.x = rows % 4 == 0 ? ck_tensor(rig, b.logits, CK_SHAPE(rows / 4, 4, classes))
                      : ck_tensor(rig, b.logits, CK_SHAPE(rows, classes));
  b.y = rows % 4 == 0 ? ck_tensor_of(rig, EK_I32, b.targets, CK_SHAPE(rows / 4, 4))
                      : ck_tensor_of(rig, EK_I32, b.targets, CK_SHAPE(rows));
  return b;
}

/* The cross-entropy of ck_op_loss.h for the options of a criterion. */
static struct ck_formula reference(struct ck_rig *rig, const struct batch *b,
                                const ek_cross_entropy_options *o) {
  struct ck_formula f = ck_loss_make(rig, b->rows, b->classes);
  f.smoothing = o->label_smoothing;
  if (o->class_weights != NULL) f.weights = ck_zeros(rig, b->classes);
  for (int64_t c = 0; c < b->classes && f.weights != NULL; c++) {
    f.weights[c] = ck_round(rig, o->class_weights[c]);
  }
  memcpy(f.logits, b->logits, (size_t)(b->rows * b->classes) * sizeof *f.logits);
  for (int64_t r = 0; r < b->rows; r++) {
    f.targets[r] = (int32_t)b->targets[r] == o->ignore_index ? CK_IGNORED : b->targets[r];
  }
  ck_loss_reference(rig, &f);
  return f;
}

static ek_criterion *make(const ek_cross_entropy_options *options) {
  CK_GOT(ek_criterion *, criterion, ek_cross_entropy_create(&criterion, options));
  ck_assert_ptr_nonnull(criterion);
  return criterion;
}

static uint64_t units(uint64_t bytes) {
  return (bytes + EK_MEMORY_UNIT - 1) / EK_MEMORY_UNIT * EK_MEMORY_UNIT;
}

/* ---- values ---- */

struct setting {
  bool weights, ignore;
  double smoothing;
};
static const struct setting settings[] = {
    {false, false, 0.0}, {false, true, 0.0},  {true, false, 0.0},
    {true, true, 0.1},   {false, true, 0.25}, {true, true, 1.0},
};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

static ek_cross_entropy_options options_of(struct ck_rig *rig, const struct setting *setting,
                                           int64_t classes) {
  ek_cross_entropy_options o = EK_CROSS_ENTROPY_OPTIONS_INIT;
  if (setting->ignore) o.ignore_index = IGNORED;
  o.label_smoothing = setting->smoothing;
  if (setting->weights) {
    double *w = ck_values(rig, classes, 0.0, 3.0);
    w[0] = 0.0; /* legal */
    ck_assign(o, .class_weights = w, .classes = classes);
  }
  return o;
}

static void check_gradient(struct ck_rig *rig, const struct ck_loss *loss,
                           const struct ck_formula *want) {
  const ek_tensor *gradient = &loss->gradients[0];
  ck_within("gradient", ck_read(rig, gradient), want->gradient, want->gradient_bound,
            ek_tensor_count(gradient));
}

/* A gradient that forward writes is the one of the formula, and then nothing is left to save. */
static void check_formula(struct ck_rig *rig, const struct setting *setting, int64_t rows,
                          bool in_forward) {
  struct batch b = make_batch(rig, rows, 37);
  const ek_cross_entropy_options o = options_of(rig, setting, b.classes);
  struct ck_formula want = reference(rig, &b, &o);
  struct ck_loss *loss = ck_loss_open(rig, make(&o), false);
  const double scale = in_forward ? 1 : 0.375; /* exact: no rounding of its own */
  const double d_bound = (double)rows * rig->unit * want.d;
  double totals[2];
  (in_forward ? ck_loss_forward_gradient : ck_loss_forward)(loss, b.x, b.y, totals);
  ck_within("s", &totals[0], &want.s, &want.s_bound, 1);
  ck_within("d", &totals[1], &want.d, &d_bound, 1);
  if (in_forward) {
    ck_assert_uint_le(ck_loss_bytes(rig), units((uint64_t)b.classes * ek_type_size(rig->type)));
    ck_within("outputs", ck_read(rig, b.x), want.gradient, want.gradient_bound, rows * b.classes);
  }
  ck_loss_backward(loss, in_forward ? NULL : &scale, NULL);
  for (int64_t i = 0; i < rows * b.classes; i++) want.gradient[i] *= scale;
  ck_assert(ek_tensor_same_shape(&loss->gradients[0], b.x));
  check_gradient(rig, loss, &want);
}

CK_LOOP(equals_the_formula, SETTINGS * CK_VARIANTS) {
  check_formula(ck_rig_variant(_i / SETTINGS), &settings[_i % SETTINGS], 24 - _i % 2, false);
}
CK_LOOP(the_gradient_in_forward, SETTINGS * CK_VARIANTS) {
  check_formula(ck_rig_variant(_i / SETTINGS), &settings[_i % SETTINGS], 24 - _i % 2, true);
}

/*
 * Python 3.11, PyTorch 1.13:
 *
 *   torch.set_default_dtype(torch.float64)
 *   x = (torch.arange(30) * 7 % 11 - 5).reshape(6, 5) / 4.0; x.requires_grad_()
 *   y = torch.tensor([0, 3, -100, 4, 1, -100]); w = torch.tensor([0.5, 1.0, 2.0, 0.25, 1.5])
 *   loss = F.cross_entropy(x, y, weight=w, label_smoothing=0.1); loss.backward(); loss, x.grad
 *   F.cross_entropy(x, y, weight=w, label_smoothing=0.1, reduction='none')
 */
static const double torch_mean = 2.5861072961719165;
static const double torch_losses[] = {
    1.6757448606970589, 0.821487931793218, 0, 3.9208192941592097, 1.9867966259092427, 0,
};
static const double torch_gradient[] = {
    -0.13485101386728979, 0.032329758110327143, 0.0018496345232747004, 0.079931329328108938,
    0.020740291905578995, 0.004108032810377641, 0.035192720222197674,  0.002902859425084644,
    -0.065173581497867478, 0.022969969040207525, 0, 0, 0, 0, 0, 0.095312989417066118,
    0.030041779871349705, 0.19598375407660243, 0.075087679358184237, -0.39642620272320239,
    0.11731565030795833, -0.2387869704589011, 0.0039856707109352943, 0.092223368889665674,
    0.025262280550341742, 0, 0, 0, 0, 0};

CK_RIG_TEST(equals_pytorch, NULL, EK_F64) {
  static const double weights[] = {0.5, 1.0, 2.0, 0.25, 1.5};
  const double targets[] = {0, 3, -100, 4, 1, -100};
  double logits[30], bound[30];
  for (int i = 0; i < 30; i++) {
    logits[i] = (i * 7 % 11 - 5) / 4.0;
    bound[i] = 2.8e-14; /* both sides round some ten times at 4 or less: 64 units of 2^-53 at 4 */
  }
  ek_tensor *x = ck_tensor(rig, logits, CK_SHAPE(6, 5));
  ek_tensor *y = ck_tensor_of(rig, EK_I32, targets, CK_SHAPE(6));
  CK_WITH(ek_cross_entropy_options, o, EK_CROSS_ENTROPY_OPTIONS_INIT, .label_smoothing = 0.1,
          .class_weights = weights, .classes = 5, .reduction = EK_REDUCTION_NONE);
  struct ck_loss *loss = ck_loss_open(rig, make(&o), false);
  double totals[2];
  ck_loss_forward(loss, x, y, totals);
  const double mean = totals[0] / totals[1];
  ck_within("mean", &mean, &torch_mean, bound, 1);
  ck_within("losses", ck_read(rig, &loss->losses), torch_losses, bound, 6);
  const double scale = 1.0 / totals[1];
  ck_loss_backward(loss, &scale, NULL);
  ck_within("gradient", ck_read(rig, &loss->gradients[0]), torch_gradient, bound, 30);
}

CK_LOOP(gradient_is_the_derivative, SETTINGS) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
  struct batch b = make_batch(rig, 12, 9);
  const ek_cross_entropy_options o = options_of(rig, &settings[_i], b.classes);
  ck_loss_gradient(rig, ck_loss_open(rig, make(&o), true), b.x, b.y, 60);
}

/* The loss over the first columns of wider rows is that over a copy of them, also where the rest is
 * no number; the gradient of the rest is 0. */
static void run_loss(struct ck_loss *loss, bool in_forward, const ek_tensor *x, const ek_tensor *y,
                     double totals[2]) {
  (in_forward ? ck_loss_forward_gradient : ck_loss_forward)(loss, x, y, totals);
  ck_loss_backward(loss, NULL, NULL);
}

CK_LOOP(padding_columns_count_for_nothing, SETTINGS * CK_VARIANTS) {
  enum { WIDE = 48 };
  struct ck_rig *rig = ck_rig_variant(_i / SETTINGS);
  for (int in_forward = 0; in_forward < 2; in_forward++) {
    struct batch b = make_batch(rig, 24, 36);
    ek_cross_entropy_options o = options_of(rig, &settings[_i % SETTINGS], b.classes);
    const int64_t n = b.rows * WIDE;
    double *logits = ck_zeros(rig, n), *want = ck_zeros(rig, n), totals[2], wide_totals[2];
    struct ck_loss *narrow = ck_loss_open(rig, make(&o), false);
    run_loss(narrow, in_forward != 0, b.x, b.y, totals);
    const double *gradient = ck_read(rig, &narrow->gradients[0]);
    for (int64_t i = 0; i < n; i++) {
      const int64_t c = i % WIDE, from = i / WIDE * b.classes + c;
      logits[i] = c < b.classes ? b.logits[from] : c % 2 == 0 ? NAN : HUGE_VAL;
      want[i] = c < b.classes ? gradient[from] : 0;
    }
    o.classes = b.classes;
    const ek_tensor *x = ck_tensor(rig, logits, CK_SHAPE(b.rows / 4, 4, WIDE));
    struct ck_loss *wide = ck_loss_open(rig, make(&o), false);
    run_loss(wide, in_forward != 0, x, b.y, wide_totals);
    ck_same_bits("totals", wide_totals, totals, 2);
    ck_within("gradient", ck_read(rig, &wide->gradients[0]), want, NULL, n);
    ck_loss_close(wide);
    ck_loss_close(narrow);
  }
}

CK_RIG_LOOP(all_ignored_is_zero_and_not_nan, CK_VARIANTS) {
  struct batch b = make_batch(rig, 8, 5);
  double *ignored = ck_zeros(rig, 8);
  for (int i = 0; i < 8; i++) ignored[i] = -100;
  ck_set(b.y, ignored);
  struct ck_loss *loss = ck_loss_open(rig, make(NULL), false);
  double totals[2];
  ck_loss_forward(loss, b.x, b.y, totals);
  ck_assert(totals[0] == 0.0 && totals[1] == 0.0);
  ck_loss_backward(loss, NULL, NULL);
  ck_within("gradient", ck_read(rig, &loss->gradients[0]), ck_zeros(rig, 40), NULL, 40);
}

CK_RIG_LOOP(single_losses_and_their_factors, CK_VARIANTS) {
  struct batch b = make_batch(rig, 24, 11);
  ek_cross_entropy_options o = options_of(rig, &settings[3], b.classes);
  o.reduction = EK_REDUCTION_NONE;
  struct ck_formula want = reference(rig, &b, &o);
  struct ck_loss *loss = ck_loss_open(rig, make(&o), false);
  ck_loss_forward(loss, b.x, b.y, NULL);

  ck_assert_int_eq(loss->losses.rank, 2); /* the shape of the logits without the classes */
  ck_assert(loss->losses.shape[0] == 6 && loss->losses.shape[1] == 4);
  ck_within("losses", ck_read(rig, &loss->losses), want.l, want.l_bound, b.rows);

  double *factors = ck_values(rig, b.rows, 0.0, 1.0);
  ck_loss_backward(loss, NULL, ck_tensor(rig, factors, CK_SHAPE(b.rows)));
  for (int64_t i = 0; i < b.rows * b.classes; i++) want.gradient[i] *= factors[i / b.classes];
  check_gradient(rig, loss, &want);
}

CK_RIG_LOOP(constant_shifts_and_large_logits, CK_VARIANTS) {
  /* 1000 overflows exp in both types: the largest logit must be taken off first. */
  const double logits[] = {1000, 0, -1000, -1000, 1000, 1000};
  const double targets[] = {0, 1};
  ek_tensor *x = ck_tensor(rig, logits, CK_SHAPE(2, 3));
  ek_tensor *y = ck_tensor_of(rig, EK_I32, targets, CK_SHAPE(2));
  struct ck_loss *loss = ck_loss_open(rig, make(NULL), false);
  double totals[2];
  ck_loss_forward(loss, x, y, totals);
  const double want = log(2.0), bound = 4 * rig->unit; /* z = 2 is exact, and so are 1000 - 1000 */
  ck_within("s", &totals[0], &want, &bound, 1);
  ck_loss_backward(loss, NULL, NULL);
  const double gradient[] = {0, 0, 0, 0, -0.5, 0.5};
  double bounds[6];
  for (int i = 0; i < 6; i++) bounds[i] = bound;
  ck_within("gradient", ck_read(rig, &loss->gradients[0]), gradient, bounds, 6);
}

/* ---- memory ---- */

CK_RIG_LOOP(the_gradient_takes_the_place_of_the_outputs, CK_VARIANTS) {
  struct batch b = make_batch(rig, 24, 50);
  const uint64_t row_bytes = units(24 * 2 * ek_type_size(rig->type));
  const uint64_t logit_bytes = units(ek_tensor_bytes(b.x));
  double *want = NULL;
  /* 0: kept; 1: overwritten; 2: would be overwritten, but the outputs have another holder */
  for (int way = 0; way < 3; way++) {
    struct ck_loss *loss = ck_loss_open(rig, make(NULL), way == 0);
    ck_loss_forward(loss, b.x, b.y, NULL);
    ck_loss_forward(loss, b.x, b.y, NULL);            /* drops what the first one saved */
    ck_assert_uint_eq(ck_loss_bytes(rig), row_bytes); /* {m, z}; the losses are gone */
    ek_tensor other = {0};
    if (way == 2) ck_ok(ek_tensor_share(&other, b.x));
    ck_ok(ek_memory_reset_peak(rig->device));
    ck_loss_backward(loss, NULL, NULL);
    ck_assert_uint_eq(ck_loss_bytes(rig), way == 1 ? 0 : logit_bytes);
    ck_assert_int_eq(loss->gradients[0].data == b.x->data, way == 1);
    const double *got = ck_read(rig, &loss->gradients[0]);
    if (way == 0) want = ck_read(rig, &loss->gradients[0]);
    ck_same_bits("gradient", got, want, b.rows * b.classes);
    if (way != 1) ck_same_bits("outputs", ck_read(rig, b.x), b.logits, b.rows * b.classes);
    ck_set(b.x, b.logits);
    ek_tensor_free(&other);
    ck_loss_close(loss);
  }
}

CK_TEST(the_loss_of_a_large_vocabulary_is_small) {
  /* 8,000 rows of 40,000 classes are 1.28 GB: the loss adds three numbers per row. */
  ek_group *group = ck_open("plan:1@16GiB", 1);
  struct ck_rig rig = {.group = group, .device = ek_group_device(group, 0), .type = EK_F32};
  ek_tensor x = {0}; /* whose memory the gradient takes */
  ck_ok(ek_tensor_create(&x, rig.device, EK_MEMORY_OUTPUTS, EK_F32, CK_SHAPE(32, 250, 40000)));
  CK_OPENED(ek_tensor, y,
            ek_tensor_create(&y, rig.device, EK_MEMORY_INPUTS, EK_I32, CK_SHAPE(32, 250)));
  for (int keep = 0; keep < 2; keep++) {
    struct ck_loss *loss = ck_loss_open(&rig, make(NULL), keep == 1);
    ck_ok(ek_memory_reset_peak(rig.device));
    ck_loss_forward(loss, &x, &y, NULL);
    ck_loss_backward(loss, NULL, NULL);
    CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, rig.device));
    ck_assert_uint_eq(usage.at_peak[EK_MEMORY_OUTPUTS], 1280000000u);
    /* {m, z} beside the losses, or beside the gradient; the first is the whole peak in place. */
    ck_assert_uint_eq(usage.at_peak[EK_MEMORY_LOSS],
                      keep ? 1280000000u + units(64000) : units(64000) + units(32000));
    ck_loss_close(loss);
  }
  ek_tensor_free(&x);
}

CK_RIG_LOOP(a_second_batch_takes_no_host_memory, CK_VARIANTS) {
  struct batch b = make_batch(rig, 12, 6);
  struct ck_loss *loss = ck_loss_open(rig, make(NULL), true);
  for (int round = 0; round < 3; round++) {
    ck_loss_drop(loss);
    if (round > 0) ek_host_memory_fail_at(1);
    const ek_status forward = ck_loss_try_forward(loss, b.x, b.y, false);
    const ek_status backward = ck_loss_try_backward(loss, NULL);
    ek_host_memory_fail_at(0);
    ck_assert_int_eq(forward, EK_OK);
    ck_assert_int_eq(backward, EK_OK);
  }
}

CK_RIG_LOOP(out_of_memory, CK_VARIANTS) {
  struct batch b = make_batch(rig, 12, 6);
  for (int reduction = 0; reduction < 3; reduction++) {
    ek_cross_entropy_options o = options_of(rig, &settings[3], b.classes);
    o.reduction = (ek_reduction)reduction;
    ek_criterion *criterion = NULL;
    for (uint64_t n = 1; n <= 2; n++) { /* the struct, the weights */
      ek_host_memory_fail_at(n);
      ck_fails(ek_cross_entropy_create(&criterion, &o), EK_ERR_OUT_OF_MEMORY, "cross_entropy");
      ck_assert_ptr_null(criterion);
    }
    ek_host_memory_fail_at(0);
    criterion = make(&o);
    ck_loss_failures(rig, criterion, b.x, b.y);
    ek_criterion_free(criterion);
  }
}

/* ---- soft targets ---- */

/* Rows of probabilities; with `ignore` the second row and the last are zeros. */
static double *soft_targets(struct ck_rig *rig, int64_t rows, int64_t classes, bool ignore) {
  double *t = ck_values(rig, rows * classes, 0.0, 1.0);
  for (int64_t row = 0; row < rows; row++) {
    double sum = ignore && (row == 1 || row == rows - 1) ? (double)INFINITY : 0;
    for (int64_t c = 0; c < classes; c++) sum += t[row * classes + c];
    for (int64_t c = 0; c < classes; c++) {
      t[row * classes + c] = ck_round(rig, c % 5 == 2 ? 0 : t[row * classes + c] / sum);
    }
  }
  return t;
}

/* The formula of losses.h. Of K classes the sum of exponentials, each good to 8 u or so, is good to
 * (K + 8) u, so that its logarithm has an absolute error of (K + 8) u; a loss of at most T + log K,
 * with T the distance between a row's logits, rounds a few times. With weights of W at most, four
 * times u (K + 16) (1 + T + log K) W covers all of it, of the loss and, relatively, of a
 * probability. */
static struct ck_formula soft_entropy(struct ck_rig *rig, const double *x, const double *t,
                                      int64_t rows, int64_t classes,
                                      const ek_cross_entropy_options *o) {
  struct ck_formula r = {.l = ck_zeros(rig, rows), .gradient = ck_zeros(rig, rows * classes),
                         .gradient_bound = ck_zeros(rig, rows * classes)};
  for (int64_t row = 0; row < rows; row++, x += classes, t += classes) {
    long double z = 0, mass = 0, weight = 0, loss = 0, q[64];
    for (int64_t c = 0; c < classes; c++) z += expl(x[c]);
    for (int64_t c = 0; c < classes; c++) {
      const double w = o->class_weights == NULL ? 1.0 : ck_round(rig, o->class_weights[c]);
      q[c] = w * ((1 - (long double)o->label_smoothing) * t[c] +
                  (long double)o->label_smoothing / (long double)classes);
      mass += t[c];
      weight += q[c];
      loss += q[c] * (logl(z) - x[c]);
    }
    if (mass == 0) continue;
    const double bound = 4 * rig->unit * (double)(classes + 16) * (11 + log((double)classes)) * 3;
    r.l[row] = (double)loss;
    r.s += (double)loss;
    r.d += 1;
    r.s_bound += bound + (double)rows * rig->unit * (double)loss;
    for (int64_t c = 0; c < classes; c++) {
      r.gradient[row * classes + c] = (double)(weight * expl(x[c]) / z - q[c]);
      r.gradient_bound[row * classes + c] = bound;
    }
  }
  return r;
}

CK_LOOP(soft_targets_equal_the_formula, 2 * SETTINGS * CK_VARIANTS) {
  struct ck_rig *rig = ck_rig_variant(_i / (2 * SETTINGS));
  const bool in_forward = _i / SETTINGS % 2 == 1;
  const int64_t rows = 24, classes = 37;
  double *x = ck_values(rig, rows * classes, -5.0, 5.0);
  double *t = soft_targets(rig, rows, classes, settings[_i % SETTINGS].ignore);
  ek_cross_entropy_options o = options_of(rig, &settings[_i % SETTINGS], classes);
  o.soft_targets = true;
  struct ck_formula want = soft_entropy(rig, x, t, rows, classes, &o);
  struct ck_loss *loss = ck_loss_open(rig, make(&o), false);
  const ek_tensor *tx = ck_tensor(rig, x, CK_SHAPE(6, 4, classes));
  const ek_tensor *ty = ck_tensor(rig, t, CK_SHAPE(6, 4, classes));
  double totals[2];
  run_loss(loss, in_forward, tx, ty, totals);
  ck_within("s", &totals[0], &want.s, &want.s_bound, 1);
  ck_assert(totals[1] == want.d);
  check_gradient(rig, loss, &want);
}

/* One probability of 1 is a class; columns after the classes count for nothing in both. */
CK_RIG_LOOP(soft_targets_of_one_class, CK_VARIANTS) {
  enum { ROWS = 24, WIDE = 40, CLASSES = 36 };
  double *x = ck_values(rig, ROWS * WIDE, -5.0, 5.0), *t = ck_zeros(rig, ROWS * WIDE);
  double *classes = ck_integers(rig, ROWS, 0, CLASSES - 1), hard[2], soft[2];
  double *bound = ck_zeros(rig, ROWS * WIDE);
  for (int i = 0; i < ROWS * WIDE; i++) {
    bound[i] = 64 * rig->unit;
    t[i] = i % WIDE >= CLASSES ? (double)NAN : i % WIDE == (int)classes[i / WIDE] ? 1 : 0;
  }
  const ek_tensor *tx = ck_tensor(rig, x, CK_SHAPE(ROWS, WIDE));
  CK_WITH(ek_cross_entropy_options, o, EK_CROSS_ENTROPY_OPTIONS_INIT, .classes = CLASSES);
  struct ck_loss *of_classes = ck_loss_open(rig, make(&o), true);
  o.soft_targets = true;
  struct ck_loss *of_soft = ck_loss_open(rig, make(&o), true);
  run_loss(of_classes, false, tx, ck_tensor_of(rig, EK_I32, classes, CK_SHAPE(ROWS)), hard);
  run_loss(of_soft, false, tx, ck_tensor(rig, t, CK_SHAPE(ROWS, WIDE)), soft);
  const double s_bound = 64 * rig->unit * hard[0];
  ck_within("s", soft, hard, &s_bound, 1);
  ck_assert(soft[1] == hard[1]);
  ck_within("gradient", ck_read(rig, &of_soft->gradients[0]),
            ck_read(rig, &of_classes->gradients[0]), bound, ROWS * WIDE);
}

/*
 * PyTorch 2.15, float64:
 *
 *   i = torch.arange(12); x = ((i * 7 % 11 - 5) / 4.0).reshape(3, 4).requires_grad_()
 *   t = (i * 5 % 8 / 8.0).reshape(3, 4); w = torch.tensor([0.5, 1.0, 2.0, 0.25])
 *   loss = F.cross_entropy(x, t, weight=w, label_smoothing=0.1); loss.backward(); loss, x.grad
 *   t = t / t.sum(1, keepdim=True); F.cross_entropy(x, t)
 */
CK_RIG_TEST(soft_targets_equal_pytorch, NULL, EK_F64) {
  static const double weights[] = {0.5, 1.0, 2.0, 0.25},
                      means[] = {1.8257362332140907, 1.326171096633659};
  static const double gradients[][4] = {
      {0.016464710074518055, -0.07710795752882936, -0.12299004176283626, 0.18363328921714764},
      {0.015832231551988273, -0.027939416991404967, -0.014102213160472731, 0.026209398599889466}};
  const double bound[] = {2.8e-14, 2.8e-14, 2.8e-14, 2.8e-14};
  for (int plain = 0; plain < 2; plain++) {
    double x[12], t[12], totals[2];
    for (int i = 0; i < 12; i++) {
      x[i] = (i * 7 % 11 - 5) / 4.0;
      t[i] = i * 5 % 8 / 8.0;
    }
    for (int i = 0; i < 12 && plain == 1; i += 4) {
      const double sum = t[i] + t[i + 1] + t[i + 2] + t[i + 3];
      for (int c = 0; c < 4; c++) t[i + c] /= sum;
    }
    CK_WITH(ek_cross_entropy_options, o, EK_CROSS_ENTROPY_OPTIONS_INIT, .soft_targets = true);
    if (plain == 0) ck_assign(o, .class_weights = weights, .classes = 4, .label_smoothing = 0.1);
    struct ck_loss *loss = ck_loss_open(rig, make(&o), false);
    ck_loss_forward(loss, ck_tensor(rig, x, CK_SHAPE(3, 4)), ck_tensor(rig, t, CK_SHAPE(3, 4)),
                    totals);
    const double mean = totals[0] / totals[1], third = 1.0 / 3;
    ck_within("mean", &mean, &means[plain], bound, 1);
    ck_loss_backward(loss, &third, NULL);
    ck_within("gradient", ck_read(rig, &loss->gradients[0]), gradients[plain], bound, 4);
  }
}

CK_LOOP(soft_gradient_is_the_derivative, SETTINGS) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
  ek_tensor *x = ck_tensor(rig, ck_values(rig, 12 * 9, -5.0, 5.0), CK_SHAPE(12, 9));
  const ek_tensor *y =
      ck_tensor(rig, soft_targets(rig, 12, 9, settings[_i].ignore), CK_SHAPE(12, 9));
  CK_WITH(ek_cross_entropy_options, o, options_of(rig, &settings[_i], 9), .soft_targets = true);
  ck_loss_gradient(rig, ck_loss_open(rig, make(&o), true), x, y, 60);
}

/* Class 0 is impossible, by its logit and by the targets. */
CK_RIG_LOOP(soft_targets_and_an_impossible_class, CK_VARIANTS) {
  const double x[] = {-(double)INFINITY, 1, 1, 0, 0, 0}, t[] = {0, 0.5, 0.5, 0, 0, 0};
  CK_WITH(ek_cross_entropy_options, o, EK_CROSS_ENTROPY_OPTIONS_INIT, .soft_targets = true);
  struct ck_loss *loss = ck_loss_open(rig, make(&o), false);
  double totals[2];
  run_loss(loss, false, ck_tensor(rig, x, CK_SHAPE(2, 3)), ck_tensor(rig, t, CK_SHAPE(2, 3)),
           totals);
  const double want[] = {log(2), 1}, bound[] = {8 * rig->unit, 0}, zeros[6] = {0};
  const double tiny[] = {0, 8 * rig->unit, 8 * rig->unit, 0, 0, 0};
  ck_within("totals", totals, want, bound, 2);
  ck_within("gradient", ck_read(rig, &loss->gradients[0]), zeros, tiny, 6);
}

/* ---- what is refused ---- */

CK_TEST(bad_options) {
  ek_criterion *criterion = NULL;
  ek_cross_entropy_options o = EK_CROSS_ENTROPY_OPTIONS_INIT;
  const ek_cross_entropy_options good = o;
  double w[] = {1, 2, 3};
  ck_invalid(ek_cross_entropy_create(NULL, NULL), "criterion is NULL");
  ck_bad(o, size, 0, ek_cross_entropy_create(&criterion, &o), "ek_cross_entropy_options.size");
  ck_bad(o, size, sizeof o + 1, ek_cross_entropy_create(&criterion, &o),
         "ek_cross_entropy_options.size");
  const double smoothings[] = {-0.01, 1.01, (double)NAN, (double)INFINITY};
  for (size_t i = 0; i < 4; i++) {
    o.label_smoothing = smoothings[i];
    ck_invalid(ek_cross_entropy_create(&criterion, &o), "label_smoothing");
  }
  o = good;
  ck_bad(o, reduction, (ek_reduction)3, ek_cross_entropy_create(&criterion, &o), "reduction");
  ck_bad(o, classes, -1, ek_cross_entropy_create(&criterion, &o), "classes is -1");
  o.class_weights = w;
  ck_invalid(ek_cross_entropy_create(&criterion, &o), "classes is 0");
  o.classes = 3;
  const double wrong[] = {-1, (double)NAN, (double)INFINITY};
  for (size_t i = 0; i < 3; i++) {
    w[2] = wrong[i];
    ck_invalid(ek_cross_entropy_create(&criterion, &o), "class_weights[2]");
  }
  ck_assert_ptr_null(criterion);
  /* An older program's shorter struct has the defaults for the rest. */
  o = good;
  ck_assign(o, .size = offsetof(ek_cross_entropy_options, label_smoothing), .label_smoothing = 9);
  criterion = make(&o);
  ek_criterion_free(criterion);
}

CK_RIG_TEST(bad_batches, NULL, EK_F32) {
  struct batch b = make_batch(rig, 6, 5);
  static const double weights[] = {1, 1, 1, 1, 1, 1};
  ek_cross_entropy_options o = EK_CROSS_ENTROPY_OPTIONS_INIT;
  struct ck_loss *plain = ck_loss_open(rig, make(&o), false);
  ck_assign(o, .class_weights = weights, .classes = 6);
  struct ck_loss *weighted = ck_loss_open(rig, make(&o), false);
  const ek_tensor *scalar = ck_poisoned(rig, 0, NULL);
  const ek_tensor *few = ck_tensor_of(rig, EK_I32, b.targets, CK_SHAPE(5));
  const ek_tensor *floating = ck_tensor(rig, b.targets, CK_SHAPE(6));

  ck_fails(ck_loss_try_forward(weighted, b.x, b.y, false), EK_ERR_SHAPE,
           "5 columns, but there are 6 classes");
  ck_fails(ck_loss_try_forward(plain, scalar, b.y, false), EK_ERR_SHAPE, "rank 0");
  ck_fails(ck_loss_try_forward(plain, b.x, few, false), EK_ERR_SHAPE, "targets");
  ck_fails(ck_loss_try_forward(plain, b.x, floating, false), EK_ERR_TYPE, "targets");
  ck_fails(ck_loss_try_forward(plain, b.y, b.y, false), EK_ERR_TYPE, "i32");
  if (strcmp(ek_device_backend(rig->device), "cpu") == 0) { /* others say so later */
    b.targets[4] = 5;
    ck_set(b.y, b.targets);
    ck_invalid(ck_loss_try_forward(plain, b.x, b.y, false), "5");
    b.targets[4] = 1;
    ck_set(b.y, b.targets);
  }
  o = (ek_cross_entropy_options)EK_CROSS_ENTROPY_OPTIONS_INIT;
  o.soft_targets = true;
  struct ck_loss *soft = ck_loss_open(rig, make(&o), false);
  ck_fails(ck_loss_try_forward(soft, b.x, b.y, false), EK_ERR_TYPE,
           "targets are i32, expected f32");
  ck_fails(ck_loss_try_forward(soft, b.x, floating, false), EK_ERR_SHAPE, "soft targets' shape");
  ck_assert_uint_eq(ck_loss_bytes(rig), 0);
  ck_loss_forward(plain, b.x, b.y, NULL); /* and it can go on */
}

CK_RIG_LOOP(no_rows, CK_VARIANTS) {
  ek_tensor *x = ck_tensor(rig, NULL, CK_SHAPE(0, 5));
  ek_tensor *y = ck_tensor_of(rig, EK_I32, NULL, CK_SHAPE(0));
  struct ck_loss *loss = ck_loss_open(rig, make(NULL), false);
  double totals[2];
  ck_loss_forward(loss, x, y, totals);
  ck_assert(totals[0] == 0.0 && totals[1] == 0.0);
  ck_loss_backward(loss, NULL, NULL);
  ck_assert(ek_tensor_same_shape(&loss->gradients[0], x));
}

CK_SUITE("cross_entropy")
