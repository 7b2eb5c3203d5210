/*
 * warp.c - what the lanes of a warp do together: synchronisation, shuffles, votes, products.
 *
 * A lane that calls a warp function names in its mask for whom it waits. Lanes with the same mask
 * meet in a rendezvous, which is complete when all lanes of the mask that have not ended are there.
 * The last one computes every result, and all go on.
 *
 * As in CUDA, __syncwarp() orders memory and shuffles and votes do not: for ThreadSanitizer a lane
 * that writes shared memory and another one that reads it after a shuffle are a race.
 *
 * A value shuffled from a lane that is not there is undefined on a GPU; here it is all ones, a NaN.
 * A caller outside its own mask, or lanes of one rendezvous in different functions, fail the
 * kernel.
 */
#include "executor.h"

static uint64_t ballot(const struct warp *warp, uint32_t arrived) {
  uint64_t votes = 0;
  for (int lane = 0; lane < WARP_LANES; lane++) {
    if ((arrived >> lane & 1) && warp->in[lane]) votes |= 1u << lane;
  }
  return votes;
}

static __attribute__((noinline)) void complete(struct warp *warp, struct rendezvous *r) {
  if (r->operation == CUEMU_WARP_SHUFFLE && r->arrived == ~(uint32_t)0) { /* nearly always */
    for (int lane = 0; lane < WARP_LANES; lane++) warp->out[lane] = warp->in[warp->source[lane]];
    warp->ready = r->arrived;
    *r = warp->rendezvous[--warp->rendezvous_count];
    return;
  }
  if (r->operation == CUEMU_WARP_MULTIPLY || r->operation == CUEMU_WARP_LOAD) {
    if (r->arrived != ~(uint32_t)0) cuemu_fail_block("not all lanes of a warp are there", r->place);
    (r->operation == CUEMU_WARP_LOAD ? cuemu_load_matrices : cuemu_multiply)(warp, r->place);
  }
  uint64_t votes = r->operation == CUEMU_WARP_BALLOT ? ballot(warp, r->arrived) : 0;
  for (int lane = 0; lane < WARP_LANES; lane++) {
    if (!(r->arrived >> lane & 1)) continue;
    int source = warp->source[lane];
    bool there = r->arrived >> source & 1;
    bool shuffle = r->operation == CUEMU_WARP_SHUFFLE;
    warp->out[lane] = !shuffle ? votes : there ? warp->in[source] : ~(uint64_t)0;
  }
  warp->ready |= r->arrived;
  *r = warp->rendezvous[--warp->rendezvous_count];
}

static bool is_complete(const struct warp *warp, const struct rendezvous *r) {
  return r->arrived == (r->mask & warp->live);
}

void cuemu_warp_lane_gone(struct warp *warp) {
  for (int i = warp->rendezvous_count - 1; i >= 0; i--) {
    if (is_complete(warp, &warp->rendezvous[i])) complete(warp, &warp->rendezvous[i]);
  }
}

/* The rendezvous of the mask, a new one for its first lane. */
static __attribute__((noinline)) struct rendezvous *meet(struct warp *warp,
                                                         enum cuemu_warp_operation operation,
                                                         uint32_t mask, struct place place) {
  for (int i = 0; i < warp->rendezvous_count; i++) {
    struct rendezvous *r = &warp->rendezvous[i];
    if (r->mask == mask) {
      if (r->operation != operation) {
        cuemu_fail_block("lanes of one mask are in different warp functions", place);
      }
      return r;
    }
  }
  struct rendezvous *r = &warp->rendezvous[warp->rendezvous_count++];
  *r = (struct rendezvous){mask, 0, operation, place, warp->next_slot++ % SYNC_SLOTS};
  return r;
}

CUEMU_GATE(cuemu_warp)

uint64_t CUEMU_GATE_HERE(cuemu_warp)(enum cuemu_warp_operation operation, uint32_t mask,
                                     uint64_t value, int source, const char *file, int line) {
  struct block *b = cuemu_block;
  struct warp *warp = b->current_warp;
  struct place place = {file, line};
  int lane = cuemu_lane;
  uint32_t bit = 1u << lane;
  if (!(mask & bit)) cuemu_fail_block("a lane calls with a mask that it is not in", place);
  struct rendezvous *r = &warp->rendezvous[0];
  if (warp->rendezvous_count != 1 || r->mask != mask || r->operation != operation) {
    r = meet(warp, operation, mask, place);
  }
  char *sync = &warp->sync[r->slot];
  const bool orders = operation == CUEMU_WARP_SYNC;
  if (orders) cuemu_release_to(sync);
  warp->in[lane] = value;
  warp->source[lane] = (uint8_t)(source & (WARP_LANES - 1));
  r->arrived |= bit;
  if (is_complete(warp, r)) {
    complete(warp, r);
    warp->ready &= ~bit;
  } else {
    cuemu_wait_here(b, warp, lane, place);
  }
  if (orders) cuemu_acquire(sync);
  return warp->out[lane];
}
