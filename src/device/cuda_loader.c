/*
 * cuda_loader.c - loads the CUDA backend, which is a library of its own, when it is first asked
 * for.
 *
 * It is looked for beside this library (or beside the program that this library was linked into),
 * then in the folder of the installation; never in the working directory or in a folder from an
 * environment variable, where another user may write. It stays loaded, because the CUDA libraries
 * cannot be unloaded safely.
 */
#define _GNU_SOURCE /* dladdr1, Dl_info */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <evenkeel/version.h>

#include "backend/module_host.h"
#include "core/alloc.h"
#include "core/error.h"
#include "core/log_internal.h"
#include "device/cuda_loader.h"

#define FILE_NAME "libevenkeel_cuda.so"
#define PATH_SIZE 4096

#ifndef EK_CUDA_MODULE_DIR
#define EK_CUDA_MODULE_DIR "" /* not installed anywhere */
#endif

static const struct ek__module_host host = {.size = sizeof host,
                                            .backend_size = EK__BACKEND_SIZE,
                                            .version = EK_VERSION_STRING,
                                            .error_set = ek_error_set,
                                            .error_message = ek_error_message,
                                            .log = ek__log,
                                            .calloc = ek__calloc,
                                            .free = ek__free};

/* The loaded module. A failure is not kept: the next call looks again. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(const struct ek__backend *) loaded;

/* The file that this function is in; "" if it is not known by a full path. */
static void own_path(char *path, size_t size) {
  Dl_info info;
  struct link_map *map = NULL;
  path[0] = '\0';
  /* The address of an object: ISO C has no pointer to a function as void *. */
  if (dladdr1(&host, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL) return;
  if (map->l_name[0] == '\0') { /* the program itself, known by whatever it was called with */
    const ssize_t length = readlink("/proc/self/exe", path, size - 1);
    path[length > 0 ? length : 0] = '\0';
  } else if (map->l_name[0] == '/') {
    (void)snprintf(path, size, "%s", map->l_name);
  }
}

/* True if the file is there; *path is set either way, "" if the folder is not known. */
static bool beside(char *path, size_t size) {
  own_path(path, size);
  char *slash = strrchr(path, '/');
  const size_t room = slash == NULL ? 0 : size - (size_t)(slash + 1 - path);
  if (room <= strlen(FILE_NAME)) {
    path[0] = '\0';
    return false;
  }
  (void)snprintf(slash + 1, room, "%s", FILE_NAME);
  return access(path, F_OK) == 0;
}

static bool installed(char *path, size_t size) {
  if (EK_CUDA_MODULE_DIR[0] != '/') return false;
  const int length = snprintf(path, size, "%s/%s", EK_CUDA_MODULE_DIR, FILE_NAME);
  return length > 0 && (size_t)length < size && access(path, F_OK) == 0;
}

static ek_status find(char *path, size_t size) {
  if (beside(path, size)) return EK_OK;
  char other[PATH_SIZE];
  if (installed(other, sizeof other)) {
    (void)snprintf(path, size, "%s", other);
    return EK_OK;
  }
  const bool known = EK_CUDA_MODULE_DIR[0] == '/';
  return ek_error_set(EK_ERR_UNAVAILABLE,
                      "cuda: the CUDA module is not installed (no %s beside evenkeel%s%s)",
                      FILE_NAME, known ? " or in " : "", known ? EK_CUDA_MODULE_DIR : "");
}

static ek_status load(const struct ek__backend **backend) {
  char path[PATH_SIZE];
  EK_TRY(find(path, sizeof path));
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *why = dlerror();
    return ek_error_set(EK_ERR_UNAVAILABLE, "cuda: the CUDA module cannot be loaded: %s",
                        why == NULL ? path : why);
  }
  void *symbol = dlsym(library, EK__CUDA_ENTRY);
  ek__module_entry *entry = NULL;
  memcpy(&entry, &symbol, sizeof entry); /* as POSIX has it */
  ek_error_clear();
  EK__FAIL_IF(entry == NULL || entry(backend, &host) != EK_OK, EK_ERR_UNAVAILABLE,
              "cuda: %s is not of this version of evenkeel (%s)", path, EK_VERSION_STRING);
  ek__log(EK_LOG_INFO, "cuda: loaded %s", path);
  return EK_OK;
}

ek_status ek__cuda_backend(const struct ek__backend **backend) {
  const struct ek__backend *found = atomic_load(&loaded);
  if (found == NULL) {
    pthread_mutex_lock(&mutex);
    found = atomic_load(&loaded);
    const ek_status status = found != NULL ? EK_OK : load(&found);
    if (status == EK_OK) atomic_store(&loaded, found);
    pthread_mutex_unlock(&mutex);
    EK_TRY(status);
  }
  *backend = found;
  return EK_OK;
}

bool ek__cuda_loaded(void) { return atomic_load(&loaded) != NULL; }
