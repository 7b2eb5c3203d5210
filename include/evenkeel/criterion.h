/*
 * criterion.h - a loss on one device: a module whose inputs are outputs of a model and targets.
 *
 * On each device that has rows a criterion turns them into `totals`: for each of its terms a sum s
 * of weighted losses and the weight d that it summed over. The division by D, the sum of d over all
 * devices and micro-batches of a step, happens once, in the optimizer; so the loss is exact for
 * uneven shards, ignored targets and a shorter last batch (never a mean of means).
 *
 * Stock criteria: cross_entropy.h, mean_squared_error.h, elementwise_loss.h, weighted_sum.h.
 * with_criterion.h makes one module of a model and its loss, which may then have parameters. A
 * criterion of your own fills the table of module.h and follows the rules for modules. For example,
 * the absolute error:
 *
 *     static ek_status forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
 *                              ek_tensor *outputs) {
 *       const ek_tensor *y = &inputs[0], *t = &inputs[1];   // one output of the model, one target
 *       (void)self;
 *       EK_TRY(ek_pass_totals(&outputs[0], pass));
 *       EK_TRY(absolute_sum(ek_pass_stream(pass), &outputs[0], y, t));   // {sum |y - t|, count}
 *       EK_TRY(ek_pass_save(pass, y));
 *       return ek_pass_save(pass, t);
 *     }
 *
 *     static ek_status backward(const ek_module *self, ek_pass *pass,
 *                               const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
 *       const ek_tensor scale = ek_criterion_scale(&grad_outputs[0], 0);
 *       ek_tensor y = {0}, t = {0};
 *       (void)self;
 *       ek_status status = ek_pass_take(&t, pass);   // in reverse order
 *       if (status == EK_OK) status = ek_pass_take(&y, pass);
 *       if (status == EK_OK) status = ek_pass_input_gradient(&grad_inputs[0], pass, &y);
 *       if (status == EK_OK) status = absolute_signs(ek_pass_stream(pass), &grad_inputs[0], &y, &t,
 *                                                    &scale);   // scale * sign(y - t)
 *       ek_tensor_free(&y);
 *       ek_tensor_free(&t);
 *       return status;
 *     }
 *
 * Its create function calls ek_criterion_init(&c->base, &ops, 1, 1, EK_REDUCTION_MEAN). Then
 *
 * - output 0 is totals, f64 [terms, 2], a row {s, d} for each term;
 * - the gradient of totals that backward gets has the same shape: {scale, 0} for each term.
 *   Backward multiplies the gradient of s with respect to an input by the scale;
 * - targets have no gradient: their structs in grad_inputs stay zeros;
 * - with reduction `none` there is a second output, every single loss, of any shape; its gradient
 *   holds a factor for each, and the gradient of totals is ignored;
 * - ek_pass_input_gradient() writes the gradient over the model's output, unless something else
 *   holds that output or the runner keeps it. A forward that reads the outputs anyway can write the
 *   gradient at once: ek_pass_gradient_now();
 * - memory that a criterion allocates is charged to `loss`. Constants (class weights) are buffers
 *   with ek_initializer_values(); criteria made of others declare them as children.
 *
 * ek_data_parallel_criterion runs a criterion beside the model, on replicas of its own: there it
 * may have no parameters, and its buffers are constants (ek_pass_is_training() is false).
 */
#ifndef EVENKEEL_CRITERION_H
#define EVENKEEL_CRITERION_H

#include <evenkeel/pass.h>

EK_BEGIN_DECLARATIONS

typedef enum ek_reduction {
  EK_REDUCTION_MEAN = 0, /* sum s / sum d over everything */
  EK_REDUCTION_SUM = 1,  /* sum s, not divided */
  EK_REDUCTION_NONE = 2  /* every loss is an output; not divided */
} ek_reduction;

/*
 * The first member of every criterion's struct, whose own first member is a module:
 * ek_criterion_init() fills it in and nothing writes it afterwards. Its other members belong to the
 * library: read them with the functions below.
 */
typedef struct ek_criterion {
  ek_module base;
  struct ek__criterion_private {
    ek_reduction reduction;
    const double *coefficients;
  } private_members;
} ek_criterion;

/* The values given to ek_criterion_init(); for NULL, EK_REDUCTION_MEAN, NULL and 0. */
EK_API ek_reduction ek_criterion_reduction(const ek_criterion *criterion);
/* Factors of the terms in the loss, a loan; NULL: all 1. */
EK_API const double *ek_criterion_coefficients(const ek_criterion *criterion);
/* Inputs that are outputs of a model. */
EK_API size_t ek_criterion_outputs(const ek_criterion *criterion);

/* The inputs and outputs of a criterion. */
typedef struct ek_criterion_options {
  size_t size;
  size_t outputs;     /* inputs that are outputs of a model: 1 to EK_MAX_TENSORS */
  size_t targets;     /* inputs after these: 0 to EK_MAX_TENSORS */
  size_t terms;       /* rows of totals: 1 to EK_MAX_TERMS */
  size_t predictions; /* of predict: ek_module_options has it */
  ek_reduction reduction;
  const double *coefficients; /* a loan, one for each term: factors in the loss; NULL: all 1 */
} ek_criterion_options;
#define EK_CRITERION_OPTIONS_INIT                                                                  \
  {                                                                                                \
    .size = sizeof(ek_criterion_options), .outputs = 1, .targets = 1, .terms = 1,                  \
    .predictions = 0, .reduction = EK_REDUCTION_MEAN, .coefficients = NULL                         \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_criterion_options_init(ek_criterion_options *options, size_t size);

/*
 * Fills the base of a new criterion with one reference. `ops` must stay valid for its life, and so
 * must the coefficients. `options` NULL gives the defaults.
 * EK_ERR_INVALID_ARGUMENT for NULL, a required slot that is missing, or counts out of range.
 */
EK_API EK_CHECKED ek_status ek_criterion_init_with(ek_criterion *criterion,
                                                   const ek_module_ops *ops,
                                                   const ek_criterion_options *options);
/* With the default options, except for these three. */
EK_API EK_CHECKED ek_status ek_criterion_init(ek_criterion *criterion, const ek_module_ops *ops,
                                              size_t outputs, size_t targets,
                                              ek_reduction reduction);
/* The criterion whose base is this module, a loan; NULL for a module that is not a criterion. */
EK_API ek_criterion *ek_criterion_of(ek_module *module);
/* One more reference to it, from any thread. Returns `criterion`; NULL for NULL. */
EK_API ek_criterion *ek_criterion_share(ek_criterion *criterion);
/* Drops a reference; with the last one the criterion is freed. NULL is legal. */
EK_API void ek_criterion_free(ek_criterion *criterion);

/* EK_ERR_INVALID_ARGUMENT if one of its counts is out of range. Call it before you size arrays by
 * these counts. */
EK_API EK_CHECKED ek_status ek_criterion_check(const ek_criterion *criterion);

/* The scale of a term in the gradient of totals, as operations want it (losses.h): one f64, a loan.
 */
static inline ek_tensor ek_criterion_scale(const ek_tensor *grad_totals, size_t term) {
  ek_tensor scale = *grad_totals;
  scale.rank = 0;
  if (scale.data != NULL) scale.data = (double *)scale.data + 2 * term;
  return scale;
}

EK_END_DECLARATIONS

#endif /* EVENKEEL_CRITERION_H */
