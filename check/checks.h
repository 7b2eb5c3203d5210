/*
 * checks.h - shared by the checks of a module: their options, the bounds of rounding, and the
 * comparison of two runs.
 *
 * A check gets a bed of its own (bed.h), so that it does not see the leftovers of another check,
 * and the results of a whole run in it. It returns EK_ERR_MISMATCH with the parameter or tensor,
 * the element and both values, or the error of a function of the module.
 */
#ifndef EK_CHECKS_H
#define EK_CHECKS_H

#include "bed.h"

struct ek__checker {
  ek_module *module;
  const char *devices;
  const ek_check_input *inputs;
  ek_module_check_options options;
  ek_type type; /* f64 if the module computes in it */
  double worst; /* error of the check that runs, as a part of what is allowed */
  bool both;    /* it computes in f32 and in f64 */
};

enum { EK__CHECK_WORDS = 64 + 512 }; /* a parameter's full name with words */

/* A training step on device 0: forward and backward with gradients of inputs. */
extern const struct ek__trial ek__check_whole;

/* Half the distance from 1 to the next number of the type. */
double ek__check_unit(ek_type type);

/* The relative error that rounding may cause in a result. */
double ek__check_rounding(const struct ek__checker *c, ek_type type);

/* The norm of got - want is at most `allowed` times that of want, plus `absolute`. The element with
 * the largest error is named, by its own number or by that in `numbers`. */
ek_status ek__check_agree(struct ek__checker *c, const char *what, const double *got,
                          const double *want, int64_t count, const double *numbers, double allowed,
                          double absolute);

ek_status ek__check_finite(const char *what, const double *values, int64_t count);

enum ek__compared { EK__OUTPUTS = 1, EK__GRAD_INPUTS = 2, EK__GRADIENTS = 4, EK__ALL = 7 };

/* How two results are compared, parameter by parameter. */
struct ek__comparison {
  struct ek__checker *c;
  const struct ek__bed *bed;
  enum ek__compared what;
  double allowed;
  bool finite; /* only `got` is looked at */
};

ek_status ek__check_compare(const struct ek__comparison *by, const union ek__results *got,
                            const union ek__results *want);

/* Runs it and takes what came out, put together; *results are the caller's to free. */
ek_status ek__check_run(union ek__results *results, struct ek__bed *bed,
                        const struct ek__trial *trial);

/* Runs it and compares with what an earlier run gave. */
ek_status ek__check_rerun(const struct ek__comparison *by, struct ek__bed *bed,
                          const struct ek__trial *trial, const union ek__results *want);

/* Whether a parameter is trained. */
bool ek__has_gradient(const ek_parameter_info *info);

/* The checks, each by its name in module_check.h. `once` may be changed. */
#define EK__CHECK_DECLARE(name)                                                                    \
  ek_status ek__check_##name(struct ek__checker *c, struct ek__bed *bed, union ek__results *once)

/* values.c */
EK__CHECK_DECLARE(start);
EK__CHECK_DECLARE(repeat);
EK__CHECK_DECLARE(evaluation);
/* gradients.c */
EK__CHECK_DECLARE(grad_inputs);
EK__CHECK_DECLARE(complete);
EK__CHECK_DECLARE(accumulate);
EK__CHECK_DECLARE(differences);
/* cuts.c */
EK__CHECK_DECLARE(types);
EK__CHECK_DECLARE(rows);
EK__CHECK_DECLARE(devices);
/* holdings.c */
EK__CHECK_DECLARE(memory);
EK__CHECK_DECLARE(plan);

#endif /* EK_CHECKS_H */
