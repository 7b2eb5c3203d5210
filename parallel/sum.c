/*
 * sum.c - the reduction of most models: a rank has one piece, its share of the micro-batch. Passes
 * add up over the samples of the piece, and the communicator adds over the ranks, in an order that
 * depends on their number.
 */
#include <evenkeel/elementwise.h>

#include "reduction.h"

/* ---- pieces ---- */

static size_t one(const ek_data_parallel_model *model) {
  (void)model;
  return 1;
}

/* A rank without samples runs the model for its collectives alone. A rank that has rows computes
 * its loss; the rows may be of the program's own shards, without samples. */
static void pieces_of(struct ek__pieces *pieces, const ek_data_parallel_model *model,
                      const struct ek__rank *rank, const int64_t *samples, bool forward) {
  const int64_t begin = samples[rank->place], count = samples[rank->place + 1] - begin;
  const bool everywhere =
      forward && (model->run.inner != NULL || ek__placement(model)->parameter_shares);
  *pieces = (struct ek__pieces){.last = 1,
                                .rounds = !forward || count > 0 || everywhere,
                                .begin = begin,
                                .samples = count,
                                .all = samples[model->run.count]};
}

static struct ek__piece piece_of(const ek_data_parallel_model *model,
                                 const struct ek__pieces *pieces, size_t round) {
  (void)model, (void)round;
  return (struct ek__piece){0, pieces->begin, pieces->samples, pieces};
}

/* ---- gradients ---- */

static ek_status backward(const struct ek__backward *job, struct ek__rank *rank,
                          const ek_tensor *gradients) {
  const ek_data_parallel_model *model = job->model;
  const bool shares = ek__placement(model)->gradient_shares;
  rank->reducing = !job->accumulate || shares;
  if (rank->reducing) ek__sums_start(rank->sums, model->step.stage != EK__STEP_EMPTY);
  if (rank->passes[0] != NULL) {
    EK_TRY(ek__rank_backward_piece(model, rank, 0, gradients));
  } else if (model->step.stage == EK__STEP_EMPTY && !shares) {
    ek_tensor flat = *ek_replica_gradients(rank->replica);
    EK_TRY(ek_op_zero(ek__rank_stream(rank), &flat));
  }
  if (rank->reducing) EK_TRY(ek__sums_finish(rank->sums, rank));
  return shares ? ek__keeper_settle(rank, rank->sums->cut->trained) : EK_OK;
}

static ek_status rest(void *context, struct ek__rank *rank) {
  const ek_data_parallel_model *model = context;
  ek__sums_start(rank->sums, model->step.stage != EK__STEP_EMPTY);
  return ek__sums_finish(rank->sums, rank);
}

/* ---- totals ---- */

static ek_status sum_totals(const ek_data_parallel_model *model, const struct ek__rank *rank,
                            struct ek__totals *totals, const int64_t *samples) {
  (void)samples;
  EK_TRY(ek_communicator_all_reduce(model->run.communicator, rank->device, &totals->sum));
  return ek_communicator_wait(model->run.communicator, rank->device);
}

static size_t leaves_before(const ek_data_parallel_model *model, size_t rank) {
  (void)model;
  return rank;
}

static void fold(double *leaves, size_t count, size_t width) {
  for (size_t i = width; i < count * width; i++) leaves[i % width] += leaves[i];
}

const struct ek__reduction ek__reduction_sum = {.whole = true,
                                                .most = one,
                                                .pieces = pieces_of,
                                                .piece = piece_of,
                                                .queue = ek__keeper_reduce,
                                                .backward = backward,
                                                .rest = rest,
                                                .totals = sum_totals,
                                                .leaves_before = leaves_before,
                                                .fold = fold,
                                                .norm = ek__norm_of_spans};
