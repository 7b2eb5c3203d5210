/*
 * layer_internal.c - what every stock layer begins with.
 */
#include "module/layer_internal.h"

#include <inttypes.h>

#include "core/alloc.h"
#include "core/error.h"

void *ek__layer_create(ek_status *status, ek_module *const *module, size_t size,
                       const ek_module_ops *ops, size_t inputs, size_t outputs) {
  if (module == NULL) {
    *status = ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: module is NULL", ops->kind);
    return NULL;
  }
  ek_module *created = ek__calloc(1, size);
  if (created == NULL) {
    *status = ek_error_set(EK_ERR_OUT_OF_MEMORY, "%s: the host has no memory for %zu bytes",
                           ops->kind, size);
    return NULL;
  }
  *status = ek_module_init(created, ops, inputs, outputs);
  if (*status == EK_OK) return created;
  ek__free(created);
  return NULL;
}

void ek__layer_free(ek_module *self) { ek__free(self); }

ek_status ek__layer_check(const ek_pass *pass, const ek_tensor *input, int64_t columns) {
  EK__FAIL_IF(!ek_tensor_exists(input), EK_ERR_INVALID_ARGUMENT, "there is no input");
  EK__FAIL_IF(input->type != ek_pass_type(pass), EK_ERR_TYPE, "input is %s, expected %s",
              ek_type_name(input->type), ek_type_name(ek_pass_type(pass)));
  EK__FAIL_IF(input->rank < 1, EK_ERR_SHAPE, "input has rank 0, expected at least 1");
  const int64_t found = input->shape[input->rank - 1];
  EK__FAIL_IF(columns >= 0 && found != columns, EK_ERR_SHAPE,
              "input has %" PRId64 " columns, expected %" PRId64, found, columns);
  return EK_OK;
}

ek_status ek__layer_result(ek_tensor *tensor, ek_pass *pass, const ek_tensor *like) {
  return ek_pass_output(tensor, pass, ek_pass_type(pass), like->rank, like->shape);
}
