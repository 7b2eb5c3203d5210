/*
 * loader.h - parts of evenkeel that are libraries of their own ("modules"), loaded when they are
 * first asked for: the CUDA backend, and MPI.
 *
 * A module is not linked with evenkeel, whose functions may be in a shared library or in the
 * program itself: it gets a table of the functions that it needs, and gives a table of its own.
 * Both sides must have the same version, because the tables are not stable.
 */
#ifndef EK_LOADER_H
#define EK_LOADER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include <evenkeel/log.h>
#include <evenkeel/status.h>

struct ek__module_host {
  size_t size;         /* sizeof this struct */
  size_t table_size;   /* of the module's table: a slot more or less on one side shows */
  const char *version; /* EK_VERSION_STRING */
  ek_status (*error_set)(ek_status status, const char *format, ...) EK_PRINTF(2, 3);
  const char *(*error_message)(void);
  void (*log)(ek_log_level level, const char *format, ...) EK_PRINTF(2, 3);
  void *(*calloc)(size_t count, size_t size);
  void (*free)(void *memory);
};

/*
 * The module's only export. Called once; `host` stays as it is. EK_ERR_UNAVAILABLE without a
 * message if the two are not of one version: nothing of the table was used then. With a message: it
 * says why the module cannot be used in this process.
 */
typedef ek_status ek__module_entry(const void **table, const struct ek__module_host *host);

/* A module, in static memory. */
struct ek__loadable {
  const char *name;  /* "cuda", begins messages: "cuda: the CUDA module ..." */
  const char *title; /* "CUDA" */
  const char *file;  /* "libevenkeel_cuda.so" */
  const char *entry; /* "ek_cuda_module" */
  size_t table_size;
  bool global; /* libraries that the module links have plug-ins that need their symbols */
  struct ek__module_host host;
  _Atomic(const void *) table; /* NULL: it is not loaded */
};

/* Loads it at the first call; EK_ERR_UNAVAILABLE says why it cannot be loaded. A failure is not
 * kept: the next call looks again. */
ek_status ek__load(const void **table, struct ek__loadable *module);
/* Whether an earlier call has loaded it. */
bool ek__loaded(const struct ek__loadable *module);

#endif /* EK_LOADER_H */
