/*
 * isa_convolve.c - unfolding of pictures, and permutation of dimensions.
 *
 * Neighbours in a row of the kernel are copied together where they are neighbours in the picture.
 */
#include "backend/cpu/isa/isa.h"

struct window { /* of a result pixel */
  const struct ek__unfold_args *args;
  const value *image;
  int64_t top, left; /* of its first element, before the spread */
};

/* The place in x in direction i, or -1. */
static inline int64_t place(const struct ek__unfold_args *args, int i, int64_t spread) {
  const int64_t size = i == 0 ? args->height : args->width;
  if (spread < 0) return -1;
  if (args->spread[i] == 1) return spread < size ? spread : -1;
  if (spread % args->spread[i] != 0) return -1;
  return spread / args->spread[i] < size ? spread / args->spread[i] : -1;
}

/* Element (ky, kx) of one group. */
static inline void put_pixel(value *y, const struct window *w, int64_t v, int64_t kx, int64_t first,
                             int64_t width) {
  const struct ek__unfold_args *args = w->args;
  const int64_t h = v < 0 ? -1 : place(args, 1, w->left + kx * args->dilation[1]);
  if (h < 0) {
    memset(y, 0, (size_t)width * sizeof *y);
  } else {
    memcpy(y, w->image + (v * args->width + h) * args->channels + first, (size_t)width * sizeof *y);
  }
}

/* Whether a row of the kernel is a piece of a row of the picture. */
static inline bool is_whole(const struct window *w, int64_t v) {
  const struct ek__unfold_args *args = w->args;
  return v >= 0 && args->groups == 1 && args->spread[1] == 1 && args->dilation[1] == 1 &&
         w->left >= 0 && w->left + args->kernel[1] <= args->width;
}

static value *put_row(value *y, const struct window *w, int64_t ky, int64_t group) {
  const struct ek__unfold_args *args = w->args;
  const int64_t width = args->channels / args->groups;
  const int64_t v = place(args, 0, w->top + ky * args->dilation[0]);
  if (is_whole(w, v)) {
    memcpy(y, w->image + (v * args->width + w->left) * width,
           (size_t)(args->kernel[1] * width) * sizeof *y);
  } else {
    for (int64_t kx = 0; kx < args->kernel[1]; kx++) {
      put_pixel(y + kx * width, w, v, kx, group * width, width);
    }
  }
  return y + args->kernel[1] * width;
}

void EK_ISA_NAME(unfold)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__unfold_args *args = raw;
  const int64_t pixels = args->out_height * args->out_width;
  const int64_t image = args->height * args->width * args->channels;
  value *y = (value *)args->y + begin * args->kernel[0] * args->kernel[1] * args->channels;
  for (int64_t row = args->first + begin; row < args->first + end; row++) {
    const struct window window = {
        args, image == 0 ? args->x : (const value *)args->x + row / pixels * image,
        row % pixels / args->out_width * args->step[0] - args->offset[0],
        row % args->out_width * args->step[1] - args->offset[1]};
    for (int64_t group = 0; group < args->groups; group++) {
      for (int64_t ky = 0; ky < args->kernel[0]; ky++) y = put_row(y, &window, ky, group);
    }
  }
}

void EK_ISA_NAME(permute)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__permute_args *args = raw;
  const int64_t *size = args->size, *step = args->step;
  const float scale = (float)args->value;
  value *y = (value *)args->y + begin * size[2] * size[3];
  for (int64_t row = begin; row < end; row++) {
    const value *x = (const value *)args->x + row / size[1] * step[0] + row % size[1] * step[1];
    for (int64_t i = 0; i < size[2]; i++, x += step[2], y += size[3]) {
      if (scale == 0.0f) {
        for (int64_t j = 0; j < size[3]; j++) y[j] = x[j * step[3]];
      } else {
        for (int64_t j = 0; j < size[3]; j++) {
          x_set(y + j, scale * x_one(y + j) + x_one(x + j * step[3]));
        }
      }
    }
  }
}
