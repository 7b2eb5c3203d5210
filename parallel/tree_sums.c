/*
 * tree_sums.c - the sums of a reproducible model's gradients along the tree (tree.h), and the row
 * of the reduction.
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
#include "core/error.h"
#include "device/communicator_internal.h"
#include "tree.h"

/* The memory of a rank. */
struct ek__tree {
  ek_tensor *blocks; /* flat gradients; number 0 is a loan of the replica's while grains run */
  size_t block_count;
  ek_tensor earlier;  /* of the step's earlier micro-batches, once there are any */
  ek_tensor exchange; /* the rows of all ranks, `chunk` elements of each; one rank: none */
  int64_t chunk;
  int64_t *offsets; /* scratch of an all-gather: one more than there are ranks */

  /* Of a backward, in rounds where gradients are shares, else in one: */
  size_t round, rounds;
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
      (void)ek__fold_push(&fold, (struct ek__block){0, i});
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
  ek__free(own->offsets);
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

/* Makes block number `top` of the grain's gradients: by its backward, or in lockstep, which has run
 * already, by changing places. */
static ek_status make_block(struct run *run, size_t round, size_t top) {
  ek_tensor *blocks = run->rank->tree->blocks;
  if (run->rank->lockstep == NULL) {
    use_block(run->rank, top);
    return run_grain(run, round);
  }
  const ek_tensor block = blocks[round];
  blocks[round] = blocks[top];
  blocks[top] = block;
  return EK_OK;
}

static ek_status run_grains(struct run *run) {
  ek_replica *replica = run->rank->replica;
  const struct ek__pieces *pieces = &run->rank->pieces;
  ek_tensor *blocks = run->rank->tree->blocks;
  struct ek__row rows[EK__FOLD_DEPTH];
  struct ek__fold fold = {.leaves = ek__grains_used(run->model, run->model->last.all)};
  ek_status status = EK_OK;
  blocks[0] = replica->gradients;
  if (run->rank->lockstep != NULL) {
    status = ek__rounds_run(run->model, run->rank, pieces->rounds, use_block, run_grain, run);
  }
  for (size_t i = pieces->first; i < pieces->last && status == EK_OK; i++) {
    const struct ek__row row = {{0, i}, &blocks[fold.depth], 0};
    status = make_block(run, i - pieces->first, fold.depth);
    if (status == EK_OK) status = ek__fold_add(&fold, rows, row, ek_tensor_count(row.flat));
  }
  replica->gradients = blocks[0];
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

static ek_status gather(const struct ek__rank *rank, const ek_tensor *blocks, int64_t begin,
                        int64_t count) {
  const struct ek__sums *sums = rank->sums;
  const struct ek__tree *own = rank->tree;
  const size_t ranks = sums->cut->ranks;
  for (size_t r = 0; r < ranks; r++) {
    own->offsets[r + 1] = own->offsets[r] + (int64_t)own->runs[r].brought.depth * count;
  }
  for (size_t i = 0; i < own->runs[rank->number].brought.depth; i++) {
    const int64_t row = own->offsets[rank->number] + (int64_t)i * count;
    ek_tensor to = ek__flat_range(&own->exchange, row, count);
    const ek_tensor from = ek__flat_range(&blocks[i], begin, count);
    EK_TRY(ek_op_copy(ek__rank_stream(rank), &to, &from));
  }
  ek_tensor rows = ek__flat_range(&own->exchange, 0, own->offsets[ranks]);
  EK_TRY(ek_communicator_all_gather(sums->communicator, sums->device, &rows, own->offsets));
  return ek__communicator_wait_for(sums->communicator, sums->device,
                                   ek__communicator_started(sums->communicator, sums->device));
}

/* The chunk's elements of the block of a rank that is, or will be, in its slot number `index`. */
static struct ek__row slot_of(const struct ek__rank *rank, const struct grain_run *run,
                              size_t index, struct ek__block block, const struct chunk *chunk) {
  const int64_t share = ek_tensor_count(ek_replica_gradients(rank->replica));
  return (struct ek__row){block, &rank->tree->slots,
                          (int64_t)(run->slot + index) * share + chunk->own.place};
}

/* Adds what the ranks bring to the blocks that are kept of each. In the last round these are added
 * up and become the sum; in any other the slots keep them. */
static ek_status add_chunk(const struct ek__rank *rank, const struct chunk *chunk) {
  const struct ek__tree *own = rank->tree;
  const int64_t width = chunk->own.count;
  struct ek__row rows[EK__MAX_GRAINS];
  size_t count = 0, row = 0;
  for (size_t r = 0; r < rank->sums->cut->ranks; r++) {
    const struct grain_run *run = &own->runs[r];
    struct ek__fold fold = run->kept;
    struct ek__row *blocks = rows + count;
    for (size_t i = 0; i < fold.depth; i++) {
      blocks[i] = slot_of(rank, run, i, fold.blocks[i], chunk);
    }
    for (size_t i = 0; i < run->brought.depth; i++, row++) {
      const struct ek__row next = {run->brought.blocks[i], chunk->rows,
                                   (int64_t)row * chunk->length + chunk->skip};
      EK_TRY(ek__fold_add(&fold, blocks, next, width));
    }
    if (own->round + 1 == own->rounds) {
      count += fold.depth;
    } else if (run->brought.depth > 0) {
      const size_t top = fold.depth - 1;
      const struct ek__row kept = slot_of(rank, run, top, fold.blocks[top], chunk);
      const ek_tensor slot = ek__row_range(&kept, width), last = ek__row_range(&blocks[top], width);
      EK_TRY(put(rank, &slot, NULL, &last));
    }
  }
  if (count == 0) return EK_OK;
  EK_TRY(ek__fold_rows(rows, count, width, own->runs[0].kept.leaves));
  const int64_t first = rank->reducing ? chunk->own.place : chunk->own.first;
  const ek_tensor to = ek__flat_range(&own->sum, first, width);
  const ek_tensor before = ek__flat_range(&own->before, first, width);
  const ek_tensor added = ek__row_range(&rows[0], width);
  return put(rank, &to, ek_tensor_exists(&own->before) ? &before : NULL, &added);
}

/* blocks: the rank's own of the bucket, as long as the bucket each. */
static ek_status sum_bucket(const struct ek__rank *rank, size_t number, const ek_tensor *blocks) {
  const struct ek__tree *tree = rank->tree;
  const struct ek__bucket *bucket = &rank->sums->cut->list[number];
  const struct ek__span own = ek__bucket_owned(bucket, rank->sums->kind, rank->number);
  const struct chunk all = {blocks, own.count, 0, own};
  if (rank->sums->cut->ranks == 1) return add_chunk(rank, &all);
  for (int64_t begin = bucket->first; begin < bucket->last; begin += tree->chunk) {
    const int64_t rest = bucket->last - begin, count = rest < tree->chunk ? rest : tree->chunk;
    struct chunk chunk = {&tree->exchange, count, 0, ek__span_within(own, begin, begin + count)};
    EK_TRY(gather(rank, blocks, begin - bucket->first, count));
    if (chunk.own.count == 0) continue;
    chunk.skip = chunk.own.first - begin;
    EK_TRY(add_chunk(rank, &chunk));
  }
  return EK_OK;
}

/* Of a micro-batch of the step; `more` follow. */
static void begin(const ek_data_parallel_model *model, const struct ek__rank *rank, bool more) {
  struct ek__tree *own = rank->tree;
  const size_t used = ek__grains_used(model, model->last.all);
  const bool shares = rank->reducing, begun = model->step.stage != EK__STEP_EMPTY;
  own->round = 0;
  own->rounds = shares ? ek__grains_rounds(model, used) : 1;
  own->sum = more && !shares ? own->earlier : rank->replica->gradients;
  own->before = !begun ? (ek_tensor){0} : shares ? own->sum : own->earlier;
  for (size_t r = 0; r < model->run.cut.ranks; r++) {
    struct grain_run *run = &own->runs[r];
    run->grains = ek__grains_of(model, r, used);
    run->kept = (struct ek__fold){.leaves = used};
    run->brought = ek__fold_of(NULL, run->grains, used);
  }
}

/* ---- whole gradients: all buckets ---- */

/* A single rank has the sum; so have all if there are no samples, whose sum is 0. */
static ek_status reduce(const ek_data_parallel_model *model, struct ek__rank *rank) {
  const struct ek__tree *own = rank->tree;
  ek_tensor gradients = rank->replica->gradients;
  const bool none = own->runs[0].kept.leaves == 0;
  if (none) EK_TRY(ek_op_zero(ek__rank_stream(rank), &gradients));
  if (none || model->run.cut.ranks == 1) return put(rank, &own->sum, &own->before, &gradients);
  for (size_t b = 0; b < model->run.cut.trained; b++) {
    const struct ek__bucket *bucket = &model->run.cut.list[b];
    ek_tensor blocks[EK__FOLD_DEPTH];
    for (size_t i = 0; i < own->runs[rank->number].brought.depth; i++) {
      blocks[i] = ek__flat_range(&own->blocks[i], bucket->first, bucket->last - bucket->first);
    }
    EK_TRY(sum_bucket(rank, b, blocks));
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

/* ---- shares of gradients: rounds ---- */

/* A bucket of the round. */
static ek_status take_bucket(struct ek__rank *rank, size_t bucket) {
  ek_tensor *whole = &rank->sums->lent[bucket].whole;
  EK_TRY(sum_bucket(rank, bucket, whole));
  ek_tensor_free(whole);
  return EK_OK;
}

/* The next calls of passes and of take_bucket() are of this round. */
static void enter_round(struct ek__rank *rank, size_t round) {
  struct ek__tree *own = rank->tree;
  for (size_t r = 0; r < rank->sums->cut->ranks; r++) {
    struct grain_run *run = &own->runs[r];
    struct ek__grains over = run->grains, next = run->grains;
    if (over.last > over.first + round) over.last = over.first + round;
    next.first = over.last;
    if (next.last > next.first) next.last = next.first + 1;
    run->kept = ek__fold_of(NULL, over, run->kept.leaves);
    run->brought = ek__fold_of(NULL, next, run->kept.leaves);
  }
  if (rank->lockstep != NULL) rank->sums = &rank->rounds[round];
  own->round = round;
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
  const ek_status status =
      ek__rounds_run(run->model, rank, own->rounds, enter_round, run_round, run);
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
  if (!rank->reducing) EK_TRY(run_grains(&run));
  begin(model, rank, job->accumulate);
  return rank->reducing ? run_rounds(&run) : reduce(model, rank);
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
  EK_TRY(ek__new(&rank->tree->offsets, ranks + 1, sizeof *rank->tree->offsets, memory_of));
  EK_TRY(ek__new(&rank->tree->runs, ranks, sizeof *rank->tree->runs, memory_of));
  if (model->run.inner != NULL) EK_TRY(ek__lockstep_open(model, rank));
  return ek__placement(model)->gradient_shares ? open_shares(model, rank)
                                               : open_blocks(model, rank);
}

/* ---- the reduction ---- */

static size_t leaves_of(const ek_data_parallel_model *model) {
  return ek__grains_most(model) * model->run.cut.ranks;
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
                                                 .queue = take_bucket,
                                                 .backward = backward,
                                                 .rest = rest,
                                                 .totals = ek__tree_totals,
                                                 .leaves_before = ek__tree_leaves_before,
                                                 .fold = ek__fold_numbers,
                                                 .norm_leaves = ek__tree_norm_leaves,
                                                 .norm = ek__tree_norm};
