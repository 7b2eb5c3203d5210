/*
 * with_criterion.c - a model and its loss as one module, which is a criterion that looks at the
 * model's inputs.
 *
 * The outputs of the model are charged to `outputs`, as without the criterion. Between forward and
 * backward only modules that have saved them hold them, so the loss can write its gradient over
 * them, also in forward if the scale is known: the scale of the whole is that of the criterion.
 */
#include <evenkeel/with_criterion.h>

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "module/layer_internal.h"
#include "core/options.h"

enum { MODEL, CRITERION }; /* the children */

struct with_criterion {
  ek_criterion base;
  ek_module *model; /* references of its own, to both */
  ek_criterion *criterion;
  size_t inputs, outputs, targets;       /* of the model and the criterion when it was made */
  char name[32], tied[160], source[128]; /* of the criterion; its parameter from here, or "" */
};

/* For a forward without targets. */
static size_t predictions(const ek_module *model, const ek_criterion *criterion) {
  if (ek_module_targets(&criterion->base) == 0) return 0;
  return ek_module_predictions(&criterion->base) > 0 ? ek_module_predictions(&criterion->base)
                                                     : ek_module_outputs(model);
}

static ek_status declare(const ek_module *self, ek_declaration *declaration) {
  const struct with_criterion *w = (const struct with_criterion *)self;
  const ek_module *loss = &w->criterion->base;
  EK__FAIL_IF(ek_module_inputs(w->model) != w->inputs ||
                  ek_module_outputs(w->model) != w->outputs ||
                  ek_module_inputs(loss) != w->outputs + w->targets ||
                  ek_module_targets(loss) != w->targets ||
                  ek_module_terms(loss) != ek_module_terms(self) || ek_module_outputs(loss) != 1 ||
                  ek_module_predictions(self) != predictions(w->model, w->criterion),
              EK_ERR_STATE, "with_criterion: %s or %s changed after they were joined",
              ek_module_kind(w->model), ek_module_kind(loss));
  EK_TRY(ek_declare_wrapped(declaration, w->model));
  EK_TRY(ek_declare_module(declaration, w->name, &w->criterion->base));
  return w->source[0] == '\0' ? EK_OK : ek_declare_tie(declaration, w->tied, w->source);
}

/* Runs the model; its outputs are the caller's, also if this fails. */
static ek_status run_model(const struct with_criterion *w, ek_pass *pass, const ek_tensor *inputs,
                           ek_tensor *given) {
  EK_TRY(ek_pass_child_forward(given, pass, MODEL, inputs));
  return ek__charge_outputs(given, w->outputs, inputs, w->inputs);
}

static ek_status forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                         ek_tensor *outputs) {
  const struct with_criterion *w = (const struct with_criterion *)self;
  ek_tensor given[EK_MAX_INPUTS] = {{0}}, totals[EK_MAX_TENSORS] = {{0}}, place = {0};
  ek_child_options options = EK_CHILD_OPTIONS_INIT;
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, run_model(w, pass, inputs, given), cleanup);
  memcpy(given + w->outputs, inputs + w->inputs, w->targets * sizeof *given);
  EK_TRY_GOTO(status, ek_pass_totals(&place, pass), cleanup);
  options.promise.totals = &place;
  options.promise.overwrite_inputs = true;
  (void)ek_pass_known_scale(&options.promise.gradient_now, pass);
  EK_TRY_GOTO(status, ek_pass_child_forward_with(totals, pass, CRITERION, given, &options),
              cleanup);
  outputs[0] = totals[0];
cleanup:
  ek_tensor_free(&place);
  for (size_t i = 0; i < w->outputs; i++) ek_tensor_free(&given[i]);
  return status;
}

/* The criterion's predictions or, without them, the model's own outputs. */
static ek_status predict(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                         ek_tensor *outputs) {
  const struct with_criterion *w = (const struct with_criterion *)self;
  if (ek_module_predictions(&w->criterion->base) == 0) return run_model(w, pass, inputs, outputs);
  ek_tensor given[EK_MAX_INPUTS] = {{0}};
  ek_status status = run_model(w, pass, inputs, given);
  if (status == EK_OK) status = ek_pass_child_predict(outputs, pass, CRITERION, given);
  for (size_t i = 0; i < w->outputs; i++) ek_tensor_free(&given[i]);
  return status;
}

static ek_status backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                          ek_tensor *grad_inputs) {
  const struct with_criterion *w = (const struct with_criterion *)self;
  ek_tensor gradients[EK_MAX_INPUTS] = {{0}};
  ek_status status = ek_pass_child_backward(gradients, pass, CRITERION, grad_outputs);
  if (status == EK_OK) status = ek_pass_child_backward(grad_inputs, pass, MODEL, gradients);
  for (size_t i = 0; i < w->outputs; i++) ek_tensor_free(&gradients[i]);
  return status;
}

static void release(ek_module *self) {
  struct with_criterion *w = (struct with_criterion *)self;
  ek_module_free(w->model);
  ek_criterion_free(w->criterion);
  ek__free(w);
}

static ek_type input_type(const ek_module *self, size_t input) {
  const struct with_criterion *w = (const struct with_criterion *)self;
  if (input < w->inputs) return ek_module_input_type(w->model, input);
  return ek_module_input_type(&w->criterion->base, w->outputs + input - w->inputs);
}

static const ek_module_ops ops = {EK__LAYER("with_criterion", forward, backward, release),
                                  .parameters = declare, .predict = predict,
                                  .input_type = input_type};

static ek_status check(const ek_module *model, const ek_criterion *criterion) {
  EK_TRY(ek_criterion_check(criterion));
  const char *kind = ek_module_kind(&criterion->base);
  EK__FAIL_IF(ek_module_is_criterion(model) || ek_module_targets(model) > 0,
              EK_ERR_INVALID_ARGUMENT,
              "with_criterion: %s already has targets or a loss; expected a model without "
              "them",
              ek_module_kind(model));
  EK__FAIL_IF(ek_criterion_reduction(criterion) == EK_REDUCTION_NONE, EK_ERR_INVALID_ARGUMENT,
              "with_criterion: %s has reduction none, expected mean or sum", kind);
  if (ek_criterion_outputs(criterion) == ek_module_outputs(model)) return EK_OK;
  return ek_error_set(
      EK_ERR_INVALID_ARGUMENT, "with_criterion: %s takes %zu outputs, but %s has %zu", kind,
      ek_criterion_outputs(criterion), ek_module_kind(model), ek_module_outputs(model));
}

static ek_status keep(char *kept, size_t size, const char *format, const char *first,
                      const char *second) {
  const int length = snprintf(kept, size, format, first, second);
  if (length >= 0 && (size_t)length < size) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "with_criterion: the name %.64s is too long",
                      second[0] == '\0' ? first : second);
}

static ek_status read_options(struct with_criterion *w, const ek_with_criterion_options *options) {
  ek_with_criterion_options o = EK_WITH_CRITERION_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_with_criterion_options"));
  if (o.name == NULL) o.name = "criterion";
  EK__FAIL_IF((o.tied == NULL) != (o.source == NULL), EK_ERR_INVALID_ARGUMENT,
              "with_criterion: a tie needs both options, tied and source, or neither");
  EK_TRY(keep(w->name, sizeof w->name, "%s%s", o.name, ""));
  if (o.tied == NULL) return EK_OK;
  EK_TRY(keep(w->source, sizeof w->source, "%s%s", o.source, ""));
  return keep(w->tied, sizeof w->tied, "%s.%s", o.name, o.tied);
}

ek_status ek_with_criterion_create(ek_module **module, ek_module *model, ek_criterion *criterion) {
  return ek_with_criterion_create_with(module, model, criterion, NULL);
}

ek_status ek_with_criterion_create_with(ek_module **module, ek_module *model,
                                        ek_criterion *criterion,
                                        const ek_with_criterion_options *options) {
  EK__NOT_NULL("with_criterion", module, model, criterion);
  EK_TRY(check(model, criterion));
  struct with_criterion made = {.model = model,
                                .criterion = criterion,
                                .inputs = ek_module_inputs(model),
                                .outputs = ek_module_outputs(model),
                                .targets = ek_module_targets(&criterion->base)};
  EK_TRY(read_options(&made, options));
  ek_criterion_options o = EK_CRITERION_OPTIONS_INIT;
  o.outputs = made.inputs;
  o.targets = made.targets;
  o.terms = ek_module_terms(&criterion->base);
  o.predictions = predictions(model, criterion);
  o.reduction = ek_criterion_reduction(criterion);
  o.coefficients = ek_criterion_coefficients(criterion);
  EK_TRY(ek_criterion_init_with(&made.base, &ops, &o));
  EK_TRY(ek__new_copy(module, &made, sizeof made, "with_criterion"));
  ek_module_share(model);
  ek_criterion_share(criterion);
  return EK_OK;
}

EK__OPTIONS_INIT(ek_with_criterion_options, EK_WITH_CRITERION_OPTIONS_INIT)
