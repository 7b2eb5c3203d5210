/*
 * tied_module.h - a module whose child's parameters are tied to its own, own0, own1, ..., of which
 * some are frozen. It knows no Check: programs of tests/fuzz have it, too.
 */
#ifndef TIED_MODULE_H
#define TIED_MODULE_H

#include <stdbool.h>

#include <evenkeel/module.h>

enum { TIED_MOST = 16 };

struct tied_parameters {
  const char *const *names; /* of the child; NULL: all of them, from the first on */
  size_t count;             /* at most TIED_MOST */
  unsigned mask;            /* bit i: number i is frozen; the others are trained */
  /* Own parameters are declared without `frozen`: ek_declare_frozen() freezes them, by turns before
   * the tie, by their name, and by the child's. */
  bool by_path;
};

/* Takes over the child unless it fails; its names begin with "inner." from now on. Shapes are those
 * of a replica on `device`. */
ek_status tied_module_create(ek_module **module, ek_module *child,
                             const struct tied_parameters *tied, ek_device *device);

#endif /* TIED_MODULE_H */
