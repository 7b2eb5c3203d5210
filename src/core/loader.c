/*
 * loader.c - finds and loads modules.
 *
 * A module is looked for beside this library (or beside the program that this library was linked
 * into), then in the folder of the installation; never in the working directory or in a folder from
 * an environment variable, where another user may write. It stays loaded, because the CUDA and MPI
 * libraries cannot be unloaded safely.
 */
#define _GNU_SOURCE /* dladdr1, Dl_info */
#include "core/loader.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <evenkeel/version.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/log_internal.h"

#define PATH_SIZE 4096

#ifndef EK_MODULE_DIR
#define EK_MODULE_DIR "" /* not installed anywhere */
#endif

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* The file that this function is in; "" if it is not known by a full path. */
static void own_path(char *path, size_t size) {
  Dl_info info;
  struct link_map *map = NULL;
  path[0] = '\0';
  /* The address of an object: ISO C has no pointer to a function as void *. */
  if (dladdr1(&mutex, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL) return;
  if (map->l_name[0] == '\0') { /* the program itself, known by whatever it was called with */
    const ssize_t length = readlink("/proc/self/exe", path, size - 1);
    path[length > 0 ? length : 0] = '\0';
  } else if (map->l_name[0] == '/') {
    (void)snprintf(path, size, "%s", map->l_name);
  }
}

/* True if the file is there; *path is set either way, "" if the folder is not known. */
static bool beside(const char *file, char *path, size_t size) {
  own_path(path, size);
  char *slash = strrchr(path, '/');
  const size_t room = slash == NULL ? 0 : size - (size_t)(slash + 1 - path);
  if (room <= strlen(file)) {
    path[0] = '\0';
    return false;
  }
  (void)snprintf(slash + 1, room, "%s", file);
  return access(path, F_OK) == 0;
}

static bool installed(const char *file, char *path, size_t size) {
  if (EK_MODULE_DIR[0] != '/') return false;
  const int length = snprintf(path, size, "%s/%s", EK_MODULE_DIR, file);
  return length > 0 && (size_t)length < size && access(path, F_OK) == 0;
}

static ek_status find(const struct ek__loadable *module, char *path, size_t size) {
  if (beside(module->file, path, size)) return EK_OK;
  char other[PATH_SIZE];
  if (installed(module->file, other, sizeof other)) {
    (void)snprintf(path, size, "%s", other);
    return EK_OK;
  }
  const bool known = EK_MODULE_DIR[0] == '/';
  return ek_error_set(EK_ERR_UNAVAILABLE,
                      "%s: the %s module is not installed (no %s beside evenkeel%s%s)",
                      module->name, module->title, module->file, known ? " or in " : "",
                      known ? EK_MODULE_DIR : "");
}

static ek_status load(const void **table, struct ek__loadable *module) {
  char path[PATH_SIZE];
  EK_TRY(find(module, path, sizeof path));
  void *library = dlopen(path, RTLD_NOW | (module->global ? RTLD_GLOBAL : RTLD_LOCAL));
  if (library == NULL) {
    const char *why = dlerror();
    return ek_error_set(EK_ERR_UNAVAILABLE, "%s: the %s module cannot be loaded: %s", module->name,
                        module->title, why == NULL ? path : why);
  }
  module->host = (struct ek__module_host){.size = sizeof module->host,
                                          .table_size = module->table_size,
                                          .version = EK_VERSION_STRING,
                                          .error_set = ek_error_set,
                                          .error_message = ek_error_message,
                                          .log = ek__log,
                                          .calloc = ek__calloc,
                                          .free = ek__free};
  void *symbol = dlsym(library, module->entry);
  ek__module_entry *entry = NULL;
  memcpy(&entry, &symbol, sizeof entry); /* as POSIX has it */
  ek_error_clear();
  const ek_status status =
      entry == NULL ? EK_ERR_UNAVAILABLE : entry(table, &module->host);
  EK__FAIL_IF(status != EK_OK && ek_error_message()[0] == '\0', EK_ERR_UNAVAILABLE,
              "%s: %s is not of this version of evenkeel (%s)", module->name, path,
              EK_VERSION_STRING);
  if (status == EK_OK) ek__log(EK_LOG_INFO, "%s: loaded %s", module->name, path);
  return status;
}

ek_status ek__load(const void **table, struct ek__loadable *module) {
  const void *found = atomic_load(&module->table);
  if (found == NULL) {
    pthread_mutex_lock(&mutex);
    found = atomic_load(&module->table);
    const ek_status status = found != NULL ? EK_OK : load(&found, module);
    if (status == EK_OK) atomic_store(&module->table, found);
    pthread_mutex_unlock(&mutex);
    EK_TRY(status);
  }
  *table = found;
  return EK_OK;
}

bool ek__loaded(const struct ek__loadable *module) { return atomic_load(&module->table) != NULL; }
