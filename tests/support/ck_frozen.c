/*
 * ck_frozen.c - see ck_frozen.h.
 */
#include "ck_frozen.h"

#include "tied_module.h"

static ek_module *create(ek_module *child, const struct tied_parameters *tied) {
  CK_HELD(ek_group *, group, ck_open_exactly("plan:1", 1));
  CK_GOT(ek_module *, module, tied_module_create(&module, child, tied, ek_group_device(group, 0)));
  return module;
}

ek_module *ck_frozen_create(ek_module *child, const char *const *names, size_t count,
                            unsigned mask) {
  return create(child, &(struct tied_parameters){names, count, mask, false});
}

ek_module *ck_frozen_by_path(ek_module *child, const char *const *names, size_t count,
                             unsigned mask) {
  return create(child, &(struct tied_parameters){names, count, mask, true});
}
