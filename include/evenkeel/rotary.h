/*
 * rotary.h - rotary position embedding (Su et al. 2021): the place of a token turns its queries and
 * keys, so that the product of two depends on their distance.
 *
 * See op.h for the rules that hold for all operations.
 */
#ifndef EVENKEEL_ROTARY_H
#define EVENKEEL_ROTARY_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

#define EK_ROTARY_MOST_PAIRS 128

/*
 * Turns the first heads x head_width columns of x, in place; columns after them stay as they are.
 *   x          B x T x C
 *   positions  i32 B x T, of the tokens; NULL: row t of each sample is at position t
 *   speeds     head_width / 2 numbers in host memory, in radians per token; copied
 * Elements i and i + head_width / 2 of a head are a pair, as in the package `transformers`:
 *     (a, b) -> (a cos(angle) - b sin(angle), a sin(angle) + b cos(angle))
 * with angle = position * speeds[i].
 * With `back` all angles are negative: the inverse, which is also the gradient.
 * EK_ERR_SHAPE for a rank that is not 3, for positions that are not B x T, and for fewer than heads
 * x head_width columns; EK_ERR_INVALID_ARGUMENT for negative heads, for a head_width that is odd,
 * negative, or larger than 2 x EK_ROTARY_MOST_PAIRS, and for speeds that are not finite.
 */
EK_API EK_CHECKED ek_status ek_op_rotary(ek_stream *stream, ek_tensor *x,
                                         const ek_tensor *positions, int heads, int64_t head_width,
                                         const double *speeds, bool back);

typedef enum ek_rotary_scaling {
  EK_ROTARY_PLAIN = 0,
  EK_ROTARY_LINEAR = 1, /* speed / factor (Chen et al. 2023) */
  /* Llama 3: a pair that turns round in fewer than original / high_factor tokens keeps its speed;
   * in more than original / low_factor, speed / factor; in between the two are blended. */
  EK_ROTARY_LLAMA3 = 2
} ek_rotary_scaling;

typedef struct ek_rotary {
  size_t size;
  double theta; /* > 0 */
  ek_rotary_scaling scaling;
  double factor;                  /* > 0; of both scalings */
  double low_factor, high_factor; /* 0 < low < high; of LLAMA3 */
  int64_t original;               /* tokens of the first training, > 0; of LLAMA3 */
} ek_rotary;
#define EK_ROTARY_INIT                                                                             \
  {                                                                                                \
    .size = sizeof(ek_rotary), .theta = 10000.0, .scaling = EK_ROTARY_PLAIN, .factor = 1.0,        \
    .low_factor = 1.0, .high_factor = 4.0, .original = 8192                                        \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_rotary_init(ek_rotary *options, size_t size);

/*
 * speeds[i] = theta^(-2 i / head_width), scaled, for i below head_width / 2. `rotary` NULL gives
 * the defaults. EK_ERR_INVALID_ARGUMENT for a head_width as above, and for numbers that are not as
 * the comments say; speeds is then as it was.
 */
EK_API EK_CHECKED ek_status ek_rotary_speeds(double *speeds, int64_t head_width,
                                             const ek_rotary *rotary);

EK_END_DECLARATIONS

#endif /* EVENKEEL_ROTARY_H */
