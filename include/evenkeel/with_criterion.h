/*
 * with_criterion.h - a model and its loss as one module.
 *
 * data_parallel_model.h and data_parallel_criterion.h keep model and loss apart. A loss with
 * parameters of its own (a temperature, centres of classes) must be one module with its model: they
 * are then parameters of the model, with gradients, optimizer state and names, in every mode. The
 * inputs of that module are those of the model and then the targets, its only output is totals:
 *
 *     EK_TRY_GOTO(status, ek_with_criterion_create(&whole, model, criterion), cleanup);
 *     EK_TRY_GOTO(status, ek_data_parallel_model_open(&m, group, whole, NULL), cleanup);
 *     EK_TRY_GOTO(status, ek_data_parallel_criterion_open(&c, m, NULL, NULL), cleanup);
 *     // a step: targets are cut at the samples of the inputs
 *     const ek_tensor batch[] = {inputs, targets};
 *     EK_TRY_GOTO(status, ek_data_parallel_model_forward(&totals, m, batch, 2, NULL), cleanup);
 *     EK_TRY_GOTO(status, ek_data_parallel_criterion_forward(c, &totals, 1, NULL, 0), cleanup);
 *     EK_TRY_GOTO(status, ek_data_parallel_criterion_backward(c, NULL), cleanup);
 *
 * Without gradient the targets may be left out: the outputs are then those of the model, or what
 * the criterion predicts from them (module.h; linear_cross_entropy.h gives logits).
 *
 * Losses and gradients are those of the pair. A module of a program's own that computes its loss
 * itself is an ek_criterion, too (criterion.h), and is trained in the same way.
 */
#ifndef EVENKEEL_WITH_CRITERION_H
#define EVENKEEL_WITH_CRITERION_H

#include <evenkeel/criterion.h>

EK_BEGIN_DECLARATIONS

/*
 * Keeps references of its own to both. Names in the model stay as they are; those in the criterion
 * begin with "criterion.". EK_ERR_INVALID_ARGUMENT for NULL, a criterion that looks at another
 * number of outputs or has reduction `none`, a model that computes its loss itself.
 */
EK_API EK_CHECKED ek_status ek_with_criterion_create(ek_module **module, ek_module *model,
                                                     ek_criterion *criterion);

typedef struct ek_with_criterion_options {
  size_t size;
  /* Of the criterion: its parameters are NAME.weight, ... Copied; NULL: "criterion". */
  const char *name;
  /*
   * A tie (ek_declare_tie()): parameter `tied` of the criterion ("weight") is another name of
   * `source` of the model ("tokens.weight"). Copied, NULL: none.
   */
  const char *tied, *source;
} ek_with_criterion_options;
#define EK_WITH_CRITERION_OPTIONS_INIT                                                             \
  { .size = sizeof(ek_with_criterion_options), .name = NULL, .tied = NULL, .source = NULL }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_with_criterion_options_init(ek_with_criterion_options *options,
                                                           size_t size);

/* The same with options; NULL gives the defaults. EK_ERR_INVALID_ARGUMENT for names that are too
 * long, and for one half of a tie. */
EK_API EK_CHECKED ek_status ek_with_criterion_create_with(ek_module **module, ek_module *model,
                                                          ek_criterion *criterion,
                                                          const ek_with_criterion_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_WITH_CRITERION_H */
