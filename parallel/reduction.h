/*
 * reduction.h - in what order samples are added up: a row of functions, chosen when a model opens.
 *
 * A rank runs *pieces*: with the reduction `sum` (sum.c) one piece, its share of the micro-batch;
 * with `tree` (tree.h), for a reproducible model, its grains of the micro-batch. Forward, loss and
 * backward run the list of pieces and do not depend on the reduction otherwise. The functions here
 * make all sums over samples (gradients, totals of losses, squares of norms).
 */
#ifndef EK_REDUCTION_H
#define EK_REDUCTION_H

#include <string.h>

#include "parallel_internal.h"

/* {s, d} for each term of a loss, on one device. */
struct ek__totals {
  ek_tensor sum;    /* f64 [terms, 2]: of all ranks in the end */
  ek_tensor leaves; /* f64 [pieces, terms, 2]; of `sum` a view of `sum` */
};

/* What a backward is: written by the model's thread. */
struct ek__backward {
  ek_data_parallel_model *model;
  bool accumulate; /* other micro-batches of the step follow */
  bool running;    /* the totals are those of the step so far */
  bool late;       /* they are added up with the update, and not known yet */
  bool divided;    /* the gradients will be divided by D */
  struct ek__scaling scaling; /* that they are multiplied with */
  /* The gradients of the outputs are those of a loss, with `factors` of its single losses, which
   * may be NULL; or they are given, with the totals of each rank, or NULL. */
  struct ek__loss *loss;
  const ek_shards *factors, *gradients;
  const ek_tensor *totals;
};

struct ek__reduction {
  /* A piece is all that a rank has of a micro-batch: its passes add to the gradients of the step
   * and may overwrite the outputs. Else batches are cut into options.reproducible grains. */
  bool whole;
  /* NULL, or whether shards are cut so (EK_SCATTER_GRAINS): the inputs of a `forward`, or the
   * outputs that a loss is given. They are samples of `all`, with `before` in the processes before
   * this one. */
  ek_status (*check_cut)(const char *who, const ek_data_parallel_model *model,
                         const ek_shards *shards, int64_t before, int64_t all, bool forward);

  /* Most pieces of a rank. */
  size_t (*most)(const ek_data_parallel_model *model);
  /* The pieces of a rank, after the model's thread has cut `samples` (ek_shards.samples);
   * `forward`: of the model's own forward, not of a loss, whose outputs may be on one device. */
  void (*pieces)(struct ek__pieces *pieces, const ek_data_parallel_model *model,
                 const struct ek__rank *rank, const int64_t *samples, bool forward);
  struct ek__piece (*piece)(const ek_data_parallel_model *model, const struct ek__pieces *pieces,
                            size_t round);

  /* On a rank's worker from here on. What sums take, when all else of the model is open; both may
   * be NULL. */
  ek_status (*open)(ek_data_parallel_model *model, struct ek__rank *rank);
  void (*close)(struct ek__rank *rank);
  /* Of struct ek__sums, where gradients are shares. */
  ek_status (*queue)(struct ek__rank *rank, size_t bucket);
  /* Runs the pieces back, from the gradients of the rank's outputs, and adds up those of the
   * parameters: ek__rank_backward_piece() for each. */
  ek_status (*backward)(const struct ek__backward *job, struct ek__rank *rank,
                        const ek_tensor *gradients);
  /* The last backward of the step was not announced as its last: adds up what is left. */
  ek__rank_job *rest; /* of the model */
  /* The sum over all ranks from the leaves of each; samples: of the outputs. */
  ek_status (*totals)(const ek_data_parallel_model *model, const struct ek__rank *rank,
                      struct ek__totals *totals, const int64_t *samples);
  /* The same in the memory of the host, of the last micro-batch: how many leaves the ranks before
   * `rank` have; and the sum of `count` leaves of `width` numbers, which leaf 0 becomes. */
  size_t (*leaves_before)(const ek_data_parallel_model *model, size_t rank);
  void (*fold)(double *leaves, size_t count, size_t width);
  /* The sum of the squares of all gradients. It has numbers of its own to add up, as many as this
   * says, or (NULL) each rank adds up those of its spans (ek__update_span()). */
  int64_t (*norm_leaves)(const ek_data_parallel_model *model);
  ek_status (*norm)(const ek_data_parallel_model *model, struct ek__rank *rank);
};

extern const struct ek__reduction ek__reduction_sum, ek__reduction_tree;

/* norm.c: the last two slots; the first function goes without `norm_leaves`. */
ek_status ek__norm_of_spans(const ek_data_parallel_model *model, struct ek__rank *rank);
int64_t ek__norm_pieces(const ek_data_parallel_model *model);
ek_status ek__norm_of_pieces(const ek_data_parallel_model *model, struct ek__rank *rank);

/* The one place that asks whether a model is reproducible: data_parallel_model.c. */
const struct ek__reduction *ek__reduction_of(const ek_data_parallel_model_options *options);

/* ---- rank.c: rows of a piece ---- */

/*
 * Rows of a piece, out of a rank's part of a tensor: for a whole piece the part itself, a loan;
 * otherwise a reference of the caller's own, which it frees by ek__piece_free(). The rows are
 * copied unless they begin at a multiple of 256 bytes: the place of a piece among its rank's rows
 * depends on the number of ranks, and the result of a kernel may depend on an address.
 */
ek_status ek__piece_rows(ek_tensor *rows, const ek_data_parallel_model *model,
                         const struct ek__piece *piece, const ek_tensor *part,
                         ek_memory_category category);
void ek__piece_free(ek_tensor *rows, const ek_data_parallel_model *model);

/* Copies the result of a piece to its rows of the rank's, unless it is there. */
ek_status ek__piece_put(const ek_tensor *whole, const struct ek__piece *piece,
                        const ek_tensor *part);
/*
 * Puts the result of a piece, *part, after the results of the rank's earlier pieces: *whole, zeros
 * at first, becomes large enough for all with the first. Takes *part.
 */
ek_status ek__piece_append(ek_tensor *whole, ek_tensor *part, const ek_data_parallel_model *model,
                           const struct ek__piece *piece, ek_memory_category category);

/* A pass of a piece, for the model or for a loss: `options` without what every pass of a run has,
 * and with the first sample within the step. */
ek_status ek__rank_open_pass(ek_pass **pass, const ek_data_parallel_model *model,
                             ek_replica *replica, struct ek__rank *lends,
                             ek_pass_options *options);

/* Backward of the pass number `round`, which goes with it. */
ek_status ek__rank_backward_piece(const ek_data_parallel_model *model, struct ek__rank *rank,
                                  size_t round, const ek_tensor *gradients);

/* A view of [terms, 2], those of piece `number`, in numbers that are end to end. */
static inline ek_tensor ek__totals_leaf(const struct ek__totals *totals, size_t number) {
  const int64_t count = ek_tensor_count(&totals->sum);
  ek_tensor leaf = ek__flat_range(&totals->leaves, (int64_t)number * count, count);
  leaf.rank = 2;
  memcpy(leaf.shape, totals->sum.shape, sizeof leaf.shape);
  return leaf;
}

/*
 * ---- lockstep.c: rounds ----
 *
 * A rank runs its pieces in rounds, one after the other. But a grain that comes to
 * ek_pass_all_reduce() needs what all other grains of the batch add, those of its own rank
 * included. So if a reproducible model has collectives, the pieces of a rank are in *lockstep*:
 * each runs on a stack of its own, in turns (core/turns.h); the collective passes the turn, and the
 * piece that comes to it last adds up. The sum goes along the tree of grains (tree.h), so it has
 * the same bits on any number of devices, and pieces without samples add nothing. All ranks run the
 * same number of pieces, because every rank must come to the same collectives.
 */
struct ek__exchange;

ek_status ek__lockstep_open(const ek_data_parallel_model *model, struct ek__rank *rank);
void ek__lockstep_close(struct ek__rank *rank);

/*
 * Runs job(context, round) for the rounds 0 to count - 1 of a rank: one after the other, or in
 * lockstep. `enter`, which may be NULL, is called whenever a round begins or goes on after another,
 * to put what is the round's where modules find it.
 */
struct ek__rounds {
  const ek_data_parallel_model *model;
  struct ek__rank *rank;
  size_t count;
  void (*enter)(struct ek__rank *rank, size_t round);
  ek_status (*job)(void *context, size_t round);
  void *context;
};
ek_status ek__rounds_run(struct ek__rounds *rounds);

/* What the passes of a rank get; NULL for a rank without a lockstep. */
struct ek__exchange *ek__lockstep_exchange(const struct ek__rank *rank);

/* Each round of a forward gets buffers like those of now: number 0 the replica's, the others copies
 * until the end, and ek__lockstep_buffers() puts them in place. */
ek_status ek__lockstep_copy_buffers(struct ek__rank *rank, size_t rounds);
void ek__lockstep_buffers(struct ek__rank *rank, size_t round);
void ek__lockstep_free_buffers(struct ek__rank *rank);

#endif /* EK_REDUCTION_H */
