/*
 * fault.c - injected faults and hangs, counts of calls, and the report of what is alive.
 *
 * Two counts for each device and kind: calls (cuemu_call(), made by the thread that calls CUDA; for
 * kernels by the worker that runs them) and operations that a stream runs. A failure is armed on
 * the first, a hang on the second. A hang that is not released ends with the process.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct armed {
  unsigned long at; /* the count at which it happens; 0: not armed */
  int error;
};

struct counter {
  unsigned long calls, runs;
  struct armed failure, hang, stall;
};

static struct counter counters[CUEMU_MAX_DEVICES][CUEMU_KINDS];
static unsigned hanging;
static _Atomic unsigned long counted[CUEMU_COUNTED];
static bool hangs_armed;       /* since the last reset; atomic */
static unsigned long releases; /* how often cuemu_release() was called */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;

/* Indexed by kind. cuBLAS: EXECUTION_FAILED; NCCL: ncclSystemError. */
static const int likely_error[CUEMU_KINDS] = {cudaErrorMemoryAllocation,
                                              cudaErrorInvalidValue,
                                              cudaErrorLaunchOutOfResources,
                                              cudaErrorIllegalAddress,
                                              13,
                                              2};
static const char *const kind_names[CUEMU_KINDS] = {"memory", "copy",   "launch",
                                                    "kernel", "cublas", "nccl"};

/* ---- used by the other files ---- */

int cuemu_call(int device, enum cuemu_kind kind) {
  pthread_mutex_lock(&mutex);
  struct counter *c = &counters[device][kind];
  int error = ++c->calls == c->failure.at ? c->failure.error : 0;
  bool stall = c->calls == c->stall.at;
  pthread_mutex_unlock(&mutex);
  if (stall) cuemu_drain_device(device);
  return error;
}

bool cuemu_runs_into_hang(int device, enum cuemu_kind kind) {
  pthread_mutex_lock(&mutex);
  struct counter *c = &counters[device][kind];
  bool hang = ++c->runs == c->hang.at;
  pthread_mutex_unlock(&mutex);
  return hang;
}

bool cuemu_hangs_armed(void) { return __atomic_load_n(&hangs_armed, __ATOMIC_RELAXED); }

void cuemu_add_hanging(int change) {
  pthread_mutex_lock(&mutex);
  hanging += (unsigned)change;
  pthread_mutex_unlock(&mutex);
}

void cuemu_hang_here(void) {
  pthread_mutex_lock(&mutex);
  unsigned long before = releases;
  hanging++;
  while (releases == before) pthread_cond_wait(&released, &mutex);
  hanging--;
  pthread_mutex_unlock(&mutex);
}

/* ---- used by tests ---- */

void cuemu_fail(int device, enum cuemu_kind kind, unsigned long nth, int error) {
  pthread_mutex_lock(&mutex);
  struct counter *c = &counters[device][kind];
  c->failure = (struct armed){nth ? c->calls + nth : 0, error ? error : likely_error[kind]};
  pthread_mutex_unlock(&mutex);
}

void cuemu_hang(int device, enum cuemu_kind kind, unsigned long nth) {
  pthread_mutex_lock(&mutex);
  struct counter *c = &counters[device][kind];
  c->hang.at = nth ? c->runs + nth : 0;
  if (nth) __atomic_store_n(&hangs_armed, true, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&mutex);
}

void cuemu_stall(int device, enum cuemu_kind kind, unsigned long nth) {
  pthread_mutex_lock(&mutex);
  struct counter *c = &counters[device][kind];
  c->stall.at = nth ? c->calls + nth : 0;
  pthread_mutex_unlock(&mutex);
}

void cuemu_add(int what) { counted[what]++; }
unsigned long cuemu_counted(int what) { return counted[what]; }

void cuemu_release(void) {
  pthread_mutex_lock(&mutex);
  releases++;
  pthread_cond_broadcast(&released);
  pthread_mutex_unlock(&mutex);
}

unsigned cuemu_hanging(void) {
  pthread_mutex_lock(&mutex);
  unsigned count = hanging;
  pthread_mutex_unlock(&mutex);
  return count;
}

unsigned long cuemu_calls(int device, enum cuemu_kind kind) {
  pthread_mutex_lock(&mutex);
  unsigned long count = counters[device][kind].calls;
  pthread_mutex_unlock(&mutex);
  return count;
}

void cuemu_reset(void) {
  cuemu_release();
  pthread_mutex_lock(&mutex);
  memset(counters, 0, sizeof(counters));
  for (int i = 0; i < CUEMU_COUNTED; i++) counted[i] = 0;
  __atomic_store_n(&hangs_armed, false, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&mutex);
  cuemu_clear_sticky();
  (void)cudaGetLastError();
}

/* ---- environment ---- */

static void arm(const char *text) {
  char action[8], kind[8];
  int device, error = 0;
  unsigned long nth;
  if (sscanf(text, " %7s %7s %d %lu %d", action, kind, &device, &nth, &error) >= 4 && device >= 0 &&
      device < CUEMU_MAX_DEVICES) {
    for (int k = 0; k < CUEMU_KINDS; k++) {
      if (strcmp(kind, kind_names[k]) != 0) continue;
      if (!strcmp(action, "fail")) {
        cuemu_fail(device, (enum cuemu_kind)k, nth, error);
        return;
      }
      if (!strcmp(action, "hang")) {
        cuemu_hang(device, (enum cuemu_kind)k, nth);
        return;
      }
    }
  }
  fprintf(stderr, "cuemu: CUEMU_FAULT: not understood: %s\n", text);
}

void cuemu_faults_from_environment(void) {
  const char *value = getenv("CUEMU_FAULT");
  while (value && *value) {
    char one[64];
    size_t length = strcspn(value, ",");
    (void)snprintf(one, sizeof(one), "%.*s", (int)length, value);
    arm(one);
    value += length + (value[length] == ',');
  }
}

/* ---- what is alive ---- */

void cuemu_usage(int device, struct cuemu_usage *usage) {
  unsigned long host_allocations = cuemu_host_allocations();
  cuemu_lock();
  const struct cuemu_device *d = &cuemu_devices[device];
  *usage = (struct cuemu_usage){.bytes = d->used,
                                .peak_bytes = d->peak,
                                .hidden_bytes = d->hidden,
                                .allocations = d->allocations,
                                .host_allocations = host_allocations,
                                .streams = d->streams_alive,
                                .events = d->events_alive,
                                .blas_handles = d->handles_alive,
                                .communicators = d->communicators_alive};
  cuemu_unlock();
}

unsigned long cuemu_leaks(char *text, size_t bytes) {
  unsigned long total = cuemu_host_allocations();
  size_t used = 0;
  if (text && bytes) {
    *text = '\0';
    if (total) used = (size_t)snprintf(text, bytes, "%lu pinned host allocations\n", total);
  }
  for (int d = 0; d < CUEMU_MAX_DEVICES; d++) {
    struct cuemu_usage u;
    cuemu_usage(d, &u);
    unsigned long here = u.allocations + u.streams + u.events + u.blas_handles + u.communicators;
    total += here;
    if (!here || !text || used >= bytes) continue;
    used += (size_t)snprintf(text + used, bytes - used,
                             "device %d: %zu bytes in %lu allocations, %lu streams, %lu events, "
                             "%lu cuBLAS handles, %lu communicators\n",
                             d, u.bytes, u.allocations, u.streams, u.events, u.blas_handles,
                             u.communicators);
  }
  return total;
}
