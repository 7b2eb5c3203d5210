/*
 * tree_sums.c - the sums of a reproducible model along the tree (tree.h), and the row of the
 * reduction. Totals of a loss have a leaf for each grain: every rank gets the leaves of all ranks.
 * Gradients are too large for that:
 *
 * Whole gradients. Each grain writes its gradients to the first flat buffer that holds no block of
 * the tree; in lockstep each has a buffer to the end. Buffer number 0 is the replica's own; while a
 * grain uses another one, that replaces the replica's. After its last grain a rank has some blocks.
 * The sums of the communicator cannot be used, because it adds in the order of ranks, or in an
 * order of its own. Instead the blocks of all ranks are gathered, a chunk of the flat gradients at
 * a time, and the rank that owns a range of the sum adds them up in the order of the tree. That
 * changes no bit on any communicator, but moves the gradients once for each block instead of twice.
 * Each micro-batch is summed over the ranks and then added to the earlier ones of its step.
 *
 * Shares of gradients. No rank has memory for all gradients of a grain. All ranks run their grains
 * in rounds, so the leaves of a bucket in a round are complete on all ranks at the same time. They
 * are gathered, a chunk at a time. Each rank adds its own share of each leaf to the blocks of the
 * rank that the leaf comes from: it runs one binary counter for each rank, on its share of the
 * elements. With N ranks of g grains each that takes shares of at most N log2(g) blocks, as much as
 * log2(g) whole gradients. In the last round the blocks of all ranks are complete and are added up
 * at once; the leaves of that round are not stored, so with one grain per rank nothing is stored.
 *
 * All memory is taken when the model opens, except for the sum of earlier micro-batches.
 */
#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "device/communicator_internal.h"
#include "tree.h"

/* The memory of a rank. */
struct ek__tree {
  ek_tensor *blocks; /* flat gradients; number 0 is a loan of the replica's while grains run */
  size_t block_count;
  ek_tensor earlier;  /* of the step's earlier micro-batches, once there are any */
  ek_tensor exchange; /* the rows of all ranks, `chunk` elements of each; one rank: none */
  int64_t chunk;

  /* Of a backward, in rounds where gradients are shares, else in one: */
  size_t leaves, round, rounds;
  struct grain_run {
    struct ek__grains grains; /* of that rank in this backward */
    struct ek__fold kept;     /* blocks of the rounds that are over */
    struct ek__fold brought;  /* of this round */
    size_t slot;              /* where those that are kept begin in `slots` */
  } * runs;                   /* per rank of the world */
  ek_tensor slots;            /* as long as the rank's share each */
  ek_tensor sum, before; /* loans: where it is put, added to what was `before` it in the step */
};

/* ---- memory ---- */

static const char memory_of[] = "a reproducible model";

static ek_status make_zeros(ek_tensor *flat, const struct ek__rank *rank, int64_t count,
                            ek_memory_category category) {
  EK_TRY(ek_tensor_create(flat, rank->device, category, rank->replica->gradient_type, 1, &count));
  return ek_op_zero(ek__rank_stream(rank), flat);
}

/* Blocks that the ranks together may be left with. */
static size_t most_blocks(const ek_data_parallel_model *model) {
  size_t most = 0;
  for (size_t used = 1; used <= model->options.reproducible; used++) {
    size_t blocks = 0;
    for (size_t r = 0; r < model->run.cut.ranks; r++) {
      blocks += ek__fold_of(NULL, ek__grains_of(model, r, used), used).depth;
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
  const size_t size = ek_type_size(rank->replica->gradient_type);
  if (model->run.cut.ranks == 1) return EK_OK;
  own->chunk = (int64_t)(model->options.bucket_bytes / size / rows / 16 * 16);
  if (own->chunk < LEAST_CHUNK) own->chunk = LEAST_CHUNK;
  if (own->chunk > most) own->chunk = most;
  return make_zeros(&own->exchange, rank, (int64_t)rows * own->chunk, EK_MEMORY_COMMUNICATION);
}

/* Slots that a rank needs in the memory of each: blocks of it that a round leaves which is not the
 * last. */
static size_t most_slots(const ek_data_parallel_model *model, size_t number) {
  size_t most = 0;
  for (size_t used = 1; used <= model->options.reproducible; used++) {
    const struct ek__grains grains = ek__grains_of(model, number, used);
    const size_t rounds = ek__grains_rounds(model, used);
    struct ek__fold fold = {.leaves = used};
    for (size_t i = grains.first; i < grains.last && i - grains.first + 1 < rounds; i++) {
      (void)ek__fold_add(&fold, (struct ek__row){.index = i}, 0);
      if (fold.depth > most) most = fold.depth;
    }
  }
  return most;
}

static void close_tree(struct ek__rank *rank) {
  struct ek__tree *own = rank->tree;
  ek__lockstep_close(rank);
  if (own == NULL) return;
  for (size_t i = 1; i < own->block_count; i++) ek_tensor_free(&own->blocks[i]);
  ek_tensor_free(&own->earlier);
  ek_tensor_free(&own->exchange);
  ek_tensor_free(&own->slots);
  ek__free(own->blocks);
  ek__free(own->runs);
  ek__free(own);
  rank->tree = NULL;
}

/* A backward, for its rounds. */
struct run {
  const ek_data_parallel_model *model;
  struct ek__rank *rank;
  const ek_tensor *gradients;
};

/* ---- whole gradients: a rank's own grains ---- */

static void use_block(struct ek__rank *rank, size_t number) {
  rank->replica->gradients = rank->tree->blocks[number];
}

static ek_status run_grain(void *context, size_t round) {
  const struct run *run = context;
  return ek__rank_backward_piece(run->model, run->rank, round, run->gradients);
}

/* In lockstep all have run when the first is added. *fold: the rank's blocks. */
static ek_status run_grains(struct ek__fold *fold, struct run *run) {
  struct ek__rank *rank = run->rank;
  const struct ek__pieces *pieces = &rank->pieces;
  ek_tensor *blocks = rank->tree->blocks;
  const bool lockstep = rank->lockstep != NULL;
  ek_status status = EK_OK;
  *fold = (struct ek__fold){.leaves = ek__grains_used(run->model, run->model->last.all)};
  blocks[0] = rank->replica->gradients;
  if (lockstep) {
    status = ek__rounds_run(
        &(struct ek__rounds){run->model, rank, pieces->rounds, use_block, run_grain, run});
  }
  for (size_t i = pieces->first; i < pieces->last && status == EK_OK; i++) {
    const size_t round = i - pieces->first, block = lockstep ? round : fold->depth;
    const struct ek__row row = {0, i, &blocks[block], 0};
    if (!lockstep) {
      use_block(rank, block);
      status = run_grain(run, round);
    }
    if (status == EK_OK) status = ek__fold_add(fold, row, ek_tensor_count(row.flat));
  }
  rank->replica->gradients = blocks[0];
  return status;
}

/* ---- over the ranks ---- */

/* What all ranks bring, row by row in their order, `length` elements each; and the elements of them
 * that the rank owns, which begin with number `skip` of every row. */
struct chunk {
  const ek_tensor *rows;
  int64_t length, skip;
  struct ek__span own;
};

/* *to becomes what was added up, plus `before` if that exists. */
static ek_status put(const struct ek__rank *rank, const ek_tensor *to, const ek_tensor *before,
                     const ek_tensor *added) {
  ek_tensor sum = *to;
  if (ek_tensor_exists(before)) return ek_op_add(ek__rank_stream(rank), &sum, before, added);
  return to->data == added->data ? EK_OK : ek_op_copy(ek__rank_stream(rank), &sum, added);
}

/* Elements begin .. begin + count - 1 of what all ranks bring. */
static ek_status gather(const struct ek__rank *rank, int64_t begin, int64_t count) {
  const struct ek__sums *sums = rank->sums;
  const struct ek__tree *own = rank->tree;
  const struct ek__fold *mine = &own->runs[rank->number].brought;
  const size_t ranks = sums->cut->ranks;
  int64_t offsets[EK__MAX_GRAINS + 1] = {0};
  for (size_t r = 0; r < ranks; r++) {
    offsets[r + 1] = offsets[r] + (int64_t)own->runs[r].brought.depth * count;
  }
  for (size_t i = 0; i < mine->depth; i++) {
    const int64_t row = offsets[rank->number] + (int64_t)i * count;
    ek_tensor to = ek__flat_range(&own->exchange, row, count);
    const ek_tensor from = ek__flat_range(mine->rows[i].flat, mine->rows[i].first + begin, count);
    EK_TRY(ek_op_copy(ek__rank_stream(rank), &to, &from));
  }
  ek_tensor rows = ek__flat_range(&own->exchange, 0, offsets[ranks]);
  EK_TRY(ek_communicator_all_gather(sums->communicator, sums->device, &rows, offsets));
  return ek__communicator_wait_for(sums->communicator, sums->device,
                                   ek__communicator_started(sums->communicator, sums->device));
}

/* The chunk's elements of a block of a rank that is, or will be, in its slot number `index`. */
static struct ek__row slot_of(const struct ek__rank *rank, const struct grain_run *run,
                              size_t index, struct ek__row block, const struct chunk *chunk) {
  const int64_t share = ek_tensor_count(ek_replica_gradients(rank->replica));
  block.flat = &rank->tree->slots;
  block.first = (int64_t)(run->slot + index) * share + chunk->own.place;
  return block;
}

/* Adds what the ranks bring to the blocks that are kept of each. In the last round these are added
 * up and become the sum; in any other the slots keep them. */
static ek_status add_chunk(const struct ek__rank *rank, const struct chunk *chunk) {
  const struct ek__tree *own = rank->tree;
  const int64_t width = chunk->own.count;
  const bool last = own->round + 1 == own->rounds;
  struct ek__fold all = {.leaves = own->leaves};
  int64_t first = chunk->skip; /* of the next row */
  for (size_t r = 0; r < rank->sums->cut->ranks; r++) {
    const struct grain_run *run = &own->runs[r];
    struct ek__fold fold = run->kept;
    for (size_t i = 0; i < fold.depth; i++) {
      fold.rows[i] = slot_of(rank, run, i, fold.rows[i], chunk);
    }
    for (size_t i = 0; i < run->brought.depth; i++, first += chunk->length) {
      struct ek__row next = run->brought.rows[i];
      next.flat = chunk->rows;
      next.first = first;
      EK_TRY(ek__fold_add(&fold, next, width));
    }
    for (size_t i = 0; i < fold.depth && last; i++) {
      EK_TRY(ek__fold_add(&all, fold.rows[i], width));
    }
    if (last || run->brought.depth == 0) continue;
    const struct ek__row *top = &fold.rows[fold.depth - 1];
    const struct ek__row kept = slot_of(rank, run, fold.depth - 1, *top, chunk);
    const ek_tensor slot = ek__row_range(&kept, width), block = ek__row_range(top, width);
    EK_TRY(put(rank, &slot, NULL, &block));
  }
  if (all.depth == 0) return EK_OK;
  const int64_t place = rank->reducing ? chunk->own.place : chunk->own.first;
  const ek_tensor to = ek__flat_range(&own->sum, place, width);
  const ek_tensor before = ek__flat_range(&own->before, place, width);
  const ek_tensor added = ek__row_range(&all.rows[0], width);
  return put(rank, &to, ek_tensor_exists(&own->before) ? &before : NULL, &added);
}

static ek_status sum_bucket(const struct ek__rank *rank, size_t number) {
  const struct ek__tree *tree = rank->tree;
  const struct ek__bucket *bucket = &rank->sums->cut->list[number];
  const struct ek__span own = ek__bucket_owned(bucket, rank->sums->kind, rank->number);
  const struct chunk all = {tree->runs[0].brought.rows[0].flat, own.count, 0, own};
  if (rank->sums->cut->ranks == 1) return add_chunk(rank, &all);
  for (int64_t begin = bucket->first; begin < bucket->last; begin += tree->chunk) {
    const int64_t rest = bucket->last - begin, count = rest < tree->chunk ? rest : tree->chunk;
    struct chunk chunk = {&tree->exchange, count, 0, ek__span_within(own, begin, begin + count)};
    EK_TRY(gather(rank, begin, count));
    if (chunk.own.count == 0) continue;
    chunk.skip = chunk.own.first - begin;
    EK_TRY(add_chunk(rank, &chunk));
  }
  return EK_OK;
}

/* The next calls of passes and of take_bucket() are of this round: each rank brings its
 * grain of that number, or, if gradients are whole, what all its grains have left. */
static void enter_round(struct ek__rank *rank, size_t round) {
  struct ek__tree *own = rank->tree;
  for (size_t r = 0; r < rank->sums->cut->ranks; r++) {
    struct grain_run *run = &own->runs[r];
    struct ek__grains over = run->grains, next = run->grains;
    if (over.last > over.first + round) over.last = over.first + round;
    next.first = over.last;
    if (rank->reducing && next.last > next.first) next.last = next.first + 1;
    run->kept = ek__fold_of(NULL, over, own->leaves);
    run->brought = ek__fold_of(NULL, next, own->leaves);
  }
  if (rank->lockstep != NULL && rank->reducing) rank->sums = &rank->rounds[round];
  own->round = round;
}

/* Of a micro-batch of the step; `more` follow. */
static void begin(const ek_data_parallel_model *model, const struct ek__rank *rank, bool more) {
  struct ek__tree *own = rank->tree;
  const bool shares = rank->reducing, begun = model->step.stage != EK__STEP_EMPTY;
  own->leaves = ek__grains_used(model, model->last.all);
  own->rounds = shares ? ek__grains_rounds(model, own->leaves) : 1;
  own->sum = more && !shares ? own->earlier : rank->replica->gradients;
  own->before = !begun ? (ek_tensor){0} : shares ? own->sum : own->earlier;
  for (size_t r = 0; r < model->run.cut.ranks; r++) {
    own->runs[r].grains = ek__grains_of(model, r, own->leaves);
  }
}

/* ---- whole gradients: all buckets ---- */

/* A single rank has the sum; so have all if there are no samples, whose sum is 0. */
static ek_status reduce(struct ek__rank *rank, const struct ek__fold *mine) {
  const struct ek__tree *own = rank->tree;
  const struct ek__buckets *cut = rank->sums->cut;
  ek_tensor gradients = rank->replica->gradients;
  if (own->leaves == 0) EK_TRY(ek_op_zero(ek__rank_stream(rank), &gradients));
  if (own->leaves == 0 || cut->ranks == 1) return put(rank, &own->sum, &own->before, &gradients);
  enter_round(rank, 0);
  own->runs[rank->number].brought = *mine;
  for (size_t b = 0; b < cut->trained; b++) EK_TRY(sum_bucket(rank, b));
  return EK_OK;
}

static ek_status rest(void *context, struct ek__rank *rank) {
  (void)context;
  const ek_tensor gradients = rank->replica->gradients;
  rank->replica->gradients = rank->tree->earlier;
  rank->tree->earlier = gradients;
  return EK_OK;
}

/* ---- shares of gradients: rounds ---- */

/* A bucket of the round. */
static ek_status take_bucket(struct ek__rank *rank, size_t bucket) {
  ek_tensor *whole = &rank->sums->lent[bucket].whole;
  struct ek__row *mine = rank->tree->runs[rank->number].brought.rows; /* at most one */
  mine->flat = whole;
  mine->first = -rank->sums->cut->list[bucket].first;
  EK_TRY(sum_bucket(rank, bucket));
  ek_tensor_free(whole);
  return EK_OK;
}

static ek_status run_round(void *context, size_t round) {
  const struct run *run = context;
  struct ek__rank *rank = run->rank;
  ek__sums_start(rank->sums, false);
  if (rank->passes[round] != NULL) EK_TRY(run_grain(context, round));
  return ek__sums_finish(rank->sums, rank);
}

/* Each grain's gradients go to all ranks while its backward runs. */
static ek_status run_rounds(struct run *run) {
  struct ek__rank *rank = run->rank;
  const struct ek__tree *own = rank->tree;
  if (own->rounds == 0 && !ek_tensor_exists(&own->before)) { /* no samples */
    ek_tensor shares = own->sum;
    return ek_op_zero(ek__rank_stream(rank), &shares);
  }
  const ek_status status = ek__rounds_run(
      &(struct ek__rounds){run->model, rank, own->rounds, enter_round, run_round, run});
  rank->sums = rank->rounds;
  return status;
}

static ek_status backward(const struct ek__backward *job, struct ek__rank *rank,
                          const ek_tensor *gradients) {
  const ek_data_parallel_model *model = job->model;
  struct run run = {model, rank, gradients};
  rank->reducing = ek__placement(model)->gradient_shares;
  if (!rank->reducing && job->accumulate && !ek_tensor_exists(&rank->tree->earlier)) {
    EK_TRY(make_zeros(&rank->tree->earlier, rank,
                      ek_tensor_count(ek_replica_gradients(rank->replica)), EK_MEMORY_GRADIENTS));
  }
  struct ek__fold mine;
  if (!rank->reducing) EK_TRY(run_grains(&mine, &run));
  begin(model, rank, job->accumulate);
  return rank->reducing ? run_rounds(&run) : reduce(rank, &mine);
}

/* ---- opening ---- */

static ek_status open_shares(const ek_data_parallel_model *model, struct ek__rank *rank) {
  struct ek__tree *own = rank->tree;
  const struct ek__buckets *cut = &model->run.cut;
  const int64_t share = ek__buckets_share(cut, cut->trained, rank->number);
  int64_t longest = 0;
  size_t slots = 0;
  for (size_t r = 0; r < cut->ranks; r++) {
    own->runs[r].slot = slots;
    slots += most_slots(model, r);
  }
  for (size_t b = 0; b < cut->trained; b++) {
    const int64_t count = cut->list[b].last - cut->list[b].first;
    if (count > longest) longest = count;
  }
  EK_TRY(make_zeros(&own->slots, rank, (int64_t)slots * share, EK_MEMORY_GRADIENTS));
  return open_exchange(model, rank, cut->ranks, longest);
}

static ek_status open_blocks(const ek_data_parallel_model *model, struct ek__rank *rank) {
  struct ek__tree *own = rank->tree;
  const size_t grains = model->options.reproducible;
  const int64_t count = ek_tensor_count(ek_replica_gradients(rank->replica));
  size_t most = ek__grains_most(model);
  if (rank->lockstep == NULL) {
    (void)ek__fold_of(&most, ek__grains_of(model, rank->number, grains), grains);
  }
  EK_TRY(ek__new(&own->blocks, most, sizeof *own->blocks, memory_of));
  own->block_count = most;
  for (size_t i = 1; i < most; i++) {
    EK_TRY(make_zeros(&own->blocks[i], rank, count, EK_MEMORY_GRADIENTS));
  }
  return open_exchange(model, rank, most_blocks(model), count);
}

static ek_status open_tree(ek_data_parallel_model *model, struct ek__rank *rank) {
  EK_TRY(ek__new(&rank->tree, 1, sizeof *rank->tree, memory_of));
  const size_t ranks = model->run.cut.ranks;
  EK_TRY(ek__new(&rank->tree->runs, ranks, sizeof *rank->tree->runs, memory_of));
  if (model->run.inner != NULL) EK_TRY(ek__lockstep_open(model, rank));
  return ek__placement(model)->gradient_shares ? open_shares(model, rank)
                                               : open_blocks(model, rank);
}

/* ---- totals ---- */

static ek_status sum_totals(const ek_data_parallel_model *model, const struct ek__rank *rank,
                            struct ek__totals *totals, const int64_t *samples) {
  const size_t used = ek__grains_used(model, ek__samples_of_all(model, samples));
  if (used == 0) return ek_op_zero(ek__rank_stream(rank), &totals->sum);
  ek_tensor leaves =
      ek__flat_range(&totals->leaves, 0, (int64_t)used * ek_tensor_count(&totals->sum));
  EK_TRY(ek__leaves_add(model, rank, model->run.communicator, &leaves, used, samples));
  const ek_tensor sum = ek__totals_leaf(totals, 0);
  return ek_op_copy(ek__rank_stream(rank), &totals->sum, &sum);
}

static size_t leaves_before(const ek_data_parallel_model *model, size_t rank) {
  const size_t used = ek__grains_used(model, model->last.all);
  return rank == 0 ? 0 : ek__grains_of(model, rank - 1, used).last;
}

/* From the root down: what is left of a block is the largest power of two below its leaves. */
static void fold_numbers(double *leaves, size_t count, size_t width) {
  size_t left = 1;
  if (count < 2) return;
  while (2 * left < count) left *= 2;
  fold_numbers(leaves, left, width);
  fold_numbers(leaves + left * width, count - left, width);
  for (size_t j = 0; j < width; j++) leaves[j] += leaves[left * width + j];
}

/* ---- the reduction ---- */

const struct ek__reduction ek__reduction_tree = {.check_cut = ek__grains_check_cut,
                                                 .most = ek__grains_most,
                                                 .pieces = ek__grains_pieces,
                                                 .piece = ek__grains_piece,
                                                 .open = open_tree,
                                                 .close = close_tree,
                                                 .queue = take_bucket,
                                                 .backward = backward,
                                                 .rest = rest,
                                                 .totals = sum_totals,
                                                 .leaves_before = leaves_before,
                                                 .fold = fold_numbers,
                                                 .norm_leaves = ek__norm_pieces,
                                                 .norm = ek__norm_of_pieces};
