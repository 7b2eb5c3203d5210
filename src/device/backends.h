/*
 * backends.h - the backends that a device string may name.
 */
#ifndef EK_BACKENDS_H
#define EK_BACKENDS_H

#include "backend/backend.h"

struct ek__backend_name {
  const char *name;
  const struct ek__backend *backend; /* NULL: a library of its own, loaded when it is asked for */
  bool numbered;                     /* the string says which devices, not how many */
  bool listed;                       /* ek_device_list() describes it, and messages name it */
};

/* The row of a name of `length` letters, NULL: no backend has it. */
const struct ek__backend_name *ek__backend_named(const char *name, size_t length);

/* The backend of a row; EK_ERR_UNAVAILABLE says why it cannot be loaded. */
ek_status ek__backend_load(const struct ek__backend **backend, const struct ek__backend_name *row);

/* "cpu, plan, cuda" */
const char *ek__backend_names(char *buffer, size_t size);

#endif /* EK_BACKENDS_H */
