/*
 * criterion.c - the base of every criterion, and what its pass gives it: constants, memory, a
 * stack, the place of a gradient, children. The other side, whoever runs a pass, is
 * criterion_pass.c.
 */
#include <evenkeel/criterion.h>

#include "core/alloc.h"
#include "core/options.h"
#include "device/types.h"
#include "criterion_pass.h"

/* ---- the base ---- */

static ek_status check_ops(const ek_criterion_ops *given) {
  ek_criterion_ops ops = {.size = sizeof ops};
  EK_TRY(ek__options_read(&ops, sizeof ops, given, "ek_criterion_ops"));
  const char *missing = ops.kind == NULL       ? "kind"
                        : ops.forward == NULL  ? "forward"
                        : ops.backward == NULL ? "backward"
                        : ops.free == NULL     ? "free"
                                               : NULL;
  if (missing == NULL) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: ops.%s is missing",
                      ops.kind == NULL ? "criterion" : ops.kind, missing);
}

static ek_status check_count(const char *kind, const char *what, size_t count, size_t least,
                             size_t most) {
  if (count >= least && count <= most) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: a criterion has %zu to %zu %s, not %zu", kind,
                      least, most, what, count);
}

ek_status ek__criterion_count(struct ek__criterion_counts *counts, const ek_criterion *criterion) {
  if (criterion->ops == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "a criterion without functions: ek_criterion_init() was not called");
  }
  const char *kind = criterion->ops->kind;
  EK_TRY(check_count(kind, "outputs", criterion->outputs, 1, EK_MAX_TENSORS));
  EK_TRY(check_count(kind, "targets", criterion->targets, 0, EK_MAX_TENSORS));
  EK_TRY(check_count(kind, "terms", criterion->terms, 1, EK_MAX_TERMS));
  EK_TRY(check_count(kind, "constants", criterion->constant_count, 0, EK_MAX_CONSTANTS));
  if (criterion->constant_count > 0 && criterion->constants == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: %zu constants, but `constants` is NULL", kind,
                        criterion->constant_count);
  }
  *counts = (struct ek__criterion_counts){criterion->outputs, criterion->targets, criterion->terms,
                                          criterion->constant_count};
  return EK_OK;
}

ek_status ek__criterion_unchanged(const ek_criterion *criterion,
                                  const struct ek__criterion_counts *counts) {
  if (criterion->outputs == counts->outputs && criterion->targets == counts->targets &&
      criterion->terms == counts->terms && criterion->constant_count == counts->constants) {
    return EK_OK;
  }
  return ek_error_set(EK_ERR_STATE,
                      "%s: outputs, targets, terms or constants were changed while it was in use",
                      criterion->ops->kind);
}

ek_status ek_criterion_init(ek_criterion *criterion, const ek_criterion_ops *ops, size_t outputs,
                            size_t targets, ek_reduction reduction) {
  if (criterion == NULL || ops == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "criterion: %s is NULL",
                        criterion == NULL ? "criterion" : "ops");
  }
  EK_TRY(check_ops(ops));
  const char *kind = ops->kind;
  if (reduction != EK_REDUCTION_MEAN && reduction != EK_REDUCTION_SUM &&
      reduction != EK_REDUCTION_NONE) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: there is no reduction %d", kind,
                        (int)reduction);
  }
  const ek_criterion made = {.ops = ops,
                             .outputs = outputs,
                             .targets = targets,
                             .terms = 1,
                             .reduction = reduction,
                             .references = 1};
  struct ek__criterion_counts counts;
  EK_TRY(ek__criterion_count(&counts, &made));
  *criterion = made;
  return EK_OK;
}

ek_criterion *ek_criterion_share(ek_criterion *criterion) {
  if (criterion != NULL) __atomic_add_fetch(&criterion->references, 1, __ATOMIC_RELAXED);
  return criterion;
}

/* One after the other and not within one another, as modules are: a nest takes no stack. */
static _Thread_local bool freeing;
static _Thread_local ek_criterion *to_free;

void ek_criterion_free(ek_criterion *criterion) {
  if (criterion == NULL) return;
  /* Whoever drops the last reference must see what the others did before they dropped theirs. */
  if (__atomic_sub_fetch(&criterion->references, 1, __ATOMIC_ACQ_REL) != 0) return;
  criterion->next = to_free;
  to_free = criterion;
  if (freeing) return;
  freeing = true;
  while (to_free != NULL) {
    ek_criterion *next = to_free;
    to_free = next->next;
    next->ops->free(next);
  }
  freeing = false;
}

/* ---- for a criterion: where it runs and what it may use ---- */

static ek_status no_pass(void) {
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "criterion pass: pass is NULL");
}

static const char *kind_of(const ek_criterion_pass *pass) { return pass->running->ops->kind; }

static ek_status missing_argument(const ek_criterion_pass *pass, const char *what) {
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: %s is NULL", kind_of(pass), what);
}

/* EK_ERR_STATE unless the pass is in forward (or backward): `what` is what was asked for. */
static ek_status check_phase(const ek_criterion_pass *pass, enum ek__criterion_phase phase,
                             const char *what) {
  if (pass->phase == phase) return EK_OK;
  return ek_error_set(EK_ERR_STATE, "%s: %s outside of %s", kind_of(pass), what,
                      phase == EK__CRITERION_IN_FORWARD ? "forward" : "backward");
}

ek_device *ek_criterion_pass_device(const ek_criterion_pass *pass) {
  return pass == NULL ? NULL : pass->device;
}

ek_stream *ek_criterion_pass_stream(const ek_criterion_pass *pass) {
  return pass == NULL ? NULL : pass->stream;
}

ek_status ek_criterion_pass_constant(ek_tensor *constant, ek_criterion_pass *pass, size_t index) {
  if (pass == NULL) return no_pass();
  if (constant == NULL) return missing_argument(pass, "constant");
  if (index >= pass->running->constant_count) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: constant %zu of %zu", kind_of(pass), index,
                        pass->running->constant_count);
  }
  *constant = pass->constants[pass->first_constant + index];
  return EK_OK;
}

ek_status ek_criterion_pass_create(ek_tensor *tensor, ek_criterion_pass *pass, ek_type type,
                                   int rank, const int64_t *shape) {
  if (pass == NULL) return no_pass();
  return ek_tensor_create(tensor, pass->device, EK_MEMORY_LOSS, type, rank, shape);
}

/* ---- the stack ---- */

ek_status ek_criterion_pass_save(ek_criterion_pass *pass, const ek_tensor *tensor) {
  if (pass == NULL) return no_pass();
  if (tensor == NULL) return missing_argument(pass, "tensor");
  EK_TRY(check_phase(pass, EK__CRITERION_IN_FORWARD, "a tensor was saved"));
  /* The array never shrinks, so that only the first batches take host memory. */
  if (!ek__grow(&pass->saved, &pass->saved_capacity, pass->saved_count + 1, sizeof *pass->saved)) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "%s: the host has no memory to save %zu tensors",
                        kind_of(pass), pass->saved_count + 1);
  }
  EK_TRY(ek_tensor_share(&pass->saved[pass->saved_count], tensor));
  pass->saved_count++;
  return EK_OK;
}

ek_status ek_criterion_pass_take(ek_tensor *tensor, ek_criterion_pass *pass) {
  if (pass == NULL) return no_pass();
  if (tensor == NULL) return missing_argument(pass, "tensor");
  EK_TRY(check_phase(pass, EK__CRITERION_IN_BACKWARD, "a saved tensor was asked for"));
  if (pass->saved_count == 0) {
    return ek_error_set(EK_ERR_STATE, "%s: backward takes more than forward saved", kind_of(pass));
  }
  pass->saved_count--;
  *tensor = pass->saved[pass->saved_count];
  pass->saved[pass->saved_count] = (ek_tensor){0};
  return EK_OK;
}

/* ---- gradients and single losses ---- */

ek_status ek_criterion_pass_gradient(ek_tensor *gradient, ek_criterion_pass *pass,
                                     const ek_tensor *output) {
  if (pass == NULL) return no_pass();
  if (gradient == NULL) return missing_argument(pass, "gradient");
  if (output == NULL) return missing_argument(pass, "output");
  EK_TRY(check_phase(pass, EK__CRITERION_IN_BACKWARD, "the place of a gradient was asked for"));
  /* One holder: nobody will read the output again, so its memory may become the gradient. */
  if (!pass->keep_outputs && ek_tensor_holders(output) == 1) {
    return ek_tensor_share(gradient, output);
  }
  return ek_tensor_create(gradient, pass->device, EK_MEMORY_LOSS, output->type, output->rank,
                          output->shape);
}

bool ek_criterion_pass_gradient_now(double *scale, ek_criterion_pass *pass) {
  if (scale == NULL || pass == NULL || !pass->gradient_allowed || pass->keep_outputs) return false;
  const ek_criterion *criterion = pass->criterion;
  if (pass->phase != EK__CRITERION_IN_FORWARD || pass->running != criterion ||
      criterion->terms != 1 || criterion->reduction == EK_REDUCTION_NONE) {
    return false;
  }
  for (size_t i = 0; i < criterion->outputs; i++) {
    if (ek_tensor_holders(&pass->outputs[i]) != 1) return false;
  }
  /* With one term D / d is 1: ek_op_combine_totals(). */
  *scale = criterion->coefficients == NULL ? 1.0 : criterion->coefficients[0];
  pass->gradient_written = true;
  return true;
}

ek_status ek_criterion_pass_losses(ek_criterion_pass *pass, const ek_tensor *losses) {
  if (pass == NULL) return no_pass();
  if (losses == NULL) return missing_argument(pass, "losses");
  EK_TRY(check_phase(pass, EK__CRITERION_IN_FORWARD, "losses were handed over"));
  if (pass->running->reduction != EK_REDUCTION_NONE) {
    return ek_error_set(EK_ERR_STATE, "%s: losses were handed over, but the reduction is not none",
                        kind_of(pass));
  }
  ek_tensor kept = {0};
  EK_TRY(ek_tensor_share(&kept, losses));
  ek_tensor_free(&pass->losses);
  pass->losses = kept;
  return EK_OK;
}

bool ek_criterion_pass_loss_factors(ek_tensor *factors, const ek_criterion_pass *pass) {
  if (factors == NULL || pass == NULL || pass->factors == NULL) return false;
  *factors = *pass->factors;
  return true;
}

/* ---- children ---- */

static ek_status check_child(const ek_criterion_pass *pass, const ek_criterion *child,
                             size_t first_constant) {
  if (child == NULL) return missing_argument(pass, "child");
  struct ek__criterion_counts counts;
  EK_TRY(ek__criterion_count(&counts, child));
  EK_TRY(ek__types_check(EK__TABLE_TYPES(child->ops), pass->type, child->ops->kind));
  if (pass->depth == EK_MAX_CRITERION_DEPTH) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: criteria nest deeper than %d", kind_of(pass),
                        EK_MAX_CRITERION_DEPTH);
  }
  const size_t there = pass->running->constant_count;
  if (first_constant > there || child->constant_count > there - first_constant) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "%s: child %s needs constants %zu .. %zu, but there are %zu", kind_of(pass),
                        child->ops->kind, first_constant, first_constant + child->constant_count,
                        there);
  }
  return EK_OK;
}

/* The child's function runs: what it asks the pass for is its own. */
static const ek_criterion *begin_child(ek_criterion_pass *pass, const ek_criterion *child,
                                       size_t first_constant) {
  const ek_criterion *parent = pass->running;
  pass->running = child;
  pass->first_constant += first_constant;
  pass->depth++;
  return parent;
}

static void end_child(ek_criterion_pass *pass, const ek_criterion *parent, size_t first_constant) {
  pass->depth--;
  pass->first_constant -= first_constant;
  pass->running = parent;
}

ek_status ek_criterion_pass_forward(ek_criterion_pass *pass, const ek_criterion *child,
                                    size_t first_constant, const ek_tensor *outputs,
                                    const ek_tensor *targets, ek_tensor *totals) {
  if (pass == NULL) return no_pass();
  EK_TRY(check_phase(pass, EK__CRITERION_IN_FORWARD, "a child's forward was asked for"));
  EK_TRY(check_child(pass, child, first_constant));
  const ek_criterion *parent = begin_child(pass, child, first_constant);
  const ek_status status = child->ops->forward(child, pass, outputs, targets, totals);
  end_child(pass, parent, first_constant);
  return status;
}

ek_status ek_criterion_pass_backward(ek_criterion_pass *pass, const ek_criterion *child,
                                     size_t first_constant, const ek_tensor *outputs,
                                     const ek_tensor *targets, const ek_tensor *scales,
                                     ek_tensor *gradients) {
  if (pass == NULL) return no_pass();
  EK_TRY(check_phase(pass, EK__CRITERION_IN_BACKWARD, "a child's backward was asked for"));
  EK_TRY(check_child(pass, child, first_constant));
  const ek_criterion *parent = begin_child(pass, child, first_constant);
  const ek_status status = child->ops->backward(child, pass, outputs, targets, scales, gradients);
  end_child(pass, parent, first_constant);
  return status;
}
