/*
 * resnet.c - ResNet.
 *
 * A block is a chain, whose residual connection has the projection, if there is one.
 */
#include "model/resnet_internal.h"

#include <inttypes.h>
#include <math.h>

#include <evenkeel/activation.h>
#include <evenkeel/conv2d.h>
#include <evenkeel/pool2d.h>

#include "core/error.h"
#include "core/options.h"
#include "module/layer_internal.h"

EK__OPTIONS_INIT(ek_resnet_options, EK_RESNET_OPTIONS_INIT)

enum { STAGES = 4 };

static const struct kind {
  int depth, blocks[STAGES];
  bool bottleneck;
} kinds[] = {{18, {2, 2, 2, 2}, false},
             {34, {3, 4, 6, 3}, false},
             {50, {3, 4, 6, 3}, true},
             {101, {3, 4, 23, 3}, true},
             {152, {3, 8, 36, 3}, true}};

static const struct kind *kind_of(int depth) {
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    if (kinds[i].depth == depth) return &kinds[i];
  }
  return NULL;
}

ek_status ek__resnet_read(struct ek__resnet *resnet, const ek_resnet_options *options) {
  ek_resnet_options *o = &resnet->options;
  *resnet = (struct ek__resnet){EK_RESNET_OPTIONS_INIT, EK_BATCH_NORM_OPTIONS_INIT, {false}};
  EK_TRY(ek__options_read(o, sizeof *o, options, "ek_resnet_options"));
  EK_TRY(ek__options_read(&resnet->norm, sizeof resnet->norm, o->norm, "ek_batch_norm_options"));
  EK__FAIL_IF(kind_of(o->depth) == NULL, EK_ERR_INVALID_ARGUMENT,
              "resnet: depth is %d, expected 18, 34, 50, 101 or 152", o->depth);
  EK__FAIL_IF(o->classes <= 0 || o->channels <= 0 || o->width <= 0 || o->width > INT32_MAX,
              EK_ERR_INVALID_ARGUMENT,
              "resnet: %" PRId64 " classes, %" PRId64 " channels and width %" PRId64
              ", expected all above 0, and a width of at most %d",
              o->classes, o->channels, o->width, INT32_MAX);
  return ek__recompute_check("resnet", &o->recompute);
}

int64_t ek__resnet_channels(const struct ek__resnet *resnet, int stage) {
  return (resnet->options.width << stage) * (kind_of(resnet->options.depth)->bottleneck ? 4 : 1);
}

/* ---- parts ---- */

ek_status ek__resnet_add_convolution(struct ek__composite *m, const char *name, int64_t in,
                                     int64_t out, int64_t kernel, int64_t stride,
                                     int64_t dilation) {
  const double terms = (double)out * (double)kernel * (double)kernel;
  const ek_initializer start = ek_initializer_normal(0, sqrt(2 / terms));
  const int64_t padding = dilation * (kernel / 2);
  const ek_convolution convolution = {sizeof convolution, {kernel, kernel},     {stride, stride},
                                      {padding, padding}, {dilation, dilation}, 1};
  ek_conv2d_options options = EK_CONV2D_OPTIONS_INIT;
  ek_module *made = NULL;
  options.convolution = &convolution;
  options.bias = false;
  options.weight_start = &start;
  EK_TRY(ek_conv2d_create_with(&made, in, out, &options));
  return ek__composite_add(m, name, made);
}

ek_status ek__resnet_add_norm(struct ek__composite *m, const char *name, int64_t channels,
                              const struct ek__resnet *resnet, double weight) {
  const ek_initializer start = ek_initializer_constant(weight);
  ek_batch_norm_options options = resnet->norm;
  ek_module *made = NULL;
  if (options.affine && weight != 1) options.weight_start = &start;
  EK_TRY(ek_batch_norm_create_with(&made, channels, &options));
  return ek__composite_add(m, name, made);
}

ek_status ek__resnet_add_relu(struct ek__composite *m, const char *name) {
  ek_module *made = NULL;
  EK_TRY(ek_activation_create(&made, EK_ACTIVATION_RELU));
  return ek__composite_add(m, name, made);
}

/* ---- a block ---- */

/* Children: convolution, norm and ReLU in turns, without the last ReLU; the projection, if there is
 * one; the ReLU of the sum. */
static const size_t plain[] = {0, 1, 2, 3, 4, EK_CHAIN_ADD, 5};
static const size_t plain_projected[] = {0, 1, 2, 3, 4, EK_CHAIN_ADD_CHILD(5), 6};
static const size_t bottleneck[] = {0, 1, 2, 3, 4, 5, 6, 7, EK_CHAIN_ADD, 8};
static const size_t bottleneck_projected[] = {0, 1, 2, 3, 4, 5, 6, 7, EK_CHAIN_ADD_CHILD(8), 9};
#define STEPS(table) {table, sizeof table / sizeof *table}
static const struct {
  const size_t *steps;
  size_t count;
} chains[2][2] = {{STEPS(plain), STEPS(plain_projected)},
                  {STEPS(bottleneck), STEPS(bottleneck_projected)}};

static const ek_module_ops block_ops = {
    EK__LAYER("resnet_block", ek__composite_forward, ek__composite_backward, ek__composite_free),
    .parameters = ek__composite_parameters};

struct place { /* of a block */
  int64_t in, middle, out, stride;
  int64_t dilation; /* of its convolution of 3 x 3 */
};

static ek_status add_branch(struct ek__composite *m, const struct place *at,
                            const struct ek__resnet *resnet) {
  const double last = resnet->options.zero_branches ? 0 : 1;
  if (!kind_of(resnet->options.depth)->bottleneck) {
    EK_TRY(ek__resnet_add_convolution(m, "conv1", at->in, at->middle, 3, at->stride, at->dilation));
    EK_TRY(ek__resnet_add_norm(m, "bn1", at->middle, resnet, 1));
    EK_TRY(ek__resnet_add_relu(m, "relu1"));
    EK_TRY(ek__resnet_add_convolution(m, "conv2", at->middle, at->out, 3, 1, at->dilation));
    return ek__resnet_add_norm(m, "bn2", at->out, resnet, last);
  }
  EK_TRY(ek__resnet_add_convolution(m, "conv1", at->in, at->middle, 1, 1, 1));
  EK_TRY(ek__resnet_add_norm(m, "bn1", at->middle, resnet, 1));
  EK_TRY(ek__resnet_add_relu(m, "relu1"));
  EK_TRY(
      ek__resnet_add_convolution(m, "conv2", at->middle, at->middle, 3, at->stride, at->dilation));
  EK_TRY(ek__resnet_add_norm(m, "bn2", at->middle, resnet, 1));
  EK_TRY(ek__resnet_add_relu(m, "relu2"));
  EK_TRY(ek__resnet_add_convolution(m, "conv3", at->middle, at->out, 1, 1, 1));
  return ek__resnet_add_norm(m, "bn3", at->out, resnet, last);
}

static ek_status add_projection(struct ek__composite *m, const struct place *at,
                                const struct ek__resnet *resnet) {
  struct ek__composite made = {.children = NULL};
  ek_module *projection = NULL;
  ek_status status = ek__resnet_add_convolution(&made, NULL, at->in, at->out, 1, at->stride, 1);
  if (status == EK_OK) status = ek__resnet_add_norm(&made, NULL, at->out, resnet, 1);
  EK_TRY(ek__sequential_of(&projection, &made, status));
  return ek__composite_add(m, "downsample", projection);
}

static ek_status block_create(ek_module **module, const struct place *at,
                              const struct ek__resnet *resnet) {
  const bool projects = at->stride != 1 || at->in != at->out;
  const bool deep = kind_of(resnet->options.depth)->bottleneck;
  struct ek__composite made = {.steps = chains[deep][projects].steps,
                               .step_count = chains[deep][projects].count,
                               .recompute = ek__recompute_within(&resnet->options.recompute),
                               .unit = true};
  ek_status status = add_branch(&made, at, resnet);
  if (status == EK_OK && projects) status = add_projection(&made, at, resnet);
  if (status == EK_OK) status = ek__resnet_add_relu(&made, "relu");
  return ek__composite_create(module, &made, sizeof made, &block_ops, 1, 1, status);
}

/* ---- stages ---- */

/* As in torchvision a dilated stage begins with the dilation of the stage before. */
static ek_status add_stage(struct ek__composite *m, int stage, int64_t *channels, int64_t *dilation,
                           const struct ek__resnet *resnet) {
  static const char *const names[] = {"layer1", "layer2", "layer3", "layer4"};
  const int blocks = kind_of(resnet->options.depth)->blocks[stage];
  struct ek__composite made = {.recompute = resnet->options.recompute};
  struct place at = {.in = *channels,
                     .middle = resnet->options.width << stage,
                     .out = ek__resnet_channels(resnet, stage),
                     .stride = stage == 0 || resnet->dilated[stage] ? 1 : 2,
                     .dilation = *dilation};
  ek_module *sequence = NULL;
  ek_status status = EK_OK;
  if (resnet->dilated[stage]) *dilation *= 2;
  for (int i = 0; i < blocks && status == EK_OK; i++) {
    ek_module *block = NULL;
    status = block_create(&block, &at, resnet);
    if (status == EK_OK) status = ek__composite_add(&made, NULL, block);
    at.in = at.out;
    at.stride = 1;
    at.dilation = *dilation;
  }
  *channels = at.out;
  EK_TRY(ek__sequential_of(&sequence, &made, status));
  return ek__composite_add(m, names[stage], sequence);
}

ek_status ek__resnet_add_stages(struct ek__composite *m, const struct ek__resnet *resnet) {
  static const ek_pooling pooling = {sizeof pooling, {3, 3}, {2, 2}, {1, 1}, {1, 1}, true, false};
  const bool small = resnet->options.small_pictures;
  int64_t channels = resnet->options.width, dilation = 1;
  ek_module *largest = NULL;
  EK_TRY(ek__resnet_add_convolution(m, "conv1", resnet->options.channels, channels, small ? 3 : 7,
                                    small ? 1 : 2, 1));
  EK_TRY(ek__resnet_add_norm(m, "bn1", channels, resnet, 1));
  EK_TRY(ek__resnet_add_relu(m, "relu"));
  if (!small) {
    EK_TRY(ek_max_pool2d_create(&largest, &pooling));
    EK_TRY(ek__composite_add(m, "maxpool", largest));
  }
  for (int stage = 0; stage < STAGES; stage++) {
    EK_TRY(add_stage(m, stage, &channels, &dilation, resnet));
  }
  return EK_OK;
}

/* ---- the model ---- */

static const ek_module_ops resnet_ops = {
    EK__LAYER("resnet", ek__composite_forward, ek__composite_backward, ek__composite_free),
    .parameters = ek__composite_parameters};

static ek_status fill(struct ek__composite *m, const struct ek__resnet *resnet) {
  ek_module *mean = NULL;
  EK_TRY(ek__resnet_add_stages(m, resnet));
  EK_TRY(ek_global_average_pool_create(&mean));
  EK_TRY(ek__composite_add(m, "avgpool", mean));
  return ek__composite_add_linear(m, "fc", ek__resnet_channels(resnet, STAGES - 1),
                                  resnet->options.classes, NULL);
}

ek_status ek_resnet_create(ek_module **module, const ek_resnet_options *options) {
  struct ek__resnet resnet;
  EK_TRY(ek__resnet_read(&resnet, options));
  struct ek__composite made = {.recompute = ek__recompute_within(&resnet.options.recompute)};
  return ek__composite_create(module, &made, sizeof made, &resnet_ops, 1, 1, fill(&made, &resnet));
}
