/*
 * pass.h - one forward and its backward on one device.
 *
 * A pass is what a module's functions are called with. It gives them their parameters, memory,
 * stream and random key, and keeps a stack of what forward saves for backward.
 *
 * Most programs never open one: ek_data_parallel_model does it on every device. To run a module on
 * a single device by hand:
 *
 *     ek_pass *pass = NULL;
 *     ek_tensor y = {0};
 *     ek_status status;
 *     EK_TRY_GOTO(status, ek_pass_open(&pass, replica, NULL), cleanup);
 *     EK_TRY_GOTO(status, ek_pass_run_forward(&y, pass, &x), cleanup);
 *     EK_TRY_GOTO(status, make_gradient(&y), cleanup);   // over y, say
 *     EK_TRY_GOTO(status, ek_pass_run_backward(NULL, pass, &y), cleanup);
 *   cleanup:
 *     ek_tensor_free(&y);
 *     ek_pass_free(pass);
 *     return status;
 *
 * A pass belongs to one thread at a time.
 */
#ifndef EVENKEEL_PASS_H
#define EVENKEEL_PASS_H

#include <evenkeel/communicator.h>
#include <evenkeel/module.h>
#include <evenkeel/random.h>
#include <evenkeel/replica.h>

EK_BEGIN_DECLARATIONS

/* ---- for a module: its parameters and gradients ---- */

/* Parameter or buffer number `index` of the module that is running: a loan until its function
 * returns, or leaves the child that it has entered. To keep it longer, share or save it. A
 * parameter is of the type that the module runs in, converted for it if the replica's is another; a
 * buffer is of the replica's. */
EK_API EK_CHECKED ek_status ek_pass_parameter(ek_tensor *parameter, ek_pass *pass, size_t index);

/*
 * The gradient of parameter `index`, a loan, f64 in a pass of f64 and f32 in all others, also where
 * the replica keeps gradients of 16 bits. Backward adds to it. If *beta is wanted (not NULL), it
 * becomes 0 when nothing has been added in this step (the memory is undefined: overwrite all of it)
 * and 1 when there is something to add to. With `beta` NULL the memory is zeroed the first time.
 */
EK_API EK_CHECKED ek_status ek_pass_gradient(ek_tensor *gradient, double *beta, ek_pass *pass,
                                             size_t index);

/*
 * The rows in memory of parameter `index`, or of its gradient: those of its shape and, on devices
 * whose products are faster so, more after a table of at least 8192 rows (`elementwise` in
 * module.h), up to a multiple of 64. The rows after the table are zeros and must stay so. A loan
 * may be read, and the gradient added to, as if its shape[0] were this number, by a product whose
 * other operand has zeros there: linear_cross_entropy.h does. 0 for no parameter, 1 for a scalar.
 */
EK_API int64_t ek_pass_padded_rows(const ek_pass *pass, size_t index, bool gradient);

/* False if that gradient is not wanted: the parameter is frozen (ek_parameter_options), or the pass
 * is without gradient. A module that asks need not compute it. A module that computes it
 * nevertheless gets memory from ek_pass_gradient() until the gradient is complete, and the result
 * is dropped. */
EK_API bool ek_pass_trains(const ek_pass *pass, size_t index);

/*
 * Says that this module adds nothing more to the gradient of parameter `index` in this backward, so
 * that its reduction over the devices may start. Without this call the gradient counts as complete
 * when the whole backward is.
 */
EK_API EK_CHECKED ek_status ek_pass_gradient_complete(ek_pass *pass, size_t index);

/*
 * Backward in two parts. Where a module sums over the devices in backward (ek_pass_all_reduce()), a
 * device waits there for the others, and has nothing to compute but the gradients of parameters
 * that nothing needs yet. ek_pass_can_postpone() returns true in a backward whose model has such a
 * module, several devices and a pass that allows it. The backward may then make grad_inputs alone,
 * and end with ek_pass_postpone(): the pass takes a reference to each of `count` tensors, at most
 * EK_MAX_POSTPONED, and calls `backward_later` of the module's table with them: while the next such
 * sum is under way, before the next module postpones something, before another user of one of the
 * module's parameters adds to its gradient, or at the end of the pass's backward. So at most one
 * module waits, and each gradient is added up in the same order, to the same bits. All devices
 * answer alike, with rows or without. EK_ERR_STATE where ek_pass_can_postpone() is false or the
 * table has no `backward_later`; EK_ERR_INVALID_ARGUMENT for more tensors, or one that is absent.
 */
#define EK_MAX_POSTPONED 4
EK_API bool ek_pass_can_postpone(const ek_pass *pass);
EK_API EK_CHECKED ek_status ek_pass_postpone(ek_pass *pass, const ek_tensor *tensors, size_t count);

/* ---- for a module: memory ---- */

/* A new tensor for a result: an output or the gradient of an input. The caller owns it. What a
 * criterion makes is charged to `loss`. */
EK_API EK_CHECKED ek_status ek_pass_output(ek_tensor *tensor, ek_pass *pass, ek_type type, int rank,
                                           const int64_t *shape);

/* The same, charged to `workspace`. It must be freed before the function returns: else
 * EK_ERR_STATE. */
EK_API EK_CHECKED ek_status ek_pass_workspace(ek_tensor *tensor, ek_pass *pass, ek_type type,
                                              int rank, const int64_t *shape);

/*
 * Pushes a reference to `tensor` on the pass's stack, for backward; the caller keeps its own. Where
 * ek_pass_wants_gradient() is false nothing is kept.
 */
EK_API EK_CHECKED ek_status ek_pass_save(ek_pass *pass, const ek_tensor *tensor);

/* Pops the last saved tensor; the caller owns it and frees it. EK_ERR_STATE if neither this module
 * nor a child of it has saved one that is still there. */
EK_API EK_CHECKED ek_status ek_pass_take(ek_tensor *tensor, ek_pass *pass);

/*
 * In backward, for a module that has taken back an input that it saved: the tensor for the gradient
 * of that input. It is the input itself if nothing needs that any more (it has no other holder, or
 * only the runner of the pass, which allows it: ek_promise.overwrite_inputs), else a new tensor.
 * The caller owns it.
 */
EK_API EK_CHECKED ek_status ek_pass_input_gradient(ek_tensor *gradient, ek_pass *pass,
                                                   const ek_tensor *input);

/* ---- for a criterion (criterion.h) ---- */

/* A tensor for the criterion's totals, f64 [terms, 2], with undefined values: a new one, or the one
 * that its runner or its parent has given. The criterion owns it, gives it as output 0 and does not
 * save it, because its receiver may sum it over the devices. EK_ERR_STATE for a module that is not
 * a criterion. */
EK_API EK_CHECKED ek_status ek_pass_totals(ek_tensor *totals, ek_pass *pass);

/*
 * Gradients in forward. The scale of a criterion is one number that backward finds in the gradient
 * of its totals. If the caller promises that number in forward (ek_promise.gradient_now), the
 * criterion may compute in forward what backward would, where that is cheaper because the data is
 * still at hand. Callers promise it to criteria of one term whose reduction is not `none`.
 *
 * ek_pass_known_scale() returns true, and *scale, if the scale is promised. The module decides
 * which gradients it computes; it saves for backward what is left to do, and in backward the answer
 * is the same as in forward. A module whose child computes the loss hands the scale on.
 *
 * ek_pass_gradient_now() returns true if the criterion is to write the gradients of all its inputs
 * except targets over these inputs, and to add those of its parameters, times *scale. Its backward
 * is then not called, and what it saves is dropped. It is true only in forward, before the module
 * has saved anything, and only if the caller allows it to overwrite the inputs (overwrite_inputs)
 * and nothing else holds them.
 *
 * Gradients of parameters that are said to be complete in forward are reduced when backward begins.
 * A criterion that never asks has its backward called.
 */
EK_API bool ek_pass_known_scale(double *scale, const ek_pass *pass);
EK_API bool ek_pass_gradient_now(double *scale, ek_pass *pass);

/*
 * What the caller of a criterion, the runner of a pass or a parent, promises to its forward. A
 * member that is zero promises nothing. Modules that are not criteria may not be given `totals`,
 * and ignore the rest.
 */
typedef struct ek_promise {
  const ek_tensor *totals; /* where the totals go: f64 [terms, 2]; NULL: new memory */
  /*
   * The caller of a child does not need the inputs any more: the criterion may write over those
   * that have no other holder. The runner of a pass keeps the inputs that are not targets, one
   * reference each, until backward has run, and nothing else reads them: they may then hold their
   * gradients.
   */
  bool overwrite_inputs;
  /*
   * Not 0: the scale that the gradient of the totals will have (ek_pass_known_scale()). Forward may
   * then write the gradients of such inputs already, and add to those of parameters; backward does
   * the rest. If such a forward fails, the inputs may hold anything, and with
   * ek_pass_options.accumulate so may the gradients; so too if its backward never comes.
   */
  double gradient_now;
} ek_promise;

/* ---- for a module: children ---- */

/* Runs child number `child` with its own inputs and outputs, which are overwritten with tensors
 * that the caller owns, or stay as they were. */
EK_API EK_CHECKED ek_status ek_pass_child_forward(ek_tensor *outputs, ek_pass *pass, size_t child,
                                                  const ek_tensor *inputs);

/*
 * Options for a child that runs differently from the module itself. With `save` false nothing of it
 * is kept for backward, as in a pass without gradient, so it must run again before its backward.
 * Recomputation does this: in forward it runs the child without saving, and saves its inputs; in
 * backward it takes them back, runs the child, frees the outputs, and runs the child's backward.
 *
 * A forward within a backward is a recomputation: ek_pass_is_recomputing() is true, and random
 * numbers are those of the first time. It gives the same bits if nothing that it reads has changed.
 *
 * A child runs in the precision that its caller was asked to run in. That is 16 bits even if the
 * caller knows f32 alone (module.h); the library then casts between the two. With `precision` the
 * child and its children run in f32, in f64 or in the replica's precision, whatever the caller runs
 * in; the child's floating inputs and the gradients of its outputs must be of that type. In a model
 * of TF32, products of a child in EK_PRECISION_F32 are not rounded. EK_ERR_UNSUPPORTED for a child
 * that does not compute in the precision, and for one with parameters if the replica is f32 and the
 * precision f64, or the reverse.
 *
 * With `made_from` the child's first input, which is the output of child number `made_by` for the
 * tensor `made_from`, is computed again instead of being kept. If the child, or a module in it,
 * saves that input, the pass keeps a reference to `made_from` instead, and runs child `made_by`
 * again when the input is taken back, in the type that it ran in last. Child `made_by` has one
 * input and one output.
 *
 * With `unread` the caller frees the outputs without reading them, as recomputation does in
 * backward, so the child need not compute them (ek_pass_wants_outputs()). They have the right types
 * and shapes, and any values.
 */
typedef struct ek_child_options {
  size_t size;
  bool save;
  ek_precision precision;  /* the default: what the module that calls was to run in itself */
  ek_promise promise;      /* to a criterion */
  size_t made_by;
  const ek_tensor *made_from; /* NULL: what the child saves of its input is kept */
  bool unread;                /* the outputs are not read */
} ek_child_options;
#define EK_CHILD_OPTIONS_INIT                                                                      \
  {                                                                                                \
    .size = sizeof(ek_child_options), .save = true, .precision = EK_PRECISION_DEFAULT,             \
    .promise = {.totals = NULL, .overwrite_inputs = false, .gradient_now = 0}, .made_by = 0,       \
    .made_from = NULL, .unread = false                                                             \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_child_options_init(ek_child_options *options, size_t size);

/* ek_pass_child_forward() with these options. NULL gives the defaults. */
EK_API EK_CHECKED ek_status ek_pass_child_forward_with(ek_tensor *outputs, ek_pass *pass,
                                                       size_t child, const ek_tensor *inputs,
                                                       const ek_child_options *options);

/*
 * The child's backward. Children are called in the reverse order of their forwards, each after
 * everything that was saved after its forward has been taken back: else EK_ERR_STATE. EK_ERR_STATE
 * too if the child's last forward ran without saving. grad_outputs have the types and shapes of the
 * child's outputs; that of an output of integers is ignored.
 */
EK_API EK_CHECKED ek_status ek_pass_child_backward(ek_tensor *grad_inputs, ek_pass *pass,
                                                   size_t child, const ek_tensor *grad_outputs);

/*
 * Runs `predict` of the child (module.h) with its inputs that are not targets; nothing is saved.
 * EK_ERR_UNSUPPORTED for a child without it.
 */
EK_API EK_CHECKED ek_status ek_pass_child_predict(ek_tensor *outputs, ek_pass *pass, size_t child,
                                                  const ek_tensor *inputs);

/*
 * For a module that does the work of its child number `child` itself, because two children together
 * are cheaper than one after the other (as in chain.h): until ek_pass_child_leave(), parameters,
 * gradients, children and random numbers are those of the child. The caller saves and takes back
 * what the child would, and reports which of its gradients are complete. Only one child can be
 * entered at a time: EK_ERR_STATE for a second one, and for leaving without having entered. A
 * function that returns leaves its child.
 */
EK_API EK_CHECKED ek_status ek_pass_child_enter(ek_pass *pass, size_t child);

/*
 * The same in a forward, with options: with `save` false what is saved until ek_pass_child_leave()
 * is not kept, and `made_from` is as above, with `input` the child's input (NULL without it).
 * EK_ERR_INVALID_ARGUMENT for a precision or totals.
 */
EK_API EK_CHECKED ek_status ek_pass_child_enter_with(ek_pass *pass, size_t child,
                                                     const ek_tensor *input,
                                                     const ek_child_options *options);
/* Ends what ek_pass_child_enter() or ek_pass_child_enter_with() began. */
EK_API EK_CHECKED ek_status ek_pass_child_leave(ek_pass *pass);

/* ---- for a module: the other devices ---- */

/*
 * tensor (f32, f64, bf16 or f16, of the same shape on all devices) becomes its sum over all devices
 * of the model, in their order; what is queued on the compute stream afterwards sees the sum. Every
 * device must make the same calls in the same order. For a module whose table declares
 * `collective`, else EK_ERR_STATE. In a pass without a communicator the sum is that over one
 * device. In a model with `reproducible` it is that over all grains, along their tree, each block
 * rounded to the tensor's type; a pass without samples adds nothing. EK_ERR_SHAPE if the grains of
 * a device make different calls.
 */
EK_API EK_CHECKED ek_status ek_pass_all_reduce(ek_pass *pass, ek_tensor *tensor);

/* ---- for a module: where and how it runs ---- */

EK_API ek_device *ek_pass_device(const ek_pass *pass); /* where the replica is */
EK_API ek_stream *ek_pass_stream(const ek_pass *pass); /* the compute stream */
/* The type of activations and parameters of the function that runs. In a model of TF32 this is
 * EK_F32; see ek_stream_allows_tf32(). */
EK_API ek_type ek_pass_type(const ek_pass *pass);
EK_API bool ek_pass_wants_gradient(const ek_pass *pass); /* false: no backward follows */
EK_API bool ek_pass_is_training(const ek_pass *pass);    /* false: dropout is off */
/* True in a forward that has run before and that a backward runs again. Buffers that a training
 * forward changes (running statistics, counters) have been changed already: leave them alone. */
EK_API bool ek_pass_is_recomputing(const ek_pass *pass);
/*
 * In a forward that makes a result again for `made_from` (above): a loan of tensor number `index`,
 * from 0, of those that the module's first forward saved. The module need not compute it again. For
 * batch norm these are its statistics, which would take another exchange between the devices. False
 * if no such tensor was saved, and in every other forward.
 */
EK_API bool ek_pass_kept(ek_tensor *loan, const ek_pass *pass, size_t index);
/* True in a forward that does not save, in a pass with gradient: a backward will run it again. A
 * module that computes differently when nothing is saved must not do so here, because the bits
 * could differ. */
EK_API bool ek_pass_runs_again(const ek_pass *pass);
/* False in a forward whose caller only needs what the module saves, and frees the outputs unread.
 * The module may then leave them unwritten and skip its last operation; it must do everything else
 * as usual. The answer holds for this module alone. It may run a child whose outputs become its own
 * with ek_child_options.unread. */
EK_API bool ek_pass_wants_outputs(const ek_pass *pass);
/* The state that `open` of the running module has made for this replica; NULL without one. */
EK_API void *ek_pass_state(const ek_pass *pass);
/* The key of the running module in this step; every module has a stream of its own. */
EK_API ek_random_key ek_pass_random(const ek_pass *pass);
/* The number, in the global batch, of the sample that is row 0 of this device's inputs. */
EK_API int64_t ek_pass_first_sample(const ek_pass *pass);

/* ---- for code that runs a module ---- */

/* Called for each parameter of the replica when its gradient is complete. */
typedef ek_status (*ek_pass_complete_function)(void *context, ek_pass *pass, size_t parameter);

typedef struct ek_pass_options {
  size_t size;
  bool gradient;   /* a backward follows */
  bool training;   /* dropout is on */
  bool accumulate; /* gradients of this step exist already: add to them */
  uint64_t seed;   /* of the run, for random masks */
  uint32_t step;
  int64_t first_sample;               /* see ek_pass_first_sample() */
  ek_pass_complete_function complete; /* may be NULL */
  void *context;
  int64_t samples; /* of this device: the outputs' rows must be a multiple; 0: not known */
  ek_communicator
      *communicator; /* a loan for ek_pass_all_reduce(), and nothing else; may be NULL */
  ek_promise promise; /* to a criterion that is the replica's module */
} ek_pass_options;
#define EK_PASS_OPTIONS_INIT                                                                       \
  {                                                                                                \
    .size = sizeof(ek_pass_options), .gradient = true, .training = true, .accumulate = false,      \
    .seed = 0, .step = 0, .first_sample = 0, .complete = NULL, .context = NULL, .samples = 0,      \
    .communicator = NULL,                                                                          \
    .promise = {.totals = NULL, .overwrite_inputs = false, .gradient_now = 0}                      \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_pass_options_init(ek_pass_options *options, size_t size);

/* `options` NULL gives the defaults. The replica must outlive the pass. */
EK_API EK_CHECKED ek_status ek_pass_open(ek_pass **pass, ek_replica *replica,
                                         const ek_pass_options *options);

/* The replica's module, a loan. */
EK_API ek_module *ek_pass_module(const ek_pass *pass);

/* True if one of its modules declares `collective`, or if parameters are gathered from all devices
 * (mode fully-sharded): the pass must then run on every device at once, also without rows. */
EK_API bool ek_pass_is_collective(const ek_pass *pass);

/* Runs the replica's module. `outputs` are overwritten with tensors that the caller owns; on
 * failure they stay as they were, and the pass can only be freed. In a pass of 16 bits floating
 * inputs may also be f32: they are rounded, and their gradients are widened. */
EK_API EK_CHECKED ek_status ek_pass_run_forward(ek_tensor *outputs, ek_pass *pass,
                                                const ek_tensor *inputs);

/*
 * Runs `predict` of the replica's module (module.h) instead of its forward, in a pass without
 * gradient, with the inputs that are not targets. EK_ERR_UNSUPPORTED for a module without it.
 */
EK_API EK_CHECKED ek_status ek_pass_run_predict(ek_tensor *outputs, ek_pass *pass,
                                                const ek_tensor *inputs);

/*
 * Runs the backward; once per forward. Afterwards the gradient of every parameter is defined: one
 * that no module touched is zero (if not `accumulate`). grad_inputs as in the module table.
 */
EK_API EK_CHECKED ek_status ek_pass_run_backward(ek_tensor *grad_inputs, ek_pass *pass,
                                                 const ek_tensor *grad_outputs);

/* Frees the pass and what is still saved in it. NULL is legal. */
EK_API void ek_pass_free(ek_pass *pass);

EK_END_DECLARATIONS

#endif /* EVENKEEL_PASS_H */
