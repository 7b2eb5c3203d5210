/*
 * world.c - a world: its processes, their names, and whether they are to stop.
 *
 * Conversations are in talk.c, calls that all processes make in calls.c, waiting for other
 * processes in waiting.c, and what a world is opened from in sources.c.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <evenkeel/version.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "world/world_struct.h"

static const char memory_of[] = "the processes of a world";

size_t ek_world_process(const ek_world *world) { return world == NULL ? 0 : world->process; }

size_t ek_world_processes(const ek_world *world) { return world == NULL ? 1 : world->processes; }

const char *ek_world_host(const ek_world *world, size_t process) {
  return process < ek_world_processes(world) && world != NULL ? world->peers[process].host : "";
}

int64_t ek_world_pid(const ek_world *world, size_t process) {
  return process < ek_world_processes(world) && world != NULL ? world->peers[process].pid : 0;
}

const char *ek_world_source(const ek_world *world) { return world == NULL ? "" : world->source; }

uint64_t ek_world_sent(const ek_world *world) { return world == NULL ? 0 : world->sent; }

uint64_t ek_world_received(const ek_world *world) { return world == NULL ? 0 : world->received; }

void ek__world_set_busy(ek_world *world, uint64_t nanoseconds) {
  if (world != NULL) atomic_store(&world->busy, nanoseconds);
}

/* Heard in the last conversation; the lock keeps the next one out. */
double ek_world_busy(const ek_world *world, size_t process) {
  ek_world *self = (ek_world *)(uintptr_t)world;
  if (world == NULL || process >= world->processes || world->processes == 1) return 0;
  ek__world_lock(self);
  const double seconds = (double)world->heard[process].busy * 1e-9;
  ek__world_unlock(self);
  return seconds;
}

void ek_world_request_stop(ek_world *world) {
  if (world != NULL) world->stop_asked = 1;
}

bool ek_world_stop_requested(const ek_world *world) {
  if (world == NULL) return false;
  return world->processes == 1 ? world->stop_asked != 0 : atomic_load(&world->stop);
}

void ek__world_count_group(ek_world *world, int more) {
  if (world != NULL) atomic_fetch_add(&world->groups, (size_t)more);
}

void ek__world_count_writing(ek_world *world, int more) {
  if (world != NULL) atomic_fetch_add(&world->writing_here, (size_t)more);
}

bool ek__world_writing(ek_world *world) {
  if (world == NULL) return false;
  ek__world_lock(world);
  const bool writing = world->writing;
  ek__world_unlock(world);
  return writing;
}

/* ---- opening ---- */

enum { HOST_WORDS = 4 }; /* a host's name, and what follows it, in words of a topic */

/* The host of every process is 32 bytes of words. */
static ek_status introduce(ek_world *world) {
  char host[EK__HOST_SIZE] = "";
  const int64_t *heard = NULL;
  const uint64_t version =
      ek__hash(EK__HASH_BEGIN, EK_VERSION_STRING, sizeof EK_VERSION_STRING - 1);
  struct ek__topic topic = {.kind = EK__TOPIC_OPENING,
                            .doing = "opening a world",
                            .same = 2,
                            .words = {(int64_t)world->processes, (int64_t)(version >> 1)}};
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  topic.words[2] = (int64_t)world->process;
  topic.words[3] = (int64_t)getpid();
  memcpy(&topic.words[4], host, HOST_WORDS * sizeof topic.words[0]);
  ek__world_lock(world);
  ek_status status = ek__world_talk(world, &topic, &heard);
  for (size_t p = 0; p < world->processes && status == EK_OK; p++) {
    const int64_t *words = heard + p * EK__TOPIC_WORDS;
    struct ek__peer *peer = &world->peers[p];
    memcpy(peer->host, &words[4], HOST_WORDS * sizeof words[0]);
    peer->host[HOST_WORDS * sizeof words[0]] = '\0';
    peer->pid = words[3];
    if (words[2] != (int64_t)p) {
      status = ek_error_set(EK_ERR_INVALID_ARGUMENT,
                            "opening a world: process %lld is known as number %zu to others",
                            (long long)words[2], p);
    }
  }
  ek__world_unlock(world);
  return status;
}

static ek_status name_source(ek_world *world, const char *source) {
  char text[128];
  if (world->wire.table == NULL) {
    (void)snprintf(text, sizeof text, "%s", source);
  } else {
    (void)snprintf(text, sizeof text, "%s, %s", source, world->wire.table->name);
  }
  return ek__new_copy(&world->source, text, strlen(text) + 1, memory_of);
}

static ek_status allocate(ek_world *world, const char *source) {
  const size_t count = world->processes;
  EK_TRY(name_source(world, source));
  EK_TRY(ek__new(&world->peers, count, sizeof *world->peers, memory_of));
  EK_TRY(ek__new(&world->heard, count, sizeof *world->heard, memory_of));
  EK_TRY(ek__new(&world->words, count, EK__TOPIC_WORDS * sizeof *world->words, memory_of));
  EK_TRY(ek__new(&world->moves, 3 * count, sizeof *world->moves, memory_of));
  EK_TRY(ek__new(&world->refused, EK__RIDE, 1, memory_of));
  return ek__new(&world->list, 2 * count, sizeof *world->list, memory_of);
}

static void close_wires(const struct ek__wire *wire, const struct ek__wire *watch) {
  if (watch->table != NULL && watch->self != wire->self) watch->table->close(watch->self);
  if (wire->table != NULL) wire->table->close(wire->self);
}

static void destroy(ek_world *world) {
  close_wires(&world->wire, &world->watch);
  pthread_mutex_destroy(&world->talking);
  pthread_mutex_destroy(&world->mutex);
  ek__free(world->list);
  ek__free(world->refused);
  ek__free(world->moves);
  ek__free(world->words);
  ek__free(world->heard);
  ek__free(world->peers);
  ek__free(world->source);
  ek__free(world);
}

static void open_locks(ek_world *world) {
  pthread_mutexattr_t again;
  pthread_mutexattr_init(&again);
  pthread_mutexattr_settype(&again, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&world->talking, &again);
  pthread_mutexattr_destroy(&again);
  pthread_mutex_init(&world->mutex, NULL);
}

ek_status ek__world_make(ek_world **world, const struct ek__world_parts *parts) {
  ek_world *made = NULL;
  ek_status status = ek__new(&made, 1, sizeof *made, memory_of);
  if (status != EK_OK) {
    close_wires(&parts->wire, &parts->watch);
    return status;
  }
  open_locks(made);
  made->parted = UINT64_MAX;
  made->process = parts->process;
  made->processes = parts->processes;
  made->wire = parts->wire;
  made->watch = parts->watch.table == NULL ? parts->wire : parts->watch;
  made->limit = parts->time_limit == 0 ? 600 : parts->time_limit;
  status = allocate(made, parts->source);
  if (status == EK_OK) status = introduce(made);
  if (status == EK_OK) {
    *world = made;
  } else {
    destroy(made);
  }
  return status;
}

ek_status ek_world_close(ek_world *world) {
  if (world == NULL) return EK_OK;
  EK__FAIL_IF(atomic_load(&world->groups) != 0, EK_ERR_STATE,
              "ek_world_close: a group of the world is still open");
  ek__world_leave(world);
  destroy(world);
  return EK_OK;
}

void ek_world_free(ek_world *world) {
  char before[EK__MESSAGE_SIZE];
  ek__error_keep(before);
  ek__error_restore(before, ek_world_close(world));
}
