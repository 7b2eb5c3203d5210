/*
 * world.c - messages between the processes of a world, and the errands of a group.
 *
 * Two locks. `talking` is held for a whole conversation, and for the errand that it belongs to, so
 * that the conversations of two threads do not mix. `mutex` guards the list of errands and the
 * failure, and no function is called while it is held.
 */
#include "device/world.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"

enum message_kind { OPENING = 1, SUM, SHARE, COLLECTIVE, FAILURE };

enum { WORDS = 7, TEXT = 184 };

/* All processes have the same: "evenkeel" in the byte order of the machine, and a version. */
#define MAGIC (UINT64_C(0x6c65656b6e657665) + 1)

struct message {
  uint64_t magic;
  uint64_t number; /* conversations before this one */
  uint64_t kind;
  int64_t words[WORDS];
  char text[TEXT]; /* FAILURE: why */
};

struct ek__world {
  ek_exchange exchange;
  size_t size;    /* ranks */
  size_t *first;  /* of each process, its first rank; after the last one `size` */
  double limit;   /* seconds that an exchange may take */
  uint64_t count; /* of conversations */
  uint64_t communicators;
  struct message *heard; /* in this conversation, from each process */
  pthread_mutex_t talking, mutex;
  struct ek__errand *head, *tail;
  ek_status failed; /* EK_OK: it has not */
  char why[EK__MESSAGE_SIZE];
};

size_t ek__world_processes(const struct ek__world *world) { return world->exchange.processes; }

size_t ek__world_process(const struct ek__world *world) { return world->exchange.process; }

size_t ek__world_first_rank(const struct ek__world *world, size_t process) {
  return world->first[process];
}

size_t ek__world_size(const struct ek__world *world) { return world->size; }

size_t ek__world_peer(const struct ek__world *world, size_t round) {
  const size_t processes = world->exchange.processes;
  return (round + processes - world->exchange.process) % processes;
}

/* ---- failures ---- */

ek_status ek__world_check(struct ek__world *world) {
  pthread_mutex_lock(&world->mutex);
  const ek_status status = world->failed;
  pthread_mutex_unlock(&world->mutex);
  if (status == EK_OK) return EK_OK;
  /* Written once, before `failed`. */
  return ek_error_set(EK_ERR_UNAVAILABLE,
                      "the processes stopped training together after an error; close the group and "
                      "reopen it in all of them. The error was: %s",
                      world->why);
}

/* Whether this is the first failure. */
static bool note_failure(struct ek__world *world, ek_status status) {
  pthread_mutex_lock(&world->mutex);
  const bool first = world->failed == EK_OK;
  if (first) {
    (void)snprintf(world->why, sizeof world->why, "%s", ek_error_message());
    world->failed = status;
  }
  pthread_mutex_unlock(&world->mutex);
  return first;
}

/* "process 1 (ranks 2 to 3)". */
static const char *name(char *text, size_t size, const struct ek__world *world, size_t process) {
  const size_t first = world->first[process], last = world->first[process + 1];
  int used = snprintf(text, size, "process %zu", process);
  if (last > first && used > 0) {
    (void)snprintf(text + used, size - (size_t)used,
                   last - first == 1 ? " (rank %zu)" : " (ranks %zu to %zu)", first, last - 1);
  }
  return text;
}

static ek_status valid(ek_status status) {
  const bool known = status > EK_OK && strcmp(ek_status_name(status), "EK_ERR_UNKNOWN") != 0;
  return known && status != EK_ERR_ABORTED ? status : EK_ERR_UNAVAILABLE;
}

static ek_status swap(struct ek__world *world, size_t peer, const void *out, size_t out_bytes,
                      void *in, size_t in_bytes, double seconds) {
  char who[96];
  ek_error_clear();
  const ek_status status =
      world->exchange.swap(world->exchange.context, peer, out, out_bytes, in, in_bytes, seconds);
  if (status == EK_OK) return EK_OK;
  char why[512];
  (void)snprintf(why, sizeof why, "%s", ek_error_message());
  return ek_error_set(valid(status), "%s: the exchange of bytes with it failed: %s",
                      name(who, sizeof who, world, peer),
                      *why == '\0' ? ek_status_text(valid(status)) : why);
}

ek_status ek__world_swap(struct ek__world *world, size_t peer, const void *out, size_t out_bytes,
                         void *in, size_t in_bytes) {
  if (out_bytes == 0 && in_bytes == 0) return EK_OK;
  const ek_status status = swap(world, peer, out, out_bytes, in, in_bytes, world->limit);
  if (status != EK_OK) (void)note_failure(world, status);
  return status;
}

static void make_failure(struct message *message, const struct ek__world *world, ek_status status) {
  *message = (struct message){.magic = MAGIC, .number = world->count, .kind = FAILURE};
  message->words[0] = (int64_t)status;
  (void)snprintf(message->text, sizeof message->text, "%s", ek_error_message());
}

/* The others get it as the answer to their next message; nothing more is read from them. */
void ek__world_fail(struct ek__world *world, ek_status status) {
  enum { SECONDS = 5 }; /* a process that does not take a message of this size is hanging */
  struct message message;
  if (world == NULL || !note_failure(world, valid(status))) return;
  char kept[EK__MESSAGE_SIZE];
  (void)snprintf(kept, sizeof kept, "%s", ek_error_message());
  pthread_mutex_lock(&world->talking);
  make_failure(&message, world, status);
  for (size_t round = 0; round < world->exchange.processes; round++) {
    const size_t peer = ek__world_peer(world, round);
    if (peer == world->exchange.process) continue;
    const double seconds = world->limit < SECONDS ? world->limit : SECONDS;
    (void)swap(world, peer, &message, sizeof message, NULL, 0, seconds);
  }
  pthread_mutex_unlock(&world->talking);
  (void)ek_error_set(status, "%s", kept);
}

/* ---- a conversation ---- */

/* One message each way with every process. If a process is lost, the others get its failure. */
static ek_status swap_messages(struct ek__world *world, const struct message *mine) {
  struct message message = *mine;
  ek_status status = EK_OK;
  char lost[EK__MESSAGE_SIZE] = "";
  for (size_t round = 0; round < world->exchange.processes; round++) {
    const size_t peer = ek__world_peer(world, round);
    if (peer == world->exchange.process) continue;
    world->heard[peer] = (struct message){0};
    const ek_status swapped = swap(world, peer, &message, sizeof message, &world->heard[peer],
                                   sizeof world->heard[peer], world->limit);
    if (swapped == EK_OK || status != EK_OK) continue;
    /* A process that failed and ended has sent the reason. */
    if (world->heard[peer].magic == MAGIC && world->heard[peer].kind == FAILURE) continue;
    status = swapped;
    (void)snprintf(lost, sizeof lost, "%s", ek_error_message());
    make_failure(&message, world, status);
  }
  world->count++;
  return status == EK_OK ? EK_OK : ek_error_set(status, "%s", lost);
}

static const char *say(char *text, size_t size, const struct message *message) {
  static const char *const collectives[] = {"a broadcast", "a reduce", "an all_reduce",
                                            "a reduce_scatter", "an all_gather"};
  switch ((enum message_kind)message->kind) {
  case OPENING: return "opening a group";
  case SUM: return "a forward or a criterion's forward";
  case SHARE: return "opening a communicator";
  case FAILURE: return "an error";
  case COLLECTIVE: break;
  }
  const bool known = message->words[1] >= EK__BROADCAST && message->words[1] <= EK__ALL_GATHER;
  (void)snprintf(text, size, "%s of %" PRId64 " %s on communicator %" PRId64,
                 known ? collectives[message->words[1]] : "something", message->words[2],
                 ek_type_name((ek_type)message->words[3]), message->words[0]);
  return text;
}

/* Compares the messages of all other processes with this one's: equal in `same` words. */
static ek_status check_messages(const struct ek__world *world, const struct message *mine,
                                size_t same) {
  char who[96], theirs[128], own[128];
  for (size_t p = 0; p < world->exchange.processes; p++) {
    struct message *heard = &world->heard[p];
    if (p == world->exchange.process) continue;
    EK__FAIL_IF(heard->magic != MAGIC, EK_ERR_UNAVAILABLE,
                "%s does not follow this process's protocol: it has another library, version or "
                "byte order, or bytes were lost",
                name(who, sizeof who, world, p));
    heard->text[TEXT - 1] = '\0';
    EK__FAIL_IF(heard->kind == FAILURE, valid((ek_status)heard->words[0]), "%s failed: %s",
                name(who, sizeof who, world, p), heard->text);
  }
  for (size_t p = 0; p < world->exchange.processes; p++) {
    const struct message *heard = &world->heard[p];
    if (p == world->exchange.process) continue;
    EK__FAIL_IF(heard->number != mine->number || heard->kind != mine->kind ||
                    memcmp(heard->words, mine->words, same * sizeof *mine->words) != 0,
                EK_ERR_SHAPE,
                "the processes make different calls: %s is in %s, this one in %s, or their earlier "
                "calls differ",
                name(who, sizeof who, world, p), say(theirs, sizeof theirs, heard),
                say(own, sizeof own, mine));
  }
  return EK_OK;
}

/* `talking` is held. */
static ek_status converse(struct ek__world *world, struct message *mine, size_t same) {
  EK_TRY(ek__world_check(world));
  mine->magic = MAGIC;
  mine->number = world->count;
  ek_status status = swap_messages(world, mine);
  if (status == EK_OK) status = check_messages(world, mine, same);
  if (status != EK_OK) (void)note_failure(world, status);
  return status;
}

ek_status ek__world_sum(struct ek__world *world, int64_t *numbers, size_t count, int64_t *before) {
  struct message message = {.kind = SUM};
  if (before != NULL) *before = 0;
  if (world == NULL) return EK_OK;
  memcpy(message.words, numbers, count * sizeof *numbers);
  pthread_mutex_lock(&world->talking);
  ek_status status = converse(world, &message, 0);
  for (size_t p = 0; p < world->exchange.processes && status == EK_OK; p++) {
    const bool lower = p < world->exchange.process;
    if (p == world->exchange.process) continue;
    for (size_t i = 0; i < count && status == EK_OK; i++) {
      const int64_t more = world->heard[p].words[i];
      if (more < 0 || !ek__add(&numbers[i], numbers[i], more)) {
        status = ek_error_set(EK_ERR_OVERFLOW, "the processes' samples do not fit in 63 bits");
        (void)note_failure(world, status);
      }
    }
    if (lower && before != NULL) *before += world->heard[p].words[0];
  }
  pthread_mutex_unlock(&world->talking);
  return status;
}

ek_status ek__world_share(struct ek__world *world, void *bytes, size_t count) {
  struct message message = {.kind = SHARE, .words = {(int64_t)count}};
  if (world == NULL) return EK_OK;
  const size_t own = world->exchange.process;
  pthread_mutex_lock(&world->talking);
  ek_status status = converse(world, &message, 1);
  for (size_t round = 0; round < world->exchange.processes && status == EK_OK; round++) {
    const size_t peer = ek__world_peer(world, round);
    if (peer == own || (peer != 0 && own != 0)) continue;
    status = ek__world_swap(world, peer, bytes, own == 0 ? count : 0, bytes, own == 0 ? 0 : count);
  }
  pthread_mutex_unlock(&world->talking);
  return status;
}

/* A hash of numbers that must be equal in all processes; FNV-1a. */
static int64_t hash_of(const int64_t *numbers, size_t count) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < count && numbers != NULL; i++) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ ((uint64_t)numbers[i] >> shift & 0xff)) * UINT64_C(0x100000001b3);
    }
  }
  int64_t result = 0;
  memcpy(&result, &hash, sizeof result);
  return result;
}

ek_status ek__world_meet(struct ek__world *world, uint64_t communicator,
                         const struct ek__collective *what) {
  struct message message = {.kind = COLLECTIVE,
                            .words = {(int64_t)communicator, (int64_t)what->kind, what->count,
                                      (int64_t)what->type, (int64_t)what->root,
                                      (int64_t)what->about,
                                      hash_of(what->offsets, world->size + 1)}};
  pthread_mutex_lock(&world->talking);
  const ek_status status = converse(world, &message, WORDS);
  pthread_mutex_unlock(&world->talking);
  return status;
}

/* ---- errands ---- */

void ek__world_append(struct ek__world *world, struct ek__errand *errand) {
  errand->next = NULL;
  pthread_mutex_lock(&world->mutex);
  if (world->head == NULL) {
    world->head = errand;
  } else {
    world->tail->next = errand;
  }
  world->tail = errand;
  pthread_mutex_unlock(&world->mutex);
}

ek_status ek__world_work(struct ek__world *world) {
  for (;;) {
    pthread_mutex_lock(&world->mutex);
    struct ek__errand *errand = world->head;
    pthread_mutex_unlock(&world->mutex);
    if (errand == NULL || !errand->ready(errand)) return EK_OK;
    pthread_mutex_lock(&world->mutex);
    world->head = errand->next;
    pthread_mutex_unlock(&world->mutex);
    pthread_mutex_lock(&world->talking);
    const ek_status status = errand->run(errand);
    pthread_mutex_unlock(&world->talking);
    EK_TRY(status);
  }
}

void ek__world_remove(struct ek__world *world, const struct ek__errand *errand) {
  struct ek__errand *last = NULL;
  pthread_mutex_lock(&world->mutex);
  for (struct ek__errand **link = &world->head; *link != NULL;) {
    if (*link == errand) {
      *link = errand->next;
    } else {
      last = *link;
      link = &last->next;
    }
  }
  world->tail = last;
  pthread_mutex_unlock(&world->mutex);
}

void ek__world_forget(struct ek__world *world) {
  if (world == NULL) return;
  pthread_mutex_lock(&world->mutex);
  world->head = NULL;
  pthread_mutex_unlock(&world->mutex);
}

uint64_t ek__world_number(struct ek__world *world) {
  pthread_mutex_lock(&world->mutex);
  const uint64_t number = world->communicators++;
  pthread_mutex_unlock(&world->mutex);
  return number;
}

/* ---- opening ---- */

/* Checks that the processes' ranks follow each other from 0 to the end of the world. */
static ek_status take_places(struct ek__world *world, const struct message *mine) {
  char who[96];
  size_t next = 0;
  for (size_t p = 0; p < world->exchange.processes; p++) {
    const struct message *said = p == world->exchange.process ? mine : &world->heard[p];
    EK__FAIL_IF(said->words[0] != (int64_t)world->exchange.processes ||
                    said->words[1] != (int64_t)p || said->words[2] != (int64_t)world->size,
                EK_ERR_INVALID_ARGUMENT,
                "ek_group_open: process %zu calls itself number %" PRId64 " of %" PRId64
                " processes in a world of %" PRId64 "; this one knows %zu processes and %zu ranks",
                p, said->words[1], said->words[0], said->words[2], world->exchange.processes,
                world->size);
    EK__FAIL_IF(said->words[3] != (int64_t)next || said->words[4] < 1 ||
                    (uint64_t)said->words[4] > world->size - next,
                EK_ERR_INVALID_ARGUMENT,
                "ek_group_open: process %zu has %" PRId64 " devices from rank %" PRId64
                " on in a world of %zu; expected the first rank %zu",
                p, said->words[4], said->words[3], world->size, next);
    world->first[p] = next;
    next += (size_t)said->words[4];
    world->first[p + 1] = next;
  }
  EK__FAIL_IF(next != world->size, EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: the processes have %zu devices in a world of %zu; the last is %s",
              next, world->size, name(who, sizeof who, world, world->exchange.processes - 1));
  return EK_OK;
}

static ek_status introduce(struct ek__world *world, const ek_group_options *options,
                           size_t members) {
  struct message message = {.kind = OPENING,
                            .words = {(int64_t)world->exchange.processes,
                                      (int64_t)world->exchange.process, (int64_t)world->size,
                                      (int64_t)options->first_rank, (int64_t)members,
                                      (int64_t)options->deterministic}};
  pthread_mutex_lock(&world->talking);
  ek_status status = converse(world, &message, 0);
  if (status == EK_OK) status = take_places(world, &message);
  pthread_mutex_unlock(&world->talking);
  return status;
}

static const char memory_of[] = "the processes of a world";

ek_status ek__exchange_read(ek_exchange *exchange, const ek_exchange *given) {
  *exchange = (ek_exchange)EK_EXCHANGE_INIT;
  EK_TRY(ek__options_read(exchange, sizeof *exchange, given, "ek_exchange"));
  if (exchange->processes == 0) exchange->processes = 1;
  EK__FAIL_IF(exchange->processes > 1 && exchange->swap == NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: options.exchange has no function `swap`");
  EK__FAIL_IF(exchange->processes > 1048576 || exchange->process >= exchange->processes,
              EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: options.exchange: process number %zu of %zu; expected 0 to "
              "processes - 1, and at most 1048576 processes",
              exchange->process, exchange->processes);
  return EK_OK;
}

ek_status ek__world_open(struct ek__world **world, const ek_exchange *exchange,
                         const ek_group_options *options, size_t members) {
  struct ek__world *made = NULL;
  EK_TRY(ek__new(&made, 1, sizeof *made, memory_of));
  made->exchange = *exchange;
  made->size = options->world_size == 0 ? members : options->world_size;
  made->limit = options->time_limit;
  pthread_mutexattr_t again; /* an errand holds conversations */
  pthread_mutexattr_init(&again);
  pthread_mutexattr_settype(&again, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&made->talking, &again);
  pthread_mutexattr_destroy(&again);
  pthread_mutex_init(&made->mutex, NULL);
  ek_status status = ek__new(&made->first, exchange->processes + 1, sizeof *made->first, memory_of);
  if (status == EK_OK) {
    status = ek__new(&made->heard, exchange->processes, sizeof *made->heard, memory_of);
  }
  if (status == EK_OK) status = introduce(made, options, members);
  if (status == EK_OK) {
    *world = made;
  } else {
    ek__world_close(made);
  }
  return status;
}

void ek__world_close(struct ek__world *world) {
  if (world == NULL) return;
  pthread_mutex_destroy(&world->talking);
  pthread_mutex_destroy(&world->mutex);
  ek__free(world->heard);
  ek__free(world->first);
  ek__free(world);
}
