/*
 * layer_internal.c - what every stock layer begins with.
 */
#include "module/layer_internal.h"

#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"

ek_status ek__layer_create(ek_module **module, const void *description, size_t size,
                           const ek_module_ops *ops, size_t inputs, size_t outputs) {
  ek_module *created = NULL;
  EK__FAIL_IF(module == NULL, EK_ERR_INVALID_ARGUMENT, "%s: module is NULL", ops->kind);
  EK_TRY(ek__new_copy(&created, description, size, ops->kind));
  const ek_status status = ek_module_init(created, ops, inputs, outputs);
  if (status == EK_OK) {
    *module = created;
  } else {
    ek__free(created);
  }
  return status;
}

void ek__layer_free(ek_module *self) { ek__free(self); }

ek_status ek__layer_check(const ek_pass *pass, const ek_tensor *input, int64_t columns) {
  EK__FAIL_IF(!ek_tensor_exists(input), EK_ERR_INVALID_ARGUMENT, "the input is missing");
  EK__FAIL_IF(input->type != ek_pass_type(pass), EK_ERR_TYPE, "input is %s, expected %s",
              ek_type_name(input->type), ek_type_name(ek_pass_type(pass)));
  EK__FAIL_IF(input->rank < 1, EK_ERR_SHAPE, "input has rank 0, expected at least 1");
  const int64_t found = input->shape[input->rank - 1];
  EK__FAIL_IF(columns >= 0 && found != columns, EK_ERR_SHAPE,
              "input has %" PRId64 " columns, expected %" PRId64, found, columns);
  return EK_OK;
}

ek_status ek__layer_check_segments(const ek_tensor *segments, const ek_tensor *x) {
  EK__FAIL_IF(!ek_tensor_exists(segments), EK_ERR_INVALID_ARGUMENT, "the segments are missing");
  EK__FAIL_IF(segments->type != EK_I32, EK_ERR_TYPE, "segments are %s, expected i32",
              ek_type_name(segments->type));
  EK__FAIL_IF(x->rank < 2, EK_ERR_SHAPE,
              "input has rank %d, expected samples and tokens, as there are segments", x->rank);
  EK__FAIL_IF(segments->rank != 2, EK_ERR_SHAPE,
              "segments have rank %d, expected 2 (samples, tokens)", segments->rank);
  const int64_t *has = segments->shape;
  EK__FAIL_IF(has[0] != x->shape[0] || has[1] != x->shape[1], EK_ERR_SHAPE,
              "segments are %" PRId64 " x %" PRId64 ", expected %" PRId64 " x %" PRId64
              ", as the input",
              has[0], has[1], x->shape[0], x->shape[1]);
  return EK_OK;
}

ek_status ek__layer_take(ek_tensor *tensors, ek_pass *pass, size_t count) {
  ek_status status = EK_OK;
  memset(tensors, 0, count * sizeof *tensors);
  for (size_t i = count; i-- > 0 && status == EK_OK;) status = ek_pass_take(&tensors[i], pass);
  if (status != EK_OK) ek__free_all(tensors, count);
  return status;
}

void ek__free_all(ek_tensor *tensors, size_t count) {
  for (size_t i = 0; tensors != NULL && i < count; i++) ek_tensor_free(&tensors[i]);
}

void ek__move_all(ek_tensor *to, ek_tensor *from, size_t count) {
  for (size_t i = 0; i < count; i++) {
    to[i] = from[i];
    from[i] = (ek_tensor){0};
  }
}

ek_status ek__charge_outputs(ek_tensor *outputs, size_t count, const ek_tensor *inputs,
                             size_t input_count) {
  for (size_t i = 0; i < count; i++) {
    bool is_input = false;
    for (size_t j = 0; j < input_count; j++) {
      is_input = is_input || outputs[i].memory == inputs[j].memory;
    }
    if (!is_input) EK_TRY(ek_tensor_set_category(&outputs[i], EK_MEMORY_OUTPUTS));
  }
  return EK_OK;
}

ek_status ek__layer_result(ek_tensor *tensor, ek_pass *pass, const ek_tensor *like) {
  return ek_pass_output(tensor, pass, ek_pass_type(pass), like->rank, like->shape);
}
