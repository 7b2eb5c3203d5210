/*
 * sequential.h - modules one after the other.
 *
 * The outputs of each are the inputs of the next; their numbers must agree. Children are named "0",
 * "1", ... unless the options name them. A result is freed as soon as the next module has run,
 * unless that one saved it.
 *
 * A linear and the GELU after it, including modules of a program's own (ek_formula), run as one
 * operation (products.h), and so do the backwards of a linear and the GELU before it. This takes
 * less memory, and less traffic if the device can join them. Names, parameters and gradients are as
 * if they ran one by one.
 */
#ifndef EVENKEEL_SEQUENTIAL_H
#define EVENKEEL_SEQUENTIAL_H

#include <evenkeel/recompute.h>

EK_BEGIN_DECLARATIONS

/* count 0 is EK_ERR_INVALID_ARGUMENT. */
EK_API EK_CHECKED ek_status ek_sequential_create(ek_module **module, ek_module *const *modules,
                                                 size_t count);

typedef struct ek_sequential_options {
  size_t size;
  ek_recompute recompute; /* EK_RECOMPUTE_BYTES is EK_ERR_INVALID_ARGUMENT */
  /* Copied: the name of each module in names of parameters ("encoder.0.weight"). NULL, or NULL for
   * a module: its number. Names are checked, and must differ, when the module is declared
   * (module.h). */
  const char *const *names;
  bool unit; /* all of it is one unit of mode fully-sharded (ek_declare_unit()) */
} ek_sequential_options;
#define EK_SEQUENTIAL_OPTIONS_INIT                                                                 \
  {                                                                                                \
    .size = sizeof(ek_sequential_options), .recompute = {EK_RECOMPUTE_NONE, 0, 0}, .names = NULL,  \
    .unit = false                                                                                  \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_sequential_options_init(ek_sequential_options *options, size_t size);

/* The same with options; NULL gives the defaults. */
EK_API EK_CHECKED ek_status ek_sequential_create_with(ek_module **module, ek_module *const *modules,
                                                      size_t count,
                                                      const ek_sequential_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_SEQUENTIAL_H */
