/*
 * residual.c - y = x + inner(x).
 */
#include <evenkeel/residual.h>

#include "core/error.h"
#include "module/composite.h"
#include "module/layer_internal.h"

static const size_t steps[] = {0, EK_CHAIN_ADD};

static const ek_module_ops residual_ops = {
    EK__LAYER("residual", ek__composite_forward, ek__composite_backward, ek__composite_free),
    .parameters = ek__composite_parameters, .chain = true};

ek_status ek_residual_create(ek_module **module, ek_module *inner) {
  EK__FAIL_IF(inner == NULL || ek_module_table(inner) == NULL, EK_ERR_INVALID_ARGUMENT,
              "residual: the inner module is NULL or not initialised");
  EK__FAIL_IF(ek_module_inputs(inner) != 1 || ek_module_outputs(inner) != 1,
              EK_ERR_INVALID_ARGUMENT,
              "residual: %s has %zu inputs and %zu outputs, expected 1 and 1",
              ek_module_kind(inner), ek_module_inputs(inner), ek_module_outputs(inner));
  struct ek__composite made = {.steps = steps, .step_count = 2};
  const ek_status status = ek__composite_add(&made, "inner", ek_module_share(inner));
  return ek__composite_create(module, &made, sizeof made, &residual_ops, 1, 1, status);
}
