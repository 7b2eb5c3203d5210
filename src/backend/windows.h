/*
 * windows.h - which pixels of a picture a window has, and which windows a pixel is in, with what
 * weight: shared by all backends, for the host and for CUDA kernels.
 *
 * Directions are independent of each other: 0 is vertical, 1 horizontal, and the weight of a pixel
 * in a window is the product of its weights in both. Places are computed in double precision
 * everywhere, so that all backends agree on them.
 */
#ifndef EK_BACKEND_WINDOWS_H
#define EK_BACKEND_WINDOWS_H

#include <math.h>

#include "backend/backend.h"

EK_INLINE int64_t ek__floor_divide(int64_t a, int64_t b) { /* b > 0 */
  return a / b - (a % b < 0);
}

EK_INLINE int64_t ek__clamp(int64_t a, int64_t low, int64_t high) {
  return a < low ? low : a > high ? high : a;
}

/* Where a result of a bilinear mean is in the picture. */
EK_INLINE double ek__window_place(const struct ek__window_side *s, int64_t window) {
  const double place = (double)window * s->scale + s->shift;
  return place < 0.0 ? 0.0 : place;
}

/* The first pixel of a window and the last one, which may be before it: then there is none. */
EK_INLINE void ek__window_pixels(int64_t *first, int64_t *last, enum ek__window kind,
                                 const struct ek__window_side *s, int64_t window) {
  if (kind == EK__WINDOW_BILINEAR) {
    *first = ek__clamp((int64_t)ek__window_place(s, window), 0, s->pixels - 1);
    *last = ek__clamp(*first + 1, 0, s->pixels - 1);
  } else {
    const int64_t begin = window * s->stride - s->padding;
    *first = ek__clamp(begin, 0, s->pixels);
    *last = ek__clamp(begin + s->kernel, 0, s->pixels) - 1;
  }
}

/* The first and the last window that may have a pixel; windows between them may not. */
EK_INLINE void ek__pixel_windows(int64_t *first, int64_t *last, enum ek__window kind,
                                 const struct ek__window_side *s, int64_t pixel) {
  const int64_t end = s->windows - 1;
  if (kind == EK__WINDOW_BILINEAR) {
    const bool one = s->scale <= 0.0;
    const double low = one ? 0.0 : ((double)(pixel - 1) - s->shift) / s->scale;
    const double high = one ? (double)end : ((double)(pixel + 1) - s->shift) / s->scale;
    *first = pixel == 0 || low < 1.0 ? 0 : ek__clamp((int64_t)low - 1, 0, end);
    *last = pixel == s->pixels - 1 || high > (double)end ? end : (int64_t)high + 1;
    if (*last > end) *last = end;
  } else {
    const int64_t reach = (s->kernel - 1) * s->dilation, at = pixel + s->padding;
    *first = ek__clamp(-ek__floor_divide(reach - at, s->stride), 0, s->windows);
    *last = ek__clamp(ek__floor_divide(at, s->stride), -1, end);
  }
}

/* The weight of a pixel in a window, of a mean; 0 if it is not in it. */
EK_INLINE double ek__window_weight(enum ek__window kind, const struct ek__window_side *s,
                                   int64_t window, int64_t pixel) {
  int64_t first, last;
  ek__window_pixels(&first, &last, kind, s, window);
  if (pixel < first || pixel > last) return 0.0;
  if (kind == EK__WINDOW_BILINEAR) {
    const double rest = ek__window_place(s, window) - (double)first;
    if (first == last) return 1.0;
    return pixel == first ? 1.0 - rest : rest;
  }
  if (!s->count_padding) return 1.0 / (double)(last - first + 1);
  const int64_t begin = window * s->stride - s->padding, end = s->pixels + s->padding;
  return 1.0 / (double)((begin + s->kernel < end ? begin + s->kernel : end) - begin);
}

/* The number of the element of a window that a pixel is, in one direction, or -1. */
EK_INLINE int64_t ek__window_element(const struct ek__window_side *s, int64_t window,
                                     int64_t pixel) {
  const int64_t at = pixel + s->padding - window * s->stride;
  if (at < 0 || at % s->dilation != 0 || at / s->dilation >= s->kernel) return -1;
  return at / s->dilation;
}

#endif /* EK_BACKEND_WINDOWS_H */
