/*
 * fcn.h - a fully convolutional network for segmentation (Long, Shelhamer, Darrell 2015) on a
 * ResNet, with the names and the values of torchvision's fcn_resnet50().
 *
 * Input pictures [B, H, W, channels]; output logits [B, H, W, classes] and, with `auxiliary`, a
 * second output of the same shape, made of the third stage. The last two stages of the backbone
 * keep the size of their pictures and have dilated convolutions instead, so features are of H / 8 x
 * W / 8 pixels; a head makes classes of them (3 x 3 convolution, batch norm, ReLU, dropout, 1 x 1
 * convolution), which become H x W by bilinear means.
 *
 * The loss of both outputs is a weighted sum (weighted_sum.h): torchvision trains with 1 and 0.5.
 *
 * Names are those of torchvision: "backbone.layer4.2.conv3.weight", "classifier.4.bias",
 * "aux_classifier.0.weight".
 */
#ifndef EVENKEEL_FCN_H
#define EVENKEEL_FCN_H

#include <evenkeel/resnet.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_fcn_options {
  size_t size;
  int64_t classes; /* above 0 */
  bool auxiliary;  /* there is a second output */
  double dropout;  /* in the heads: 0 <= p < 1 */
  const ek_resnet_options *backbone; /* copied; its classes mean nothing. NULL: depth 50 */
} ek_fcn_options;
#define EK_FCN_OPTIONS_INIT                                                                        \
  {                                                                                                \
    .size = sizeof(ek_fcn_options), .classes = 21, .auxiliary = true, .dropout = 0.1,              \
    .backbone = NULL                                                                               \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_fcn_options_init(ek_fcn_options *options, size_t size);

/* EK_ERR_INVALID_ARGUMENT for classes that are not above 0, a dropout outside of its range, and
 * options of the backbone that ek_resnet_create() refuses. */
EK_API EK_CHECKED ek_status ek_fcn_create(ek_module **module, const ek_fcn_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_FCN_H */
