/*
 * ck_probe.h - a module that runs functions of a test inside a pass.
 *
 * Its output is its input and its grad_input is its grad_output. It has the parameters a [2] and
 * b [2], which start with ones, and the buffer c [2], which starts with sevens.
 */
#ifndef CK_PROBE_H
#define CK_PROBE_H

#include "ek_check.h"

struct ck_probe_module {
  ek_module base;
  ek_status (*forward)(ek_pass *pass, const ek_tensor *x);
  ek_status (*backward)(ek_pass *pass, const ek_tensor *dy);
};

/* The module on a device, a pass that has not run yet, and tensors for it: x [1, 2] is {3, 4}. */
struct ck_probe {
  ek_group *group;
  ek_device *device;
  struct ck_probe_module *probe;
  ek_replica *replica;
  ek_pass *pass;
  ek_tensor x, y, dx;
};

/* Either function may be NULL: nothing is run. All of it is kept (ck_keep.h). */
struct ck_probe *ck_probe_open(ek_status (*forward)(ek_pass *pass, const ek_tensor *x),
                               ek_status (*backward)(ek_pass *pass, const ek_tensor *dy));
/* Opens the pass once more, with these options. */
void ck_probe_pass(struct ck_probe *probe, const ek_pass_options *options);

#endif /* CK_PROBE_H */
