/*
 * batch_norm.h - batch normalisation (Ioffe, Szegedy 2015), over a device, all devices, or none.
 *
 * Input and output [..., channels]: [B, C], or images [B, H, W, C]. For each channel, over all rows
 * (pixels) of a batch:
 *
 *     y = (x - mean) / sqrt(variance + epsilon) * weight + bias
 *
 * Parameters: weight [channels] (ones), bias [channels] (zeros), without weight decay. Buffers, by
 * PyTorch's names: running_mean (zeros), running_var (ones), num_batches_tracked (one number). As
 * in PyTorch the variance in y is divided by the number n of rows, that in running_var by n - 1. In
 * evaluation the running ones are used.
 */
#ifndef EVENKEEL_BATCH_NORM_H
#define EVENKEEL_BATCH_NORM_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

/*
 * The rows that the statistics of a training forward are taken over. With micro-batches all of them
 * are of one micro-batch, and the running ones change with each.
 */
typedef enum ek_batch_norm_over {
  /*
   * The device's own rows, as torch.nn.DataParallel and DistributedDataParallel have it. Results
   * depend on the number of devices. The running statistics that stay are those of device 0, which
   * go out to all devices before the next forward. In a model with `reproducible` the rows are
   * those of a grain, and the running statistics those of grain 0: the same bits for any number of
   * devices.
   */
  EK_BATCH_NORM_SHARD = 0,
  /*
   * The rows of all devices of the model, in all processes (synchronised batch norm). Sums and
   * counts are added up in f64, so shards may be uneven, and a device may have no rows. One
   * exchange of 2 channels + 1 numbers in forward, one of 2 channels in backward. The result is
   * that of one device with the whole batch, to rounding. In a model with `reproducible` sums and
   * counts are those of all grains, so it has the same bits on any number of devices.
   */
  EK_BATCH_NORM_ALL = 1,
  /* None: the running ones, in training too, and they do not change. */
  EK_BATCH_NORM_FROZEN = 2
} ek_batch_norm_over;

typedef struct ek_batch_norm_options {
  size_t size;
  ek_batch_norm_over over;
  double epsilon; /* > 0 */
  /*
   * running = (1 - momentum) * running + momentum * batch, up to 1. 0 or less: the average over all
   * batches so far, which is PyTorch's momentum=None. (With PyTorch's momentum=0 they never change;
   * to use them as they are is EK_BATCH_NORM_FROZEN, to have none is track = false.)
   */
  double momentum;
  bool affine; /* there are weight and bias */
  bool frozen; /* weight and bias are (ek_parameter_options) */
  bool track;  /* there are running statistics; without them evaluation uses those of its batch */
  const ek_initializer *weight_start; /* copied, except for values; NULL: ones */
} ek_batch_norm_options;
#define EK_BATCH_NORM_OPTIONS_INIT                                                                 \
  {                                                                                                \
    .size = sizeof(ek_batch_norm_options), .over = EK_BATCH_NORM_SHARD, .epsilon = 1e-5,           \
    .momentum = 0.1, .affine = true, .frozen = false, .track = true, .weight_start = NULL          \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_batch_norm_options_init(ek_batch_norm_options *options, size_t size);

/* With the default options. */
EK_API EK_CHECKED ek_status ek_batch_norm_create(ek_module **module, int64_t channels);

/*
 * `options` NULL gives the defaults. EK_ERR_INVALID_ARGUMENT for channels that are not above 0, an
 * epsilon that is not above 0 and finite, a momentum above 1, an unknown `over`, FROZEN without
 * `track`, and a weight_start without `affine`.
 */
EK_API EK_CHECKED ek_status ek_batch_norm_create_with(ek_module **module, int64_t channels,
                                                      const ek_batch_norm_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_BATCH_NORM_H */
