/*
 * fcn.c - a fully convolutional network on a ResNet.
 *
 * The backbone gives the results of its fourth stage and, for the second output, of its third. What
 * backward needs of the logits before they become as large as the pictures is their shape.
 */
#include <evenkeel/fcn.h>

#include <inttypes.h>

#include <evenkeel/conv2d.h>
#include <evenkeel/dropout.h>
#include <evenkeel/elementwise.h>
#include <evenkeel/pool.h>

#include "core/error.h"
#include "core/options.h"
#include "model/resnet_internal.h"
#include "module/layer_internal.h"

EK__OPTIONS_INIT(ek_fcn_options, EK_FCN_OPTIONS_INIT)

/* ---- the backbone with two outputs ---- */

enum { LAST, THIRD, FEATURES };

/* All stages except the last. */
static ek_chain first_stages(const ek_module *self) {
  static const size_t steps[] = {0, 1, 2, 3, 4, 5, 6, 7};
  const struct ek__composite *m = (const struct ek__composite *)self;
  ek_chain chain = EK_CHAIN_INIT;
  chain.steps = steps;
  chain.count = m->count - 1;
  chain.recompute = m->recompute;
  return chain;
}

static ek_status backbone_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                  ek_tensor *outputs) {
  const ek_chain chain = first_stages(self);
  EK_TRY(ek_chain_forward(&outputs[THIRD], pass, inputs, &chain));
  return ek_pass_child_forward(&outputs[LAST], pass, chain.count, &outputs[THIRD]);
}

static ek_status backbone_backward(const ek_module *self, ek_pass *pass,
                                   const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const ek_chain chain = first_stages(self);
  ek_tensor third = {0};
  ek_status status = EK_OK;
  EK_TRY(ek_pass_child_backward(&third, pass, chain.count, &grad_outputs[LAST]));
  EK_TRY_GOTO(status, ek_op_add(ek_pass_stream(pass), &third, &third, &grad_outputs[THIRD]),
              cleanup);
  status = ek_chain_backward(grad_inputs, pass, &third, &chain);
cleanup:
  ek_tensor_free(&third);
  return status;
}

static const ek_module_ops backbone_ops = {
    EK__LAYER("fcn_backbone", backbone_forward, backbone_backward, ek__composite_free),
    .parameters = ek__composite_parameters};
static const ek_module_ops plain_backbone_ops = {
    EK__LAYER("fcn_backbone", ek__composite_forward, ek__composite_backward, ek__composite_free),
    .parameters = ek__composite_parameters};

static ek_status add_backbone(struct ek__composite *m, const struct ek__resnet *resnet,
                              bool auxiliary) {
  struct ek__composite made = {.recompute = ek__recompute_within(&resnet->options.recompute)};
  ek_module *backbone = NULL;
  EK_TRY(ek__composite_create(&backbone, &made, sizeof made,
                              auxiliary ? &backbone_ops : &plain_backbone_ops, 1,
                              auxiliary ? FEATURES : 1, ek__resnet_add_stages(&made, resnet)));
  return ek__composite_add(m, "backbone", backbone);
}

static ek_status fill_head(struct ek__composite *m, int64_t in, const struct ek__resnet *resnet,
                           const ek_fcn_options *o) {
  ek_module *dropout = NULL, *classes = NULL;
  EK_TRY(ek__resnet_add_convolution(m, NULL, in, in / 4, 3, 1, 1));
  EK_TRY(ek__resnet_add_norm(m, NULL, in / 4, resnet, 1));
  EK_TRY(ek__resnet_add_relu(m, NULL));
  EK_TRY(ek_dropout_create(&dropout, o->dropout));
  EK_TRY(ek__composite_add(m, NULL, dropout));
  EK_TRY(ek_conv2d_create(&classes, in / 4, o->classes, 1));
  return ek__composite_add(m, NULL, classes);
}

static ek_status add_head(struct ek__composite *m, const char *name, int64_t in,
                          const struct ek__resnet *resnet, const ek_fcn_options *o) {
  struct ek__composite made = {.recompute = ek__recompute_within(&resnet->options.recompute)};
  ek_module *head = NULL;
  EK_TRY(ek__sequential_of(&head, &made, fill_head(&made, in, resnet, o)));
  return ek__composite_add(m, name, head);
}

/* ---- the model ---- */

enum { BACKBONE, HEADS }; /* children: the heads follow the backbone, one for each output */

static size_t outputs_of(const ek_module *self) {
  return ((const struct ek__composite *)self)->count - HEADS;
}

/* One output: what a head makes of features, as large as the picture x. */
static ek_status head_forward(ek_tensor *output, ek_tensor *small, ek_pass *pass, size_t i,
                              const ek_tensor *features, const ek_tensor *x) {
  EK_TRY(ek_pass_child_forward(small, pass, HEADS + i, features));
  const int64_t shape[] = {x->shape[0], x->shape[1], x->shape[2], small->shape[3]};
  EK_TRY(ek_pass_output(output, pass, ek_pass_type(pass), 4, shape));
  return ek_op_resample_forward(ek_pass_stream(pass), output, small, false);
}

static ek_status save_shape(ek_pass *pass, const ek_tensor *small) {
  const int64_t shape[] = {0, small->shape[1], small->shape[2], small->shape[3]};
  ek_tensor empty = {0};
  EK_TRY(ek_pass_output(&empty, pass, small->type, 4, shape));
  const ek_status status = ek_pass_save(pass, &empty);
  ek_tensor_free(&empty);
  return status;
}

static ek_status fcn_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                             ek_tensor *outputs) {
  const ek_tensor *x = &inputs[0];
  ek_tensor features[FEATURES] = {{0}}, small = {0};
  ek_status status = EK_OK;
  EK_TRY(ek__layer_check(pass, x, -1));
  EK__FAIL_IF(x->rank != 4, EK_ERR_SHAPE,
              "input has rank %d, expected 4 (images, height, width, channels)", x->rank);
  EK_TRY(ek_pass_child_forward(features, pass, BACKBONE, x));
  for (size_t i = 0; i < outputs_of(self); i++) {
    ek_tensor_free(&small);
    EK_TRY_GOTO(status, head_forward(&outputs[i], &small, pass, i, &features[i], x), cleanup);
    ek_tensor_free(&features[i]);
  }
  status = save_shape(pass, &small); /* that of all outputs */
cleanup:
  ek_tensor_free(&small);
  ek__free_all(features, FEATURES);
  return status;
}

static ek_status head_backward(ek_tensor *features, ek_pass *pass, size_t i, const ek_tensor *dy,
                               const ek_tensor *like) {
  const int64_t shape[] = {dy->shape[0], like->shape[1], like->shape[2], like->shape[3]};
  ek_tensor small = {0};
  EK_TRY(ek_pass_output(&small, pass, dy->type, 4, shape));
  ek_status status = ek_op_resample_backward(ek_pass_stream(pass), &small, dy, false);
  if (status == EK_OK) status = ek_pass_child_backward(features, pass, HEADS + i, &small);
  ek_tensor_free(&small);
  return status;
}

static ek_status fcn_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                              ek_tensor *grad_inputs) {
  ek_tensor like = {0}, features[FEATURES] = {{0}};
  ek_status status = EK_OK;
  EK_TRY(ek_pass_take(&like, pass));
  for (size_t i = outputs_of(self); i-- > 0;) {
    EK_TRY_GOTO(status, head_backward(&features[i], pass, i, &grad_outputs[i], &like), cleanup);
  }
  status = ek_pass_child_backward(grad_inputs, pass, BACKBONE, features);
cleanup:
  ek__free_all(features, FEATURES);
  ek_tensor_free(&like);
  return status;
}

static const ek_module_ops fcn_ops = {
    EK__LAYER("fcn", fcn_forward, fcn_backward, ek__composite_free),
    .parameters = ek__composite_parameters};

static ek_status fill(struct ek__composite *m, const struct ek__resnet *resnet,
                      const ek_fcn_options *o) {
  EK_TRY(add_backbone(m, resnet, o->auxiliary));
  EK_TRY(add_head(m, "classifier", ek__resnet_channels(resnet, 3), resnet, o));
  if (!o->auxiliary) return EK_OK;
  return add_head(m, "aux_classifier", ek__resnet_channels(resnet, 2), resnet, o);
}

ek_status ek_fcn_create(ek_module **module, const ek_fcn_options *options) {
  ek_fcn_options o = EK_FCN_OPTIONS_INIT;
  ek_resnet_options deep = EK_RESNET_OPTIONS_INIT;
  struct ek__resnet resnet;
  struct ek__composite made = {.children = NULL};
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_fcn_options"));
  deep.depth = 50;
  EK_TRY(ek__resnet_read(&resnet, o.backbone == NULL ? &deep : o.backbone));
  EK__FAIL_IF(o.classes <= 0, EK_ERR_INVALID_ARGUMENT,
              "fcn: %" PRId64 " classes, expected above 0", o.classes);
  EK__FAIL_IF(ek__resnet_channels(&resnet, 2) < 4, EK_ERR_INVALID_ARGUMENT,
              "fcn: the third stage has %" PRId64 " channels, expected at least 4",
              ek__resnet_channels(&resnet, 2));
  resnet.dilated[2] = resnet.dilated[3] = true;
  return ek__composite_create(module, &made, sizeof made, &fcn_ops, 1, o.auxiliary ? 2 : 1,
                              fill(&made, &resnet, &o));
}
