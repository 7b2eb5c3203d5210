/*
 * copies.c - cp.async: copies into shared memory that arrive when the thread that began them waits,
 * and not before, so that a kernel which forgets to wait reads what was there: NaN, or the tile
 * before.
 *
 * Each CUDA thread of the block has a list of copies and the number of groups that it has ended.
 * All of it belongs to the worker that runs the block. ThreadSanitizer does not see the lists, and
 * sees the copies as the thread's that waits, because memcpy() is the C library's.
 */
#include "executor.h"

#include <stdlib.h>
#include <string.h>

struct copy {
  void *to;
  const void *from;
  unsigned bytes, there, group;
};

struct list {
  struct copy *copies;
  unsigned count, room, groups, serial;
};

static _Thread_local struct list *lists; /* of MAX_THREADS; kept as long as the worker */
static _Thread_local unsigned serial;
static pthread_key_t lists_key;
static pthread_once_t lists_once = PTHREAD_ONCE_INIT;

static void free_lists(void *memory) {
  struct list *all = memory;
  for (int i = 0; i < MAX_THREADS; i++) free(all[i].copies);
  free(all);
}

static void make_key(void) { (void)pthread_key_create(&lists_key, free_lists); }

void cuemu_copies_begin(void) { serial++; }

static struct list *own_list(void) {
  if (!lists) {
    (void)pthread_once(&lists_once, make_key);
    lists = cuemu_new(MAX_THREADS * sizeof *lists);
    (void)pthread_setspecific(lists_key, lists);
  }
  struct list *list = &lists[cuemu_current(cuemu_block)];
  if (list->serial != serial) {
    list->serial = serial;
    list->count = list->groups = 0;
  }
  return list;
}

void cuemu_copy_async(void *to, const void *from, unsigned bytes, int there, const char *file,
                      int line) {
  struct list *list = own_list();
  if (((uintptr_t)to | (there ? (uintptr_t)from : 0)) % bytes != 0) {
    cuemu_fail_block("an asynchronous copy is not aligned", (struct place){file, line});
  }
  if (list->count == list->room) {
    list->room = list->room ? 2 * list->room : 64;
    list->copies = realloc(list->copies, list->room * sizeof *list->copies);
    if (!list->copies) abort();
  }
  list->copies[list->count++] = (struct copy){to, from, bytes, there ? bytes : 0, list->groups};
}

void cuemu_copy_commit(void) { own_list()->groups++; }

void cuemu_copy_wait(unsigned groups) {
  struct list *list = own_list();
  unsigned kept = 0;
  for (unsigned i = 0; i < list->count; i++) {
    const struct copy *copy = &list->copies[i];
    if (copy->group + groups >= list->groups) {
      list->copies[kept++] = *copy;
    } else if (copy->there > 0) {
      memcpy(copy->to, copy->from, copy->bytes);
    } else {
      memset(copy->to, 0, copy->bytes);
    }
  }
  list->count = kept;
}
