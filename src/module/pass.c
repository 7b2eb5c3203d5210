/*
 * pass.c - one forward and its backward on one device.
 *
 * `running` is the module whose function runs; calling a child makes the child's node the running
 * one and puts the old one back afterwards. So a module's parameter numbers, children and random
 * stream are always those of the node that it runs as. A module that does a child's work itself
 * enters the child's node for as long (`outer` is then its own). What a function gives and leaves
 * behind is checked when it returns: contract.c.
 *
 * Of every parameter the pass knows whether its gradient has been written in this step (`touched`:
 * the first to add overwrites instead, and nothing has to be zeroed before) and how many users have
 * not yet said that they are done (`waiting`).
 *
 * A freed pass stays with its replica, its tables included, so that the next step allocates
 * nothing.
 */
#include <evenkeel/pass.h>

#include <string.h>

#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "module/pass_internal.h"

static ek_status null_argument(const char *who) {
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: an argument is NULL", who);
}

/* ---- opening and closing ---- */

static ek_pass *create(ek_replica *replica) {
  ek_pass *pass = ek__calloc(1, sizeof *pass);
  if (pass == NULL) return NULL;
  pass->replica = replica;
  pass->touched = ek__calloc(replica->layout.parameter_count, sizeof *pass->touched);
  pass->waiting = ek__calloc(replica->layout.parameter_count, sizeof *pass->waiting);
  if (pass->touched == NULL || pass->waiting == NULL) {
    ek__pass_destroy(pass);
    return NULL;
  }
  return pass;
}

void ek__pass_destroy(ek_pass *pass) {
  if (pass == NULL) return;
  ek__free(pass->saved);
  ek__free(pass->frames);
  ek__free(pass->extents);
  ek__free(pass->touched);
  ek__free(pass->waiting);
  ek__free(pass);
}

ek_status ek_pass_open(ek_pass **pass, ek_replica *replica, const ek_pass_options *options) {
  ek_pass_options o = EK_PASS_OPTIONS_INIT;
  if (pass == NULL || replica == NULL) return null_argument("ek_pass_open");
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_pass_options"));
  if (o.first_sample < 0 || o.samples < 0) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "ek_pass_open: options.first_sample is %lld, samples %lld; expected 0 or "
                        "more",
                        (long long)o.first_sample, (long long)o.samples);
  }
  if (o.gradient && ek_tensor_count(&replica->gradients) < replica->layout.flat_count) {
    return ek_error_set(EK_ERR_STATE, "ek_pass_open: the replica holds no gradients");
  }
  ek_pass *result = replica->spare;
  replica->spare = NULL;
  if (result == NULL) result = create(replica);
  if (result == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no host memory for a pass");
  result->options = o;
  result->running = (struct ek__running){.node = replica->layout.root};
  result->frame_count = result->extent_count = 0;
  result->named = 0;
  result->stage = EK__PASS_OPENED;
  for (size_t i = 0; i < replica->layout.parameter_count; i++) {
    const struct ek__parameter *parameter = &replica->layout.parameters[i];
    result->touched[i] = o.accumulate;
    result->waiting[i] = parameter->buffer ? 0 : parameter->users;
  }
  *pass = result;
  return EK_OK;
}

void ek_pass_free(ek_pass *pass) {
  if (pass == NULL) return;
  /* In the order that backward would have: the arena sees the same sequence either way. */
  while (pass->saved_count > 0) ek_tensor_free(&pass->saved[--pass->saved_count]);
  if (pass->replica->spare == NULL) {
    pass->replica->spare = pass;
  } else {
    ek__pass_destroy(pass);
  }
}

/* ---- parameters and gradients ---- */

static ek_status global_index(size_t *global, const char *who, const ek_pass *pass, size_t index) {
  if (pass == NULL) return null_argument(who);
  if (index >= pass->running.node->parameter_count) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: there is no parameter number %zu", who,
                        index);
  }
  *global = pass->running.node->parameters[index];
  return EK_OK;
}

static ek_status gradient_index(size_t *global, const char *who, const ek_pass *pass,
                                size_t index) {
  EK_TRY(global_index(global, who, pass, index));
  if (pass->replica->layout.parameters[*global].buffer) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: %s is a buffer", who,
                        pass->replica->layout.parameters[*global].name);
  }
  if (!pass->options.gradient) {
    return ek_error_set(EK_ERR_STATE, "%s: this pass has no gradient", who);
  }
  return EK_OK;
}

ek_status ek_pass_parameter(ek_tensor *parameter, ek_pass *pass, size_t index) {
  size_t global = 0;
  if (parameter == NULL) return null_argument("ek_pass_parameter");
  EK_TRY(global_index(&global, "ek_pass_parameter", pass, index));
  *parameter = ek__replica_value(pass->replica, global);
  return EK_OK;
}

static ek_status zero_gradient(ek_pass *pass, size_t global) {
  ek_tensor gradient = ek__replica_gradient(pass->replica, global);
  EK_TRY(ek_op_zero(ek_pass_stream(pass), &gradient));
  pass->touched[global] = true;
  return EK_OK;
}

ek_status ek_pass_gradient(ek_tensor *gradient, double *beta, ek_pass *pass, size_t index) {
  size_t global = 0;
  if (gradient == NULL) return null_argument("ek_pass_gradient");
  EK_TRY(gradient_index(&global, "ek_pass_gradient", pass, index));
  if (pass->waiting[global] == 0) {
    return ek_error_set(EK_ERR_STATE,
                        "ek_pass_gradient: the gradient of %s was said to be complete",
                        pass->replica->layout.parameters[global].name);
  }
  if (beta != NULL) {
    *beta = pass->touched[global] ? 1.0 : 0.0;
    pass->touched[global] = true;
  } else if (!pass->touched[global]) {
    EK_TRY(zero_gradient(pass, global));
  }
  *gradient = ek__replica_gradient(pass->replica, global);
  return EK_OK;
}

static ek_status complete(ek_pass *pass, size_t global) {
  if (!pass->touched[global]) EK_TRY(zero_gradient(pass, global));
  if (pass->options.complete == NULL) return EK_OK;
  return pass->options.complete(pass->options.context, pass, global);
}

ek_status ek_pass_gradient_complete(ek_pass *pass, size_t index) {
  size_t global = 0;
  EK_TRY(gradient_index(&global, "ek_pass_gradient_complete", pass, index));
  if (pass->waiting[global] == 0) {
    return ek_error_set(EK_ERR_STATE,
                        "ek_pass_gradient_complete: %s was said to be complete before",
                        pass->replica->layout.parameters[global].name);
  }
  return --pass->waiting[global] == 0 ? complete(pass, global) : EK_OK;
}

/* ---- memory ---- */

ek_status ek_pass_output(ek_tensor *tensor, ek_pass *pass, ek_type type, int rank,
                         const int64_t *shape) {
  if (tensor == NULL || pass == NULL) return null_argument("ek_pass_output");
  return ek_tensor_create(tensor, pass->replica->device, EK_MEMORY_ACTIVATIONS, type, rank, shape);
}

ek_status ek_pass_workspace(ek_tensor *tensor, ek_pass *pass, ek_type type, int rank,
                            const int64_t *shape) {
  if (tensor == NULL || pass == NULL) return null_argument("ek_pass_workspace");
  if (!pass->running.workspace) {
    ek_memory_usage usage;
    EK_TRY(ek_memory_stats(&usage, pass->replica->device));
    pass->running.workspace = true;
    pass->running.workspace_before = usage.current[EK_MEMORY_WORKSPACE];
  }
  return ek_tensor_create(tensor, pass->replica->device, EK_MEMORY_WORKSPACE, type, rank, shape);
}

ek_status ek_pass_save(ek_pass *pass, const ek_tensor *tensor) {
  if (pass == NULL || !ek_tensor_exists(tensor)) return null_argument("ek_pass_save");
  if (!pass->options.gradient) return EK_OK;
  if (!ek__grow(&pass->saved, &pass->saved_capacity, pass->saved_count + 1, sizeof *pass->saved)) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no host memory for the saved tensors");
  }
  EK_TRY(ek_tensor_share(&pass->saved[pass->saved_count], tensor));
  pass->saved_count++;
  return EK_OK;
}

ek_status ek_pass_take(ek_tensor *tensor, ek_pass *pass) {
  if (tensor == NULL || pass == NULL) return null_argument("ek_pass_take");
  if (pass->saved_count <= pass->running.floor) {
    return ek_error_set(EK_ERR_STATE, "it takes more tensors back than it saved");
  }
  *tensor = pass->saved[--pass->saved_count];
  return EK_OK;
}

/* ---- running ---- */

static void free_tensors(ek_tensor *tensors, size_t count) {
  for (size_t i = 0; tensors != NULL && i < count; i++) ek_tensor_free(&tensors[i]);
}

/* What a function gives becomes the caller's when all of it is right: until then it lies here. */
static ek_status run_forward(ek_pass *pass, const struct ek__node *node, const ek_tensor *inputs,
                             ek_tensor *outputs) {
  const ek_module *module = node->module;
  const struct ek__running caller = pass->running;
  ek_tensor given[EK_MAX_TENSORS];
  size_t frame = EK__NO_FRAME;
  memset(given, 0, node->outputs * sizeof *given);
  EK_TRY(ek__frame_push(&frame, pass, node, inputs));
  const size_t saved = pass->saved_count;
  pass->running = (struct ek__running){.node = node, .floor = saved, .frames = pass->frame_count};
  const uint64_t errors = ek__error_number();
  ek_status status = module->ops->forward(module, pass, inputs, given);
  if (status == EK_OK) status = ek__check_forward(pass, node, frame, inputs, given);
  if (status == EK_OK) {
    memcpy(outputs, given, node->outputs * sizeof *given);
  } else {
    ek__name_failure(pass, "forward", status, errors);
    free_tensors(given, node->outputs);
    if (frame != EK__NO_FRAME) ek__frame_drop(pass, frame);
  }
  pass->running = caller;
  return status;
}

static ek_status run_backward(ek_pass *pass, const struct ek__node *node,
                              const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const ek_module *module = node->module;
  const struct ek__running caller = pass->running;
  const size_t frame = ek__frame_find(pass, node);
  ek_tensor given[EK_MAX_TENSORS], *const wanted = grad_inputs == NULL ? NULL : given;
  memset(given, 0, node->inputs * sizeof *given);
  if (frame != EK__NO_FRAME) EK_TRY(ek__check_grad_outputs(pass, frame, grad_outputs));
  pass->running = (struct ek__running){
      .node = node,
      .floor = frame == EK__NO_FRAME ? caller.floor : pass->frames[frame].below,
      .frames = frame == EK__NO_FRAME ? pass->frame_count : frame + 1};
  const uint64_t errors = ek__error_number();
  ek_status status = module->ops->backward(module, pass, grad_outputs, wanted);
  if (status == EK_OK) status = ek__check_backward(pass, node, frame, grad_outputs, wanted);
  if (status != EK_OK) {
    ek__name_failure(pass, "backward", status, errors);
    free_tensors(wanted, node->inputs);
  } else if (wanted != NULL) {
    memcpy(grad_inputs, given, node->inputs * sizeof *given);
  }
  if (frame != EK__NO_FRAME) ek__frame_drop(pass, frame);
  pass->running = caller;
  return status;
}

static ek_status child_node(const struct ek__node **node, const char *who, const ek_pass *pass,
                            size_t child) {
  if (child >= pass->running.node->child_count) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: there is no child number %zu", who, child);
  }
  *node = pass->running.node->children[child];
  return EK_OK;
}

ek_status ek_pass_child_forward(ek_tensor *outputs, ek_pass *pass, size_t child,
                                const ek_tensor *inputs) {
  const struct ek__node *node = NULL;
  if (pass == NULL || inputs == NULL || outputs == NULL)
    return null_argument("ek_pass_child_forward");
  EK_TRY(child_node(&node, "ek_pass_child_forward", pass, child));
  EK_TRY(ek__check_tensors("ek_pass_child_forward", pass, inputs, node->inputs));
  return run_forward(pass, node, inputs, outputs);
}

ek_status ek_pass_child_backward(ek_tensor *grad_inputs, ek_pass *pass, size_t child,
                                 const ek_tensor *grad_outputs) {
  const struct ek__node *node = NULL;
  if (pass == NULL || grad_outputs == NULL) return null_argument("ek_pass_child_backward");
  EK_TRY(child_node(&node, "ek_pass_child_backward", pass, child));
  return run_backward(pass, node, grad_outputs, grad_inputs);
}

ek_status ek_pass_enter(ek_pass *pass, size_t child) {
  const struct ek__node *node = NULL;
  if (pass == NULL) return null_argument("ek_pass_enter");
  if (pass->running.outer != NULL) {
    return ek_error_set(EK_ERR_STATE, "ek_pass_enter: it is in a child already");
  }
  EK_TRY(child_node(&node, "ek_pass_enter", pass, child));
  pass->running.outer = pass->running.node;
  pass->running.node = node;
  return EK_OK;
}

ek_status ek_pass_leave(ek_pass *pass) {
  if (pass == NULL) return null_argument("ek_pass_leave");
  if (pass->running.outer == NULL) {
    return ek_error_set(EK_ERR_STATE, "ek_pass_leave: it has entered no child");
  }
  pass->running.node = pass->running.outer;
  pass->running.outer = NULL;
  return EK_OK;
}

/* What comes out of the root is the model's output, unless it is only an input under another name.
 */
static ek_status charge_outputs(const struct ek__node *root, const ek_tensor *inputs,
                                ek_tensor *outputs) {
  for (size_t i = 0; i < root->outputs; i++) {
    bool is_input = false;
    for (size_t j = 0; j < root->inputs; j++) {
      is_input = is_input || outputs[i].memory == inputs[j].memory;
    }
    if (!is_input) EK_TRY(ek_tensor_charge(&outputs[i], EK_MEMORY_OUTPUTS));
  }
  return EK_OK;
}

ek_status ek_pass_run_forward(ek_tensor *outputs, ek_pass *pass, const ek_tensor *inputs) {
  if (pass == NULL || inputs == NULL || outputs == NULL) {
    return null_argument("ek_pass_run_forward");
  }
  if (pass->stage != EK__PASS_OPENED) {
    return ek_error_set(EK_ERR_STATE, "ek_pass_run_forward: this pass has run before");
  }
  const struct ek__node *root = pass->replica->layout.root;
  EK_TRY(ek__layout_check(&pass->replica->layout));
  EK_TRY(ek__check_tensors("ek_pass_run_forward", pass, inputs, root->inputs));
  pass->stage = EK__PASS_BROKEN;
  ek_tensor given[EK_MAX_TENSORS];
  EK_TRY(run_forward(pass, root, inputs, given));
  const ek_status status = charge_outputs(root, inputs, given);
  if (status != EK_OK) {
    free_tensors(given, root->outputs);
    return status;
  }
  memcpy(outputs, given, root->outputs * sizeof *given);
  pass->stage = EK__PASS_RAN_FORWARD;
  return EK_OK;
}

/* Parameters that no module has spoken of are complete now. */
static ek_status complete_rest(ek_pass *pass) {
  for (size_t i = pass->replica->layout.parameter_count; i-- > 0;) {
    if (pass->waiting[i] == 0) continue;
    pass->waiting[i] = 0;
    EK_TRY(complete(pass, i));
  }
  return EK_OK;
}

ek_status ek_pass_run_backward(ek_tensor *grad_inputs, ek_pass *pass,
                               const ek_tensor *grad_outputs) {
  if (pass == NULL || grad_outputs == NULL) return null_argument("ek_pass_run_backward");
  if (pass->stage != EK__PASS_RAN_FORWARD || !pass->options.gradient) {
    return ek_error_set(EK_ERR_STATE,
                        "ek_pass_run_backward: no forward with gradient has run before it, or the "
                        "backward has run already");
  }
  const struct ek__node *root = pass->replica->layout.root;
  EK_TRY(ek__layout_check(&pass->replica->layout));
  EK_TRY(ek__check_tensors("ek_pass_run_backward", pass, grad_outputs, root->outputs));
  EK_TRY(ek__check_grad_outputs(pass, ek__frame_find(pass, root), grad_outputs));
  pass->stage = EK__PASS_BROKEN;
  ek_tensor given[EK_MAX_TENSORS], *const wanted = grad_inputs == NULL ? NULL : given;
  EK_TRY(run_backward(pass, root, grad_outputs, wanted));
  const ek_status status = complete_rest(pass);
  if (status != EK_OK) {
    free_tensors(wanted, root->inputs);
    return status;
  }
  if (wanted != NULL) memcpy(grad_inputs, given, root->inputs * sizeof *given);
  pass->stage = EK__PASS_RAN_BACKWARD;
  return EK_OK;
}

/* ---- where and how it runs ---- */

ek_module *ek_pass_module(const ek_pass *pass) {
  return pass == NULL ? NULL : pass->replica->module;
}

ek_device *ek_pass_device(const ek_pass *pass) {
  return pass == NULL ? NULL : pass->replica->device;
}

ek_stream *ek_pass_stream(const ek_pass *pass) {
  return pass == NULL ? NULL : ek_device_stream(pass->replica->device, EK_STREAM_COMPUTE);
}

ek_type ek_pass_type(const ek_pass *pass) {
  return pass == NULL ? (ek_type)0 : pass->replica->type;
}

bool ek_pass_wants_gradient(const ek_pass *pass) { return pass != NULL && pass->options.gradient; }

bool ek_pass_is_training(const ek_pass *pass) { return pass != NULL && pass->options.training; }

ek_random_key ek_pass_random(const ek_pass *pass) {
  ek_random_key key = {0, 0, 0};
  if (pass == NULL) return key;
  key.seed = pass->options.seed;
  key.step = pass->options.step;
  key.stream = pass->running.node->stream;
  return key;
}

int64_t ek_pass_first_sample(const ek_pass *pass) {
  return pass == NULL ? 0 : pass->options.first_sample;
}
