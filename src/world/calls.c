/*
 * calls.c - calls that all processes make: how each begins and ends, how an error of one process
 * becomes that of all, and what is brought back into step after it.
 *
 * An error is told by one conversation (ek__world_spread() in talk.c), unless one has told it
 * already, or the others have ended the call (ek__world_part()).
 */
#include <stdio.h>
#include <string.h>

#include "world/world_struct.h"

/* ---- moments and failures ---- */

/* Moments: conversations, and in the lower bits calls since the last one. */
enum { CALLS = 16 };

static uint64_t moment_of(const ek_world *world) {
  const uint64_t most = (UINT64_C(1) << CALLS) - 1;
  return world->count << CALLS | (world->calls < most ? world->calls : most);
}

/* Whether the thread's last error is the last failure of the world, or says it in other words
 * around it: these may have cut off its end. Only talk.c writes such words: they name a process, or
 * speak of all of them. So an error of one process has them only if it forwards that one. */
static bool is_told(const ek_world *world) {
  char words[EK__MESSAGE_SIZE / 2];
  (void)snprintf(words, sizeof words, "%.*s", (int)sizeof words - 1, world->told);
  return strstr(ek_error_message(), words) != NULL;
}

/* Whether a conversation since then has ended in an error. */
static bool failed_since(const ek_world *world, uint64_t began) {
  return world->failed > began >> CALLS;
}

/* ---- beginning ---- */

static uint64_t begin(ek_world *world, uint64_t calls) {
  if (world == NULL) return 0;
  ek__world_lock(world);
  world->depth++;
  world->calls += calls;
  const uint64_t moment = moment_of(world);
  ek__world_unlock(world);
  return moment;
}

uint64_t ek__world_begin(ek_world *world) { return begin(world, 1); }

uint64_t ek__world_begin_alone(ek_world *world) { return begin(world, 0); }

/* ---- recovery ---- */

void ek__world_join(ek_world *world, struct ek__recovery *recovery) {
  struct ek__recovery **end = &world->recoveries;
  ek__world_lock(world);
  while (*end != NULL) end = &(*end)->next;
  *end = recovery;
  recovery->next = NULL;
  ek__world_unlock(world);
}

void ek__world_quit(ek_world *world, const struct ek__recovery *recovery) {
  struct ek__recovery **link = &world->recoveries;
  ek__world_lock(world);
  while (*link != NULL && *link != recovery) link = &(*link)->next;
  if (*link != NULL) *link = recovery->next;
  ek__world_unlock(world);
}

/* A call has ended. What a broken world has left is cleaned up too. */
static void leave(ek_world *world, ek_status status) {
  char kept[EK__MESSAGE_SIZE];
  ek__error_keep(kept);
  const bool broken = status != EK_OK && ek__world_check(world) != EK_OK;
  ek__world_lock(world);
  const bool recovers = --world->depth == 0 && (world->agreed > world->recovered || broken);
  if (recovers) world->recovered = world->agreed;
  struct ek__recovery *recovery = recovers ? world->recoveries : NULL;
  ek__world_unlock(world);
  for (; recovery != NULL; recovery = recovery->next) recovery->recover(recovery);
  (void)ek_error_set(status, "%s", kept);
}

/* ---- ending ---- */

static ek_status end(ek_world *world, uint64_t began, ek_status status) {
  char kept[EK__MESSAGE_SIZE];
  ek__error_keep(kept);
  ek__world_lock(world);
  const bool parted = world->count >= world->parted;
  const bool told = parted || (failed_since(world, began) && is_told(world));
  if (parted) { /* for the calls around this one */
    if (!failed_since(world, began)) ek__world_warn(world, began, true);
    (void)ek__world_note(world, status);
  }
  ek__world_unlock(world);
  if (told || ek__world_check(world) != EK_OK) return ek_error_set(status, "%s", kept);
  return ek__world_spread(world, began, status);
}

ek_status ek__world_end(ek_world *world, uint64_t began, ek_status status) {
  if (world == NULL) return status;
  if (status != EK_OK) status = end(world, began, status);
  leave(world, status);
  return status;
}

ek_status ek__world_end_job(ek_world *world, uint64_t began, ek_status status) {
  if (world == NULL || status == EK_OK) return ek__world_end(world, began, status);
  ek__world_lock(world);
  if (failed_since(world, began) && world->count < world->parted) {
    status = ek_error_set(world->failure, "%s", world->told);
  }
  ek__world_unlock(world);
  return ek__world_end(world, began, status);
}

void ek__world_part(ek_world *world, size_t conversations) {
  ek__world_lock(world);
  if (world != NULL) world->parted = world->count + conversations;
  ek__world_unlock(world);
}

void ek__world_rejoin(ek_world *world) {
  ek__world_lock(world);
  if (world != NULL) world->parted = UINT64_MAX;
  ek__world_unlock(world);
}

/* ---- other processes that fail ---- */

/* A process may fail in a later call, or after the last conversation that brings an error of this
 * one (ek__world_part). */
ek_status ek__world_doomed(ek_world *world, uint64_t began) {
  if (world == NULL || pthread_mutex_trylock(&world->talking) != 0) return EK_OK;
  const bool fails = world->failing == world->count + 1 && world->failing_began <= began &&
                     world->count < world->parted;
  const bool torn = world->torn > world->agreed && world->torn_began <= began;
  const bool doomed = fails || torn;
  pthread_mutex_unlock(&world->talking);
  return doomed ? ek_error_set(EK_ERR_ABORTED, "abandoned because another process failed") : EK_OK;
}

bool ek__world_misses(ek_world *world) {
  if (ek__world_look(world) != EK_OK || ek__world_doomed(world, UINT64_MAX) != EK_OK) return true;
  if (pthread_mutex_trylock(&world->talking) != 0) return false;
  bool left = false;
  for (size_t p = 0; p < world->processes; p++) left = left || world->peers[p].left;
  pthread_mutex_unlock(&world->talking);
  return left;
}
