/*
 * isa_rotary.c - rotary position embedding.
 *
 * The sines of a position are computed in double, once for all heads, and for all samples that have
 * the token there: with 12 heads that is one sine for 24 elements of each sample.
 */
#include <math.h>

#include "backend/cpu/isa/isa.h"

#define TURN 6.283185307179586476925286766559

/* a and b are halves of a head. */
static inline void turn_head(value *a, value *b, const float *cosine, const float *sine,
                             int64_t pairs) {
  V_EACH(0, pairs, {
    const vec x = x_get(a + i, n), y = x_get(b + i, n);
    const vec c = v_get(cosine + i, n), s = v_get(sine + i, n);
    x_put(a + i, x * c - y * s, n);
    x_put(b + i, x * s + y * c, n);
  });
}

static void sines_of(float *cosine, float *sine, const struct ek__rotary_args *args,
                     int64_t position) {
  for (int64_t i = 0; i < args->head_width / 2; i++) {
    const double turns = (double)position * args->turns[i];
    const double angle = TURN * (turns - rint(turns));
    cosine[i] = (float)cos(angle);
    sine[i] = (float)sin(angle);
  }
}

void EK_ISA_NAME(rotary)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__rotary_args *args = raw;
  const int64_t pairs = args->head_width / 2;
  float cosine[EK__MOST_PAIRS], sine[EK__MOST_PAIRS];
  for (int64_t token = begin; token < end; token++) {
    int64_t known = 0; /* whose sines there are, after the first sample */
    for (int64_t sample = 0; sample < args->samples; sample++) {
      const int64_t row = sample * args->tokens + token;
      const int64_t position = args->positions != NULL ? args->positions[row] : token;
      if (sample == 0 || position != known) sines_of(cosine, sine, args, position);
      known = position;
      value *x = (value *)args->x + row * args->columns;
      for (int64_t head = 0; head < args->heads; head++, x += args->head_width) {
        turn_head(x, x + pairs, cosine, sine, pairs);
      }
    }
  }
}
