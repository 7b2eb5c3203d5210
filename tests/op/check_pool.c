/*
 * check_pool.c - windows over pictures, and pictures of another size, against plain loops.
 *
 * The largest number is exact. A mean of n numbers in the type of sums with unit roundoff u: each
 * weight rounds once, each product and each addition once, so 2 (n + 3) u sum |weight x|, doubled
 * for the terms of second order (docs/numerics.md).
 */
#include "ek_check.h"

struct shape {
  int64_t x[4];
  ek_pooling is;
};

/* kernel, stride, padding, dilation, count_padding, round_up */
#define IS(...)                                                                                    \
  { sizeof(ek_pooling), __VA_ARGS__ }

/* Side by side; overlapping with padding, as in ResNet; the whole picture; more than 64 pixels in a
 * row; sides that differ; rounded up; windows with gaps between them; dilation; no images; no
 * channels. */
static const struct shape shapes[] = {
    {{2, 4, 6, 5}, IS({2, 2}, {2, 2}, {0, 0}, {1, 1}, true, false)},
    {{2, 9, 8, 70}, IS({3, 3}, {2, 2}, {1, 1}, {1, 1}, true, false)},
    {{3, 7, 7, 33}, IS({7, 7}, {7, 7}, {0, 0}, {1, 1}, true, false)},
    {{1, 2, 150, 3}, IS({2, 140}, {1, 7}, {1, 30}, {1, 1}, false, false)},
    {{2, 5, 9, 16}, IS({2, 3}, {1, 2}, {1, 0}, {1, 1}, false, true)},
    {{1, 6, 6, 64}, IS({3, 2}, {2, 3}, {1, 1}, {1, 1}, true, true)},
    {{1, 9, 9, 4}, IS({2, 2}, {4, 4}, {0, 0}, {1, 1}, true, false)},
    {{0, 4, 4, 3}, IS({2, 2}, {2, 2}, {0, 0}, {1, 1}, true, false)},
    {{2, 4, 4, 0}, IS({2, 2}, {2, 2}, {0, 0}, {1, 1}, true, false)},
    {{2, 9, 8, 7}, IS({3, 2}, {2, 1}, {1, 1}, {2, 3}, true, false)}, /* the largest only */
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], MEANS = SHAPES - 1 };

static int64_t product_of(const int64_t *shape) {
  return shape[0] * shape[1] * shape[2] * shape[3];
}

/* Calls f for each pixel of each window that is in the picture, window by window. */
struct at {
  const struct shape *s;
  int64_t y[4];
  int64_t to, from, element, divisor; /* elements of y and x; of the window; of a mean */
};
typedef void each(void *context, const struct at *at);

static int64_t divisor_of(const struct shape *s, int side, int64_t window) {
  const int64_t begin = window * s->is.stride[side] - s->is.padding[side];
  int64_t count = 0;
  for (int64_t p = begin; p < begin + s->is.kernel[side]; p++) {
    count += s->is.count_padding ? p < s->x[1 + side] + s->is.padding[side]
                                 : p >= 0 && p < s->x[1 + side];
  }
  return count;
}

CK_UNWATCHED static void for_each(const struct shape *s, each *f, void *context) {
  struct at at = {.s = s};
  ck_ok(ek_pooling_shape(at.y, s->x, &s->is));
  for (int64_t window = 0; window < at.y[0] * at.y[1] * at.y[2]; window++) {
    const int64_t image = window / (at.y[1] * at.y[2]), i = window / at.y[2] % at.y[1];
    const int64_t j = window % at.y[2];
    at.divisor = divisor_of(s, 0, i) * divisor_of(s, 1, j);
    for (at.element = 0; at.element < s->is.kernel[0] * s->is.kernel[1]; at.element++) {
      const int64_t v = i * s->is.stride[0] - s->is.padding[0] +
                        at.element / s->is.kernel[1] * s->is.dilation[0];
      const int64_t h = j * s->is.stride[1] - s->is.padding[1] +
                        at.element % s->is.kernel[1] * s->is.dilation[1];
      if (v < 0 || h < 0 || v >= s->x[1] || h >= s->x[2]) continue;
      for (int64_t c = 0; c < s->x[3]; c++) {
        at.to = window * s->x[3] + c;
        at.from = ((image * s->x[1] + v) * s->x[2] + h) * s->x[3] + c;
        f(context, &at);
      }
    }
  }
}

/* ---- the largest ---- */

struct largest {
  const double *x, *dy;
  double *y, *place, *dx;
};

CK_UNWATCHED static void find_largest(void *raw, const struct at *at) {
  struct largest *l = raw;
  if (l->place[at->to] >= 0 && !(l->x[at->from] > l->y[at->to]) && !isnan(l->x[at->from])) return;
  l->y[at->to] = l->x[at->from];
  l->place[at->to] = (double)at->element;
}

CK_UNWATCHED static void give_largest(void *raw, const struct at *at) {
  struct largest *l = raw;
  if (l->place[at->to] == (double)at->element) l->dx[at->from] += l->dy[at->to];
}

/* Whole numbers, many of them equal; sums of up to 9 gradients are exact in bf16 too. */
CK_RIG_CASES(the_largest, c, SHAPES) {
  const struct shape *s = &shapes[c];
  int64_t shape[4];
  ck_ok(ek_pooling_shape(shape, s->x, &s->is));
  const int64_t xs = product_of(s->x), ys = product_of(shape);
  double *x = ck_values(rig, xs, -4, 4), *dy = ck_values(rig, ys, -4, 4);
  for (int64_t i = 0; i < xs; i++) x[i] = floor(x[i]);
  for (int64_t i = 0; i < ys; i++) dy[i] = floor(dy[i]);
  if (xs > 40 && c == 1) x[17] = x[37] = NAN;
  struct largest l = {.x = x, .dy = dy, .y = ck_zeros(rig, ys), .place = ck_zeros(rig, ys),
                      .dx = ck_zeros(rig, xs)};
  for (int64_t i = 0; i < ys; i++) l.place[i] = -1;
  for_each(s, find_largest, &l);
  for_each(s, give_largest, &l);
  ek_tensor *y = ck_poisoned(rig, 4, shape), *places = ck_blank(rig, EK_I32, 4, shape);
  ek_tensor *dx = ck_poisoned(rig, 4, s->x), *tx = ck_tensor(rig, x, 4, s->x);
  ck_ok(ek_op_max_pool_forward(rig->stream, y, places, tx, &s->is));
  ck_within("y", ck_read(rig, y), l.y, NULL, ys);
  ck_within("places", ck_read(rig, places), l.place, NULL, ys);
  ek_tensor *tdy = ck_tensor(rig, dy, 4, shape);
  ck_ok(ek_op_max_pool_backward(rig->stream, dx, tdy, places, &s->is));
  ck_within("dx", ck_read(rig, dx), l.dx, NULL, xs);
}

/* ---- means ---- */

struct mean {
  const double *x, *dy;
  double *y, *dx, *y_size, *dx_size, *dx_terms;
};

CK_UNWATCHED static void add_mean(void *raw, const struct at *at) {
  struct mean *m = raw;
  const double weight = 1.0 / (double)at->divisor;
  m->y[at->to] += weight * m->x[at->from];
  m->y_size[at->to] += weight * fabs(m->x[at->from]);
  m->dx[at->from] += weight * m->dy[at->to];
  m->dx_size[at->from] += weight * fabs(m->dy[at->to]);
}

static void bound_sums(const struct ck_rig *rig, double *size, int64_t count, int64_t terms) {
  for (int64_t i = 0; i < count; i++) size[i] *= 4 * (double)(terms + 3) * rig->unit;
}

static struct mean make_mean(struct ck_rig *rig, int64_t xs, int64_t ys) {
  return (struct mean){.x = ck_values(rig, xs, -1, 1), .dy = ck_values(rig, ys, -1, 1),
                       .y = ck_zeros(rig, ys), .dx = ck_zeros(rig, xs), .y_size = ck_zeros(rig, ys),
                       .dx_size = ck_zeros(rig, xs)};
}

CK_RIG_CASES(means, c, MEANS) {
  const struct shape *s = &shapes[c];
  int64_t shape[4];
  ck_ok(ek_pooling_shape(shape, s->x, &s->is));
  const int64_t xs = product_of(s->x), ys = product_of(shape);
  struct mean m = make_mean(rig, xs, ys);
  for_each(s, add_mean, &m);
  bound_sums(rig, m.y_size, ys, s->is.kernel[0] * s->is.kernel[1]);
  bound_sums(rig, m.dx_size, xs, s->is.kernel[0] * s->is.kernel[1]);
  ek_tensor *y = ck_poisoned(rig, 4, shape), *dx = ck_poisoned(rig, 4, s->x);
  ek_tensor *tx = ck_tensor(rig, m.x, 4, s->x), *tdy = ck_tensor(rig, m.dy, 4, shape);
  ck_ok(ek_op_average_pool_forward(rig->stream, y, tx, &s->is));
  ck_fits(rig, "y", y, m.y, m.y_size, ys);
  ck_ok(ek_op_average_pool_backward(rig->stream, dx, tdy, &s->is));
  ck_fits(rig, "dx", dx, m.dx, m.dx_size, xs);
}

/* ---- another size ---- */

/* Larger, smaller, the same, one pixel to many and back, 100 times as wide. */
static const struct {
  int64_t x[4], to[2];
} sizes[] = {{{2, 3, 4, 5}, {6, 8}},   {{1, 7, 5, 70}, {13, 11}}, {{2, 8, 9, 3}, {3, 4}},
             {{1, 5, 6, 16}, {5, 6}},  {{2, 1, 1, 4}, {5, 3}},    {{1, 6, 5, 2}, {1, 1}},
             {{1, 2, 3, 33}, {2, 300}}, {{1, 1, 700, 2}, {3, 7}},  {{0, 2, 2, 3}, {4, 4}}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* The place of pixel i of n among m pixels, of PyTorch's documentation of interpolate(). */
static double place_of(int64_t i, int64_t n, int64_t m, bool corners) {
  if (corners) return n == 1 ? 0 : (double)(i * (m - 1)) / (double)(n - 1);
  return fmax(((double)i + 0.5) * (double)m / (double)n - 0.5, 0);
}

static double weight_of(int64_t i, int64_t n, int64_t pixel, int64_t m, bool corners) {
  const double place = place_of(i, n, m, corners), low = floor(place);
  const double high = fmin(low + 1, (double)(m - 1));
  return (pixel == (int64_t)low ? 1 - (place - low) : 0) +
         (pixel == (int64_t)high ? place - low : 0);
}

/* A weight may be a rounding away from 0, and then from another side of a pixel. */
static bool is_near(int64_t i, int64_t n, int64_t pixel, int64_t m, bool corners) {
  return fabs(place_of(i, n, m, corners) - (double)pixel) < 1 + 1e-9;
}

/* The place of a pixel is i m / n in double precision, 2 roundings of a number up to m. */
CK_RIG_CASES(resampling, c, 2 * SIZES) {
  const int64_t *x = sizes[c / 2].x, *to = sizes[c / 2].to;
  const bool corners = c % 2 != 0;
  const int64_t shape[] = {x[0], to[0], to[1], x[3]};
  const int64_t xs = product_of(x), ys = product_of(shape);
  struct mean m = make_mean(rig, xs, ys);
  double *terms = ck_zeros(rig, xs);
  for (int64_t i = 0; i < ys; i++) {
    const int64_t image = i / (to[0] * to[1] * x[3]), v = i / x[3] / to[1] % to[0];
    const int64_t h = i / x[3] % to[1];
    for (int64_t p = 0; p < x[1]; p++) {
      const double high = weight_of(v, to[0], p, x[1], corners);
      if (!is_near(v, to[0], p, x[1], corners)) continue;
      for (int64_t q = 0; q < x[2]; q++) {
        const double weight = high * weight_of(h, to[1], q, x[2], corners);
        const int64_t from = ((image * x[1] + p) * x[2] + q) * x[3] + i % x[3];
        if (!is_near(h, to[1], q, x[2], corners)) continue;
        m.y[i] += weight * m.x[from];
        m.y_size[i] +=
            fabs(m.x[from]); /* a weight has an error of a few units of 1, not of itself */
        m.dx[from] += weight * m.dy[i];
        m.dx_size[from] += fabs(m.dy[i]);
        terms[from]++;
      }
    }
  }
  for (int64_t i = 0; i < ys; i++) m.y_size[i] *= (28 + 8 * (double)(x[1] + x[2])) * rig->unit;
  for (int64_t i = 0; i < xs; i++) {
    m.dx_size[i] *= 4 * (terms[i] + 3 + 2 * (double)(x[1] + x[2])) * rig->unit;
  }
  ek_tensor *y = ck_poisoned(rig, 4, shape), *dx = ck_poisoned(rig, 4, x);
  ek_tensor *tx = ck_tensor(rig, m.x, 4, x), *tdy = ck_tensor(rig, m.dy, 4, shape);
  ck_ok(ek_op_resample_forward(rig->stream, y, tx, corners));
  ck_fits(rig, "y", y, m.y, m.y_size, ys);
  ck_ok(ek_op_resample_backward(rig->stream, dx, tdy, corners));
  ck_fits(rig, "dx", dx, m.dx, m.dx_size, xs);
}

/* By hand: 1 2 becomes 1 1.25 1.75 2, and with corners 1 4/3 5/3 2. */
CK_RIG_TEST(two_pixels_become_four, NULL, EK_F64) {
  ek_tensor *x = ck_tensor(rig, (const double[]){1, 2}, CK_SHAPE(1, 1, 2, 1));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(1, 1, 4, 1));
  const double bound[] = {1e-15, 1e-15, 1e-15, 1e-15};
  ck_ok(ek_op_resample_forward(rig->stream, y, x, false));
  ck_within("y", ck_read(rig, y), (const double[]){1, 1.25, 1.75, 2}, bound, 4);
  ck_ok(ek_op_resample_forward(rig->stream, y, x, true));
  ck_within("y", ck_read(rig, y), (const double[]){1, 4.0 / 3, 5.0 / 3, 2}, bound, 4);
}

/* ---- finite differences: of what is linear they are exact ---- */

CK_LOOP(finite_differences, 3) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
  const int64_t x_shape[] = {2, 9, 8, 3};
  int64_t shape[] = {2, 13, 5, 3};
  if (_i == 0) ck_ok(ek_pooling_shape(shape, x_shape, &shapes[1].is));
  ek_tensor *x = ck_tensor(rig, ck_values(rig, product_of(x_shape), -1, 1), 4, x_shape);
  const double *dy = ck_values(rig, product_of(shape), -1, 1);
  ek_tensor *dx = ck_poisoned(rig, 4, x_shape), *y = ck_poisoned(rig, 4, shape);
  ek_tensor *tdy = ck_tensor(rig, dy, 4, shape);
  ck_ok(_i == 0 ? ek_op_average_pool_backward(rig->stream, dx, tdy, &shapes[1].is)
                : ek_op_resample_backward(rig->stream, dx, tdy, _i == 2));
  ck_gradient(rig, "dx", x, dx, 60,
              _i == 0 ? ek_op_average_pool_forward(rig->stream, y, x, &shapes[1].is)
                      : ek_op_resample_forward(rig->stream, y, x, _i == 2),
              ck_weighed(y, dy));
}

/* ---- sizes and mistakes ---- */

/* Those of torch.nn.functional.max_pool2d() and of its ceil_mode. */
CK_TEST(shapes_follow_the_formula) {
  static const struct {
    int64_t size;
    ek_pooling is;
    int64_t want;
  } known[] = {{112, IS({3, 3}, {2, 2}, {1, 1}, {1, 1}, true, false), 56},
               {7, IS({7, 7}, {7, 7}, {0, 0}, {1, 1}, true, false), 1},
               {5, IS({2, 2}, {2, 2}, {0, 0}, {1, 1}, true, false), 2},
               {5, IS({2, 2}, {2, 2}, {0, 0}, {1, 1}, true, true), 3},
               {4, IS({2, 2}, {3, 3}, {1, 1}, {1, 1}, true, true), 2},
               {6, IS({2, 2}, {5, 5}, {1, 1}, {1, 1}, true, true), 2},
               {3, IS({2, 2}, {4, 4}, {1, 1}, {1, 1}, true, true), 1}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    int64_t y[4];
    ck_ok(ek_pooling_shape(y, (const int64_t[]){2, known[i].size, known[i].size, 3}, &known[i].is));
    ck_assert_int_eq(y[0], 2);
    ck_assert_int_eq(y[1], known[i].want);
    ck_assert_int_eq(y[2], known[i].want);
    ck_assert_int_eq(y[3], 3);
  }
}

CK_TEST(bad_options) {
  ek_pooling bad = EK_POOLING_INIT;
  int64_t y[4] = {-7, -7, -7, -7};
  const int64_t x[] = {2, 8, 8, 6};
  const int64_t larger[] = {1 << 20, 1 << 20};
#define BAD(member, value, text) ck_bad(bad, member, value, ek_pooling_shape(y, x, &bad), text)
  BAD(kernel[1], 0, "kernel is 2 x 0, expected 1 to 2147483647");
  BAD(stride[0], -1, "stride is -1 x 2");
  BAD(padding[0], -1, "padding is -1 x 0");
  BAD(dilation[1], 0, "dilation is 1 x 0");
  BAD(padding[1], 2, "padding is 2, expected at most half of the 2 pixels");
  ck_bad_with(EK_ERR_SHAPE, bad, kernel[0], 9, ek_pooling_shape(y, x, &bad),
              "x is 8 high with its padding, and a window 9");
  memcpy(bad.kernel, larger, sizeof larger);
  ck_invalid(ek_pooling_shape(y, x, &bad), "has more than 2147483647 pixels");
  ck_assert_int_eq(y[0], -7);
  ck_fails(ek_pooling_shape(y, (const int64_t[]){1, 0, 2, 1}, NULL), EK_ERR_SHAPE,
           "pictures of at least one pixel");
  ck_fails(ek_pooling_shape(y, (const int64_t[]){1, INT64_MAX, 2, 1}, NULL), EK_ERR_OVERFLOW,
           "63 bits");
  ck_invalid(ek_pooling_shape(NULL, (const int64_t[]){1, 2, 2, 1}, NULL), "y_shape is NULL");
}

CK_RIG_TEST(shapes_that_do_not_fit, NULL, EK_F32) {
  CK_WITH(ek_pooling, dilated, EK_POOLING_INIT, .dilation[0] = 2);
  ek_tensor *x = ck_poisoned(rig, CK_SHAPE(2, 4, 6, 3)),
            *y = ck_poisoned(rig, CK_SHAPE(2, 2, 3, 3));
  ek_tensor *flat = ck_poisoned(rig, CK_SHAPE(8, 3)), *one = ck_poisoned(rig, CK_SHAPE(2, 2, 2, 3));
  ek_tensor *places = ck_blank(rig, EK_I32, CK_SHAPE(2, 2, 3, 3));
  ek_tensor *few = ck_blank(rig, EK_I32, CK_SHAPE(2, 2, 2, 3));
  ek_tensor *empty = ck_poisoned(rig, CK_SHAPE(2, 0, 2, 3));
  ck_fails(ek_op_max_pool_forward(rig->stream, one, places, x, NULL), EK_ERR_SHAPE,
           "max_pool_forward: y is 2 x 2 x 2 x 3, expected 2 x 2 x 3 x 3");
  ck_fails(ek_op_max_pool_forward(rig->stream, y, few, x, NULL), EK_ERR_SHAPE, "places is");
  ck_fails(ek_op_max_pool_forward(rig->stream, y, places, flat, NULL), EK_ERR_SHAPE,
           "x is 8 x 3, expected 4 dimensions");
  ck_fails(ek_op_max_pool_backward(rig->stream, x, one, places, NULL), EK_ERR_SHAPE, "dy is");
  ck_fails(ek_op_average_pool_forward(rig->stream, one, x, NULL), EK_ERR_SHAPE, "y is");
  ck_invalid(ek_op_average_pool_forward(rig->stream, y, x, &dilated),
             "dilation is 2 x 1, expected 1 x 1");
  ck_fails(ek_op_average_pool_backward(rig->stream, x, one, NULL), EK_ERR_SHAPE, "dy is");
  ck_fails(ek_op_resample_forward(rig->stream, flat, x, false), EK_ERR_SHAPE, "expected 4 each");
  ck_fails(ek_op_resample_forward(rig->stream, y, empty, false), EK_ERR_SHAPE,
           "x is 2 x 0 x 2 x 3, expected pictures of at least one pixel");
  ek_tensor *more = ck_poisoned(rig, CK_SHAPE(2, 5, 5, 4));
  ck_fails(ek_op_resample_forward(rig->stream, more, x, false), EK_ERR_SHAPE,
           "y is 2 x 5 x 5 x 4, expected 2 x 5 x 5 x 3");
}

CK_SUITE("pool")
