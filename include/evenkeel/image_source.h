/*
 * image_source.h - labelled pictures as a source (source.h): of MNIST's files, of CIFAR's, and of
 * arrays of the program's.
 *
 * A sample is a picture, u8 [height, width, channels], and its class, or the class of each of its
 * pixels. Pictures stay bytes up to the device, which makes numbers of them on their way
 * (ek_input_scaling of the model's options; ek_image_scaling() makes one of a mean and a standard
 * deviation).
 *
 * With `augment` a sample is cropped at a random place of the padded picture and mirrored with
 * probability 1/2. The place follows from the seed, the epoch and the sample's number alone: a run
 * has the same pictures on any number of devices and processes, and after an interruption.
 *
 * A program with other files makes a source of its own with a function that decodes them.
 */
#ifndef EVENKEEL_IMAGE_SOURCE_H
#define EVENKEEL_IMAGE_SOURCE_H

#include <evenkeel/source.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_image_options {
  size_t size;
  int64_t crop[2]; /* height and width of a sample; 0: those of the pictures */
  int64_t padding; /* pixels of 0 on each side of a picture before it is cropped */
  bool augment;    /* random crops and mirroring; without it the middle is taken */
  bool mirror;     /* with augment */
  uint64_t seed;   /* of the order, the places and the mirroring */
  bool in_order;
} ek_image_options;
#define EK_IMAGE_OPTIONS_INIT                                                                      \
  {                                                                                                \
    .size = sizeof(ek_image_options), .crop = {0, 0}, .padding = 0, .augment = false,              \
    .mirror = true, .seed = 0, .in_order = false                                                   \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_image_options_init(ek_image_options *options, size_t size);

/*
 * A file of pictures and one of their classes in the IDX format of MNIST: u8, with 3 or 4
 * dimensions (number, height, width, channels) and with 1. Pictures of one channel are [height,
 * width, 1]. Classes are u8. The files stay open, and a sample is read from its place.
 * EK_ERR_NOT_FOUND, EK_ERR_IO
 * EK_ERR_CORRUPT      no such file, or one whose length is not what its header says
 * EK_ERR_SHAPE        the files have different numbers of samples; a crop that does not fit
 * EK_ERR_UNSUPPORTED  pictures of more than 12 KiB: map the file, and open it as arrays
 */
EK_API EK_CHECKED ek_status ek_image_source_open_idx(ek_source **source, const char *pictures,
                                                     const char *classes,
                                                     const ek_image_options *options);

/*
 * Files of CIFAR's binary version, by a pattern of the shell ("data_batch_*.bin", "train.bin"):
 * records of one class, or of a coarse and a fine one (`coarse_classes`: CIFAR-100, of which the
 * fine one is taken), and 3 planes of 32 x 32. EK_ERR_CORRUPT for a file that is no whole number of
 * records; other errors as above.
 */
EK_API EK_CHECKED ek_status ek_image_source_open_cifar(ek_source **source, const char *pattern,
                                                       bool coarse_classes,
                                                       const ek_image_options *options);

/* Pictures in memory, loans that must live as long as the source. */
typedef struct ek_image_arrays {
  size_t size;
  int64_t count, height, width, channels; /* each above 0 */
  const uint8_t *pictures;                /* [count, height, width, channels] */
  const int32_t *classes; /* [count]; targets are i32 then. NULL: */
  const uint8_t *maps;    /* the class of each pixel, [count, height, width]; targets are u8 */
  uint8_t outside;        /* the class of pixels of the padding in a map */
} ek_image_arrays;
#define EK_IMAGE_ARRAYS_INIT                                                                       \
  {                                                                                                \
    .size = sizeof(ek_image_arrays), .count = 0, .height = 0, .width = 0, .channels = 3,           \
    .pictures = NULL, .classes = NULL, .maps = NULL, .outside = 255                                \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_image_arrays_init(ek_image_arrays *arrays, size_t size);

/* The pictures of the arrays. EK_ERR_INVALID_ARGUMENT for sizes of 0 or less, and without pictures,
 * or unless classes or maps are given alone; EK_ERR_SHAPE for a crop that does not fit;
 * EK_ERR_OVERFLOW. */
EK_API EK_CHECKED ek_status ek_image_source_open_arrays(ek_source **source,
                                                        const ek_image_arrays *arrays,
                                                        const ek_image_options *options);

/* *scaling makes (u8 / 255 - mean) / deviation of each channel: 1 to EK_MAX_CHANNELS of them, with
 * deviations above 0. EK_ERR_INVALID_ARGUMENT. */
EK_API EK_CHECKED ek_status ek_image_scaling(ek_input_scaling *scaling, const double *mean,
                                             const double *deviation, int64_t channels);

EK_END_DECLARATIONS

#endif /* EVENKEEL_IMAGE_SOURCE_H */
