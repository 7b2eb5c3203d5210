/*
 * pool2d.c - pooling of pictures.
 *
 * Backward needs the shape of x alone, which is kept as a tensor without rows, and of a largest
 * number its place.
 */
#include <evenkeel/pool2d.h>

#include "core/error.h"
#include "core/options.h"
#include "module/layer_internal.h"

struct pool2d {
  ek_module base;
  ek_pooling pooling;
  bool global; /* windows are whole pictures, and the output is [B, C] */
};

static ek_pooling pooling_of(const ek_module *self, const int64_t x_shape[4]) {
  const struct pool2d *m = (const struct pool2d *)self;
  ek_pooling pooling = m->pooling;
  for (int i = 0; i < 2 && m->global; i++) pooling.kernel[i] = pooling.stride[i] = x_shape[1 + i];
  return pooling;
}

static ek_status check_input(const ek_pass *pass, const ek_tensor *x) {
  EK_TRY(ek__layer_check(pass, x, -1));
  EK__FAIL_IF(x->rank != 4, EK_ERR_SHAPE,
              "input has rank %d, expected 4 (images, height, width, channels)", x->rank);
  return EK_OK;
}

static ek_status save_shape(ek_pass *pass, const ek_tensor *x) {
  const int64_t shape[] = {0, x->shape[1], x->shape[2], x->shape[3]};
  ek_tensor empty = {0};
  EK_TRY(ek_pass_output(&empty, pass, x->type, 4, shape));
  const ek_status status = ek_pass_save(pass, &empty);
  ek_tensor_free(&empty);
  return status;
}

/* ---- the largest ---- */

static ek_status max_pool2d_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                    ek_tensor *outputs) {
  const ek_tensor *x = &inputs[0];
  ek_tensor places = {0};
  int64_t shape[4];
  EK_TRY(check_input(pass, x));
  const ek_pooling pooling = pooling_of(self, x->shape);
  EK_TRY(ek_pooling_shape(shape, x->shape, &pooling));
  EK_TRY(ek_pass_output(&outputs[0], pass, x->type, 4, shape));
  EK_TRY(ek_pass_output(&places, pass, EK_I32, 4, shape));
  ek_status status =
      ek_op_max_pool_forward(ek_pass_stream(pass), &outputs[0], &places, x, &pooling);
  if (status == EK_OK) status = ek_pass_save(pass, &places);
  ek_tensor_free(&places);
  return status == EK_OK ? save_shape(pass, x) : status;
}

enum { SAVED_PLACES, SAVED_SHAPE, SAVED };

static ek_status max_pool2d_backward(const ek_module *self, ek_pass *pass,
                                     const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const ek_tensor *dy = &grad_outputs[0];
  ek_tensor saved[SAVED];
  ek_status status = EK_OK;
  EK_TRY(ek__layer_take(saved, pass, SAVED));
  int64_t shape[4];
  for (int d = 0; d < 4; d++) shape[d] = d == 0 ? dy->shape[0] : saved[SAVED_SHAPE].shape[d];
  const ek_pooling pooling = pooling_of(self, shape);
  if (grad_inputs == NULL) goto cleanup;
  EK_TRY_GOTO(status, ek_pass_output(&grad_inputs[0], pass, dy->type, 4, shape), cleanup);
  status = ek_op_max_pool_backward(ek_pass_stream(pass), &grad_inputs[0], dy, &saved[SAVED_PLACES],
                                   &pooling);
cleanup:
  ek__free_all(saved, SAVED);
  return status;
}

/* ---- means ---- */

/* A view of [B, C] as [B, 1, 1, C]; a loan. */
static ek_tensor as_picture(const ek_tensor *tensor) {
  ek_tensor view = *tensor;
  if (tensor->rank == 4) return view;
  view.rank = 4;
  view.shape[3] = tensor->shape[1];
  view.shape[1] = view.shape[2] = 1;
  return view;
}

static ek_status average_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                 ek_tensor *outputs) {
  const ek_tensor *x = &inputs[0];
  int64_t shape[4];
  EK_TRY(check_input(pass, x));
  const ek_pooling pooling = pooling_of(self, x->shape);
  EK_TRY(ek_pooling_shape(shape, x->shape, &pooling));
  if (((const struct pool2d *)self)->global) {
    const int64_t flat[] = {x->shape[0], x->shape[3]};
    EK_TRY(ek_pass_output(&outputs[0], pass, x->type, 2, flat));
  } else {
    EK_TRY(ek_pass_output(&outputs[0], pass, x->type, 4, shape));
  }
  ek_tensor y = as_picture(&outputs[0]);
  EK_TRY(ek_op_average_pool_forward(ek_pass_stream(pass), &y, x, &pooling));
  return save_shape(pass, x);
}

static ek_status average_backward(const ek_module *self, ek_pass *pass,
                                  const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const ek_tensor dy = as_picture(&grad_outputs[0]);
  ek_tensor like = {0};
  EK_TRY(ek_pass_take(&like, pass));
  const int64_t shape[] = {dy.shape[0], like.shape[1], like.shape[2], like.shape[3]};
  ek_tensor_free(&like);
  if (grad_inputs == NULL) return EK_OK;
  const ek_pooling pooling = pooling_of(self, shape);
  EK_TRY(ek_pass_output(&grad_inputs[0], pass, dy.type, 4, shape));
  return ek_op_average_pool_backward(ek_pass_stream(pass), &grad_inputs[0], &dy, &pooling);
}

/* ---- making one ---- */

static const ek_module_ops max_pool2d_ops = {
    EK__LAYER("max_pool2d", max_pool2d_forward, max_pool2d_backward, ek__layer_free)};
static const ek_module_ops average_pool2d_ops = {
    EK__LAYER("average_pool2d", average_forward, average_backward, ek__layer_free)};
static const ek_module_ops global_average_pool_ops = {
    EK__LAYER("global_average_pool", average_forward, average_backward, ek__layer_free)};

static ek_status create(ek_module **module, const ek_module_ops *ops, const ek_pooling *options) {
  const int64_t large[] = {0, INT64_MAX / 2, INT64_MAX / 2, 1};
  int64_t shape[4];
  struct pool2d made = {.pooling = EK_POOLING_INIT};
  EK_TRY(ek__options_read(&made.pooling, sizeof made.pooling, options, "ek_pooling"));
  EK_TRY(ek_pooling_shape(shape, large, &made.pooling));
  return ek__layer_create(module, &made, sizeof made, ops, 1, 1);
}

ek_status ek_max_pool2d_create(ek_module **module, const ek_pooling *options) {
  return create(module, &max_pool2d_ops, options);
}

ek_status ek_average_pool2d_create(ek_module **module, const ek_pooling *options) {
  ek_pooling o = EK_POOLING_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_pooling"));
  EK__FAIL_IF(o.dilation[0] != 1 || o.dilation[1] != 1, EK_ERR_INVALID_ARGUMENT,
              "average_pool2d: dilation is %lld x %lld, expected 1 x 1", (long long)o.dilation[0],
              (long long)o.dilation[1]);
  return create(module, &average_pool2d_ops, options);
}

ek_status ek_global_average_pool_create(ek_module **module) {
  const struct pool2d made = {.pooling = EK_POOLING_INIT, .global = true};
  return ek__layer_create(module, &made, sizeof made, &global_average_pool_ops, 1, 1);
}
