/*
 * internal.h - what the files of cuemu share.
 *
 * Threads and locks. Each stream has a worker thread, which runs the stream's operations in order.
 * One lock, in device.c, guards devices and the lists of what lives on them; each stream, event and
 * clique of communicators has a lock of its own. Only one of them is held at a time, with these
 * exceptions: a list lock may be held while a stream's or clique's lock is taken, never the other
 * way round.
 *
 * Errors. Every CUDA function begins with cuemu_enter() and ends with cuemu_result(), which keeps
 * the calling thread's last error. A device that met a sticky error returns it from everything;
 * what frees things frees them nevertheless, so that a leak is a call that is missing and nothing
 * else.
 */
#ifndef CUEMU_INTERNAL_H
#define CUEMU_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../cuemu.h"
#include "cuda_runtime_api.h"

/* Inline: the executor must not call into code that ThreadSanitizer watches. */
static inline unsigned cuemu_random(unsigned *state) { /* xorshift; the state is never 0 */
  unsigned x = *state;
  x ^= x << 13;
  x ^= x >> 17;
  x ^= x << 5;
  return *state = x;
}

/* ---- device.c ---- */

struct cuemu_device {
  size_t used, peak;
  size_t hidden; /* hidden.c */
  unsigned long allocations, streams_alive, events_alive, handles_alive, communicators_alive;
  unsigned peers; /* a bit for each device whose access was enabled */
  struct CUstream_st *streams, *default_stream;
};

extern struct cuemu_settings cuemu_settings;
extern struct cuemu_device cuemu_devices[CUEMU_MAX_DEVICES];

void cuemu_lock(void); /* guards cuemu_devices, allocations */
void cuemu_unlock(void);
void cuemu_initialise(void);
cudaError_t cuemu_enter(void);               /* the error that every call gives now, or success */
cudaError_t cuemu_result(cudaError_t error); /* remembers it as the thread's last error */
/* For functions of CUDA: an error is theirs. */
#define CUEMU_TRY(call)                                                                            \
  do {                                                                                             \
    const cudaError_t error_ = (call);                                                             \
    if (error_ != cudaSuccess) return cuemu_result(error_);                                        \
  } while (0)
int cuemu_current_device(void);
size_t cuemu_shared_limit(void); /* bytes that a block may ask for */
cudaError_t cuemu_sticky(int device);
void cuemu_set_sticky(int device, cudaError_t error);
bool cuemu_is_sticky_error(cudaError_t error);
void cuemu_clear_sticky(void);
void cuemu_count(unsigned long *counter, int change); /* takes the lock */
void *cuemu_new(size_t bytes); /* zeroed; ends the program when out of memory */

/* ---- launch.c ---- */

/* A line of CUEMU_LAUNCHES: a kernel, by its file and place there, or a word for something else. */
void cuemu_note(const void *kernel, const char *other);

/* ---- memory.c ---- */

void cuemu_pass_context(void); /* waits while another thread frees */

enum cuemu_place { CUEMU_PAGEABLE, CUEMU_PINNED, CUEMU_ON_DEVICE };

/* The allocation of the range; `whole` says whether all of it does. */
enum cuemu_place cuemu_find(const void *pointer, size_t bytes, int *device, bool *whole);
/* Whether the device may touch memory of the other one (-1: host memory). */
bool cuemu_reaches(int device, int other);
/* An address among a kernel's arguments of memory that the device does not reach; or NULL. */
const void *cuemu_find_stranger(int device, const void *bytes, size_t size);

/* Lets the addresses of other devices among the bytes lead to NaN: cuemu_settings.broken_peer. */
void cuemu_break_peers(int device, void *bytes, size_t size);
unsigned long cuemu_host_allocations(void);
void cuemu_free_device_memory(int device);

/* ---- hidden.c ---- */

/* False if the device has not so much left. */
bool cuemu_take_hidden(int device, size_t bytes);
void cuemu_give_hidden(int device, size_t bytes);
/* Makes sure that code is on a device; `code` is an address or any other number; `name` is that of
 * a kernel, else NULL. */
bool cuemu_load(int device, const void *code, const char *name);
void cuemu_unload(int device);
/* Whether what the calling thread launches is only to be loaded. */
bool cuemu_only_loads(void);

/* ---- stream.c ---- */

struct cuemu_operation {
  struct cuemu_operation *next;
  int kind; /* enum cuemu_kind, or -1 for what cannot hang */
  cudaError_t (*run)(struct CUstream_st *stream, void *argument); /* NULL: nothing */
  void (*release)(void *argument); /* called once, also when it was never run */
  void *argument;
};

struct CUstream_st {
  struct CUstream_st *next; /* of the device's list */
  int device;
  int references; /* atomic */
  pthread_t worker;
  pthread_mutex_t mutex;
  pthread_cond_t work, idle;
  struct cuemu_operation *head, **tail;
  uint64_t queued, done;
  uint64_t clock; /* nanoseconds of events: see stream.c; the worker's */
  uint64_t wanted; /* operations that the worker may run; see stream.c */
  unsigned patience, chance;
  int waiting; /* for `idle` */
  bool stop;
  unsigned random;
};

/* Queues an operation; NULL is the default stream. Always succeeds. */
void cuemu_enqueue(cudaStream_t stream, int kind, cudaError_t (*run)(cudaStream_t, void *),
                   void (*release)(void *), void *argument);
int cuemu_stream_device(cudaStream_t stream);
/* A thread waits for the stream: its queued work runs now. */
void cuemu_want(cudaStream_t stream);
cudaStream_t cuemu_stream_refer(cudaStream_t stream); /* resolves the default stream */
void cuemu_stream_unrefer(cudaStream_t stream);       /* NULL is none */
void cuemu_drain_device(int device);
void cuemu_close_default_stream(int device);

uint64_t cuemu_nanoseconds(void);

/* ---- cublas_lt.c ---- */

/* A product that is slow by cuemu_set_slow() makes its stream's clock go on. */
bool cuemu_is_slow(unsigned epilogue);
unsigned cuemu_algorithm_time(int algorithm);

/* ---- fault.c ---- */

/* Counts a call; returns the error that it has to fail with, or 0. */
int cuemu_call(int device, enum cuemu_kind kind);
/* Counts an operation that runs now; true if it has to hang. */
bool cuemu_runs_into_hang(int device, enum cuemu_kind kind);
void cuemu_hang_here(void); /* until released */
bool cuemu_hangs_armed(void);
void cuemu_faults_from_environment(void);
void cuemu_add(int what);
void cuemu_add_hanging(int change); /* for hangs that another file waits out */

/* ---- executor: block.c ---- */

/* Runs a grid on the calling thread; the error is sticky. */
cudaError_t cuemu_run_grid(const char *name, void (*body)(void *), void *closure, dim3 grid,
                           dim3 block, size_t shared_bytes);
void cuemu_executor_exit(void); /* before a worker thread ends */

#endif
