/*
 * cpu_openmp.c - keeps the matrix library single-threaded on the calling thread.
 *
 * oneDNN asks OpenMP how many threads to use, and OpenMP keeps that number per calling thread. We
 * bring our own threads, so the number must be 1 during a product, and what it was afterwards: the
 * thread may be the program's own. The OpenMP runtime is the one that oneDNN was linked with
 * (libgomp, libomp), or none; it is found by name at run time, so that the library depends on none.
 *
 * For the first number that a thread sets, libgomp takes some hundred bytes, and ends the process
 * where it gets none. So the thread asks for more than that first.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "backend/cpu/cpu_internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "core/alloc.h"

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

ek_status ek__cpu_openmp_single(int *before) {
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

void ek__cpu_openmp_restore(int before) {
  if (before != 1) set_num_threads(before);
}
