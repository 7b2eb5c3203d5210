/*
 * names.h - full names of a layout's parameters and modules, found by a hash table.
 */
#ifndef EK_NAMES_H
#define EK_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include <evenkeel/status.h>

struct ek__name {
  char *name; /* NULL: nothing is here */
  size_t value;
};

struct ek__names { /* all zero: empty */
  struct ek__name *places;
  size_t count, capacity; /* a power of two, or 0; at least half of it is empty */
};

/* *kept becomes a copy of the name, which may not be there yet; it stays where it is until the
 * names are closed. */
ek_status ek__names_add(const char **kept, struct ek__names *names, const char *name, size_t value);
/* NULL if it is not there. */
struct ek__name *ek__names_find(const struct ek__names *names, const char *name);
void ek__names_close(struct ek__names *names);

#endif /* EK_NAMES_H */
