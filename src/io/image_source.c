/*
 * image_source.c - pictures as a source.
 *
 * A store knows where the pictures are: in memory, or in records of files. A record is read whole,
 * into a buffer on the stack, and a sample is put together from it: rows that are cropped,
 * mirrored, padded, and of planes that are interleaved.
 */
#include <evenkeel/image_source.h>

#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "io/file.h"

enum { MOST_BYTES = 12 << 10, STREAM = 1, CIFAR_SIDE = 32, CIFAR_CHANNELS = 3 };

struct file {
  char *path;
  int file;
  int64_t first; /* number of its first sample */
};

struct images {
  ek_source base;
  ek_image_options options;
  ek_image_arrays arrays; /* what there is; pictures NULL: in files */
  bool planes;            /* a record has plane after plane */
  /* A record: of `stride` bytes from `begin` on, with the class at class_at and pixels at
   * pixels_at. With class_begin above 0 classes are in the last file, one byte each from there
   * on. */
  int64_t begin, stride, class_at, pixels_at, class_begin;
  size_t count;
  struct file files[]; /* flexible */
};

EK__OPTIONS_INIT(ek_image_options, EK_IMAGE_OPTIONS_INIT)
EK__OPTIONS_INIT(ek_image_arrays, EK_IMAGE_ARRAYS_INIT)

/* ---- a sample of a picture ---- */

struct cut { /* of the padded picture */
  int64_t top, left;
  bool mirrored;
};

static struct cut place_cut(const struct images *self, ek_random_key key, int64_t sample) {
  const ek_image_options *o = &self->options;
  const int64_t down = self->arrays.height + 2 * o->padding - o->crop[0];
  const int64_t across = self->arrays.width + 2 * o->padding - o->crop[1];
  if (!o->augment) return (struct cut){down / 2, across / 2, false};
  uint32_t bits[4];
  key.stream = STREAM;
  ek_random_bits(key, (uint32_t)sample, (uint32_t)((uint64_t)sample >> 32), bits);
  return (struct cut){(int64_t)(bits[0] % (uint64_t)(down + 1)),
                      (int64_t)(bits[1] % (uint64_t)(across + 1)), o->mirror && (bits[2] & 1) != 0};
}

/* Writes crop[0] x crop[1] pixels of `channels` bytes, which are `outside` beyond the picture. */
static void put_cut(uint8_t *to, const struct images *self, const struct cut *cut,
                    const uint8_t *from, int64_t channels, uint8_t outside) {
  const int64_t height = self->arrays.height, width = self->arrays.width;
  const int64_t pixel_step = self->planes ? 1 : channels;
  const int64_t channel_step = self->planes ? height * width : 1;
  for (int64_t i = 0; i < self->options.crop[0]; i++) {
    const int64_t v = cut->top + i - self->options.padding;
    for (int64_t j = 0; j < self->options.crop[1]; j++, to += channels) {
      const int64_t across = cut->mirrored ? self->options.crop[1] - 1 - j : j;
      const int64_t h = cut->left + across - self->options.padding;
      if (v < 0 || v >= height || h < 0 || h >= width) {
        memset(to, outside, (size_t)channels);
        continue;
      }
      const uint8_t *pixel = from + (v * width + h) * pixel_step;
      for (int64_t c = 0; c < channels; c++) to[c] = pixel[c * channel_step];
    }
  }
}

/* ---- reading ---- */

static ek_status read_record(uint8_t *record, uint8_t *class, const struct images *self,
                             int64_t sample) {
  const bool apart = self->class_begin > 0;
  size_t low = 0, high = apart ? 1 : self->count;
  while (high - low > 1) { /* the last file whose first sample is not after it */
    const size_t middle = low + (high - low) / 2;
    if (self->files[middle].first <= sample) low = middle;
    else high = middle;
  }
  const struct file *file = &self->files[low];
  const int64_t place = self->begin + (sample - file->first) * self->stride;
  EK_TRY(ek__file_read(file->file, file->path, record, (size_t)self->stride, (uint64_t)place));
  *class = record[self->class_at];
  if (!apart) return EK_OK;
  const struct file *classes = &self->files[1];
  return ek__file_read(classes->file, classes->path, class, 1,
                       (uint64_t)(self->class_begin + sample));
}

static ek_status read_from_files(const struct images *self, const ek_source_request *request,
                                 ek_tensor *tensors) {
  uint8_t record[MOST_BYTES];
  const int64_t bytes = self->options.crop[0] * self->options.crop[1] * self->arrays.channels;
  for (int64_t i = 0; i < request->count; i++) {
    const struct cut cut = place_cut(self, request->key, request->samples[i]);
    EK_TRY(read_record(record, (uint8_t *)tensors[1].data + i, self, request->samples[i]));
    put_cut((uint8_t *)tensors[0].data + i * bytes, self, &cut, record + self->pixels_at,
            self->arrays.channels, 0);
  }
  return EK_OK;
}

static ek_status read_from_arrays(const struct images *self, const ek_source_request *request,
                                  ek_tensor *tensors) {
  const ek_image_arrays *a = &self->arrays;
  const int64_t pixels = self->options.crop[0] * self->options.crop[1];
  const int64_t whole = a->height * a->width;
  for (int64_t i = 0; i < request->count; i++) {
    const int64_t sample = request->samples[i];
    const struct cut cut = place_cut(self, request->key, sample);
    put_cut((uint8_t *)tensors[0].data + i * pixels * a->channels, self, &cut,
            a->pictures + sample * whole * a->channels, a->channels, 0);
    if (a->classes != NULL) {
      ((int32_t *)tensors[1].data)[i] = a->classes[sample];
    } else {
      put_cut((uint8_t *)tensors[1].data + i * pixels, self, &cut, a->maps + sample * whole, 1,
              a->outside);
    }
  }
  return EK_OK;
}

static ek_status read_images(const ek_source *source, const ek_source_request *request,
                             ek_tensor *tensors) {
  const struct images *self = (const struct images *)source;
  return self->arrays.pictures != NULL ? read_from_arrays(self, request, tensors)
                                       : read_from_files(self, request, tensors);
}

static void free_images(ek_source *source) {
  struct images *self = (struct images *)source;
  for (size_t i = 0; i < self->count; i++) {
    if (self->files[i].file >= 0) ek__file_close(self->files[i].file);
    ek__free(self->files[i].path);
  }
  ek__free(self);
}

/* ---- a source ---- */

static ek_status check_crop(struct images *self) {
  ek_image_options *o = &self->options;
  const int64_t sizes[] = {self->arrays.height, self->arrays.width};
  EK__FAIL_IF(o->padding < 0 || o->padding > INT32_MAX || o->crop[0] < 0 || o->crop[1] < 0,
              EK_ERR_INVALID_ARGUMENT,
              "ek_image_options: padding is %" PRId64 " and crop %" PRId64 " x %" PRId64
              ", expected 0 or more",
              o->padding, o->crop[0], o->crop[1]);
  for (int i = 0; i < 2; i++) {
    if (o->crop[i] == 0) o->crop[i] = sizes[i];
    EK__FAIL_IF(o->crop[i] > sizes[i] + 2 * o->padding, EK_ERR_SHAPE,
                "ek_image_options: crop is %" PRId64 " x %" PRId64 "; pictures are %" PRId64
                " x %" PRId64 " with %" PRId64 " pixels of padding on each side",
                o->crop[0], o->crop[1], sizes[0], sizes[1], o->padding);
  }
  return EK_OK;
}

static ek_status init(struct images *self) {
  static const ek_source_ops ops = {
      .size = sizeof ops, .kind = "images", .read = read_images, .free = free_images};
  EK_TRY(check_crop(self));
  const int64_t *crop = self->options.crop;
  const bool classes = self->arrays.maps == NULL;
  const ek_source_tensor tensors[] = {
      {EK_U8, 3, {crop[0], crop[1], self->arrays.channels}},
      {self->arrays.classes != NULL ? EK_I32 : EK_U8, classes ? 0 : 2, {crop[0], crop[1]}}};
  ek_source_options options = EK_SOURCE_OPTIONS_INIT;
  options.samples = self->arrays.count;
  options.tensors = tensors;
  options.seed = self->options.seed;
  options.in_order = self->options.in_order;
  return ek_source_init(&self->base, &ops, &options);
}

static ek_status make(struct images **self, size_t files, const ek_image_options *options) {
  ek_image_options o = EK_IMAGE_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_image_options"));
  EK_TRY(ek__new(self, 1, sizeof **self + files * sizeof(*self)->files[0], "a source of pictures"));
  (*self)->options = o;
  return EK_OK;
}

/* *source becomes `self` if all went well, else it is freed. */
static ek_status finish(ek_source **source, struct images *self, ek_status status) {
  if (status == EK_OK) status = init(self);
  if (status == EK_OK) *source = &self->base;
  if (status != EK_OK) free_images(&self->base);
  return status;
}

/* Adds a file at the end. */
static ek_status add_file(struct images *self, const char *path, uint64_t *size) {
  struct file *file = &self->files[self->count++];
  file->file = -1;
  EK_TRY(ek__new_copy(&file->path, path, strlen(path) + 1, "the name of a file"));
  return ek__file_open(&file->file, size, path);
}

/* ---- IDX ---- */

/* The sizes of a file of u8 with `least` to `most` dimensions; *begin: where its elements are. */
static ek_status read_idx(const struct file *file, uint64_t size, int least, int most,
                          int64_t *sizes, int64_t *begin) {
  uint8_t header[4 + 4 * 4] = {0};
  int64_t elements = 1;
  EK__FAIL_IF(size < 4, EK_ERR_CORRUPT, "%s: %" PRIu64 " bytes are too few for an IDX file",
              file->path, size);
  EK_TRY(ek__file_read(file->file, file->path, header, 4, 0));
  const int rank = header[3];
  EK__FAIL_IF(
      header[0] != 0 || header[1] != 0 || header[2] != 8 || rank < least || rank > most,
      EK_ERR_CORRUPT,
      "%s: begins with %02x %02x %02x %02x, expected an IDX file of u8 (00 00 08) with %d to "
      "%d dimensions",
      file->path, header[0], header[1], header[2], header[3], least, most);
  *begin = 4 + 4 * rank;
  if (size >= (uint64_t)*begin) {
    EK_TRY(ek__file_read(file->file, file->path, header, (size_t)*begin, 0));
  }
  for (int i = 0; i < rank; i++) {
    const uint8_t *at = header + 4 + 4 * i;
    sizes[i] = (int64_t)at[0] << 24 | (int64_t)at[1] << 16 | (int64_t)at[2] << 8 | at[3];
    if (!ek__multiply(&elements, elements, sizes[i])) elements = INT64_MAX;
  }
  EK__FAIL_IF(size < (uint64_t)*begin || size - (uint64_t)*begin != (uint64_t)elements,
              EK_ERR_CORRUPT, "%s: %" PRIu64 " bytes; its header says %" PRId64 " and %" PRId64
                              " elements",
              file->path, size, *begin, elements);
  return EK_OK;
}

static ek_status open_idx(struct images *self, const char *pictures, const char *classes) {
  int64_t sizes[4] = {0, 0, 0, 1}, labels[1] = {0};
  uint64_t size = 0;
  EK_TRY(add_file(self, pictures, &size));
  EK_TRY(read_idx(&self->files[0], size, 3, 4, sizes, &self->begin));
  EK_TRY(add_file(self, classes, &size));
  EK_TRY(read_idx(&self->files[1], size, 1, 1, labels, &self->class_begin));
  EK__FAIL_IF(labels[0] != sizes[0], EK_ERR_SHAPE,
              "%s has %" PRId64 " pictures, and %s %" PRId64 " classes", pictures, sizes[0],
              classes, labels[0]);
  self->stride = sizes[1] * sizes[2] * sizes[3]; /* fits: the product of all does */
  EK__FAIL_IF(self->stride == 0 || sizes[0] == 0, EK_ERR_SHAPE, "%s has no pixels", pictures);
  EK__FAIL_IF(self->stride > MOST_BYTES, EK_ERR_UNSUPPORTED,
              "%s: pictures of %" PRId64 " bytes, at most %d are read", pictures, self->stride,
              MOST_BYTES);
  self->arrays.count = sizes[0];
  self->arrays.height = sizes[1];
  self->arrays.width = sizes[2];
  self->arrays.channels = sizes[3];
  return EK_OK;
}

ek_status ek_image_source_open_idx(ek_source **source, const char *pictures, const char *classes,
                                   const ek_image_options *options) {
  struct images *self = NULL;
  EK__NOT_NULL("ek_image_source_open_idx", source, pictures, classes);
  EK_TRY(make(&self, 2, options));
  return finish(source, self, open_idx(self, pictures, classes));
}

/* ---- CIFAR ---- */

static ek_status open_cifar(struct images *self, char *const *paths, size_t count, bool coarse) {
  self->planes = true;
  self->class_at = coarse ? 1 : 0;
  self->pixels_at = self->class_at + 1;
  self->stride = self->pixels_at + CIFAR_SIDE * CIFAR_SIDE * CIFAR_CHANNELS;
  self->arrays.height = self->arrays.width = CIFAR_SIDE;
  self->arrays.channels = CIFAR_CHANNELS;
  for (size_t i = 0; i < count; i++) {
    uint64_t size = 0;
    EK_TRY(add_file(self, paths[i], &size));
    EK__FAIL_IF(size == 0 || size % (uint64_t)self->stride != 0, EK_ERR_CORRUPT,
                "%s: %" PRIu64 " bytes are not a whole number of records of %" PRId64, paths[i],
                size, self->stride);
    self->files[i].first = self->arrays.count;
    self->arrays.count += (int64_t)(size / (uint64_t)self->stride);
  }
  return EK_OK;
}

ek_status ek_image_source_open_cifar(ek_source **source, const char *pattern, bool coarse_classes,
                                     const ek_image_options *options) {
  struct images *self = NULL;
  glob_t found = {0};
  EK__NOT_NULL("ek_image_source_open_cifar", source, pattern);
  const int failure = glob(pattern, GLOB_ERR, NULL, &found);
  ek_status status = EK_OK;
  if (failure == GLOB_NOSPACE) {
    status = ek_error_set(EK_ERR_OUT_OF_MEMORY, "no host memory for names of files");
  } else if (failure != 0) {
    status = ek_error_set(EK_ERR_NOT_FOUND, "%s: no such file", pattern);
  } else {
    status = make(&self, found.gl_pathc, options);
    if (status == EK_OK) {
      status = finish(source, self,
                      open_cifar(self, found.gl_pathv, found.gl_pathc, coarse_classes));
    }
  }
  globfree(&found);
  return status;
}

/* ---- arrays ---- */

ek_status ek_image_source_open_arrays(ek_source **source, const ek_image_arrays *arrays,
                                      const ek_image_options *options) {
  ek_image_arrays a = EK_IMAGE_ARRAYS_INIT;
  struct images *self = NULL;
  int64_t bytes = 0;
  EK__NOT_NULL("ek_image_source_open_arrays", source, arrays);
  EK_TRY(ek__options_read(&a, sizeof a, arrays, "ek_image_arrays"));
  EK__FAIL_IF(a.count <= 0 || a.height <= 0 || a.width <= 0 || a.channels <= 0,
              EK_ERR_INVALID_ARGUMENT,
              "ek_image_source_open_arrays: %" PRId64 " pictures of %" PRId64 " x %" PRId64
              " x %" PRId64 ", expected sizes above 0",
              a.count, a.height, a.width, a.channels);
  EK__FAIL_IF(!ek__multiply(&bytes, a.count, a.height) || !ek__multiply(&bytes, bytes, a.width) ||
                  !ek__multiply(&bytes, bytes, a.channels),
              EK_ERR_OVERFLOW, "ek_image_source_open_arrays: the sizes do not fit in 63 bits");
  EK__FAIL_IF(a.pictures == NULL || (a.classes == NULL) == (a.maps == NULL),
              EK_ERR_INVALID_ARGUMENT,
              "ek_image_source_open_arrays: expected pictures, and either classes or maps");
  EK_TRY(make(&self, 0, options));
  self->arrays = a;
  return finish(source, self, EK_OK);
}

ek_status ek_image_scaling(ek_input_scaling *scaling, const double *mean, const double *deviation,
                           int64_t channels) {
  EK__NOT_NULL("ek_image_scaling", scaling, mean, deviation);
  EK__FAIL_IF(channels < 1 || channels > EK_MAX_CHANNELS, EK_ERR_INVALID_ARGUMENT,
              "ek_image_scaling: %" PRId64 " channels, expected 1 to %d", channels,
              EK_MAX_CHANNELS);
  ek_input_scaling made = {.channels = channels};
  for (int64_t c = 0; c < channels; c++) {
    made.scale[c] = 1 / (255 * deviation[c]);
    made.offset[c] = -mean[c] / deviation[c];
    EK__FAIL_IF(!(deviation[c] > 0) || !isfinite(deviation[c]) || !isfinite(made.scale[c]) ||
                    !isfinite(made.offset[c]),
                EK_ERR_INVALID_ARGUMENT,
                "ek_image_scaling: channel %" PRId64 " has mean %g and deviation %g, expected "
                "finite numbers, and a deviation above 0 by which pixels can be divided",
                c, mean[c], deviation[c]);
  }
  *scaling = made;
  return EK_OK;
}
