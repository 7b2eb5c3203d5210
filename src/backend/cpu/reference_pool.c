/*
 * reference_pool.c - f64 windows over pictures in plain C.
 */
#include "backend/cpu/reference.h"

#include <math.h>

#include "backend/windows.h"

struct pixel { /* number `row` of all images that are `height` x `width` */
  int64_t image, v, h;
};

static struct pixel pixel_of(int64_t row, int64_t height, int64_t width) {
  return (struct pixel){row / (height * width), row / width % height, row % width};
}

static void largest(const struct ek__window_args *args, int64_t row, struct pixel p) {
  const struct ek__window_side *high = &args->side[0], *wide = &args->side[1];
  double *y = (double *)args->y + row * args->channels;
  int32_t *places = args->places + row * args->channels;
  for (int64_t c = 0; c < args->channels; c++) {
    y[c] = -INFINITY;
    places[c] = -1;
    for (int64_t ky = 0; ky < high->kernel; ky++) {
      for (int64_t kx = 0; kx < wide->kernel; kx++) {
        const int64_t v = p.v * high->stride - high->padding + ky * high->dilation;
        const int64_t h = p.h * wide->stride - wide->padding + kx * wide->dilation;
        if (v < 0 || v >= high->pixels || h < 0 || h >= wide->pixels) continue;
        const int64_t from = (p.image * high->pixels + v) * wide->pixels + h;
        const double x = ((const double *)args->x)[from * args->channels + c];
        if (!(x > y[c]) && !isnan(x)) continue;
        y[c] = x;
        places[c] = (int32_t)(ky * wide->kernel + kx);
      }
    }
  }
}

static void mean(const struct ek__window_args *args, int64_t row, struct pixel p) {
  const struct ek__window_side *high = &args->side[0], *wide = &args->side[1];
  double *y = (double *)args->y + row * args->channels;
  int64_t top, bottom, left, right;
  ek__window_pixels(&top, &bottom, args->kind, high, p.v);
  ek__window_pixels(&left, &right, args->kind, wide, p.h);
  for (int64_t c = 0; c < args->channels; c++) {
    y[c] = 0.0;
    for (int64_t v = top; v <= bottom; v++) {
      for (int64_t h = left; h <= right; h++) {
        const int64_t from = (p.image * high->pixels + v) * wide->pixels + h;
        y[c] += ek__window_weight(args->kind, high, p.v, v) *
                ek__window_weight(args->kind, wide, p.h, h) *
                ((const double *)args->x)[from * args->channels + c];
      }
    }
  }
}

void ek__window_forward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__window_args *args = raw;
  for (int64_t row = begin; row < end; row++) {
    const struct pixel p = pixel_of(row, args->side[0].windows, args->side[1].windows);
    if (args->kind == EK__WINDOW_MAX) largest(args, row, p);
    else mean(args, row, p);
  }
}

/* What window (i, j) has of channel c's gradient for pixel p. */
static double share(const struct ek__window_args *args, struct pixel p, int64_t i, int64_t j,
                    int64_t c) {
  const struct ek__window_side *high = &args->side[0], *wide = &args->side[1];
  const int64_t from = ((p.image * high->windows + i) * wide->windows + j) * args->channels + c;
  const double dy = ((const double *)args->x)[from];
  if (args->kind == EK__WINDOW_MAX) {
    const int64_t ky = ek__window_element(high, i, p.v), kx = ek__window_element(wide, j, p.h);
    return ky >= 0 && kx >= 0 && args->places[from] == ky * wide->kernel + kx ? dy : 0.0;
  }
  const double weight = ek__window_weight(args->kind, high, i, p.v) *
                        ek__window_weight(args->kind, wide, j, p.h);
  return weight == 0.0 ? 0.0 : weight * dy;
}

void ek__window_backward_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__window_args *args = raw;
  for (int64_t row = begin; row < end; row++) {
    const struct pixel p = pixel_of(row, args->side[0].pixels, args->side[1].pixels);
    double *dx = (double *)args->y + row * args->channels;
    int64_t top, bottom, left, right;
    ek__pixel_windows(&top, &bottom, args->kind, &args->side[0], p.v);
    ek__pixel_windows(&left, &right, args->kind, &args->side[1], p.h);
    for (int64_t c = 0; c < args->channels; c++) {
      dx[c] = 0.0;
      for (int64_t i = top; i <= bottom; i++) {
        for (int64_t j = left; j <= right; j++) dx[c] += share(args, p, i, j, c);
      }
    }
  }
}
