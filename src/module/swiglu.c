/*
 * swiglu.c - a feed-forward layer with a gate: a chain of three linears with the product of a gate.
 */
#include <evenkeel/swiglu.h>

#include <evenkeel/linear.h>

#include "core/error.h"
#include "core/options.h"
#include "module/composite.h"
#include "module/layer_internal.h"

enum { GATE, UP, DOWN };
static const size_t steps[] = {GATE, EK_CHAIN_ACTIVATION(EK_ACTIVATION_SILU),
                               EK_CHAIN_MULTIPLY_CHILD(UP), DOWN};

static const ek_module_ops swiglu_ops = {
    EK__LAYER("swiglu", ek__composite_forward, ek__composite_backward, ek__composite_free),
    .parameters = ek__composite_parameters};

ek_status ek_swiglu_create_with(ek_module **module, int64_t width, int64_t hidden,
                                const ek_swiglu_options *options) {
  ek_swiglu_options o = EK_SWIGLU_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_swiglu_options"));
  ek_linear_options linear = EK_LINEAR_OPTIONS_INIT;
  linear.bias = o.bias;
  linear.frozen = o.frozen;
  linear.no_decay = o.no_decay;
  struct ek__composite made = {.steps = steps, .step_count = sizeof steps / sizeof *steps};
  linear.weight_start = o.weight_start;
  ek_status status = ek__composite_add_linear(&made, "gate", width, hidden, &linear);
  if (status == EK_OK) status = ek__composite_add_linear(&made, "up", width, hidden, &linear);
  linear.weight_start = o.down_start;
  if (status == EK_OK) status = ek__composite_add_linear(&made, "down", hidden, width, &linear);
  return ek__composite_create(module, &made, sizeof made, &swiglu_ops, 1, 1, status);
}

ek_status ek_swiglu_create(ek_module **module, int64_t width, int64_t hidden, bool bias) {
  ek_swiglu_options options = EK_SWIGLU_OPTIONS_INIT;
  options.bias = bias;
  return ek_swiglu_create_with(module, width, hidden, &options);
}

EK__OPTIONS_INIT(ek_swiglu_options, EK_SWIGLU_OPTIONS_INIT)
