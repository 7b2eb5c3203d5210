/*
 * children.c - calls of children, and of the whole model, which is the pass's own child: checks of
 * what the caller gives, and the stages of a pass. run.c runs the modules.
 */
#include <string.h>

#include "core/error.h"
#include "core/options.h"
#include "module/layer_internal.h"
#include "module/pass_internal.h"

/* ---- children ---- */

ek_status ek_pass_child_forward_with(ek_tensor *outputs, ek_pass *pass, size_t child,
                                     const ek_tensor *inputs, const ek_child_options *options) {
  static const char *const who = "ek_pass_child_forward";
  const struct ek__node *node = NULL;
  ek_child_options o = EK_CHILD_OPTIONS_INIT;
  EK__NOT_NULL(who, pass, inputs, outputs);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_child_options"));
  EK__FAIL_IF(o.precision != EK_PRECISION_DEFAULT && o.precision != EK_PRECISION_F32 &&
                  o.precision != EK_PRECISION_F64 && o.precision != pass->replica->precision,
              EK_ERR_UNSUPPORTED, "%s: a child runs in f32 or f64, not in %s", who,
              ek_precision_name(o.precision));
  EK_TRY(ek__child_node(&node, who, pass, child));
  EK_TRY(ek__check_tensors(who, pass, inputs, node->inputs));
  return ek__run_forward(pass, node, inputs, outputs, &o, false);
}

ek_status ek_pass_child_forward(ek_tensor *outputs, ek_pass *pass, size_t child,
                                const ek_tensor *inputs) {
  return ek_pass_child_forward_with(outputs, pass, child, inputs, NULL);
}

ek_status ek_pass_child_predict(ek_tensor *outputs, ek_pass *pass, size_t child,
                                const ek_tensor *inputs) {
  static const char *const who = "ek_pass_child_predict";
  const struct ek__node *node = NULL;
  const ek_child_options options = EK_CHILD_OPTIONS_INIT;
  EK__NOT_NULL(who, pass, inputs, outputs);
  EK_TRY(ek__child_node(&node, who, pass, child));
  EK_TRY(ek__check_tensors(who, pass, inputs, ek__node_given(node, true)));
  return ek__run_forward(pass, node, inputs, outputs, &options, true);
}

ek_status ek_pass_child_backward(ek_tensor *grad_inputs, ek_pass *pass, size_t child,
                                 const ek_tensor *grad_outputs) {
  const struct ek__node *node = NULL;
  EK__NOT_NULL("ek_pass_child_backward", pass, grad_outputs);
  EK_TRY(ek__child_node(&node, "ek_pass_child_backward", pass, child));
  EK__FAIL_IF(!pass->frame->saving, EK_ERR_STATE,
              "ek_pass_child_backward: no gradient is requested");
  return ek__run_backward(pass, node, grad_outputs, grad_inputs);
}

/* ---- the whole model ---- */

static ek_status rest(const ek_pass *pass, bool last) {
  if (pass->lender == NULL || pass->lender->rest == NULL) return EK_OK;
  return pass->lender->rest(pass->lender, last);
}

static ek_status run_root(ek_tensor *outputs, ek_pass *pass, const ek_tensor *inputs,
                          const char *who, bool predict) {
  EK__NOT_NULL(who, pass, inputs, outputs);
  EK__FAIL_IF(pass->stage != EK__PASS_OPENED || (predict && pass->options.gradient), EK_ERR_STATE,
              "%s: this pass has already run%s", who, predict ? ", or is with gradient" : "");
  ek_child_options options = EK_CHILD_OPTIONS_INIT;
  const struct ek__node *root = pass->replica->layout.root;
  const size_t input_count = ek__node_given(root, predict);
  const size_t output_count = predict ? root->predictions : root->outputs;
  EK_TRY(ek__layout_check(&pass->replica->layout));
  EK_TRY(ek__check_tensors(who, pass, inputs, input_count));
  pass->stage = EK__PASS_BROKEN;
  ek_tensor given[EK_MAX_TENSORS];
  options.promise = pass->options.promise;
  for (size_t i = 0; i < root->inputs - root->targets && options.promise.overwrite_inputs; i++) {
    pass->lent[i] = inputs[i].memory;
  }
  EK_TRY(ek__run_forward(pass, root, inputs, given, &options, predict));
  const bool charge = predict || root->terms == 0; /* totals are no outputs */
  ek_status status = ek__charge_outputs(given, charge ? output_count : 0, inputs, input_count);
  if (status == EK_OK) status = rest(pass, !pass->options.gradient);
  if (status != EK_OK) {
    ek__free_all(given, output_count);
    return status;
  }
  memcpy(outputs, given, output_count * sizeof *given);
  pass->stage = EK__PASS_RAN_FORWARD;
  return EK_OK;
}

ek_status ek_pass_run_forward(ek_tensor *outputs, ek_pass *pass, const ek_tensor *inputs) {
  return run_root(outputs, pass, inputs, "ek_pass_run_forward", false);
}

ek_status ek_pass_run_predict(ek_tensor *outputs, ek_pass *pass, const ek_tensor *inputs) {
  return run_root(outputs, pass, inputs, "ek_pass_run_predict", true);
}

ek_status ek_pass_run_backward(ek_tensor *grad_inputs, ek_pass *pass,
                               const ek_tensor *grad_outputs) {
  EK__NOT_NULL("ek_pass_run_backward", pass, grad_outputs);
  EK__FAIL_IF(pass->stage != EK__PASS_RAN_FORWARD || !pass->options.gradient, EK_ERR_STATE,
              "ek_pass_run_backward: no forward with gradient has run before it, or its "
              "backward has already run");
  const struct ek__node *root = pass->replica->layout.root;
  EK_TRY(ek__layout_check(&pass->replica->layout));
  EK_TRY(ek__check_tensors("ek_pass_run_backward", pass, grad_outputs, root->outputs));
  EK_TRY(ek__check_grad_outputs(pass, ek__record_find(pass, root), grad_outputs));
  pass->stage = EK__PASS_BROKEN;
  ek_tensor given[EK_MAX_INPUTS], *const wanted = grad_inputs == NULL ? NULL : given;
  EK_TRY(ek__pass_complete_early(pass));
  EK_TRY(ek__run_backward(pass, root, grad_outputs, wanted));
  ek_status status = ek__postponed_run(pass);
  if (status == EK_OK) status = ek__pass_complete_rest(pass);
  if (status == EK_OK) status = rest(pass, true);
  if (status != EK_OK) {
    ek__free_all(wanted, root->inputs);
    return status;
  }
  if (wanted != NULL) memcpy(grad_inputs, given, root->inputs * sizeof *given);
  pass->stage = EK__PASS_RAN_BACKWARD;
  return EK_OK;
}
