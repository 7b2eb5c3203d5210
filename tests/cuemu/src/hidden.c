/*
 * hidden.c - device memory that no allocation accounts for: contexts, code, communicators.
 *
 * A context is there from the beginning. Code is loaded when it is first used and stays until the
 * device is reset: each kernel, and each kind of product, costs cuemu_settings.code_bytes once, and
 * may wait for the device (load_drains; then each shape of a product is a code of its own). A
 * communicator takes cuemu_settings.nccl_bytes when it joins, and as much again for each kind of
 * collective that it is used for, until it ends.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>

struct loaded { /* lives until the device is reset */
  struct loaded *next;
  const void *code;
  int device;
};

/* Each launch looks, and with the shapes of products there are thousands: lists by a hash. */
enum { LISTS = 1024 };
static struct loaded *loaded[LISTS];

static struct loaded **list_of(int device, const void *code) {
  const uint64_t mixed = ((uint64_t)(uintptr_t)code + (unsigned)device) * 0x9E3779B97F4A7C15u;
  return &loaded[mixed >> 54];
}

/* The lock is held. */
static bool take(int device, size_t bytes) {
  struct cuemu_device *d = &cuemu_devices[device];
  const size_t used = cuemu_settings.context_bytes + d->used + d->hidden;
  if (used > cuemu_settings.memory || bytes > cuemu_settings.memory - used) return false;
  d->hidden += bytes;
  return true;
}

bool cuemu_take_hidden(int device, size_t bytes) {
  cuemu_lock();
  const bool fits = take(device, bytes);
  cuemu_unlock();
  return fits;
}

void cuemu_give_hidden(int device, size_t bytes) {
  cuemu_lock();
  cuemu_devices[device].hidden -= bytes;
  cuemu_unlock();
}

/* The lock is held. */
static bool is_loaded(int device, const void *code) {
  const struct loaded *l = *list_of(device, code);
  while (l && (l->device != device || l->code != code)) l = l->next;
  return l != NULL;
}

/* CUDA may want the context for itself, and other threads' loading to wait. */
static void drain(int device) {
  static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&one_at_a_time);
  cuemu_drain_device(device);
  pthread_mutex_unlock(&one_at_a_time);
}

static __thread bool warming;

void cuemu_warming(bool on) {
  cuemu_initialise();
  warming = on && !cuemu_settings.warm;
}

bool cuemu_only_loads(void) { return warming; }

bool cuemu_load(int device, const void *code, const char *name) {
  const size_t late = name ? cuemu_settings.late_bytes : 0;
  if (!cuemu_settings.code_bytes && !cuemu_settings.load_drains && !late) return true;
  cuemu_lock();
  const bool known = is_loaded(device, code);
  const size_t used = cuemu_devices[device].used;
  cuemu_unlock();
  if (known) return true;
  if (late && used >= late) {
    fprintf(stderr, "cuemu: kernel %s (%p) is first used when %zu bytes are taken\n", name, code,
            used);
    abort();
  }
  if (cuemu_settings.load_drains) drain(device);
  cuemu_lock();
  const bool fits = is_loaded(device, code) || take(device, cuemu_settings.code_bytes);
  if (fits && !is_loaded(device, code)) {
    struct loaded *l = cuemu_new(sizeof(*l));
    struct loaded **list = list_of(device, code);
    *l = (struct loaded){*list, code, device};
    *list = l;
  }
  cuemu_unlock();
  return fits;
}

/* The lock is held. */
static void unload_list(struct loaded **link, int device) {
  while (*link) {
    struct loaded *l = *link;
    if (l->device != device) {
      link = &l->next;
      continue;
    }
    *link = l->next;
    cuemu_devices[device].hidden -= cuemu_settings.code_bytes;
    free(l);
  }
}

void cuemu_unload(int device) {
  cuemu_lock();
  for (int i = 0; i < LISTS; i++) unload_list(&loaded[i], device);
  cuemu_unlock();
}
