/*
 * joins.c - the table of joins: which neighbours among the steps of a chain run in one go.
 *
 * Modules declare what they compute (ek_formula), so modules of a program's own and wrapped ones
 * take part. If a child takes part in a join in either direction, neither of its functions is
 * called: in the other direction, where it runs alone, the chain computes its formula. The chain
 * alone decides what is saved, and when.
 *
 * A row's operation is defined as its parts one after the other. A backend may decline a product
 * with GELU (matmul_fused in kernels.h), and then the operation runs the parts.
 */
#include "module/joins.h"

#include <evenkeel/elementwise.h>

/* ---- steps ---- */

static const ek_module *module_of(const struct ek__chain *chain, size_t i) {
  if (ek__step_kind(chain, i) != EK__STEP_CHILD) return NULL;
  return chain->node->children[ek__step_child(chain, i)]->module;
}

bool ek__takes_shared(const struct ek__chain *chain, size_t i) {
  const ek_module *module = module_of(chain, i);
  return chain->shared > 0 && module != NULL && ek_module_inputs(module) == 1 + chain->shared;
}

size_t ek__step_inputs(const struct ek__chain *chain, size_t i) {
  const ek_module *module = module_of(chain, i);
  return module == NULL || ek__takes_shared(chain, i) ? 1 : ek_module_inputs(module);
}

size_t ek__step_outputs(const struct ek__chain *chain, size_t i) {
  const ek_module *module = module_of(chain, i);
  return module == NULL ? 1 : ek_module_outputs(module);
}

void ek__step_formula(ek_formula *formula, const struct ek__chain *chain, size_t i) {
  if (ek__step_kind(chain, i) == EK__STEP_CHILD) {
    ek_module_formula(formula, module_of(chain, i));
    return;
  }
  const size_t activation = ek__step_code(chain, i) % EK_CHAIN_MULTIPLY_CHILD(0);
  *formula = (ek_formula){.kind = EK_FORMULA_ACTIVATION, .activation = (ek_activation)activation};
}

enum ek__part ek__part_of(ek_formula *formula, const struct ek__chain *chain, size_t i) {
  if (ek__step_kind(chain, i) == EK__STEP_ADD) return EK__PART_ADD;
  if (ek__step_kind(chain, i) == EK__STEP_MULTIPLY) return EK__PART_MULTIPLY;
  ek__step_formula(formula, chain, i);
  switch (formula->kind) {
  case EK_FORMULA_LINEAR: return EK__PART_LINEAR;
  case EK_FORMULA_NORM:
  case EK_FORMULA_RMS_NORM: return EK__PART_NORM;
  case EK_FORMULA_ACTIVATION:
    if (i + 1 < chain->count && ek__step_kind(chain, i + 1) == EK__STEP_MULTIPLY) {
      return EK__PART_GATE;
    }
    if (ek_activation_keeps_result(formula->activation)) return EK__PART_RESULT;
    return formula->activation == EK_ACTIVATION_GELU ? EK__PART_GELU : EK__PART_OTHER;
  default: return EK__PART_OTHER;
  }
}

/* Whether the input of step i is also that of a shortcut. */
static bool begins_branch(const struct ek__chain *chain, size_t i) {
  return i < chain->branched && (i == 0 || ek__ends_branch(chain, i - 1));
}

size_t ek__last_result(const struct ek__chain *chain, size_t begin, size_t end) {
  while (end > begin && ek__step_kind(chain, end - 1) == EK__STEP_ADD) {
    end--;
    const bool reads = ek__step_child(chain, end) != SIZE_MAX && begins_branch(chain, end);
    if (reads) return SIZE_MAX; /* the child reads what the step before gives */
  }
  return end > begin ? end - 1 : SIZE_MAX;
}

/* ---- the table of joins ---- */

#define PART(name) EK__PART_##name
static const struct ek__join joins[] = {
    {EK__JOINED_LINEAR_GELU, /* ek_op_linear_gelu() */
     .count = 2, .parts = {PART(LINEAR), PART(GELU)}, .forward = true},
    {EK__JOINED_GATE, /* ek_op_gate_forward(), ek_op_gate_backward() */
     .count = 2, .parts = {PART(GATE), PART(MULTIPLY)}, .forward = true, .backward = true},
    {EK__JOINED_ADD_NORM, /* ek_op_add_layer_norm_forward() */
     .count = 2, .parts = {PART(ADD), PART(NORM)}, .cut = true, .forward = true},
    {EK__JOINED_GELU_LINEAR, /* ek_op_gelu_linear_backward() */
     .count = 3, .before = 1, .parts = {PART(LINEAR), PART(GELU), PART(LINEAR)}, .backward = true},
    {EK__JOINED_RESULT, /* over its input, and back over the gradient, where nothing holds these */
     .count = 1, .parts = {PART(RESULT)}, .cut = true, .forward = true, .backward = true},
    {EK__JOINED_NORM_ADD, /* ek_op_layer_norm_backward(), with the gradient past the norm */
     .count = 1, .parts = {PART(NORM)}, .branches = true, .cut = true, .backward = true},
};
enum { JOINS = sizeof joins / sizeof joins[0] };

/* The join's parts are the chain's steps from `first` on, of which number `known` is `part`. */
static bool matches(const struct ek__join *join, const struct ek__chain *chain, size_t first,
                    size_t known, enum ek__part part) {
  ek_formula formula;
  if (join->parts[known] != part || first + join->count > chain->count) return false;
  if (join->branches && !begins_branch(chain, first)) return false;
  for (size_t k = 0; k < join->count; k++) {
    if (k != known && ek__part_of(&formula, chain, first + k) != join->parts[k]) return false;
  }
  return true;
}

/* Step i is part of a join that is not `cut`, and not the first; or of any join. */
static bool joined(const struct ek__chain *chain, size_t i, bool any) {
  ek_formula formula;
  const enum ek__part part = ek__part_of(&formula, chain, i);
  if (part == EK__PART_OTHER) return false;
  for (const struct ek__join *join = joins; join < joins + JOINS; join++) {
    for (size_t k = any ? 0 : 1; k < join->count && k <= i; k++) {
      if ((any || !join->cut) && matches(join, chain, i - k, k, part)) return true;
    }
  }
  return false;
}

bool ek__is_joined(const struct ek__chain *chain, size_t i) { return joined(chain, i, true); }

bool ek__may_begin(const struct ek__chain *chain, size_t i) {
  return (i >= chain->branched || ek__ends_branch(chain, i - 1)) && !joined(chain, i, false);
}

const struct ek__join *ek__join_forward(const struct ek__chain *chain, size_t i, size_t end) {
  ek_formula formula;
  const enum ek__part part = ek__part_of(&formula, chain, i);
  if (part == EK__PART_OTHER) return NULL;
  for (const struct ek__join *join = joins; join < joins + JOINS; join++) {
    if (!join->forward || i + join->count > end) continue;
    if (matches(join, chain, i, 0, part)) return join;
  }
  return NULL;
}

const struct ek__join *ek__join_backward(const struct ek__chain *chain, size_t i) {
  ek_formula formula;
  const enum ek__part part = ek__part_of(&formula, chain, i);
  if (part == EK__PART_OTHER) return NULL;
  for (const struct ek__join *join = joins; join < joins + JOINS; join++) {
    const size_t last = join->count - 1;
    if (join->backward && i >= last && matches(join, chain, i - last, last, part)) return join;
  }
  return NULL;
}

bool ek__is_norm(const struct ek__chain *chain, size_t i) {
  ek_formula formula;
  return ek__part_of(&formula, chain, i) == EK__PART_NORM;
}
