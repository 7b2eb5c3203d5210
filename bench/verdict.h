/*
 * verdict.h - when two modes have trained the same.
 *
 * All modes compute the same training, to rounding: they differ in the order of some 32-bit sums.
 * So losses are compared with a relative tolerance that is derived from the rounding of those sums.
 *
 *   - A sum of K products with errors of either sign is off by about sqrt(K) u, u = 2^-24. The
 *     longest inner dimension of the model's products is 4 * width.
 *   - A token's loss hangs on a chain of about 6 products per block and 2 more (embedding, head):
 *     e = sqrt(4 * width) * (6 * layers + 2) * u. A loss is the mean of many tokens' in double
 *     precision, which makes the error no larger; it may be relative to a loss of 1 at least,
 *     because logits are of that order even where the loss has become small.
 *   - With TF32 the factors of a product are first rounded to 10 bits of mantissa, by 2^-11. All
 *     modes do the same but where a difference of order 2^-24 makes a factor round the other way,
 *     one in 2^12 or so: in the root mean square 2^-11 * 2^-6, so that u = 2^-17.
 *   - With numbers of 16 bits every result is rounded so, by 2^-8 or 2^-11, and what differs in
 *     order 2^-24 makes one in 2^15 or 2^12 of them round the other way, which moves it by twice
 *     that: 2^-7 * 2^-7.5 or 2^-10 * 2^-6, so that u = 2^-14 and 2^-16.
 *   - Each step turns errors of that size in gradients into errors of the parameters; an update
 *     changes the loss by no more than its own size, so that step i, counted from 0 with the
 *     warm-up, may be off by (i + 1) e.
 *
 * A wrong division (a mean of means over uneven shards, say) is off by 1 / shards or so, which is
 * far above this for every model that trains.
 */
#ifndef BENCH_VERDICT_H
#define BENCH_VERDICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "parse.h"

struct accuracy {
  int64_t width, layers;
  enum precision precision;
};

/* What the loss of a step (counted from 0, warm-up included) may differ by, relative. */
double loss_tolerance(const struct accuracy *accuracy, int64_t step);

/*
 * True if all `count` losses agree, the first being that of step `first`. Otherwise *where is the
 * index of the first that does not. A loss that is not finite agrees with nothing.
 */
bool losses_agree(size_t *where, const double *left, const double *right, size_t count,
                  const struct accuracy *accuracy, int64_t first);

#endif
