/*
 * owner.c - one atomic word: the thread that is inside, named by the address of a variable of its.
 *
 * Only a thread itself writes its own name there and takes it away, so a thread that reads its name
 * is inside. The exchange acquires what the last thread released when it left.
 */
#include "core/owner.h"
#include "core/error.h"

static _Thread_local char name_of_this_thread;

ek_status ek__owner_enter(struct ek__owner *owner, const char *who, const char *what) {
  const uintptr_t self = (uintptr_t)&name_of_this_thread;
  uintptr_t inside = atomic_load_explicit(&owner->thread, memory_order_relaxed);
  if (inside != self) {
    inside = 0;
    EK__FAIL_IF(!atomic_compare_exchange_strong_explicit(
                    &owner->thread, &inside, self, memory_order_acquire, memory_order_relaxed),
                EK_ERR_STATE, "%s: another thread is using %s", who, what);
  }
  owner->depth++;
  return EK_OK;
}

void ek__owner_leave(struct ek__owner *owner) {
  if (--owner->depth == 0) atomic_store_explicit(&owner->thread, 0, memory_order_release);
}
