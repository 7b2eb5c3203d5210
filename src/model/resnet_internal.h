/*
 * resnet_internal.h - parts of a ResNet, of which fcn.c makes its backbone.
 */
#ifndef EK_RESNET_INTERNAL_H
#define EK_RESNET_INTERNAL_H

#include <evenkeel/resnet.h>

#include "module/composite.h"

struct ek__resnet {
  ek_resnet_options options; /* checked */
  ek_batch_norm_options norm;
  bool dilated[4]; /* a stage keeps the size of its pictures, and looks further instead */
};

/* The options, checked. */
ek_status ek__resnet_read(struct ek__resnet *resnet, const ek_resnet_options *options);

/* Channels of a stage's result. */
int64_t ek__resnet_channels(const struct ek__resnet *resnet, int stage);

/* Adds a convolution without a bias, and a batch norm that begins with this weight. */
ek_status ek__resnet_add_convolution(struct ek__composite *m, const char *name, int64_t in,
                                     int64_t out, int64_t kernel, int64_t stride, int64_t dilation);
ek_status ek__resnet_add_norm(struct ek__composite *m, const char *name, int64_t channels,
                              const struct ek__resnet *resnet, double weight);
ek_status ek__resnet_add_relu(struct ek__composite *m, const char *name);

/* Adds what comes before the first stage, and the four stages "layer1" to "layer4". */
ek_status ek__resnet_add_stages(struct ek__composite *m, const struct ek__resnet *resnet);

#endif /* EK_RESNET_INTERNAL_H */
