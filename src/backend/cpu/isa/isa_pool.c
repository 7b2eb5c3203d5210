/*
 * isa_pool.c - windows over pictures.
 *
 * A range has pixels of the result. Of each, VECTORS vectors of channels are kept in registers
 * while the loop goes over the pixels that it is made of; a mean computes their weights once for a
 * block, up to MOST in a row at a time.
 */
#include "backend/cpu/isa/isa.h"

#include <math.h>

#include "backend/windows.h"

enum { VECTORS = 4, MOST = 64 };

struct pixel {
  int64_t image, v, h;
};

static inline struct pixel pixel_of(int64_t row, int64_t height, int64_t width) {
  return (struct pixel){row / (height * width), row / width % height, row % width};
}

static inline vec_i load_places(const int32_t *places, int64_t n) {
  vec_i result = {0};
  memcpy(&result, places, (size_t)n * sizeof *places);
  return result;
}

/* ---- the largest ---- */

static void largest(const struct ek__window_args *args, int64_t row, struct pixel p) {
  const struct ek__window_side *high = &args->side[0], *wide = &args->side[1];
  const int64_t channels = args->channels;
  const value *x = (const value *)args->x + p.image * high->pixels * wide->pixels * channels;
  const int64_t top = p.v * high->stride - high->padding;
  const int64_t left = p.h * wide->stride - wide->padding;
  V_EACH(0, channels, {
    vec best = v_set(-INFINITY);
    vec_i place = (vec_i){0} - 1;
    for (int64_t ky = 0; ky < high->kernel; ky++) {
      const int64_t v = top + ky * high->dilation;
      if (v < 0 || v >= high->pixels) continue;
      for (int64_t kx = 0; kx < wide->kernel; kx++) {
        const int64_t h = left + kx * wide->dilation;
        if (h < 0 || h >= wide->pixels) continue;
        const vec a = x_get(x + (v * wide->pixels + h) * channels + i, n);
        const vec_i larger = (a > best) | (a != a);
        const vec_i here = (vec_i){0} + (int32_t)(ky * wide->kernel + kx);
        best = v_choose(larger, a, best);
        place = (vec_i)v_choose(larger, (vec)here, (vec)place);
      }
    }
    x_put((value *)args->y + row * channels + i, best, n);
    memcpy(args->places + row * channels + i, &place, (size_t)n * sizeof *args->places);
  });
}

static void largest_backward(const struct ek__window_args *args, int64_t row, struct pixel p) {
  const struct ek__window_side *high = &args->side[0], *wide = &args->side[1];
  const int64_t channels = args->channels, image = p.image * high->windows;
  int64_t top, bottom, left, right;
  ek__pixel_windows(&top, &bottom, EK__WINDOW_MAX, high, p.v);
  ek__pixel_windows(&left, &right, EK__WINDOW_MAX, wide, p.h);
  V_EACH(0, channels, {
    vec sum = {0};
    for (int64_t a = top; a <= bottom; a++) {
      const int64_t ky = ek__window_element(high, a, p.v);
      for (int64_t b = left; b <= right && ky >= 0; b++) {
        const int64_t kx = ek__window_element(wide, b, p.h);
        const int64_t from = ((image + a) * wide->windows + b) * channels + i;
        if (kx < 0) continue;
        const vec_i won =
            load_places(args->places + from, n) == (int32_t)(ky * wide->kernel + kx);
        sum += v_choose(won, x_get((const value *)args->x + from, n), v_set(0.0f));
      }
    }
    x_put((value *)args->y + row * channels + i, sum, n);
  });
}

/* ---- means ---- */

/* The way there, or back: a pixel of the result is made of those of a rectangle of the source. */
struct mean {
  const struct ek__window_args *args;
  bool back;
  struct pixel p;
  int64_t height, width; /* of the source */
  int64_t top, bottom, left, right;
};

static inline double weight_of(const struct mean *m, int side, int64_t source) {
  const struct ek__window_side *s = &m->args->side[side];
  const int64_t own = side == 0 ? m->p.v : m->p.h;
  return m->back ? ek__window_weight(m->args->kind, s, source, own)
                 : ek__window_weight(m->args->kind, s, own, source);
}

/* Adds `count` pixels of each row, from `left` on, to VECTORS vectors or fewer: n elements. */
static inline void add_pixels(vec sum[VECTORS], const struct mean *m, int64_t left, int64_t count,
                              int64_t channel, int64_t n) {
  const int64_t channels = m->args->channels;
  double wide[MOST];
  for (int64_t h = 0; h < count; h++) wide[h] = weight_of(m, 1, left + h);
  for (int64_t v = m->top; v <= m->bottom; v++) {
    const double high = weight_of(m, 0, v);
    const int64_t from = ((m->p.image * m->height + v) * m->width + left) * channels + channel;
    const value *x = (const value *)m->args->x + from;
    for (int64_t h = 0; h < count; h++, x += channels) {
      const float weight = (float)(high * wide[h]);
      if (weight == 0.0f) continue; /* of a pixel that is in no window here */
      for (int b = 0; b < VECTORS && b * W < n; b++) {
        sum[b] += weight * x_get(x + b * W, at_most(n - b * W, W));
      }
    }
  }
}

static inline void mean_of(const struct mean *m, int64_t row, int64_t channel, int64_t n) {
  vec sum[VECTORS] = {{0}};
  value *y = (value *)m->args->y + row * m->args->channels + channel;
  for (int64_t left = m->left; left <= m->right; left += MOST) {
    add_pixels(sum, m, left, at_most(m->right - left + 1, MOST), channel, n);
  }
  for (int b = 0; b < VECTORS && b * W < n; b++) x_put(y + b * W, sum[b], at_most(n - b * W, W));
}

static void mean(const struct ek__window_args *args, int64_t row, struct pixel p, bool back) {
  const struct ek__window_side *high = &args->side[0], *wide = &args->side[1];
  struct mean m = {.args = args,
                   .back = back,
                   .p = p,
                   .height = back ? high->windows : high->pixels,
                   .width = back ? wide->windows : wide->pixels};
  if (back) {
    ek__pixel_windows(&m.top, &m.bottom, args->kind, high, p.v);
    ek__pixel_windows(&m.left, &m.right, args->kind, wide, p.h);
  } else {
    ek__window_pixels(&m.top, &m.bottom, args->kind, high, p.v);
    ek__window_pixels(&m.left, &m.right, args->kind, wide, p.h);
  }
  V_STEPS(VECTORS * W, 0, args->channels, mean_of(&m, row, i, n));
}

/* ---- range functions ---- */

void EK_ISA_NAME(window_forward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__window_args *args = raw;
  for (int64_t row = begin; row < end; row++) {
    const struct pixel p = pixel_of(row, args->side[0].windows, args->side[1].windows);
    if (args->kind == EK__WINDOW_MAX) largest(args, row, p);
    else mean(args, row, p, false);
  }
}

void EK_ISA_NAME(window_backward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__window_args *args = raw;
  for (int64_t row = begin; row < end; row++) {
    const struct pixel p = pixel_of(row, args->side[0].pixels, args->side[1].pixels);
    if (args->kind == EK__WINDOW_MAX) largest_backward(args, row, p);
    else mean(args, row, p, true);
  }
}
