/*
 * composite.h - stock layers that are made of other modules.
 */
#ifndef EK_COMPOSITE_H
#define EK_COMPOSITE_H

#include <evenkeel/linear.h>
#include <evenkeel/pass.h>
#include <evenkeel/recompute.h>

/* The first member of such a layer's struct. Children are numbered in the order of being added. */
struct ek__composite {
  ek_module base;
  struct ek__child {
    const char *name; /* NULL: its number */
    ek_module *module;
  } * children;
  size_t count, capacity;
  ek_recompute recompute; /* of its chains */
  char *names;            /* of children, where they are not constants */
  bool unit;              /* of mode fully-sharded */
};

/* Takes over the caller's reference to `child`, also when it fails. Of a description, before it is
 * a module. */
ek_status ek__composite_add(struct ek__composite *m, const char *name, ek_module *child);
/* A new linear. */
ek_status ek__composite_add_linear(struct ek__composite *m, const char *name, int64_t in,
                                   int64_t out, const ek_linear_options *options);

/* Slots of its table. */
ek_status ek__composite_parameters(const ek_module *self, ek_declaration *declaration);
void ek__composite_free(ek_module *self);
/* What the first child declares. */
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

/* Number `index` of the policies that a search tries, the cheapest first; NULL after the last. In
 * recompute.c. */
const ek_recompute *ek__recompute_by_cost(size_t index);

/* Runs the child whose outputs become those of the module, or are all that these are made of: where
 * they are not read, neither are the child's. */
ek_status ek__last_child_forward(ek_tensor *outputs, ek_pass *pass, size_t child,
                                 const ek_tensor *inputs);

/* The child that made the one input of a chain, and from what. */
struct ek__made {
  size_t by;
  const ek_tensor *from;
};

/*
 * Runs children first .. first + count - 1 of the running module `m`, each with the outputs of the
 * one before; count > 0. A result between two of them is freed as soon as the second has run.
 * `made` may be NULL, and is looked at where cheap results are made again. Those up to the last
 * child give what becomes the outputs of `m`: see ek__last_child_forward(). In chain.c.
 */
ek_status ek__chain_forward(const struct ek__composite *m, ek_pass *pass, size_t first,
                            size_t count, const struct ek__made *made, const ek_tensor *inputs,
                            ek_tensor *outputs);

/* The backward of the above; grad_inputs as in the module table. */
ek_status ek__chain_backward(const struct ek__composite *m, ek_pass *pass, size_t first,
                             size_t count, const ek_tensor *grad_outputs, ek_tensor *grad_inputs);

#endif /* EK_COMPOSITE_H */
