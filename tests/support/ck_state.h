/*
 * ck_state.h - all of a training's state in host memory, entry by entry (state.h).
 *
 *     struct ck_state state = ck_state_take(training.model);
 *     ck_ok(ck_state_put(other.model, &state));
 */
#ifndef CK_STATE_H
#define CK_STATE_H

#include "ek_check.h"

struct ck_state {
  size_t count;
  ek_state_info *info;
  ek_tensor *host;
};

/* Reads every entry; the arrays are kept (ck_keep.h). */
struct ck_state ck_state_take(const ek_data_parallel_model *model);
/* Writes every entry, the last one first; stops at the first failure. */
ek_status ck_state_put(ek_data_parallel_model *model, const struct ck_state *state);
/* The same entries in the same order, bit for bit. */
void ck_state_same(const char *what, const struct ck_state *a, const struct ck_state *b);
/* A model's state is this one, and two models have the same. */
void ck_state_is(const char *what, const ek_data_parallel_model *model,
                 const struct ck_state *want);
void ck_states_same(const char *what, const ek_data_parallel_model *got,
                    const ek_data_parallel_model *want);
/* The same entries: parameters and buffers to this relative L2 error, the states of an optimizer to
 * ten times that (docs/numerics.md), numbers exactly. */
void ck_state_close(const char *what, const struct ck_state *got, const struct ck_state *want,
                    double allowed);

#endif /* CK_STATE_H */
