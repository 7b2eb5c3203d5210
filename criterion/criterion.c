/*
 * criterion.c - the base of every criterion, on that of a module.
 */
#include <evenkeel/criterion.h>

#include "core/error.h"
#include "core/options.h"

ek_status ek_criterion_check(const ek_criterion *criterion) {
  EK__NOT_NULL("criterion", criterion);
  EK__FAIL_IF(criterion->base.ops == NULL, EK_ERR_INVALID_ARGUMENT,
              "the criterion has no functions; call ek_criterion_init() first");
  const ek_module *base = &criterion->base;
  const size_t outputs = base->inputs > base->targets ? base->inputs - base->targets : 0;
  const size_t results = criterion->reduction == EK_REDUCTION_NONE ? 2 : 1;
  EK_TRY(
      ek__check_count("criterion", base->ops->kind, "targets", base->targets, 0, EK_MAX_TENSORS));
  EK_TRY(ek__check_count("criterion", base->ops->kind, "outputs of a model", outputs, 1,
                         EK_MAX_TENSORS));
  EK_TRY(ek__check_count("criterion", base->ops->kind, "terms", base->terms, 1, EK_MAX_TERMS));
  return ek__check_count("criterion", base->ops->kind, "results with its reduction", base->outputs,
                         results, results);
}

ek_status ek_criterion_init(ek_criterion *criterion, const ek_module_ops *ops, size_t outputs,
                            size_t targets, ek_reduction reduction) {
  EK__NOT_NULL("ek_criterion_init", criterion, ops);
  ek_criterion made = {.reduction = reduction};
  EK_TRY(ek_module_init(&made.base, ops, 1, reduction == EK_REDUCTION_NONE ? 2 : 1));
  EK__FAIL_IF((unsigned)reduction > EK_REDUCTION_NONE, EK_ERR_INVALID_ARGUMENT,
              "%s: unknown reduction %d; expected EK_REDUCTION_NONE, _MEAN or "
              "_SUM", ops->kind, (int)reduction);
  made.base.inputs = outputs + targets;
  made.base.targets = targets;
  made.base.terms = 1;
  EK_TRY(ek_criterion_check(&made));
  *criterion = made;
  return EK_OK;
}

ek_criterion *ek_criterion_share(ek_criterion *criterion) {
  ek_module_share(criterion == NULL ? NULL : &criterion->base);
  return criterion;
}

void ek_criterion_free(ek_criterion *criterion) {
  if (criterion != NULL) ek_module_free(&criterion->base);
}
