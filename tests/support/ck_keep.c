/*
 * ck_keep.c - the list of what the running test has opened: see ck_keep.h.
 *
 * A lock, because some tests open and free from several threads. It is not held while a thing is
 * freed: to free a rig frees a group, which is in the list as well. A fork waits for the lock: its
 * child has only the thread that forked, and must not find the lock held by another one.
 */
#include <pthread.h>
#include <stdarg.h>

#define CK_REAL_FREES
#include "ek_check.h"

struct kept {
  const void *thing; /* the handle, the tensor's memory or the shards' parts */
  void (*release)(void *copy);
  void *copy;      /* what `release` gets: the handle itself, or a copy of a struct */
  uint64_t number; /* of all that was ever kept */
  size_t elements; /* of an array */
};

static struct kept *list;
static size_t count, room;
static uint64_t ever;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void take_lock(void) { (void)pthread_mutex_lock(&lock); }

static void drop_lock(void) { (void)pthread_mutex_unlock(&lock); }

static void watch_forks(void) { (void)pthread_atfork(take_lock, drop_lock, drop_lock); }

static void keep(const void *thing, void *copy, void (*release)(void *copy), size_t elements) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, watch_forks);
  take_lock();
  if (count == room) {
    room = room == 0 ? 64 : 2 * room;
    struct kept *larger = realloc(list, room * sizeof *list);
    if (larger == NULL) abort();
    list = larger;
  }
  list[count++] = (struct kept){thing, release, copy, ever++, elements};
  drop_lock();
}

static struct kept take_at(size_t i) {
  const struct kept taken = list[i];
  memmove(&list[i], &list[i + 1], (--count - i) * sizeof *list);
  return taken;
}

/* Takes the newest entry of `thing` with this release (NULL: any) out; its copy, or NULL. */
static void *take_out(const void *thing, void (*release)(void *copy)) {
  void *copy = NULL;
  take_lock();
  for (size_t i = count; i-- > 0;) {
    if (list[i].thing != thing || (release != NULL && list[i].release != release)) continue;
    copy = take_at(i).copy;
    break;
  }
  drop_lock();
  return copy;
}

void ck_keep_by(void *thing, void (*release)(void *thing)) { keep(thing, thing, release, 0); }

void ck_forget(const void *thing) { (void)take_out(thing, NULL); }

size_t ck_mark(void) { return count; }

void ck_release(size_t mark) {
  while (count > mark) {
    const struct kept last = list[--count];
    last.release(last.copy);
  }
}

static void unset(void *name) { (void)unsetenv(name); }

void ck_variable(const char *name, const char *value) {
  ck_assert_int_eq(setenv(name, value, 1), 0);
  ck_keep_by((void *)(uintptr_t)name, unset);
}

uint64_t ck_kept_ever(void) {
  take_lock();
  const uint64_t number = ever;
  drop_lock();
  return number;
}

void ck_scope_end(const struct ck_scope *scope) {
  for (bool found = true; found;) {
    struct kept taken;
    found = false;
    take_lock();
    for (size_t i = count; i-- > 0 && list[i].number >= scope->first && !found;) {
      if (list[i].number >= scope->end) continue;
      taken = take_at(i);
      found = true;
    }
    drop_lock();
    if (found) taken.release(taken.copy);
  }
}

void ck_keep_nothing(void) {
  free(list);
  list = NULL;
  count = room = 0;
}

void ck_release_all(void) {
  ck_release(0);
  ck_keep_nothing();
}

/* ---- memory ---- */

void *ck_array(size_t elements, size_t size) {
  void *array = calloc(elements + 1, size);
  ck_assert_ptr_nonnull(array);
  keep(array, array, free, elements);
  return array;
}

int64_t ck_count(const void *array) {
  int64_t elements = -1;
  take_lock();
  for (size_t i = count; i-- > 0 && elements < 0;) {
    if (list[i].thing == array) elements = (int64_t)list[i].elements;
  }
  drop_lock();
  ck_assert_msg(elements >= 0, "no array is kept here");
  return elements;
}

const char *ck_text(const char *format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  const int length = vsnprintf(NULL, 0, format, arguments);
  char *text = ck_array((size_t)length + 1, 1);
  (void)vsnprintf(text, (size_t)length + 1, format, again);
  va_end(again);
  va_end(arguments);
  return text;
}

void ck_drop(void *array) {
  ck_forget(array);
  free(array);
}

/* ---- handles; a group that is still needed stays in its place of the list ---- */

static void end_group(void *group) {
  ck_no_memory_held(group);
  ck_ok(ek_group_close(group));
}

static void end_metrics(void *metrics) { ck_ok(ek_metrics_close(metrics)); }

static void end_trainer(void *trainer) { ck_ok(ek_trainer_close(trainer)); }

#define END(noun)                                                                                  \
  static void end_##noun(void *copy) { ek_##noun##_free(copy); }
CK_PLAIN_HANDLES(END)

#define KEEP_AND_FREE(noun)                                                                        \
  ek_##noun *ck_keep_##noun(ek_##noun *noun) {                                                     \
    if (noun != NULL) keep(noun, noun, end_##noun, 0);                                             \
    return noun;                                                                                   \
  }                                                                                                \
  void ck_free_##noun(ek_##noun *noun) {                                                           \
    ck_forget(noun);                                                                               \
    ek_##noun##_free(noun);                                                                        \
  }
CK_HANDLES(KEEP_AND_FREE)

#define CLOSE(noun)                                                                                \
  ek_status ck_close_##noun(ek_##noun *noun) {                                                     \
    const ek_status status = ek_##noun##_close(noun);                                              \
    if (status != EK_ERR_STATE) ck_forget(noun);                                                   \
    return status;                                                                                 \
  }
CK_CLOSED_HANDLES(CLOSE)

/* ---- structs, of which a copy is freed ---- */

static void *copy_of(const void *data, size_t size) {
  void *copy = malloc(size);
  if (copy == NULL) abort();
  memcpy(copy, data, size);
  return copy;
}

static void release_tensor(void *copy) {
  ek_tensor_free(copy);
  free(copy);
}

/* Tensors of the same memory hold a reference each, and one is as good as another. */
ek_tensor ck_keep_tensor(ek_tensor tensor) {
  if (tensor.memory != NULL) {
    keep(tensor.memory, copy_of(&tensor, sizeof tensor), release_tensor, 0);
  }
  return tensor;
}

void ck_free_tensor(ek_tensor *tensor) {
  if (tensor != NULL && tensor->memory != NULL) free(take_out(tensor->memory, release_tensor));
  ek_tensor_free(tensor);
}

static void release_shards(void *copy) {
  ek_shards_free(copy);
  free(copy);
}

ek_shards ck_keep_shards(ek_shards shards) {
  if (shards.parts != NULL) {
    keep(shards.parts, copy_of(&shards, sizeof shards), release_shards, 0);
  }
  return shards;
}

void ck_free_shards(ek_shards *shards) {
  if (shards != NULL && shards->parts != NULL) free(take_out(shards->parts, release_shards));
  ek_shards_free(shards);
}
