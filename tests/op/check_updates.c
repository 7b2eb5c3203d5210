/*
 * check_updates.c - SGD, AdamW and the square norm against the formulas of updates.h, written out
 * in long double.
 *
 * Each of the steps starts from what the library itself left, so that a bound holds for one step:
 *   factor, g   the scalar is computed in double; g = gradient * factor rounds twice, and weight
 *               decay adds one product and one sum: e_g = 4 u (|g| + |wd p|)
 *   b           |1 - dampening| e_g + 4 u (|momentum b| + |(1 - dampening) g|)
 *   p (SGD)     lr (error of the direction + 4 u |direction|) + 2 u |p|
 *   m           (1 - beta1) e_g + 4 u (|beta1 m| + |(1 - beta1) g|)
 *   v           2 (1 - beta2) |g| e_g + 5 u (beta2 v + (1 - beta2) g^2)
 *   p (AdamW)   |step| (error of m / |m| + error of v / v / 2 + 12 u) + 3 u (|p| + |lr wd p|),
 *               where step = lr / c1 m / (sqrt(v) / sqrt(c2) + epsilon); the first term is taken as
 *               lr / c1 (error of m) / denominator, so that m = 0 is no special case
 *   square_norm (n + 4) 2^-53 (|beta old| + sum x^2): squares and sums in f64
 */
#include "ek_check.h"

enum { STEPS = 5 };

/* How the gradient is scaled, and the tensors that say so. */
struct scaling {
  double totals[2], square_norm, clip_norm;
  bool with_totals;
};

static const struct scaling scalings[] = {
    {{0, 0}, 0, 0, false},      /* as it is */
    {{12.5, 8}, 0, 0, true},    /* divided by d */
    {{12.5, 8}, 90, 0.5, true}, /* divided, then clipped */
    {{12.5, 8}, 9, 100, true},  /* divided, not clipped: the norm is small */
    {{0, 0}, 90, 0.5, false},   /* clipped alone */
    {{0, 0}, 0, 0.5, true},     /* d = 0: the gradient counts for nothing */
};
enum { SCALINGS = sizeof scalings / sizeof scalings[0] };

static double factor_of(const struct scaling *s) {
  double factor = 1, norm = sqrt(s->square_norm);
  if (s->with_totals) {
    factor = s->totals[1] > 0 ? 1 / s->totals[1] : 0;
    norm = s->totals[1] > 0 ? norm / s->totals[1] : 0;
  }
  if (s->clip_norm != 0) factor *= fmin(1, s->clip_norm / (norm + 1e-6));
  return factor;
}

static ek_update_scale upload_scale(struct ck_rig *rig, const struct scaling *s) {
  ek_update_scale scale = {.clip_norm = s->clip_norm};
  if (s->with_totals) scale.totals = ck_tensor_of(rig, EK_F64, s->totals, CK_SHAPE(2));
  if (s->clip_norm != 0) {
    scale.square_norm = ck_tensor_of(rig, EK_F64, &s->square_norm, CK_SHAPE(1));
  }
  return scale;
}

/* One array of the state before and after a step, and the bound. */
struct state {
  double *old, *want, *bound;
};

static struct state make_state(struct ck_rig *rig, int64_t n) {
  return (struct state){ck_zeros(rig, n), ck_zeros(rig, n), ck_zeros(rig, n)};
}

/* ---- SGD ---- */

static void sgd_step(const struct ck_rig *rig, const struct state *p, const struct state *b,
                     const double *gradient, int64_t n, const ek_sgd_terms *t, bool buffered,
                     double factor) {
  const long double u = rig->unit, lr = t->learning_rate, momentum = t->momentum;
  for (int64_t i = 0; i < n; i++) {
    const long double decay = t->weight_decay * (long double)p->old[i];
    const long double g = (long double)gradient[i] * factor + decay;
    const long double g_error = 4 * u * (fabsl((long double)gradient[i] * factor) + fabsl(decay));
    long double direction = g, error = g_error;
    if (buffered && momentum != 0) {
      const long double kept = t->first ? 0 : momentum * b->old[i];
      const long double added = t->first ? g : (1 - t->dampening) * g;
      const long double buffer = kept + added;
      const long double buffer_error =
          (t->first ? 1 : fabs(1 - t->dampening)) * g_error + 4 * u * (fabsl(kept) + fabsl(added));
      b->want[i] = (double)buffer;
      b->bound[i] = (double)buffer_error;
      direction = t->nesterov ? g + momentum * buffer : buffer;
      error = t->nesterov ? g_error + momentum * buffer_error +
                                3 * u * (fabsl(g) + fabsl(momentum * buffer))
                          : buffer_error;
    }
    p->want[i] = (double)(p->old[i] - lr * direction);
    p->bound[i] = (double)(lr * (error + 4 * u * fabsl(direction)) + 2 * u * fabs(p->old[i]) +
                           2 * u * fabs(p->want[i]));
  }
}

/* The copy is the parameters as they were written. */
static void check_copy(struct ck_rig *rig, const ek_tensor *copy, const ek_tensor *p, int64_t n) {
  double *want = ck_read(rig, p);
  for (int64_t i = 0; i < n; i++) want[i] = ck_round(rig, want[i]);
  ck_same_bits("copy", ck_read(rig, copy), want, n);
}

static void check_sgd(struct ck_rig *rig, int64_t n, const struct scaling *scaling,
                      ek_sgd_terms terms, bool buffered) {
  const struct state p = make_state(rig, n), b = make_state(rig, n);
  ek_update_scale scale = upload_scale(rig, scaling);
  ek_tensor *tp = ck_sums(rig, ck_values(rig, n, -1, 1), CK_SHAPE(n));
  ek_tensor *tb = ck_poisoned_sums(rig, CK_SHAPE(n));
  ek_tensor *tg = ck_tensor_of(rig, buffered ? rig->type : rig->sum, NULL, CK_SHAPE(n));
  scale.copy = ck_poisoned(rig, CK_SHAPE(n));
  for (int step = 0; step < STEPS; step++) {
    const double *gradient = ck_values(rig, n, -8, 8);
    terms.first = step == 0;
    ck_set(tg, gradient);
    ck_get(p.old, tp);
    ck_get(b.old, tb);
    sgd_step(rig, &p, &b, gradient, n, &terms, buffered, factor_of(scaling));
    ck_ok(ek_op_sgd(rig->stream, tp, buffered ? tb : NULL, tg, &terms, &scale));
    ck_fits(rig, "sgd's p", tp, p.want, p.bound, n);
    check_copy(rig, scale.copy, tp, n);
    if (buffered && terms.momentum != 0) ck_fits(rig, "sgd's momentum", tb, b.want, b.bound, n);
  }
}

static const int64_t counts[] = {0, 1, 17, 1023, 9001};

CK_RIG_GRID(sgd_steps, c, 5, how, 5 * SCALINGS) {
  static const ek_sgd_terms terms[] = {
      {.learning_rate = 0.1},
      {.learning_rate = 0.1, .weight_decay = 0.01},
      {.learning_rate = 0.05, .momentum = 0.9},
      {.learning_rate = 0.05, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1},
      {.learning_rate = 0.05, .momentum = 0.8, .weight_decay = 0.1, .nesterov = true},
  };
  for (int buffered = 1; buffered >= 0; buffered--) {
    check_sgd(rig, counts[c], &scalings[how % SCALINGS], terms[how / SCALINGS], buffered);
  }
}

/* ---- AdamW ---- */

static void adamw_step(const struct ck_rig *rig, const struct state *p, const struct state *m,
                       const struct state *v, const double *gradient, int64_t n,
                       const ek_adamw_terms *t, double factor) {
  const long double u = rig->unit, lr = t->learning_rate;
  const long double c1 = 1 - powl(t->beta1, (long double)t->step);
  const long double c2 = 1 - powl(t->beta2, (long double)t->step);
  for (int64_t i = 0; i < n; i++) {
    const long double decay = t->weight_decay * (long double)p->old[i];
    const long double own = (long double)gradient[i] * factor;
    const long double g = t->decoupled ? own : own + decay;
    const long double g_error = 4 * u * (fabsl(own) + (t->decoupled ? 0 : fabsl(decay)));
    const long double m_kept = t->step == 1 ? 0 : t->beta1 * (long double)m->old[i];
    const long double v_kept = t->step == 1 ? 0 : t->beta2 * (long double)v->old[i];
    const long double a1 = 1 - (long double)t->beta1, a2 = 1 - (long double)t->beta2;
    const long double new_m = m_kept + a1 * g, new_v = v_kept + a2 * g * g;
    const long double m_error = a1 * g_error + 4 * u * (fabsl(m_kept) + fabsl(a1 * g));
    const long double v_error =
        a2 * (2 * fabsl(g) + g_error) * g_error + 5 * u * (new_v + a2 * g_error * g_error);
    const long double below = sqrtl(new_v) / sqrtl(c2) + t->epsilon;
    const long double step = lr / c1 * new_m / below;
    const long double v_relative = new_v == 0 ? 0 : v_error / new_v / 2;
    const long double decoupled = t->decoupled ? lr * decay : 0;
    m->want[i] = (double)new_m, m->bound[i] = (double)m_error;
    v->want[i] = (double)new_v, v->bound[i] = (double)v_error;
    p->want[i] = (double)(p->old[i] - decoupled - step);
    p->bound[i] = (double)(lr / c1 * m_error / below + fabsl(step) * (v_relative + 12 * u) +
                           3 * u * (fabs(p->old[i]) + fabsl(decoupled)));
  }
}

static void check_adamw(struct ck_rig *rig, int64_t n, const struct scaling *scaling,
                        ek_adamw_terms terms) {
  const struct state p = make_state(rig, n), m = make_state(rig, n), v = make_state(rig, n);
  ek_update_scale scale = upload_scale(rig, scaling);
  ek_tensor *tp = ck_sums(rig, ck_values(rig, n, -1, 1), CK_SHAPE(n));
  ek_tensor *tm = ck_poisoned_sums(rig, CK_SHAPE(n)), *tv = ck_poisoned_sums(rig, CK_SHAPE(n));
  ek_tensor *tg = ck_tensor_of(rig, terms.decoupled ? rig->type : rig->sum, NULL, CK_SHAPE(n));
  scale.copy = terms.beta1 == 0 ? NULL : ck_poisoned(rig, CK_SHAPE(n));
  for (int step = 1; step <= STEPS; step++) {
    const double *gradient = ck_values(rig, n, -8, 8);
    terms.step = step;
    ck_set(tg, gradient);
    ck_get(p.old, tp);
    ck_get(m.old, tm);
    ck_get(v.old, tv);
    adamw_step(rig, &p, &m, &v, gradient, n, &terms, factor_of(scaling));
    ck_ok(ek_op_adamw(rig->stream, tp, tm, tv, tg, &terms, &scale));
    ck_fits(rig, "adamw's m", tm, m.want, m.bound, n);
    ck_fits(rig, "adamw's v", tv, v.want, v.bound, n);
    ck_fits(rig, "adamw's p", tp, p.want, p.bound, n);
    if (scale.copy != NULL) check_copy(rig, scale.copy, tp, n);
  }
}

CK_RIG_GRID(adamw_steps, c, 5, how, 4 * SCALINGS) {
  static const ek_adamw_terms terms[] = {
      {.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .decoupled = true},
      {1e-2, 0.9, 0.95, 1e-8, 0.1, true, 0},
      {1e-2, 0.8, 0.99, 1e-6, 0.1, false, 0},
      {1e-2, 0.0, 0.5, 1e-8, 0.0, false, 0},
  };
  check_adamw(rig, counts[c], &scalings[how % SCALINGS], terms[how / SCALINGS]);
}

/* Moments that shrink below the smallest normal number, and squares that begin there: of two terms
 * each may be off by that number, and where an x86 processor computes they do not stay there. */
CK_RIG_LOOP(moments_that_fade, ck_variants()) {
  enum { N = 203 };
  ek_adamw_terms terms = {1e-3, 0.9, 0.999, 1e-8, 0.01, true, 1000};
  const double u = rig->unit, least = rig->sum == EK_F64 ? 0x1p-1022 : 0x1p-126;
  const double small = rig->type == EK_F16 ? 0 : 0x1p-62;
  const struct state p = make_state(rig, N), m = make_state(rig, N), v = make_state(rig, N);
  ek_tensor *tp = ck_sums(rig, ck_values_of(rig, rig->sum, N, 1, 2), CK_SHAPE(N));
  ek_tensor *tm =
      ck_sums(rig, ck_values_of(rig, rig->sum, N, -16 * least, 16 * least), CK_SHAPE(N));
  ek_tensor *tv = ck_sums(rig, ck_values_of(rig, rig->sum, N, 0, 4 * least), CK_SHAPE(N));
  ek_tensor *tg = ck_tensor(rig, ck_values(rig, N, -small, small), CK_SHAPE(N));
  const ek_update_scale scale = {.copy = ck_poisoned(rig, CK_SHAPE(N))};
  const double *g = ck_read(rig, tg);
  for (; terms.step < 1003; terms.step++) {
    ck_get(p.old, tp);
    ck_get(m.old, tm);
    ck_get(v.old, tv);
    ck_ok(ek_op_adamw(rig->stream, tp, tm, tv, tg, &terms, &scale));
    for (int64_t i = 0; i < N; i++) {
      m.want[i] = terms.beta1 * m.old[i] + (1 - terms.beta1) * g[i];
      v.want[i] = terms.beta2 * v.old[i] + (1 - terms.beta2) * g[i] * g[i];
      m.bound[i] = 4 * u * (fabs(m.old[i]) + fabs(g[i])) + 2 * least;
      v.bound[i] = 5 * u * v.want[i] + 2 * least;
      p.want[i] = p.old[i] * (1 - 1e-5);
      /* The step: numbers of 2^-63 and less, divided by epsilon. */
      p.bound[i] = 3 * u * p.old[i] + 1e-3 * fabs(m.want[i]) / 1e-8;
    }
    ck_within("m", ck_read(rig, tm), m.want, m.bound, N);
    ck_within("v", ck_read(rig, tv), v.want, v.bound, N);
    ck_within("p", ck_read(rig, tp), p.want, p.bound, N);
    check_copy(rig, scale.copy, tp, N);
  }
  const ek_sgd_terms sgd = {.learning_rate = 1e-3, .momentum = 0.9};
  const double *buffer = ck_values_of(rig, rig->sum, N, -4 * least, 4 * least);
  ek_tensor *tb = ck_sums(rig, buffer, CK_SHAPE(N)), *none = ck_sums(rig, NULL, CK_SHAPE(N));
  ck_ok(ek_op_zero(rig->stream, none));
  ck_ok(ek_op_sgd(rig->stream, tp, tb, none, &sgd, NULL));
  for (int64_t i = 0; i < N; i++) {
    ck_assign(m, .want[i] = sgd.momentum * buffer[i], .bound[i] = 4 * u * fabs(buffer[i]) + least);
  }
  ck_within("b", ck_read(rig, tb), m.want, m.bound, N);
#if defined(__SSE2__)
  if (rig->sum == EK_F32 && strncmp(ek_device_name(rig->device), "cpu", 3) == 0) {
    const double *of[] = {ck_read(rig, tm), ck_read(rig, tv), ck_read(rig, tb)};
    for (int64_t i = 0; i < 3 * N; i++) {
      const double size = fabs(of[i / N][i % N]);
      ck_assert(size == 0 || size >= least);
    }
  }
#endif
}

/* d = 0: an empty step. NaN in the unused sum s does no harm, weight decay still acts. */
CK_RIG_LOOP(empty_step, ck_variants()) {
  const double totals[2] = {0, 0}, square_norm = 0, p[3] = {1, -2, 4}, g[3] = {0, 0, 0};
  const double halved[3] = {0.5, -1, 2};
  const ek_update_scale scale = {.totals = ck_tensor_of(rig, EK_F64, totals, CK_SHAPE(2)),
                                 .square_norm =
                                     ck_tensor_of(rig, EK_F64, &square_norm, CK_SHAPE(1)),
                                 .clip_norm = 1};
  ek_tensor *tp = ck_sums(rig, p, CK_SHAPE(3)), *tg = ck_tensor(rig, g, CK_SHAPE(3));
  ek_tensor *m = ck_poisoned_sums(rig, CK_SHAPE(3)), *v = ck_poisoned_sums(rig, CK_SHAPE(3));
  const ek_sgd_terms sgd_terms = {.learning_rate = 0.5, .weight_decay = 1};
  ck_ok(ek_op_sgd(rig->stream, tp, NULL, tg, &sgd_terms, &scale));
  ck_fits(rig, "sgd", tp, halved, NULL, 3);
  ck_set(tp, p);
  const ek_adamw_terms adamw_terms = {0.5, 0.9, 0.99, 1e-8, 1, true, 1};
  ck_ok(ek_op_adamw(rig->stream, tp, m, v, tg, &adamw_terms, &scale));
  ck_fits(rig, "adamw", tp, halved, NULL, 3);
  ck_fits(rig, "m", m, g, NULL, 3);
}

CK_RIG_LOOP(no_scale_is_one, ck_variants()) {
  const double p[2] = {1, 2}, g[2] = {4, 8}, want[2] = {-1, -2};
  const ek_sgd_terms terms = {.learning_rate = 0.5};
  ek_tensor *tp = ck_sums(rig, p, CK_SHAPE(2));
  ck_ok(ek_op_sgd(rig->stream, tp, NULL, ck_tensor(rig, g, CK_SHAPE(2)), &terms, NULL));
  ck_fits(rig, "sgd without a scale", tp, want, NULL, 2);
}

/* ---- square norm ---- */

CK_RIG_CASES(square_norm, c, 6) {
  static const int64_t sizes[6] = {0, 1, 17, 4095, 4097, 70001};
  static const double betas[] = {0, 1, 0.5};
  const int64_t n = sizes[c];
  for (int b = 0; b < 6; b++) {
    const bool whole = b < 3;
    const double beta = betas[b % 3], old = 3;
    const double *x = whole ? ck_integers(rig, n, -9, 9) : ck_values(rig, n, -1, 1);
    long double sum = beta * old;
    for (int64_t i = 0; i < n; i++) sum += (long double)x[i] * x[i];
    const double want = (double)sum, bound = whole ? 0 : (double)(n + 4) * 0x1p-53 * want;
    ek_tensor *tx = ck_tensor(rig, x, CK_SHAPE(n));
    ek_tensor *result = ck_tensor_of(rig, EK_F64, beta == 0 ? NULL : &old, CK_SHAPE(1));
    ek_tensor *again = ck_tensor_of(rig, EK_F64, beta == 0 ? NULL : &old, CK_SHAPE(1));
    ck_ok(ek_op_square_norm(rig->stream, result, tx, beta));
    ck_ok(ek_op_square_norm(rig->stream, again, tx, beta));
    ck_fits(rig, "square_norm", result, &want, &bound, 1);
    ck_same_bits("square_norm again", ck_read(rig, again), ck_read(rig, result), 1);
  }
}

/* ---- wrong arguments ---- */

CK_RIG_TEST(bad_terms, NULL, EK_F32) {
  ek_stream *s = rig->stream;
  ek_tensor *p = ck_poisoned(rig, CK_SHAPE(6)), *g = ck_poisoned(rig, CK_SHAPE(6));
  ek_tensor *m = ck_poisoned(rig, CK_SHAPE(6)), *v = ck_poisoned(rig, CK_SHAPE(6));
  const ek_sgd_terms sgd = {.learning_rate = 0.1};
  const ek_update_scale negative = {.clip_norm = -1}, no_norm = {.clip_norm = 1};
  ck_invalid(ek_op_sgd(s, p, NULL, g, NULL, NULL), "sgd: terms is NULL");
  ck_invalid(ek_op_sgd(s, p, NULL, g, &sgd, &negative), "sgd: clip_norm");
  ck_invalid(ek_op_sgd(s, p, NULL, g, &sgd, &no_norm),
             "sgd: clip_norm is 1 but square_norm is NULL");
  const ek_sgd_terms nan = {.learning_rate = NAN};
  ck_invalid(ek_op_sgd(s, p, NULL, g, &nan, NULL), "sgd: learning_rate");

  const ek_adamw_terms good = {1e-3, 0.9, 0.99, 1e-8, 0, true, 1};
  ck_invalid(ek_op_adamw(s, p, m, v, g, NULL, NULL), "adamw: terms is NULL");
  ck_invalid(ek_op_adamw(s, p, m, v, g, &good, &no_norm), "adamw: clip_norm");
  ek_adamw_terms bad = good;
#define BAD(member, value)                                                                         \
  ck_bad(bad, member, value, ek_op_adamw(s, p, m, v, g, &bad, NULL), "adamw: " #member)
  BAD(step, 0);
  BAD(beta1, 1);
  BAD(beta2, -0.1);
  BAD(epsilon, -1);
  BAD(learning_rate, HUGE_VAL);
  BAD(weight_decay, NAN);
}

CK_RIG_TEST(huge_sizes, CK_HUGE_PLAN, EK_F32) {
  const int64_t n = INT64_C(1) << 58;
  ek_stream *s = rig->stream;
  ek_tensor *p = ck_ghost(rig, EK_F32, CK_SHAPE(n)), *g = ck_ghost(rig, EK_F32, CK_SHAPE(n));
  ek_tensor *m = ck_ghost(rig, EK_F32, CK_SHAPE(n)), *v = ck_ghost(rig, EK_F32, CK_SHAPE(n));
  ek_tensor *norm = ck_ghost(rig, EK_F64, CK_SHAPE(1));
  const ek_adamw_terms terms = {1e-3, 0.9, 0.99, 1e-8, 0, true, INT64_MAX};
  ck_ok(ek_op_adamw(s, p, m, v, g, &terms, NULL));
  ck_ok(ek_op_square_norm(s, norm, g, 0));
  ek_tensor *shorter = ck_ghost(rig, EK_F32, CK_SHAPE(n - 1));
  ck_fails(ek_op_adamw(s, p, m, v, shorter, &terms, NULL), EK_ERR_SHAPE,
           "adamw: gradients is 288230376151711743 but parameters is 288230376151711744");
}

CK_SUITE("updates")
