/*
 * owner.h - sees a second thread in an object that belongs to one thread at a time.
 *
 * Each public function that works on such an object enters it first and leaves it last:
 *
 *     EK__OWNER_ENTER(&model->owner, "forward", "the model");
 *
 * A line among the function's first, outside of any block: whatever way the function returns, it
 * leaves what it entered. That is the attribute `cleanup`, which gcc and clang have; without it
 * every early return would need a second way out.
 *
 * A thread may enter again what it has entered. Objects that share state (a model, its criterion
 * and its optimizer) share one owner, that of the model. Calls that do not overlap in time are
 * legal from different threads and are not seen here: the program orders them, by joining or by a
 * lock of its own.
 */
#ifndef EK_OWNER_H
#define EK_OWNER_H

#include <stdatomic.h>
#include <stdint.h>

#include <evenkeel/status.h>

struct ek__owner { /* all zero: no thread is inside */
  atomic_uintptr_t thread;
  unsigned depth; /* belongs to the thread inside */
};

/* EK_ERR_STATE "WHO: another thread is using WHAT"; nothing was entered then. */
ek_status ek__owner_enter(struct ek__owner *owner, const char *who, const char *what);
void ek__owner_leave(struct ek__owner *owner);

static inline void ek__owner_leave_at(struct ek__owner **owner) { ek__owner_leave(*owner); }

#define EK__OWNER_ENTER(owner, who, what)                                                          \
  EK_TRY(ek__owner_enter(owner, who, what));                                                       \
  __attribute__((cleanup(ek__owner_leave_at), unused)) struct ek__owner *ek_entered_ = (owner)

#endif /* EK_OWNER_H */
