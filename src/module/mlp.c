/*
 * mlp.c - linear layers with an activation between them, as a sequential: the layers are the
 * children "0", "2", "4", ... and the activations those between.
 */
#include <evenkeel/mlp.h>

#include <evenkeel/activation.h>
#include <evenkeel/linear.h>

#include "core/error.h"
#include "module/composite.h"

static ek_status add_layers(struct ek__composite *m, const int64_t *sizes, size_t count,
                            ek_activation activation) {
  for (size_t i = 0; i + 1 < count; i++) {
    ek_module *layer = NULL;
    EK_TRY(ek_linear_create(&layer, sizes[i], sizes[i + 1], true));
    EK_TRY(ek__composite_add(m, NULL, layer));
    if (i + 2 == count) break;
    EK_TRY(ek_activation_create(&layer, activation));
    EK_TRY(ek__composite_add(m, NULL, layer));
  }
  return EK_OK;
}

ek_status ek_mlp_create(ek_module **module, const int64_t *sizes, size_t count,
                        ek_activation activation) {
  EK__NOT_NULL("mlp", module, sizes);
  EK__FAIL_IF(count < 2, EK_ERR_INVALID_ARGUMENT, "mlp: %zu sizes, expected 2 or more", count);
  struct ek__composite made = {.count = 0};
  return ek__sequential_of(module, &made, add_layers(&made, sizes, count, activation));
}
