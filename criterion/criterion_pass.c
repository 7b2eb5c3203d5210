/*
 * criterion_pass.c - running a criterion on one device: the constants go there once, then every
 * batch is one forward and at most one backward.
 */
#include "criterion_pass.h"

#include <inttypes.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "device/flaw.h"
#include "device/types.h"

/* ---- constants ---- */

static bool is_floating(ek_type type) { return type == EK_F32 || type == EK_F64; }

/* to = from, where both are floating host tensors of equal count and different types. */
static void convert(ek_tensor *to, const ek_tensor *from) {
  const int64_t count = ek_tensor_count(from);
  if (to->type == EK_F32) {
    const double *x = from->data;
    float *y = to->data;
    for (int64_t i = 0; i < count; i++) y[i] = (float)x[i];
  } else {
    const float *x = from->data;
    double *y = to->data;
    for (int64_t i = 0; i < count; i++) y[i] = (double)x[i];
  }
}

/* Uploads through a copy of the other type, which lives as long as this call. */
static ek_status upload_converted(ek_tensor *constant, const ek_tensor *source, const char *kind) {
  ek_tensor copy = *constant;
  copy.device = NULL;
  copy.memory = NULL;
  copy.data = ek__calloc(1, ek_tensor_bytes(constant));
  if (copy.data == NULL) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "%s: the host has no memory for a constant", kind);
  }
  convert(&copy, source);
  const ek_status status = ek_tensor_copy(constant, &copy);
  ek__free(copy.data);
  return status;
}

static ek_status put_constant(ek_criterion_pass *pass, size_t index) {
  const char *kind = pass->criterion->ops->kind;
  const ek_tensor *source = &pass->criterion->constants[index];
  ek_tensor *constant = &pass->constants[index];
  if (!ek_tensor_exists(source) || source->device != NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: constant %zu is not a host tensor", kind,
                        index);
  }
  if (source->type != EK_I32 && !is_floating(source->type)) {
    return ek_error_set(EK_ERR_UNSUPPORTED, "%s: constant %zu is %s, expected f32, f64 or i32",
                        kind, index, ek_type_name(source->type));
  }
  const ek_type type = is_floating(source->type) ? pass->type : source->type;
  EK_TRY(
      ek_tensor_create(constant, pass->device, EK_MEMORY_LOSS, type, source->rank, source->shape));
  return type == source->type ? ek_tensor_copy(constant, source)
                              : upload_converted(constant, source, kind);
}

/* ---- opening and freeing ---- */

static ek_status read_options(ek_criterion_pass_options *o,
                              const ek_criterion_pass_options *options) {
  EK_TRY(ek__options_read(o, sizeof *o, options, "ek_criterion_pass_options"));
  if (!is_floating(o->type)) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "criterion pass: options.type is %s, expected f32 "
                        "or f64",
                        ek_type_name(o->type));
  }
  return EK_OK;
}

ek_status ek_criterion_pass_open(ek_criterion_pass **pass, ek_device *device,
                                 ek_criterion *criterion,
                                 const ek_criterion_pass_options *options) {
  ek_criterion_pass_options o = EK_CRITERION_PASS_OPTIONS_INIT;
  if (pass == NULL || device == NULL || criterion == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "criterion pass: %s is NULL",
                        pass == NULL     ? "pass"
                        : device == NULL ? "device"
                                         : "criterion");
  }
  EK_TRY(read_options(&o, options));
  struct ek__criterion_counts counts;
  EK_TRY(ek__criterion_count(&counts, criterion));
  EK_TRY(ek__types_check(EK__TABLE_TYPES(criterion->ops), o.type, criterion->ops->kind));
  ek_criterion_pass *p = ek__calloc(1, sizeof *p);
  if (p == NULL) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "criterion pass: the host has no memory");
  }
  p->criterion = ek_criterion_share(criterion);
  p->counts = counts;
  p->running = criterion;
  p->device = device;
  p->stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  p->type = o.type;
  p->keep_outputs = o.keep_outputs;
  for (size_t i = 0; i < counts.constants; i++) {
    const ek_status status = put_constant(p, i);
    if (status != EK_OK) {
      ek_criterion_pass_free(p);
      return status;
    }
  }
  *pass = p;
  return EK_OK;
}

void ek_criterion_pass_reset(ek_criterion_pass *pass) {
  if (pass == NULL) return;
  while (pass->saved_count > 0) ek_tensor_free(&pass->saved[--pass->saved_count]);
  ek_tensor_free(&pass->losses);
  pass->gradient_written = false;
  pass->phase = EK__CRITERION_IDLE;
}

void ek_criterion_pass_free(ek_criterion_pass *pass) {
  if (pass == NULL) return;
  ek_criterion_pass_reset(pass);
  for (size_t i = 0; i < EK_MAX_CONSTANTS; i++) ek_tensor_free(&pass->constants[i]);
  ek_criterion_free(pass->criterion);
  ek__free(pass->saved);
  ek__free(pass);
}

/* ---- one batch ---- */

static ek_status check_tensor(const ek_criterion_pass *pass, const char *what, size_t index,
                              const ek_tensor *tensor) {
  const char *kind = pass->criterion->ops->kind;
  if (!ek_tensor_exists(tensor)) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: %s %zu is not there", kind, what, index);
  }
  if (tensor->device != pass->device) {
    return ek_error_set(EK_ERR_DEVICE, "%s: %s %zu is %s%s, but the pass runs on %s", kind, what,
                        index, tensor->device == NULL ? "in host memory" : "on ",
                        tensor->device == NULL ? "" : ek_device_name(tensor->device),
                        ek_device_name(pass->device));
  }
  char text[EK__FLAW_TEXT];
  const char *flaw = ek__tensor_flaw(text, tensor);
  if (flaw == NULL) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE, "%s: %s %zu has %s", kind, what, index, flaw);
}

static ek_status check_tensors(const ek_criterion_pass *pass, const char *what,
                               const ek_tensor *tensors, size_t count) {
  if (tensors == NULL && count > 0) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: %ss is NULL", pass->criterion->ops->kind,
                        what);
  }
  for (size_t i = 0; i < count; i++) EK_TRY(check_tensor(pass, what, i, &tensors[i]));
  return EK_OK;
}

/* totals (rank 2) and scales (rank 1): f64, with dimension 0 one entry per term. */
static ek_status check_terms(const ek_criterion_pass *pass, const char *what,
                             const ek_tensor *tensor, int rank) {
  const char *kind = pass->criterion->ops->kind;
  if (tensor == NULL) return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: %s is NULL", kind, what);
  EK_TRY(check_tensor(pass, what, 0, tensor));
  if (tensor->type != EK_F64) {
    return ek_error_set(EK_ERR_TYPE, "%s: %s is %s, expected f64", kind, what,
                        ek_type_name(tensor->type));
  }
  const int64_t terms = (int64_t)pass->counts.terms;
  if (tensor->rank != rank || tensor->shape[0] != terms || (rank == 2 && tensor->shape[1] != 2)) {
    return ek_error_set(
        EK_ERR_SHAPE, "%s: %s has rank %d and %" PRId64 " elements, expected %" PRId64 "%s", kind,
        what, tensor->rank, ek_tensor_count(tensor), terms, rank == 2 ? " x 2" : "");
  }
  return EK_OK;
}

static ek_status no_pass(void) {
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "criterion pass: pass is NULL");
}

static ek_status run_forward(ek_criterion_pass *pass, bool gradient, const ek_tensor *outputs,
                             const ek_tensor *targets, ek_tensor *totals) {
  if (pass == NULL) return no_pass();
  const ek_criterion *criterion = pass->criterion;
  EK_TRY(ek__criterion_unchanged(criterion, &pass->counts));
  EK_TRY(check_tensors(pass, "output", outputs, pass->counts.outputs));
  EK_TRY(check_tensors(pass, "target", targets, pass->counts.targets));
  EK_TRY(check_terms(pass, "totals", totals, 2));
  ek_criterion_pass_reset(pass);
  pass->phase = EK__CRITERION_IN_FORWARD;
  pass->gradient_allowed = gradient;
  pass->outputs = outputs;
  const uint64_t errors = ek__error_number();
  const ek_status status = criterion->ops->forward(criterion, pass, outputs, targets, totals);
  pass->outputs = NULL;
  if (status != EK_OK) {
    ek__error_name(criterion->ops->kind, status, errors);
    ek_criterion_pass_reset(pass);
    return status;
  }
  pass->phase = EK__CRITERION_FORWARD_DONE;
  return EK_OK;
}

ek_status ek_criterion_pass_run_forward(ek_criterion_pass *pass, const ek_tensor *outputs,
                                        const ek_tensor *targets, ek_tensor *totals) {
  return run_forward(pass, false, outputs, targets, totals);
}

ek_status ek_criterion_pass_run_forward_gradient(ek_criterion_pass *pass, const ek_tensor *outputs,
                                                 const ek_tensor *targets, ek_tensor *totals) {
  return run_forward(pass, true, outputs, targets, totals);
}

static ek_status check_factors(const ek_criterion_pass *pass, const ek_tensor *factors) {
  if (factors == NULL) return EK_OK;
  const ek_criterion *criterion = pass->criterion;
  if (criterion->reduction != EK_REDUCTION_NONE) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: factors are for reduction none alone",
                        criterion->ops->kind);
  }
  EK_TRY(check_tensor(pass, "factors", 0, factors));
  if (!ek_tensor_exists(&pass->losses)) {
    return ek_error_set(EK_ERR_STATE, "%s: factors were given, but forward handed no losses over",
                        criterion->ops->kind);
  }
  const int64_t wanted = ek_tensor_count(&pass->losses);
  if (ek_tensor_count(factors) != wanted) {
    return ek_error_set(EK_ERR_SHAPE, "%s: %" PRId64 " factors for %" PRId64 " losses",
                        criterion->ops->kind, ek_tensor_count(factors), wanted);
  }
  if (factors->type != pass->losses.type) {
    return ek_error_set(EK_ERR_TYPE, "%s: factors is %s, but the losses are %s",
                        criterion->ops->kind, ek_type_name(factors->type),
                        ek_type_name(pass->losses.type));
  }
  return EK_OK;
}

/* A criterion of the program's own may forget one. */
static ek_status check_gradients(const ek_criterion_pass *pass, const ek_tensor *outputs,
                                 const ek_tensor *gradients) {
  for (size_t i = 0; i < pass->counts.outputs; i++) {
    EK_TRY(check_tensor(pass, "gradient", i, &gradients[i]));
    if (!ek_tensor_same_shape(&gradients[i], &outputs[i])) {
      return ek_error_set(EK_ERR_SHAPE, "%s: gradient %zu has not the shape and type of its output",
                          pass->criterion->ops->kind, i);
    }
  }
  return EK_OK;
}

static ek_status check_backward(const ek_criterion_pass *pass, const ek_tensor *outputs,
                                const ek_tensor *targets, const ek_tensor *scales,
                                const ek_tensor *factors, const ek_tensor *gradients) {
  const ek_criterion *criterion = pass->criterion;
  if (pass->phase != EK__CRITERION_FORWARD_DONE) {
    return ek_error_set(EK_ERR_STATE, "%s: backward without a forward before it",
                        criterion->ops->kind);
  }
  EK_TRY(ek__criterion_unchanged(criterion, &pass->counts));
  EK_TRY(check_tensors(pass, "output", outputs, pass->counts.outputs));
  EK_TRY(check_tensors(pass, "target", targets, pass->counts.targets));
  EK_TRY(check_terms(pass, "scales", scales, 1));
  EK_TRY(check_factors(pass, factors));
  if (gradients == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: gradients is NULL", criterion->ops->kind);
  }
  for (size_t i = 0; i < pass->counts.outputs; i++) {
    if (ek_tensor_exists(&gradients[i])) {
      return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: gradient %zu is not a struct of zeros",
                          criterion->ops->kind, i);
    }
  }
  return EK_OK;
}

/* Forward has written the gradients over the outputs. */
static ek_status share_outputs(const ek_criterion_pass *pass, const ek_tensor *outputs,
                               ek_tensor *gradients) {
  for (size_t i = 0; i < pass->counts.outputs; i++) {
    EK_TRY(ek_tensor_share(&gradients[i], &outputs[i]));
  }
  return EK_OK;
}

ek_status ek_criterion_pass_run_backward(ek_criterion_pass *pass, const ek_tensor *outputs,
                                         const ek_tensor *targets, const ek_tensor *scales,
                                         const ek_tensor *factors, ek_tensor *gradients) {
  if (pass == NULL) return no_pass();
  EK_TRY(check_backward(pass, outputs, targets, scales, factors, gradients));
  const ek_criterion *criterion = pass->criterion;
  pass->phase = EK__CRITERION_IN_BACKWARD;
  pass->factors = factors;
  const uint64_t errors = ek__error_number();
  ek_status status = pass->gradient_written ? share_outputs(pass, outputs, gradients)
                                            : criterion->ops->backward(criterion, pass, outputs,
                                                                       targets, scales, gradients);
  if (status == EK_OK) status = check_gradients(pass, outputs, gradients);
  if (status != EK_OK) {
    ek__error_name(criterion->ops->kind, status, errors);
    for (size_t i = 0; i < pass->counts.outputs; i++) ek_tensor_free(&gradients[i]);
  }
  /* The outputs may be overwritten by now: whatever happened, there is no second backward. The
   * losses stay, they belong to the forward. */
  while (pass->saved_count > 0) ek_tensor_free(&pass->saved[--pass->saved_count]);
  pass->factors = NULL;
  pass->gradient_written = false;
  pass->phase = EK__CRITERION_IDLE;
  return status;
}

ek_status ek_criterion_pass_last_losses(ek_tensor *losses, const ek_criterion_pass *pass) {
  if (pass == NULL) return no_pass();
  if (losses == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "criterion pass: losses is NULL");
  }
  if (!ek_tensor_exists(&pass->losses)) {
    return ek_error_set(EK_ERR_STATE, "%s: there are no losses: %s", pass->criterion->ops->kind,
                        pass->criterion->reduction == EK_REDUCTION_NONE
                            ? "no forward has run"
                            : "the reduction is not none");
  }
  *losses = pass->losses;
  return EK_OK;
}
