/*
 * chain.h - a module's children one after the other, with residual connections and gates: what
 * containers of one path are made of.
 *
 * A module with children describes such a path once, and runs it in its forward and its backward.
 * The block of a decoder, y = s + contract(gelu(expand(ln_2(s)))) with s = x + attention(ln_1(x)):
 *
 *     enum { LN_1, ATTENTION, LN_2, EXPAND, GELU, CONTRACT };   // in the order of declaration
 *     static const size_t path[] = {LN_1, ATTENTION, EK_CHAIN_ADD,
 *                                   LN_2, EXPAND, GELU, CONTRACT, EK_CHAIN_ADD};
 *
 *     static ek_status forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
 *                              ek_tensor *outputs) {
 *       ek_chain chain = EK_CHAIN_INIT;
 *       (void)self;
 *       chain.steps = path;
 *       chain.count = sizeof path / sizeof *path;
 *       chain.unread = !ek_pass_wants_outputs(pass);
 *       return ek_chain_forward(outputs, pass, inputs, &chain);
 *     }
 *
 * and backward likewise, with ek_chain_backward(). A feed-forward layer with a gate, y =
 * down(silu(gate(x)) * up(x)), is the path
 *
 *     {GATE, EK_CHAIN_ACTIVATION(EK_ACTIVATION_SILU), EK_CHAIN_MULTIPLY_CHILD(UP), DOWN}
 *
 * Names, parameters, gradients and bits are as if the children ran one by one. What children
 * compute they declare (ek_formula in module.h), and some neighbours run in one go, for less memory
 * and less traffic:
 *
 *     forward    a linear and the GELU after it (ek_op_linear_gelu in products.h)
 *                an activation and the product of its gate (ek_op_gate_forward in elementwise.h)
 *                an addition and the layer norm or RMSNorm after it (ek_op_add_layer_norm_forward),
 *                also where the addition ends one child and the norm begins the next, if the tables
 *                of both say that they are chains (`chain` in module.h)
 *                ReLU and others whose backward needs their result, over what the step before gave
 *     backward   a linear, and the GELU between it and another linear (ek_op_gelu_linear_backward)
 *                the product of a gate and its activation (ek_op_gate_backward)
 *                ReLU and the others, over the gradient of their result
 *                a layer norm or RMSNorm, and the sum with the gradient that reaches its input past
 *                it (ek_op_layer_norm_backward)
 *
 * Neither function of a child that takes part is called. A result is freed as soon as the next step
 * has run, unless a child saved it or an addition needs it.
 */
#ifndef EVENKEEL_CHAIN_H
#define EVENKEEL_CHAIN_H

#include <stdint.h>

#include <evenkeel/recompute.h>

EK_BEGIN_DECLARATIONS

/* A step that is no child: this activation. Its result is kept with EK_RECOMPUTE_CHEAP, too, except
 * that of one whose backward needs its result (ek_activation_keeps_result()) after a cheap
 * child. */
#define EK_CHAIN_ACTIVATION(activation) (SIZE_MAX - SIZE_MAX / 4 + (size_t)(activation))

/*
 * Steps that end a branch. A branch begins with the chain, and after each of these; its input also
 * flows past its steps, on the shortcut. With x the branch's input and s the result of its steps,
 * which must be one tensor of the type and shape of what it meets (else EK_ERR_SHAPE), the step
 * gives
 *
 *     EK_CHAIN_ADD                      s + x          a residual connection
 *     EK_CHAIN_ADD_CHILD(child)         s + child(x)   one with a projection
 *     EK_CHAIN_MULTIPLY_CHILD(child)    s * child(x)   a gate
 *
 * The child has one input and one output, and runs after the branch's steps.
 */
#define EK_CHAIN_ADD SIZE_MAX
#define EK_CHAIN_ADD_CHILD(child) (SIZE_MAX / 2 + 1 + (child))
#define EK_CHAIN_MULTIPLY_CHILD(child) (SIZE_MAX / 4 + 1 + (child))

typedef struct ek_chain {
  size_t size;
  /* Numbers of children of the running module, in the order of their declaration, or one of the
   * steps above; NULL, with `count` 0: all children in that order. */
  const size_t *steps;
  size_t count;
  /* Where a backward follows. A segment begins at a child, and not within a branch.
   * EK_RECOMPUTE_BYTES is EK_ERR_INVALID_ARGUMENT. */
  ek_recompute recompute;
  bool unread; /* in forward: the outputs are not read (ek_child_options.unread) */
  /* Of the module's inputs the last ones, which do not flow: each child that takes 1 + shared
   * inputs gets them after the tensor that flows, which then is one everywhere. They are of integer
   * types, and have no gradient. */
  size_t shared;
} ek_chain;
#define EK_CHAIN_INIT                                                                              \
  {                                                                                                \
    .size = sizeof(ek_chain), .steps = NULL, .count = 0, .recompute = {EK_RECOMPUTE_NONE, 0, 0},   \
    .unread = false, .shared = 0                                                                   \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_chain_init(ek_chain *chain, size_t size);

/*
 * In a module's forward: runs the steps; `chain` NULL gives the defaults. `inputs` are those of the
 * first child, followed by the shared ones if it does not take them; `outputs` those of the last,
 * which become the caller's; on failure they stay as they were. Each child has the number of inputs
 * that the step before gives, EK_MAX_TENSORS at most: else EK_ERR_INVALID_ARGUMENT, as for a child
 * that does not exist. A shared input that is not of an integer type is EK_ERR_TYPE.
 */
EK_API EK_CHECKED ek_status ek_chain_forward(ek_tensor *outputs, ek_pass *pass,
                                             const ek_tensor *inputs, const ek_chain *chain);

/*
 * In its backward, with the same chain: the gradients of the first child's inputs, which become the
 * caller's; grad_inputs NULL: they are not wanted. As ek_pass_child_backward(), it comes when all
 * that was saved after ek_chain_forward() has been taken back.
 */
EK_API EK_CHECKED ek_status ek_chain_backward(ek_tensor *grad_inputs, ek_pass *pass,
                                              const ek_tensor *grad_outputs,
                                              const ek_chain *chain);

EK_END_DECLARATIONS

#endif /* EVENKEEL_CHAIN_H */
