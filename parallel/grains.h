/*
 * grains.h - a reproducible model: batches in grains, sums along one tree.
 *
 * A batch is cut into S grains, whose sizes differ by at most one, larger first. Each is computed
 * by itself, so with the same shapes wherever it is. A device has a run of grains. Whatever is
 * added over the samples (gradients, totals of losses) is added over the grains along one binary
 * tree that knows nothing of devices.
 *
 * The tree: its leaves are the grains that have samples, 0 .. n - 1. Block (l, i) has the leaves
 * from i 2^l on, 2^l of them or as many as there are; it is the sum of blocks (l - 1, 2 i) and
 * (l - 1, 2 i + 1), or the first of them alone if the other has no leaves. The sum of all is the
 * block that has all leaves. For n leaves that is a cut at the largest power of two below n.
 *
 * Files: grains.c has the cut, the tree and the views; grains_memory.c what is held;
 * grains_forward.c and grains_backward.c run the grains of a device; grains_sum.c adds over
 * devices, grains_shares.c where gradients are shares.
 */
#ifndef EK_GRAINS_H
#define EK_GRAINS_H

#include "core/sizes.h"
#include "parallel_internal.h"

/* Most grains of a model, and most blocks that a fold holds at a time: 2 log2 of it, and one. */
enum { EK__MAX_GRAINS = 256, EK__FOLD_DEPTH = 18 };

/* ---- the cut ---- */

/* Number of grains that have samples. */
static inline size_t ek__grains_used(const ek_data_parallel_model *model, int64_t samples) {
  const size_t grains = model->options.reproducible;
  return samples < (int64_t)grains ? (size_t)samples : grains;
}

/* Those of device `index` that have samples: first .. last - 1. */
void ek__grains_of(size_t *first, size_t *last, const ek_data_parallel_model *model, size_t index,
                   size_t used);

/*
 * Devices run their grains in *rounds*: number `round` of each. `most`: what a device has at most,
 * and rounds that there are at most; `rounds`: those of a batch. The passes of device `index` are
 * in the model's from `index` x `most` on. Where parameters are shares every device runs in every
 * round, one that has no grain for it with no rows, because it meets the others in collectives.
 */
size_t ek__grains_most(const ek_data_parallel_model *model);
size_t ek__grains_rounds(const ek_data_parallel_model *model, size_t used);

/* A grain, and its samples among those of the batch. */
struct ek__grain {
  size_t number;
  int64_t first, count;
};
struct ek__grain ek__grain_at(const ek_data_parallel_model *model, size_t number, int64_t samples);

/* The cut over the devices falls between grains: EK_ERR_SHAPE if not. */
ek_status ek__grains_check_cut(const char *who, const ek_data_parallel_model *model,
                               const ek_shards *shards);

/* ---- the tree ---- */

struct ek__block {
  size_t level, index;
};

/* Blocks side by side from left to right, none of which can be added to its neighbour yet. */
struct ek__fold {
  size_t leaves, depth;
  struct ek__block blocks[EK__FOLD_DEPTH];
};

/*
 * Puts the block right of all others on top. Returns how many sums are due now: each adds what is
 * on top to what lies below it, and takes it away. `depth` is what is there after them.
 */
size_t ek__fold_push(struct ek__fold *fold, struct ek__block block);

/* Most blocks that a fold over leaves first .. last - 1 of `leaves` holds. */
size_t ek__fold_most(size_t first, size_t last, size_t leaves);

/* The blocks that device `index` is left with, of a batch with so many grains. */
struct ek__fold ek__grains_blocks(const ek_data_parallel_model *model, size_t index, size_t grains);

/* A block's numbers, from element `first` on of a flat tensor. */
struct ek__row {
  struct ek__block block;
  const ek_tensor *flat;
  int64_t first;
};

/* Adds up `count` rows of `width` numbers, blocks of the tree with `leaves` leaves side by side:
 * row 0 becomes the sum, and the others something. */
ek_status ek__fold_rows(ek_stream *stream, const struct ek__row *rows, size_t count, int64_t width,
                        size_t leaves);

/* The same of rows that are the leaves themselves, `stride` elements each; 0 leaves: row 0 becomes
 * zeros. */
ek_status ek__fold_leaves(ek_stream *stream, const ek_tensor *rows, int64_t stride, size_t leaves);

/* ---- rows of a grain ---- */

/*
 * The caller's own reference to rows of a tensor on a device, or a copy of them where they do not
 * begin at a multiple of 256 bytes: where a grain lies in its device's rows depends on the number
 * of devices, and what a kernel or a library does with an address may not.
 */
ek_status ek__grain_rows(ek_tensor *rows, const ek_tensor *whole, int64_t first, int64_t count,
                         ek_memory_category category);

/* The samples before a grain, of it, and of all grains on its device. */
struct ek__grain_place {
  int64_t before, count, all;
};

/*
 * Puts what a grain has made, *part, behind what others on the device have made: *whole, zeros at
 * first, becomes large enough for all with the first. Takes *part.
 */
ek_status ek__grain_append(ek_tensor *whole, ek_tensor *part, const struct ek__grain_place *place,
                           ek_memory_category category);

/* ---- running them ---- */

struct ek__grain_call {
  const ek_shards *inputs, *lead; /* lead: one of them that is cut */
  size_t input_count, output_count;
  bool predict;
  const ek_forward_options *options;
};

/*
 * ek__parallel_apply() of a reproducible model. The totals of one that computes its loss itself are
 * one [terms, 2] for each grain, one behind the other.
 */
ek_status ek__grains_forward(ek_shards *outputs, ek_data_parallel_model *model,
                             const struct ek__grain_call *call);

/* On a worker: the backward of its grains, and the sum over all devices and over the micro-batches
 * so far. `more`: other micro-batches of the step follow. */
ek_status ek__grains_backward(ek_data_parallel_model *model, ek_device *device, size_t index,
                              const ek_shards *gradients, bool more);
/* The same of a device's gradients that grains_backward.c has left: grains_sum.c. */
ek_status ek__grains_reduce(ek_data_parallel_model *model, ek_device *device, size_t index,
                            bool more);
/*
 * Where gradients are shares, grains_shares.c: a backward begins, and with it round 0; a bucket of
 * the round is complete on this device (`whole` may not exist where it has no grain in it), and its
 * share is added up; the round is over.
 */
ek_status ek__grains_begin(ek_data_parallel_model *model, ek_device *device, size_t index);
ek_status ek__grains_take(ek_data_parallel_model *model, ek_device *device, size_t index,
                          size_t bucket, const ek_tensor *whole);
void ek__grains_end_round(const ek_data_parallel_model *model, size_t index);
/* The gradients of the step are those of the micro-batches so far. */
ek_status ek__grains_take_earlier(ek_data_parallel_model *model, size_t index);

/* ---- memory ---- */

/* grains_memory.c: what sums take; the model's replicas and reducer are there. Freed by
 * ek__grains_close(). */
ek_status ek__grains_open(ek_data_parallel_model *model);
void ek__grains_close(ek_data_parallel_model *model);
ek_status ek__grains_check_open(const ek_data_parallel_model_options *options,
                                const ek_group *group);

#endif /* EK_GRAINS_H */
