/*
 * check_losses.c - the losses of losses.h against plain loops in long double.
 *
 * Bounds, with u the unit roundoff of the type, C classes, m a row's largest logit, t = m - x >= 0,
 * z = sum e^-t, which is 1 .. C. Nothing in them grows with what the logits have in common:
 *   m         equal
 *   z         e z, e = (C + 8) u: t is rounded, which is worth u t e^-t, and C terms are added
 *   log z     e + 2 u log z
 *   l         (1 - s) w[y] (that) + s / C sum w (that) + (C + 4) u l: no term is negative
 *   s         sum of the rows' bounds + n 2^-53 sum|l|: rows are added in double
 *   d         n 2^-53 sum w, equal where the weights are 1
 *   gradient  |scale| ((1 - s) w[y] (p (e + 4 u + u t) + 3 u |p - 1 or 0|)
 *                      + s / C (p W (e + (C + 6) u + u t) + 3 u w)), W = sum of w
 *   squared   l: 3 u l, for y - t rounds once, relative to itself; the gradient: 4 u |g|;
 *             s: 3 u s + min(n, 2048) u s: blocks of at most 2048 are added in the type, then in
 *             double
 */
#include "ck_op_loss.h"

static ek_status forward(const struct ck_rig *rig, const struct ck_loss_tensors *t) {
  return ek_op_cross_entropy_forward(rig->stream, t->losses, t->normalizer, t->totals, t->logits,
                                     t->targets, &t->terms);
}

static ek_status backward(const struct ck_rig *rig, const struct ck_loss_tensors *t,
                          ek_tensor *gradient) {
  return ek_op_cross_entropy_backward(rig->stream, gradient, t->logits, t->normalizer, t->targets,
                                      t->scale, t->row_scale, &t->terms);
}

static void check_forward(struct ck_rig *rig, const struct ck_formula *f,
                          const struct ck_loss_tensors *t) {
  const double *l = ck_read(rig, t->losses), *totals = ck_read(rig, t->totals);
  ck_within("losses", l, f->l, f->l_bound, f->rows);
  ck_fits(rig, "normalizer", t->normalizer, f->normalizer, f->normalizer_bound, 2 * f->rows);
  ck_within("s", &totals[0], &f->s, &f->s_bound, 1);
  ck_within("d", &totals[1], &f->d, &f->d_bound, 1);
}

static void check_loss(struct ck_rig *rig, struct ck_formula *f) {
  ck_loss_reference(rig, f);
  const struct ck_loss_tensors t = ck_loss_upload(rig, f);
  ck_ok(forward(rig, &t));
  check_forward(rig, f, &t);
  ck_ok(backward(rig, &t, t.gradient));
  const double *gradient = ck_read(rig, t.gradient);
  ck_fits(rig, "gradient", t.gradient, f->gradient, f->gradient_bound, f->rows * f->classes);
  ck_ok(backward(rig, &t, t.logits));
  ck_same_bits("gradient in place", ck_read(rig, t.logits), gradient, f->rows * f->classes);
}

/* The loss, and its gradient in that place. */
static ek_status gradient_with_loss(const struct ck_rig *rig, const struct ck_loss_tensors *t,
                                    ek_tensor *gradient, double scale) {
  ek_cross_entropy_gradient_args args = {.gradient = gradient, .losses = t->losses};
  args.normalizer = t->normalizer, args.totals = t->totals, args.logits = t->logits;
  args.targets = t->targets, args.scale = scale, args.terms = &t->terms;
  return ek_op_cross_entropy_gradient(rig->stream, &args);
}

/* Both in one: the same bounds, for the gradient in its own memory and over the logits. */
static void check_gradient(struct ck_rig *rig, struct ck_formula *f) {
  f->row_scale = NULL;
  ck_loss_reference(rig, f);
  const struct ck_loss_tensors t = ck_loss_upload(rig, f);
  ek_tensor *places[] = {t.gradient, t.logits};
  double *gradients[2];
  for (int i = 0; i < 2; i++) {
    ck_set(t.losses, NULL);
    ck_set(t.normalizer, NULL);
    ck_set(t.totals, NULL);
    ck_ok(gradient_with_loss(rig, &t, places[i], f->scale));
    check_forward(rig, f, &t);
    gradients[i] = ck_read(rig, places[i]);
  }
  ck_fits(rig, "gradient with the loss", t.gradient, f->gradient, f->gradient_bound,
          f->rows * f->classes);
  ck_same_bits("gradient over the logits", gradients[1], gradients[0], f->rows * f->classes);
}

/* Odd numbers of classes put rows at every offset from 16 bytes. */
static const int64_t sizes[][2] = {{0, 4},    {1, 1},    {5, 2},    {17, 33}, {3, 1027},
                                   {64, 100}, {301, 17}, {3, 9001}, {1100, 4}};
enum { SIZES = sizeof sizes / sizeof sizes[0], ALL_WAYS = SIZES - 2 };

/* Every combination of what may be there. */
CK_RIG_GRID(cross_entropy, n, SIZES, how, 16) {
  if (n >= ALL_WAYS && how % 5 != 0) return;
  struct ck_formula f = ck_loss_make(rig, sizes[n][0], sizes[n][1]);
  if (how & 1) f.weights = ck_values(rig, f.classes, 0.25, 4);
  if (how & 2) f.smoothing = 0.1;
  if (how & 4) f.scale = 0.125, f.row_scale = ck_values(rig, f.rows, -2, 2);
  for (int64_t r = 0; (how & 8) && r < f.rows; r += 3) f.targets[r] = CK_IGNORED;
  check_loss(rig, &f);
  check_gradient(rig, &f);
}

/* The first columns of wider rows: what is after them may be anything, and gets zeros. The wide
 * rows begin at the same alignment as those of a copy, so that every kernel does the same
 * arithmetic and the bits are those of the copy; other widths keep the bounds. */
static void check_padded(struct ck_rig *rig, struct ck_formula *f, int64_t columns, bool same) {
  const int64_t rows = f->rows, classes = f->classes, n = rows * columns;
  static const double rubbish[] = {NAN, HUGE_VAL, -HUGE_VAL, 1e30, 0};
  ck_loss_reference(rig, f);
  const struct ck_loss_tensors t = ck_loss_upload(rig, f);
  double *logits = ck_zeros(rig, n), *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  CK_WITH(struct ck_loss_tensors, wide, ck_loss_upload(rig, f), .terms.classes = classes);
  for (int pass = 0; pass < 3; pass++) { /* apart, in place, both in one */
    for (int64_t i = 0; i < n; i++) {
      const int64_t c = i % columns, from = i / columns * classes + c;
      logits[i] = c < classes ? f->logits[from] : rubbish[i % 5];
      want[i] = c < classes ? f->gradient[from] : 0;
      bound[i] = c < classes ? f->gradient_bound[from] : 0;
    }
    wide.logits = ck_tensor(rig, logits, CK_SHAPE(rows, columns));
    wide.gradient = pass == 0 ? ck_poisoned(rig, CK_SHAPE(rows, columns)) : wide.logits;
    const struct ck_loss_tensors *calls[] = {&t, &wide};
    for (int i = 0; i < 2; i++) {
      const struct ck_loss_tensors *it = calls[i];
      if (pass < 2) {
        ck_ok(forward(rig, it));
        ck_ok(backward(rig, it, it->gradient));
      } else {
        ck_ok(gradient_with_loss(rig, it, it->gradient, f->scale));
      }
      check_forward(rig, f, it);
    }
    const double *gradient = ck_read(rig, wide.gradient), *narrow = ck_read(rig, t.gradient);
    ck_fits(rig, "gradient of wide rows", wide.gradient, want, bound, n);
    if (!same) continue;
    ck_same_bits("losses", ck_read(rig, wide.losses), ck_read(rig, t.losses), rows);
    ck_same_bits("totals", ck_read(rig, wide.totals), ck_read(rig, t.totals), 2);
    for (int64_t r = 0; r < rows; r++) {
      ck_same_bits("gradient", gradient + r * columns, narrow + r * classes, classes);
    }
  }
}

CK_RIG_CASES(classes_are_the_first_columns, how, 4 * 4) {
  static const int64_t widths[][3] = {{5, 8, 16}, {3, 2056, 2064}, {4, 33, 40}, {6, 1, 7}};
  const int64_t *size = widths[how / 4];
  struct ck_formula f = ck_loss_make(rig, size[0], size[1]);
  if (how & 1) f.weights = ck_values(rig, f.classes, 0.25, 4);
  if (how & 2) f.smoothing = 0.1;
  f.targets[1] = CK_IGNORED;
  check_padded(rig, &f, size[2], how / 4 < 2);
}

CK_RIG_LOOP(bad_classes, ck_variants()) {
  struct ck_formula f = ck_loss_make(rig, 3, 8);
  struct ck_loss_tensors t = ck_loss_upload(rig, &f);
  f.targets[0] = f.targets[1] = 0;
  f.targets[2] = 6; /* a column that is none of the classes */
  ck_set(t.targets, f.targets);
  t.terms.classes = 6;
  ck_invalid(ck_finish(forward(rig, &t), rig->stream), "target 6 at row 2");
  f.targets[0] = f.targets[1] = f.targets[2] = 5;
  ck_set(t.targets, f.targets);
  t.terms.class_weights = ck_sums(rig, f.logits, CK_SHAPE(8));
  ck_fails(forward(rig, &t), EK_ERR_SHAPE, "class_weights");
  t.terms.class_weights = NULL;
  for (int64_t classes = -1; classes <= 9; classes += 10) {
    t.terms.classes = classes;
    ck_fails(backward(rig, &t, t.gradient), EK_ERR_SHAPE, "logits is 3 x 8");
  }
}

#if !CK_TSAN
/* A block of a GPU takes several rows, and copies the next while it writes the gradient of one;
 * each row begins at another offset. */
CK_PART_LOOP(cross_entropy_in_turns, 2 * ck_variants()) {
  struct ck_rig *rig = ck_rig_variant(_i / 2);
  struct ck_formula f = ck_loss_make(rig, ck_on_gpu() ? 270 : 9, 523); /* a CPU has no such turns */
  if (_i % 2 == 1) ck_assign(f, .weights = ck_values(rig, f.classes, 0.25, 4), .smoothing = 0.1);
  f.targets[f.rows - 3] = CK_IGNORED;
  check_gradient(rig, &f);
}
#endif

/* The gradient with the loss has the bits of the two calls. A GPU that can keep only a part of a
 * row at hand reads it elsewhere, and adds in the same order. */
CK_LOOP(cross_entropy_of_a_long_row, ck_variants()) {
  if (!ck_gpu_part(_i)) return;
  struct ck_rig *rig = ck_rig_variant(_i);
  const int64_t bytes = ck_on_gpu() && !CK_TSAN ? 240 << 10 : 5000; /* a block has 227 KiB */
  struct ck_formula f = ck_loss_make(rig, 1, bytes / (int64_t)ek_type_size(rig->type) + 3);
  f.smoothing = 0.1 * (_i % 2);
  const struct ck_loss_tensors t = ck_loss_upload(rig, &f);
  ck_ok(forward(rig, &t));
  ck_ok(backward(rig, &t, t.gradient));
  const double *loss = ck_read(rig, t.losses), *gradient = ck_read(rig, t.gradient);
  ck_ok(gradient_with_loss(rig, &t, t.logits, 1));
  ck_same_bits("loss", ck_read(rig, t.losses), loss, 1);
  ck_same_bits("gradient", ck_read(rig, t.logits), gradient, f.classes);
  ck_rig_close(rig);
}

CK_RIG_LOOP(all_targets_ignored, ck_variants()) {
  CK_WITH(struct ck_formula, f, ck_loss_make(rig, 9, 20), .smoothing = 0.5,
          .logits[3] = NAN /* in an ignored row it is not read */);
  for (int r = 0; r < 9; r++) f.targets[r] = CK_IGNORED;
  const struct ck_loss_tensors t = ck_loss_upload(rig, &f);
  const double zero[9 * 20] = {0};
  for (int joined = 0; joined < 2; joined++) {
    ck_set(t.totals, NULL);
    ck_set(t.losses, NULL);
    ck_ok(joined ? gradient_with_loss(rig, &t, t.logits, 2) : forward(rig, &t));
    if (!joined) ck_ok(backward(rig, &t, t.gradient));
    ck_fits(rig, "totals", t.totals, zero, NULL, 2);
    ck_fits(rig, "losses", t.losses, zero, NULL, 9);
    ck_fits(rig, "gradient", joined ? t.logits : t.gradient, zero, NULL, 9 * 20);
  }
}

/* As the rig's type holds it: f16 goes no further than 65504. */
static double logit(const struct ck_rig *rig, double value) {
  const double most = rig->type == EK_F16 ? 65504 : HUGE_VAL;
  return ck_round(rig, fmax(-most, fmin(most, value)));
}

CK_RIG_CASES(huge_logits, how, 4) {
  struct ck_formula f = ck_loss_make(rig, 8, 50);
  if (how & 1) f.smoothing = 0.2;
  for (int64_t i = 0; i < 8 * 50; i++) f.logits[i] = ck_round(rig, f.logits[i] * 2500);
  if (how & 2) f.weights = ck_values(rig, f.classes, 0.5, 2);
  check_loss(rig, &f);
  check_gradient(rig, &f);
}

/* What all logits of a row have in common changes nothing: for 37 equal logits of 1e4 a stored
 * log sum exp(x) loses four digits of a loss in f32, and the gradient's rows do not sum to 0. */
CK_RIG_CASES(logits_with_something_in_common, how, 6 * 8) {
  static const double offsets[] = {0, 1e4, -1e4, 1e6, -1e6, 3e7};
  struct ck_formula f = ck_loss_make(rig, 5, 37);
  const double offset = offsets[how / 8] * (0x1p-24 / rig->unit); /* as bad for f64 */
  if (how & 1) f.smoothing = 0.1;
  if (how & 2) f.weights = ck_values(rig, f.classes, 0.5, 2);
  for (int64_t i = 0; i < 5 * 37; i++) {
    f.logits[i] = logit(rig, how & 4 ? offset : f.logits[i] + offset);
  }
  check_loss(rig, &f);
  check_gradient(rig, &f);
}

/* Rows in which some logits are huge and others small, at the beginning, in the middle, at the end
 * and after the first block that the CPU reads. */
CK_RIG_CASES(logits_of_many_magnitudes, how, 8) {
  static const double some[] = {1e6, 1e6 - 1, -1e6, 0, 1e-3, 1e6 - 0.5, -3e4, 1e30, -1e30, 1e6};
  struct ck_formula f = ck_loss_make(rig, 12, how & 4 ? 2100 : 10);
  if (how & 1) f.smoothing = 0.1;
  if (how & 2) f.weights = ck_values(rig, f.classes, 0.5, 2);
  for (int64_t r = 0; r < f.rows; r++) {
    for (int64_t c = 0; c < 10; c++) {
      const int64_t place = how & 4 ? (c + r) * 97 % f.classes : (c + r) % 10;
      const double value = some[c] == 1e30 && r % 2 == 0 ? 5 : some[c];
      f.logits[r * f.classes + place] = logit(rig, value);
    }
  }
  check_loss(rig, &f);
  check_gradient(rig, &f);
}

/* Weights whose squares are 0 in f32 weigh. */
CK_RIG_LOOP(tiny_class_weights, ck_variants()) {
  CK_WITH(struct ck_formula, f, ck_loss_make(rig, 4, 30), .smoothing = 0.5,
          .weights = ck_values_of(rig, rig->sum, 30, 1e-30, 2e-30));
  check_loss(rig, &f);
}

/* A class that is ruled out (-inf) has p = 0 and gradient 0; the loss is that of the others. */
CK_RIG_LOOP(logits_of_minus_infinity, ck_variants()) {
  struct ck_formula f = ck_loss_make(rig, 20, 40);
  for (int64_t r = 0; r < 20; r++) {
    f.targets[r] = (double)(r % 10);
    for (int64_t c = 10; c < 10 + r; c++) f.logits[r * 40 + c] = -HUGE_VAL;
  }
  check_loss(rig, &f);
  check_gradient(rig, &f);
}

CK_RIG_LOOP(target_of_minus_infinity, ck_variants()) {
  const double logits[4] = {-HUGE_VAL, 0, 0, 0};
  struct ck_formula f = ck_loss_make(rig, 1, 4);
  memcpy(f.logits, logits, sizeof logits);
  f.targets[0] = 0;
  const struct ck_loss_tensors t = ck_loss_upload(rig, &f);
  ck_ok(forward(rig, &t));
  ck_assert(ck_read(rig, t.losses)[0] == HUGE_VAL); /* as certain as it is wrong */
}

static void check_only_row_1_is_nan(struct ck_rig *rig, const struct ck_loss_tensors *t,
                                    ek_tensor *gradient) {
  const double *l = ck_read(rig, t->losses), *g = ck_read(rig, gradient);
  ck_assert(isfinite(l[0]) && isnan(l[1]) && isfinite(l[2]));
  ck_assert(isnan(ck_read(rig, t->totals)[0]));
  for (int i = 0; i < 3 * 50; i++) ck_assert(i / 50 == 1 ? isnan(g[i]) : isfinite(g[i]));
}

/* A logit that is no number, or infinite, and a row without any possible class: their losses are no
 * numbers and neither are their gradients, also where the target or its class weighs nothing. */
CK_RIG_CASES(nan_is_not_hidden, how, 3 * 3 * 4) {
  static const double bad[] = {NAN, HUGE_VAL, -HUGE_VAL};
  static const double smoothings[] = {0, 0.3, 1};
  const double value = bad[how % 3];
  CK_WITH(struct ck_formula, f, ck_loss_make(rig, 3, 50), .smoothing = smoothings[how / 3 % 3]);
  if (how / 9 > 0) f.weights = ck_values(rig, 50, 0.5, 2);
  if (how / 9 > 1) f.weights[27] = 0;
  if (how / 9 > 2) f.targets[1] = 27;
  for (int c = 0; c < 50; c++) {
    if (c == 27 || value < 0) f.logits[50 + c] = value;
  }
  const struct ck_loss_tensors t = ck_loss_upload(rig, &f);
  ck_ok(forward(rig, &t));
  ck_ok(backward(rig, &t, t.gradient));
  check_only_row_1_is_nan(rig, &t, t.gradient);
  ck_ok(gradient_with_loss(rig, &t, t.logits, 1));
  check_only_row_1_is_nan(rig, &t, t.logits);
}

CK_LOOP(bad_target_is_named, ck_variants()) {
  if (!ck_gpu_part(_i)) return;
  static const double wrong[] = {-1, 10, 2147483647, -2147483647 - 1};
  for (int w = 0; w < 4; w++) {
    struct ck_rig *rig = ck_rig_variant(_i);
    struct ck_formula f = ck_loss_make(rig, 40, 10);
    f.targets[2] = CK_IGNORED, f.targets[37] = wrong[w];
    f.targets[39] = 99; /* the first of two is told */
    const struct ck_loss_tensors t = ck_loss_upload(rig, &f);
    const char *text =
        ck_text("cross_entropy: target %.0f at row 37 of the batch is outside", wrong[w]);
    ck_invalid(ck_finish(forward(rig, &t), rig->stream), text);
    ck_invalid(ck_finish(backward(rig, &t, t.gradient), rig->stream), text);
    ck_invalid(ck_finish(gradient_with_loss(rig, &t, t.gradient, 1), rig->stream), text);
    ck_rig_close(rig);
  }
}

CK_PART_LOOP(cross_entropy_repeats, ck_variants()) {
  struct ck_rig *rig = ck_rig_variant(_i);
  struct ck_formula f = ck_loss_make(rig, 1000, 67);
  const struct ck_loss_tensors t = ck_loss_upload(rig, &f);
  double *first = NULL;
  for (int pass = 0; pass < 3; pass++) {
    ck_set(t.totals, NULL);
    ck_ok(forward(rig, &t));
    double *totals = ck_read(rig, t.totals);
    if (pass > 0) ck_same_bits("totals", totals, first, 2);
    first = totals;
  }
}

CK_RIG_TEST(cross_entropy_gradient_by_differences, NULL, EK_F64) {
  struct ck_formula f = ck_loss_make(rig, 6, 7);
  f.smoothing = 0.3, f.scale = 0.75, f.targets[2] = CK_IGNORED;
  f.weights = ck_values(rig, 7, 0.5, 2), f.row_scale = ck_values(rig, 6, -2, 2);
  const struct ck_loss_tensors t = ck_loss_upload(rig, &f);
  ck_ok(forward(rig, &t));
  ck_ok(backward(rig, &t, t.gradient));
  ck_gradient(rig, "cross-entropy", t.logits, t.gradient, 99, forward(rig, &t),
              0.75 * ck_weighed(t.losses, f.row_scale));
}

/* ---- squared error ---- */

static void check_squared(struct ck_rig *rig, int64_t n, bool with_losses, bool scaled) {
  double *y = ck_values(rig, n, -2, 2), *target = ck_values(rig, n, -2, 2);
  double *each = scaled ? ck_values(rig, n, -2, 2) : NULL;
  const double scale = scaled ? 0.3 : 1;
  double *l = ck_zeros(rig, n), *l_bound = ck_zeros(rig, n);
  double *g = ck_zeros(rig, n), *g_bound = ck_zeros(rig, n);
  double totals[2] = {0, (double)n}, bounds[2] = {0, 0};
  long double s = 0;
  for (int64_t i = 0; i < n; i++) {
    const long double d = (long double)y[i] - target[i];
    l[i] = (double)(d * d);
    l_bound[i] = 3 * rig->unit * l[i];
    s += d * d;
    g[i] = (double)(scale * (scaled ? each[i] : 1) * 2 * d);
    g_bound[i] = 4 * rig->unit * fabs(g[i]);
    bounds[0] += l_bound[i] + (fmin((double)n, 2048) * rig->unit + (double)n * 0x1p-53) * l[i];
  }
  totals[0] = (double)s;
  ek_tensor *ty = ck_tensor(rig, y, CK_SHAPE(n)), *tt = ck_tensor(rig, target, CK_SHAPE(n));
  ek_tensor *tl = ck_poisoned_sums(rig, CK_SHAPE(n)), *tg = ck_poisoned(rig, CK_SHAPE(n));
  ek_tensor *tscale = scaled ? ck_tensor_of(rig, EK_F64, &scale, CK_SHAPE(1)) : NULL;
  ek_tensor *teach = scaled ? ck_sums(rig, each, CK_SHAPE(n)) : NULL;
  ek_tensor *ttotals = ck_tensor_of(rig, EK_F64, NULL, CK_SHAPE(2));
  ck_ok(ek_op_squared_error_forward(rig->stream, with_losses ? tl : NULL, ttotals, ty, tt));
  if (with_losses) ck_fits(rig, "squared losses", tl, l, l_bound, n);
  double *first = ck_read(rig, ttotals);
  ck_within("squared totals", first, totals, bounds, 2);
  ck_ok(ek_op_squared_error_forward(rig->stream, with_losses ? tl : NULL, ttotals, ty, tt));
  ck_same_bits("squared totals again", ck_read(rig, ttotals), first, 2);
  ck_ok(ek_op_squared_error_backward(rig->stream, tg, ty, tt, tscale, teach));
  ck_fits(rig, "squared gradient", tg, g, g_bound, n);
  ck_ok(ek_op_squared_error_backward(rig->stream, ty, ty, tt, tscale, teach));
  ck_same_bits("squared gradient in place", ck_read(rig, ty), ck_read(rig, tg), n);
}

CK_LOOP(squared_error, ck_variants()) {
  static const int64_t counts[] = {0, 1, 5, 33, 1000, 4097, 50001};
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
    if (!ck_turn(_i, (int)c + 11)) continue; /* ThreadSanitizer gets 4097: several blocks */
    struct ck_rig *rig = ck_rig_variant(_i);
    check_squared(rig, counts[c], false, false);
    check_squared(rig, counts[c], true, true);
    ck_rig_close(rig);
  }
}

/* ---- wrong arguments ---- */

CK_RIG_TEST(bad_terms_and_huge_sizes, CK_HUGE_PLAN, EK_F32) {
  const int64_t rows = INT64_C(1) << 34, classes = INT64_C(1) << 26;
  ek_cross_entropy_terms terms = {CK_IGNORED, 0, NULL, 0};
  ek_stream *s = rig->stream;
  ek_tensor *logits = ck_ghost(rig, EK_F32, CK_SHAPE(rows, classes));
  ek_tensor *losses = ck_ghost(rig, EK_F32, CK_SHAPE(rows));
  ek_tensor *normalizer = ck_ghost(rig, EK_F32, CK_SHAPE(rows, 2));
  ek_tensor *targets = ck_ghost(rig, EK_I32, CK_SHAPE(rows));
  ek_tensor *totals = ck_ghost(rig, EK_F64, CK_SHAPE(2));
  ck_ok(ek_op_cross_entropy_forward(s, losses, normalizer, totals, logits, targets, &terms));
  ck_ok(ek_op_cross_entropy_backward(s, logits, logits, normalizer, targets, NULL, NULL, &terms));
  ek_cross_entropy_gradient_args args = {.gradient = logits, .losses = losses, .logits = logits};
  args.normalizer = normalizer, args.totals = totals, args.targets = targets;
  args.scale = 1, args.terms = &terms;
  ck_ok(ek_op_cross_entropy_gradient(s, &args));
  ck_bad(args, terms, NULL, ek_op_cross_entropy_gradient(s, &args),
         "cross_entropy_gradient: terms is NULL");
  ck_invalid(ek_op_cross_entropy_forward(s, losses, normalizer, totals, logits, targets, NULL),
             "cross_entropy_forward: terms is NULL");
  ck_invalid(ek_op_cross_entropy_gradient(s, NULL), "args is NULL");
  ck_invalid(ek_op_cross_entropy_backward(s, logits, logits, normalizer, targets, NULL, NULL, NULL),
             "cross_entropy_backward: terms is NULL");
  static const double wrong[] = {-0.01, 1.01, NAN};
  for (int w = 0; w < 3; w++) {
    terms.label_smoothing = wrong[w];
    ck_invalid(ek_op_cross_entropy_forward(s, losses, normalizer, totals, logits, targets, &terms),
               "cross_entropy_forward: label_smoothing");
    ck_invalid(
        ek_op_cross_entropy_backward(s, logits, logits, normalizer, targets, NULL, NULL, &terms),
        "cross_entropy_backward: label_smoothing");
    ck_invalid(ek_op_cross_entropy_gradient(s, &args), "cross_entropy_gradient: label_smoothing");
  }
  terms.label_smoothing = 0;
  ek_tensor *none = ck_ghost(rig, EK_F32, CK_SHAPE(rows, 0));
  ck_fails(ek_op_cross_entropy_forward(s, losses, normalizer, totals, none, targets, &terms),
           EK_ERR_SHAPE, "cross_entropy_forward: logits is 17179869184 x 0");
  args.logits = args.gradient = none;
  ck_fails(ek_op_cross_entropy_gradient(s, &args), EK_ERR_SHAPE,
           "cross_entropy_gradient: logits is 17179869184 x 0");
  ck_fails(ek_op_cross_entropy_forward(s, losses, normalizer, targets, logits, targets, &terms),
           EK_ERR_TYPE, "cross_entropy_forward: totals is i32 but must be f64");
}

CK_SUITE("losses")
