/*
 * cuda_nccl_library.c - finds NCCL when it is first asked for.
 *
 * By its name alone, where the system's loader looks and in NCCL's folder at the time of the build
 * (RUNPATH); never in the working directory. It stays loaded. A failure is not kept: NCCL may be
 * installed before the next call.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"

#ifdef EK_CUDA_HAVE_NCCL

#include "backend/cuda/cuda_nccl_library.h"

/* A build over a stand-in says another name. */
#ifndef EK__CUDA_NCCL_LIBRARY
#define EK__CUDA_NCCL_LIBRARY "libnccl.so.2"
#endif

/* 2.23.4: every call for a communicator that does not block returns at once. Before, a collective
 * was launched within the call, which may wait for the GPU with the member's mutex held; then the
 * watch could not abort the communicator. */
enum { LEAST_VERSION = 22304 };

struct ek__nccl ek__nccl;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;
static _Thread_local char why[256];

/* NULL, or what is missing. */
static const char *load(void) {
  void *library = dlopen(EK__CUDA_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *reason = dlerror();
    (void)snprintf(why, sizeof why, "NCCL is not installed (%s)",
                   reason == NULL ? EK__CUDA_NCCL_LIBRARY : reason);
    return why;
  }
  const struct {
    const char *name;
    void *pointer; /* to a pointer to a function */
  } functions[] = {
#define ENTRY(name) {"nccl" #name, &ek__nccl.name},
      EK__NCCL_LIST(ENTRY)};
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    void *symbol = dlsym(library, functions[i].name);
    if (symbol == NULL) {
      (void)snprintf(why, sizeof why, "the installed NCCL does not have %s", functions[i].name);
      return why;
    }
    memcpy(functions[i].pointer, &symbol, sizeof symbol); /* as POSIX has it */
  }
  return NULL;
}

/* Of its header and of its library, both sides have one major version. */
static const char *check_version(void) {
  int version = 0;
  const ncclResult_t result = ek__nccl.GetVersion(&version);
  const bool new = version >= 10000; /* 2.9 was the first with two digits for the second number */
  const int major = version / (new ? 10000 : 1000), minor = version / 100 % (new ? 100 : 10);
  if (result == ncclSuccess && version >= LEAST_VERSION && major == NCCL_MAJOR) return NULL;
  (void)snprintf(why, sizeof why,
                 "NCCL %d.%d.%d is installed; this build needs %d.x, %d.%d.%d or newer", major,
                 minor, version % 100, NCCL_MAJOR, LEAST_VERSION / 10000, LEAST_VERSION / 100 % 100,
                 LEAST_VERSION % 100);
  return why;
}

const char *ek__cuda_nccl_missing(void) {
  pthread_mutex_lock(&mutex);
  const char *missing = loaded ? NULL : load();
  loaded = missing == NULL;
  if (loaded) missing = check_version();
  pthread_mutex_unlock(&mutex);
  return missing;
}

#else

const char *ek__cuda_nccl_missing(void) { return "evenkeel was built without NCCL"; }

#endif
