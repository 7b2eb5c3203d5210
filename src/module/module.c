/*
 * module.c - modules: made, shared, freed.
 */
#include <evenkeel/module.h>

#include "core/error.h"
#include "core/options.h"
#include "module/layout.h"

static ek_status check_ops(const ek_module_ops *given) {
  ek_module_ops ops = {.size = sizeof ops};
  EK_TRY(ek__options_read(&ops, sizeof ops, given, "ek_module_ops"));
  const char *missing = ops.kind == NULL       ? "kind"
                        : ops.forward == NULL  ? "forward"
                        : ops.backward == NULL ? "backward"
                        : ops.free == NULL     ? "free"
                                               : NULL;
  if (missing == NULL) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: ops.%s is missing",
                      ops.kind == NULL ? "module" : ops.kind, missing);
}

static ek_status check_counts(const ek_module *given) {
  const struct ek__module_private *module = &given->private_members;
  const char *kind = module->ops->kind;
  EK_TRY(ek__check_count("module", kind, "targets", module->targets, 0, EK_MAX_TENSORS));
  EK_TRY(ek__check_count("module", kind, "inputs", module->inputs, module->targets + 1,
                         module->targets + EK_MAX_TENSORS));
  EK_TRY(ek__check_count("module", kind, "terms", module->terms, module->criterion ? 1 : 0,
                         module->criterion ? EK_MAX_TERMS : 0));
  const bool predicts = EK__TABLE_SLOT(module->ops, predict) != NULL;
  EK_TRY(ek__check_count("module", kind, "predictions", module->predictions, 0,
                         predicts && module->targets > 0 ? EK_MAX_TENSORS : 0));
  return ek__check_count("module", kind, "outputs", module->outputs, 1, EK_MAX_TENSORS);
}

ek_status ek_module_init_with(ek_module *module, const ek_module_ops *ops,
                              const ek_module_options *options) {
  ek_module_options o = EK_MODULE_OPTIONS_INIT;
  EK__NOT_NULL("ek_module_init", module, ops);
  EK_TRY(check_ops(ops));
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_module_options"));
  EK_TRY(ek__check_count("module", ops->kind, "targets", o.targets, 0, EK_MAX_TENSORS));
  EK_TRY(ek__check_count("module", ops->kind, "inputs", o.inputs, 1, EK_MAX_TENSORS));
  const ek_module made = {{.ops = ops,
                           .inputs = o.inputs + o.targets,
                           .outputs = o.outputs,
                           .targets = o.targets,
                           .predictions = o.predictions,
                           .references = 1}};
  EK_TRY(check_counts(&made));
  *module = made;
  return EK_OK;
}

ek_status ek_module_init(ek_module *module, const ek_module_ops *ops, size_t inputs,
                         size_t outputs) {
  ek_module_options options = EK_MODULE_OPTIONS_INIT;
  options.inputs = inputs;
  options.outputs = outputs;
  return ek_module_init_with(module, ops, &options);
}

ek_status ek__module_check(const ek_module *module) {
  EK__FAIL_IF(module->private_members.ops == NULL, EK_ERR_INVALID_ARGUMENT,
              "the module has no functions; call ek_module_init() first");
  return check_counts(module);
}

/* ---- what it is ---- */

const ek_module_ops *ek_module_table(const ek_module *module) {
  return module == NULL ? NULL : module->private_members.ops;
}

const char *ek_module_kind(const ek_module *module) {
  const ek_module_ops *ops = ek_module_table(module);
  return ops == NULL ? "" : ops->kind;
}

size_t ek_module_inputs(const ek_module *module) {
  return module == NULL ? 0 : module->private_members.inputs;
}

size_t ek_module_outputs(const ek_module *module) {
  return module == NULL ? 0 : module->private_members.outputs;
}

size_t ek_module_targets(const ek_module *module) {
  return module == NULL ? 0 : module->private_members.targets;
}

size_t ek_module_predictions(const ek_module *module) {
  return module == NULL ? 0 : module->private_members.predictions;
}

bool ek_module_is_criterion(const ek_module *module) {
  return module != NULL && module->private_members.criterion;
}

size_t ek_module_terms(const ek_module *module) {
  return module == NULL ? 0 : module->private_members.terms;
}

bool ek__is_collective(const ek_module *module) {
  const ek_module_ops *ops = ek_module_table(module);
  return EK__TABLE_SLOT(ops, collective);
}

bool ek__mixes_samples(const ek_module *module) {
  const ek_module_ops *ops = ek_module_table(module);
  return EK__TABLE_SLOT(ops, mixes_samples);
}

void ek_module_formula(ek_formula *formula, const ek_module *module) {
  *formula = (ek_formula){.kind = EK_FORMULA_NONE};
  if (ek_module_inputs(module) != 1 || ek_module_outputs(module) != 1) return;
  const ek_module_ops *ops = ek_module_table(module);
  if (EK__TABLE_SLOT(ops, formula) != NULL) ops->formula(module, formula);
}

ek_type ek_module_input_type(const ek_module *module, size_t input) {
  const ek_module_ops *ops = ek_module_table(module);
  if (ops == NULL || input >= ek_module_inputs(module)) return (ek_type)0;
  if (EK__TABLE_SLOT(ops, input_type) == NULL) return (ek_type)0;
  const ek_type type = ops->input_type(module, input);
  return type == EK_I32 || type == EK_I64 ? type : (ek_type)0;
}

ek_module *ek_module_share(ek_module *module) {
  if (module == NULL) return NULL;
  (void)__atomic_fetch_add(&module->private_members.references, 1, __ATOMIC_RELAXED);
  return module;
}

/*
 * A parent's `free` drops its children, whose `free` drop theirs: called within one another, a deep
 * nest would overflow the stack. So a thread that is freeing one already puts it into a queue.
 */
static _Thread_local bool freeing;
static _Thread_local ek_module *to_free;

void ek_module_free(ek_module *module) {
  if (module == NULL) return;
  if (__atomic_fetch_sub(&module->private_members.references, 1, __ATOMIC_ACQ_REL) != 1) return;
  module->private_members.next = to_free;
  to_free = module;
  if (freeing) return;
  freeing = true;
  while (to_free != NULL) {
    ek_module *next = to_free;
    to_free = next->private_members.next;
    next->private_members.ops->free(next);
  }
  freeing = false;
}

EK__OPTIONS_INIT(ek_parameter_options, EK_PARAMETER_OPTIONS_INIT)
EK__OPTIONS_INIT(ek_module_options, EK_MODULE_OPTIONS_INIT)
