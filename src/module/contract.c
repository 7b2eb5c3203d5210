/*
 * contract.c - what a module must give and take back, checked when its function returns.
 *
 * A module of a program's own may forget an output, give memory of the host, take back less than it
 * saved or keep its workspace. The next module would crash or get the blame, so every forward and
 * backward is checked at once and the message names the module.
 *
 * For that a pass with gradient keeps a record of each forward: how many tensors were saved before
 * and after it, and types and shapes of its inputs and outputs (not the tensors, so that none is
 * held longer). A backward looks up the record of its forward and drops it, together with those of
 * children whose backward was never called because the module did their work itself
 * (ek_pass_child_enter()). A forward that ran without saving has a record too, so that its backward
 * is refused until it has run again; what it calls has none. The tables stay with the pass, so that
 * a step allocates nothing once they have grown.
 */
#include <evenkeel/pass.h>

#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sizes.h"
#include "device/flaw.h"
#include "device/types.h"
#include "module/pass_internal.h"
#include "op/op_internal.h"

/* ---- single tensors ---- */

static const char *place_of(const ek_tensor *tensor) {
  return tensor->device == NULL ? "in host memory" : ek_device_name(tensor->device);
}

/* Messages here do not name the module of the tensor: ek__name_failure() puts it before them. */
static ek_status check_place(const char *what, size_t index, const ek_pass *pass,
                             const ek_tensor *tensor) {
  EK__FAIL_IF(tensor->device != pass->replica->device, EK_ERR_DEVICE,
              "%s number %zu is %s%s, expected on %s", what, index,
              tensor->device == NULL ? "" : "on ", place_of(tensor),
              ek_device_name(pass->replica->device));
  char text[EK__FLAW_TEXT];
  const char *flaw = ek__tensor_flaw(text, tensor);
  if (flaw == NULL) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE, "%s number %zu has %s", what, index, flaw);
}

ek_status ek__check_tensors(const char *who, const ek_pass *pass, const ek_tensor *tensors,
                            size_t count) {
  for (size_t i = 0; i < count; i++) {
    EK__FAIL_IF(!ek_tensor_exists(&tensors[i]), EK_ERR_INVALID_ARGUMENT,
                "%s: tensor number %zu is NULL or absent", who, i);
    EK__FAIL_IF(tensors[i].device != pass->replica->device, EK_ERR_DEVICE,
                "%s: tensor number %zu is %s%s, the replica on %s", who, i,
                tensors[i].device == NULL ? "" : "on ", place_of(&tensors[i]),
                ek_device_name(pass->replica->device));
    char text[EK__FLAW_TEXT];
    const char *flaw = ek__tensor_flaw(text, &tensors[i]);
    EK__FAIL_IF(flaw != NULL, EK_ERR_INVALID_ARGUMENT, "%s: tensor number %zu has %s", who, i,
                flaw);
  }
  return EK_OK;
}

static ek_tensor extent_of(const ek_tensor *tensor) {
  ek_tensor extent = *tensor;
  extent.memory = NULL;
  extent.device = NULL;
  extent.data = NULL;
  return extent;
}

/* Checks that a tensor has the shape and type of `extent`: a gradient and its tensor. */
static ek_status check_extent(const char *what, size_t index, const ek_tensor *tensor,
                              const ek_tensor *extent) {
  EK__FAIL_IF(tensor->type != extent->type, EK_ERR_TYPE, "%s number %zu is %s, expected %s", what,
              index, ek_type_name(tensor->type), ek_type_name(extent->type));
  if (ek_tensor_same_shape(tensor, extent)) return EK_OK;
  char is[EK__OP_SHAPE_TEXT], expected[EK__OP_SHAPE_TEXT];
  return ek_error_set(EK_ERR_SHAPE, "%s number %zu is [%s], expected [%s]", what, index,
                      ek__op_shape_text(is, tensor), ek__op_shape_text(expected, extent));
}

/* ---- records ---- */

ek_status ek__record_push(size_t *record, ek_pass *pass, const struct ek__frame *of,
                          const ek_tensor *inputs) {
  const struct ek__node *node = of->node;
  const size_t extents = pass->extent_count, more = node->inputs + node->outputs;
  EK_TRY(ek__grow(&pass->records, &pass->record_capacity, pass->record_count + 1,
                  sizeof *pass->records, "the records of a pass"));
  EK_TRY(ek__grow(&pass->extents, &pass->extent_capacity, extents + more, sizeof *pass->extents,
                  "the records of a pass"));
  for (size_t i = 0; i < node->inputs; i++) pass->extents[extents + i] = extent_of(&inputs[i]);
  pass->extent_count += more;
  *record = pass->record_count++;
  pass->records[*record] = (struct ek__record){.node = node,
                                               .saved = of->saving,
                                               .promise = of->promise,
                                               .precision = of->precision,
                                               .children = of->children,
                                               .cast = of->cast,
                                               .below = pass->saved_count,
                                               .above = pass->saved_count,
                                               .extents = extents};
  pass->records[*record].promise.totals = NULL; /* a loan of the forward's */
  return EK_OK;
}

size_t ek__record_find(const ek_pass *pass, const struct ek__node *node) {
  for (size_t i = pass->record_count; i-- > pass->frame->records;) {
    if (pass->records[i].node == node) return i;
  }
  return EK__NO_RECORD;
}

void ek__record_drop(ek_pass *pass, size_t record) {
  const struct ek__record *dropped = &pass->records[record];
  while (pass->saved_count > dropped->below) ek__saved_drop(pass);
  pass->extent_count = dropped->extents;
  pass->record_count = record;
}

/* ---- when a function returns ---- */

/*
 * Workspace must be free when the function that took it returns. The ledger shows it: on a busy
 * device nothing else takes memory of this category.
 */
static ek_status check_workspace(const ek_pass *pass) {
  if (!pass->frame->workspace.taken) return EK_OK;
  ek_memory_usage usage;
  EK_TRY(ek_memory_stats(&usage, pass->replica->device));
  const uint64_t now = usage.current[EK_MEMORY_WORKSPACE], before = pass->frame->workspace.before;
  if (now <= before) return EK_OK;
  char size[32];
  return ek_error_set(EK_ERR_STATE, "it returned without freeing %s of workspace",
                      ek__size_text(size, sizeof size, now - before));
}

/* How many of the tensors are in `memory`. */
static int uses(const ek_memory *memory, const ek_tensor *tensors, size_t count) {
  int found = 0;
  for (size_t i = 0; i < count; i++) found += tensors[i].memory == memory;
  return found;
}

/*
 * Every output must hold a reference of its own. y = x holds none: then the memory has fewer
 * references than the outputs, the saved tensors and the caller, whose loan it is, need. Such a
 * tensor is cleared so that the caller's reference is not dropped with it.
 */
static ek_status check_references(const ek_pass *pass, const char *what, ek_tensor *given,
                                  size_t count, const ek_tensor *loans, size_t loan_count) {
  for (size_t i = 0; i < count; i++) {
    const ek_memory *memory = given[i].memory;
    if (memory == NULL) continue;
    const bool lent = uses(memory, loans, loan_count) > 0 || ek__pass_was_lent(pass, memory);
    int expected = uses(memory, given, count) + lent;
    if (lent && pass->saved_count > pass->frame->floor) {
      expected +=
          uses(memory, pass->saved + pass->frame->floor, pass->saved_count - pass->frame->floor);
    }
    if (ek_tensor_holders(&given[i]) >= expected) continue;
    given[i] = (ek_tensor){0};
    return ek_error_set(EK_ERR_STATE,
                        "%s number %zu holds no reference: it is a copy of a struct, where "
                        "ek_tensor_share() would have made a tensor",
                        what, i);
  }
  return EK_OK;
}

ek_status ek__check_totals(const ek_pass *pass, const struct ek__node *node,
                           const ek_tensor *totals) {
  const ek_tensor wanted = {.type = EK_F64, .rank = 2, .shape = {(int64_t)node->terms, 2}};
  EK__FAIL_IF(node->terms == 0, EK_ERR_INVALID_ARGUMENT, "%s is not a criterion and has no totals",
              ek_module_kind(node->module));
  EK_TRY(check_place("totals, output", 0, pass, totals));
  return check_extent("totals, output", 0, totals, &wanted);
}

/* Checks an output other than totals. `type`: of floating ones. */
static ek_status check_output(const ek_pass *pass, const struct ek__node *node, size_t index,
                              const ek_tensor *output, ek_type type) {
  EK__FAIL_IF(!ek_tensor_exists(output), EK_ERR_STATE, "it did not set output number %zu", index);
  EK_TRY(check_place("output", index, pass, output));
  EK__FAIL_IF(ek__type_is_floating(output->type) && output->type != type, EK_ERR_TYPE,
              "output number %zu is %s, expected %s", index, ek_type_name(output->type),
              ek_type_name(type));
  if (node != pass->replica->layout.root) return EK_OK;
  EK__FAIL_IF(!ek__type_is_floating(output->type) && pass->options.gradient, EK_ERR_TYPE,
              "output number %zu is %s, which has no gradient", index, ek_type_name(output->type));
  const int64_t samples = pass->options.samples, rows = output->rank == 0 ? 0 : output->shape[0];
  if (samples == 0 || output->rank == 0 || (rows > 0 && rows % samples == 0)) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE,
                      "output number %zu has %lld rows, expected a multiple of the %lld samples",
                      index, (long long)rows, (long long)samples);
}

/* A kernel reads its inputs as numbers of the type ek_pass_type(), so they must have it. Casts have
 * been made. */
ek_status ek__check_inputs(const ek_pass *pass, const ek_tensor *inputs, size_t count) {
  const ek_type type = ek__pass_values(pass);
  for (size_t i = 0; i < count; i++) {
    EK__FAIL_IF(ek__type_is_floating(inputs[i].type) && inputs[i].type != type, EK_ERR_TYPE,
                "input number %zu is %s, but the module runs in %s", i,
                ek_type_name(inputs[i].type), ek_type_name(type));
  }
  return EK_OK;
}

ek_status ek__check_forward(ek_pass *pass, const struct ek__node *node, size_t record,
                            const ek_tensor *inputs, ek_tensor *outputs, bool predict) {
  const size_t count = predict ? node->predictions : node->outputs;
  const ek_type type = ek__pass_values(pass);
  const bool losses = !predict && node->terms > 0; /* single ones are sums */
  EK_TRY(check_references(pass, "output", outputs, count, inputs,
                          node->inputs - (predict ? node->targets : 0)));
  for (size_t i = 0; i < count; i++) {
    const bool totals = losses && i == 0 && ek_tensor_exists(&outputs[0]);
    EK_TRY(totals
               ? ek__check_totals(pass, node, &outputs[0])
               : check_output(pass, node, i, &outputs[i], losses ? ek_type_of_sums(type) : type));
  }
  EK_TRY(check_workspace(pass));
  if (record == EK__NO_RECORD) return EK_OK;
  ek_tensor *extents = &pass->extents[pass->records[record].extents + node->inputs];
  for (size_t i = 0; i < node->outputs; i++) extents[i] = extent_of(&outputs[i]);
  pass->records[record].above = pass->saved_count;
  return EK_OK;
}

static ek_status check_grad_outputs(const ek_pass *pass, const struct ek__record *of,
                                    const ek_tensor *grad_outputs) {
  static const char *const what = "the gradient of output";
  const ek_tensor *extents = &pass->extents[of->extents + of->node->inputs];
  EK__FAIL_IF(!of->saved, EK_ERR_STATE, "its forward ran without saving and was not run again");
  if (pass->saved_count != of->above) {
    const bool more = pass->saved_count > of->above;
    return ek_error_set(EK_ERR_STATE, "tensors that %s: %zu",
                        more ? "were saved after its forward remain"
                             : "its forward saved are gone",
                        more ? pass->saved_count - of->above : of->above - pass->saved_count);
  }
  for (size_t i = 0; i < of->node->outputs; i++) {
    if (!ek__type_is_floating(extents[i].type)) continue;
    EK__FAIL_IF(!ek_tensor_exists(&grad_outputs[i]), EK_ERR_INVALID_ARGUMENT,
                "%s number %zu is missing", what, i);
    EK_TRY(check_place(what, i, pass, &grad_outputs[i]));
    ek_tensor extent = extents[i];
    if (of->cast.outputs != 0) extent.type = of->cast.outputs;
    EK_TRY(check_extent(what, i, &grad_outputs[i], &extent));
  }
  return EK_OK;
}

ek_status ek__check_grad_outputs(const ek_pass *pass, size_t record,
                                 const ek_tensor *grad_outputs) {
  const struct ek__record *of = &pass->records[record];
  const ek_status status = check_grad_outputs(pass, of, grad_outputs);
  if (status == EK_OK) return EK_OK;
  char path[EK__PATH_SIZE];
  return ek_error_set(status, "backward of %s: %s", ek__node_path(path, of->node),
                      ek_error_message());
}

static ek_status check_grad_input(const ek_pass *pass, size_t index, const ek_tensor *gradient,
                                  const ek_tensor *input, bool is_target) {
  static const char *const what = "the gradient of input";
  const bool exists = ek_tensor_exists(gradient);
  EK__FAIL_IF(input != NULL && exists != (ek__type_is_floating(input->type) && !is_target),
              EK_ERR_STATE,
              exists ? "%s number %zu was given, but the input is %s"
                     : "%s number %zu was not given; the input is %s",
              what, index, is_target ? "a target" : ek_type_name(input->type));
  if (!exists) return EK_OK;
  EK_TRY(check_place(what, index, pass, gradient));
  return input == NULL ? EK_OK : check_extent(what, index, gradient, input);
}

ek_status ek__check_backward(const ek_pass *pass, const struct ek__node *node, size_t record,
                             const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const ek_tensor *inputs =
      record == EK__NO_RECORD ? NULL : &pass->extents[pass->records[record].extents];
  if (grad_inputs != NULL) {
    EK_TRY(check_references(pass, "the gradient of input", grad_inputs, node->inputs, grad_outputs,
                            node->outputs));
  }
  for (size_t i = 0; grad_inputs != NULL && i < node->inputs; i++) {
    EK_TRY(check_grad_input(pass, i, &grad_inputs[i], inputs == NULL ? NULL : &inputs[i],
                            i >= node->inputs - node->targets));
  }
  EK_TRY(check_workspace(pass));
  if (record == EK__NO_RECORD || pass->saved_count == pass->records[record].below) return EK_OK;
  return ek_error_set(EK_ERR_STATE, "saved tensors (activations) not taken back: %zu",
                      pass->saved_count - pass->records[record].below);
}

void ek__name_failure(ek_pass *pass, const char *function, ek_status status, uint64_t before) {
  const uint64_t now = ek__error_number();
  if (now != before && now == pass->named) return;
  char path[EK__PATH_SIZE];
  ek_error_set(status, "%s, %s: %s", ek__node_path(path, pass->frame->node), function,
               ek__error_words(status, before));
  pass->named = ek__error_number();
}
