/*
 * ck_parent.h - what modules of a test's own have in common that run others: they own their
 * children, which are freed with them.
 *
 *     CK_FORWARD(twice) {...}                      of the children 0 and 1
 *     CK_PARENT_OPS(pair, .parameters = ...);      pair_ops, freed by ck_parent_free()
 *     struct ck_parent *m = ck_parent_new(sizeof *m, &pair_ops, child);
 *
 * A struct with more members begins with a struct ck_parent.
 */
#ifndef CK_PARENT_H
#define CK_PARENT_H

#include "ek_check.h"

enum { CK_CHILDREN = 6 };
struct ck_parent {
  ek_module base;
  ek_module *children[CK_CHILDREN]; /* NULL after the last */
};

/* A parent of `child` with its inputs and outputs, whose reference it takes over. Others follow by
 * hand. */
void *ck_parent_new(size_t size, const ek_module_ops *ops, ek_module *child);
void ck_parent_free(ek_module *self);
ek_module *ck_child(const ek_module *self, size_t number);

/* Functions for the table: child 0 is wrapped, runs alone, or is followed by child 1. */
ek_status ck_parent_wraps(const ek_module *self, ek_declaration *declaration);
ek_status ck_parent_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                            ek_tensor *outputs);
ek_status ck_parent_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                             ek_tensor *grad_inputs);

#define CK_PARENT_OPS(noun, ...)                                                                   \
  static const ek_module_ops noun##_ops = {                                                        \
      CK_OPS(#noun, noun##_forward, noun##_backward, ck_parent_free), __VA_ARGS__}

#endif /* CK_PARENT_H */
