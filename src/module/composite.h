/*
 * composite.h - stock layers that are made of other modules.
 */
#ifndef EK_COMPOSITE_H
#define EK_COMPOSITE_H

#include <evenkeel/chain.h>
#include <evenkeel/linear.h>
#include <evenkeel/pass.h>

/* The first member of such a layer's struct. Children are numbered in the order of being added. */
struct ek__composite {
  ek_module base;
  struct ek__child {
    const char *name; /* NULL: its number */
    ek_module *module;
  } * children;
  size_t count, capacity;
  /* Of its chain, constants; NULL and 0: one for each child. */
  const size_t *steps;
  size_t step_count;
  ek_recompute recompute; /* of its chain */
  size_t shared;          /* the same: inputs that do not flow, i32 */
  char *names;            /* of children, where they are not constants */
  bool unit;              /* of mode fully-sharded */
};

/* Takes over the caller's reference to `child`, even if it fails. For a description, before it
 * becomes a module. */
ek_status ek__composite_add(struct ek__composite *m, const char *name, ek_module *child);
/* A new linear. */
ek_status ek__composite_add_linear(struct ek__composite *m, const char *name, int64_t in,
                                   int64_t out, const ek_linear_options *options);

/* Slots of its table. */
ek_status ek__composite_parameters(const ek_module *self, ek_declaration *declaration);
void ek__composite_free(ek_module *self);
/* The declaration of the first child; shared inputs are i32. */
ek_type ek__composite_input_type(const ek_module *self, size_t input);

/* ek__layer_create() of a description whose children were added, or freed if `status` is a failure.
 */
ek_status ek__composite_create(ek_module **module, struct ek__composite *m, size_t size,
                               const ek_module_ops *ops, size_t inputs, size_t outputs,
                               ek_status status);

/* The same as a sequential, which runs them one after the other. In sequential.c. */
ek_status ek__sequential_of(ek_module **module, struct ek__composite *m, ek_status status);

/* EK_ERR_INVALID_ARGUMENT for a policy that a container cannot have. In recompute.c. */
ek_status ek__recompute_check(const char *who, const ek_recompute *recompute);

/* What is left of a policy within the modules that it is about: `cheap`, or nothing. In
 * recompute.c. */
ek_recompute ek__recompute_within(const ek_recompute *recompute);

/* Number `index` of the policies that a search tries, the cheapest first; NULL after the last. In
 * recompute.c. */
const ek_recompute *ek__recompute_by_cost(size_t index);

/* Slots of one whose children run one after the other. */
ek_status ek__composite_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                ek_tensor *outputs);
ek_status ek__composite_backward(const ek_module *self, ek_pass *pass,
                                 const ek_tensor *grad_outputs, ek_tensor *grad_inputs);

/* Runs the child whose outputs become those of the module, or from which alone these are made: if
 * the module's outputs are not read, neither are the child's. */
ek_status ek__last_child_forward(ek_tensor *outputs, ek_pass *pass, size_t child,
                                 const ek_tensor *inputs);

#endif /* EK_COMPOSITE_H */
