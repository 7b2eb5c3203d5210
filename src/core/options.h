/*
 * options.h - the one rule for structs whose first member is their size (status.h tells it).
 */
#ifndef EK_OPTIONS_H
#define EK_OPTIONS_H

#include <stddef.h>

#include <evenkeel/status.h>

/*
 * Copies a program's struct over `local`, which has `size` bytes and holds the defaults. What an
 * older program's smaller struct lacks keeps its default, and local's own size stays. `given` NULL:
 * all defaults. `name` is the struct's, for the message.
 */
ek_status ek__options_read(void *local, size_t size, const void *given, const char *name);

/* Copies the defaults, of `whole` bytes, over a program's struct of `size` bytes, and states that
 * size. EK_ERR_INVALID_ARGUMENT for a size that ek__options_read() would refuse. */
ek_status ek__options_init(void *options, size_t size, const void *defaults, size_t whole,
                           const char *name);

/* Defines NAME_init() of a public header, which gives what the macro INIT gives. */
#define EK__OPTIONS_INIT(name, INIT)                                                               \
  ek_status name##_init(name *options, size_t size) {                                              \
    static const name defaults = INIT;                                                             \
    return ek__options_init(options, size, &defaults, sizeof defaults, #name);                     \
  }

/* EK_ERR_INVALID_ARGUMENT "WHO: NAME is .., expected a number >= 0" for any other value. */
ek_status ek__check_number(const char *who, const char *name, double value);

/* EK_ERR_INVALID_ARGUMENT "KIND: a OF has LEAST to MOST WHAT" for a count outside of them. */
ek_status ek__check_count(const char *of, const char *kind, const char *what, size_t count,
                          size_t least, size_t most);

/* The slot of a program's table, or 0: an older table may end before it. */
#define EK__TABLE_SLOT(table, slot)                                                                \
  ((size_t)((const char *)(&(table)->slot + 1) - (const char *)(table)) > (table)->size            \
       ? 0                                                                                         \
       : (table)->slot)

#endif /* EK_OPTIONS_H */
