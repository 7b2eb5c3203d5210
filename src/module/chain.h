/*
 * chain.h - children one after the other: what a sequential, a GPT and its blocks are.
 */
#ifndef EK_CHAIN_H
#define EK_CHAIN_H

#include <evenkeel/pass.h>

/*
 * Runs children first .. first + count - 1, which are `modules`, each with the outputs of the one
 * before; count > 0. A result between two of them is freed as soon as the second has run.
 */
ek_status ek__chain_forward(ek_pass *pass, size_t first, ek_module *const *modules, size_t count,
                            const ek_tensor *inputs, ek_tensor *outputs);

/* The backward of the above; grad_inputs as in the module table. */
ek_status ek__chain_backward(ek_pass *pass, size_t first, ek_module *const *modules, size_t count,
                             const ek_tensor *grad_outputs, ek_tensor *grad_inputs);

#endif /* EK_CHAIN_H */
