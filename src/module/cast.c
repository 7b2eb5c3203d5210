/*
 * cast.c - modules that run in another type than the one that calls them.
 *
 * In a pass of 16 bits a module that declares f32 alone runs in f32: its floating inputs are
 * widened before its function and its outputs rounded after it, and the gradients the other way
 * round in backward. A caller may also ask for another type (ek_child_options.precision), and then
 * converts the tensors itself. Inputs of the pass in f32, such as features and targets, are rounded
 * to its type.
 *
 * Parameters that such a module asks for are converted too: from the copies that other modules see,
 * not from the masters, because every device has the copies in all modes. The pass keeps them until
 * the module's function has returned; a module that saves one keeps it longer. Gradients of
 * parameters are f32 in every type, and buffers have the type of the replica.
 *
 * The ledger charges this memory to activations and copies.
 */
#include <evenkeel/convert.h>

#include "core/alloc.h"
#include "core/error.h"
#include "device/types.h"
#include "module/pass_internal.h"

uint32_t ek__cast_set(const ek_tensor *tensors, size_t count, ek_type type) {
  uint32_t set = 0;
  for (size_t i = 0; i < count; i++) {
    if (!ek_tensor_exists(&tensors[i]) || !ek__type_is_floating(tensors[i].type)) continue;
    if (tensors[i].type != type) set |= UINT32_C(1) << i;
  }
  return set;
}

void ek__cast_plan(struct ek__cast *cast, const ek_pass *pass, const struct ek__node *node,
                   const ek_tensor *inputs, size_t count, ek_type type, ek_type outer,
                   bool predict) {
  const bool half = ek__type_is_half(type), root = node == pass->replica->layout.root;
  *cast = (struct ek__cast){0};
  if (type != outer) {
    cast->from = outer;
    if (node->terms == 0 || predict) cast->outputs = outer;
  } else if (root && half && pass->frame == pass->outermost) {
    cast->from = EK_F32;
  } else {
    return;
  }
  for (size_t i = 0; i < count; i++) {
    if (inputs[i].type == cast->from) cast->inputs |= UINT32_C(1) << i;
  }
}

/* ---- tensors ---- */

static ek_status convert(ek_tensor *made, ek_pass *pass, const ek_tensor *given, ek_type type,
                         ek_memory_category category) {
  EK_TRY(ek_tensor_create(made, pass->replica->device, category, type, given->rank, given->shape));
  const ek_status status = ek_op_convert(ek__pass_stream(pass), made, given);
  if (status != EK_OK) ek_tensor_free(made);
  return status;
}

void ek__cast_free(ek_tensor *made, size_t count, uint32_t set) {
  for (size_t i = 0; i < count; i++) {
    if ((set >> i & 1u) != 0) ek_tensor_free(&made[i]);
  }
}

ek_status ek__cast_tensors(ek_tensor *made, ek_pass *pass, const ek_tensor *given, size_t count,
                           uint32_t set, ek_type type) {
  for (size_t i = 0; i < count; i++) {
    made[i] = given[i];
    if ((set >> i & 1u) == 0) continue;
    const ek_status status = convert(&made[i], pass, &given[i], type, EK_MEMORY_ACTIVATIONS);
    if (status != EK_OK) ek__cast_free(made, i, set);
    EK_TRY(status);
  }
  return EK_OK;
}

ek_status ek__cast_move(ek_tensor *owned, ek_pass *pass, size_t count, uint32_t set, ek_type type) {
  for (size_t i = 0; i < count; i++) {
    ek_tensor made = {0};
    if ((set >> i & 1u) == 0) continue;
    EK_TRY(convert(&made, pass, &owned[i], type, EK_MEMORY_ACTIVATIONS));
    ek_tensor_free(&owned[i]);
    owned[i] = made;
  }
  return EK_OK;
}

/* ---- parameters ---- */

ek_status ek__pass_value(ek_tensor *value, const ek_pass *pass, size_t global) {
  const bool lent = pass->lender != NULL && pass->lender->value != NULL;
  if (lent && !pass->replica->layout.parameters[global].buffer) {
    return pass->lender->value(value, pass->lender, global);
  }
  *value = ek__replica_value(pass->replica, global);
  return EK_OK;
}

ek_status ek__cast_parameter(ek_tensor *parameter, ek_pass *pass, size_t number) {
  ek_tensor value;
  for (size_t i = pass->converted_count; i-- > 0;) {
    const struct ek__converted *it = &pass->converted[i];
    if (it->parameter != number || it->value.type != ek__pass_values(pass)) continue;
    *parameter = it->value;
    return EK_OK;
  }
  EK_TRY(ek__pass_value(&value, pass, number));
  EK_TRY(ek__grow(&pass->converted, &pass->converted_capacity, pass->converted_count + 1,
                  sizeof *pass->converted, "parameters of another type"));
  struct ek__converted *last = &pass->converted[pass->converted_count];
  last->parameter = number;
  EK_TRY(convert(&last->value, pass, &value, ek__pass_values(pass), EK_MEMORY_COPIES));
  pass->converted_count++;
  *parameter = last->value;
  return EK_OK;
}

void ek__cast_drop_parameters(ek_pass *pass, size_t count) {
  while (pass->converted_count > count) {
    ek_tensor_free(&pass->converted[--pass->converted_count].value);
  }
}
