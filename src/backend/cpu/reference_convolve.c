/*
 * reference_convolve.c - f64 unfolding of pictures and permutation of dimensions in plain C.
 */
#include "backend/cpu/reference.h"

/* The place of a pixel in x in direction i, or -1: seen from result pixel `from`, element `tap`. */
static int64_t place(const struct ek__unfold_args *args, int i, int64_t from, int64_t tap) {
  const int64_t size = i == 0 ? args->height : args->width;
  const int64_t spread = from * args->step[i] + tap * args->dilation[i] - args->offset[i];
  if (spread < 0 || spread % args->spread[i] != 0 || spread / args->spread[i] >= size) return -1;
  return spread / args->spread[i];
}

void ek__unfold_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__unfold_args *args = raw;
  const int64_t width = args->channels / args->groups, pixels = args->out_height * args->out_width;
  double *y = (double *)args->y + begin * args->kernel[0] * args->kernel[1] * args->channels;
  for (int64_t row = args->first + begin; row < args->first + end; row++) {
    const int64_t image = row / pixels, i = row % pixels / args->out_width;
    const int64_t j = row % args->out_width;
    for (int64_t group = 0; group < args->groups; group++) {
      for (int64_t ky = 0; ky < args->kernel[0]; ky++) {
        for (int64_t kx = 0; kx < args->kernel[1]; kx++) {
          const int64_t v = place(args, 0, i, ky), h = place(args, 1, j, kx);
          const int64_t pixel = (image * args->height + v) * args->width + h;
          const double *x = (const double *)args->x;
          const int64_t from = pixel * args->channels + group * width;
          for (int64_t c = 0; c < width; c++) *y++ = v < 0 || h < 0 ? 0.0 : x[from + c];
        }
      }
    }
  }
}

void ek__permute_f64(const void *raw, int64_t begin, int64_t end) {
  const struct ek__permute_args *args = raw;
  const int64_t *size = args->size, *step = args->step;
  const double *x = args->x;
  double *y = (double *)args->y + begin * size[2] * size[3];
  for (int64_t row = begin; row < end; row++) {
    for (int64_t i = 0; i < size[2]; i++) {
      for (int64_t j = 0; j < size[3]; j++, y++) {
        const double value =
            x[row / size[1] * step[0] + row % size[1] * step[1] + i * step[2] + j * step[3]];
        *y = args->value == 0.0 ? value : args->value * *y + value;
      }
    }
  }
}
