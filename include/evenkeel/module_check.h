/*
 * module_check.h - whether a module of your own does what a module must.
 *
 * One call runs the module on a group that it opens with `debug_memory` (device.h), on devices that
 * only count, and with inputs of its own making, and compares. To be used in the tests of a
 * program, before the module is trained:
 *
 *     const ek_check_input x = {.rank = 2, .shape = {6, IN}, .low = -1, .high = 1};
 *     EK_TRY(ek_module_check(module, "cpu:2", &x, 1, NULL));
 *
 * What is checked, in this order, each by its name in messages and reports:
 *
 *     start         initial values are finite and the same on all devices
 *     repeat        two forwards and backwards give the same bits; all results are finite: neither
 *                   undefined memory nor the old content of a gradient reaches them; inputs,
 *                   gradients of outputs and parameters are left as they were
 *     grad_inputs   gradients of parameters are the same where no gradient of inputs is wanted
 *     complete      a gradient is said to be complete once at most, and does not change afterwards
 *     accumulate    a second backward adds: gradients are twice those of one
 *     evaluation    outputs are the same in a pass without gradient; and in evaluation, if the
 *                   module draws no random numbers and has no buffers
 *     differences   gradients of parameters and inputs against differences of the outputs
 *     types         f32 gives what f64 gives, if the module computes in both; and bf16 and f16 what
 *                   that gives, to what rounding may do, where its table and the devices have them
 *     rows          one row runs. No rows: outputs without rows and gradients of zero, or an error
 *     devices       rows cut over all devices of the string give what one device gives
 *     memory        nothing is held that should not be, also when any allocation fails, and forward
 *                   keeps for backward what the options say
 *     plan          devices that only count take the same memory, allocation for allocation
 *
 * Memory beside tensors is guarded in all of them: EK_ERR_OVERRUN.
 *
 * All except "types" run in f64 if the module computes in it (ek_module_ops.types), else in f32. In
 * 16 bits the same code runs with rounded numbers, from which differences show nothing.
 * docs/numerics.md derives the tolerances.
 *
 * The checker is a library of its own, evenkeel_check, which programs that only train do not need.
 * It is the CMake target evenkeel_check, or evenkeel_check_static, in the namespace of the others;
 * pkg-config knows it as evenkeel_check.
 */
#ifndef EVENKEEL_MODULE_CHECK_H
#define EVENKEEL_MODULE_CHECK_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

/* X(identifier, name) in the order in which they run. */
#define EK_CHECK_LIST(X)                                                                           \
  X(EK_CHECK_START, "start")                                                                       \
  X(EK_CHECK_REPEAT, "repeat")                                                                     \
  X(EK_CHECK_GRAD_INPUTS, "grad_inputs")                                                           \
  X(EK_CHECK_COMPLETE, "complete")                                                                 \
  X(EK_CHECK_ACCUMULATE, "accumulate")                                                             \
  X(EK_CHECK_EVALUATION, "evaluation")                                                             \
  X(EK_CHECK_DIFFERENCES, "differences")                                                           \
  X(EK_CHECK_TYPES, "types")                                                                       \
  X(EK_CHECK_ROWS, "rows")                                                                         \
  X(EK_CHECK_DEVICES, "devices")                                                                   \
  X(EK_CHECK_MEMORY, "memory")                                                                     \
  X(EK_CHECK_PLAN, "plan")

typedef enum ek_check {
#define EK_CHECK_ENUM(identifier, name) identifier,
  EK_CHECK_LIST(EK_CHECK_ENUM)
#undef EK_CHECK_ENUM
      EK_CHECKS /* how many there are */
} ek_check;

/* One input: random numbers from low .. high, whole ones (both ends included) if it is of EK_I32.
 * The rows of all inputs that are cut are multiples of those of the first one. */
typedef struct ek_check_input {
  ek_type type; /* EK_I32; 0: floating, of the type that is checked */
  int rank;
  int64_t shape[EK_MAX_RANK];
  double low, high;
  double gap;     /* no value is nearer to zero: for functions with an edge there, such as ReLU */
  bool broadcast; /* goes whole to every device */
} ek_check_input;

/* Called after each check that has passed, with the largest error as a part of what was allowed (0:
 * equal). */
typedef void (*ek_check_function)(void *context, ek_check check, double error);

typedef struct ek_module_check_options {
  size_t size;
  uint64_t seed;
  double low, high;  /* of parameters; equal: they keep their initial values */
  int64_t probes;    /* elements of a tensor that differences look at; 0: all */
  int64_t longest;   /* terms of the longest sum that the module computes, */
  int depth;         /* and operations one after the other: for what rounding may do */
  unsigned left_out; /* checks that do not run: bit EK_CHECK_DEVICES for a module that mixes rows */
  ek_check_function report; /* may be NULL */
  void *context;
  int64_t saved; /* bytes that forward keeps for backward in f32 in addition to its inputs, as the
                    ledger counts them, where outputs and gradients then hold no more than their own
                    size; below 0: any numbers */
} ek_module_check_options;
#define EK_MODULE_CHECK_OPTIONS_INIT                                                               \
  {                                                                                                \
    .size = sizeof(ek_module_check_options), .seed = 1, .low = -0.7, .high = 0.7, .probes = 64,    \
    .longest = 1000, .depth = 10, .left_out = 0, .report = NULL, .context = NULL, .saved = -1      \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_module_check_options_init(ek_module_check_options *options,
                                                         size_t size);

/* "differences"; "unknown" outside of the list. */
EK_API const char *ek_check_name(ek_check check);

/*
 * Runs the checks and stops at the first that finds something: EK_ERR_MISMATCH with a sentence that
 * says which, where and what (parameter or tensor, element, both values), or the error of a
 * function of the module. `devices` is a string as for ek_group_open(), of devices that nothing
 * else uses. `inputs` has ek_module_inputs(module) elements.
 */
EK_API EK_CHECKED ek_status ek_module_check(ek_module *module, const char *devices,
                                            const ek_check_input *inputs, size_t count,
                                            const ek_module_check_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_MODULE_CHECK_H */
