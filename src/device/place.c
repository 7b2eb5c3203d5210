/*
 * place.c - a group's ranks among those of all processes, and its errands.
 *
 * `mutex` guards the list of errands and the failure; no function is called while it is held.
 */
#include "device/place.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/hash.h"

struct ek__place {
  ek_world *world;
  size_t *first; /* of each process, its first rank; after the last one the number of ranks */
  uint64_t communicators;
  pthread_mutex_t mutex;
  struct ek__errand *head, *tail;
  ek_status failure; /* EK_OK: none */
  char words[EK__MESSAGE_SIZE];
  atomic_size_t bulk; /* that has not ended */
};

ek_world *ek__place_world(const struct ek__place *place) {
  return place == NULL ? NULL : place->world;
}

size_t ek__place_first_rank(const struct ek__place *place, size_t process) {
  return place->first[process];
}

size_t ek__place_ranks(const struct ek__place *place) {
  return place->first[ek_world_processes(place->world)];
}

ek_status ek__place_check_even(const struct ek__place *place) {
  const size_t own = ek_world_process(place->world), *first = place->first;
  for (size_t p = 0; p < ek_world_processes(place->world); p++) {
    EK__FAIL_IF(first[p + 1] - first[p] != first[own + 1] - first[own], EK_ERR_INVALID_ARGUMENT,
                "shares within each process need the same number of devices in all: process %zu "
                "has %zu, this one %zu",
                p, first[p + 1] - first[p], first[own + 1] - first[own]);
  }
  return EK_OK;
}

/* ---- collectives ---- */

/* A hash of numbers that must be equal in all processes. */
static int64_t hash_of(const int64_t *numbers, size_t count) {
  const size_t bytes = numbers == NULL ? 0 : count * sizeof *numbers;
  const uint64_t hash = ek__hash(EK__HASH_BEGIN, numbers, bytes);
  int64_t result = 0;
  memcpy(&result, &hash, sizeof result);
  return result;
}

static void say_collective(char *text, size_t size, const int64_t *words) {
  static const char *const names[] = {"a broadcast", "a reduce", "an all_reduce",
                                      "a reduce_scatter", "an all_gather"};
  const bool known = words[1] >= EK__BROADCAST && words[1] <= EK__ALL_GATHER;
  (void)snprintf(text, size, "in %s of %" PRId64 " %s on communicator %" PRId64,
                 known ? names[words[1]] : "something", words[2],
                 ek_type_name((ek_type)words[3]), words[0]);
}

ek_status ek__place_meet(struct ek__place *place, uint64_t communicator,
                         const struct ek__collective *what, size_t ranks, char *in, size_t bytes) {
  const struct ek__topic topic = {
      .kind = EK__TOPIC_COLLECTIVE,
      .doing = "in a collective",
      .say = say_collective,
      .same = 7,
      .words = {(int64_t)communicator, (int64_t)what->kind, what->count, (int64_t)what->type,
                (int64_t)what->root, (int64_t)what->about,
                hash_of(what->offsets, ranks + 1)},
      .out = what->data,
      .in = in,
      .bytes = bytes};
  return ek__world_talk(place->world, &topic, NULL);
}

/* ---- errands ---- */

void ek__place_append(struct ek__place *place, struct ek__errand *errand) {
  errand->next = NULL;
  pthread_mutex_lock(&place->mutex);
  if (place->head == NULL) {
    place->head = errand;
  } else {
    place->tail->next = errand;
  }
  place->tail = errand;
  pthread_mutex_unlock(&place->mutex);
}

ek_status ek__place_work(struct ek__place *place) {
  for (;;) {
    pthread_mutex_lock(&place->mutex);
    struct ek__errand *errand = place->head;
    pthread_mutex_unlock(&place->mutex);
    if (errand == NULL || !errand->ready(errand)) return EK_OK;
    pthread_mutex_lock(&place->mutex);
    place->head = errand->next;
    pthread_mutex_unlock(&place->mutex);
    ek__world_lock(place->world); /* its moves belong to its conversation */
    const ek_status status = errand->run(errand);
    ek__world_unlock(place->world);
    EK_TRY(status);
    EK_TRY(ek__place_failure(place));
  }
}

void ek__place_add_bulk(struct ek__place *place, struct ek__bulk *bulk) {
  atomic_fetch_add(&place->bulk, 1);
  ek__world_add_bulk(place->world, bulk);
}

void ek__place_ended(struct ek__place *place, ek_status status) {
  if (status != EK_OK) ek__place_fail(place, status);
  atomic_fetch_sub(&place->bulk, 1);
}

bool ek__place_busy(struct ek__place *place) {
  return place != NULL && atomic_load(&place->bulk) > 0;
}

ek_status ek__place_wait(struct ek__place *place) {
  EK_TRY(ek__world_wait(place->world));
  return ek__place_failure(place);
}

void ek__place_fail(struct ek__place *place, ek_status status) {
  pthread_mutex_lock(&place->mutex);
  if (place->failure == EK_OK) {
    ek__error_keep(place->words);
    place->failure = status;
  }
  pthread_mutex_unlock(&place->mutex);
}

ek_status ek__place_failure(struct ek__place *place) {
  char words[EK__MESSAGE_SIZE];
  pthread_mutex_lock(&place->mutex);
  const ek_status status = place->failure;
  if (status != EK_OK) memcpy(words, place->words, sizeof words);
  place->failure = EK_OK;
  pthread_mutex_unlock(&place->mutex);
  return status == EK_OK ? EK_OK : ek_error_set(status, "%s", words);
}

void ek__place_remove(struct ek__place *place, const struct ek__errand *errand) {
  struct ek__errand *last = NULL;
  pthread_mutex_lock(&place->mutex);
  for (struct ek__errand **link = &place->head; *link != NULL;) {
    if (*link == errand) {
      *link = errand->next;
    } else {
      last = *link;
      link = &last->next;
    }
  }
  place->tail = last;
  pthread_mutex_unlock(&place->mutex);
}

void ek__place_forget(struct ek__place *place) {
  if (place == NULL) return;
  pthread_mutex_lock(&place->mutex);
  place->head = NULL;
  pthread_mutex_unlock(&place->mutex);
}

uint64_t ek__place_number(struct ek__place *place) {
  pthread_mutex_lock(&place->mutex);
  const uint64_t number = place->communicators++;
  pthread_mutex_unlock(&place->mutex);
  return number;
}

/* ---- opening ---- */

static const char memory_of[] = "a group's place in a world";

/* How many devices each process has. */
static ek_status take_ranks(struct ek__place *place, bool deterministic, size_t members) {
  const size_t processes = ek_world_processes(place->world);
  const int64_t *heard = NULL;
  const struct ek__topic topic = {.kind = EK__TOPIC_GROUP,
                                  .doing = "opening a group",
                                  .same = 1,
                                  .words = {(int64_t)deterministic, (int64_t)members}};
  ek__world_lock(place->world);
  ek_status status = ek__world_talk(place->world, &topic, &heard);
  for (size_t p = 0; p < processes && status == EK_OK; p++) {
    const int64_t count = heard[p * EK__TOPIC_WORDS + 1];
    if (count < 1 || count > INT32_MAX) {
      status = ek_error_set(EK_ERR_INVALID_ARGUMENT,
                            "ek_group_open: process %zu has %" PRId64 " devices", p, count);
    } else {
      place->first[p + 1] = place->first[p] + (size_t)count;
    }
  }
  ek__world_unlock(place->world);
  return status;
}

ek_status ek__place_open(struct ek__place **place, ek_world *world, bool deterministic,
                         size_t members) {
  struct ek__place *made = NULL;
  EK_TRY(ek__new(&made, 1, sizeof *made, memory_of));
  made->world = world;
  pthread_mutex_init(&made->mutex, NULL);
  ek_status status =
      ek__new(&made->first, ek_world_processes(world) + 1, sizeof *made->first, memory_of);
  if (status == EK_OK) status = take_ranks(made, deterministic, members);
  if (status == EK_OK) {
    *place = made;
  } else {
    ek__place_close(made);
  }
  return status;
}

void ek__place_close(struct ek__place *place) {
  if (place == NULL) return;
  pthread_mutex_destroy(&place->mutex);
  ek__free(place->first);
  ek__free(place);
}
