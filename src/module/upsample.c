/*
 * upsample.c - pictures of another height and width.
 */
#include <evenkeel/upsample.h>

#include <inttypes.h>

#include <evenkeel/pool.h>

#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "module/layer_internal.h"

struct upsample {
  ek_module base;
  ek_upsample_options options;
};

static ek_status upsample_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                  ek_tensor *outputs) {
  const ek_upsample_options *o = &((const struct upsample *)self)->options;
  const ek_tensor *x = &inputs[0];
  ek_tensor empty = {0};
  EK_TRY(ek__layer_check(pass, x, -1));
  EK__FAIL_IF(x->rank != 4, EK_ERR_SHAPE,
              "input has rank %d, expected 4 (images, height, width, channels)", x->rank);
  int64_t shape[] = {x->shape[0], o->to[0], o->to[1], x->shape[3]};
  for (int i = 1; i < 3 && o->to[0] == 0; i++) {
    EK__FAIL_IF(!ek__multiply(&shape[i], x->shape[i], o->factor), EK_ERR_OVERFLOW,
                "the sizes of the output do not fit in 63 bits");
  }
  EK_TRY(ek_pass_output(&outputs[0], pass, x->type, 4, shape));
  EK_TRY(ek_op_resample_forward(ek_pass_stream(pass), &outputs[0], x, o->align_corners));
  /* Backward needs the shape of x alone. */
  const int64_t none[] = {0, x->shape[1], x->shape[2], x->shape[3]};
  EK_TRY(ek_pass_output(&empty, pass, x->type, 4, none));
  const ek_status status = ek_pass_save(pass, &empty);
  ek_tensor_free(&empty);
  return status;
}

static ek_status upsample_backward(const ek_module *self, ek_pass *pass,
                                   const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const ek_tensor *dy = &grad_outputs[0];
  ek_tensor like = {0};
  EK_TRY(ek_pass_take(&like, pass));
  const int64_t shape[] = {dy->shape[0], like.shape[1], like.shape[2], like.shape[3]};
  ek_tensor_free(&like);
  if (grad_inputs == NULL) return EK_OK;
  EK_TRY(ek_pass_output(&grad_inputs[0], pass, dy->type, 4, shape));
  return ek_op_resample_backward(ek_pass_stream(pass), &grad_inputs[0], dy,
                                 ((const struct upsample *)self)->options.align_corners);
}

static const ek_module_ops upsample_ops = {
    EK__LAYER("upsample", upsample_forward, upsample_backward, ek__layer_free)};

ek_status ek_upsample_create(ek_module **module, const ek_upsample_options *options) {
  struct upsample made = {.options = EK_UPSAMPLE_OPTIONS_INIT};
  const ek_upsample_options *o = &made.options;
  EK_TRY(ek__options_read(&made.options, sizeof made.options, options, "ek_upsample_options"));
  EK__FAIL_IF(o->factor <= 0 || o->to[0] < 0 || o->to[1] < 0 || (o->to[0] == 0) != (o->to[1] == 0),
              EK_ERR_INVALID_ARGUMENT,
              "upsample: to is %" PRId64 " x %" PRId64 " and factor %" PRId64
              ", expected both above 0 or both 0, and above 0",
              o->to[0], o->to[1], o->factor);
  return ek__layer_create(module, &made, sizeof made, &upsample_ops, 1, 1);
}

EK__OPTIONS_INIT(ek_upsample_options, EK_UPSAMPLE_OPTIONS_INIT)
