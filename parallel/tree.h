/*
 * tree.h - the reduction of a reproducible model: batches in grains, sums along one tree.
 *
 * A batch is cut into S grains, whose sizes differ by at most one, larger first. Each is computed
 * by itself, so with the same shapes on any device. A rank has a run of grains: they are its
 * pieces. All sums over samples (gradients, totals of losses) are sums over the grains along one
 * binary tree that does not depend on devices.
 *
 * The tree: its leaves are the grains that have samples, 0 .. n - 1. Block (l, i) has the leaves
 * from i 2^l on, 2^l of them or as many as there are; it is the sum of blocks (l - 1, 2 i) and
 * (l - 1, 2 i + 1), or the first of them alone if the other has no leaves. The sum of all is the
 * block that has all leaves. For n leaves that is a cut at the largest power of two below n.
 *
 * tree.c has the cut and the tree, tree_sums.c the sums and the row of the reduction. Where modules
 * have collectives, the grains of a rank advance together: reduction.h.
 */
#ifndef EK_TREE_H
#define EK_TREE_H

#include "core/sizes.h"
#include "reduction.h"

/* Most grains of a model, and most blocks that a fold holds at a time: 2 log2 of it, and one. */
enum { EK__MAX_GRAINS = 256, EK__FOLD_DEPTH = 18 };

/* ---- the cut ---- */

/* Grains first .. last - 1 of a batch. Here and below a batch is that of all processes. */
struct ek__grains {
  size_t first, last;
};

/* Most of a rank; of a batch, those that have samples, and which of them one rank of the world
 * has. */
size_t ek__grains_most(const ek_data_parallel_model *model);
size_t ek__grains_used(const ek_data_parallel_model *model, int64_t samples);
struct ek__grains ek__grains_of(const ek_data_parallel_model *model, size_t rank, size_t used);
/* The samples of a whole batch; this process has `samples` of them (ek_shards.samples). */
int64_t ek__samples_of_all(const ek_data_parallel_model *model, const int64_t *samples);
/* The number of rounds of a batch: in each, every rank runs one of its grains. */
size_t ek__grains_rounds(const ek_data_parallel_model *model, size_t used);

/* ---- the tree ---- */

/* A block of the tree and its numbers, from element `first` on of a flat tensor; NULL: the block
 * alone. */
struct ek__row {
  size_t level, index;
  const ek_tensor *flat;
  int64_t first;
};

static inline ek_tensor ek__row_range(const struct ek__row *row, int64_t width) {
  return ek__flat_range(row->flat, row->first, width);
}

/* Blocks side by side from left to right, none of which can be added to its neighbour yet. */
struct ek__fold {
  size_t leaves, depth;
  struct ek__row rows[EK__FOLD_DEPTH];
};

/* Puts a block right of those of a fold, and makes the sums that are due, of `width` numbers: a sum
 * takes the place of its left half. */
ek_status ek__fold_add(struct ek__fold *fold, struct ek__row row, int64_t width);
/* The blocks that these grains of `leaves` leave; *most, which may be NULL: that the fold held at a
 * time. */
struct ek__fold ek__fold_of(size_t *most, struct ek__grains grains, size_t leaves);

/* Adds up leaves of `count` grains, end to end; a rank's own are there: number 0 becomes the sum of
 * all, on every rank. samples: of a loss, NULL for what a forward or backward computes. */
ek_status ek__leaves_add(const ek_data_parallel_model *model, const struct ek__rank *rank,
                         ek_communicator *communicator, ek_tensor *leaves, size_t count,
                         const int64_t *samples);

/* ---- slots of struct ek__reduction ---- */

ek_status ek__grains_check_cut(const char *who, const ek_data_parallel_model *model,
                               const ek_shards *shards, int64_t before, int64_t all, bool forward);
void ek__grains_pieces(struct ek__pieces *pieces, const ek_data_parallel_model *model,
                       const struct ek__rank *rank, const int64_t *samples, bool forward);
struct ek__piece ek__grains_piece(const ek_data_parallel_model *model,
                                  const struct ek__pieces *pieces, size_t round);

#endif /* EK_TREE_H */
