/*
 * cpu_onednn.c - the border to oneDNN: every call that computes, or prepares a computation, is made
 * from here. Three rules hold during such a call.
 *
 * Exceptions end at the border (cpu_onednn_catch.cc). oneDNN (2.6) throws std::bad_alloc if it gets
 * no memory, in C functions too, and in a C program that would end the process.
 *
 * No signal handler runs on the thread. dnnl_sgemm() (2.6) of few rows keeps data further below the
 * stack pointer than the 128 bytes that the kernel spares when it puts a handler's frame there: the
 * frame overwrites a part of the product, and the heap. The library's own threads block signals for
 * life (core/thread.h); a thread of the program that calls an operation blocks them here, which
 * costs two system calls (docs/results/2026-11-23-signals.md), and gets pending signals when the
 * call returns. Threads started by oneDNN or its OpenMP runtime inherit the mask.
 *
 * OpenMP has one thread. oneDNN asks OpenMP for the number of threads to use, which OpenMP keeps
 * per calling thread. The library has its own threads, so the number must be 1 during a product,
 * and is restored afterwards. The OpenMP runtime is the one that oneDNN was linked with (libgomp,
 * libomp), if any; it is found by name at run time, so that the library does not depend on it. When
 * a thread sets a number for the first time, libgomp allocates a few hundred bytes, and ends the
 * process if that fails. So the thread first requests more than that.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "backend/cpu/cpu_onednn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include <oneapi/dnnl/dnnl_types.h>

#include "core/alloc.h"
#include "core/thread.h"

static pthread_once_t looked = PTHREAD_ONCE_INIT;
static int (*get_max_threads)(void);
static void (*set_num_threads)(int);

static void look(void) {
  void *get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
  void *set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
  if (!get || !set) return;
  /* C has no cast from an object's address to a function's; POSIX promises that this works. */
  memcpy(&get_max_threads, &get, sizeof get);
  memcpy(&set_num_threads, &set, sizeof set);
}

/* *before is what is to be restored. */
static ek_status take_one_thread(int *before) {
  static _Thread_local bool known; /* to OpenMP: this thread */
  pthread_once(&looked, look);
  *before = set_num_threads ? get_max_threads() : 1;
  if (*before == 1) return EK_OK;
  if (!known) {
    void *probe = NULL;
    EK_TRY(ek__new(&probe, 1, 4096, "a matrix product"));
    ek__free(probe);
    known = true;
  }
  set_num_threads(1);
  return EK_OK;
}

ek_status ek__cpu_onednn(int *result, ek__onednn_function *function, void *arg) {
  int threads = 1;
  struct ek__thread_signals signals;
  EK_TRY(take_one_thread(&threads));
  ek__thread_block(&signals);
  *result = ek__cpu_onednn_catch(function, arg, dnnl_out_of_memory, dnnl_runtime_error);
  ek__thread_unblock(&signals);
  if (threads != 1) set_num_threads(threads);
  return EK_OK;
}
