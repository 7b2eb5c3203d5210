/*
 * ck_module.h - what must hold for every module, whatever it computes.
 *
 * A check program describes its modules as cases and gets the same tests for each of them:
 *
 *     static const struct ck_module_case cases[] = {
 *         CK_CASE("3 -> 2", create_small, 4, 1, 0, {0, 2, {4, 3}, -1, 1}),
 *     };
 *     CK_MODULE_CASES(cases)
 */
#ifndef CK_MODULE_H
#define CK_MODULE_H

#include "ek_check.h"

enum { CK_MODULE_TENSORS = 4 };

/* Random numbers from low .. high, whole ones (both ends included) if the type is EK_I32. */
struct ck_input {
  ek_type type; /* 0: the type of the pass */
  int rank;
  int64_t shape[4];
  double low, high;
  double gap; /* no value is nearer to zero than this: for functions with an edge there */
};

struct ck_module_case {
  const char *name;
  ek_status (*create)(ek_module **module);
  struct ck_input input[CK_MODULE_TENSORS]; /* as many as the module has, of rank 1 or more */
  int64_t longest; /* terms of the longest sum that it computes */
  int depth;       /* operations one after the other */
  int64_t probes;  /* places per tensor at which gradients are compared; 0: all */
  uint64_t saved;  /* EK_MEMORY_UNITs that forward keeps for backward in f32, beside the inputs */
};

/* A row of cases; its inputs come last, and each ends where the rest is 0. */
#ifdef __clang__
#pragma clang diagnostic ignored "-Wmissing-field-initializers"
#endif
#define CK_CASE(name_, create_, longest_, depth_, saved_, ...)                                     \
  CK_CASE_PROBED(name_, create_, longest_, depth_, saved_, 0, __VA_ARGS__)
#define CK_CASE_PROBED(name_, create_, longest_, depth_, saved_, probes_, ...)                     \
  {                                                                                                \
    .name = name_, .create = create_, .input = {__VA_ARGS__}, .longest = longest_,                 \
    .depth = depth_, .probes = probes_, .saved = saved_                                            \
  }

/* How many inputs the case describes; `module` must have as many. */
size_t ck_module_case_inputs(const struct ck_module_case *module_case, const ek_module *module);

/* For each case every check of ek_module_check(), one at a time, so that each has its line in a
 * report. */
#define CK_MODULE_CASES(cases)                                                                     \
  CK_LOOP(every_module, EK_CHECKS * sizeof(cases) / sizeof *(cases)) {                             \
    ck_module_case_check(&(cases)[_i / EK_CHECKS], (ek_check)(_i % EK_CHECKS));                    \
  }
void ck_module_case_check(const struct ck_module_case *module_case, ek_check check);

/* Makes the module that `outer` makes around what the call makes in `inner`. */
#define CK_CREATE_AROUND(create, outer, call)                                                      \
  static ek_status create(ek_module **module) {                                                    \
    ek_module *inner = NULL;                                                                       \
    EK_TRY(call);                                                                                  \
    return ck_around(module, inner, outer);                                                        \
  }

/* ---- the parts, for tests of a module's own ---- */

/* A module on device 0 of a group, with inputs and with the gradients of its outputs: for tests
 * that know what it should compute. The checker, which compares a module with itself, makes its
 * own. */
struct ck_bed {
  const struct ck_module_case *is;
  ek_group *group;
  ek_device *device;
  ek_module *module;
  ek_replica *replica;
  ek_pass_options options;
  size_t inputs, outputs;
  ek_tensor input[CK_MODULE_TENSORS], grad_output[CK_MODULE_TENSORS];
  double *value[CK_MODULE_TENSORS];  /* of the inputs */
  double *factor[CK_MODULE_TENSORS]; /* R, of the outputs: the loss is the sum of R * output */
};

/* Parameters, inputs and R are random numbers that both types hold exactly, the same for equal
   cases. It is kept. */
struct ck_bed *ck_bed_open(const struct ck_module_case *module_case, ek_type type,
                           const char *spec);
void ck_bed_close(struct ck_bed *bed);

/* The same of a module with one input, on the device under test. */
#define CK_BED(create, type, ...) ck_bed_of(create, type, (struct ck_input){__VA_ARGS__})
struct ck_bed *ck_bed_of(ek_status (*create)(ek_module **), ek_type type, struct ck_input input);

/* A forward without gradient, of which nothing is kept. */
void ck_bed_forward(struct ck_bed *bed);

/* What one forward and backward give, as doubles; kept (ck_keep.h). */
struct ck_results {
  int64_t parameters;                           /* elements of the flat gradients */
  double *output[CK_MODULE_TENSORS], *gradient; /* gradient: of the flat parameters */
  double *grad_input[CK_MODULE_TENSORS];        /* NULL for integers */
  int64_t output_count[CK_MODULE_TENSORS], input_count[CK_MODULE_TENSORS];
};

/* The same first output, gradient of the first input and gradients, bit for bit; or within this
 * relative L2 error. */
void ck_results_same(const struct ck_results *got, const struct ck_results *want);
bool ck_results_near(const struct ck_results *got, const struct ck_results *want, double allowed);

/* With `grad_inputs` false none is asked for. */
struct ck_results *ck_bed_backward(struct ck_bed *bed, bool grad_inputs);

/* Overwrites parameter `name`. */
void ck_bed_set(struct ck_bed *bed, const char *name, const double *values);

/* The flat parameters as an array that is kept; and back. */
double *ck_bed_parameters(struct ck_bed *bed);
void ck_bed_set_parameters(struct ck_bed *bed, const double *values);

/* The values of a parameter have this root mean square, within what normal numbers scatter. */
void ck_deviates(const ek_replica *replica, const char *name, double deviation);

/* The replica has this parameter, with the shape "3 2". */
void ck_has_parameter(const ek_replica *replica, const char *name, const char *shape);

/* ---- wrong use ---- */

/* A forward of `module`, alone and in f32, with one input of zeros must fail. */
void ck_forward_fails(ek_module *module, ek_status wanted, const char *text, ek_type type, int rank,
                      const int64_t *shape);

/* A replica of `module` on `spec` must fail and leave nothing there. */
void ck_replica_fails(ek_module *module, const char *spec, ek_status wanted, const char *text);

/* The call succeeds; the module that it makes has more parameters than 63 bits can count. */
#define ck_overflows(module, call)                                                                 \
  do {                                                                                             \
    ck_ok(call);                                                                                   \
    ck_replica_fails(module, "plan:1", EK_ERR_OVERFLOW, "");                                       \
    ek_module_free(module);                                                                        \
  } while (0)

/* Each allocation that `create` makes on the host fails once: no module, no crash, no leak. */
void ck_host_failures(ek_status (*create)(ek_module **module));

/* ---- numbers ---- */

/* What the bed's device holds now. */
uint64_t ck_bed_held(const struct ck_bed *bed);

/* bytes as the arena counts them. */
uint64_t ck_units(const ek_tensor *tensor);

#endif /* CK_MODULE_H */
