/*
 * pictures.h - batches of pictures that are drawn, so that a benchmark of images needs no files.
 */
#ifndef BENCH_PICTURES_H
#define BENCH_PICTURES_H

#include "presets.h"

enum { PICTURE_COLOURS = 3 };

/*
 * Fills one batch of a shape with `image`: inputs[b][y][x][colour] around 0, and a class for each
 * picture or, if it segments, for each of its pixels. A class is a brightness, so that a loss
 * falls. Equal for equal seed and step.
 */
void pictures_batch(float *inputs, int32_t *targets, const struct shape *shape, uint64_t seed,
                    int64_t step);

#endif
