/*
 * cpu_winograd.h - what the transforms of a convolution by Winograd's algorithm are given
 * (cpu_convolve_winograd.c is the algorithm, isa/isa_winograd.c has the transforms).
 *
 * Of a 3 x 3 kernel and a stride of 1. A tile is 2 x 2 pixels of the result, which see 4 x 4 pixels
 * d of the picture; with g the kernel and e the gradient of the tile's results,
 *     results       A^T [(G g G^T) . (B^T d B)] A     . element by element
 *     gradient of g G^T [(A e A^T) . (B^T d B)] G     summed over the tiles
 *           1  0 -1  0          1   0   0             1  0
 *     B^T = 0  1  1  0    G = 1/2 1/2 1/2    A =      1  1
 *           0 -1  1  0        1/2 -1/2 1/2            1 -1
 *           0  1  0 -1          0   0   1             0 -1
 * (S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms
 * for Convolutional Neural Networks, 2015). So each of the 16 positions of what is in brackets is a
 * matrix product over channels, or over tiles: 16 multiplications for 4 results, instead of 36.
 *
 * With a dilation the pixels that are multiples of it apart form pictures of their own: tiles are
 * numbered by image, by the remainders of both directions, by row, by column.
 */
#ifndef EK_CPU_WINOGRAD_H
#define EK_CPU_WINOGRAD_H

#include "backend/cpu/cpu_internal.h"

#define EK__POSITIONS 16

/* Tiles of a picture. Pairs are of height and width. */
struct ek__tiles {
  int64_t size[2], channels; /* of the picture */
  int64_t first[2];          /* the pixel of element 0 of tile 0; may be outside */
  int64_t dilation[2];
  int64_t count[2]; /* of tiles, for each remainder */
};

/*
 * One position of tiles `tile` + begin to `tile` + end:
 *     matrix[i - begin][c] = the sum of the pixels' channel `channel` + c, with 0 outside
 */
struct ek__winograd_gather_args {
  const struct ek__tiles *tiles;
  const void *pixels;
  float *matrix;
  int64_t tile, channel, columns;
  int position;
  bool gradient; /* A e A^T; or else B^T d B */
};

/* Results of the same tiles from 16 matrices, `step` floats apart; and the bias. */
struct ek__winograd_scatter_args {
  const struct ek__tiles *tiles;
  void *pixels;
  const float *matrix;
  const void *bias; /* of channel 0, or NULL */
  int64_t tile, channel, columns, step;
};

/*
 * Kernels of rows `row` + begin to `row` + end. Element (r, c, tap) is at
 * r row_step + c column_step + tap:
 *     weights  matrix[position][r - row][c] = G g G^T, with taps from the last to the first if
 *              `turned`
 *     sums     weight = scale weight + G^T matrix G; with a scale of 0 it is not read
 */
struct ek__winograd_weights_args {
  void *weight; /* values; of `sums` sums */
  float *matrix;
  int64_t row, columns, row_step, column_step, step;
  bool turned;
  double scale;
};

#endif /* EK_CPU_WINOGRAD_H */
