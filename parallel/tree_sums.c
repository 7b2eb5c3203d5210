/*
 * tree_sums.c - the gradients of a reproducible model, added along the tree (tree.h).
 *
 * Whole gradients. Each grain writes its gradients to the first flat buffer that holds no block of
 * the tree. Buffer number 0 is the replica's own; while a grain uses another one, that replaces the
 * replica's. After its last grain a rank has a few blocks. The sums of the communicator cannot be
 * used, because it adds in the order of ranks, or in an order of its own. Instead the blocks of all
 * ranks are gathered, a chunk of the flat gradients at a time, and the rank that owns a part of the
 * sum adds them up in the order of the tree. Gathering changes no
 * bit on any communicator, but moves the gradients once for each block instead of twice. Each
 * micro-batch is summed over the ranks and then added to the earlier ones of its step.
 *
 * Shares of gradients. No rank has memory for all gradients of a grain. All ranks run their grains
 * in rounds, so the leaves of a bucket in a round are complete on all ranks at the same time. They
 * are gathered, a chunk at a time. Each rank adds its own share of each leaf to the blocks of
 * the rank that the leaf comes from: it runs one binary counter for each rank, on a part of the
 * elements. With N ranks of g grains each that takes shares of at most N log2(g) blocks, as much as
 * log2(g) whole gradients. In the last round the blocks of all ranks are complete and are added up
 * at once; the leaves of that round are not stored, so with one grain per rank nothing is stored.
 *
 * All memory is taken when the model opens, except the sum of earlier micro-batches: a step may
 * have only one.
 */
#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "core/error.h"
#include "device/communicator_internal.h"
#include "keeper.h"
#include "tree.h"

/* The memory of a rank. */
struct ek__tree {
  struct ek__fold fold;             /* of the blocks that the last backward has left */
  ek_tensor blocks[EK__FOLD_DEPTH]; /* flat gradients; number 0, which is the replica's, is empty */
  ek_tensor earlier;                /* of the step's earlier micro-batches, once there are any */
  ek_tensor exchange; /* the blocks of all ranks, `chunk` elements of each; one rank: none */
  int64_t chunk;
  int64_t *offsets; /* scratch of an all-gather: one more than there are ranks */

  /* Where gradients are shares, the rank's share of the blocks of every rank: */
  struct ek__grain_run {
    size_t first, last;   /* the grains of that rank in this backward */
    struct ek__fold fold; /* of those whose rounds are over */
    size_t begin;         /* its first slot */
  } * runs;               /* per rank of the world */
  ek_tensor slots;        /* as long as the share each */
  size_t round, rounds;
  bool more; /* the shares have sums of earlier micro-batches */
};

static ek_stream *stream_of(const struct ek__rank *rank) {
  return ek_device_stream(rank->device, EK_STREAM_COMPUTE);
}

/* ---- memory ---- */

static const char memory_of[] = "a reproducible model";

static ek_status make_zeros(ek_tensor *flat, const struct ek__rank *rank, int64_t count,
                            ek_type type, ek_memory_category category) {
  EK_TRY(ek_tensor_create(flat, rank->device, category, type, 1, &count));
  return ek_op_zero(stream_of(rank), flat);
}

/* Blocks that the ranks together may be left with. */
static size_t most_blocks(const ek_data_parallel_model *model) {
  size_t most = 0;
  for (size_t used = 1; used <= model->options.reproducible; used++) {
    size_t blocks = 0;
    for (size_t r = 0; r < model->run.cut.ranks; r++) {
      size_t first = 0, last = 0;
      ek__grains_of(&first, &last, model, r, used);
      blocks += ek__fold_of(NULL, first, last, used).depth;
    }
    if (blocks > most) most = blocks;
  }
  return most;
}

/* The least chunk: a collective costs some microseconds whatever it moves. */
enum { LEAST_CHUNK = 4096 };

static ek_status open_exchange(const ek_data_parallel_model *model, const struct ek__rank *rank,
                               size_t rows, int64_t most) {
  struct ek__tree *own = rank->tree;
  const ek_type type = model->options.gradient_type;
  if (model->run.cut.ranks == 1) return EK_OK;
  EK_TRY(ek__new(&own->offsets, model->run.cut.ranks + 1, sizeof *own->offsets, memory_of));
  own->chunk = (int64_t)(model->options.bucket_bytes / ek_type_size(type) / rows / 16 * 16);
  if (own->chunk < LEAST_CHUNK) own->chunk = LEAST_CHUNK;
  if (own->chunk > most) own->chunk = most;
  return make_zeros(&own->exchange, rank, (int64_t)rows * own->chunk, type,
                    EK_MEMORY_COMMUNICATION);
}

/* Slots that a rank needs in the memory of each: blocks of it that a round leaves which is not the
 * last. */
static size_t most_slots(const ek_data_parallel_model *model, size_t number) {
  size_t most = 0;
  for (size_t used = 1; used <= model->options.reproducible; used++) {
    struct ek__fold fold = {.leaves = used};
    size_t first = 0, last = 0;
    ek__grains_of(&first, &last, model, number, used);
    const size_t rounds = ek__grains_rounds(model, used);
    for (size_t i = first; i < last && i - first + 1 < rounds; i++) {
      (void)ek__fold_push(&fold, (struct ek__block){0, i});
      if (fold.depth > most) most = fold.depth;
    }
  }
  return most;
}

static ek_status take_bucket(struct ek__rank *rank, size_t bucket);

static ek_status open_shares(const ek_data_parallel_model *model, struct ek__rank *rank) {
  struct ek__tree *own = rank->tree;
  const struct ek__buckets *cut = &model->run.cut;
  const int64_t share = ek__buckets_share(cut, cut->trained, rank->number);
  int64_t longest = 0;
  size_t slots = 0;
  rank->sums.queue = take_bucket;
  EK_TRY(ek__new(&own->runs, cut->ranks, sizeof *own->runs, memory_of));
  for (size_t r = 0; r < cut->ranks; r++) {
    own->runs[r].begin = slots;
    slots += most_slots(model, r);
  }
  for (size_t b = 0; b < cut->trained; b++) {
    const int64_t count = cut->list[b].last - cut->list[b].first;
    if (count > longest) longest = count;
  }
  EK_TRY(make_zeros(&own->slots, rank, (int64_t)slots * share, model->options.gradient_type,
                    EK_MEMORY_GRADIENTS));
  return open_exchange(model, rank, cut->ranks, longest);
}

static ek_status open_tree(ek_data_parallel_model *model, struct ek__rank *rank) {
  const ek_type type = model->options.gradient_type;
  const size_t grains = model->options.reproducible;
  EK__FAIL_IF(rank->replica->layout.collective, EK_ERR_UNSUPPORTED,
              "ek_data_parallel_model_open: %s has collectives of its own, which need the whole "
              "batch at once; a reproducible model computes it in grains, one after the other",
              ek_module_kind(model->module));
  EK_TRY(ek__new(&rank->tree, 1, sizeof *rank->tree, memory_of));
  if (ek__placement(model)->gradient_shares) return open_shares(model, rank);
  const int64_t count = ek_tensor_count(ek_replica_gradients(rank->replica));
  size_t first = 0, last = 0, most = 0;
  ek__grains_of(&first, &last, model, rank->number, grains);
  (void)ek__fold_of(&most, first, last, grains);
  for (size_t i = 1; i < most; i++) {
    EK_TRY(make_zeros(&rank->tree->blocks[i], rank, count, type, EK_MEMORY_GRADIENTS));
  }
  return open_exchange(model, rank, most_blocks(model), count);
}

static void close_tree(struct ek__rank *rank) {
  struct ek__tree *own = rank->tree;
  if (own == NULL) return;
  for (size_t i = 0; i < EK__FOLD_DEPTH; i++) ek_tensor_free(&own->blocks[i]);
  ek_tensor_free(&own->earlier);
  ek_tensor_free(&own->exchange);
  ek_tensor_free(&own->slots);
  ek__free(own->runs);
  ek__free(own->offsets);
  ek__free(own);
  rank->tree = NULL;
}

/* ---- whole gradients: a rank's own grains ---- */

static struct ek__pieces pieces_of(const ek_data_parallel_model *model, const struct ek__rank *rank,
                                   size_t used) {
  struct ek__pieces pieces = {
      .begin = rank->first_sample, .samples = rank->samples, .all = model->last.all};
  ek__grains_of(&pieces.first, &pieces.last, model, rank->number, used);
  return pieces;
}

static ek_status run_grains(const ek_data_parallel_model *model, struct ek__rank *rank,
                            const ek_tensor *gradients) {
  struct ek__tree *own = rank->tree;
  ek_replica *replica = rank->replica;
  const ek_tensor first_block = replica->gradients;
  const size_t used = ek__grains_used(model, model->last.all);
  const struct ek__pieces pieces = pieces_of(model, rank, used);
  ek_status status = EK_OK;
  own->fold = (struct ek__fold){.leaves = used};
  for (size_t number = pieces.first; number < pieces.last && status == EK_OK; number++) {
    const size_t round = number - pieces.first;
    const struct ek__piece piece = model->run.reduction->piece(model, &pieces, round);
    size_t top = own->fold.depth;
    if (top > 0) replica->gradients = own->blocks[top];
    status = ek__rank_backward_piece(model, rank, &pieces, &piece, round, gradients);
    replica->gradients = first_block;
    size_t sums = ek__fold_push(&own->fold, (struct ek__block){0, number});
    for (; sums > 0 && status == EK_OK; sums--, top--) {
      ek_tensor sum = top > 1 ? own->blocks[top - 1] : first_block;
      status = ek_op_add(stream_of(rank), &sum, &sum, &own->blocks[top]);
    }
  }
  return status;
}

/* ---- over the ranks ---- */

/* Elements of a bucket, counted from its beginning. */
struct range {
  int64_t first, last;
};

/*
 * The sum of a bucket. Each rank has some rows of it, which are gathered, all in the order of the
 * ranks: those of rank r from begins[r] on. `add` gets a range of them that the rank owns. The rows
 * begin with element `begin`, and one row is `count` elements after the other.
 */
struct sum {
  struct ek__rank *rank;
  struct ek__tree *own;
  const struct ek__bucket *bucket;
  ek_tensor rows[EK__FOLD_DEPTH]; /* the rank's own, as long as the bucket each */
  size_t begins[EK__MAX_GRAINS + 1];
  ek_status (*add)(const struct sum *sum, const ek_tensor *rows, int64_t begin, int64_t count,
                   const struct range *range);
  const struct blocks *blocks; /* of whole gradients */
};

static ek_status gather(const struct sum *sum, int64_t begin, int64_t count) {
  const struct ek__sums *sums = &sum->rank->sums;
  const size_t first = sum->begins[sum->rank->number], ranks = sums->cut->ranks;
  for (size_t r = 0; r <= ranks; r++) sum->own->offsets[r] = (int64_t)sum->begins[r] * count;
  for (size_t i = first; i < sum->begins[sum->rank->number + 1]; i++) {
    ek_tensor to = ek__flat_range(&sum->own->exchange, (int64_t)i * count, count);
    const ek_tensor from = ek__flat_range(&sum->rows[i - first], begin, count);
    EK_TRY(ek_op_copy(stream_of(sum->rank), &to, &from));
  }
  ek_tensor rows = ek__flat_range(&sum->own->exchange, 0, sum->own->offsets[ranks]);
  EK_TRY(ek_communicator_all_gather(sums->communicator, sums->device, &rows, sum->own->offsets));
  return ek__communicator_wait_for(sums->communicator, sums->device,
                                   ek__communicator_started(sums->communicator, sums->device));
}

static ek_status sum_bucket(const struct sum *sum) {
  const struct ek__bucket *bucket = sum->bucket;
  const int64_t all = bucket->last - bucket->first;
  struct range mine = {0, all};
  if (sum->rank->sums.cut->ranks == 1) return sum->add(sum, &sum->rows[0], 0, all, &mine);
  ek__bucket_range(&mine.first, &mine.last, bucket, sum->rank->sums.kind, sum->rank->number);
  for (int64_t begin = 0; begin < all; begin += sum->own->chunk) {
    const int64_t count = all - begin < sum->own->chunk ? all - begin : sum->own->chunk;
    struct range range = {mine.first - bucket->first, mine.last - bucket->first};
    if (range.first < begin) range.first = begin;
    if (range.last > begin + count) range.last = begin + count;
    EK_TRY(gather(sum, begin, count));
    if (range.first < range.last) {
      EK_TRY(sum->add(sum, &sum->own->exchange, begin, count, &range));
    }
  }
  return EK_OK;
}

/* ---- whole gradients: the blocks of all ranks ---- */

struct blocks {
  size_t leaves, count;
  struct ek__block list[EK__MAX_GRAINS];
  ek_tensor gradients; /* the replica's */
  bool more, earlier;  /* micro-batches of the step after this one, before it */
};

static void list_blocks(struct blocks *all, size_t *begins, const ek_data_parallel_model *model) {
  all->leaves = ek__grains_used(model, model->last.all);
  all->count = 0;
  for (size_t r = 0; r < model->run.cut.ranks; r++) {
    size_t first = 0, last = 0;
    ek__grains_of(&first, &last, model, r, all->leaves);
    const struct ek__fold fold = ek__fold_of(NULL, first, last, all->leaves);
    begins[r] = all->count;
    for (size_t i = 0; i < fold.depth; i++) all->list[all->count++] = fold.blocks[i];
  }
  begins[model->run.cut.ranks] = all->count;
}

/* Elements of the flat buffers from `first` on become those of the step so far, from those of this
 * micro-batch. */
static ek_status add_up(const struct sum *sum, const ek_tensor *added, int64_t first) {
  const struct blocks *blocks = sum->blocks;
  const int64_t count = ek_tensor_count(added);
  const ek_tensor *earlier = &sum->own->earlier;
  ek_tensor to = ek__flat_range(blocks->more ? earlier : &blocks->gradients, first, count);
  const ek_tensor before = ek__flat_range(earlier, first, count);
  if (blocks->earlier) return ek_op_add(stream_of(sum->rank), &to, &before, added);
  return to.data == added->data ? EK_OK : ek_op_copy(stream_of(sum->rank), &to, added);
}

static ek_status add_blocks(const struct sum *sum, const ek_tensor *gathered, int64_t begin,
                            int64_t count, const struct range *range) {
  const struct blocks *blocks = sum->blocks;
  const int64_t width = range->last - range->first;
  struct ek__row rows[EK__MAX_GRAINS];
  for (size_t i = 0; i < blocks->count; i++) {
    const int64_t first = (int64_t)i * count + range->first - begin;
    rows[i] = (struct ek__row){blocks->list[i], gathered, first};
  }
  EK_TRY(ek__fold_rows(stream_of(sum->rank), rows, blocks->count, width, blocks->leaves));
  const ek_tensor row = ek__flat_range(gathered, range->first - begin, width);
  return add_up(sum, &row, sum->bucket->first + range->first);
}

static ek_status reduce(const ek_data_parallel_model *model, struct ek__rank *rank, bool more) {
  struct blocks blocks = {.gradients = *ek_replica_gradients(rank->replica),
                          .more = more,
                          .earlier = model->step.stage != EK__STEP_EMPTY};
  struct sum sum = {.rank = rank, .own = rank->tree, .add = add_blocks, .blocks = &blocks};
  list_blocks(&blocks, sum.begins, model);
  if (blocks.count == 0) { /* a batch of no samples */
    EK_TRY(ek_op_zero(stream_of(rank), &blocks.gradients));
  }
  if (blocks.count == 0 || model->run.cut.ranks == 1) return add_up(&sum, &blocks.gradients, 0);
  for (size_t b = 0; b < model->run.cut.trained; b++) {
    sum.bucket = &model->run.cut.list[b];
    const int64_t count = sum.bucket->last - sum.bucket->first;
    for (size_t i = 0; i < rank->tree->fold.depth; i++) {
      const ek_tensor *block = i == 0 ? &blocks.gradients : &rank->tree->blocks[i];
      sum.rows[i] = ek__flat_range(block, sum.bucket->first, count);
    }
    EK_TRY(sum_bucket(&sum));
  }
  return EK_OK;
}

static ek_status rest(ek_data_parallel_model *model, struct ek__rank *rank) {
  (void)model;
  const ek_tensor gradients = rank->replica->gradients;
  rank->replica->gradients = rank->tree->earlier;
  rank->tree->earlier = gradients;
  return EK_OK;
}

/* ---- shares of gradients: a bucket of a round ---- */

static size_t grains_of_run(const struct ek__grain_run *run) { return run->last - run->first; }

static bool has_leaf(const struct ek__tree *own, size_t rank) {
  return own->round < grains_of_run(&own->runs[rank]);
}

/* Where a range begins in the rank's shares, and in one of its slots. */
static int64_t place_of(const struct sum *sum, const struct range *range) {
  const size_t number = sum->rank->number;
  return sum->bucket->places[number] + range->first - sum->bucket->offsets[number];
}

static int64_t slot_of(const struct sum *sum, size_t slot, const struct range *range) {
  const int64_t share = ek_tensor_count(ek_replica_gradients(sum->rank->replica));
  return (int64_t)slot * share + place_of(sum, range);
}

/* Adds *block, a leaf of a rank, to that rank's blocks as far as possible, and keeps the result. */
static ek_status add_leaf(struct ek__row *block, const struct sum *sum,
                          const struct ek__grain_run *run, const struct range *range) {
  const int64_t width = range->last - range->first;
  const ek_tensor *slots = &sum->own->slots;
  struct ek__fold fold = run->fold;
  size_t depth = fold.depth;
  for (size_t sums = ek__fold_push(&fold, block->block); sums > 0; sums--) {
    const int64_t below = slot_of(sum, run->begin + --depth, range);
    ek_tensor to = ek__flat_range(slots, below, width);
    const ek_tensor added = ek__flat_range(block->flat, block->first, width);
    EK_TRY(ek_op_add(stream_of(sum->rank), &to, &to, &added));
    block->flat = slots;
    block->first = below;
  }
  block->block = fold.blocks[fold.depth - 1];
  if (sum->own->round + 1 == sum->own->rounds || block->flat == slots) return EK_OK;
  ek_tensor slot = ek__flat_range(slots, slot_of(sum, run->begin + depth, range), width);
  const ek_tensor leaf = ek__flat_range(block->flat, block->first, width);
  return ek_op_copy(stream_of(sum->rank), &slot, &leaf);
}

/* Adds the leaves of this round to the blocks of their ranks; in the last round *rows becomes all
 * blocks. */
static ek_status add_leaves(struct ek__row *rows, size_t *row_count, const struct sum *sum,
                            const ek_tensor *leaves, int64_t begin, int64_t count,
                            const struct range *range) {
  const struct ek__tree *own = sum->own;
  *row_count = 0;
  for (size_t k = 0; k < sum->rank->sums.cut->ranks; k++) {
    const struct ek__grain_run *run = &own->runs[k];
    struct ek__row top = {{0, run->first + own->round},
                          leaves,
                          (int64_t)sum->begins[k] * count + range->first - begin};
    if (has_leaf(own, k)) EK_TRY(add_leaf(&top, sum, run, range));
    if (own->round + 1 < own->rounds) continue;
    /* What it had before, except for what is in the leaf's block now. */
    for (size_t i = 0; i < run->fold.depth; i++) {
      const struct ek__block block = run->fold.blocks[i];
      const int64_t slot = slot_of(sum, run->begin + i, range);
      if (has_leaf(own, k) && block.index << block.level >= top.block.index << top.block.level) {
        break;
      }
      rows[(*row_count)++] = (struct ek__row){block, &own->slots, slot};
    }
    if (has_leaf(own, k)) rows[(*row_count)++] = top;
  }
  return EK_OK;
}

static ek_status add_share(const struct sum *sum, const ek_tensor *leaves, int64_t begin,
                           int64_t count, const struct range *range) {
  ek_stream *stream = stream_of(sum->rank);
  struct ek__row rows[EK__MAX_GRAINS];
  const int64_t width = range->last - range->first;
  size_t row_count = 0;
  EK_TRY(add_leaves(rows, &row_count, sum, leaves, begin, count, range));
  if (row_count == 0) return EK_OK;
  EK_TRY(ek__fold_rows(stream, rows, row_count, width, sum->own->runs[0].fold.leaves));
  ek_tensor share =
      ek__flat_range(ek_replica_gradients(sum->rank->replica), place_of(sum, range), width);
  const ek_tensor added = ek__flat_range(rows[0].flat, rows[0].first, width);
  return sum->own->more ? ek_op_add(stream, &share, &share, &added)
                        : ek_op_copy(stream, &share, &added);
}

static ek_status take_bucket(struct ek__rank *rank, size_t bucket) {
  struct ek__lent *lent = &rank->keeper->gradients[bucket];
  const struct ek__buckets *cut = rank->sums.cut;
  struct sum sum = {
      .rank = rank, .own = rank->tree, .bucket = &cut->list[bucket], .add = add_share};
  sum.rows[0] = lent->whole;
  for (size_t r = 0; r < cut->ranks; r++) {
    sum.begins[r + 1] = sum.begins[r] + has_leaf(rank->tree, r);
  }
  rank->keeper->settled = bucket + 1;
  EK_TRY(sum_bucket(&sum));
  ek_tensor_free(&lent->whole);
  return EK_OK;
}

/* ---- shares of gradients: rounds ---- */

static ek_status begin_rounds(const ek_data_parallel_model *model, const struct ek__rank *rank) {
  struct ek__tree *own = rank->tree;
  const size_t used = ek__grains_used(model, model->last.all);
  own->round = 0;
  own->rounds = ek__grains_rounds(model, used);
  own->more = model->step.stage != EK__STEP_EMPTY;
  for (size_t r = 0; r < model->run.cut.ranks; r++) {
    struct ek__grain_run *run = &own->runs[r];
    ek__grains_of(&run->first, &run->last, model, r, used);
    run->fold = (struct ek__fold){.leaves = used};
  }
  if (own->rounds > 0 || own->more) return EK_OK;
  ek_tensor shares = *ek_replica_gradients(rank->replica);
  return ek_op_zero(stream_of(rank), &shares);
}

static void end_round(const ek_data_parallel_model *model, struct ek__tree *own) {
  for (size_t r = 0; r < model->run.cut.ranks; r++) {
    struct ek__grain_run *run = &own->runs[r];
    if (own->round >= grains_of_run(run)) continue;
    (void)ek__fold_push(&run->fold, (struct ek__block){0, run->first + own->round});
  }
  own->round++;
}

/* Each grain's gradients go to all ranks while its backward runs. */
static ek_status run_rounds(const ek_data_parallel_model *model, struct ek__rank *rank,
                            const ek_tensor *gradients) {
  struct ek__tree *own = rank->tree;
  const size_t used = ek__grains_used(model, model->last.all);
  const struct ek__pieces pieces = pieces_of(model, rank, used);
  EK_TRY(begin_rounds(model, rank));
  while (own->round < own->rounds) {
    const struct ek__piece piece = model->run.reduction->piece(model, &pieces, own->round);
    ek__sums_start(&rank->sums);
    ek__keeper_start(rank->keeper, false);
    if (piece.count > 0 || ek__placement(model)->parameter_shares) {
      EK_TRY(ek__rank_backward_piece(model, rank, &pieces, &piece, own->round, gradients));
    }
    EK_TRY(ek__sums_finish(&rank->sums));
    end_round(model, own);
  }
  return EK_OK;
}

static ek_status backward(const struct ek__backward *job, struct ek__rank *rank,
                          const ek_tensor *gradients) {
  const ek_data_parallel_model *model = job->model;
  rank->reducing = ek__placement(model)->gradient_shares;
  if (rank->reducing) return run_rounds(model, rank, gradients);
  if (job->accumulate && !ek_tensor_exists(&rank->tree->earlier)) {
    EK_TRY(make_zeros(&rank->tree->earlier, rank,
                      ek_tensor_count(ek_replica_gradients(rank->replica)),
                      model->options.gradient_type, EK_MEMORY_GRADIENTS));
  }
  EK_TRY(run_grains(model, rank, gradients));
  return reduce(model, rank, job->accumulate);
}

/* ---- the reduction ---- */

static size_t leaves_of(const ek_data_parallel_model *model) {
  return ek__grains_most(model) * model->run.cut.ranks;
}

static int64_t norm_leaves(const ek_data_parallel_model *model) {
  const struct ek__buckets *cut = &model->run.cut;
  if (cut->trained == 0) return 0;
  const struct ek__bucket *last = &cut->list[cut->trained - 1];
  return (int64_t)(last->piece + last->pieces);
}

const struct ek__reduction ek__reduction_tree = {.grains = ek__grains_of_model,
                                                 .check_cut = ek__grains_check_cut,
                                                 .sizes = ek__grains_sizes,
                                                 .most = ek__grains_most,
                                                 .leaves = leaves_of,
                                                 .pieces = ek__grains_pieces,
                                                 .piece = ek__grains_piece,
                                                 .open = open_tree,
                                                 .close = close_tree,
                                                 .backward = backward,
                                                 .rest = rest,
                                                 .totals = ek__tree_totals,
                                                 .norm_ranges = ek__tree_norm_ranges,
                                                 .norm_leaves = norm_leaves,
                                                 .norm = ek__tree_norm};
