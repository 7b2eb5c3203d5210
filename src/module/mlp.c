/*
 * mlp.c - linear layers with an activation between them, as a sequential: the layers are the
 * children "0", "2", "4", ... and the activations those between.
 */
#include <evenkeel/mlp.h>

#include <evenkeel/activation.h>
#include <evenkeel/linear.h>
#include <evenkeel/sequential.h>

#include "core/alloc.h"
#include "core/error.h"

static ek_status make_layers(ek_module **layers, const int64_t *sizes, size_t count,
                             ek_activation activation) {
  for (size_t i = 0; i + 1 < count; i++) {
    EK_TRY(ek_linear_create(&layers[2 * i], sizes[i], sizes[i + 1], true));
    if (i + 2 == count) break;
    EK_TRY(ek_activation_create(&layers[2 * i + 1], activation));
  }
  return EK_OK;
}

ek_status ek_mlp_create(ek_module **module, const int64_t *sizes, size_t count,
                        ek_activation activation) {
  EK__NOT_NULL("mlp", module, sizes);
  EK__FAIL_IF(count < 2, EK_ERR_INVALID_ARGUMENT, "mlp: %zu sizes, expected 2 or more", count);
  /* A caller's array of `count` sizes exists, so twice as many pointers cannot overflow. */
  const size_t layer_count = 2 * (count - 1) - 1;
  ek_module **layers = NULL;
  EK_TRY(ek__new(&layers, layer_count, sizeof *layers, "a model's layers"));
  ek_status status = make_layers(layers, sizes, count, activation);
  if (status == EK_OK) status = ek_sequential_create(module, layers, layer_count);
  for (size_t i = 0; i < layer_count; i++) ek_module_free(layers[i]); /* it keeps its own */
  ek__free(layers);
  return status;
}
