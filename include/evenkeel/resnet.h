/*
 * resnet.h - ResNet (He et al. 2015), with the names and the values of torchvision's.
 *
 * Input pictures [B, H, W, channels]; output logits [B, classes].
 *
 *     convolution 7 x 7, stride 2, batch norm, ReLU, largest of 3 x 3, stride 2
 *     four stages of blocks: y = ReLU(x + branch(x)), where the first block of a stage after the
 *         first halves the pictures, and has a convolution of one pixel instead of x
 *     the mean of all pixels, and a linear layer
 *
 * A branch of depths 18 and 34 has two convolutions of 3 x 3, one of depths 50, 101 and 152 three,
 * of 1 x 1, 3 x 3 with the stride, and 1 x 1 with four times the channels; each is followed by a
 * batch norm (batch_norm.h). Small pictures, such as CIFAR's, begin with a convolution of 3 x 3 and
 * neither stride nor pooling.
 *
 * Names of parameters and buffers are those of torchvision.models.resnet18() and its relatives
 * ("layer1.0.conv1.weight", "layer2.0.downsample.1.running_var", "fc.bias"), and so are the shapes:
 * ek_weights_load() (weights.h) takes such a file as it is.
 */
#ifndef EVENKEEL_RESNET_H
#define EVENKEEL_RESNET_H

#include <evenkeel/batch_norm.h>
#include <evenkeel/recompute.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_resnet_options {
  size_t size;
  int depth;            /* 18, 34, 50, 101 or 152 */
  int64_t classes;      /* above 0 */
  int64_t channels;     /* of the pictures: above 0 */
  int64_t width;        /* channels of the first stage; the others have multiples: above 0 */
  bool small_pictures;  /* the beginning for pictures of about 32 x 32 pixels */
  bool zero_branches;   /* the last norm of each branch begins at 0 (Goyal et al. 2017) */
  const ek_batch_norm_options *norm; /* of every batch norm; copied; NULL: its defaults */
  ek_recompute recompute; /* of the blocks of each stage; with `cheap` of what is in all blocks */
} ek_resnet_options;
#define EK_RESNET_OPTIONS_INIT                                                                     \
  {                                                                                                \
    .size = sizeof(ek_resnet_options), .depth = 18, .classes = 1000, .channels = 3,                \
    .width = 64, .small_pictures = false, .zero_branches = false, .norm = NULL,                    \
    .recompute = {EK_RECOMPUTE_NONE, 0, 0}                                                         \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_resnet_options_init(ek_resnet_options *options, size_t size);

/* Convolutions begin normal with a variance of 2 / (kernel pixels * channels of the result), norms
 * at 1 and 0, the linear layer as ek_linear_create(). EK_ERR_INVALID_ARGUMENT for another depth and
 * sizes that are not above 0. */
EK_API EK_CHECKED ek_status ek_resnet_create(ek_module **module, const ek_resnet_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_RESNET_H */
