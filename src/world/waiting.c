/*
 * waiting.c - waiting for other processes: moves, time limits, processes that have gone, and the
 * diary.
 *
 * A wait ends when its moves are done, when a process has gone, when another process says that the
 * world is broken, or at the time limit. At the limit the process asks all others whether they are
 * alive. Every process that is in a call of the library answers within a second: one that waits
 * does so here, and one whose devices compute looks several times a second (group.c). So those
 * without an answer are the ones that are stopped, or busy outside of the library; if all answer,
 * those that were waited for are named.
 *
 * The process whose wait ends first breaks the world for all, by a notice with its message: all
 * have the same error.
 *
 * Every wait lets bulk go on. A wait for a conversation would otherwise keep others from the end of
 * theirs, and they might have to come to it before they can come to the conversation.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/log_internal.h"
#include "world/world_struct.h"

enum notice_kind { ASK = 1, ALIVE, BROKEN, LEFT, FAILING, TORN };

struct notice {
  uint32_t kind;
  int32_t status;
  uint64_t number; /* conversations before it: FAILING spends the next one on the error */
  uint64_t began;  /* and the moment of the call that has failed */
  char text[EK__NOTICE - 24];
};
_Static_assert(sizeof(struct notice) == EK__NOTICE, "a notice has another size");

#define GRACE 1.0      /* seconds in which a process answers */
#define AFTER_END 0.5  /* seconds in which what a process sent before its end still arrives */
#define LOOK_EVERY 0.1 /* seconds between two looks at notices */
#define NAP_NANOSECONDS 50000
enum { SPINS = 2000 }; /* tests before the first nap */

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

size_t ek__world_peer(const ek_world *world, size_t round) {
  return (round + world->processes - world->process) % world->processes;
}

const char *ek__world_name(char *text, size_t size, const ek_world *world, size_t process) {
  const struct ek__peer *peer = &world->peers[process];
  if (*peer->host == '\0') {
    (void)snprintf(text, size, "process %zu", process);
  } else {
    (void)snprintf(text, size, "process %zu on %s (pid %lld)", process, peer->host,
                   (long long)peer->pid);
  }
  return text;
}

void ek__world_lock(ek_world *world) {
  if (world != NULL) pthread_mutex_lock(&world->talking);
}

void ek__world_unlock(ek_world *world) {
  if (world != NULL) pthread_mutex_unlock(&world->talking);
}

/* ---- a world that is broken ---- */

ek_status ek__world_check(ek_world *world) {
  if (world == NULL) return EK_OK;
  pthread_mutex_lock(&world->mutex);
  const ek_status status = world->broken;
  pthread_mutex_unlock(&world->mutex);
  /* `why` was written once, before `broken`. */
  return status == EK_OK ? EK_OK : ek_error_set(status, "%s", world->why);
}

static void note_broken(ek_world *world, ek_status status, const char *why) {
  pthread_mutex_lock(&world->mutex);
  if (world->broken == EK_OK) {
    (void)snprintf(world->why, sizeof world->why, "%s", why);
    world->broken = status;
  }
  pthread_mutex_unlock(&world->mutex);
}

static void tell_all(ek_world *world, const struct notice *notice) {
  const struct ek__wire *watch = &world->watch;
  for (size_t p = 0; p < world->processes; p++) {
    if (p != world->process && !world->peers[p].left) {
      (void)watch->table->notify(watch->self, p, notice);
    }
  }
}

ek_status ek__world_break(ek_world *world, ek_status status) {
  struct notice notice = {.kind = BROKEN, .status = (int32_t)status};
  if (ek__world_check(world) != EK_OK) return ek__world_check(world);
  note_broken(world, status, ek_error_message());
  (void)snprintf(notice.text, sizeof notice.text, "%.*s", (int)sizeof notice.text - 1, world->why);
  tell_all(world, &notice);
  return ek__world_check(world);
}

/* Processes that cannot be seen to go need not be told why, and MPI minds what none receives. */
void ek__world_leave(ek_world *world) {
  const struct notice notice = {.kind = LEFT};
  const struct ek__wire_table *watch = world->watch.table;
  if (watch != NULL && watch->gone != NULL) tell_all(world, &notice);
}

/* ---- notices and ends ---- */

static void take_notice(ek_world *world, size_t from, const struct notice *notice) {
  const struct notice answer = {.kind = ALIVE};
  char text[sizeof notice->text];
  switch ((enum notice_kind)notice->kind) {
  case ASK: (void)world->watch.table->notify(world->watch.self, from, &answer); return;
  case ALIVE: world->peers[from].alive = true; return;
  case LEFT: world->peers[from].left = true; return;
  case FAILING:
    world->failing = notice->number + 1;
    world->failing_began = notice->began;
    return;
  case TORN:
    world->torn = notice->number + 1;
    world->torn_began = notice->began;
    return;
  case BROKEN:
    (void)snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, notice->text);
    note_broken(world, notice->status > EK_OK ? (ek_status)notice->status : EK_ERR_UNAVAILABLE,
                text);
    return;
  }
}

/* Whether the process is one of those that a move is under way with. */
static bool is_waited_for(struct ek__move *const *moves, size_t count, size_t process) {
  for (size_t i = 0; i < count; i++) {
    if (!moves[i]->done && moves[i]->peer == process) return true;
  }
  return false;
}

/* What a process sent before its end still arrives; a process that said that it leaves is missed
 * only by those that wait for it. */
static ek_status look_for_end(ek_world *world, size_t process, bool waited_for) {
  struct ek__peer *peer = &world->peers[process];
  char name[160];
  const struct ek__wire *watch = &world->watch;
  if (watch->table->gone == NULL || !watch->table->gone(watch->self, process)) return EK_OK;
  if (peer->left && !waited_for) return EK_OK;
  if (peer->gone_since == 0) peer->gone_since = now();
  if (now() - peer->gone_since < AFTER_END) return EK_OK;
  return ek__world_break(
      world, ek_error_set(EK_ERR_UNAVAILABLE, "%s has %s%s%s",
                          ek__world_name(name, sizeof name, world, process),
                          peer->left ? "closed its world" : "ended",
                          world->doing == NULL ? "" : " before it came to ",
                          world->doing == NULL ? "" : world->doing));
}

static ek_status look(ek_world *world, struct ek__move *const *moves, size_t count) {
  struct notice notice;
  const struct ek__wire *watch = &world->watch;
  for (size_t p = 0; p < world->processes; p++) {
    if (p == world->process) continue;
    while (watch->table->noticed(watch->self, p, &notice)) take_notice(world, p, &notice);
  }
  EK_TRY(ek__world_check(world));
  for (size_t p = 0; p < world->processes; p++) {
    if (p != world->process) EK_TRY(look_for_end(world, p, is_waited_for(moves, count, p)));
  }
  return EK_OK;
}

ek_status ek__world_look(ek_world *world) {
  if (world == NULL || world->wire.table == NULL) return EK_OK;
  if (pthread_mutex_trylock(&world->talking) != 0) return EK_OK; /* another thread looks */
  world->doing = NULL;
  const ek_status status = look(world, NULL, 0);
  pthread_mutex_unlock(&world->talking);
  return status;
}

void ek__world_warn(ek_world *world, uint64_t began, bool torn) {
  const struct notice notice = {
      .kind = torn ? TORN : FAILING, .number = world->count, .began = began};
  tell_all(world, &notice);
}

/* ---- the diary ---- */

void ek__world_begin_deed(ek_world *world, const struct ek__topic *topic) {
  struct ek__deed *deed = &world->diary[world->count % EK__DIARY];
  deed->number = world->count;
  deed->seconds = -now();
  if (topic->say != NULL) {
    topic->say(deed->text, sizeof deed->text, topic->words);
  } else {
    (void)snprintf(deed->text, sizeof deed->text, "%s", topic->doing);
  }
  world->doing = deed->text;
}

void ek__world_end_deed(ek_world *world) {
  world->diary[world->count % EK__DIARY].seconds += now();
}

static void write_diary(const ek_world *world) {
  const uint64_t count = world->count < EK__DIARY - 1 ? world->count : EK__DIARY - 1;
  for (uint64_t i = world->count - count; i <= world->count; i++) {
    const struct ek__deed *deed = &world->diary[i % EK__DIARY];
    if (deed->number != i) continue;
    ek__log(EK_LOG_WARNING, "world: process %zu: conversation %" PRIu64 ": %s%s%.6f s",
            world->process, i, deed->text, deed->seconds < 0 ? ": not over, at " : ": ",
            deed->seconds < 0 ? -deed->seconds : deed->seconds);
  }
}

/* ---- the time limit ---- */

static void nap(void) {
  const struct timespec time = {.tv_nsec = NAP_NANOSECONDS};
  (void)nanosleep(&time, NULL);
}

/* Asks all processes whether they are alive; true if all are. */
static bool ask_all(ek_world *world, struct ek__move *const *moves, size_t count) {
  const struct notice notice = {.kind = ASK};
  size_t silent = world->processes;
  for (size_t p = 0; p < world->processes; p++) world->peers[p].alive = p == world->process;
  tell_all(world, &notice);
  for (const double until = now() + GRACE; silent > 0 && now() < until; nap()) {
    if (look(world, moves, count) != EK_OK) return true;
    silent = 0;
    for (size_t p = 0; p < world->processes; p++) silent += !world->peers[p].alive;
  }
  return silent == 0;
}

/* conversation: that these moves belong to. */
static ek_status too_late(ek_world *world, struct ek__move *const *moves, size_t count,
                          uint64_t conversation) {
  char names[512] = "", name[160];
  size_t used = 0, more = 0;
  const bool all = ask_all(world, moves, count);
  EK_TRY(ek__world_check(world));
  for (size_t p = 0; p < world->processes; p++) {
    if (p == world->process) continue;
    if (all ? !is_waited_for(moves, count, p) : world->peers[p].alive) continue;
    if (used + sizeof name > sizeof names) {
      more++;
      continue;
    }
    used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used == 0 ? "" : ", ",
                             ek__world_name(name, sizeof name, world, p));
  }
  write_diary(world);
  if (more > 0) (void)snprintf(names + used, sizeof names - used, " and %zu more", more);
  return ek__world_break(
      world, ek_error_set(EK_ERR_UNAVAILABLE,
                          "%s: did not arrive within %g seconds at conversation %" PRIu64 ": %s%s",
                          names, world->limit, conversation, world->doing,
                          all ? "" : ", and gave no sign of life"));
}

/* ---- moves ---- */

/* An error of the wire, with the name of the process. If that process said why it broke the world,
 * its words count. */
static ek_status lost(ek_world *world, const struct ek__move *move, ek_status status) {
  char name[160], why[512];
  (void)snprintf(why, sizeof why, "%s", ek_error_message());
  (void)look(world, NULL, 0);
  EK_TRY(ek__world_check(world));
  return ek__world_break(world,
                         ek_error_set(status == EK_ERR_SHAPE ? status : EK_ERR_UNAVAILABLE,
                                      "%s: %s: %s", ek__world_name(name, sizeof name, world,
                                                                   move->peer),
                                      world->doing == NULL ? "a message" : world->doing, why));
}

ek_status ek__world_move(ek_world *world, struct ek__move *move) {
  EK_TRY(ek__world_check(world));
  const ek_status status = world->wire.table->begin(world->wire.self, move);
  return status == EK_OK ? EK_OK : lost(world, move, status);
}

/* Tests all; *left: how many are not done. */
static ek_status test_all(ek_world *world, struct ek__move *const *moves, size_t count,
                          size_t *left) {
  *left = 0;
  for (size_t i = 0; i < count; i++) {
    if (moves[i]->done) continue;
    const ek_status status = world->wire.table->test(world->wire.self, moves[i]);
    if (status != EK_OK) return lost(world, moves[i], status);
    *left += !moves[i]->done;
  }
  return EK_OK;
}

ek_status ek__world_test(ek_world *world, struct ek__move *const *moves, size_t count,
                         bool *done) {
  size_t left = 0;
  EK_TRY(ek__world_check(world));
  EK_TRY(test_all(world, moves, count, &left));
  *done = left == 0;
  return EK_OK;
}

/* ---- bulk ---- */

/* In a world that is broken all ends. */
static void advance_bulk(ek_world *world) {
  const char *doing = world->doing;
  for (struct ek__bulk *bulk = world->bulk; bulk != NULL; bulk = world->bulk) {
    const size_t waits = bulk->waits;
    bool done = false;
    world->doing = bulk->doing;
    ek_status status = ek__world_check(world);
    if (status == EK_OK) status = bulk->advance(bulk, &done);
    world->doing = doing;
    if (bulk->waits != waits) {
      bulk->since = now();
      world->spins = 0;
    }
    if (status == EK_OK && !done) return;
    world->bulk = bulk->next;
    if (world->bulk != NULL) world->bulk->since = now();
    bulk->end(bulk, status);
  }
}

/* Bulk is waited for like a conversation. */
static ek_status look_at_bulk(ek_world *world, double time) {
  const struct ek__bulk *bulk = world->bulk;
  const char *doing = world->doing;
  if (bulk == NULL) return EK_OK;
  world->doing = bulk->doing;
  ek_status status = look(world, bulk->moves, bulk->count);
  if (status == EK_OK && time - bulk->since > world->limit) {
    status = too_late(world, bulk->moves, bulk->count, bulk->number);
  }
  world->doing = doing;
  return status;
}

void ek__world_add_bulk(ek_world *world, struct ek__bulk *bulk) {
  struct ek__bulk **end = &world->bulk;
  while (*end != NULL) end = &(*end)->next;
  *end = bulk;
  bulk->next = NULL;
  bulk->number = world->count - 1;
  bulk->since = now();
  (void)snprintf(bulk->doing, sizeof bulk->doing, "%s", world->doing);
  if (world->bulk == bulk) advance_bulk(world);
}

/* spins: waits before this one without a result. */
static void wait_once(const struct ek__wire *wire, unsigned spins) {
  if (wire->table->wait != NULL) {
    wire->table->wait(wire->self, LOOK_EVERY);
  } else if (spins < SPINS) {
    (void)sched_yield();
  } else {
    nap();
  }
}

ek_status ek__world_wait(ek_world *world) {
  ek_status status = EK_OK;
  ek__world_lock(world);
  if (world->bulk != NULL) {
    world->doing = NULL;
    wait_once(&world->wire, world->spins++);
    advance_bulk(world);
    const double time = now();
    status = ek__world_check(world);
    if (status == EK_OK && time - world->looked >= LOOK_EVERY) {
      world->looked = time;
      status = look(world, NULL, 0); /* bulk ends well even if a process fails after it */
      if (status == EK_OK) status = look_at_bulk(world, time);
    }
  }
  ek__world_unlock(world);
  return status;
}

void ek__world_wake(ek_world *world) {
  const struct ek__wire *wire = &world->wire;
  if (wire->table != NULL && wire->table->wake != NULL) wire->table->wake(wire->self);
}

/* ---- waiting for moves ---- */

ek_status ek__world_finish(ek_world *world, struct ek__move *const *moves, size_t count) {
  size_t left = 0;
  EK_TRY(ek__world_check(world));
  EK_TRY(test_all(world, moves, count, &left));
  if (left == 0) return EK_OK;
  const double begun = now();
  double looked = begun;
  for (unsigned spins = 0; left > 0; spins++) {
    wait_once(&world->wire, spins);
    EK_TRY(test_all(world, moves, count, &left));
    if (left > 0 && world->bulk != NULL) {
      advance_bulk(world);
      EK_TRY(ek__world_check(world));
    }
    const double time = now();
    if (left == 0 || time - looked < LOOK_EVERY) continue;
    looked = time;
    EK_TRY(look(world, moves, count));
    EK_TRY(look_at_bulk(world, time));
    if (time - begun > world->limit) return too_late(world, moves, count, world->count);
  }
  return EK_OK;
}

ek_status ek__world_swap(ek_world *world, size_t peer, const void *out, size_t out_bytes, void *in,
                         size_t in_bytes) {
  struct ek__move move = {
      .peer = peer, .out = out, .out_bytes = out_bytes, .in = in, .in_bytes = in_bytes};
  struct ek__move *const list[] = {&move};
  if (out_bytes == 0 && in_bytes == 0) return EK_OK;
  EK_TRY(ek__world_move(world, &move));
  return ek__world_finish(world, list, 1);
}

void ek__world_count(ek_world *world, size_t sent, size_t received) {
  world->sent += sent;
  world->received += received;
}
