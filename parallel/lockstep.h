/*
 * lockstep.h - the grains of a rank, advancing together to the collectives of its modules.
 *
 * A grain that comes to ek_pass_all_reduce() needs what all other grains of the batch add, those of
 * its own rank included. So each of a rank's pieces runs on a stack of its own, in turns
 * (core/turns.h): the collective passes the turn, and the piece that comes to it last adds up. The
 * sum goes along the tree of grains (tree.h), so it has the same bits on any number of devices, and
 * pieces without samples add nothing. All ranks run the same number of pieces, because every rank
 * must come to the same collectives.
 *
 * A rank has a lockstep only if its model is reproducible and has collectives; all other ranks run
 * one piece after the other.
 */
#ifndef EK_LOCKSTEP_H
#define EK_LOCKSTEP_H

#include "parallel_internal.h"

struct ek__exchange;

ek_status ek__lockstep_open(const ek_data_parallel_model *model, struct ek__rank *rank);
void ek__lockstep_close(struct ek__rank *rank);

/*
 * Runs job(context, round) for the rounds 0 to rounds - 1 of a rank: one after the other, or in
 * lockstep. `enter`, which may be NULL, is called whenever a round begins or goes on after another,
 * to put what is the round's where modules find it.
 */
typedef ek_status ek__round_job(void *context, size_t round);
typedef void ek__round_enter(struct ek__rank *rank, size_t round);
ek_status ek__rounds_run(struct ek__rank *rank, size_t rounds, ek__round_enter *enter,
                         ek__round_job *job, void *context);

/* What the passes of a rank get; NULL for a rank without a lockstep. */
struct ek__exchange *ek__lockstep_exchange(const struct ek__rank *rank);

/* Each round of a forward gets buffers like those of now: number 0 the replica's, the others copies
 * until the end, and ek__lockstep_buffers() puts them in place. */
ek_status ek__lockstep_copy_buffers(struct ek__rank *rank, size_t rounds);
ek__round_enter ek__lockstep_buffers;
void ek__lockstep_free_buffers(struct ek__rank *rank);

#endif /* EK_LOCKSTEP_H */
