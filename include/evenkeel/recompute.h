/*
 * recompute.h - activations for the price of a second forward.
 *
 * A recomputed module keeps its inputs and nothing else. Its backward runs its forward again,
 * saving, and then its backward (Chen et al. 2016, "Training deep nets with sublinear memory
 * cost"). Training is the same bit for bit: the same operations run on the same numbers, random
 * masks are functions of seed, step, module and sample, and a module that counts batches asks
 * ek_pass_is_recomputing(). (CHEAP needs a deterministic group for that on CUDA, where a GELU that
 * is not made again may be part of the product before it.) The cost is one more forward of the
 * recomputed modules, except for their last product, whose result is not needed again: a third of
 * the products of a GPT's block.
 *
 * A module of your own can do the same: it needs ek_declare_wrapped(),
 * ek_pass_child_forward_with() and ek_pass_save() (docs/own-model.md).
 */
#ifndef EVENKEEL_RECOMPUTE_H
#define EVENKEEL_RECOMPUTE_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

/*
 * What a container that runs modules one after the other recomputes (sequential.h, gpt.h, chain.h).
 * n is the number of modules; those that run in one go, such as a linear and the GELU after it,
 * stay together.
 *
 *   kind   text      keeps                             runs again
 *   NONE   none      what its modules save             nothing
 *   EVERY  every=K   the inputs of every K-th module   each module once
 *   SQRT   sqrt      as every=ceil(sqrt(n))            each module once
 *   ALL    all       the inputs of the first module    module i n - i times: quadratic work, memory
 *                                                      that does not grow with n
 *   CHEAP  cheap     all but results of norms, of      these, without a product or a collective
 *                    activations that need no product,
 *                    and of a ReLU after a norm
 *   BYTES  64MiB     what a plan finds: ek_recompute_plan()
 *
 * A segment of EVERY, SQRT and ALL holds all that its modules save while its own backward runs.
 */
typedef enum ek_recompute_kind {
  EK_RECOMPUTE_NONE = 0,
  EK_RECOMPUTE_EVERY = 1,
  EK_RECOMPUTE_SQRT = 2,
  EK_RECOMPUTE_ALL = 3,
  EK_RECOMPUTE_CHEAP = 4,
  EK_RECOMPUTE_BYTES = 5
} ek_recompute_kind;

typedef struct ek_recompute {
  ek_recompute_kind kind;
  int64_t every;  /* of EVERY: 1 or more */
  uint64_t bytes; /* of BYTES: sizes as in device.h */
} ek_recompute;

/* Reads a policy from its text. EK_ERR_INVALID_ARGUMENT says what is wrong with it. */
EK_API EK_CHECKED ek_status ek_recompute_parse(ek_recompute *recompute, const char *text);

/* Writes its text, BYTES as a number of bytes, and returns `text`. */
#define EK_RECOMPUTE_TEXT 32
EK_API const char *ek_recompute_format(char text[EK_RECOMPUTE_TEXT], const ek_recompute *recompute);

/*
 * Finds the peak of the fullest device with this policy, such as by a step of the same model on
 * `plan` devices (device.h). Returns EK_ERR_OUT_OF_MEMORY if it does not fit; other errors end the
 * search.
 */
typedef ek_status (*ek_recompute_peak)(void *context, const ek_recompute *recompute,
                                       uint64_t *peak);

/*
 * Finds the cheapest policy whose peak is not above `bytes`: none, cheap, then one more forward
 * (every=1, 2, 3, 4, sqrt: the first that fits), then all. *peak, which may be NULL, becomes its
 * peak.
 * EK_ERR_OUT_OF_MEMORY  none fits; the message says which comes nearest, and its peak. *recompute
 *                       is that one then
 */
EK_API EK_CHECKED ek_status ek_recompute_plan(ek_recompute *recompute, uint64_t *peak,
                                              uint64_t bytes, ek_recompute_peak plan,
                                              void *context);

/*
 * A module that recomputes `inner` in backward and stands in for it: names, initial values and
 * random numbers are those of `inner`, which may itself be recomputed or hold modules that are. It
 * keeps a reference. Inputs may be integers or targets, outputs may be integers. Without a backward
 * it does what `inner` does.
 *
 * A module that declares `collective` runs its collectives again, on all devices in the same order,
 * with the sums of the first time. A linear or an activation keeps only its input anyway, and a
 * chain runs it as if it were not wrapped (ek_module_formula()).
 *
 * An error of the second forward says "forward again" instead of "forward".
 *
 * EK_ERR_INVALID_ARGUMENT  `inner` is NULL, no module, or a criterion: recompute the model before
 *                          it instead
 */
EK_API EK_CHECKED ek_status ek_recompute_create(ek_module **module, ek_module *inner);

EK_END_DECLARATIONS

#endif /* EVENKEEL_RECOMPUTE_H */
