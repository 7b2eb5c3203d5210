/*
 * criterion.h - a loss on one device.
 *
 * A criterion is an immutable description, like a module. On each device that has rows it turns the
 * model's outputs and the targets into a sum s of weighted losses and the weight d that it summed
 * over; the gradient is that of s. The division by D, the sum of d over all devices and
 * micro-batches of a step, happens once, in the optimizer; so the loss is exact for uneven shards,
 * ignored targets and a last, shorter batch (never a mean of means).
 *
 * The gradient overwrites the outputs, unless keep_outputs is asked for or somebody else still
 * holds them: then it has memory of its own, charged to `loss`. Where its runner allows it, forward
 * does so already, in the pass over memory that it makes anyway: ek_criterion_pass_gradient_now().
 *
 * Stock criteria: cross_entropy.h, mean_squared_error.h, weighted_sum.h. One of your own fills this
 * table; it needs nothing else.
 */
#ifndef EVENKEEL_CRITERION_H
#define EVENKEEL_CRITERION_H

#include <evenkeel/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_criterion ek_criterion;
typedef struct ek_criterion_pass ek_criterion_pass;

typedef enum ek_reduction {
  EK_REDUCTION_MEAN = 0, /* sum s / sum d over everything */
  EK_REDUCTION_SUM = 1,  /* sum s, not divided */
  EK_REDUCTION_NONE = 2  /* every loss is kept (ek_criterion_pass_losses()); not divided */
} ek_reduction;

/* The most constants of one criterion, and the most terms of a weighted sum. */
#define EK_MAX_CONSTANTS 16
#define EK_MAX_TERMS 64

typedef struct ek_criterion_ops {
  size_t size;
  const char *kind; /* "cross_entropy"; used in messages */

  /*
   * Required. Overwrites totals, f64 [terms, 2] on the device: a pair {s, d} per term. `outputs`
   * and `targets` are loans. What backward needs goes to ek_criterion_pass_save().
   */
  ek_status (*forward)(const ek_criterion *self, ek_criterion_pass *pass, const ek_tensor *outputs,
                       const ek_tensor *targets, ek_tensor *totals);

  /*
   * Required. Fills `gradients` (one per output) with tensors from ek_criterion_pass_gradient().
   * scales, f64 [terms] on the device, multiplies the gradient of each term.
   */
  ek_status (*backward)(const ek_criterion *self, ek_criterion_pass *pass, const ek_tensor *outputs,
                        const ek_tensor *targets, const ek_tensor *scales, ek_tensor *gradients);

  /* Required. Drops its references to children, too; these are freed when it returns, as in
   * module.h. */
  void (*free)(ek_criterion *self);

  /*
   * (optional) fallback: EK_TYPES_F32. The types of outputs that it takes, as a set: EK_TYPES_F32 |
   * EK_TYPES_F64. For a model of another type it is EK_ERR_UNSUPPORTED: where its pass is opened,
   * or, for a criterion that is another's child, where that runs it.
   */
  unsigned types;
} ek_criterion_ops;

/*
 * The first member of every criterion's struct. Its maker sets what comes after `targets`, and
 * changes nothing once it is in use. A count that is out of bounds is EK_ERR_INVALID_ARGUMENT where
 * a pass is opened, one that was changed since then EK_ERR_STATE where it runs.
 */
struct ek_criterion {
  const ek_criterion_ops *ops;
  size_t outputs; /* how many outputs of the model it looks at: 1 to EK_MAX_TENSORS */
  size_t targets; /* 0 to EK_MAX_TENSORS */
  size_t terms;   /* pairs {s, d}; 1 but for weighted sums */
  ek_reduction reduction;
  /* Factors of the terms in the loss; NULL: all 1. */
  const double *coefficients;
  /* Host tensors that are put on every device once: class weights, say. Floating ones take the type
   * of the model. */
  const ek_tensor *constants;
  size_t constant_count; /* 0 to EK_MAX_CONSTANTS */
  int references;        /* kept by the library, as is the next one */
  ek_criterion *next;
};

/*
 * Fills the base with one reference, one term and no constants.
 * EK_ERR_INVALID_ARGUMENT for NULL, a required slot that is missing, or more than EK_MAX_TENSORS.
 */
EK_API EK_CHECKED ek_status ek_criterion_init(ek_criterion *criterion, const ek_criterion_ops *ops,
                                              size_t outputs, size_t targets,
                                              ek_reduction reduction);
EK_API ek_criterion *ek_criterion_share(ek_criterion *criterion);
EK_API void ek_criterion_free(ek_criterion *criterion);

/* ---- for a criterion: what its pass gives ---- */

EK_API ek_device *ek_criterion_pass_device(const ek_criterion_pass *pass);
EK_API ek_stream *ek_criterion_pass_stream(const ek_criterion_pass *pass);
/* Constant number `index` on this device: a loan. */
EK_API EK_CHECKED ek_status ek_criterion_pass_constant(ek_tensor *constant, ek_criterion_pass *pass,
                                                       size_t index);
/* New memory charged to `loss`; the caller owns it. */
EK_API EK_CHECKED ek_status ek_criterion_pass_create(ek_tensor *tensor, ek_criterion_pass *pass,
                                                     ek_type type, int rank, const int64_t *shape);
/* A stack, as in pass.h. */
EK_API EK_CHECKED ek_status ek_criterion_pass_save(ek_criterion_pass *pass,
                                                   const ek_tensor *tensor);
EK_API EK_CHECKED ek_status ek_criterion_pass_take(ek_tensor *tensor, ek_criterion_pass *pass);
/* Where the gradient of an output belongs: the output itself or new memory. The caller owns it. */
EK_API EK_CHECKED ek_status ek_criterion_pass_gradient(ek_tensor *gradient, ek_criterion_pass *pass,
                                                       const ek_tensor *output);
/*
 * In forward: true if the criterion is to write the gradients of all its outputs now, over the
 * outputs themselves; its backward is not called then. *scale multiplies them, as scales[0] of
 * backward would. That is so if the runner allows it, for a criterion of one term that is not
 * another's child (a parent may scale it), whose reduction is not `none`, and whose outputs nobody
 * else holds. A criterion that never asks has its backward called.
 */
EK_API bool ek_criterion_pass_gradient_now(double *scale, ek_criterion_pass *pass);
/* Hands over every single loss (reduction `none`); the pass takes a reference. */
EK_API EK_CHECKED ek_status ek_criterion_pass_losses(ek_criterion_pass *pass,
                                                     const ek_tensor *losses);
/* In backward, the factor of every single loss that the caller of a `none` criterion gave; false if
 * there is none (then all are 1). The tensor is a loan. */
EK_API bool ek_criterion_pass_loss_factors(ek_tensor *factors, const ek_criterion_pass *pass);

/* The deepest that criteria made of others may nest: EK_ERR_INVALID_ARGUMENT beyond. */
#define EK_MAX_CRITERION_DEPTH 64

/* For a criterion made of others: the child's forward and backward within the same pass. */
EK_API EK_CHECKED ek_status ek_criterion_pass_forward(ek_criterion_pass *pass,
                                                      const ek_criterion *child,
                                                      size_t first_constant,
                                                      const ek_tensor *outputs,
                                                      const ek_tensor *targets, ek_tensor *totals);
EK_API EK_CHECKED ek_status
ek_criterion_pass_backward(ek_criterion_pass *pass, const ek_criterion *child,
                           size_t first_constant, const ek_tensor *outputs,
                           const ek_tensor *targets, const ek_tensor *scales, ek_tensor *gradients);

/* ---- for whoever runs one (ek_data_parallel_criterion does) ---- */

typedef struct ek_criterion_pass_options {
  size_t size;
  bool keep_outputs;
  ek_type type; /* of the model: the type that floating constants take */
} ek_criterion_pass_options;
#define EK_CRITERION_PASS_OPTIONS_INIT                                                             \
  { sizeof(ek_criterion_pass_options), false, EK_F32 }

/* Puts the constants on the device; the pass serves many batches, one after the other. */
EK_API EK_CHECKED ek_status ek_criterion_pass_open(ek_criterion_pass **pass, ek_device *device,
                                                   ek_criterion *criterion,
                                                   const ek_criterion_pass_options *options);
/* Runs forward; `totals` is f64 [terms, 2]. What an earlier forward saved is dropped. */
EK_API EK_CHECKED ek_status ek_criterion_pass_run_forward(ek_criterion_pass *pass,
                                                          const ek_tensor *outputs,
                                                          const ek_tensor *targets,
                                                          ek_tensor *totals);
/*
 * The same for a forward whose backward is to follow, and between the two of which nobody reads the
 * outputs: they may hold their gradients afterwards. If it fails they may hold anything.
 */
EK_API EK_CHECKED ek_status ek_criterion_pass_run_forward_gradient(ek_criterion_pass *pass,
                                                                   const ek_tensor *outputs,
                                                                   const ek_tensor *targets,
                                                                   ek_tensor *totals);
/*
 * Runs backward once for the last forward, with the same outputs. `outputs` must be the only
 * holders of their memory for the gradient to overwrite them. factors: NULL, or one per loss
 * (reduction `none`). gradients (structs of zeros) belong to the caller.
 */
EK_API EK_CHECKED ek_status ek_criterion_pass_run_backward(
    ek_criterion_pass *pass, const ek_tensor *outputs, const ek_tensor *targets,
    const ek_tensor *scales, const ek_tensor *factors, ek_tensor *gradients);
/* The losses of the last forward of a `none` criterion; a loan. EK_ERR_STATE if there are none. */
EK_API EK_CHECKED ek_status ek_criterion_pass_last_losses(ek_tensor *losses,
                                                          const ek_criterion_pass *pass);
/* Drops what the last forward saved. NULL is legal. */
EK_API void ek_criterion_pass_reset(ek_criterion_pass *pass);
EK_API void ek_criterion_pass_free(ek_criterion_pass *pass);

#ifdef __cplusplus
}
#endif

#endif /* EVENKEEL_CRITERION_H */
