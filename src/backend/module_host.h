/*
 * module_host.h - the interface between a backend that is a library of its own and the library that
 * loads it.
 *
 * The module is not linked with evenkeel, whose functions may be in a shared library or in the
 * program itself: it gets a table of the functions that it needs. Both sides must have the same
 * version, because the tables are not stable.
 */
#ifndef EK_MODULE_HOST_H
#define EK_MODULE_HOST_H

#include <evenkeel/log.h>

#include "backend/backend.h"

/* Of the tables that the module gives: a slot more or less on one side shows. */
#define EK__BACKEND_SIZE (sizeof(struct ek__backend) + sizeof(struct ek__kernels))

struct ek__module_host {
  size_t size;         /* sizeof this struct */
  size_t backend_size; /* EK__BACKEND_SIZE */
  const char *version; /* EK_VERSION_STRING */
  ek_status (*error_set)(ek_status status, const char *format, ...) EK_PRINTF(2, 3);
  const char *(*error_message)(void);
  void (*log)(ek_log_level level, const char *format, ...) EK_PRINTF(2, 3);
  void *(*calloc)(size_t count, size_t size);
  void (*free)(void *memory);
};

/*
 * The module's only export. Called once; `host` stays as it is. EK_ERR_UNAVAILABLE without a
 * message if the two are not of one version: nothing of the table was used then.
 */
typedef ek_status ek__module_entry(const struct ek__backend **backend,
                                   const struct ek__module_host *host);
#define EK__CUDA_ENTRY "ek_cuda_module"

#endif /* EK_MODULE_HOST_H */
