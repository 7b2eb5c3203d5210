/*
 * criterion.c - the base of every criterion, on that of a module.
 */
#include <evenkeel/criterion.h>

#include "core/error.h"
#include "core/options.h"

ek_status ek_criterion_check(const ek_criterion *criterion) {
  EK__NOT_NULL("criterion", criterion);
  const struct ek__module_private *base = &criterion->base.private_members;
  EK__FAIL_IF(base->ops == NULL, EK_ERR_INVALID_ARGUMENT,
              "the criterion has no functions; call ek_criterion_init() first");
  const size_t outputs = base->inputs > base->targets ? base->inputs - base->targets : 0;
  const size_t results = criterion->private_members.reduction == EK_REDUCTION_NONE ? 2 : 1;
  EK_TRY(
      ek__check_count("criterion", base->ops->kind, "targets", base->targets, 0, EK_MAX_TENSORS));
  EK_TRY(ek__check_count("criterion", base->ops->kind, "outputs of a model", outputs, 1,
                         EK_MAX_TENSORS));
  EK_TRY(ek__check_count("criterion", base->ops->kind, "terms", base->terms, 1, EK_MAX_TERMS));
  const bool predicts = EK__TABLE_SLOT(base->ops, predict) != NULL;
  EK_TRY(ek__check_count("criterion", base->ops->kind, "predictions", base->predictions, 0,
                         predicts && base->targets > 0 ? EK_MAX_TENSORS : 0));
  return ek__check_count("criterion", base->ops->kind, "results with its reduction", base->outputs,
                         results, results);
}

ek_status ek_criterion_init_with(ek_criterion *criterion, const ek_module_ops *ops,
                                 const ek_criterion_options *options) {
  ek_criterion_options o = EK_CRITERION_OPTIONS_INIT;
  EK__NOT_NULL("ek_criterion_init", criterion, ops);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_criterion_options"));
  ek_criterion made = {.private_members = {o.reduction, o.coefficients}};
  struct ek__module_private *base = &made.base.private_members;
  EK_TRY(ek_module_init(&made.base, ops, 1, o.reduction == EK_REDUCTION_NONE ? 2 : 1));
  EK__FAIL_IF((unsigned)o.reduction > EK_REDUCTION_NONE, EK_ERR_INVALID_ARGUMENT,
              "%s: unknown reduction %d; expected EK_REDUCTION_NONE, _MEAN or "
              "_SUM", ops->kind, (int)o.reduction);
  base->criterion = true;
  base->inputs = o.outputs + o.targets;
  base->targets = o.targets;
  base->terms = o.terms;
  base->predictions = o.predictions;
  EK_TRY(ek_criterion_check(&made));
  *criterion = made;
  return EK_OK;
}

ek_status ek_criterion_init(ek_criterion *criterion, const ek_module_ops *ops, size_t outputs,
                            size_t targets, ek_reduction reduction) {
  ek_criterion_options options = EK_CRITERION_OPTIONS_INIT;
  options.outputs = outputs;
  options.targets = targets;
  options.reduction = reduction;
  return ek_criterion_init_with(criterion, ops, &options);
}

ek_reduction ek_criterion_reduction(const ek_criterion *criterion) {
  return criterion == NULL ? EK_REDUCTION_MEAN : criterion->private_members.reduction;
}

const double *ek_criterion_coefficients(const ek_criterion *criterion) {
  return criterion == NULL ? NULL : criterion->private_members.coefficients;
}

size_t ek_criterion_outputs(const ek_criterion *criterion) {
  const ek_module *base = criterion == NULL ? NULL : &criterion->base;
  return ek_module_inputs(base) - ek_module_targets(base);
}

ek_criterion *ek_criterion_of(ek_module *module) {
  return ek_module_is_criterion(module) ? (ek_criterion *)module : NULL;
}

ek_criterion *ek_criterion_share(ek_criterion *criterion) {
  ek_module_share(criterion == NULL ? NULL : &criterion->base);
  return criterion;
}

void ek_criterion_free(ek_criterion *criterion) {
  if (criterion != NULL) ek_module_free(&criterion->base);
}

EK__OPTIONS_INIT(ek_criterion_options, EK_CRITERION_OPTIONS_INIT)
